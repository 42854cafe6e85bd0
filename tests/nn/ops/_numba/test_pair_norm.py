import pytest
import torch

from pairnorm import pair_norm

modes = pytest.mark.parametrize("mode", ["PN", "PN-SI"])


@modes
def test_nan_and_infinity_are_not_optimized_away(mode):
    for value in (torch.nan, torch.inf):
        x = torch.randn(6, 2, 4)
        x[3, 1, 2] = value
        y = pair_norm(x, mode=mode)
        assert y[:, 0].isfinite().all()
        assert y[3, 1].isnan().any()


@modes
def test_inputs_are_left_alone(mode):
    x, grad = torch.randn(5, 3, requires_grad=True), torch.randn(5, 3)
    before = x.detach().clone(), grad.clone()
    torch.autograd.grad(pair_norm(x, mode=mode), x, grad)
    assert torch.equal(x, before[0])
    assert torch.equal(grad, before[1])
