import pytest
import torch

from pairnorm.nn.ops.activation.plain import ACTIVATIONS
from pairnorm.nn.ops.pair_norm import cuda as kernels

individual = pytest.mark.parametrize("individually", [False, True])


@individual
@pytest.mark.parametrize("shape", [(700, 30), (129, 3, 17), (5, 2, 2, 8), (2, 1), (40, 200), (3, 1000)])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_equals_the_formula_in_double(shape, individually, offset, device, in_double):
    x, grad = torch.randn(shape, device=device) + offset, torch.randn(shape, device=device)
    expected = in_double(x, grad, 2.0, 1e-6, individually)
    y, norm = kernels.forward(x, 2.0, 1e-6, individually)
    gradient = kernels.backward(grad, y, norm, 2.0, individually)
    tolerance = 1e-4 if offset else 1e-5
    for ours, other in zip((y, norm, gradient), expected, strict=True):
        assert ours.shape == other.shape
        torch.testing.assert_close(ours.double(), other, rtol=tolerance, atol=tolerance)


@individual
@pytest.mark.parametrize("order", ["zero row first", "sorted"])
@pytest.mark.parametrize("noise", [1.0, 0.01])
def test_large_offset(individually, order, noise, device, in_double):
    x = 1e4 + noise * torch.randn(700, 30, device=device)
    if order == "sorted":
        x = x.sort(0).values
    else:
        x[0] = 0
    y, _ = kernels.forward(x, 1.0, 1e-6, individually)
    expected, _, _ = in_double(x, x, 1.0, 1e-6, individually)
    torch.testing.assert_close(y.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(  # each with each other, though not all three
    ("individually", "activation", "offset", "noise"),
    [
        *[(False, "none", 0.0, 1.0), (True, "none", 1e4, 0.01), (False, "none", 1.0, 1e-5)],
        *[(True, "relu", 0.0, 1.0), (False, "relu", 1e4, 0.01), (True, "relu", 1.0, 1e-5)],
        *[(False, "elu", 0.0, 1.0), (True, "elu", 1e4, 0.01), (False, "elu", 1.0, 1e-5)],
    ],
)
def test_the_gradient_through_an_activation(individually, activation, offset, noise, device, in_double):
    shape = (700, 2, 30)
    before, grad = offset + noise * torch.randn(shape, device=device), torch.randn(shape, device=device)
    x = ACTIVATIONS[activation](before)
    _, norm, center = kernels.forward_with_center(x, 2.0, 1e-12, individually)
    gradient, bias = kernels.backward_activated(grad, x, norm, center, 2.0, individually, activation)
    expected = in_double(x, grad, 2.0, 1e-12, individually)[2]
    if activation != "none":
        expected = expected * (x > 0 if activation == "relu" else 1 + x.double().clamp(max=0))
    largest = expected.abs().max().item()
    torch.testing.assert_close(gradient.double(), expected, rtol=0, atol=1e-5 * largest)
    torch.testing.assert_close(bias.double(), expected.sum(0), rtol=0, atol=1e-4 * largest)


@individual
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(individually, dtype, device, in_double):
    x = (torch.randn(100, 2, 24, device=device).sign() * 1e4).to(dtype)
    grad = torch.randn_like(x)
    y, norm = kernels.forward(x, 2.0, 1e-6, individually)
    gradient = kernels.backward(grad, y, norm, 2.0, individually)
    expected = in_double(x, grad, 2.0, 1e-6, individually)
    assert y.dtype == gradient.dtype == dtype
    for ours, other in ((y, expected[0]), (gradient, expected[2])):
        torch.testing.assert_close(
            ours.double(), other, rtol=0, atol=2 * torch.finfo(dtype).eps * other.abs().max().item()
        )


@individual
def test_one_node_and_equal_rows(individually, device):
    for x in (torch.randn(1, 2, 4, device=device), torch.full((9, 5), 7.0, device=device)):
        y, norm = kernels.forward(x, 1.0, 1e-4, individually)
        assert not y.any()
        torch.testing.assert_close(norm, torch.full_like(norm, 1e-2))
        assert kernels.backward(torch.randn_like(x), y, norm, 1.0, individually).isfinite().all()


@individual
def test_nan_shows_in_its_own_trial(individually, device):
    x = torch.randn(6, 2, 4, device=device)
    x[3, 1, 2] = torch.nan
    y, _ = kernels.forward(x, 1.0, 1e-6, individually)
    assert y[:, 0].isfinite().all()
    assert y[:, 1].isnan().any(-1).all()


@individual
def test_any_strides(individually, device):
    x, grad = (torch.randn(40, 3, 8, device=device).transpose(0, 2) for _ in range(2))
    y, norm = kernels.forward(x, 1.0, 1e-6, individually)
    other, _ = kernels.forward(x.contiguous(), 1.0, 1e-6, individually)
    assert torch.equal(y, other)
    gradient = kernels.backward(grad, y, norm, 1.0, individually)
    assert torch.equal(gradient, kernels.backward(grad.contiguous(), y, norm, 1.0, individually))
