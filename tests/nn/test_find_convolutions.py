import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

from pairnorm.nn.find_convolutions import graph_convolutions
from pairnorm.nn.models import GAT, GCN, SGC


class Marked(nn.Module):
    is_graph_convolution = True

    def forward(self, x):
        return x


class Kipf(nn.Module):
    """The usual hand-written layer, recognized by its argument."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, features, adj):
        return adj @ self.linear(features)


class OddConvolution(nn.Module):
    """Recognized by its name, not by its arguments."""

    def forward(self, h, operator):
        return operator @ h


class TemporalConv(nn.Module):
    """Named like a convolution, but of one input: no graph can come in."""

    def forward(self, x):
        return x


class Block(nn.Module):
    def __init__(self, conv):
        super().__init__()
        self.conv = conv

    def forward(self, x, edge_index):
        return self.conv(x, edge_index)


def names(*modules, layers=None):
    return list(graph_convolutions(nn.ModuleList(modules), layers))


@pytest.mark.parametrize("model", [pyg.GCN, pyg.GAT, pyg.GraphSAGE, pyg.GIN, pyg.PNA, pyg.EdgeCNN])
def test_pyg_models(model):
    extra = (
        {"aggregators": ["mean"], "scalers": ["identity"], "deg": torch.ones(3)} if model is pyg.PNA else {}
    )
    actual = graph_convolutions(model(4, 8, 3, 2, **extra))
    assert list(actual) == ["convs.0", "convs.1", "convs.2"]
    assert all(isinstance(conv, pyg.MessagePassing) for conv in actual.values())


def test_models_of_this_package():
    for model in (GCN, GAT):
        assert list(graph_convolutions(model(5, 3, num_layers=3))) == [f"convolutions.{i}" for i in range(3)]
    assert list(graph_convolutions(SGC(5, 3, num_layers=3))) == ["propagation"]


def test_message_passing_subclass_counts_and_lookalikes_do_not():
    class Mine(pyg.MessagePassing):
        pass

    class Derived(pyg.GATConv):
        pass

    assert names(Mine(), nn.Linear(2, 2), Derived(2, 2), pyg.APPNP(2, 0.1), pyg.DenseGCNConv(2, 2)) == [
        "0",
        "2",
        "3",
        "4",
    ]


def test_outermost_library_convolution_counts():
    assert names(pyg.DirGNNConv(pyg.GCNConv(4, 4)), pyg.GPSConv(4, pyg.GCNConv(4, 4))) == ["0", "1"]


def test_innermost_counts_for_hand_written_blocks():
    assert names(pyg.DeepGCNLayer(pyg.GENConv(4, 4)), Block(pyg.GCNConv(4, 4)), Block(Block(Kipf()))) == [
        "0.conv",
        "1.conv",
        "2.conv.conv",
    ]


def test_hand_written_and_marked_modules():
    assert names(
        Marked(), Kipf(), OddConvolution(), TemporalConv(), nn.Bilinear(2, 2, 2), nn.Conv1d(2, 2, 1)
    ) == [
        "0",
        "1",
        "2",
    ]


def test_dgl_modules_are_recognized_by_library():
    graph_conv = type("GraphConv", (nn.Module,), {"__module__": "dgl.nn.pytorch.conv.graphconv"})
    pooling = type("GlobalAttentionPooling", (nn.Module,), {"__module__": "dgl.nn.pytorch.glob"})
    assert names(graph_conv(), pooling()) == ["0"]


def test_decoders_and_heads_that_take_a_graph_do_not_count():
    others = [type(name, (Kipf,), {}) for name in ("Decoder", "EdgeDecoder", "LinkPredictor", "GraphHead")]
    assert names(Kipf(), *(other() for other in others)) == ["0"]


def test_scoring_convolution_of_pooling_does_not_count():
    assert names(pyg.GCNConv(4, 4), pyg.SAGPooling(4), pyg.TopKPooling(4)) == ["0"]


def test_shared_module_counts_once():
    conv = Kipf()
    assert names(conv, Block(conv), conv, Kipf()) == ["0", "3"]


def test_model_itself_does_not_count(raises):
    with raises("no-convolution"):
        graph_convolutions(Kipf())


def test_convolutions_by_name():
    model = nn.ModuleDict(
        {"encoder": nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), "head": nn.Linear(2, 2)}
    )
    actual = graph_convolutions(model, ["encoder.1", "encoder.0"])
    assert list(actual) == ["encoder.1", "encoder.0"]
    assert actual["encoder.0"] is model["encoder"][0]


def test_non_module_raises(raises):
    with raises("wrong-type", value="x"):
        graph_convolutions("x")


def test_invalid_layers_raise(raises):
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with raises("no-convolution") as caught:
        graph_convolutions(model)
    assert "in Sequential, which has 0 (Linear), 1 (ReLU). Name" in str(caught.value)
    assert caught.value.options == {"layers": ["0", "1"]}
    with raises(
        "no-convolution",
        hint="Pass the model that contains it; for PairNorm between SGC's steps, pairnorm.nn.SGC.",
    ):
        graph_convolutions(Marked())
    with raises("unknown-choice", value="encoder.2", hint="Did you mean 'encoder.1'?"):
        graph_convolutions(nn.ModuleDict({"encoder": model}), ["encoder.2"])
    for layers in ("0", []):
        with raises("unknown-choice", value=layers):
            graph_convolutions(model, layers)
