import math

import pytest
import torch

from pairnorm.nn.ops._triton import linear as cuda
from pairnorm.nn.ops._triton.linear import MAX_SCORES, MAX_WEIGHT_ELEMENTS
from pairnorm.nn.ops.dropout import draw_keys, dropout
from pairnorm.nn.ops.kernels import KernelFunction
from pairnorm.nn.ops.linear import _reference


def by_kernels(x, weight, ends, rate, keys):
    return KernelFunction.apply(cuda.forward, cuda.backward, _reference, (rate, keys), x, weight, ends)


@pytest.mark.parametrize(("width", "out"), [(1, 1), (16, 5), (33, 40), (32, 32)])
@pytest.mark.parametrize("rate", [None, 0.5])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("count", [0, 2])
def test_equals_the_plain_form(width, out, rate, shared, count, device, monkeypatch):
    if count:  # a program then takes several tiles of rows
        monkeypatch.setattr(cuda, "PROGRAMS", 2)
        monkeypatch.setattr(cuda, "PROGRAMS_OF_SUMS", 2)
    x = torch.randn(100, 1 if shared else 2, width, device=device, requires_grad=True)
    weight = torch.randn(2, width, out, device=device, requires_grad=True)
    keys = None if rate is None else draw_keys(2, device=device)
    expanded = x.expand(-1, 2, -1)
    dropped = expanded if rate is None else dropout(expanded, rate, keys)
    expected = [torch.einsum("nti,tio->nto", dropped, weight)]
    leaves, ends = [x, weight], None
    if count:
        ends = torch.randn(2, out, count, device=device, requires_grad=True)
        expected.append(torch.einsum("nto,toe->nte", expected[0], ends))
        leaves.append(ends)
    found = by_kernels(expanded, weight, ends, rate or 0.0, keys)[: len(expected)]
    grads = [torch.randn_like(output) for output in expected]
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)
    gradients = [torch.autograd.grad(outputs, leaves, grads) for outputs in (found, expected)]
    for gradient, other in zip(*gradients, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-4, atol=1e-2)


def test_only_the_gradients_that_are_wanted(device):
    x, weight = torch.randn(5, 2, 3, device=device), torch.randn(2, 3, 4, device=device, requires_grad=True)
    by_kernels(x, weight, None, 0.0, None)[0].sum().backward()
    torch.testing.assert_close(weight.grad, x.sum(0).unsqueeze(-1).expand(2, 3, 4))


def test_wide_weights_are_left_to_the_matrix_library():
    side = math.isqrt(MAX_WEIGHT_ELEMENTS)
    assert cuda.fits(torch.empty(1, side, side, device="meta"))
    assert not cuda.fits(torch.empty(1, side + 1, side, device="meta"))
    assert not cuda.fits(torch.empty(1, side, side + 1, device="meta"))
    weight = torch.empty(1, 8, 8, device="meta")
    assert cuda.fits(weight, torch.empty(1, 8, MAX_SCORES, device="meta"))
    assert not cuda.fits(weight, torch.empty(1, 8, MAX_SCORES + 1, device="meta"))


def test_gradients_of_gradients(device):
    """Bug: on CUDA they were refused."""
    x, weight, ends = (torch.randn(shape, device=device) for shape in ((9, 2, 5), (2, 5, 3), (2, 3, 2)))
    keys, tensors = draw_keys(2, device=device), [tensor.requires_grad_() for tensor in (x, weight, ends)]
    wide = [tensor.detach().double().requires_grad_() for tensor in tensors]

    def second(outputs, tensors):
        total = sum(output.pow(3).sum() for output in outputs)
        first = torch.autograd.grad(total, tensors, create_graph=True)
        return torch.autograd.grad(sum(gradient.pow(2).sum() for gradient in first), tensors)

    expected = second(_reference(*wide, 0.5, keys), wide)
    for gradient, other in zip(second(by_kernels(*tensors, 0.5, keys), tensors), expected, strict=True):
        torch.testing.assert_close(gradient.double(), other, rtol=1e-3, atol=1e-3 * other.abs().max().item())


def test_states_in_half_precision(device):
    """What goes in and out is; weights, scores and sums are not."""
    keys, shapes = draw_keys(2, device=device), ((100, 2, 17), (2, 17, 5), (2, 5, 2))
    x, weight, ends = (torch.randn(shape, device=device) for shape in shapes)
    given = [tensor.requires_grad_() for tensor in (x.bfloat16(), weight, ends)]
    wide = [tensor.detach().double().requires_grad_() for tensor in given]
    found, expected = by_kernels(*given, 0.5, keys), _reference(*wide, 0.5, keys)
    assert [output.dtype for output in found] == [torch.bfloat16, torch.float32]
    grads = [torch.randn_like(output) for output in found]
    found += torch.autograd.grad(found, given, grads)
    expected += torch.autograd.grad(expected, wide, [grad.double() for grad in grads])
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.double() - theirs).norm() <= 0.01 * theirs.norm()
