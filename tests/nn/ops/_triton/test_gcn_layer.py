import pytest
import torch

from pairnorm.nn.ops._triton import gcn_layer as cuda
from pairnorm.nn.ops.convolution import gcn_reference
from pairnorm.nn.ops.dropout import draw_keys
from pairnorm.nn.ops.kernels import KernelFunction
from pairnorm.nn.pair_norm import PairNorm

TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 3e-2}


@pytest.mark.parametrize(  # each type with each other value, though not with all of them
    ("mode", "activation", "maps", "dtype"),
    [
        (mode, activation, maps, list(TOLERANCES)[(number + (activation == "relu") + maps) % 2])
        for number, mode in enumerate([None, "PN", "PN-SI"])
        for activation in ("none", "relu")
        for maps in (True, False)
    ],
)
def test_equals_the_plain_form_in_double(mode, activation, maps, dtype, few_nodes, device):
    norm = None if mode is None else PairNorm(2.0, mode)
    x, weight, bias = (torch.randn(shape, device=device) for shape in ((8, 3, 6), (3, 6, 5), (3, 5)))
    bias = bias if maps else torch.randn(3, 6, device=device)
    x = x.to(dtype)
    given = [tensor.requires_grad_() for tensor in ((x, weight, bias) if maps else (x, bias))]
    wide = [tensor.detach().double().requires_grad_() for tensor in given]
    keys = draw_keys(3, device=device) if maps else None
    settings = (few_nodes.to(device), activation, norm, 0.5, keys)

    def arguments(tensors):
        return tensors if maps else (tensors[0], None, tensors[1])

    y = KernelFunction.apply(cuda, gcn_reference, settings, *arguments(given))
    expected = gcn_reference(*arguments(wide), *settings)
    assert y.dtype == dtype
    _assert_near([y], [expected], TOLERANCES[dtype])
    grad = torch.randn_like(y)
    found = torch.autograd.grad(y, given, grad)
    assert [gradient.dtype for gradient in found] == [tensor.dtype for tensor in given]
    _assert_near(found, torch.autograd.grad(expected, wide, grad.double()), 2 * TOLERANCES[dtype])


def _assert_near(found, expected, tolerance):
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.double() - theirs).norm() <= tolerance * (theirs.norm() + 1)
