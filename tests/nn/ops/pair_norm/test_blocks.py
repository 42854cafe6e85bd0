import pytest
import torch

from pairnorm.nn.ops.pair_norm import blocks


# A block of 64 elements: exact multiples, remainders, a block per row, rows longer than a block, one block.
@pytest.mark.parametrize(
    "shape", [(32, 8), (33, 8), (7, 3, 5), (9, 2, 2, 9), (5, 40), (4, 100), (1, 3), (2, 3)]
)
@pytest.mark.parametrize("individually", [False, True])
@pytest.mark.parametrize("contiguous", [True, False])
def test_blocks_equal_the_formula_in_double(shape, individually, contiguous, monkeypatch, check):
    monkeypatch.setattr(blocks, "BLOCK_ELEMENTS", 64)
    check(blocks, shape, individually, contiguous)


def test_a_long_row_does_not_swallow_the_others(monkeypatch, in_double):
    monkeypatch.setattr(blocks, "BLOCK_ELEMENTS", 2**14)
    x = torch.randn(2000, 32)
    x[0] = 1e4
    _, norm = blocks.forward(x, 1.0, 1e-6, individually=False)
    _, expected, _ = in_double(x, x, 1.0, 1e-6, individually=False)
    torch.testing.assert_close(norm.double(), expected, rtol=2e-7, atol=0)


def test_several_blocks_of_the_real_size(in_double):
    x = torch.randn(5 * blocks.BLOCK_ELEMENTS // (2 * 128), 128)
    y, _ = blocks.forward(x, 1.0, 1e-6, individually=False)
    torch.testing.assert_close(y.double(), in_double(x, x, 1.0, 1e-6, False)[0], rtol=1e-5, atol=1e-6)


def test_what_blocks_support():
    large, small = blocks.BLOCK_ELEMENTS // 8 + 1, blocks.BLOCK_ELEMENTS // 8
    assert blocks.serves(torch.empty(large, 8))
    assert not blocks.serves(torch.empty(small, 8))
    assert not blocks.serves(torch.empty(large, 8, dtype=torch.float64))
    assert not blocks.serves(torch.empty(large, 8, device="meta"))
