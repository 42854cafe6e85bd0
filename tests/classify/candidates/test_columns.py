import numpy as np
import pytest
import torch

from pairnorm.classify.candidates import PreparedGraph, Task
from pairnorm.classify.candidates.columns import (
    NodeColumns,
    direction_columns,
    feature_columns,
    label_columns,
)
from pairnorm.classify.candidates.task import KnownLabels
from pairnorm.data import Graph

CPU = torch.device("cpu")


def on(graph: Graph) -> PreparedGraph:
    return PreparedGraph(graph, graph.features, CPU)


def known(graph: Graph) -> KnownLabels:
    return KnownLabels.of(Task(graph, on(graph)))


@pytest.fixture
def incomplete(small: Graph) -> Graph:
    """Four numeric features with missing values; the last two nodes have none."""
    generator = torch.Generator().manual_seed(0)
    missing = torch.rand(300, 4, generator=generator) < 0.4
    missing[298:] = True
    return small.replace(features=torch.rand(300, 4, generator=generator), missing=missing)


def test_feature_columns_are_means_of_known_values(incomplete):
    result = torch.cat(feature_columns(on(incomplete), 2), 1)
    adjacency = incomplete.adjacency.to_dense().double()
    matrix = adjacency / adjacency.sum(1, keepdim=True).clamp(min=1)
    known = (~incomplete.missing).double()
    expected = [torch.where(incomplete.missing, torch.nan, incomplete.features.double())]
    for power in (matrix, matrix @ matrix):
        mass = power @ known
        expected.append(torch.where(mass > 0, (power @ (known * incomplete.features)) / mass, torch.nan))
    expected.append(adjacency.sum(1, keepdim=True).log1p())
    torch.testing.assert_close(result.double(), torch.cat(expected, 1), equal_nan=True, atol=1e-5, rtol=1e-4)


def test_label_columns_exclude_own_label(small):
    """Columns of a node do not depend on its own label; those of its neighbors do."""
    node = int(small.train.nonzero()[0])
    labels = small.labels.clone()
    labels[node] = 1 - labels[node]
    other = small.replace(labels=labels)
    result, changed = (label_columns(on(graph), known(graph), 2) for graph in (small, other))
    torch.testing.assert_close(result[node], changed[node], equal_nan=True, atol=0, rtol=0)
    neighbors = small.adjacency.to_dense()[node] > 0
    assert not torch.equal(result[neighbors].nan_to_num(), changed[neighbors].nan_to_num())


def test_label_shares_are_over_labeled_neighbors(small):
    result = label_columns(on(small), known(small), 2)
    given = torch.nn.functional.one_hot(small.labels, 2) * small.train[:, None]
    near = small.adjacency.to_dense() @ given.float()
    count = near.sum(1, keepdim=True)
    torch.testing.assert_close(result[:, 2:3], count.log1p())
    has_neighbors = count.squeeze(1) > 0
    torch.testing.assert_close(result[has_neighbors, :2], (near / count)[has_neighbors])
    assert result[~has_neighbors, :2].isnan().all()


def test_labels_are_matched_by_node_name(small):
    names = np.append(small.node_names.astype(str), "new")
    edges = torch.cat([small.edge_index, torch.tensor([[300], [int(small.train.nonzero()[0])]])], 1)
    grown = Graph.from_edges(edges, torch.ones(301, 1), num_nodes=301, node_names=names)
    named = small.replace(node_names=names[:300])
    columns = label_columns(on(grown), known(named), 2)
    own = int(small.labels[small.train][0])
    assert columns[300, own] == 1
    assert columns[300, 2] == pytest.approx(np.log(2))


@pytest.fixture
def one_way(incomplete: Graph) -> Graph:
    """The incomplete graph, a third of whose edges go both ways."""
    source, target = incomplete.edge_index
    kept = (source < target) | (torch.arange(len(source)) % 3 == 0)
    parts = {name: getattr(incomplete, name) for name in ("features", "labels", "missing", "train")}
    return Graph.from_edges(incomplete.edge_index[:, kept], num_nodes=300, **parts)


def test_direction_columns_equal_dense_reference(one_way):
    result = direction_columns(on(one_way), known(one_way), 2)
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
    torch.testing.assert_close(result, expected, equal_nan=True, atol=1e-5, rtol=1e-4)


def test_reciprocal_edges_give_equal_direction_columns(incomplete):
    along, against = direction_columns(on(incomplete), known(incomplete), 2).chunk(2, 1)
    assert torch.equal(along.nan_to_num(), against.nan_to_num())
    around = feature_columns(on(incomplete), 1)[1]
    torch.testing.assert_close(along[:, :4], around, equal_nan=True, atol=0, rtol=0)


def test_extreme_and_missing_columns_use_known_neighbors(incomplete):
    prepared, nodes = on(incomplete), range(0, 300, 7)
    columns = NodeColumns.of(Task(incomplete, prepared), 1, extras=("extremes", "missing"))
    table = columns.table(prepared).blocks
    known = torch.where(incomplete.missing, torch.nan, incomplete.features)
    for node in nodes:
        near = known[incomplete.adjacency.to_dense()[node] > 0].numpy()
        for number in range(4):
            values = near[~np.isnan(near[:, number]), number]
            least, largest = table["extremes"][node, [number, 4 + number]].tolist()
            if len(values):
                assert (least, largest) == (pytest.approx(values.min()), pytest.approx(values.max()))
            else:
                assert np.isnan(least)
                assert np.isnan(largest)
            if len(near):
                assert float(table["missing"][node, 4 + number]) == pytest.approx(len(values) / len(near))
    assert torch.equal(table["missing"][:, :4], incomplete.missing.float())


def test_structure_columns_equal_networkx(small):
    networkx = pytest.importorskip("networkx")
    result = NodeColumns.of(Task(small, on(small)), 1, extras=("structure",)).table(on(small))
    rank, core, *returns = result.blocks["structure"].double().T
    graph = networkx.from_edgelist(small.edge_index.T.tolist())
    graph.add_nodes_from(range(300))
    expected = networkx.core_number(graph)
    assert core.tolist() == [expected[node] for node in range(300)]
    if small.adjacency.to_dense().sum(1).min() > 0:
        ranks = networkx.pagerank(graph, tol=1e-12)
        torch.testing.assert_close(
            rank, torch.tensor([300 * ranks[node] for node in range(300)]).log().double()
        )
    matrix = small.adjacency.to_dense().double()
    matrix /= matrix.sum(1, keepdim=True).clamp(min=1)
    for steps, column in zip((2, 3, 4), returns, strict=True):
        torch.testing.assert_close(
            column, torch.linalg.matrix_power(matrix, steps).diag(), atol=1e-6, rtol=1e-5
        )


def test_eigenvectors_are_defined_for_fitted_nodes(small):
    columns = NodeColumns.of(Task(small, on(small)), 1, extras=("eigenvectors",))
    vectors = columns.table(on(small)).blocks["eigenvectors"].double()
    degree = small.adjacency.to_dense().double().sum(1)
    matrix = small.adjacency.to_dense().double() / (degree[:, None] * degree).sqrt().clamp(min=1e-9)
    values = (vectors * (matrix @ vectors)).sum(0) / vectors.square().sum(0)
    expected = torch.linalg.eigvalsh(matrix).flip(0)[:16]
    torch.testing.assert_close(values, expected, atol=2e-2, rtol=0)
    names = np.append(small.node_names.astype(str), "new")
    named = small.replace(node_names=names[:300])
    columns = NodeColumns.of(Task(named, on(named)), 1, extras=("eigenvectors",))
    grown = Graph.from_edges(small.edge_index, torch.ones(301, 500), num_nodes=301, node_names=names)
    after = columns.table(on(grown)).blocks["eigenvectors"]
    assert after[300].isnan().all()
    assert torch.equal(after[:300], columns.table(on(named)).blocks["eigenvectors"])


def test_own_label_does_not_change_sgc_columns(small):
    node = int(small.train.nonzero()[0])
    labels = small.labels.clone()
    labels[node] = 1 - labels[node]
    tables = []
    for graph in (small, small.replace(labels=labels)):
        columns = NodeColumns.of(Task(graph, on(graph)), 1, extras=("SGC",))
        tables.append(columns.table(on(graph)).blocks["SGC"])
    assert not tables[0].isnan().any()
    # The setting of the SGC may change with the label, by a little.
    torch.testing.assert_close(tables[0][node], tables[1][node], atol=0.1, rtol=0)
    correct = (tables[0].argmax(1) == small.labels)[small.test].double().mean()
    assert correct > 0.8
