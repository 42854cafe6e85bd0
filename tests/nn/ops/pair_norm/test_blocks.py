import pytest
import torch

from pairnorm.nn.ops.moments import Groups
from pairnorm.nn.ops.pair_norm import blocks
from pairnorm.nn.ops.pair_norm.plain import _formula, formula_gradient


def in_double(x, grad, scale, eps, individually):
    groups = Groups(len(x))
    y, length = _formula(x.double(), groups, scale, eps, individually)
    slope = formula_gradient(grad.double(), None, y, length, groups, scale, individually)
    return y, length, slope


# A block of 64 elements: exact multiples, remainders, a block per row, rows longer than a block, one block.
@pytest.mark.parametrize(
    "shape", [(32, 8), (33, 8), (7, 3, 5), (9, 2, 2, 9), (5, 40), (4, 100), (1, 3), (2, 3)]
)
@pytest.mark.parametrize("individually", [False, True])
@pytest.mark.parametrize("contiguous", [True, False])
def test_blocks_equal_the_formula_in_double(shape, individually, contiguous, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_ELEMENTS", 64)
    x, grad = torch.randn(shape) + 3, torch.randn(shape)
    if not contiguous:
        x, grad = (tensor.mT.contiguous().mT for tensor in (x, grad))
    y, length = blocks.forward(x, 2.0, 1e-6, individually)
    expected = in_double(x, grad, 2.0, 1e-6, individually)
    torch.testing.assert_close(y.double(), expected[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(length.double(), expected[1], rtol=1e-5, atol=1e-6)
    slope = blocks.backward(grad, y, length, 2.0, individually)
    if len(x) > 1:  # of one row all is centred away, and rounding divided by the root of eps is left
        torch.testing.assert_close(slope.double(), expected[2], rtol=1e-4, atol=1e-5)


def test_a_long_row_does_not_swallow_the_others(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_ELEMENTS", 2**14)
    x = torch.randn(2000, 32)
    x[0] = 1e4
    _, length = blocks.forward(x, 1.0, 1e-6, individually=False)
    _, expected, _ = in_double(x, x, 1.0, 1e-6, individually=False)
    torch.testing.assert_close(length.double(), expected, rtol=2e-7, atol=0)


def test_several_blocks_of_the_real_size():
    x = torch.randn(5 * blocks.BLOCK_ELEMENTS // (2 * 128), 128)
    y, _ = blocks.forward(x, 1.0, 1e-6, individually=False)
    torch.testing.assert_close(y.double(), in_double(x, x, 1.0, 1e-6, False)[0], rtol=1e-5, atol=1e-6)


def test_what_blocks_support():
    large, small = blocks.BLOCK_ELEMENTS // 8 + 1, blocks.BLOCK_ELEMENTS // 8
    assert blocks.serves(torch.empty(large, 8))
    assert not blocks.serves(torch.empty(small, 8))
    assert not blocks.serves(torch.empty(large, 8, dtype=torch.float64))
    assert not blocks.serves(torch.empty(large, 8, device="meta"))
