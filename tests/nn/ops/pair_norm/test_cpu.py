import pytest
import torch

from pairnorm.nn.ops.pair_norm import cpu as kernels

individual = pytest.mark.parametrize("individually", [False, True])


@individual
@pytest.mark.parametrize("shape", [(2, 1), (50, 7), (50, 32), (33, 3, 17), (5, 2, 2, 8)])
@pytest.mark.parametrize("contiguous", [True, False])
def test_equals_the_formula_in_double(shape, individually, contiguous, check):
    check(kernels, shape, individually, contiguous)


@individual
def test_one_node(individually):
    y, norm = kernels.forward(torch.randn(1, 2, 4), 1.0, 1e-4, individually)
    assert not y.any()
    torch.testing.assert_close(norm, torch.full((1, 2, 1), 1e-2))
    gradient = kernels.backward(torch.randn(1, 2, 4), y, norm, 1.0, individually)
    torch.testing.assert_close(gradient, torch.zeros(1, 2, 4), rtol=0, atol=1e-4)  # 1 / 1e-2 times rounding


@individual
def test_nan_and_infinity_are_not_optimized_away(individually):
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
    y, norm = kernels.forward(x, 1.0, 1e-6, individually)
    kept = y.clone()
    kernels.backward(grad, y, norm, 1.0, individually)
    assert torch.equal(x, before[0])
    assert torch.equal(grad, before[1])
    assert torch.equal(y, kept)
