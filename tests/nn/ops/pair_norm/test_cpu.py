import pytest
import torch

from pairnorm.nn.ops.moments import Groups
from pairnorm.nn.ops.pair_norm import cpu as kernels
from pairnorm.nn.ops.pair_norm.plain import _formula, formula_gradient

individual = pytest.mark.parametrize("individually", [False, True])


@individual
@pytest.mark.parametrize("shape", [(2, 1), (50, 7), (50, 32), (33, 3, 17), (5, 2, 2, 8)])
@pytest.mark.parametrize("contiguous", [True, False])
def test_equals_the_formula_in_double(shape, individually, contiguous):
    x, grad = torch.randn(shape) + 2, torch.randn(shape)
    if not contiguous:
        x, grad = (tensor.mT.contiguous().mT for tensor in (x, grad))
    groups = Groups(len(x))
    expected, lengths = _formula(x.double(), groups, 2.0, 1e-6, individually)
    slope = formula_gradient(grad.double(), None, expected, lengths, groups, 2.0, individually)
    y, length = kernels.forward(x, 2.0, 1e-6, individually)
    assert y.shape == x.shape
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(length.double(), lengths, rtol=1e-5, atol=1e-6)
    result = kernels.backward(grad, y, length, 2.0, individually)
    torch.testing.assert_close(result.double(), slope, rtol=1e-4, atol=1e-5)


@individual
def test_one_node(individually):
    y, length = kernels.forward(torch.randn(1, 2, 4), 1.0, 1e-4, individually)
    assert not y.any()
    torch.testing.assert_close(length, torch.full((1, 2, 1), 1e-2))
    slope = kernels.backward(torch.randn(1, 2, 4), y, length, 1.0, individually)
    torch.testing.assert_close(slope, torch.zeros(1, 2, 4), rtol=0, atol=1e-4)  # 1 / 1e-2 times rounding


@individual
def test_nan_and_infinity_are_not_optimised_away(individually):
    for value in (torch.nan, torch.inf):
        x = torch.randn(6, 2, 4)
        x[3, 1, 2] = value
        y, _ = kernels.forward(x, 1.0, 1e-6, individually)
        assert y[:, 0].isfinite().all()
        assert y[3, 1].isnan().any()


@individual
def test_inputs_are_left_alone(individually):
    x, grad = torch.randn(5, 3), torch.randn(5, 3)
    before = x.clone(), grad.clone()
    y, length = kernels.forward(x, 1.0, 1e-6, individually)
    kept = y.clone()
    kernels.backward(grad, y, length, 1.0, individually)
    assert torch.equal(x, before[0])
    assert torch.equal(grad, before[1])
    assert torch.equal(y, kept)
