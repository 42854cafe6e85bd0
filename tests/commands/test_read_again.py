from pathlib import Path

import networkx
import numpy as np
import pytest

from pairnorm.commands.read_again import read_again
from pairnorm.errors import PairNormError

CLASSES = np.array(["low", "high"])
NOTHING = {"id": None, "ignore": []}


def write_graphml(path: Path, risks: list[str | None], label: str = "risk", split: str = "part") -> Path:
    graph = networkx.path_graph(len(risks))
    for node, risk in enumerate(risks):
        known = {} if risk is None else {label: risk}
        graph.nodes[node].update(known, age=30.0 + node, **{split: "train"})
    networkx.write_graphml(graph, path)
    return path


@pytest.mark.parametrize("suffix", [".graphml", ".GraphML"])
@pytest.mark.parametrize("names", [("risk", "part"), ("label", "split")])
@pytest.mark.parametrize(
    ("risks", "labels"),
    [
        (["high", None, "low"], [1, -1, 0]),
        (["high", None, "high"], [1, -1, 1]),
        ([None, None, None], [-1, -1, -1]),
    ],
)
def test_labels_are_optional_in_graphml(
    tmp_path: Path, suffix: str, names: tuple[str, str], risks: list[str | None], labels: list[int]
) -> None:
    path = write_graphml(tmp_path / f"new{suffix}", risks, *names)
    saved = {"label": "risk", "split": "part"} if names[0] == "risk" else {}
    graph = read_again(path, None, saved, NOTHING, CLASSES)
    assert graph.labels.tolist() == labels
    assert graph.feature_names == ("age",)
    assert graph.features[:, 0].tolist() == [30, 31, 32]
    assert not graph.train.any()
    assert graph.name == "new"


def test_what_does_not_apply_to_graphml_is_refused(tmp_path: Path) -> None:
    path = write_graphml(tmp_path / "new.graphml", ["high", "low"])
    for edges, given, message in (
        (tmp_path / "edges.csv", NOTHING, "is no table, but edges are given"),
        (None, NOTHING | {"id": "name"}, "id.*name.* does not apply"),
        (None, NOTHING | {"ignore": ["aeg"]}, "no column 'aeg' .*Did you mean 'age'"),
    ):
        with pytest.raises(PairNormError, match=message):
            read_again(path, edges, {"label": "risk"}, given, CLASSES)
    with pytest.raises(
        PairNormError, match=r"row 1: class 'high' is unknown to the model, which has 'low'\. Empty"
    ):
        read_again(path, None, {"label": "risk"}, NOTHING, CLASSES[:1])


def test_what_is_named_now_counts_and_not_what_fit_was_told(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("key|age|risk\n1|30|low\n2|31|\n3|32|high\n")
    (tmp_path / "e.csv").write_text("n|a|b|sum\n0|1|2|5\n1|2|3|7\n")
    saved = TABLE | {"label": "risk", "weight": "amount"}
    now = {"id": "key", "source": "a", "target": "b", "weight": "sum", "delimiter": "|", "ignore": None}
    graph = read_again(tmp_path / "n.csv", tmp_path / "e.csv", saved, now, CLASSES)
    assert graph.node_names.tolist() == [1, 2, 3]
    assert graph.labels.tolist() == [0, -1, 1]
    assert graph.adjacency.values().tolist() == [5, 5, 7, 7]


TABLE = {"id": "customer", "source": "from", "target": "to", "delimiter": ";"}


def test_what_fit_was_told_of_tables_means_nothing_in_graphml(tmp_path: Path) -> None:
    path = write_graphml(tmp_path / "new.graphml", ["high", "low"])
    saved = TABLE | {"label": "risk", "ignore": ["part", "note"]}
    graph = read_again(path, None, saved, NOTHING, CLASSES)
    assert graph.labels.tolist() == [1, 0]
    assert graph.feature_names == ("age",)


def test_columns_that_fit_was_told_of_mean_nothing_in_arrays(tmp_path: Path) -> None:
    pieces = {"data": np.ones(2), "indices": [1, 0], "indptr": [0, 1, 2], "shape": [2, 2]}
    np.savez(
        tmp_path / "new.npz", attr_matrix=np.eye(2), **{f"adj_{name}": it for name, it in pieces.items()}
    )
    saved = TABLE | {"label": "risk", "ignore": ["note"], "categorical": ["zip"]}
    graph = read_again(tmp_path / "new.npz", None, saved, NOTHING, CLASSES)
    assert graph.features.tolist() == [[1, 0], [0, 1]]
