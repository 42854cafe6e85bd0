import pytest
import torch
from torch_geometric.nn import DiffGroupNorm as PeerDiffGroupNorm

from pairnorm.nn.norms import DiffGroupNorm
from pairnorm.nn.norms.similarity import ROWS_OF_SUMS


def pair(groups, balance):
    peer = PeerDiffGroupNorm(5, groups, lamda=balance).double()
    torch.nn.init.normal_(peer.norm.weight)
    torch.nn.init.normal_(peer.norm.bias)
    ours = DiffGroupNorm(5, groups, balance).double()
    with torch.no_grad():
        ours.assignment.copy_(peer.lin.weight.T)
        ours.weight.copy_(peer.norm.weight.view(groups, 5))
        ours.bias.copy_(peer.norm.bias.view(groups, 5))
    return ours, peer


NODES = pytest.mark.parametrize("nodes", [12, 2 * ROWS_OF_SUMS, 2 * ROWS_OF_SUMS + 7])


@NODES
@pytest.mark.parametrize("groups", [1, 4])
def test_equals_pyg_in_training_and_evaluation(groups, nodes, near):
    ours, peer = pair(groups, 0.3)
    for _ in range(3):
        x = torch.randn(nodes, 5, dtype=torch.float64) * 2 + 3
        near(ours(x), peer(x))
    near(ours.running_mean.flatten(), peer.norm.running_mean)
    near(ours.running_var.flatten(), peer.norm.running_var)
    near(ours.eval()(x), peer.eval()(x))


@NODES
def test_gradients_equal_pyg(nodes, near):
    ours, peer = pair(4, 0.3)
    x = torch.randn(nodes, 5, dtype=torch.float64)
    given, cotangent = [x.clone().requires_grad_() for _ in range(2)], torch.randn(nodes, 5).double()
    for norm, states in zip((ours, peer), given, strict=True):
        norm(states).backward(cotangent)
    near(given[0].grad, given[1].grad)
    near(ours.assignment.grad, peer.lin.weight.grad.T)
    near(ours.weight.grad.flatten(), peer.norm.weight.grad)
    near(ours.bias.grad.flatten(), peer.norm.bias.grad)


@pytest.mark.parametrize("offset", [100.0, 1e4])
def test_oversmoothed_states_keep_accuracy(offset, near):
    """Variances of what hardly varies: from raw squares they would be noise."""
    norm = DiffGroupNorm(16, balance=1.0)
    x = offset + torch.randn(200, 16)
    with torch.no_grad():
        norm.assignment.mul_(1e-3)
        near(norm(x) - x, norm.double()(x.double()) - x, 2e-2)


def test_weights_depend_on_own_seed_only(near):
    norm, alone = DiffGroupNorm(5, num_models=3), DiffGroupNorm(5)
    norm.reset_parameters([7, 8, 9])
    alone.reset_parameters([8])
    near(norm.assignment[1], alone.assignment)


def test_invalid_arguments_raise(raises):
    with raises("wrong-shape", value=2):
        DiffGroupNorm(5, num_models=3).reset_parameters([1, 2])
    with raises("too-few-nodes", value=1):
        DiffGroupNorm(3)(torch.randn(1, 3))
