import sys
from pathlib import Path

import pytest
import torch

from pairnorm.nn.ops._triton import pair_norm as kernels
from pairnorm.nn.ops.kernels import KernelFunction
from pairnorm.nn.ops.sparse_product import ACTIVATIONS

sys.path.insert(0, str(Path(__file__).parents[2]))
import pair_norm_tester as tester

modes = pytest.mark.parametrize("mode", ["PN", "PN-SI"])
# Norms beyond 1e36 are computed in float64 on a CPU only: looking for them would wait for the GPU.
UNSUPPORTED = {"no nodes", "largest", "one huge row"}
EXTREMES = [name for name in tester.EXTREMES if name not in UNSUPPORTED]


def by_kernels(x, scale, mode, eps=1e-6):
    return KernelFunction.apply(kernels.forward, kernels.backward, None, (None, scale, eps, mode), x)


@modes
@pytest.mark.parametrize("name", EXTREMES)
def test_extreme_inputs_equal_the_formula(name, mode, device):
    tester.check(by_kernels, tester.EXTREMES[name]().to(device), mode)


@modes
@pytest.mark.parametrize("shape", [(700, 30), (40, 200), (3, 1000)])
def test_any_shape_equals_the_formula(shape, mode, device):
    tester.check(by_kernels, torch.randn(shape, device=device) + 3, mode)


@pytest.mark.parametrize(  # each with each other, though not all three
    ("mode", "activation", "offset", "noise"),
    [
        *[("PN", "none", 0.0, 1.0), ("PN-SI", "none", 1e4, 0.01), ("PN", "none", 1.0, 1e-5)],
        *[("PN-SI", "relu", 0.0, 1.0), ("PN", "relu", 1e4, 0.01), ("PN-SI", "relu", 1.0, 1e-5)],
        *[("PN", "elu", 0.0, 1.0), ("PN-SI", "elu", 1e4, 0.01), ("PN", "elu", 1.0, 1e-5)],
    ],
)
def test_gradient_through_an_activation(mode, activation, offset, noise, device):
    shape = (700, 2, 30)
    before, grad = offset + noise * torch.randn(shape, device=device), torch.randn(shape, device=device)
    x = ACTIVATIONS[activation](before)
    _, (norm, center) = kernels.forward(x, None, 2.0, 1e-12, mode, True)
    gradient, bias = kernels.backward_activated(grad, x, norm, center, 2.0, mode == "PN-SI", activation)
    wide = x.double().requires_grad_()
    (expected,) = torch.autograd.grad(tester.formula(wide, 2.0, mode, 1e-12), wide, grad.double())
    if activation != "none":
        expected = expected * (x > 0 if activation == "relu" else 1 + x.double().clamp(max=0))
    largest = expected.abs().max().item()
    torch.testing.assert_close(gradient.double(), expected, rtol=0, atol=1e-5 * largest)
    torch.testing.assert_close(bias.double(), expected.sum(0), rtol=0, atol=1e-4 * largest)


@modes
def test_nan_stays_in_its_own_model(mode, device):
    x = torch.randn(6, 2, 4, device=device)
    x[3, 1, 2] = torch.nan
    y = by_kernels(x, 1.0, mode)
    assert y[:, 0].isfinite().all()
    assert y[:, 1].isnan().any(-1).all()


@modes
def test_tiny_eps_is_not_lost(mode, device):
    """Numbers are shrunk before they are squared; not where eps is so small that squares would vanish."""
    x = 1e-12 * torch.randn(50, 8, device=device)
    y = by_kernels(x, 1.0, mode, 1e-30)
    torch.testing.assert_close(y.double(), tester.formula(x, 1.0, mode, 1e-30), rtol=1e-4, atol=1e-5)
