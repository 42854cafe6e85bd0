import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.nn import functional
from torch_geometric.nn import BatchNorm as PeerBatchNorm
from torch_geometric.nn import JumpingKnowledge
from torch_geometric.nn import PairNorm as PeerPairNorm

from pairnorm import pair_norm
from pairnorm.nn import GAT, GCN, SGC, normalized_adjacency
from pairnorm.nn.models import glorot
from pairnorm.nn.norms import BatchNorm, DiffGroupNorm, MeanSubtraction
from pairnorm.nn.ops.dropout import draw_keys, dropout

sys.path.insert(0, str(Path(__file__).parent))
from model_tester import CLASSES, FEATURES, NODES, PLAIN, WIDTH, build, random_features

layered = pytest.mark.parametrize(
    ("kind", "settings"),
    [PLAIN["GCN"], PLAIN["GAT"], (GAT, WIDTH)],
    ids=["GCN", "GAT, two heads", "GAT"],
)


@pytest.fixture
def x():
    return random_features()


def peer_norm(mode, scale):
    """PairNorm of PyG, and the form that PyG lacks; eps so small that its place does not matter."""
    if mode is None:
        return lambda h: h
    if mode == "PN-SCS":
        return lambda h: scale * h / (h.norm(dim=-1, keepdim=True) + 1e-12) - h.mean(0)
    return PeerPairNorm(scale, scale_individually=mode == "PN-SI", eps=1e-12)


def hand_written(convolve, depth, activation, norm, order, skip):
    """A forward pass as the docstrings tell it; ``convolve`` gives the output of a layer's convolution."""

    def forward(h):
        outputs = []
        for layer in range(depth):
            h = convolve(layer, h)
            if layer == depth - 1:
                break
            h = norm(activation(h)) if order == "after" else activation(norm(h))
            if skip and layer >= skip:
                h = h + outputs[layer - skip]
            outputs.append(h)
        return h

    return forward


def pyg_convolutions(model, edge_index, peer_of):
    """PyG's layers with the weights of the model's first trial, and how to call them."""
    normalized = model.adjacency == "sym"
    peers = [
        peer_of(layer, **({} if isinstance(model, GAT) else {"normalize": normalized}))
        for layer in model.convolutions
    ]
    if isinstance(model, GAT) or normalized:
        return peers, lambda layer, h: peers[layer](h, edge_index)
    looped = torch.cat([edge_index, torch.arange(NODES).expand(2, -1)], 1)
    weight = 1 / torch.bincount(looped[1], minlength=NODES).float()[looped[1]]
    return peers, lambda layer, h: peers[layer](h, looped, weight)


class TestPeers:
    @layered
    @pytest.mark.parametrize("adjacency", ["rw", "sym"])
    @pytest.mark.parametrize(
        ("depth", "norm", "order", "skip"),
        [
            (1, "PN", "after", 0),
            (2, None, "after", 0),
            (4, "PN", "after", 0),
            (4, "PN", "before", 0),
            (4, "PN-SI", "after", 1),
            (4, "PN-SCS", "after", 0),
            (5, None, "after", 2),
            (5, "PN-SI", "before", 2),
            (4, None, "before", 3),
        ],
    )
    def test_one_model_equals_pyg_layers(
        self,
        kind,
        settings,
        adjacency,
        depth,
        norm,
        order,
        skip,
        x,
        edge_index,
        peer_of,
        assert_gradients_equal,
    ):
        model = build(
            kind,
            settings,
            num_layers=depth,
            norm=norm,
            scale=2.0,
            order=order,
            skip=skip,
            adjacency=adjacency,
        )
        if model.norm is not None:
            model.norm.eps = 1e-24
        peers, convolve = pyg_convolutions(model, edge_index, peer_of)
        activation = torch.relu if kind is GCN else functional.elu
        expected = hand_written(convolve, depth, activation, peer_norm(norm, 2.0), order, skip)(x)
        logits = model.eval()(x, edge_index).squeeze(1)
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)
        grad = torch.randn_like(expected)
        logits.backward(grad)
        expected.backward(grad)
        for layer, peer in zip(model.convolutions, peers, strict=True):
            assert_gradients_equal(layer, [peer])

    @pytest.mark.parametrize("adjacency", ["rw", "sym"])
    @pytest.mark.parametrize("norm", [None, "PN", "PN-SI", "PN-SCS"])
    @pytest.mark.parametrize("depth", [1, 4])
    def test_sgc_equals_matrix_powers(self, adjacency, norm, depth, x, edge_index):
        model = build(SGC, {}, num_layers=depth, norm=norm, scale=2.0, adjacency=adjacency)
        dense, normalize = normalized_adjacency(edge_index, adjacency, NODES).to_dense(), peer_norm(norm, 2.0)
        weight, bias = (parameter.detach()[0].requires_grad_() for parameter in (model.weight, model.bias))
        h = normalize(x)
        for _ in range(depth):
            h = normalize(dense @ h)
        expected = h @ weight + bias
        logits = model(x, edge_index).squeeze(1)
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
        grad = torch.randn_like(expected)
        expected.backward(grad)
        logits.backward(grad)
        torch.testing.assert_close(model.weight.grad[0], weight.grad, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(model.bias.grad[0], bias.grad)

    @layered
    def test_directed_edges_carry_from_source_to_target(self, kind, settings, x, edge_index, peer_of):
        directed = edge_index[:, edge_index[0] < edge_index[1]]
        model = build(kind, settings, num_layers=3, adjacency="rw").eval()
        _, convolve = pyg_convolutions(model, directed, peer_of)
        activation = torch.relu if kind is GCN else functional.elu
        expected = hand_written(convolve, 3, activation, peer_norm(None, 1), "after", 0)(x)
        torch.testing.assert_close(model(x, directed).squeeze(1), expected)
        assert not torch.allclose(expected, model(x, directed.flip(0)).squeeze(1))


@pytest.mark.parametrize("kind", [GCN, GAT])
@pytest.mark.parametrize("settings", [{}, {"skip": 1}, {"residual": True}, {"jump": "max"}])
@pytest.mark.parametrize("depth", [1, 3])
def test_states_in_half_precision(kind, settings, depth, x, edge_index):
    """Weights, their gradients and the logits are float32, and near those of float32 states."""
    actual = []
    for precision in ("float32", "bfloat16"):
        torch.manual_seed(0)
        model = kind(FEATURES, CLASSES, depth, norm="PN-SI", precision=precision, **settings).eval()
        logits = model(x, edge_index)
        logits.square().sum().backward()
        actual.append([logits, *(weight.grad for weight in model.parameters() if weight.dim() == 3)])
    for narrow, wide in zip(*actual[::-1], strict=True):
        assert narrow.dtype == torch.float32
        assert (narrow - wide).norm() <= 0.2 * wide.norm() + 1e-3
    assert depth == 1 or not torch.equal(actual[0][0], actual[1][0])


class TestLayers:
    @layered
    @pytest.mark.parametrize("order", ["after", "before"])
    def test_logits_are_not_normalized(self, kind, settings, order, x, edge_index):
        model = build(kind, settings, num_layers=4, norm="PN", order=order).eval()
        normed = []
        model.norm.register_forward_hook(lambda module, inputs, output: normed.append(output))
        hidden, logits = model.hidden_and_logits(x, edge_index)
        assert len(normed) == 3
        assert torch.equal(hidden, normed[-1] if order == "after" else activated(kind, normed[-1]))
        assert torch.equal(
            logits, model.convolutions[-1](hidden, model.normalized_adjacency(edge_index, NODES))
        )
        assert torch.equal(logits, model(x, edge_index))

    def test_repr_names_the_norm_and_the_layers(self):
        text = repr(GCN(6, 3, num_layers=2, norm="PN-SI", scale=5))
        assert "PairNorm(scale=5, mode='PN-SI', eps=1e-06)" in text
        assert "GCNConvolution(6, 32, num_models=1, activation='relu')" in text
        assert "GCNConvolution(32, 3, num_models=1, activation='none')" in text


class TestDropout:
    def test_dropout_applies_to_every_convolution_input(self, x, edge_index):
        model = build(GCN, {"hidden_channels": 8}, (0, 1), num_layers=3, norm="PN", dropout=0.5)
        keys, adjacency = draw_keys(3, 2, 2), model.normalized_adjacency(edge_index, NODES)
        h = x.unsqueeze(1).expand(-1, 2, -1)
        for layer, convolution in enumerate(model.convolutions):
            h = convolution(dropout(h, 0.5, keys[layer, 0]), adjacency)
            h = model.norm(h) if layer < 2 else h
        torch.testing.assert_close(model(x, adjacency, keys), h)

    def test_sgc_dropout_applies_to_propagated_features(self, x, edge_index):
        model, keys = build(SGC, {}, (0, 1), dropout=0.5), draw_keys(1, 2, 2)
        h = dropout(model.hidden(x, edge_index).expand(-1, 2, -1), 0.5, keys[0, 0])
        expected = torch.stack([h[:, t] @ model.weight[t] + model.bias[t] for t in range(2)], 1)
        torch.testing.assert_close(model(x, edge_index, keys), expected)


@pytest.mark.parametrize("mode", ["PN", "PN-SI", "PN-SCS"])
def test_default_dtype_changes_no_bit_of_the_layer(mode, x, double_by_default):
    expected = pair_norm(x, mode=mode)
    double_by_default()
    assert torch.equal(pair_norm(x, mode=mode), expected)


def test_state_dict_has_one_entry_per_parameter():
    assert set(SGC(6, 3, norm="PN").state_dict()) == {"weight", "bias"}


class TestErrors:
    @pytest.mark.parametrize("name", PLAIN)
    @pytest.mark.parametrize(
        ("wrong", "code"),
        [({"norm": "PNSI"}, "unknown-choice"), ({"norm": "PN", "scale": 0}, "not-a-number")],
    )
    def test_norms(self, name, wrong, code, raises):
        kind, settings = PLAIN[name]
        with raises(code):
            kind(FEATURES, CLASSES, **settings, **wrong)

    @layered
    @pytest.mark.parametrize(
        ("wrong", "code"),
        [
            ({"skip": -1}, "not-a-whole-number"),
            ({"order": "first"}, "unknown-choice"),
            ({"hidden_channels": 0}, "not-a-whole-number"),
        ],
    )
    def test_invalid_settings_raise(self, kind, settings, wrong, code, raises):
        with raises(code, value=next(iter(wrong.values()))):
            kind(FEATURES, CLASSES, **{**settings, **wrong})

    @pytest.mark.parametrize(
        ("heads", "code"), [(3, "out-of-range"), (0, "not-a-whole-number"), (-2, "not-a-whole-number")]
    )
    def test_indivisible_heads_raise(self, heads, code, raises):
        with raises(code, value=heads):
            GAT(FEATURES, CLASSES, hidden_channels=8, heads=heads)


def test_sgc_from_weights(x, edge_index):
    model = SGC(FEATURES, CLASSES, num_layers=3, norm="PN", scale=2.0, num_models=2).eval()
    again = SGC.from_weights(model.weight.detach(), model.bias.detach(), num_layers=3, norm="PN", scale=2.0)
    assert torch.equal(again.eval()(x, edge_index), model(x, edge_index))


def activated(kind, h):
    return torch.relu(h) if kind is GCN else functional.elu(h)


def test_glorot():
    weight = glorot((40, 50))
    bound = (6 / 90) ** 0.5
    assert 0.99 * bound < weight.abs().max() <= bound
    assert abs(weight.mean()) < 4 * bound / (3 * weight.numel()) ** 0.5


@pytest.mark.parametrize("kind", [GCN, GAT])
@pytest.mark.parametrize("mode", ["PN", "PN-SI"])
def test_hooks_on_convolutions_and_norms_run(kind, mode, edge_index):
    model, x = kind(6, 3, num_layers=3, norm=mode, hidden_channels=8).eval(), torch.randn(20, 6)
    expected = model(x, edge_index)
    seen = []
    for watched in (model.norm, model.convolutions[0]):
        handle = watched.register_forward_hook(lambda module, args, output: seen.append((module, output)))
        torch.testing.assert_close(model(x, edge_index), expected)
        handle.remove()
    assert [type(module).__name__ for module, _ in seen] == [
        "PairNorm",
        "PairNorm",
        f"{kind.__name__}Convolution",
    ]
    torch.testing.assert_close(model.norm(seen[2][1]), seen[0][1])
    assert not torch.allclose(seen[2][1], seen[0][1])


class TestMethods:
    """What stands around the convolutions, against PyG's layers put together by hand."""

    @pytest.mark.parametrize("kind", [GCN, GAT])
    @pytest.mark.parametrize("jump", ["concat", "max"])
    def test_jumping_knowledge(self, kind, jump, x, edge_index, peer_of):
        model = build(kind, {"hidden_channels": 8}, num_layers=4, jump=jump, skip=2).eval()
        _, convolve = pyg_convolutions(model, edge_index, peer_of)
        activation = torch.relu if kind is GCN else functional.elu
        h, states = x, []
        for layer in range(4):
            h = activation(convolve(layer, h))
            states.append(h := h + states[layer - 2] if layer >= 2 else h)
        last = JumpingKnowledge({"concat": "cat", "max": "max"}[jump])(states)
        hidden, logits = model.hidden_and_logits(x, edge_index)
        torch.testing.assert_close(hidden.squeeze(1), h)
        expected = last @ model.readout.weight[0] + model.readout.bias[0]
        torch.testing.assert_close(logits.squeeze(1), expected)

    @pytest.mark.parametrize("kind", [GCN, GAT])
    @pytest.mark.parametrize("order", ["before", "after"])
    def test_linear_residuals(self, kind, order, x, edge_index, peer_of):
        """As tunedGNN has it: activation(norm(convolution(x) + linear(x))), then a linear map."""
        norm = partial(BatchNorm, 8, num_models=1)
        model = build(
            kind, {"hidden_channels": 8}, num_layers=3, residual=True, norm=norm, order=order, dropout=0.0
        )
        peers = [PeerBatchNorm(8) for _ in range(3)]
        for peer, ours in zip(peers, model.norms, strict=True):
            peer.module.bias.data = ours.bias.data[0].clone()
        for _ in range(2):  # in training, with the statistics of the nodes; then with the running ones
            _, convolve = pyg_convolutions(model, edge_index, peer_of)
            activation = torch.relu if kind is GCN else functional.elu
            h = x
            for layer, peer in enumerate(peers):
                h = convolve(layer, h) + h @ model.residuals[layer].weight[0]
                h = activation(peer(h)) if order == "before" else peer(activation(h))
            expected = h @ model.readout.weight[0] + model.readout.bias[0]
            logits = model(x, edge_index).squeeze(1)
            torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)
            model.eval()
            for peer in peers:
                peer.eval()

    @layered
    @pytest.mark.parametrize(
        "more", [{"residual": True}, {"jump": "concat"}, {"residual": True, "jump": "max", "skip": 1}]
    )
    def test_stacked_models_equal_single_models(self, kind, settings, more, x, edge_index, either_form):
        seeds = (3, 5, 7)
        norm = {"norm": lambda: DiffGroupNorm(8, groups=2, num_models=3)}
        together = build(kind, settings, seeds, num_layers=3, dropout=0.5, **norm, **more)
        keys = draw_keys(together.num_keys, 2, 3)
        logits = together(x.to_sparse_csr(), edge_index, keys)
        logits.square().sum().backward()
        for trial, seed in enumerate(seeds):
            norm = {"norm": lambda: DiffGroupNorm(8, groups=2, num_models=1)}
            alone = build(kind, settings, (seed,), num_layers=3, dropout=0.5, **norm, **more)
            expected = alone(x.to_sparse_csr(), edge_index, keys[:, :, trial : trial + 1].contiguous())
            torch.testing.assert_close(logits[:, trial], expected[:, 0], rtol=1e-4, atol=1e-4)
            expected.square().sum().backward()
            for ours, theirs in zip(together.parameters(), alone.parameters(), strict=True):
                torch.testing.assert_close(ours.grad[trial], theirs.grad[0], rtol=1e-2, atol=1e-3)

    def test_norm_parameters_are_reset_by_the_norm(self):
        model = GCN(
            FEATURES, CLASSES, num_layers=4, hidden_channels=8, norm=lambda: DiffGroupNorm(8, num_models=1)
        )
        assert len(model.norms) == 3
        for norm in model.norms:
            assert norm.weight.eq(1).all()
        model.reset_parameters([1])
        first, second = (norm.assignment.clone() for norm in list(model.norms)[:2])
        assert not torch.equal(first, second)
        model.reset_parameters([1])
        assert torch.equal(first, model.norms[0].assignment)

    def test_sgc_accepts_a_custom_norm(self, x, edge_index):
        model = SGC(FEATURES, CLASSES, num_layers=2, norm=MeanSubtraction).eval()
        adjacency = model.normalized_adjacency(edge_index, NODES).to_dense()
        h = x - x.mean(0)
        for _ in range(2):
            h = adjacency @ h
            h = h - h.mean(0)
        torch.testing.assert_close(model(x, edge_index), h @ model.weight[0] + model.bias[0])
