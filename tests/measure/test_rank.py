import math

import pytest
import torch

from pairnorm.measure import effective_rank


def with_spectrum(values, n, d):
    left, _ = torch.linalg.qr(torch.randn(n, len(values), dtype=torch.float64))
    right, _ = torch.linalg.qr(torch.randn(d, len(values), dtype=torch.float64))
    return left @ torch.tensor(values, dtype=torch.float64).diag() @ right.T


@pytest.mark.parametrize("shape", [(50, 6), (6, 50), (6, 6)])
@pytest.mark.parametrize(
    ("spectrum", "expected"),
    [
        ([3.0], 1),
        ([2.0] * 5, 5),
        ([1.0, 1.0, 0.0], 2),
        ([0.5, 0.25, 0.25], math.exp(1.5 * math.log(2))),
        ([1.0, 1e-12], 1),
    ],
)
def test_known_spectra(shape, spectrum, expected):
    value = effective_rank(with_spectrum(spectrum, *shape))
    torch.testing.assert_close(value, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=0)


def test_scale_does_not_count_and_the_mean_does():
    x = torch.randn(30, 4)
    torch.testing.assert_close(effective_rank(x), effective_rank(x * 1e-3))
    assert effective_rank(x + 1e6) < 1.01


@pytest.mark.parametrize("n", [1, 3])
def test_zero_states_have_rank_zero_and_one_row_rank_one(n):
    assert effective_rank(torch.zeros(n, 4)) == 0
    torch.testing.assert_close(effective_rank(torch.ones(n, 4)), torch.tensor(1.0))
