"""The kernel is the formula; without it the same solutions are found."""

import pytest
import torch
from torch.nn.functional import one_hot

pytest.importorskip("numba")

from pairnorm.classify import regression
from pairnorm.classify.curvature import curvature


@pytest.mark.parametrize(
    ("rows", "columns", "folds", "classes"), [(9, 5, 1, 2), (1, 3, 2, 3), (64, 33, 5, 7)]
)
def test_the_product_is_that_of_the_hessian(rows: int, columns: int, folds: int, classes: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, columns, generator=generator, dtype=torch.double)
    shares = torch.rand(rows, folds, 1, generator=generator, dtype=torch.double)
    weight, direction = torch.randn(2, folds, classes, columns, generator=generator, dtype=torch.double)

    def loss(weight: torch.Tensor) -> torch.Tensor:
        logarithms = torch.einsum("md,kcd->mkc", x, weight).log_softmax(2)
        return -(shares * logarithms[..., :1]).sum()  # which class is the right one adds no curvature

    _, expected = torch.autograd.functional.hvp(loss, weight, direction)
    probabilities = torch.einsum("md,kcd->mkc", x, weight).softmax(2)
    result = torch.full_like(direction, torch.nan)
    curvature(*(part.numpy() for part in (x, probabilities, shares * probabilities, direction, result)))
    torch.testing.assert_close(result, expected)


def test_without_the_kernel_the_solutions_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    rows, labels = torch.randn(60, 20, generator=generator), torch.randint(0, 3, (60,), generator=generator)
    folds = torch.rand(2, 60, generator=generator)
    found = [*regression.fold_regressions(rows, one_hot(labels, 3), (1.0, 30.0), folds)]
    monkeypatch.setattr(regression, "installed", lambda device: False)
    plain = [*regression.fold_regressions(rows, one_hot(labels, 3), (1.0, 30.0), folds)]
    for (scale, weight, bias), (same, expected, expected_bias) in zip(found, plain, strict=True):
        assert scale == same
        torch.testing.assert_close(weight, expected, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(bias, expected_bias, atol=1e-6, rtol=1e-5)
