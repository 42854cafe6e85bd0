import copy
import io
import re
import threading

import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_geometric.data import Batch, Data

from pairnorm.nn.models import GCN
from pairnorm.nn.pair_norm import PairNorm
from pairnorm.nn.patch import add_pair_norm, remove_pair_norm

NODES, SCALE = 12, 3.0
NORM = PairNorm(SCALE, "PN-SI")


@pytest.fixture
def x():
    return torch.randn(NODES, 5, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def edges():
    ring = torch.arange(NODES)
    return torch.cat([torch.stack([ring, ring.roll(1)]), torch.stack([ring.roll(1), ring])], dim=1)


def run(model, *args, seed=1, **kwargs):
    torch.manual_seed(seed)
    return model(*args, **kwargs)


def patched(model, *args, mode="PN-SI", options=None, **kwargs):
    """Return what the patched model gives, after checking that the patch leaves no trace."""
    before, keys, text = copy.deepcopy(model), list(model.state_dict()), repr(model)
    with add_pair_norm(model, SCALE, mode, **(options or {})) as handle:
        output = run(model, *args, **kwargs)
        assert sorted(model.state_dict()) == sorted(["add_pair_norm._extra_state", *keys])
    assert (list(model.state_dict()), repr(model), type(model)) == (keys, text, type(before))
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert not module._forward_hooks_always_called
        assert not module._load_state_dict_pre_hooks
    model.load_state_dict(before.state_dict())
    assert torch.equal(run(model, *args, **kwargs), run(before, *args, **kwargs))
    return output, handle


def basic_gnn_with_pair_norm(model, x, edges, batch=None, is_before=False):
    """The forward of PyG's BasicGNN, written out, with PairNorm after the activation or the dropout."""
    states, last = [], len(model.convs) - 1
    for index, (conv, norm) in enumerate(zip(model.convs, model.norms, strict=True)):
        x = conv(NORM(x, batch) if is_before and index else x, edges)
        if index < last or model.jk_mode:
            if model.act_first:
                x = model.act(x) if is_before else NORM(model.act(x), batch)
            x = norm(x)
            if not model.act_first:
                x = model.act(x) if is_before else NORM(model.act(x), batch)
            x = model.dropout(x)
            states.append(x)
    x = model.jk(states) if hasattr(model, "jk") else x
    return model.lin(x) if hasattr(model, "lin") else x


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    "settings", [{}, {"act_first": True, "norm": "BatchNorm"}, {"norm": "BatchNorm"}, {"jk": "cat"}]
)
@pytest.mark.parametrize("kind", [pyg.GCN, pyg.GAT, pyg.GraphSAGE])
def test_basic_gnn(kind, settings, training, x, edges):
    torch.manual_seed(0)
    model = kind(5, 8, 4, 3, dropout=0.5, act="elu", **settings).train(training)
    reference = run(lambda *inputs: basic_gnn_with_pair_norm(copy.deepcopy(model), *inputs), x, edges)
    output, handle = patched(model, x, edges)
    assert torch.equal(output, reference)
    assert handle.places == {f"convs.{i}": "after act (elu)" for i in range(3)} | {
        "convs.3": "left alone, the last"
    }


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", [pyg.GIN, pyg.GCN])
def test_next_input_is_normalized_without_activation_module(kind, training, x, edges):
    # The convolutions of GIN call the activation module too; that of this GCN is a function.
    model = kind(5, 8, 3, 3, dropout=0.5, act="relu" if kind is pyg.GIN else F.relu).train(training)
    reference = run(lambda: basic_gnn_with_pair_norm(copy.deepcopy(model), x, edges, is_before=True))
    output, handle = patched(model, x, edges)
    assert torch.equal(output, reference)
    assert handle.places["convs.0"] == "before convs.1 (after relu and any dropout)"


@pytest.mark.parametrize("act", ["relu", "leaky_relu", "prelu", "gelu", "silu", "tanh"])
def test_activation_modules(act, x, edges):
    model = pyg.GCN(5, 8, 3, 3, dropout=0.5, act=act)
    reference = run(lambda *inputs: basic_gnn_with_pair_norm(model, *inputs), x, edges)
    assert torch.equal(patched(model, x, edges)[0], reference)


@pytest.mark.parametrize("mode", ["PN", "PN-SI", "PN-SCS"])
def test_scale_and_mode(mode, x, edges):
    model = pyg.GCN(5, 8, 2, 3).eval()
    hidden = PairNorm(SCALE, mode)(model.convs[0](x, edges).relu())
    assert torch.equal(patched(model, x, edges, mode=mode)[0], model.convs[1](hidden, edges))


@pytest.mark.parametrize("position", ["argument", "keyword"])
def test_batch_is_normalized_by_graph(position, x, edges):
    model, batch = pyg.GCN(5, 8, 3, 3), torch.arange(NODES) % 3
    reference = basic_gnn_with_pair_norm(model, x, edges, batch)
    given = (None, None, batch, 3) if position == "argument" else ()
    named = {"batch": batch} if position == "keyword" else {}
    assert torch.equal(patched(model, x, edges, *given, **named)[0], reference)


class TwoLayers(nn.Module):
    """Two convolutions and an activation module; ``norm`` is PairNorm written in by hand."""

    def __init__(self, act=None):
        super().__init__()
        self.first, self.second = pyg.GCNConv(5, 8), pyg.GCNConv(8, 3)
        self.act = act or nn.ReLU()

    def forward(self, x, edge_index, graph_ids=None, norm=lambda h: h):
        return self.second(norm(self.act(self.first(x, edge_index))), edge_index)


class OnData(TwoLayers):
    def forward(self, data):
        return super().forward(data.x, data.edge_index)


class AnyArguments(TwoLayers):
    def forward(self, *args):
        return super().forward(*args)


def test_pyg_batch_is_normalized_by_graph(x, edges):
    graphs = [Data(x=x, edge_index=edges), Data(x=x.exp(), edge_index=edges)]
    data, model = Batch.from_data_list(graphs), OnData()
    reference = TwoLayers.forward(model, data.x, data.edge_index, norm=lambda h: NORM(h, data.batch))
    assert torch.equal(patched(model, data)[0], reference)


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize(("kind", "name"), [(TwoLayers, "graph_ids"), (AnyArguments, 2)])
def test_named_batch_argument_is_used(kind, name, x, edges, raises):
    model, batch = kind().eval(), torch.arange(NODES) // 5
    reference = TwoLayers.forward(model, x, edges, norm=lambda h: NORM(h, batch))
    whole = TwoLayers.forward(model, x, edges, norm=NORM)
    assert not torch.allclose(whole, reference, atol=0.1)
    for call in (model, torch.compile(model, backend="eager")):
        with add_pair_norm(model, SCALE), raises("unnamed-batch", value=name):
            model(x, edges, batch)
        with add_pair_norm(model, SCALE, batch=name):
            torch.testing.assert_close(call(x, edges, batch), reference)
            torch.testing.assert_close(call(x, edges), whole)
        with add_pair_norm(model, SCALE, batch=None):
            torch.testing.assert_close(call(x, edges, batch), whole)


def test_integer_inputs_that_are_no_batch_are_accepted(x, edges):
    model = TwoLayers().eval()
    batch = torch.arange(NODES) // 5
    for other in (torch.arange(NODES), torch.zeros(NODES, dtype=torch.long), batch[1:], batch.double()):
        with add_pair_norm(model, SCALE):
            model(x, edges, other)


def test_unknown_batch_argument_raises(x, edges, raises):
    model = TwoLayers()
    with add_pair_norm(model, batch="graph_idz"), raises("unknown-argument", value="graph_idz"):
        model(x, edges)


def test_weights_load_only_with_equal_pair_norm(x, edges, raises):
    model, plain = pyg.GCN(5, 8, 3, 3), pyg.GCN(5, 8, 3, 3)
    before = copy.deepcopy(plain.state_dict())
    handle = add_pair_norm(model, SCALE, example_inputs={"x": x, "edge_index": edges})
    stored = io.BytesIO()
    torch.save(model.half().state_dict(), stored)
    stored.seek(0)
    state = torch.load(stored, weights_only=True)
    for target in (plain, nn.ModuleDict({"encoder": plain})):
        prefix = "" if target is plain else "encoder."
        with pytest.raises(RuntimeError, match=r'Unexpected key.*"(encoder.)?add_pair_norm'):
            target.load_state_dict({prefix + name: value for name, value in state.items()})
    with add_pair_norm(plain, SCALE):
        plain.load_state_dict(state)
        torch.testing.assert_close(plain(x, edges), model.float()(x, edges))
        with pytest.raises(RuntimeError, match=r'Missing key.*"add_pair_norm'):
            plain.load_state_dict(before)
    with add_pair_norm(plain, SCALE, "PN"), raises("other-norm", value="mode='PN-SI'"):
        plain.load_state_dict(state)
    with add_pair_norm(plain, SCALE, at=["before convs.1"]), raises("other-norm"):
        plain.load_state_dict(state)
    handle.remove()
    model.load_state_dict(before)


TYPES = ["paper", "author"]
RELATIONS = [
    ("paper", "cites", "paper"),
    ("author", "writes", "paper"),
    ("paper", "rev", "author"),
    ("author", "knows", "author"),
]


def relational(layer, width):
    if layer == "hgt":
        return pyg.HGTConv(width, 8, (TYPES, RELATIONS), heads=2)
    return pyg.HeteroConv({relation: pyg.SAGEConv((-1, -1), 8) for relation in RELATIONS})


class Relational(nn.Module):
    """Three convolutions over dictionaries; ``norm`` is where PairNorm should be, type by type."""

    def __init__(self, layer, act=torch.relu):
        super().__init__()
        self.convs = nn.ModuleList(relational(layer, width) for width in (5, 8, 8))
        self.act = act

    def forward(self, x_dict, edge_index_dict, batch_dict=None, norm=lambda h, batch: h):
        for conv in self.convs:
            x_dict = conv(x_dict, edge_index_dict)
            if conv is not self.convs[-1]:
                x_dict = {
                    kind: norm(self.act(x), batch_dict and batch_dict[kind]) for kind, x in x_dict.items()
                }
        return x_dict


@pytest.fixture
def relations(x):
    generator = torch.Generator().manual_seed(3)
    sizes = {"paper": NODES, "author": 7}
    edges = {
        relation: torch.stack(
            [torch.randint(sizes[end], (30,), generator=generator) for end in relation[::2]]
        )
        for relation in RELATIONS
    }
    return {"paper": x, "author": x[:7].exp()}, edges


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("act", [torch.relu, torch.sin])
@pytest.mark.parametrize("layer", ["hetero", "hgt"])
def test_every_node_type_is_normalized_separately(layer, act, batched, relations):
    model = Relational(layer, act).eval()
    batch = {"paper": torch.arange(NODES) // 4, "author": torch.arange(7) // 3} if batched else None
    expected = model(*relations, batch, NORM)
    with add_pair_norm(model, SCALE) as handle:
        output = model(*relations, batch)
    for kind in TYPES:
        torch.testing.assert_close(output[kind], expected[kind], rtol=0, atol=0)
    place, _, why = handle.places["convs.0"].partition(" (")
    assert (place, "relu" in why) == ("before convs.1", act is torch.relu)
    assert handle.places["convs.2"] == "left alone, the last"


def test_batches_by_node_type_need_places_with_types(relations, raises):
    model = Relational("hetero", nn.ReLU())
    batch = {kind: torch.zeros(len(h), dtype=torch.long) for kind, h in relations[0].items()}
    with add_pair_norm(model) as handle:
        model(*relations)
        assert handle.places["convs.0"] == "after act (relu)"
        with raises("no-node-type"):
            model(*relations, batch)
    with add_pair_norm(model, at=["before convs.1", "before convs.2"]):
        model(*relations, batch)


def test_to_hetero_model_is_patched(relations):
    class Homogeneous(nn.Module):
        def __init__(self, norm):
            super().__init__()
            self.first, self.second, self.third = (pyg.SAGEConv((-1, -1), width) for width in (8, 8, 3))
            self.norm = norm

        def forward(self, x, edge_index):
            x = self.norm(self.first(x, edge_index).relu())
            x = self.norm(self.second(x, edge_index).relu())
            return self.third(x, edge_index).relu()

    plain, reference = (
        pyg.to_hetero(Homogeneous(norm), (TYPES, RELATIONS))
        for norm in (nn.Identity(), PairNorm(SCALE, "PN-SI"))
    )
    plain(*relations)
    reference(*relations)
    reference.load_state_dict(plain.state_dict(), strict=False)
    with add_pair_norm(plain, SCALE) as handle:
        output = plain(*relations)
    for kind, expected in reference(*relations).items():
        assert torch.equal(output[kind], expected)
    places = list(handle.places.values())
    assert [place.partition(" ")[0] for place in places] == ["before"] * 8 + ["left"] * 4


class DeepGCN(nn.Module):
    """A stack of blocks as in PyG's own example: the first convolution is called without its block."""

    def __init__(self, block, ckpt_grad=False):
        super().__init__()
        widths = [5, 13, 21] if block == "dense" else [5, 5, 5]
        self.layers = nn.ModuleList(
            pyg.DeepGCNLayer(
                pyg.GENConv(width, 8 if block == "dense" else 5),
                nn.LayerNorm(width if block == "res+" else 8 if block == "dense" else 5),
                nn.ReLU(),
                block,
                dropout=0.5,
                ckpt_grad=ckpt_grad,
            )
            for width in widths
        )

    def forward(self, x, edges):
        first, *others = self.layers
        x = first.conv(x, edges) if first.block == "res+" else first(x, edges)
        for layer in others:
            x = layer(x, edges)
        return first.act(x) if first.block == "res+" else x


def deep_gcn_with_pair_norm(model, x, edges):
    first, *others = model.layers
    block = first.block

    def drop(h):
        return F.dropout(h, 0.5, model.training)

    if block == "res+":
        x = first.conv(x, edges)
        for layer in others:
            x = x + layer.conv(drop(NORM(layer.act(layer.norm(x)))), edges)
        return first.act(x)
    for layer in model.layers:
        h = layer.act(layer.norm(layer.conv(x, edges)))
        h = h if layer is model.layers[-1] else NORM(h)
        x = drop({"res": lambda: x + h, "dense": lambda: torch.cat([x, h], -1), "plain": lambda: h}[block]())  # noqa: B023
    return x


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("block", ["res+", "res", "dense", "plain"])
def test_deep_gcn_layers(block, training, x, edges):
    model = DeepGCN(block).train(training)
    reference = run(lambda *inputs: deep_gcn_with_pair_norm(model, *inputs), x, edges)
    output, handle = patched(model, x, edges)
    assert torch.equal(output, reference)
    names = [1, 2] if block == "res+" else [0, 1]
    expected = [*(f"after layers.{i}.act (relu)" for i in names), "left alone, the last"]
    assert list(handle.places.values()) == expected


@pytest.mark.parametrize("block", ["res+", "plain"])
def test_checkpointed_blocks_have_the_same_gradients(block, x, edges):
    plain = DeepGCN(block)
    kept = DeepGCN(block, ckpt_grad=True)
    kept.load_state_dict(plain.state_dict())
    grads = []
    for model in (plain, kept):
        with add_pair_norm(model, SCALE):
            run(model, x.requires_grad_(), edges).sum().backward()
        grads.append([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


class Checkpointed(TwoLayers):
    def __init__(self, use_reentrant):
        super().__init__()
        self.use_reentrant = use_reentrant

    def block(self, x, edge_index):
        return self.act(self.first(x, edge_index))

    def forward(self, x, edge_index, batch=None):
        h = checkpoint(self.block, x, edge_index, use_reentrant=self.use_reentrant)
        return self.second(h, edge_index)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointed_block_with_and_without_batch(use_reentrant, x, edges, raises):
    model, target = Checkpointed(use_reentrant), torch.randn(NODES, 3)
    x.requires_grad_()
    reference = TwoLayers.forward(model, x, edges, norm=NORM)
    expected = torch.autograd.grad((reference * target).sum(), [x, *model.parameters()])
    with add_pair_norm(model, SCALE):
        output = model(x, edges)
        (output * target).sum().backward()
        torch.testing.assert_close([x.grad, *(one.grad for one in model.parameters())], list(expected))
        torch.testing.assert_close(output, reference)
        # The batch vector is not known when a block is computed again.
        with raises("batch-in-checkpoint"):
            model(x, edges, torch.arange(NODES) // 5).sum().backward()


def test_checkpointed_model_with_batch(x, edges):
    model, batch = pyg.GCN(5, 8, 3, 3), torch.arange(NODES) // 5
    basic_gnn_with_pair_norm(model, x, edges, batch).square().sum().backward()
    expected = [one.grad.clone() for one in model.parameters()]
    model.zero_grad()
    with add_pair_norm(model, SCALE):
        checkpoint(model, x, edges, batch=batch, use_reentrant=False).square().sum().backward()
    torch.testing.assert_close([one.grad for one in model.parameters()], expected)


class Dense(nn.Linear):
    """A hand-written convolution. The adjacency comes first, and must not be taken for the features."""

    def forward(self, adj, x):
        return adj @ super().forward(x)


class Net(nn.Module):
    def __init__(self, act, kind=Dense):
        super().__init__()
        self.conv2, self.conv1 = kind(8, 3), kind(5, 8)  # registered against the order of the calls
        self.act = act

    def forward(self, x, adj, norm=lambda h: h):
        h = norm(self.act(self.conv1(adj, x)))
        return self.conv2(adj, F.dropout(h, 0.5, self.training)).relu()


@pytest.fixture
def adj(edges):
    return torch.eye(NODES).index_put((edges[0], edges[1]), torch.tensor(0.5))


@pytest.mark.parametrize("act", [nn.ELU(), nn.ReLU(inplace=True)])
@pytest.mark.parametrize("training", [False, True])
def test_hand_written_model_is_patched(act, training, x, adj):
    model = Net(act).train(training)
    reference = run(model, x, adj, NORM)
    output, handle = patched(model, x, adj)
    assert torch.equal(output, reference)
    assert handle.places["conv2"] == "left alone, the last"


FUNCTIONS = [torch.relu, torch.Tensor.relu, F.leaky_relu, torch.relu_]
UNKNOWN = [torch.sin, lambda h: h * h.sigmoid(), nn.Identity()]


@pytest.mark.parametrize("act", [*FUNCTIONS, *UNKNOWN])
def test_functional_activation_normalizes_next_input(act, x, adj):
    model = Net(act).eval()
    output, handle = patched(model, x, adj)
    assert torch.equal(output, model(x, adj, NORM))
    why = "after .*relu and any dropout" if act in FUNCTIONS else "no activation was recognized"
    assert re.fullmatch(rf"before conv2 \({why}\)", handle.places["conv1"])
    model.train()  # dropout comes first here
    reference = run(lambda: model.conv2(adj, NORM(F.dropout(act(model.conv1(adj, x))))).relu())
    assert torch.equal(patched(model, x, adj)[0], reference)


@pytest.mark.parametrize("act", [lambda h: F.relu(h, inplace=True), nn.ReLU(inplace=True)])
def test_in_place_activation_is_seen(act, x, edges):
    class Discards(TwoLayers):
        def forward(self, x, edge_index, norm=lambda h: h):
            h = self.first(x, edge_index)
            self.act(h)
            return self.second(norm(h), edge_index)

    model = Discards(act)
    output, handle = patched(model, x, edges)
    assert torch.equal(output, model(x, edges, norm=NORM))
    assert handle.places["first"].startswith("before second")


class Stack(nn.Module):
    """Linear layers named as convolutions, with propagation outside of them."""

    def __init__(self):
        super().__init__()
        self.stack = nn.ModuleList([nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 3)])

    def forward(self, x, adj, norm=lambda h: h):
        for index, layer in enumerate(self.stack):
            x = layer(adj @ x)
            x = x if index == 2 else norm(x).relu()
        return x


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(pyg.GCNConv(5, 5) for _ in range(3))

    def forward(self, x, edge_index, norm=lambda h: h):
        for conv in self.convs[:-1]:
            x = x + F.relu(norm(conv(x, edge_index)))
        return self.convs[-1](x, edge_index)


class Looped(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = pyg.GCNConv(5, 5)

    def forward(self, x, edge_index, norm=lambda h: h):
        for _ in range(3):
            x = F.relu(norm(self.conv(x, edge_index)))
        return x


@pytest.mark.parametrize(
    ("kind", "where", "candidates", "at"),
    [
        (Stack, "stack.0", ["after stack.0", "before stack.1"], ["after stack.0", "after stack.1"]),
        (Residual, "convs.0", ["after convs.0", "before convs.1"], ["after convs.0", "after convs.1"]),
        (Looped, "conv", ["after conv", "before conv"], ["after conv"]),
    ],
)
def test_ambiguous_place_raises_with_candidates(kind, where, candidates, at, x, edges, adj, raises):
    model, graph = kind(), adj if kind is Stack else edges
    layers = ["stack.0", "stack.1", "stack.2"] if kind is Stack else None
    with add_pair_norm(model, layers=layers), raises("ambiguous-place", value=where) as caught:
        model(x, graph)
    assert all(one in str(caught.value) for one in candidates)
    with raises("ambiguous-place"):
        add_pair_norm(model, layers=layers, example_inputs=(x, graph))
    output, handle = patched(model, x, graph, options={"at": at})
    torch.testing.assert_close(output, model(x, graph, NORM))
    assert handle.places == dict.fromkeys(at, "named")


def test_places_by_hand_before_modules(x, edges, adj, relations):
    model = Net(nn.ReLU()).eval()
    assert torch.equal(patched(model, x, adj, options={"at": ["before conv2"]})[0], model(x, adj, NORM))
    model = Relational("hetero").eval()
    expected = model(*relations, None, NORM)
    with add_pair_norm(model, SCALE, at=["before convs.1", "before convs.2"]):
        torch.testing.assert_close(model(*relations), expected)


def test_observed_pass_restores_random_state_and_buffers(x, edges):
    model = pyg.GCN(5, 8, 3, 3, dropout=0.5, norm="BatchNorm")
    expected = copy.deepcopy(model)
    reference = run(lambda: basic_gnn_with_pair_norm(expected, x, edges))
    following = torch.rand(1)
    add_pair_norm(model, SCALE)
    assert torch.equal(run(model, x, edges), reference)
    assert torch.equal(torch.rand(1), following)
    for name, buffer in expected.named_buffers():
        assert torch.equal(model.get_buffer(name), buffer)


def test_parallel_convolutions_are_one_layer(x, edges):
    class Variational(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = pyg.GCNConv(5, 8), pyg.SAGEConv(5, 8)
            self.mean, self.spread = pyg.GCNConv(8, 3), pyg.GCNConv(8, 3)

        def forward(self, x, edges, norm=lambda h: h):
            h = norm((self.left(x, edges) + self.right(x, edges)).relu())
            return self.mean(h, edges) + self.spread(h, edges)

    model = Variational()
    output, handle = patched(model, x, edges)
    assert torch.equal(output, model(x, edges, NORM))
    assert [place.partition(" ")[0] for place in handle.places.values()] == ["before"] * 2 + ["left"] * 2


def test_convolution_with_own_activation_is_normalized_after(x, adj):
    class Activated(Dense):
        def forward(self, adj, x):
            return F.elu(super().forward(adj, F.relu(x)))

    model = Net(nn.Identity(), Activated)
    output, handle = patched(model, x, adj)
    assert torch.equal(output, run(model, x, adj, NORM))
    assert handle.places["conv1"] == "after conv1 (elu)"


def test_edge_features_are_not_normalized(x, edges):
    class WithEdgeFeatures(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = pyg.GATConv(5, 8, edge_dim=8), pyg.GATConv(8, 3, edge_dim=8)
            self.act = nn.ReLU()

        def forward(self, x, edges, features, norm=lambda h: h):
            h = self.first(x, edges, features)
            features = F.elu(features)
            features = features + F.elu(h[edges[0]] - h[edges[1]])
            return self.second(norm(self.act(h)), edges, features)

    model, some = WithEdgeFeatures(), edges[:, :NODES]  # as many edges as nodes
    features = torch.randn(NODES, 8)
    output, handle = patched(model, x, some, features)
    assert torch.equal(output, model(x, some, features, NORM))
    assert handle.places["first"] == "after act (relu)"


@pytest.mark.parametrize("name", ["Decoder", "Bilinear"])
def test_decoder_is_not_a_convolution(name, x, edges):
    decoder = type(
        name,
        (nn.Module,),
        {"forward": lambda self, z, edge_index: (z[edge_index[0]] * z[edge_index[1]]).sum(-1)},
    )

    class AutoEncoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = TwoLayers(), decoder()

        def forward(self, x, edge_index, norm=lambda h: h):
            return self.decoder(self.encoder(x, edge_index, norm=norm), edge_index)

    model = AutoEncoder()
    output, handle = patched(model, x, edges)
    assert torch.equal(output, model(x, edges, NORM))
    assert handle.places == {
        "encoder.first": "after encoder.act (relu)",
        "encoder.second": "left alone, the last",
    }


def test_patch_without_effect_warns(x, edges):
    for model in (pyg.GCN(5, 8, 1, 3), nn.ModuleDict({"conv": pyg.SGConv(5, 3, K=4)})):
        if isinstance(model, nn.ModuleDict):
            type(model).forward = lambda self, x, edges: self["conv"](x, edges)
        try:
            with pytest.warns(UserWarning, match="no effect") as caught, add_pair_norm(model):
                model(x, edges)
        finally:
            if isinstance(model, nn.ModuleDict):
                del nn.ModuleDict.forward
    assert "conv with K=4" in str(caught[0].message)


def test_copies_have_their_own_patch(x, edges):
    model = pyg.GCN(5, 8, 3, 3).eval()
    plain = model(x, edges)
    handle = add_pair_norm(model, SCALE)
    unresolved = copy.deepcopy(model)
    output = model(x, edges)
    stored = io.BytesIO()
    torch.save(model, stored)
    stored.seek(0)
    copies = [unresolved, copy.deepcopy(model), torch.load(stored, weights_only=False)]
    handle.remove()
    handle.remove()  # a second time changes nothing
    assert torch.equal(model(x, edges), plain)
    for twin in copies:
        assert torch.equal(twin(x, edges), output)
        assert twin.act.pair_norm_after is not model.act
        remove_pair_norm(twin)
        assert torch.equal(twin(x, edges), plain)
        assert type(twin) is type(model)
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in twin.modules())


def test_exception_in_forward_leaves_the_patch_usable(x, edges):
    model = pyg.GCN(5, 8, 3, 3)
    with add_pair_norm(model, SCALE):
        for _ in range(2):  # before the places are found, and after
            with pytest.raises(RuntimeError):
                model(x[:, :2], edges)
            output = model(x, edges)
        assert torch.equal(model(x, edges), output)
    assert torch.overrides._len_torch_function_stack() == 0


def test_threads_do_not_see_each_others_batch_vectors(x, edges):
    model = pyg.GCN(5, 8, 3, 3).eval()
    batches = [torch.arange(NODES) // size for size in (2, 3, 4)]
    expected = [basic_gnn_with_pair_norm(model, x, edges, batch) for batch in batches]
    failures = []

    def work(index):
        with torch.no_grad():
            for _ in range(30):
                output = model(x, edges, batch=batches[index])
                failures.extend([] if torch.equal(output, expected[index]) else [index])

    with add_pair_norm(model, SCALE):
        threads = [threading.Thread(target=work, args=(index,)) for index in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []


def replica(module):
    """Return what ``DataParallel`` makes of a module for a device, on this one."""
    twin = module._replicate_for_data_parallel()
    for name, child in module._modules.items():
        twin._modules[name] = replica(child)
        setattr(twin, name, twin._modules[name])
    for name, parameter in module._parameters.items():
        setattr(twin, name, parameter)
    return twin


def test_forward_set_on_the_instance_is_patched(x, edges):
    model, batch = TwoLayers(), torch.arange(NODES) // 5
    model.forward = lambda x, edge_index, batch=None: 2 * TwoLayers.forward(model, x, edge_index)
    reference = 2 * TwoLayers.forward(model, x, edges, norm=lambda h: NORM(h, batch))
    own = model.forward
    with add_pair_norm(model, SCALE):
        torch.testing.assert_close(model(x, edges, batch), reference)
    assert model.forward is own


def test_data_parallel_replicas_need_resolved_places(x, edges, raises):
    model = pyg.GCN(5, 8, 3, 3)
    batch = torch.arange(NODES) // 5
    reference = basic_gnn_with_pair_norm(model, x, edges, batch)
    with add_pair_norm(model, SCALE):
        with raises("unresolved"):
            replica(model)(x, edges, batch=batch)
        model(x, edges)
        assert torch.equal(replica(model)(x, edges, batch=batch), reference)
    with add_pair_norm(nn.DataParallel(model), SCALE):
        assert torch.equal(nn.DataParallel(model)(x, edges, batch=batch), reference)


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("passes", [0, 2])
def test_compiled_model_is_patched(passes, x, edges):
    model, batch = pyg.GraphSAGE(5, 8, 3, 3), torch.arange(NODES) // 5
    plain, reference = model(x, edges), basic_gnn_with_pair_norm(model, x, edges)
    by_graph = basic_gnn_with_pair_norm(model, x, edges, batch)
    compiled = torch.compile(model, backend="aot_eager")
    for _ in range(passes):
        torch.testing.assert_close(compiled(x, edges), plain)
    with add_pair_norm(compiled, SCALE):
        torch.testing.assert_close(compiled(x, edges), reference)
        torch.testing.assert_close(compiled(x, edges, None, None, batch, 3), by_graph)
    torch.testing.assert_close(compiled(x, edges), plain)


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_resolved_model_compiles_to_one_graph(x, edges):
    class Outer(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, x, edges):
            return self.model(x, edges)

    model = pyg.GraphSAGE(5, 8, 3, 3)
    reference = basic_gnn_with_pair_norm(model, x, edges)
    with add_pair_norm(model, SCALE):
        compiled, alone = (
            torch.compile(one, backend="eager", fullgraph=True) for one in (Outer(model), model)
        )
        with pytest.raises(torch._dynamo.exc.Unsupported, match="pass example_inputs"):
            compiled(x, edges)
        model(x, edges)
        torch.testing.assert_close(compiled(x, edges), reference)
        torch.testing.assert_close(alone(x, edges), reference)


def test_patch_is_in_repr(x, edges):
    model = TwoLayers()
    handle = add_pair_norm(model, SCALE)
    assert repr(handle) == f"{NORM} in TwoLayers\n  the places are found in the first forward pass"
    model(x, edges)
    text = f"{NORM} in TwoLayers\n  first: after act (relu)\n  second: left alone, the last"
    assert repr(handle) == text
    assert [line.strip() for line in text.splitlines()][1] in str(model)
    assert f"(pair_norm_after): {NORM}" in str(model)
    assert isinstance(model.get_submodule("act.pair_norm_after"), PairNorm)
    handle.remove()
    assert "TwoLayers (removed)" in repr(handle)


@pytest.mark.parametrize("is_resolved", [False, True])
def test_convolution_outside_forward_raises(is_resolved, x, edges, raises):
    model = pyg.GCN(5, 8, 2, 3, act=F.relu).eval()
    inputs = (x, edges) if is_resolved else None
    with add_pair_norm(model, example_inputs=inputs), raises("outside-forward"):
        model.convs[1](torch.randn(NODES, 8), edges)
    with add_pair_norm(model, SCALE, batch=None, example_inputs=(x, edges)):
        h = torch.randn(NODES, 8)
        output = model.convs[1](h, edges)
    assert torch.equal(output, model.convs[1](NORM(h), edges))


def test_invalid_arguments_raise(x, edges, raises):
    model = pyg.GCN(5, 8, 2, 3)
    outer = nn.ModuleDict({"encoder": model})
    handle = add_pair_norm(model)
    for again in (model, outer):
        with raises("already-normalized"):
            add_pair_norm(again)
    handle.remove()
    with raises("already-normalized", value="norms.0"):
        add_pair_norm(pyg.GCN(5, 8, 2, 3, norm="PairNorm"))
    with raises("already-normalized", value="own", options={"norm": "PN"}):
        add_pair_norm(nn.ModuleDict({"own": GCN(5, 3, num_layers=2)}), mode="PN")
    with raises("unknown-choice", value="PairNorm"):
        add_pair_norm(model, mode="PairNorm")
    for at in ("convs.0", "behind convs.0", "after"):
        with raises("unknown-choice", value=at):
            add_pair_norm(model, at=[at])
    with raises("unknown-choice", value="convs.9"):
        add_pair_norm(model, at=["after convs.9"])
    with raises("unknown-choice", value="after encoder", expected="after encoder.1"):
        add_pair_norm(
            nn.ModuleDict({"encoder": nn.Sequential(nn.Linear(2, 2), nn.ReLU())}), at=["after encoder"]
        )
    assert type(model) is pyg.GCN


def test_sliced_states_need_an_activation_module(x, edges, raises):
    class Bipartite(TwoLayers):
        def forward(self, x, edges, norm=lambda h: h):
            h = norm(self.act(self.first(x, edges)))
            return self.second((h, h[:NODES]), edges)

    model = Bipartite()
    model.second = pyg.SAGEConv(8, 3)
    assert torch.equal(patched(model, x, edges)[0], model(x, edges, NORM))
    model = Bipartite(torch.relu)
    model.second = pyg.SAGEConv(8, 3)
    with add_pair_norm(model), raises("ambiguous-place", value="first"):
        model(x, edges)
