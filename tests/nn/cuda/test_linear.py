import math

import pytest
import torch

from pairnorm.nn.cuda.linear import LARGEST, DropoutLinear, supports
from pairnorm.nn.dropout import draw_keys, dropout


@pytest.mark.parametrize(("width", "out"), [(1, 1), (16, 5), (33, 40)])
@pytest.mark.parametrize("rate", [None, 0.5])
@pytest.mark.parametrize("shared", [True, False])
def test_equals_the_plain_form(width, out, rate, shared, device):
    x = torch.randn(100, 1 if shared else 2, width, device=device, requires_grad=True)
    weight = torch.randn(2, width, out, device=device, requires_grad=True)
    keys = None if rate is None else draw_keys(2, device=device)
    expanded = x.expand(-1, 2, -1)
    y = DropoutLinear.apply(expanded, weight, rate or 0.0, keys)
    dropped = expanded if rate is None else dropout(expanded, rate, keys)
    expected = torch.einsum("nti,tio->nto", dropped, weight)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)
    grad = torch.randn_like(y)
    slopes = [torch.autograd.grad(output, (x, weight), grad) for output in (y, expected)]
    for slope, other in zip(*slopes, strict=True):
        torch.testing.assert_close(slope, other, rtol=1e-4, atol=1e-3)


def test_only_the_gradients_that_are_wanted(device):
    x, weight = torch.randn(5, 2, 3, device=device), torch.randn(2, 3, 4, device=device, requires_grad=True)
    DropoutLinear.apply(x, weight, 0.0, None).sum().backward()
    torch.testing.assert_close(weight.grad, x.sum(0).unsqueeze(-1).expand(2, 3, 4))


def test_wide_weights_are_left_to_the_matrix_library():
    side = math.isqrt(LARGEST)
    assert supports(torch.empty(1, side, side, device="meta"))
    assert not supports(torch.empty(1, side + 1, side, device="meta"))
    assert not supports(torch.empty(1, side, side + 1, device="meta"))
