import pytest
import torch

from pairnorm.nn import PairNorm
from pairnorm.nn.ops._numba import convolution as cpu
from pairnorm.nn.ops.convolution import NEGATIVE_SLOPE, attend, attention_reference
from pairnorm.nn.ops.dropout import draw_keys
from pairnorm.nn.ops.kernels import KernelFunction


def by_kernels(matrix, scores, z, bias, activation, rate=0.0, keys=None, norm=None):
    settings = (matrix, activation, NEGATIVE_SLOPE, rate, keys, norm)
    functions = (cpu.attention_forward, cpu.attention_backward, attention_reference)
    return KernelFunction.apply(*functions, settings, scores, z, bias)


@pytest.mark.parametrize(("trials", "features"), [(1, 1), (3, 7), (2, 32)])
@pytest.mark.parametrize("rate", [None, 0.1, 0.6])
@pytest.mark.parametrize("activation", ["none", "relu", "elu"])
def test_equals_the_plain_form(
    trials, features, rate, activation, adjacency, without_kernels, assert_equal_with_gradients
):
    keys = None if rate is None else draw_keys(trials)
    shapes = (20, trials, 2), (20, trials, features), (trials, features)
    tensors = [torch.randn(shape, requires_grad=True) for shape in shapes]
    y = by_kernels(adjacency, *tensors, activation, rate or 0.0, keys)
    with without_kernels():
        plain = attend(adjacency, *tensors, activation, rate or 0.0, keys)
    torch.testing.assert_close(y, plain)
    assert_equal_with_gradients(y, plain, tensors)


@pytest.mark.parametrize("mode", ["PN", "PN-SI"])
@pytest.mark.parametrize("rate", [None, 0.6])
@pytest.mark.parametrize("activation", ["none", "relu", "elu"])
def test_the_norm_at_the_end(mode, rate, activation, adjacency, assert_equal_with_gradients):
    keys = None if rate is None else draw_keys(3)
    tensors = [torch.randn(shape, requires_grad=True) for shape in ((20, 3, 2), (20, 3, 40), (3, 40))]
    settings, norm = (activation, rate or 0.0, keys), PairNorm(2.0, mode)
    y = by_kernels(adjacency, *tensors, *settings, norm)
    expected = norm(by_kernels(adjacency, *tensors, *settings))
    torch.testing.assert_close(y, expected)
    assert_equal_with_gradients(y, expected, tensors)
    with torch.no_grad():
        assert torch.equal(by_kernels(adjacency, *tensors, *settings, norm), y)


def test_nan_stays_in_its_trial(adjacency):
    tensors = [torch.randn(shape, requires_grad=True) for shape in ((20, 3, 2), (20, 3, 5), (3, 5))]
    tensors[0].data[7, 1] = torch.nan
    y = by_kernels(adjacency, *tensors, "elu", 0.0, None, PairNorm())
    assert y[7, 1].isnan().all()
    assert y[:, [0, 2]].isfinite().all()
    gradients = torch.autograd.grad(y.sum(), tensors)
    assert all(gradient[:, [0, 2]].isfinite().all() for gradient in gradients[:2])
    assert gradients[2][[0, 2]].isfinite().all()
