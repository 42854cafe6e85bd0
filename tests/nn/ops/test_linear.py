import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from pairnorm.nn.ops.dropout import draw_keys, dropout
from pairnorm.nn.ops.linear import stacked_linear, stacked_linear_with_scores


@pytest.mark.parametrize("trials", [1, 3])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_each_model_uses_its_own_weight(trials, shared, rate, either_form, assert_equal_with_gradients):
    x = torch.randn(11, 1 if shared else trials, 5, requires_grad=True)
    weight = torch.randn(trials, 5, 4, requires_grad=True)
    keys = draw_keys(trials) if rate else None
    y = stacked_linear(x, weight, rate, keys)
    dropped = x.expand(-1, trials, -1)
    dropped = dropout(dropped, rate, keys) if rate else dropped
    expected = torch.stack([dropped[:, trial] @ weight[trial] for trial in range(trials)], 1)
    assert_equal_with_gradients(y, expected, (x, weight), rtol=1.3e-6)


def test_scores_equal_a_second_product():
    x, weight, ends = torch.randn(7, 1, 4), torch.randn(3, 4, 6), torch.randn(3, 6, 2)
    keys = draw_keys(3)
    z, scores = stacked_linear_with_scores(x, weight, ends, 0.5, keys)
    torch.testing.assert_close(z, stacked_linear(x, weight, 0.5, keys))
    torch.testing.assert_close(scores, torch.einsum("nto,toe->nte", z, ends))


@pytest.mark.parametrize("shared", [True, False])
def test_gradcheck(shared):
    x = torch.randn(4, 1 if shared else 2, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True)
    keys = draw_keys(2)
    for arguments in ((), (0.5, keys)):
        assert gradcheck(lambda x, weight, rest=arguments: stacked_linear(x, weight, *rest), (x, weight))
        assert gradgradcheck(lambda x, weight, rest=arguments: stacked_linear(x, weight, *rest), (x, weight))


def test_only_requested_gradients_are_computed():
    x, weight = torch.randn(4, 1, 3), torch.randn(2, 3, 2, requires_grad=True)
    stacked_linear(x, weight).sum().backward()
    assert weight.grad is not None
    x.requires_grad_()
    stacked_linear(x, weight.detach()).sum().backward()
    assert x.grad.shape == x.shape


def test_result_does_not_depend_on_strides():
    x, weight = torch.randn(3, 2, 9).permute(2, 1, 0), torch.randn(4, 3, 2).permute(2, 1, 0)
    torch.testing.assert_close(stacked_linear(x, weight), stacked_linear(x.contiguous(), weight.contiguous()))


def test_zero_nodes_are_accepted():
    assert stacked_linear(torch.zeros(0, 2, 3), torch.ones(2, 3, 4)).shape == (0, 2, 4)
