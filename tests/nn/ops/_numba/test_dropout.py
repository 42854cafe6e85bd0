import pytest
import torch

from pairnorm.nn.ops._numba import dropout as kernels
from pairnorm.nn.ops.dropout import LEVELS, draw_keys, dropped_levels, keep_mask


@pytest.mark.parametrize("shape", [(40, 3, 7), (40, 3, 8), (3, 2, 1), (1, 4, 301), (5, 1, 2)])
@pytest.mark.parametrize("rate", [1e-9, 0.1, 0.5, 0.6, 0.99999])
def test_equals_the_plain_form_bit_for_bit(shape, rate):
    x, keys, dropped = torch.randn(shape), draw_keys(shape[1]), dropped_levels(rate)
    plain = keep_mask(keys, shape[0], shape[2], rate).mul_(LEVELS / (LEVELS - dropped)).mul(x)
    assert torch.equal(kernels.forward(x, rate, keys), plain)


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(9, 1, 5).expand(-1, 3, -1),
        torch.randn(5, 3, 9).permute(2, 1, 0),
        torch.randn(9, 6, 5)[:, ::2],
    ],
    ids=["expanded", "permuted", "sliced"],
)
def test_any_strides(x):
    keys = draw_keys(3)
    assert torch.equal(kernels.forward(x, 0.4, keys), kernels.forward(x.contiguous(), 0.4, keys))
