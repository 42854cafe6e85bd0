"""Columns of edges that become features of nodes."""

from pathlib import Path

import numpy as np
import pandas
import pytest
import torch

from pairnorm.base.errors import PairNormError
from pairnorm.classify import NodeClassifier
from pairnorm.data import Graph, csbm

pytestmark = [
    pytest.mark.filterwarnings("ignore::pairnorm.data.GraphWarning"),
    pytest.mark.filterwarnings("ignore::pairnorm.classify.ClassifierWarning"),
]
NODES = {"id": [*"abcd"], "age": [1.0, 2.0, 3.0, None]}
EDGES = {
    "source": ["a", "a", "b", "c"],
    "target": ["b", "c", "b", "a"],
    "kind": ["wire", "cash", "cash", None],
    "amount": [10.0, 4.0, None, 1.0],
    "day": ["2020-01-01", "2020-01-03", "2020-01-05", "2020-01-07"],
}
EXPECTED = {  # of a, b, c and d; the edge from b to itself counts once
    "edges: count": [3, 2, 2, 0],
    "edges: sum of amount": [15, 10, 5, 0],
    "edges: mean of amount": [5, 10, 2.5, np.nan],
    "edges: mean of day": [18264 + 2 / 3, 18264, 18266, np.nan],
    "edges: count of kind=cash": [1, 1, 1, 0],
    "edges: sum of amount where kind=cash": [4, 0, 4, 0],
    "edges: count of kind=wire": [1, 1, 0, 0],
    "edges: sum of amount where kind=wire": [10, 10, 0, 0],
}


def check_column_names(graph: Graph) -> dict[str, list[float]]:
    """Return the features by name, NaN where missing."""
    values, missing = graph.features.to_dense().clone(), graph.missing
    values[missing if missing.dim() == 2 else missing[:, None].expand_as(values)] = torch.nan
    return dict(zip(graph.feature_names or (), values.T.tolist(), strict=True))


@pytest.mark.parametrize("chosen", ["auto", ["kind", "amount", "day"]])
def test_columns_of_edges_are_counted_summed_and_averaged_at_both_nodes(chosen: str | list[str]) -> None:
    graph = Graph.from_frames(NODES, EDGES, edge_columns=chosen)
    result = check_column_names(graph)
    assert list(result) == ["age", *EXPECTED]
    for name, values in EXPECTED.items():
        np.testing.assert_allclose(result[name], values, rtol=1e-6, err_msg=name)
    np.testing.assert_array_equal(result["age"], [1, 2, 3, np.nan])


def test_sparse_features_stay_sparse() -> None:
    words = {"id": [*"abcd"], "job": ["cook", "nurse", "clerk", "smith"]} | {
        f"x{number}": [0.0, 0, 0, float(number == 7)] for number in range(60)
    }
    graph = Graph.from_frames(words, EDGES, edge_columns=["amount"])
    assert graph.features.layout == torch.sparse_csr
    assert check_column_names(graph)["edges: sum of amount"] == [15, 10, 5, 0]


def test_without_the_option_columns_of_edges_are_noted_and_not_used() -> None:
    graph = Graph.from_frames(NODES, EDGES)
    assert graph.feature_names == ("age",)
    assert any("--edge-columns" in note for note in graph.notes)


def test_another_graph_gets_the_same_features(tmp_path: Path) -> None:
    encoder = Graph.from_frames(NODES, EDGES, edge_columns="auto").encoder
    later = EDGES | {"kind": ["cash", "cheque", "wire", "wire"], "amount": [1.0, 2.0, 3.0, 4.0]}
    pandas.DataFrame(NODES).to_csv(tmp_path / "n.csv", index=False)
    pandas.DataFrame(later).to_csv(tmp_path / "e.csv", index=False)
    result = check_column_names(Graph.from_files(tmp_path / "n.csv", tmp_path / "e.csv", encoder=encoder))
    assert list(result) == ["age", *EXPECTED]
    assert result["edges: count of kind=cash"] == [1, 1, 0, 0]
    assert result["edges: sum of amount"] == [7, 4, 6, 0]


def test_edges_that_are_dropped_and_several_tables_are_aggregated_together(tmp_path: Path) -> None:
    pandas.DataFrame(NODES).to_csv(tmp_path / "n.csv", index=False)
    frame = pandas.DataFrame(EDGES)
    frame[:2].to_csv(tmp_path / "e1.csv", index=False)
    pandas.concat([frame[2:], frame[:1].assign(target="nobody")]).to_csv(tmp_path / "e2.csv", index=False)
    tables = [tmp_path / "e1.csv", tmp_path / "e2.csv"]
    graph = Graph.from_files(tmp_path / "n.csv", tables, edge_columns="auto", unknown_edges="drop")
    np.testing.assert_allclose(check_column_names(graph)["edges: mean of amount"], [5, 10, 2.5, np.nan])


def test_unknown_edge_columns_and_too_many_texts() -> None:
    with pytest.raises(PairNormError, match=r"there is no column 'amuont'.*Did you mean 'amount'"):
        Graph.from_frames(NODES, EDGES, edge_columns=["amuont"])
    many = {"source": ["a"] * 120, "target": ["b"] * 120, "memo": [f"text {n // 2}" for n in range(120)]}
    graph = Graph.from_frames(NODES, many, edge_columns=["memo"])
    assert graph.feature_names == ("age", "edges: count")
    assert any("'memo'" in note and "60 different texts" in note for note in graph.notes)


def test_a_fitted_model_reads_edge_columns_again(tmp_path: Path) -> None:
    base = csbm(120, classes=2, features=4, homophily=0.5, seed=1)
    labels, (source, target) = base.labels.tolist(), base.edge_index.tolist()
    nodes = {"id": range(120), "class": ["low" if one else "high" for one in labels]}
    nodes["class"] = [None if row % 4 == 0 else one for row, one in enumerate(nodes["class"])]
    edges = {"source": source, "target": target, "amount": [10.0 * labels[node] + 1 for node in source]}
    graph = Graph.from_frames(nodes, edges, label="class", edge_columns="auto")
    model = NodeClassifier(model="boosted trees", time_limit="10s").fit(graph)
    model.save(tmp_path / "run")
    again = NodeClassifier.load(tmp_path / "run")
    other = Graph.from_frames({"id": range(120)}, edges, encoder=again.encoder_)
    np.testing.assert_allclose(again.predict_proba(other), model.predict_proba(graph), atol=1e-6)
