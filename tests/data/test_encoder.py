import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pandas
import pytest
import torch
from pydantic import TypeAdapter

from pairnorm.data import Column, Encoder, Graph, GraphWarning
from pairnorm.data.encoder import ColumnOptions
from pairnorm.data.tables import Table
from pairnorm.data.tabular import read_nodes

pytestmark = pytest.mark.filterwarnings("ignore::pairnorm.data.GraphWarning")


def table(frame: pandas.DataFrame) -> Table:
    return Table("nodes.csv", tuple(frame.columns), frame)


def read(frame: pandas.DataFrame, known: Encoder | None = None, **options: Any) -> dict[str, Any]:
    """Read a frame whose rows get ids of their own."""
    named = frame.assign(id=[f"n{row}" for row in range(len(frame))])
    return read_nodes([table(named)], ColumnOptions(id="id", **options), known)


# A table read before, and others to be read or matched alike.

JOBS = Column("job", "category", ("clerk", "nurse", "pilot"))
KNOWN = Encoder((Column("age", "number"), JOBS))
VALUES = [[30.0, 1, 0, 0], [40.0, 0, 1, 0], [0.0, 0, 0, 0]]
CELLS = {"age": [30, 40, None], "job": ["clerk", "nurse", None]}


def both_ways(cells: dict[str, list[object]]) -> list[Graph]:
    """Return the graph of cells read with the encoder at once, and read freely, then matched."""
    frame = pandas.DataFrame(cells)
    edges = {"edge_index": [[0, 1], [1, 2]], "name": "new"}
    free = Graph.from_edges(**edges, **read(frame))
    return [Graph.from_edges(**edges, **read(frame, known=KNOWN)), free.aligned(KNOWN, 4)]


def check_both_ways_refuse(
    cells: dict[str, list[object]], code: str, value: object, raises: Callable
) -> None:
    frame = pandas.DataFrame(cells)
    with raises(code, value=value):
        read(frame, known=KNOWN, strict=True)
    with raises(code, value=value):
        Graph.from_edges([[0], [1]], **read(frame)).aligned(KNOWN, 4, strict=True)


@pytest.mark.parametrize("option", ["categorical", "ignore", "keep"])
def test_a_text_is_one_column(option: str) -> None:
    assert ColumnOptions(**{option: "age"}) == ColumnOptions(**{option: ("age",)})


def test_an_encoder_survives_json() -> None:
    columns = (Column("id", "id"), Column("risk", "label", ("low", "high")), *KNOWN.columns)
    encoder = Encoder(columns, source="from", delimiter=";")
    assert TypeAdapter(Encoder).validate_json(json.dumps(asdict(encoder)), strict=True) == encoder
    assert encoder.feature_names == ("age", "job=clerk", "job=nurse", "job=pilot")


@pytest.mark.parametrize(
    ("cells", "values", "missing"),
    [
        (CELLS, VALUES, [False, False, True]),
        ({"job": CELLS["job"], "age": CELLS["age"]}, VALUES, [False, False, True]),
        (
            {"age": [1, 2, 3], "job": [None, None, None]},
            [[1, 0, 0, 0], [2, 0, 0, 0], [3, 0, 0, 0]],
            [[False, True, True, True]] * 3,
        ),
        (
            {"age": [None, 2, 3], "job": ["pilot", None, "pilot"]},
            [[0, 0, 0, 1], [2, 0, 0, 0], [3, 0, 0, 1]],
            [[True, False, False, False], [False, True, True, True], [False] * 4],
        ),
        ({"age": [None] * 3, "job": [None] * 3}, [[0] * 4] * 3, [True] * 3),
    ],
    ids=["the same", "another order", "a column without categories", "an absent category", "nothing"],
)
def test_later_cells_become_the_same_features(
    cells: dict[str, list[object]], values: list[list[float]], missing: list[object]
) -> None:
    for graph in both_ways(cells):
        assert graph.features.to_dense().tolist() == values
        assert graph.missing.tolist() == missing
        assert graph.encoder == KNOWN


@pytest.mark.parametrize(
    ("cells", "code", "value"),
    [
        ({"job": CELLS["job"]}, "column-missing", "age"),
        ({"age": CELLS["age"]}, "column-missing", "job"),
        (CELLS | {"job": ["judge", "nurse", "baker"]}, "unknown-category", "baker"),
        (CELLS | {"job": ["7", "8", None]}, "numbers-for-categories", None),
        (CELLS | {"age": ["old", "young", None]}, "text-for-numbers", "old"),
        (CELLS | {"pet": ["cat", "dog", None]}, "unknown-column", "pet"),
        (CELLS | {"income": [1, 2, 3]}, "unknown-column", "income"),
    ],
)
def test_differences_from_the_encoder_are_refused_if_strict(
    cells: dict[str, list[object]], code: str, value: object, raises: Callable
) -> None:
    if value is None:
        for way in ({"known": KNOWN}, {}):
            with raises(code):
                Graph.from_edges([[0], [1]], **read(pandas.DataFrame(cells), **way)).aligned(KNOWN, 4)
    else:
        check_both_ways_refuse(cells, code, value, raises)


def test_a_renamed_column_is_suggested(raises: Callable) -> None:
    frame = pandas.DataFrame({"ages": CELLS["age"], "job": CELLS["job"]})
    with raises("column-missing", hint="Did you mean 'ages'?"):
        read(frame, known=KNOWN, strict=True)
    assert any("imputed. Did you mean 'ages'?" in note for note in read(frame, known=KNOWN)["notes"])


@pytest.mark.parametrize(
    ("cells", "values", "missing", "note"),
    [
        (
            {"job": CELLS["job"]},
            [[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]],
            [[1, 0, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1]],
            "has no column 'age', which the model uses: imputed",
        ),
        (
            {"age": CELLS["age"]},
            [[30, 0, 0, 0], [40, 0, 0, 0], [0, 0, 0, 0]],
            [[0, 1, 1, 1], [0, 1, 1, 1], [1, 1, 1, 1]],
            "has no column 'job', which the model uses: imputed",
        ),
        (
            CELLS | {"job": ["judge", "nurse", "baker"]},
            [[30, 0, 0, 0], [40, 0, 1, 0], [0, 0, 0, 0]],
            [[0, 1, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1]],
            "a category 'baker' in column 'job' (and 1 more), unknown to the model: such cells count as",
        ),
        (
            CELLS | {"pet": ["cat", "dog", None]},
            VALUES,
            [0, 0, 1],
            "column 'pet', unknown to the model: ignored",
        ),
    ],
    ids=["no numbers", "no categories", "new categories", "a new column"],
)
def test_differences_are_imputed_or_ignored_and_noted_once(
    cells: dict[str, list[object]], values: list[list[float]], missing: list[Any], note: str
) -> None:
    with pytest.warns(GraphWarning) as caught:
        read_at_once, matched = both_ways(cells)
    for graph in (read_at_once, matched):
        assert graph.features.to_dense().tolist() == values
        assert graph.missing.int().tolist() == missing
        assert graph.encoder == KNOWN
    assert sum(note in one for one in read_at_once.notes) == 1
    assert sum(note in str(one.message) for one in caught) == 1


DATED = Encoder((Column("age", "number"), Column("born", "date")))


@pytest.mark.parametrize(
    ("age", "born", "code"),
    [
        (["30", "4O", "50"], ["1970-01-02"] * 3, "not-a-number"),
        (["$30", "4O", "1,050.5"], ["1970-01-02"] * 3, "not-a-number"),
        ([30.0, np.inf, 50.0], ["1970-01-02"] * 3, "not-finite"),
        (["30", "40", "50"], ["1970-01-02", "1970-13-02", "1970-01-02"], "unknown-category"),
        (["30", "40", "50"], ["1970-01-02", "soon", "1970-01-02"], "unknown-category"),
    ],
)
def test_a_cell_of_a_later_table_that_cannot_be_read_is_missing(
    age: list[object], born: list[str], code: str, raises: Callable
) -> None:
    frame = pandas.DataFrame({"age": age, "born": born})
    parts = read(frame, known=DATED)
    column = int(code == "unknown-category")
    assert parts["missing"].nonzero().tolist() == [[1, column]]
    assert parts["features"][[0, 2], 1 - column].all()
    assert (
        sum("1 cell that cannot be read counts as missing, such as " in note for note in parts["notes"]) == 1
    )
    with raises(code):
        read(frame, known=DATED, strict=True)
    if column == 0:
        with raises(code):  # in the first table, too
            read(frame)


def test_a_table_without_any_column_of_the_model_is_refused(raises: Callable) -> None:
    check_both_ways_refuse({"height": [1, 2, 3]}, "column-missing", "age", raises)
    with raises("column-missing", value="age"):
        read(pandas.DataFrame({"height": [1, 2, 3]}), known=KNOWN)


def test_equals_signs_in_column_names_are_kept(raises: Callable) -> None:
    """Columns of numbers called lag=1 and lag=2 are two columns, not two categories of one."""
    both = Graph.from_edges([[0], [1]], [[1.0, 2.0], [3.0, 4.0]], feature_names=("lag=1", "lag=2"))
    one = Graph.from_edges([[0], [1]], [[1.0], [3.0]], feature_names=("lag=1",))
    with raises("column-missing", value="lag=2"):
        one.aligned(both.encoder, 2, strict=True)
    frame = pandas.DataFrame({"lag=1": [1, 2], "lag=2": [3, 4]})
    with raises("column-missing", value="lag=2"):
        read(frame[["lag=1"]], known=read(frame)["encoder"], strict=True)


def test_unnamed_features_must_have_the_same_number(raises: Callable) -> None:
    unnamed = Graph.from_edges([[0], [1]], torch.ones(2, 3))
    assert unnamed.aligned(KNOWN, 3) is unnamed
    with raises("wrong-shape", value=3):
        unnamed.aligned(KNOWN, 4)


def test_labels_are_matched_by_name(raises: Callable) -> None:
    graph = Graph.from_edges([[0], [1]], labels=[1, -1, 0], class_names=("high", "low"))
    assert graph.labels_among(["low", "middle", "high"]).tolist() == [0, -1, 2]
    with raises("unknown-class", value="high"):
        graph.labels_among(["low", "middle"])


# Whole files, as ``predict`` reads them.

RISKS = Column("risk", "label", ("low", "high"))
SAVED = Encoder((Column("risk", "label", ("low", "high")), Column("part", "split"), Column("age", "number")))


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
    options = {} if names[0] == "label" else {"label": "risk", "split": "part"}
    first = Graph.from_files(write_graphml(tmp_path / "a.graphml", ["low", "high"], *names), **options)
    path = write_graphml(tmp_path / f"new{suffix}", risks, *names)
    graph = Graph.from_files(path, encoder=first.encoder)
    assert graph.labels_among(["low", "high"]).tolist() == labels
    assert graph.feature_names == ("age",)
    assert graph.features[:, 0].tolist() == [30, 31, 32]
    assert not graph.train.any()
    assert graph.name == "new"


def test_options_of_tables_are_refused_for_graphml(tmp_path: Path, raises: Callable) -> None:
    path = write_graphml(tmp_path / "new.graphml", ["high", "low"])
    with raises("unknown-file-type", value=".graphml"):
        Graph.from_files(path, tmp_path / "edges.csv", encoder=SAVED)
    with raises("option-does-not-apply", value="id") as caught:
        Graph.from_files(path, id="name", encoder=SAVED)
    assert "--id name" in caught.value.typed()
    with raises("unknown-column", value="aeg", hint="Did you mean 'age'?"):
        Graph.from_files(path, ignore=["aeg"], encoder=SAVED)


def test_classes_that_a_model_does_not_know_are_unknown_labels(tmp_path: Path) -> None:
    path = write_graphml(tmp_path / "new.graphml", ["high", "low", "mid", "high", None])
    encoder = Encoder((Column("risk", "label", ("low", "none")), *SAVED.columns[1:]))
    with pytest.warns(
        GraphWarning, match="3 nodes have a class in column 'risk' that is unknown to the model"
    ):
        graph = Graph.from_files(path, encoder=encoder)
    assert graph.labels.tolist() == [-1, 0, -1, -1, -1]
    assert graph.class_names == ("low", "none")


def test_options_given_again_override_those_of_fit(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("key|age|risk\n1|30|low\n2|31|\n3|32|high\n")
    (tmp_path / "e.csv").write_text("n|a|b|sum\n0|1|2|5\n1|2|3|7\n")
    saved = Encoder(SAVED.columns, id="customer", source="from", target="to", weight="amount", delimiter=";")
    now = {"id": "key", "source": "a", "target": "b", "weight": "sum", "delimiter": "|"}
    graph = Graph.from_files(tmp_path / "n.csv", tmp_path / "e.csv", encoder=saved, **now)
    assert graph.node_names.tolist() == [1, 2, 3]
    assert graph.labels.tolist() == [0, -1, 1]
    assert graph.adjacency.values().tolist() == [5, 5, 7, 7]


def test_the_first_column_is_the_id_unless_the_old_one_is_there(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("source,target\n1,2\n2,1\n")
    saved = Encoder((Column("customer", "id"), Column("age", "number")))
    for text in ("key,age\n1,30\n2,31\n", "age,customer\n30,1\n31,2\n"):
        (tmp_path / "n.csv").write_text(text)
        graph = Graph.from_files(tmp_path / "n.csv", tmp_path / "e.csv", encoder=saved)
        assert graph.node_names.tolist() == [1, 2]
        assert graph.features.tolist() == [[30], [31]]


def test_options_of_column_types_are_refused_next_to_an_encoder(tmp_path: Path, raises: Callable) -> None:
    (tmp_path / "n.csv").write_text("id,age\na,1\n")
    (tmp_path / "e.csv").write_text("source,target\na,a\n")
    with raises("conflicting-options", value=["age"]):
        Graph.from_files(tmp_path / "n.csv", tmp_path / "e.csv", categorical=["age"], encoder=SAVED)


TABLE = {"id": "customer", "source": "from", "target": "to", "delimiter": ";"}


def test_options_of_tables_from_fit_are_ignored_for_graphml(tmp_path: Path) -> None:
    path = write_graphml(tmp_path / "new.graphml", ["high", "low"])
    ignored = (Column("part", "ignored"), Column("note", "ignored"))
    saved = Encoder((RISKS, *ignored, Column("customer", "id"), Column("age", "number")), **TABLE)
    graph = Graph.from_files(path, encoder=saved)
    assert graph.labels.tolist() == [1, 0]
    assert graph.feature_names == ("age",)


@pytest.mark.parametrize("labels", [None, [0, 0], [1, 1], [-1, -1]])
def test_columns_from_fit_are_ignored_for_arrays(tmp_path: Path, labels: list[int] | None) -> None:
    """Labels are optional there too, and may all be of the first class."""
    pieces = {"data": np.ones(2), "indices": [1, 0], "indptr": [0, 1, 2], "shape": [2, 2]}
    arrays = {f"adj_{name}": it for name, it in pieces.items()} | ({"labels": labels} if labels else {})
    np.savez(tmp_path / "new.npz", attr_matrix=np.eye(2), **arrays)
    graph = Graph.from_files(tmp_path / "new.npz", encoder=Encoder(SAVED.columns, **TABLE))
    assert graph.features.tolist() == [[1, 0], [0, 1]]
    assert graph.labels.tolist() == (labels or [-1, -1])
