import pytest
import torch

from pairnorm.nn.attention import SLOPE, attend
from pairnorm.nn.cpu.attention import Attend
from pairnorm.nn.dropout import draw_keys


@pytest.mark.parametrize(("trials", "features"), [(1, 1), (3, 7), (2, 32)])
@pytest.mark.parametrize("rate", [None, 0.1, 0.6])
def test_equals_the_plain_form(trials, features, rate, adjacency, without_kernels):
    keys = None if rate is None else draw_keys(trials)
    tensors = [torch.randn(20, trials, *rest, requires_grad=True) for rest in ((), (), (features,))]
    y = Attend.apply(adjacency.pattern, *tensors, SLOPE, rate or 0.0, keys)
    with without_kernels():
        plain = attend(adjacency.pattern, *tensors, rate or 0.0, keys)
    torch.testing.assert_close(y, plain)
    grad = torch.randn_like(y)
    slopes = [torch.autograd.grad(output, tensors, grad) for output in (y, plain)]
    for slope, other in zip(*slopes, strict=True):
        torch.testing.assert_close(slope, other, rtol=1e-4, atol=1e-5)
