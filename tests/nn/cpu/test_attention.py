import pytest
import torch

from pairnorm.nn.attention import SLOPE, attend
from pairnorm.nn.cpu.attention import Attend
from pairnorm.nn.dropout import draw_keys


@pytest.mark.parametrize(("trials", "features"), [(1, 1), (3, 7), (2, 32)])
@pytest.mark.parametrize("rate", [None, 0.1, 0.6])
@pytest.mark.parametrize("activation", ["none", "relu", "elu"])
def test_equals_the_plain_form(trials, features, rate, activation, adjacency, without_kernels):
    keys = None if rate is None else draw_keys(trials)
    shapes = (20, trials, 2), (20, trials, features), (trials, features)
    tensors = [torch.randn(shape, requires_grad=True) for shape in shapes]
    y = Attend.apply(adjacency.pattern, *tensors, activation, SLOPE, rate or 0.0, keys)
    with without_kernels():
        plain = attend(adjacency.pattern, *tensors, activation, rate or 0.0, keys)
    torch.testing.assert_close(y, plain)
    grad = torch.randn_like(y)
    slopes = [torch.autograd.grad(output, tensors, grad) for output in (y, plain)]
    for slope, other in zip(*slopes, strict=True):
        torch.testing.assert_close(slope, other, rtol=1e-4, atol=1e-5)
