import pytest
import torch
from torch import Tensor

from pairnorm.classify.regression import minimise, regressions, span
from pairnorm.nn import pair_norm


def test_a_quadratic_is_solved_exactly() -> None:
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(20, 20, generator=generator, dtype=torch.float64)
    matrix = root @ root.T + 0.1 * torch.eye(20)
    goal = torch.randn(20, generator=generator, dtype=torch.float64)

    def function(point: Tensor) -> tuple[float, Tensor]:
        slope = matrix @ point - goal
        return float(point @ matrix @ point / 2 - goal @ point), slope

    found = minimise(function, torch.zeros(20, dtype=torch.float64))
    torch.testing.assert_close(found, torch.linalg.solve(matrix, goal), atol=1e-3, rtol=1e-3)


def test_a_start_at_the_least_point_stays_there() -> None:
    start = torch.ones(3, dtype=torch.float64)
    calls = []

    def function(point: Tensor) -> tuple[float, Tensor]:
        calls.append(point)
        return float((point - 1).square().sum()), 2 * (point - 1)

    assert torch.equal(minimise(function, start), start)
    assert len(calls) == 1


def test_steps_are_counted() -> None:
    calls = []

    def function(point: Tensor) -> tuple[float, Tensor]:
        calls.append(point)
        return float(point.pow(4).sum()), 4 * point.pow(3)

    minimise(function, torch.full((2,), 3.0, dtype=torch.float64), steps=3)
    assert 4 <= len(calls) <= 12


def problem(rows: int, columns: int, unit: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    features = unit * torch.randn(rows, columns, generator=generator)
    return features, torch.randint(0, 3, (rows,), generator=generator)


def slope(rows: Tensor, labels: Tensor, scale: float, weight: Tensor, bias: Tensor) -> Tensor:
    """The gradient of the objective as it is written in the docstring, by autograd, in float64."""
    weight, bias = (tensor.double().requires_grad_() for tensor in (weight, bias))
    logits = scale * rows.double() @ weight + bias
    loss = torch.nn.functional.cross_entropy(logits, labels) + weight.square().sum() / 2
    return torch.cat([part.flatten() for part in torch.autograd.grad(loss, [weight, bias])])


@pytest.mark.parametrize(("rows", "columns"), [(60, 5), (12, 40)], ids=["tall", "wide"])
@pytest.mark.parametrize("unit", [1.0, 0.01])
def test_each_scale_is_solved(rows: int, columns: int, unit: float) -> None:
    features, labels = problem(rows, columns, unit)
    found = list(regressions(features, labels, 3, (10.0, 0.5, 2.0)))
    assert [scale for scale, _, _ in found] == [0.5, 2.0, 10.0]
    for scale, weight, bias in found:
        assert slope(features, labels, scale, weight, bias).abs().max() < 1e-4


def test_a_scale_does_not_depend_on_those_before_it() -> None:
    features, labels = problem(60, 5)
    *_, (_, weight, bias) = regressions(features, labels, 3, (1.0, 3.0, 10.0))
    ((_, alone, alone_bias),) = regressions(features, labels, 3, (10.0,))
    torch.testing.assert_close(weight, alone, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(bias, alone_bias, atol=1e-3, rtol=1e-3)


def test_threads_are_given_back() -> None:
    torch.set_num_threads(2)
    list(regressions(*problem(10, 3), 3, (1.0,)))
    assert torch.get_num_threads() == 2


def test_span_keeps_distances_and_pair_norm() -> None:
    features = torch.zeros(30, 50)
    features[:8] = torch.randn(8, 50, generator=torch.Generator().manual_seed(0))
    basis, reduced = span(features)
    assert basis is not None
    assert reduced.shape == (30, 8)
    torch.testing.assert_close(reduced @ basis.T, features, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(reduced @ reduced.T, features @ features.T, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(pair_norm(reduced) @ basis.T, pair_norm(features), atol=1e-5, rtol=1e-5)


def test_span_leaves_features_that_are_there_alone() -> None:
    features = torch.randn(30, 5)
    basis, reduced = span(features)
    assert basis is None
    assert reduced is features
