import pytest
import torch

from pairnorm.nn.ops._numba import activation as kernels
from pairnorm.nn.ops.activation import ACTIVATIONS


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (9, 2, 5), (40, 3, 33)])
def test_equals_the_plain_form(activation, shape):
    x, bias = torch.randn(shape, requires_grad=True), torch.randn(shape[1:], requires_grad=True)
    expected = ACTIVATIONS[activation](x + bias)
    y = kernels.forward(x.detach(), bias.detach(), activation)
    torch.testing.assert_close(y, expected)
    grad = torch.randn(shape)
    gradients = kernels.backward(grad, y, activation)
    for gradient, other in zip(gradients, torch.autograd.grad(expected, (x, bias), grad), strict=True):
        torch.testing.assert_close(gradient, other)


@pytest.mark.parametrize("activation", ["relu", "elu"])
def test_far_from_zero(activation):
    x = torch.tensor([-1e30, -100.0, -0.0, 0.0, 1e30]).view(5, 1, 1)
    expected = ACTIVATIONS[activation](x)
    assert torch.equal(kernels.forward(x, torch.zeros(1, 1), activation), expected)
    gradient, _ = kernels.backward(torch.ones(5, 1, 1), expected, activation)
    assert gradient.flatten()[[0, 1, 4]].tolist() == [0, 0, 1]
