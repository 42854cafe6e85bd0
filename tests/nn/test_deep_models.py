import copy
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.functional import silu
from torch_geometric.nn import APPNP as PeerAPPNP
from torch_geometric.nn import GCN2Conv

from pairnorm.nn import APPNP, G2, GCNII, SMPNN
from pairnorm.nn.ops.dropout import draw_keys, dropout

sys.path.insert(0, str(Path(__file__).parent))
from model_tester import CLASSES, DEEP, FEATURES, HIDDEN, NODES, WIDTH, random_features
from model_tester import build as build_model


@pytest.fixture
def x():
    return random_features()


def build(kind, **settings):
    return build_model(kind, WIDTH, **settings)


def linear(layer, h, trial=0):
    return h @ layer.weight[trial] + layer.bias[trial]


@pytest.mark.parametrize(("depth", "alpha", "theta"), [(1, 0.1, 0.5), (5, 0.5, 1.5), (5, 0.0, 0.5)])
def test_gcnii_equals_pyg(depth, alpha, theta, x, edge_index, either_form):
    model = build(GCNII, num_layers=depth, alpha=alpha, theta=theta).eval()
    h = first = linear(model.first, x).relu()
    peers = []
    for number, ours in enumerate(model.convolutions, start=1):
        peer = GCN2Conv(HIDDEN, alpha, theta, number)
        peer.weight1.data = ours.weight.data[0].clone()
        peers.append(peer)
        h = peer(h, first, edge_index).relu()
    expected = linear(model.last, h)
    hidden, logits = model.hidden_and_logits(x, edge_index)
    torch.testing.assert_close(hidden.squeeze(1), h)
    torch.testing.assert_close(logits.squeeze(1), expected)
    logits.square().sum().backward()
    expected.square().sum().backward()
    for ours, peer in zip(model.convolutions, peers, strict=True):
        torch.testing.assert_close(ours.weight.grad[0], peer.weight1.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("depth", "alpha"), [(1, 0.1), (10, 0.2)])
def test_appnp_equals_pyg(depth, alpha, x, edge_index, either_form):
    model = build(APPNP, num_layers=depth, alpha=alpha).eval()
    start = linear(model.last, linear(model.first, x).relu())
    hidden, logits = model.hidden_and_logits(x, edge_index)
    torch.testing.assert_close(logits.squeeze(1), PeerAPPNP(depth, alpha)(start, edge_index))
    if depth > 1:
        torch.testing.assert_close(hidden.squeeze(1), PeerAPPNP(depth - 1, alpha)(start, edge_index))


def dense_in_double(model, x, edge_index):
    """Prepare a formula in float64: the dense adjacency, and the features."""
    return model.normalized_adjacency(edge_index, NODES).to_dense().double(), x.double()


def test_smpnn_equals_its_formula(x, edge_index, either_form):
    model = build(SMPNN, num_layers=3).eval()
    torch.nn.init.uniform_(model.shares, 0.2, 1.0)
    for norm in model.layer_norms:
        torch.nn.init.normal_(norm.weight)
    adjacency, h = dense_in_double(model, x, edge_index)

    def normalized(norm, h):
        weight, bias = norm.weight[0].double(), norm.bias[0].double()
        mean, variance = h.mean(1, keepdim=True), h.var(1, correction=0, keepdim=True)
        return weight * (h - mean) / (variance + 1e-5).sqrt() + bias

    wide = copy.deepcopy(model).double()
    h = silu(linear(wide.first, h))
    for layer in range(3):
        by_graph, by_node = wide.shares[0, layer]
        state = adjacency @ normalized(model.layer_norms[2 * layer], h) @ wide.convolutions[layer].weight[0]
        h = h + by_graph * silu(state + wide.convolutions[layer].bias[0])
        h = h + by_node * silu(linear(wide.maps[layer], normalized(model.layer_norms[2 * layer + 1], h)))
    hidden, logits = model.hidden_and_logits(x, edge_index)
    torch.testing.assert_close(hidden.squeeze(1).double(), h, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(logits.squeeze(1).double(), linear(wide.last, h), rtol=1e-4, atol=1e-5)


def test_new_smpnn_equals_a_perceptron(x, edge_index):
    model = build(SMPNN, num_layers=20).eval()
    torch.testing.assert_close(
        model(x, edge_index).squeeze(1),
        linear(model.last, silu(linear(model.first, x))),
        rtol=1e-3,
        atol=1e-3,
    )


def test_g2_equals_its_formula(x, edge_index, either_form):
    model = build(G2, num_layers=4).eval()
    adjacency, h = dense_in_double(model, x, edge_index)
    wide = copy.deepcopy(model).double()
    h = linear(wide.first, h).relu()
    for _ in range(4):
        y, gate = (linear(layer, adjacency @ h).relu() for layer in (wide.convolution, wide.gate))
        rates = torch.zeros_like(h)
        for node in range(NODES):
            neighbors = [other for other in adjacency[node].nonzero().flatten().tolist() if other != node]
            if neighbors:
                rates[node] = torch.tanh((gate[neighbors] - gate[node]).square().mean(0))
        h = (1 - rates) * h + rates * y
    hidden, logits = model.hidden_and_logits(x, edge_index)
    torch.testing.assert_close(hidden.squeeze(1).double(), h, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(logits.squeeze(1).double(), linear(wide.last, h), rtol=1e-4, atol=1e-5)


def test_dropout_applies_to_every_map_input(x, edge_index):
    model = build(GCNII, num_layers=2, dropout=0.5, alpha=0.3)
    keys = draw_keys(model.num_keys, 2, 1)
    adjacency = model.normalized_adjacency(edge_index, NODES).to_dense()
    drop = [lambda h, key=pair[0]: dropout(h.unsqueeze(1), 0.5, key).squeeze(1) for pair in keys]
    h = first = linear(model.first, drop[0](x)).relu()
    for layer, convolution in enumerate(model.convolutions):
        mixed = 0.7 * adjacency @ drop[layer + 1](h) + 0.3 * first
        h = ((1 - convolution.beta) * mixed + convolution.beta * mixed @ convolution.weight[0]).relu()
    torch.testing.assert_close(model(x, edge_index, keys).squeeze(1), linear(model.last, drop[-1](h)))


@pytest.mark.parametrize("kind", [kind for kind, _ in DEEP.values()])
def test_adjacency_is_symmetric_by_default(kind):
    assert kind(FEATURES, CLASSES).adjacency == "sym"


def test_invalid_settings_raise(raises):
    with raises("not-a-number", value=1.5):
        GCNII(FEATURES, CLASSES, alpha=1.5)
    with raises("not-a-number", value=0):
        GCNII(FEATURES, CLASSES, theta=0)
