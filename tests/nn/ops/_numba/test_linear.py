import pytest
import torch

from pairnorm.nn.ops._numba import linear as cpu
from pairnorm.nn.ops.dropout import draw_keys, dropout
from pairnorm.nn.ops.kernels import KernelFunction
from pairnorm.nn.ops.linear import _reference


def by_kernels(x, weight, ends, rate, keys):
    return KernelFunction.apply(cpu.forward, cpu.backward, _reference, (rate, keys), x, weight, ends)


sizes = pytest.mark.parametrize(
    ("nodes", "trials", "width", "out"), [(1, 1, 1, 1), (9, 3, 5, 7), (131, 2, 33, 40), (64, 1, 64, 64)]
)


@sizes
@pytest.mark.parametrize("scores", [0, 2, 6])
@pytest.mark.parametrize("rate", [None, 0.0, 0.6])
def test_equals_the_formula_in_double(nodes, trials, width, out, scores, rate):
    keys = None if rate is None else draw_keys(trials)
    shapes = (nodes, trials, width), (trials, width, out), (trials, out, scores)
    x, weight, ends = (torch.randn(shape, requires_grad=True) for shape in shapes)
    z, ours = by_kernels(x, weight, ends if scores else None, rate or 0.0, keys)
    wide = [tensor.detach().double().requires_grad_() for tensor in (x, weight, ends)]
    left = wide[0] if keys is None else dropout(wide[0], rate, keys)
    expected = [torch.einsum("nti,tio->nto", left, wide[1])]
    expected.append(torch.einsum("nto,toe->nte", expected[0], wide[2]))
    inputs, outputs = [x, weight], [z]
    if scores:
        inputs, outputs = [x, weight, ends], [z, ours]
    else:
        assert ours is None
    grads = [torch.randn(output.shape) for output in outputs]
    for output, other in zip(outputs, expected, strict=False):
        torch.testing.assert_close(output.double(), other, rtol=1e-4, atol=1e-4)
    gradients = torch.autograd.grad(outputs, inputs, grads)
    others = torch.autograd.grad(
        expected[: len(outputs)], wide[: len(inputs)], [grad.double() for grad in grads]
    )
    for gradient, other in zip(gradients, others, strict=True):
        torch.testing.assert_close(gradient.double(), other, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("used", ["z", "scores"])
def test_an_output_that_nothing_depends_on(used):
    inputs = [torch.randn(shape, requires_grad=True) for shape in ((6, 2, 4), (2, 4, 3), (2, 3, 2))]
    z, scores = by_kernels(*inputs, 0.0, None)
    product = torch.einsum("nti,tio->nto", *inputs[:2])
    expected = product if used == "z" else torch.einsum("nto,toe->nte", product, inputs[2])
    needed = inputs if used == "scores" else inputs[:2]
    gradients = torch.autograd.grad((z if used == "z" else scores).sum(), needed)
    for gradient, other in zip(gradients, torch.autograd.grad(expected.sum(), needed), strict=True):
        torch.testing.assert_close(gradient, other)


def test_gradients_are_those_of_inputs_that_want_one():
    x, weight = torch.randn(6, 2, 4), torch.randn(2, 4, 3, requires_grad=True)
    by_kernels(x, weight, None, 0.5, draw_keys(2))[0].sum().backward()
    assert x.grad is None
    assert weight.grad is not None


def test_wide_weights_are_left_to_the_library():
    assert cpu.fits(torch.empty(3, 64, 64))
    assert not cpu.fits(torch.empty(3, 1433, 64))
