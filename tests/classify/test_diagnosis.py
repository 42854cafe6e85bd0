import pytest
import torch

from pairnorm.classify import Scaling, smoothing, suggest_depth
from pairnorm.classify.explanation import DEPTHS, MIN_SOURCES, smoothing_table
from pairnorm.data import Graph
from pairnorm.measure import col_diff, effective_rank, row_diff
from pairnorm.nn import normalized_adjacency, pair_norm


@pytest.fixture
def half_missing(small: Graph) -> Graph:
    missing = torch.arange(small.num_nodes) % 2 == 0
    return small.replace(features=small.features.to_dense() * ~missing[:, None], missing=missing)


@pytest.mark.parametrize("nodes_kept", [300, 40], ids=["full rank", "few rows"])
def test_smoothing_equals_measures_of_dense_iterates(small, nodes_kept):
    columns = torch.arange(300)
    features = small.features.to_dense()[:, columns] * (torch.arange(300) < nodes_kept)[:, None]
    graph = small.replace(features=features, feature_names=None)
    result = {(row.norm, row.depth): row for row in smoothing(graph, features)}
    matrix = normalized_adjacency(graph.adjacency)
    plain, normed = features.double(), pair_norm(features.double())
    dense = matrix.to_dense().double()
    for depth in range(max(DEPTHS) + 1):
        if depth:
            plain, normed = dense @ plain, pair_norm(dense @ normed)
        if depth in DEPTHS:
            for norm, state in (("none", plain), ("PN", normed)):
                row = result[norm, depth]
                assert row.row_diff == pytest.approx(float(row_diff(state)), rel=2e-3)
                assert row.col_diff == pytest.approx(float(col_diff(state)), rel=2e-3)
                assert row.effective_rank == pytest.approx(float(effective_rank(state)), rel=2e-3)


def test_pair_norm_keeps_row_diff_larger(small):
    rows = smoothing(small, Scaling.of(small)(small))
    left = {norm: [row.row_diff for row in rows if row.norm == norm] for norm in ("none", "PN")}
    shares = {norm: [value / values[0] for value in values[1:]] for norm, values in left.items()}
    assert shares["none"][-1] < 0.2
    assert all(normed > plain for normed, plain in zip(shares["PN"], shares["none"], strict=True))
    lines = smoothing_table(rows)
    assert lines[0][:5] == ["0", "100%", "100%", "100%", "100%"]
    assert [int(line[0]) for line in lines] == [*DEPTHS]
    assert {row.depth for row in smoothing(small, Scaling.of(small)(small), lambda: False)} == {0, 1, 2}


def exact_sources(graph: Graph, depth: int) -> float:
    """The median of (Σw)² / Σw² over the nodes without features, from the dense power of the matrix."""
    power = torch.linalg.matrix_power(normalized_adjacency(graph.adjacency).to_dense().double(), depth)
    weights = power[:, ~graph.missing_vectors]
    total, square = weights.sum(1).square(), weights.square().sum(1)
    sources = (total / square.clamp(min=1e-300))[graph.missing_vectors & (total > 0)]
    return float(sources.median())


def test_suggested_depth_is_first_with_enough_sources(half_missing):
    result = suggest_depth(half_missing)
    assert result.sources >= MIN_SOURCES
    assert result.sources == pytest.approx(exact_sources(half_missing, result.depth), rel=0.3)
    assert exact_sources(half_missing, result.depth - 1) < 1.3 * MIN_SOURCES
    assert (result.missing, result.unreachable) == (150, 0)
    assert f"At depth {result.depth} half of the nodes without features" in result.reason


def test_fewer_known_features_increase_suggested_depth(small):
    depths = []
    for kept in (300, 60, 10):
        missing = torch.arange(small.num_nodes) >= kept
        depths.append(suggest_depth(small.replace(missing=missing)).depth)
    assert depths == sorted(depths)
    assert depths[0] < depths[-1]


def test_unreachable_nodes_are_counted_and_excluded():
    missing = torch.tensor([False, True, True, True, True])
    graph = Graph.from_edges([[0, 3], [1, 4]], torch.ones(5, 1), num_nodes=5, missing=missing)
    result = suggest_depth(graph, deepest=7)
    assert (result.missing, result.unreachable) == (4, 3)
    assert (result.depth, result.sources, result.deepest) == (1, 1.0, 7)
    assert result.reason == (
        "At depth 1 half of the nodes without features average over at least 1 node with features, fewer "
        "than the recommended 20; a larger depth adds hardly any."
    )


def test_small_components_need_depth_one():
    """Bug: the largest depth was suggested, and a node counted among its others."""
    pairs = [(4 * clique + i, 4 * clique + j) for clique in range(10) for i in range(4) for j in range(i)]
    result = suggest_depth(Graph.from_edges(torch.tensor(pairs).t(), torch.randn(40, 3)))
    assert (result.depth, round(result.sources)) == (1, 4)
    assert "average over at least 4 nodes including themselves, fewer" in result.reason


def test_path_graph_gets_largest_measured_depth():
    line = torch.stack([torch.arange(59), torch.arange(1, 60)])
    result = suggest_depth(Graph.from_edges(line, torch.ones(60, 1)), deepest=5)
    assert (result.depth, result.deepest) == (5, 5)
    assert "a larger depth was not measured" in result.reason


def test_graph_without_known_features_gets_depth_one():
    graph = Graph.from_edges([[0], [1]], torch.zeros(2, 1), missing=torch.ones(2, dtype=torch.bool))
    assert suggest_depth(graph).depth == 1
