import numpy as np
import pytest
import torch

from pairnorm.classify.candidates import PreparedGraph, Task
from pairnorm.classify.candidates.columns import direction_columns, feature_columns, label_columns
from pairnorm.classify.candidates.task import KnownLabels
from pairnorm.data import Graph

CPU = torch.device("cpu")


def on(graph: Graph) -> PreparedGraph:
    return PreparedGraph(graph, graph.features, CPU)


def known(graph: Graph) -> KnownLabels:
    return KnownLabels.of(Task(graph, on(graph)))


@pytest.fixture
def holed(small: Graph) -> Graph:
    """Four numbers a node, some of which are missing; the last two nodes lose all."""
    generator = torch.Generator().manual_seed(0)
    missing = torch.rand(300, 4, generator=generator) < 0.4
    missing[298:] = True
    return small.replace(features=torch.rand(300, 4, generator=generator), missing=missing)


def test_means_are_over_what_is_known_at_the_ends_of_walks(holed: Graph) -> None:
    found = torch.cat(feature_columns(on(holed), 2), 1)
    adjacency = holed.adjacency.to_dense().double()
    walk = adjacency / adjacency.sum(1, keepdim=True).clamp(min=1)
    known = (~holed.missing).double()
    expected = [torch.where(holed.missing, torch.nan, holed.features.double())]
    for power in (walk, walk @ walk):
        mass = power @ known
        expected.append(torch.where(mass > 0, (power @ (known * holed.features)) / mass, torch.nan))
    expected.append(adjacency.sum(1, keepdim=True).log1p())
    torch.testing.assert_close(found.double(), torch.cat(expected, 1), equal_nan=True, atol=1e-5, rtol=1e-4)


def test_a_node_never_sees_its_own_label(small: Graph) -> None:
    """Whatever its own label is, its columns are the same; those of its neighbors are not."""
    node = int(small.train.nonzero()[0])
    labels = small.labels.clone()
    labels[node] = 1 - labels[node]
    other = small.replace(labels=labels)
    found, changed = (label_columns(on(graph), known(graph), 2) for graph in (small, other))
    torch.testing.assert_close(found[node], changed[node], equal_nan=True, atol=0, rtol=0)
    neighbors = small.adjacency.to_dense()[node] > 0
    assert not torch.equal(found[neighbors].nan_to_num(), changed[neighbors].nan_to_num())


def test_near_shares_are_those_of_labeled_neighbors(small: Graph) -> None:
    found = label_columns(on(small), known(small), 2)
    given = torch.nn.functional.one_hot(small.labels, 2) * small.train[:, None]
    near = small.adjacency.to_dense() @ given.float()
    count = near.sum(1, keepdim=True)
    torch.testing.assert_close(found[:, 2:3], count.log1p())
    some = count.squeeze(1) > 0
    torch.testing.assert_close(found[some, :2], (near / count)[some])
    assert found[~some, :2].isnan().all()


def test_labels_are_found_by_name_in_a_graph_that_has_grown(small: Graph) -> None:
    names = np.append(small.node_names.astype(str), "new")
    edges = torch.cat([small.edge_index, torch.tensor([[300], [int(small.train.nonzero()[0])]])], 1)
    grown = Graph.from_edges(edges, torch.ones(301, 1), num_nodes=301, node_names=names)
    named = small.replace(node_names=names[:300])
    columns = label_columns(on(grown), known(named), 2)
    own = int(small.labels[small.train][0])
    assert columns[300, own] == 1
    assert columns[300, 2] == pytest.approx(np.log(2))


@pytest.fixture
def one_way(holed: Graph) -> Graph:
    """The holed graph, a third of whose edges go both ways."""
    source, target = holed.edge_index
    kept = (source < target) | (torch.arange(len(source)) % 3 == 0)
    parts = {name: getattr(holed, name) for name in ("features", "labels", "missing", "train")}
    return Graph.from_edges(holed.edge_index[:, kept], num_nodes=300, **parts)


def test_directions_are_the_means_and_labels_along_and_against_edges(one_way: Graph) -> None:
    found = direction_columns(on(one_way), known(one_way), 2)
    assert one_way.directed is not None
    listed = torch.zeros(300, 300, dtype=torch.bool)
    listed[tuple(one_way.edge_index[:, one_way.directed])] = True
    expected = torch.full((300, 2 * (4 + 2 + 2)), torch.nan)
    for offset, neighbors in ((0, listed), (8, listed.T)):
        for node in range(300):
            near = neighbors[node].nonzero().squeeze(1)
            values = torch.where(one_way.missing, torch.nan, one_way.features)[near]
            labels = one_way.labels[near][one_way.train[near]]
            row = [values.nanmean(0), torch.tensor([len(near)]).log1p()]
            row += [(labels == number).float().mean().reshape(1) for number in (0, 1)]
            expected[node, offset : offset + 8] = torch.cat([*row, torch.tensor([len(labels)]).log1p()])
    torch.testing.assert_close(found, expected, equal_nan=True, atol=1e-5, rtol=1e-4)


def test_where_all_edges_go_both_ways_directions_tell_nothing_new(holed: Graph) -> None:
    along, against = direction_columns(on(holed), known(holed), 2).chunk(2, 1)
    assert torch.equal(along.nan_to_num(), against.nan_to_num())
    around = feature_columns(on(holed), 1)[1]
    torch.testing.assert_close(along[:, :4], around, equal_nan=True, atol=0, rtol=0)
