"""The norms of mean and variance equal those of PyG, or the formula where PyG has none."""

import math

import pytest
import torch
import torch_geometric.nn as pyg

from pairnorm.nn.norms import BatchNorm, GraphNorm, LayerNorm, MeanSubtraction, NodeNorm


def with_weights_of(ours, peer):
    """Give both norms the same random parameters, in float64."""
    for parameter in peer.parameters():
        torch.nn.init.normal_(parameter)
    ours.load_state_dict(getattr(peer, "module", peer).state_dict(), strict=False)
    return ours.double()


@pytest.fixture
def x():
    return torch.randn(12, 5, dtype=torch.float64) * 2 + 3


def test_mean_subtraction_equals_pyg(x, batch, near):
    near(MeanSubtraction()(x, batch), pyg.MeanSubtractionNorm()(x, batch))


def test_graph_norm_equals_pyg(x, batch, near):
    peer = pyg.GraphNorm(5).double()
    near(with_weights_of(GraphNorm(5).double(), peer)(x, batch), peer(x, batch))


@pytest.mark.parametrize("mode", ["graph", "node"])
def test_layer_norm_equals_pyg(mode, x, batch, near):
    peer = pyg.LayerNorm(5, mode=mode).double()
    # Without a batch PyG adds eps outside the root.
    expected = peer, torch.zeros(12, dtype=torch.long) if batch is None else batch
    ours = with_weights_of(LayerNorm(5, mode).double(), peer)
    near(ours(x, batch), expected[0](x, expected[1]))


@pytest.mark.parametrize("momentum", [0.1, 1.0])
def test_batch_norm_equals_pyg_in_training_and_evaluation(momentum, near):
    peer = pyg.BatchNorm(5, momentum=momentum).double()
    ours = with_weights_of(BatchNorm(5, momentum=momentum).double(), peer)
    for _ in range(3):
        x = torch.randn(12, 5, dtype=torch.float64) * 2 + 3
        near(ours(x), peer(x))
    near(ours.running_mean, peer.module.running_mean)
    near(ours.running_var, peer.module.running_var)
    near(ours.eval()(x), peer.eval()(x))


@pytest.mark.parametrize("p", [1, 2, 3.5])
@pytest.mark.parametrize("shape", [(7, 5), (4, 3, 6)])
def test_node_norm_equals_its_formula(p, shape, near):
    x = torch.randn(shape, dtype=torch.float64) * 3 + 1
    expected = torch.empty_like(x)
    for row, result in zip(x.view(-1, shape[-1]), expected.view(-1, shape[-1]), strict=True):
        values = row.tolist()
        mean = sum(values) / len(values)
        deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values) + 1e-5)
        result[:] = row / deviation ** (1 / p)
    near(NodeNorm(p)(x), expected)


def test_node_norm_of_order_one_gives_variance_one(near):
    near(NodeNorm(1, eps=1e-12)(torch.randn(9, 64).double()).var(-1, correction=0), torch.ones(9))


def test_batch_norm_ignores_batch(near):
    x = torch.randn(12, 5, dtype=torch.float64)
    near(BatchNorm(5)(x, torch.arange(12) % 3), BatchNorm(5)(x))


def test_batch_norm_resets_its_statistics(near):
    norm = BatchNorm(5)
    x = torch.randn(12, 5)
    norm(x)
    norm.reset_parameters()
    near(norm.eval()(x), x, 1e-4)


def test_batch_norm_refuses_one_node_in_training(raises):
    with raises("too-few-nodes", value=1):
        BatchNorm(3)(torch.randn(1, 3))
    BatchNorm(3).eval()(torch.randn(1, 3))


def test_layer_norm_refuses_an_unknown_mode(raises):
    with raises("unknown-choice", value="graphs"):
        LayerNorm(5, "graphs")
