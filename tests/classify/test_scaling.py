import numpy as np
import pytest
import torch

from pairnorm.classify import NodeClassifier, Scaling
from pairnorm.classify.scaling import PreparedGraph, check_features, word_columns
from pairnorm.data import Graph, csbm, load, row_normalize
from pairnorm.data.encoder import Column, Encoder
from pairnorm.nn import SparseMatrix, normalized_adjacency

EDGES = [[0, 1, 2], [1, 2, 3]]


def mixed() -> Graph:
    values = torch.tensor([[30.0, 0, 5], [50.0, 1, 5], [0.0, 0, 0], [0.0, 1, 5]])
    missing = torch.tensor([[0, 0, 0], [0, 0, 0], [1, 1, 1], [1, 0, 0]], dtype=torch.bool)
    return Graph.from_edges(EDGES, values, [0, 0, 1, 1], missing=missing)


def test_counts_are_scaled_by_row_and_mixed_columns_by_column():
    assert Scaling.of(load("cora")).kind == "rows"
    assert Scaling.of(csbm(200)).kind == "rows"
    assert Scaling.of(mixed()).kind == "columns"


def test_negative_columns_are_not_counts():
    words = csbm(200)
    dense = words.features.to_dense()
    assert Scaling.of(words.replace(features=dense)).kind == "rows"
    assert Scaling.of(words.replace(features=-dense)).kind == "columns"


@pytest.mark.parametrize("sparse", [False, True])
def test_counts_and_numbers_in_one_table_are_scaled_separately(sparse):
    words = csbm(200)
    dense = words.features.to_dense()
    dense[:, :9] = 0  # words without occurrences
    aged = torch.cat([dense, torch.arange(20.0, 220.0)[:, None]], 1)
    graph = words.replace(features=aged.to_sparse_csr() if sparse else aged)
    scaling = Scaling.of(graph)
    assert scaling.words is not None
    assert scaling.words.tolist() == [True] * dense.shape[1] + [False]
    result = scaling(graph)
    torch.testing.assert_close(result[:, -1].std(correction=0), torch.tensor(1.0))
    shares = row_normalize(dense)
    torch.testing.assert_close(result[:, :-1] / result[:, :-1].sum(1, keepdim=True), shares)
    torch.testing.assert_close(result[:, :-1].var(0, correction=0).mean(), torch.tensor(1.0))
    assert "columns of counts are divided" in scaling.sentence


def test_sparse_numbers_and_categories_are_not_counts():
    """One categorical column of 30 texts, income and age, each 60% empty: no column is a count."""
    generator = torch.Generator().manual_seed(0)
    job = torch.nn.functional.one_hot(torch.randint(30, (500,), generator=generator), 30).float()
    numbers = 30 + 1000 * torch.rand(500, 2, generator=generator)
    missing = torch.zeros(500, 32, dtype=torch.bool)
    missing[:, 30:] = torch.rand(500, 2, generator=generator) < 0.6
    jobs = tuple(f"job {number}" for number in range(30))
    columns = (Column("job", "category", jobs), Column("income", "number"), Column("age", "number"))
    features = torch.cat([job, numbers * ~missing[:, 30:]], 1)
    edges = torch.randint(500, (2, 500), generator=generator)
    graph = Graph.from_edges(edges, features, missing=missing, encoder=Encoder(columns))
    assert not word_columns(graph).any()
    assert word_columns(graph.replace(encoder=None)).tolist() == [True] * 30 + [False] * 2
    assert Scaling.of(graph).kind == "columns"


def test_fitted_to_uses_statistics_of_another_graph():
    scaling = Scaling.of(mixed(), "columns")
    other = mixed().replace(features=2 * mixed().features)
    np.testing.assert_allclose(scaling.fitted_to(other)(other), scaling(mixed()), atol=1e-6)
    assert Scaling.of(mixed(), "none").fitted_to(other).kind == "none"


@pytest.mark.parametrize("sparse", [False, True])
def test_column_scaling_ignores_missing_values(sparse):
    graph = mixed()
    expected = np.array([[-1, -np.sqrt(0.5), 0], [1, np.sqrt(2), 0], [0, 0, 0], [0, np.sqrt(2), 0]])
    expected[1, 1] = expected[3, 1] = (1 - 2 / 3) / np.sqrt(2 / 9)
    expected[0, 1] = (0 - 2 / 3) / np.sqrt(2 / 9)
    if sparse:
        graph = graph.replace(features=graph.features.to_sparse_csr())
    np.testing.assert_allclose(Scaling.of(graph, "columns")(graph), expected, atol=1e-6)


def test_fitted_statistics_scale_another_graph():
    scaling = Scaling.of(mixed(), "columns")
    other = Graph.from_edges(EDGES, torch.full((4, 3), 60.0))
    np.testing.assert_allclose(scaling(other)[:, 0], [2.0] * 4, atol=1e-6)


def test_missing_vectors_do_not_affect_statistics():
    features = torch.tensor([[1.0], [3.0], [0.0], [0.0]])
    graph = Graph.from_edges(EDGES, features, missing=torch.tensor([False, False, True, True]))
    scaling = Scaling.of(graph, "columns")
    assert scaling.mean is not None
    assert scaling.mean.tolist() == [2.0]
    assert scaling(graph).flatten().tolist() == [-1.0, 1.0, 0.0, 0.0]


def test_nearly_constant_column_stays_near_zero():
    features = 1e6 + 0.0625 * (torch.arange(50.0) % 2)[:, None]  # a bit of float32
    graph = Graph.from_edges([[0], [1]], features, num_nodes=50)
    assert Scaling.of(graph, "columns")(graph).abs().max() < 0.1


def test_none_keeps_features_and_unknown_scaling_raises(raises):
    graph = mixed()
    assert torch.equal(Scaling.of(graph, "none")(graph), graph.features)
    with raises("unknown-choice", value="column", hint="Did you mean 'columns'?"):
        Scaling.of(graph, "column")


def test_graph_without_features_raises(raises):
    with raises("no-features"):
        check_features(Graph.from_edges(EDGES))
    with raises("no-features") as caught:
        check_features(Graph.from_edges(EDGES, torch.zeros(4, 2)))
    assert "structure then stands in" in caught.value.hint


def test_adjacency_is_normalized_once(small, monkeypatch):
    normalized = list[str]()

    def count(adjacency: torch.Tensor, normalization: str) -> SparseMatrix:
        normalized.append(normalization)
        return normalized_adjacency(adjacency, normalization)

    monkeypatch.setattr("pairnorm.classify.scaling.normalized_adjacency", count)
    classifier = NodeClassifier("SGC", depth=2, norm="PN", scale=3.0).fit(small)
    classifier.predict_proba(small)
    classifier.explain(small)
    assert sorted(normalized) == sorted(set(normalized))
    renamed = small.replace(node_names=[f"node {number}" for number in range(small.num_nodes)])
    other = PreparedGraph(renamed, renamed.features, torch.device("cpu"), classifier.task_.prepared)
    assert (other.node_fingerprints != classifier.task_.prepared.node_fingerprints).all()
