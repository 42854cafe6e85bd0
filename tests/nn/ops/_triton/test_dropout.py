import pytest
import torch

from pairnorm.nn.ops._triton import dropout as kernels
from pairnorm.nn.ops.dropout import LEVELS, draw_keys, dropped_levels, keep_mask


@pytest.mark.parametrize("shape", [(40, 3, 7), (40, 3, 8), (3, 2, 1), (1, 4, 301), (2, 1, 1500)])
@pytest.mark.parametrize("rate", [1e-9, 0.1, 0.6, 0.99999])
def test_equals_the_plain_form_bit_for_bit(shape, rate, device):
    x, keys = torch.randn(shape, device=device), draw_keys(shape[1], device=device)
    dropped = dropped_levels(rate)
    plain = keep_mask(keys, shape[0], shape[2], rate).mul_(LEVELS / (LEVELS - dropped)).mul(x)
    assert torch.equal(kernels.forward(x, rate, keys), plain)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype, device):
    x, keys = torch.ones(30, 2, 5, dtype=dtype, device=device), draw_keys(2, device=device)
    y = kernels.forward(x, 0.5, keys)
    assert torch.equal(y.float(), 2 * keep_mask(keys, 30, 5, 0.5))


@pytest.mark.parametrize("strides", ["expanded", "permuted", "sliced"])
def test_any_strides(strides, device):
    x = {
        "expanded": lambda: torch.randn(9, 1, 5, device=device).expand(-1, 3, -1),
        "permuted": lambda: torch.randn(5, 3, 9, device=device).permute(2, 1, 0),
        "sliced": lambda: torch.randn(9, 6, 5, device=device)[:, ::2],
    }[strides]()
    keys = draw_keys(3, device=device)
    assert torch.equal(kernels.forward(x, 0.4, keys), kernels.forward(x.contiguous(), 0.4, keys))
