import pytest
import torch

from pairnorm.nn.ops._triton import activation as kernels
from pairnorm.nn.ops.activation import ACTIVATIONS


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (9, 2, 5), (70, 3, 50)])
def test_equals_the_plain_form(activation, shape, device):
    x = torch.randn(shape, device=device, requires_grad=True)
    bias = torch.randn(shape[1:], device=device, requires_grad=True)
    expected = ACTIVATIONS[activation](x + bias)
    y = kernels.forward(x.detach(), bias.detach(), activation)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-6)
    grad = torch.randn(shape, device=device)
    gradients = kernels.backward(grad, y, activation)
    for gradient, other in zip(gradients, torch.autograd.grad(expected, (x, bias), grad), strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nan_stays_nan(activation, device):
    x = torch.full((3, 1, 2), torch.nan, device=device)
    assert kernels.forward(x, torch.zeros(1, 2, device=device), activation).isnan().all()
