import pytest
import torch

from pairnorm.nn.ops.moments import Groups
from pairnorm.nn.ops.pair_norm import large
from pairnorm.nn.ops.pair_norm.plain import _choose

individually = pytest.mark.parametrize("individually", [False, True])


# Blocks of 64 elements, two a task: multiples, remainders, a block per row, rows longer than a block.
@pytest.mark.parametrize("shape", [(64, 8), (33, 8), (70, 3, 5), (9, 2, 2, 9), (5, 40), (40, 100), (2, 3)])
@individually
@pytest.mark.parametrize("contiguous", [True, False])
def test_equals_the_formula_in_double(shape, individually, contiguous, monkeypatch, check):
    monkeypatch.setattr(large, "BLOCK_ELEMENTS", 64)
    monkeypatch.setattr(large, "BLOCKS_PER_TASK", 2)
    check(large, shape, individually, contiguous)


@individually
def test_a_common_offset_hides_nothing(individually, in_double):
    x = torch.randn(3000, 16) + 1e5
    y, _ = large.forward(x, 1.0, 1e-6, individually)
    torch.testing.assert_close(y.double(), in_double(x, x, 1.0, 1e-6, individually)[0], rtol=1e-4, atol=1e-5)


@individually
@pytest.mark.parametrize("size", [1e19, 1e25])
def test_squares_beyond_single_precision(individually, size, in_double):
    x = torch.randn(50, 8) * size
    y, _ = large.forward(x, 1.0, 1e-6, individually)
    torch.testing.assert_close(y.double(), in_double(x, x, 1.0, 1e-6, individually)[0], rtol=1e-5, atol=1e-6)


def test_diverged_trials_show_and_spare_the_others():
    x = torch.randn(600, 2, 4)
    x[3, 1, 2] = torch.nan
    y, _ = large.forward(x, 1.0, 1e-6, individually=False)
    assert y[:, 1].isnan().all()
    torch.testing.assert_close(y[:, 0], large.forward(x[:, :1], 1.0, 1e-6, individually=False)[0][:, 0])


def test_what_it_serves():
    assert _choose(torch.empty(2**20 // 8 + 1, 8), Groups(2**17 + 1)) is large
    assert _choose(torch.empty(2**20 // 8, 8), Groups(2**17)) is not large
