import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional

from pairnorm.nn.ops.activation import activate

ACTIVATIONS = {"none": lambda x: x, "relu": functional.relu, "elu": functional.elu}
activations = pytest.mark.parametrize("activation", ACTIVATIONS)


def assert_equal_with_gradients(ours, expected, tensors):
    torch.testing.assert_close(ours, expected)
    grad = torch.randn_like(expected)
    gradients = [torch.autograd.grad(y, tensors, grad) for y in (ours, expected)]
    for gradient, other in zip(*gradients, strict=True):
        torch.testing.assert_close(gradient, other)


@activations
@pytest.mark.parametrize("shape", [(7, 3, 5), (1, 1, 1), (40, 2, 33)])
def test_activate(activation, shape, either_form):
    x, bias = torch.randn(shape, requires_grad=True), torch.randn(shape[1:], requires_grad=True)
    expected = ACTIVATIONS[activation](x + bias)
    assert_equal_with_gradients(activate(x, bias, activation), expected, (x, bias))


@activations
def test_gradients_of_gradients(activation, either_form):
    x, bias = torch.randn(20, 2, 3, requires_grad=True), torch.randn(2, 3, requires_grad=True)

    def second(y):
        first = torch.autograd.grad(y.pow(2).sum(), (x, bias), create_graph=True)
        return torch.autograd.grad(sum(gradient.pow(2).sum() for gradient in first), (x, bias))

    ours, expected = second(activate(x, bias, activation)), second(ACTIVATIONS[activation](x + bias))
    for gradient, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-4, atol=1e-4)


@activations
def test_gradcheck(activation):
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((20, 1, 2), (1, 2))]
    assert gradcheck(lambda *inputs: activate(*inputs, activation), inputs)
    assert gradgradcheck(lambda *inputs: activate(*inputs, activation), inputs)


@activations
def test_nan_stays_nan(activation, either_form):
    x, bias = torch.full((20, 1, 2), torch.nan), torch.zeros(1, 2)
    assert activate(x, bias, activation).isnan().all()


@activations
def test_strides_do_not_matter(activation, either_form):
    x, bias = torch.randn(5, 3, 20).permute(2, 1, 0), torch.randn(5, 3).T
    torch.testing.assert_close(
        activate(x, bias, activation), activate(x.contiguous(), bias.contiguous(), activation)
    )


@activations
def test_no_nodes(activation):
    assert activate(torch.zeros(0, 2, 3), torch.ones(2, 3), activation).shape == (0, 2, 3)
