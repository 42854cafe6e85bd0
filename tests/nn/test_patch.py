import copy
import io

import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import nn
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


def patched(model, *args, mode="PN-SI", layers=None, **kwargs):
    """Return what the patched model gives, after checking that the patch leaves no trace."""
    before, keys, text = copy.deepcopy(model), list(model.state_dict()), repr(model)
    with add_pair_norm(model, SCALE, mode, layers) as handle:
        output = run(model, *args, **kwargs)
        assert sorted(model.state_dict()) == sorted(["add_pair_norm", *keys])
        assert repr(model) == text
    assert list(model.state_dict()) == keys
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert not module._forward_hooks_always_called
        assert not module._load_state_dict_pre_hooks
    model.load_state_dict(before.state_dict())
    assert torch.equal(run(model, *args, **kwargs), run(before, *args, **kwargs))
    return output, handle


def basic_gnn_with_pair_norm(model, x, edges, batch=None):
    """The forward of PyG's BasicGNN, written out, with PairNorm after the activation."""
    states, last = [], len(model.convs) - 1
    for index, (conv, norm) in enumerate(zip(model.convs, model.norms, strict=True)):
        x = conv(x, edges)
        if index < last or model.jk_mode:
            if model.act_first:
                x = model.act(x)
                x = NORM(x, batch) if index < last else x
            x = norm(x)
            if not model.act_first:
                x = model.act(x)
                x = NORM(x, batch) if index < last else x
            x = model.dropout(x)
            states.append(x)
    x = model.jk(states) if hasattr(model, "jk") else x
    return model.lin(x) if hasattr(model, "lin") else x


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    "settings", [{}, {"act_first": True, "norm": "BatchNorm"}, {"norm": "BatchNorm"}, {"jk": "cat"}]
)
@pytest.mark.parametrize("kind", [pyg.GCN, pyg.GAT, pyg.GraphSAGE, pyg.GIN])
def test_basic_gnn(kind, settings, training, x, edges):
    torch.manual_seed(0)
    model = kind(5, 8, 4, 3, dropout=0.5, act="elu", **settings).train(training)
    reference = run(lambda *inputs: basic_gnn_with_pair_norm(copy.deepcopy(model), *inputs), x, edges)
    output, handle = patched(model, x, edges)
    assert torch.equal(output, reference)
    assert handle.places == {f"convs.{i}": "after elu" for i in range(3)} | {
        "convs.3": "left alone, the last"
    }


@pytest.mark.parametrize(
    "act", ["relu", "leaky_relu", "prelu", "gelu", "silu", "tanh", F.relu, torch.relu, torch.tanh]
)
def test_activations_as_modules_and_functions(act, x, edges):
    model = pyg.GCN(5, 8, 3, 3, dropout=0.5, act=act)
    reference = run(lambda *inputs: basic_gnn_with_pair_norm(model, *inputs), x, edges)
    assert torch.equal(patched(model, x, edges)[0], reference)


def test_gradients(x, edges):
    model = pyg.GAT(5, 8, 3, 3, dropout=0.5)
    run(lambda *inputs: basic_gnn_with_pair_norm(model, *inputs), x, edges).square().sum().backward()
    reference = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    with add_pair_norm(model, SCALE):
        run(model, x, edges).square().sum().backward()
    for parameter, grad in zip(model.parameters(), reference, strict=True):
        assert torch.equal(parameter.grad, grad)


@pytest.mark.parametrize("mode", ["PN", "PN-SI", "PN-SCS"])
def test_scale_and_mode(mode, x, edges):
    model = pyg.GCN(5, 8, 2, 3).eval()
    hidden = PairNorm(SCALE, mode)(model.convs[0](x, edges).relu())
    assert torch.equal(patched(model, x, edges, mode=mode)[0], model.convs[1](hidden, edges))


@pytest.mark.parametrize("position", ["argument", "keyword"])
def test_every_graph_of_a_batch_is_normalized_on_its_own(position, x, edges):
    model, batch = pyg.GCN(5, 8, 3, 3), torch.arange(NODES) % 3
    reference = basic_gnn_with_pair_norm(model, x, edges, batch)
    given = (None, None, batch, 3) if position == "argument" else ()
    named = {"batch": batch} if position == "keyword" else {}
    assert torch.equal(patched(model, x, edges, *given, **named)[0], reference)


def test_the_batch_of_a_pyg_object(x, edges):
    class OnData(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = pyg.GCNConv(5, 8), pyg.GCNConv(8, 3)

        def forward(self, data):
            return self.second(self.first(data.x, data.edge_index).relu(), data.edge_index)

    data, model = (
        Batch.from_data_list([Data(x=x, edge_index=edges), Data(x=x.exp(), edge_index=edges)]),
        OnData(),
    )
    hidden = NORM(model.first(data.x, data.edge_index).relu(), data.batch)
    assert torch.equal(patched(model, data)[0], model.second(hidden, data.edge_index))


class Named(nn.Module):
    """A model that calls its batch vector something else."""

    def __init__(self):
        super().__init__()
        self.first, self.second = pyg.GCNConv(5, 8), pyg.GCNConv(8, 3)

    def forward(self, x, edge_index, graph_ids=None):
        return self.second(self.first(x, edge_index).relu(), edge_index)


def test_a_batch_of_another_name_is_used_once_it_is_told(x, edges):
    model, batch = Named().eval(), torch.arange(NODES) // 5
    reference = model.second(NORM(model.first(x, edges).relu(), batch), edges)
    for given in ((x, edges, batch), (x, edges)):
        with add_pair_norm(model, SCALE, batch="graph_ids"):
            torch.testing.assert_close(model(*given), reference if len(given) == 3 else model(x, edges))
    with add_pair_norm(model, SCALE, batch="graph_ids"):
        assert torch.equal(model(x, edges, graph_ids=batch), reference)


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("compiled", [False, True])
def test_integers_of_each_node_are_not_ignored_in_silence(compiled, x, edges):
    model, batch = Named().eval(), torch.arange(NODES) // 5
    handle = add_pair_norm(model, SCALE)
    call = torch.compile(model, backend="eager", fullgraph=True) if compiled else model
    with pytest.warns(UserWarning, match="'graph_ids' has an integer for each node"):
        call(x, edges, batch)
    call(x, edges, batch)  # once is enough
    handle.remove()
    torch._dynamo.reset()
    for other in (torch.arange(NODES), torch.zeros(NODES, dtype=torch.long), batch[1:], batch.double()):
        with add_pair_norm(model, SCALE):
            model(x, edges, other)  # numbers of nodes, one graph, of something else: no batch vector
    with add_pair_norm(model, SCALE, batch=None):
        model(x, edges, batch)


def test_a_batch_that_is_nowhere_is_an_error(x, edges, raises):
    model = Named()
    with add_pair_norm(model, batch="graph_idz"), raises("unknown-argument", value="graph_idz"):
        model(x, edges)


def test_weights_trained_with_pair_norm_are_not_loaded_without_it(x, edges, raises):
    model, plain = pyg.GCN(5, 8, 3, 3), pyg.GCN(5, 8, 3, 3)
    before = copy.deepcopy(plain.state_dict())
    handle = add_pair_norm(model, SCALE)
    stored = io.BytesIO()
    torch.save(model.half().state_dict(), stored)
    stored.seek(0)
    state = torch.load(stored, weights_only=True)
    for target in (plain, nn.ModuleDict({"encoder": plain})):
        prefix = "" if target is plain else "encoder."
        with pytest.raises(RuntimeError, match=r'Unexpected key.*"(encoder.)?add_pair_norm"'):
            target.load_state_dict({prefix + name: value for name, value in state.items()})
    with add_pair_norm(plain, SCALE):
        plain.load_state_dict(state)
        torch.testing.assert_close(plain(x, edges), model.float()(x, edges))
        with pytest.raises(RuntimeError, match=r'Missing key.*"add_pair_norm"'):
            plain.load_state_dict(before)
    with add_pair_norm(plain, SCALE, "PN"), raises("other-norm", value=str(NORM)):
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
def test_every_node_type_is_normalized_on_its_own(layer, act, batched, relations):
    model = Relational(layer, act).eval()
    batch = {"paper": torch.arange(NODES) // 4, "author": torch.arange(7) // 3} if batched else None
    expected = model(*relations, batch, NORM)
    with add_pair_norm(model, SCALE) as handle:
        output = model(*relations, batch)
    for kind in TYPES:
        torch.testing.assert_close(output[kind], expected[kind], rtol=0, atol=0)
    place = "after relu" if act is torch.relu else "before convs.1"
    assert list(handle.places.values())[0::2] == [place, "left alone, the last"]


def test_a_model_made_relational_by_pyg(relations):
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
    assert list(handle.places.values()) == ["after relu"] * 8 + ["left alone, beside the last"] * 3 + [
        "left alone, the last"
    ]


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
    assert list(handle.places.values()) == ["after relu", "after relu", "left alone, the last"]


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


@pytest.mark.parametrize(
    "act", [torch.relu, torch.Tensor.relu, nn.ELU(), F.leaky_relu, nn.ReLU(inplace=True)]
)
@pytest.mark.parametrize("training", [False, True])
def test_a_hand_written_module(act, training, x, adj):
    model = Net(act).train(training)
    reference = run(model, x, adj, NORM)
    output, handle = patched(model, x, adj)
    assert torch.equal(output, reference)
    assert handle.places["conv2"] == "left alone, the last"


@pytest.mark.parametrize("act", [torch.sin, torch.relu_, lambda h: h * h.sigmoid(), nn.Identity()])
def test_without_a_recognized_activation_the_next_input_is_normalized(act, x, adj):
    model = Net(act).eval()
    output, handle = patched(model, x, adj)
    assert torch.equal(output, model(x, adj, NORM))
    assert handle.places["conv1"] == "before conv2"
    model.train()  # dropout comes first here
    reference = run(lambda: model.conv2(adj, NORM(F.dropout(act(model.conv1(adj, x))))).relu())
    assert torch.equal(patched(model, x, adj)[0], reference)


def test_named_layers(x, adj, raises):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.stack = nn.ModuleList([nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 3)])

        def forward(self, x, adj, norm=lambda h: h):
            for index, layer in enumerate(self.stack):
                x = layer(adj @ x)
                x = x if index == 2 else norm(x.relu())
            return x

    model = Odd()
    with raises("no-convolution"):
        add_pair_norm(model)
    output, _ = patched(model, x, adj, layers=["stack.0", "stack.1", "stack.2"])
    assert torch.equal(output, model(x, adj, NORM))


def test_the_first_pass_is_repeated_with_the_same_random_numbers_and_buffers(x, edges):
    class Tied(nn.Module):
        """One convolution, run three times, between modules that draw numbers and count batches."""

        def __init__(self):
            super().__init__()
            self.conv, self.batch_norm = pyg.GCNConv(5, 5), nn.BatchNorm1d(5)

        def forward(self, x, edges):
            for _ in range(3):
                x = F.dropout(F.relu(self.batch_norm(self.conv(x, edges))))
            return x

    model = Tied()
    expected = copy.deepcopy(model)
    torch.manual_seed(1)
    h = x
    for index in range(3):
        h = F.relu(expected.batch_norm(expected.conv(h, edges)))
        h = F.dropout(h if index == 2 else NORM(h))
    following = torch.rand(1)
    handle = add_pair_norm(model, SCALE)
    assert torch.equal(run(model, x, edges), h)
    assert torch.equal(torch.rand(1), following)
    assert all(
        torch.equal(a, b)
        for a, b in zip(model.batch_norm.buffers(), expected.batch_norm.buffers(), strict=True)
    )
    assert handle.places == {
        "conv": "after relu",
        "conv (call 2)": "after relu",
        "conv (call 3)": "left alone, the last",
    }


def test_convolutions_side_by_side_are_one_layer(x, edges):
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
    assert list(handle.places.values()) == [
        "after relu",
        "after relu",
        "left alone, beside the last",
        "left alone, the last",
    ]


def test_a_convolution_that_ends_in_its_activation(x, adj):
    class Activated(Dense):
        def forward(self, adj, x):
            return F.elu(super().forward(adj, F.relu(x)))

    model = Net(nn.Identity(), Activated)
    output, handle = patched(model, x, adj)
    assert torch.equal(output, run(model, x, adj, NORM))
    assert handle.places["conv1"] == "at its output"


def test_activations_of_other_things_are_no_place(x, edges):
    class WithEdgeFeatures(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = pyg.GCNConv(5, 8), pyg.GCNConv(8, 3)

        def forward(self, x, edges, weight, norm=lambda h: h):
            h = self.first(x, edges, weight)
            weight = weight.relu()
            return self.second(norm(h.tanh()), edges, weight)

    model, weight = WithEdgeFeatures(), torch.rand(edges.shape[1])
    assert torch.equal(patched(model, x, edges, weight)[0], model(x, edges, weight, NORM))


def test_copies_carry_a_patch_of_their_own(x, edges):
    model = pyg.GCN(5, 8, 3, 3).eval()
    plain = model(x, edges)
    handle = add_pair_norm(model, SCALE)
    output = model(x, edges)
    stored = io.BytesIO()
    torch.save(model, stored)
    stored.seek(0)
    copies = [copy.deepcopy(model), torch.load(stored, weights_only=False)]
    handle.remove()
    handle.remove()  # a second time changes nothing
    assert torch.equal(model(x, edges), plain)
    for twin in copies:
        twin.convs[0].lin.weight.data.mul_(1)
        assert torch.equal(twin(x, edges), output)
        remove_pair_norm(twin)
        assert torch.equal(twin(x, edges), plain)
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in twin.modules())


def test_an_exception_in_forward_leaves_the_patch_usable(x, edges):
    model = pyg.GCN(5, 8, 3, 3)
    with add_pair_norm(model, SCALE):
        output = model(x, edges)
        with pytest.raises(RuntimeError):
            model(x[:, :2], edges)
        assert torch.equal(model(x, edges), output)
    assert torch.overrides._len_torch_function_stack() == 0


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("wrapped", [False, True])
def test_compile(wrapped, x, edges):
    class Outer(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, x, edges):
            return self.model(x, edges)

    model = pyg.GraphSAGE(5, 8, 3, 3)
    reference = basic_gnn_with_pair_norm(model, x, edges)
    with add_pair_norm(model, SCALE) as handle:
        compiled = torch.compile(Outer(model) if wrapped else model, backend="eager", fullgraph=True)
        for _ in range(2):
            torch.testing.assert_close(compiled(x, edges), reference)
        assert handle.places["convs.0"] == "after relu"
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("passes", [0, 2])
def test_a_compiled_model_is_patched_as_any_other(passes, x, edges):
    model = pyg.GraphSAGE(5, 8, 3, 3)
    plain, reference = model(x, edges), basic_gnn_with_pair_norm(model, x, edges)
    compiled = torch.compile(model, backend="aot_eager")
    for _ in range(passes):
        torch.testing.assert_close(compiled(x, edges), plain)
    for _ in range(2):
        with add_pair_norm(compiled, SCALE):
            torch.testing.assert_close(compiled(x, edges), reference)
        torch.testing.assert_close(compiled(x, edges), plain)
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("kind", [pyg.GCN, pyg.GAT, pyg.GIN])
def test_compile_before_the_first_pass(kind, x, edges):
    model, batch = kind(5, 8, 3, 3).eval(), torch.arange(NODES) // 5
    reference = basic_gnn_with_pair_norm(model, x, edges, batch)
    with add_pair_norm(model, SCALE):
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x, edges, batch=batch, batch_size=3), reference)
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_compile_before_the_first_pass_of_a_model_registered_against_its_order(x, adj):
    model = Net(torch.relu).eval()
    with add_pair_norm(model, SCALE) as handle:
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        for _ in range(2):
            torch.testing.assert_close(compiled(x, adj), model(x, adj))
        assert handle.places["conv2"] == "left alone, the last"
        output = compiled(x, adj)
    torch.testing.assert_close(output, model(x, adj, NORM))
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("act", [torch.relu, torch.sin])
def test_compile_of_dictionaries_before_the_first_pass(act, relations):
    model = Relational("hetero", act).eval()
    expected = model(*relations, None, NORM)
    with add_pair_norm(model, SCALE):
        output = torch.compile(model, backend="eager", fullgraph=True)(*relations)
    for kind in TYPES:
        torch.testing.assert_close(output[kind], expected[kind])
    torch._dynamo.reset()


def test_repr(x, edges):
    model = pyg.GCN(5, 8, 2, 3)
    handle = add_pair_norm(model, SCALE)
    assert repr(handle) == f"{NORM} in GCN\n  convs.0: not run yet\n  convs.1: not run yet"
    model(x, edges)
    assert repr(handle) == f"{NORM} in GCN\n  convs.0: after relu\n  convs.1: left alone, the last"
    handle.remove()
    assert "GCN (removed)" in repr(handle)


def test_errors(x, edges, raises):
    model = pyg.GCN(5, 8, 2, 3)
    outer = nn.ModuleDict({"encoder": model})
    handle = add_pair_norm(model)
    for again in (model, outer):
        with raises("already-normalized"):
            add_pair_norm(again)
    with raises("outside-forward", value="convs.0"):
        model.convs[0](x, edges)
    handle.remove()
    with raises("already-normalized", value="norms.0"):
        add_pair_norm(pyg.GCN(5, 8, 2, 3, norm="PairNorm"))
    with raises("already-normalized", value="own", options={"norm": "PN"}):
        add_pair_norm(nn.ModuleDict({"own": GCN(5, 3, num_layers=2)}), mode="PN")
    with raises("unknown-choice", value="PairNorm"):
        add_pair_norm(model, mode="PairNorm")


def test_a_last_convolution_that_changes_is_an_error(x, edges, raises):
    class Looped(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = pyg.GCNConv(5, 5)

        def forward(self, x, edges, depth):
            for _ in range(depth):
                x = self.conv(x, edges).relu()
            return x

    model = Looped()
    add_pair_norm(model)
    model(x, edges, 2)
    with raises("other-order", value="conv (call 3)"):
        model(x, edges, 3)


def test_a_pair_of_node_sets_needs_an_activation(x, edges, raises):
    class Bipartite(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = pyg.SAGEConv(5, 8), pyg.SAGEConv(8, 3)

        def forward(self, x, edges, act):
            h = act(self.first((x, x), edges))
            return self.second((h, h[:NODES]), edges)

    model = Bipartite()
    assert torch.equal(
        patched(model, x, edges, torch.relu)[0], model(x, edges, lambda h: NORM(torch.relu(h)))
    )
    add_pair_norm(model)
    with raises("no-place", value="second"):
        model(x, edges, torch.sin)
