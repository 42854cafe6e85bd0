import numpy as np
import pytest
import torch

from pairnorm.classify import Scaling
from pairnorm.classify.scaling import check_features
from pairnorm.data import Graph, csbm, load

EDGES = [[0, 1, 2], [1, 2, 3]]


def mixed() -> Graph:
    values = torch.tensor([[30.0, 0, 5], [50.0, 1, 5], [0.0, 0, 0], [0.0, 1, 5]])
    missing = torch.tensor([[0, 0, 0], [0, 0, 0], [1, 1, 1], [1, 0, 0]], dtype=torch.bool)
    return Graph.from_edges(EDGES, values, [0, 0, 1, 1], missing=missing)


def test_words_are_scaled_by_row_and_mixed_columns_by_column() -> None:
    assert Scaling.of(load("cora")).kind == "rows"
    assert Scaling.of(csbm(200)).kind == "rows"
    assert Scaling.of(mixed()).kind == "columns"


def test_what_looks_like_words_but_is_negative_or_everywhere_is_scaled_by_column() -> None:
    words = csbm(200)
    dense = words.features.to_dense()
    assert Scaling.of(words.replace(features=dense)).kind == "rows"
    assert Scaling.of(words.replace(features=-dense)).kind == "columns"
    aged = torch.cat([dense, torch.full((200, 1), 40.0)], 1)
    assert Scaling.of(words.replace(features=aged)).kind == "columns"
    assert Scaling.of(words.replace(features=aged.to_sparse_csr())).kind == "columns"


@pytest.mark.parametrize("sparse", [False, True])
def test_columns_use_what_is_there_and_leave_the_missing_at_zero(sparse: bool) -> None:
    graph = mixed()
    expected = np.array([[-1, -np.sqrt(0.5), 0], [1, np.sqrt(2), 0], [0, 0, 0], [0, np.sqrt(2), 0]])
    expected[1, 1] = expected[3, 1] = (1 - 2 / 3) / np.sqrt(2 / 9)
    expected[0, 1] = (0 - 2 / 3) / np.sqrt(2 / 9)
    if sparse:
        graph = graph.replace(features=graph.features.to_sparse_csr())
    np.testing.assert_allclose(Scaling.of(graph, "columns")(graph), expected, atol=1e-6)


def test_another_graph_is_scaled_by_what_was_learned() -> None:
    scaling = Scaling.of(mixed(), "columns")
    other = Graph.from_edges(EDGES, torch.full((4, 3), 60.0))
    np.testing.assert_allclose(scaling(other)[:, 0], [2.0] * 4, atol=1e-6)


def test_a_vector_that_is_missing_as_a_whole_counts_for_nothing() -> None:
    features = torch.tensor([[1.0], [3.0], [0.0], [0.0]])
    graph = Graph.from_edges(EDGES, features, missing=torch.tensor([False, False, True, True]))
    scaling = Scaling.of(graph, "columns")
    assert scaling.mean is not None
    assert scaling.mean.tolist() == [2.0]
    assert scaling(graph).flatten().tolist() == [-1.0, 1.0, 0.0, 0.0]


def test_none_leaves_features_alone_and_other_words_are_refused(raises) -> None:
    graph = mixed()
    assert torch.equal(Scaling.of(graph, "none")(graph), graph.features)
    with raises("unknown-choice", value="column", hint="Did you mean 'columns'?"):
        Scaling.of(graph, "column")


def test_a_graph_without_features_is_refused(raises) -> None:
    with raises("no-features"):
        check_features(Graph.from_edges(EDGES))
    with raises("no-features") as caught:
        check_features(Graph.from_edges(EDGES, torch.zeros(4, 2)))
    assert "structure then stands in" in caught.value.hint
