import copy
from types import SimpleNamespace

import pytest
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.nn import SAGEConv
from torch_geometric.utils import k_hop_subgraph

from pairnorm import PairNorm, add_pair_norm
from pairnorm.nn import calibrate
from pairnorm.nn.pair_norm import MODES

NODES, DEPTH = 120, 3


class Net(torch.nn.Module):
    def __init__(self, mode, track=True, shared=False):
        super().__init__()
        torch.manual_seed(1)
        self.convolutions = torch.nn.ModuleList(SAGEConv(6, 6) for _ in range(DEPTH))
        norms = [PairNorm(2.0, mode, track_running_stats=track) for _ in range(1 if shared else DEPTH)]
        self.norms = torch.nn.ModuleList(norms * DEPTH if shared else norms)
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, x, edge_index):
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = self.dropout(norm(convolution(x, edge_index).relu()))
        return x


@pytest.fixture(scope="module")
def graph():
    torch.manual_seed(0)
    # Degrees differ widely, and a common offset hides what nodes differ by.
    edge_index = torch.stack([torch.rand(500).square().mul(NODES).long(), torch.randint(NODES, (500,))])
    return torch.randn(NODES, 6) + 5, edge_index


class Batches:
    """Whole neighborhoods of some nodes after others, as a loader gives them."""

    def __init__(self, graph, size, hops=DEPTH, order=None):
        (self.x, self.edge_index), self.size, self.hops = graph, size, hops
        self.order = torch.randperm(NODES) if order is None else order

    def __iter__(self):
        for seeds in self.order.split(self.size):
            nodes, edges, place, _ = k_hop_subgraph(
                seeds, self.hops, self.edge_index, relabel_nodes=True, num_nodes=NODES
            )
            # Seeds come first, as in PyG.
            order = torch.cat(
                [place, torch.ones(len(nodes), dtype=torch.bool).index_fill(0, place, False).nonzero()[:, 0]]
            )
            back = torch.empty_like(order).index_put((order,), torch.arange(len(order)))
            yield SimpleNamespace(
                x=self.x[nodes[order]], edge_index=back[edges], batch_size=len(seeds), n_id=nodes[order]
            )


def inferred(model, batches):
    result = torch.empty(NODES, 6)
    with torch.no_grad():
        for batch in batches:
            result[batch.n_id[: batch.batch_size]] = model(batch.x, batch.edge_index)[: batch.batch_size]
    return result


def test_all_nodes_count_without_seed_nodes(graph):
    actual, expected = Net("PN"), Net("PN")
    calibrate(actual, [Data(*graph)])
    calibrate(expected, Batches(graph, NODES))
    torch.testing.assert_close(actual.state_dict(), expected.state_dict())


def test_all_nodes_of_a_batch_of_graphs_count(graph):
    actual = Net("PN")
    calibrate(actual, [Batch.from_data_list([Data(*graph), Data(*graph)])])
    assert int(actual.norms[0].statistics.count) == 2 * NODES


@pytest.mark.parametrize("mode", MODES)
def test_calibrated_inference_in_batches_equals_the_whole_graph(graph, mode):
    whole = Net(mode, track=False).eval()
    with torch.no_grad():
        expected = whole(*graph)
    for size in (1, 7, 50, NODES):
        model = Net(mode)
        calibrate(model, Batches(graph, size))
        for own in (1, 13, NODES):
            actual = inferred(model.eval(), Batches(graph, own))
            torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_calibration_keeps_training_mode(graph):
    model = Net("PN")
    model.norms[1].eval()
    calibrate(model, Batches(graph, 40))
    assert [module.training for module in (model, *model.norms)] == [True, True, False, True]
    assert [int(norm.statistics.count) for norm in model.norms] == [NODES] * DEPTH
    assert not model.norms[0]._forward_pre_hooks
    model(*graph).sum().backward()
    assert [int(norm.statistics.count) for norm in model.norms] == [2 * NODES, NODES, 2 * NODES]


def test_repeated_nodes_count_once(graph):
    order = torch.cat([torch.arange(NODES), torch.arange(30)])
    once, twice = Net("PN"), Net("PN")
    calibrate(once, Batches(graph, 25, order=torch.arange(NODES)))
    calibrate(twice, Batches(graph, 25, order=order))
    for name, buffer in once.named_buffers():
        torch.testing.assert_close(twice.state_dict()[name], buffer)


def test_custom_forward_and_seeds(graph):
    x, edge_index = graph
    batch = {"inputs": x, "edges": edge_index, "seeds": torch.arange(NODES).flip(0)}
    model = Net("PN-SI")
    calibrate(
        model,
        [batch],
        lambda model, given: model(given["inputs"], given["edges"]),
        lambda given: given["seeds"],
    )
    torch.testing.assert_close(model.eval()(x, edge_index), Net("PN-SI", track=False).eval()(x, edge_index))


def test_truncated_neighborhoods_give_an_estimate(graph):
    exact, truncated = Net("PN"), Net("PN")
    calibrate(exact, Batches(graph, 40))
    calibrate(truncated, Batches(graph, 40, hops=1))
    means = [
        (norm.statistics.mean, other.statistics.mean)
        for norm, other in zip(exact.norms, truncated.norms, strict=True)
    ]
    torch.testing.assert_close(*means[0])
    assert not torch.allclose(*means[2], rtol=1e-5)


def test_uncalibratable_models_raise(graph, raises):
    with raises("nothing-to-calibrate"):
        calibrate(Net("PN", track=False), Batches(graph, 40))
    with raises("shared-layer"):
        calibrate(Net("PN", shared=True), Batches(graph, 40))
    with raises("empty"):
        calibrate(Net("PN"), iter(list(Batches(graph, 40))))


def test_state_dict_has_the_statistics(graph):
    model = Net("PN")
    calibrate(model, Batches(graph, 40))
    other = Net("PN")
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.eval()(*graph), model.eval()(*graph))
    assert torch.equal(copy.deepcopy(model)(*graph), model(*graph))


def test_norm_called_with_keyword_is_calibrated(graph):
    class ByKeyword(Net):
        def forward(self, x, edge_index):
            for convolution, norm in zip(self.convolutions, self.norms, strict=True):
                x = norm(x=convolution(x, edge_index).relu())
            return x

    by_keyword, by_position = ByKeyword("PN"), Net("PN")
    for model in (by_keyword, by_position):
        calibrate(model, Batches(graph, 40))
    torch.testing.assert_close(by_keyword.state_dict(), by_position.state_dict())


def test_uncalled_norm_raises(graph, raises):
    model = Net("PN")
    model.unused = PairNorm(track_running_stats=True)
    with raises("never-called", value="unused"):
        calibrate(model, Batches(graph, 40))


class Unnormalized(torch.nn.Module):
    """The convolutions of ``Net`` and one activation module that they share."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.convolutions = torch.nn.ModuleList(SAGEConv(6, 6) for _ in range(DEPTH))
        self.act = torch.nn.ReLU()

    def forward(self, x, edge_index):
        for convolution in self.convolutions[:-1]:
            x = self.act(convolution(x, edge_index))
        return self.convolutions[-1](x, edge_index)


@pytest.mark.parametrize("ran_before", [False, True])
def test_patched_model_is_calibrated(graph, ran_before):
    whole, model = Unnormalized().eval(), Unnormalized()
    add_pair_norm(whole, 2.0, "PN")
    handle = add_pair_norm(model, 2.0, "PN", track_running_stats=True)
    if ran_before:
        model(*graph)
    calibrate(model, Batches(graph, 40))
    assert handle.places["convolutions.0"].startswith("before convolutions.1")  # statistics of each layer
    assert model.convolutions[1].pair_norm_before.training
    with torch.no_grad():
        actual = inferred(model.eval(), Batches(graph, 13))
        torch.testing.assert_close(actual, whole(*graph), rtol=1e-5, atol=1e-5)
    twin = Unnormalized()
    add_pair_norm(twin, 2.0, "PN", track_running_stats=True)
    twin.load_state_dict(model.state_dict())
    assert torch.equal(twin.eval()(*graph), model(*graph))
