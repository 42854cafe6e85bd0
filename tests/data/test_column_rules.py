"""Tables with odd columns, read by pandas and by DuckDB: the same features, notes and errors."""

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch

from pairnorm.base.errors import PairNormError
from pairnorm.data import Graph

pytest.importorskip("duckdb", reason="needs duckdb: pip install pairnorm[all]")
pytestmark = pytest.mark.filterwarnings("ignore::pairnorm.data.GraphWarning")
ROWS = 380


def cycle(*cells: Any) -> list[Any]:
    return [cells[row % len(cells)] for row in range(ROWS)]


def each(form: str) -> list[str]:
    return [form.format(row + 1) for row in range(ROWS)]


NUMBERS = np.random.default_rng(0).normal(size=ROWS).round(3)
# Column -> how it must be encoded, where it is a number: the values of the first rows.
FEATURES: dict[str, tuple[list[Any], str, list[float] | None]] = {
    "decimal commas": ([str(x).replace(".", ",") for x in NUMBERS], "number", NUMBERS[:3].tolist()),
    "thousands": (cycle("24,383", " 2,175,612 ", "12", ""), "number", [24383, 2175612, 12, np.nan]),
    "thousands and points": (cycle("1,234.5", "7"), "number", [1234.5, 7]),
    "grouped by apostrophes": (cycle("1'234'567", "7"), "number", [1234567, 7]),
    "grouped by spaces": (cycle("1 200", "12 345 678", "7"), "number", [1200, 12345678, 7]),
    "grouped by narrow spaces": (cycle("1\u202f200,5", "2\u2009345,7"), "number", [1200.5, 2345.7]),
    "spaces without groups": (cycle("1 20", "12 34 56", "7 7"), "category", None),
    "spaces and units": (cycle("1 200 €", "35 €", "–7 €"), "number", [1200, 35, -7]),
    "dollars of a country": (cycle("US$ 1,200", "A$7"), "number", [1200, 7]),
    "dashes as signs": (cycle("–1.5", "−2.5", "-3.5", "4"), "number", [-1.5, -2.5, -3.5, 4]),
    "money": (cycle("$1,200", "$ 35", "-$4.50", "(3.5)"), "number", [1200, 35, -4.5, -3.5]),
    "euros": (cycle("1.200,50 €", "3 EUR"), "number", [1200.5, 3]),
    "percent": (cycle("12%", "7.5 %", "0"), "number", [0.12, 0.075, 0]),
    "dashes": (cycle("1.5", "—", "-", "–"), "number", [1.5, np.nan, np.nan, np.nan]),
    "missing words": (cycle("1.5", "NA", "n/a", "?", "", "nan", "null"), "number", [1.5, np.nan, np.nan]),
    "own missing word": (
        [str(x) if row % 3 else "k.A." for row, x in enumerate(NUMBERS)],
        "number",
        [np.nan, *NUMBERS[1:3].tolist()],
    ),
    "plain": ([str(x) for x in NUMBERS], "number", NUMBERS[:3].tolist()),
    "exponents": (cycle("1e3", "-2.5E-1", "+7"), "number", [1000, -0.25, 7]),
    "booleans": (cycle("true", "false", ""), "number", [1, 0, np.nan]),
    "mixed booleans": (cycle("TRUE", "False", "NA"), "number", [1, 0, np.nan]),
    "postcodes": (cycle("01234", "99999"), "category", None),
    "words": (cycle("red", "NA", "blue", ""), "category", None),
    "booleans and words": (cycle("true", "false", "unknown"), "category", None),
    "versions": (cycle("1.2.3", "1.2.4"), "category", None),
    "ranges": (cycle("18-25", "26-35"), "category", None),
    "units": (cycle(*(f"{n} kg" for n in range(30))), "category", None),
    "near duplicates": (cycle("Nurse", "nurse ", "cook"), "category", None),
    "names": (each("street {}"), "ignored", None),
    "codes of names": (each("{:05d}"), "ignored", None),
    "row number": (each("{}"), "number", [1, 2, 3]),
    "external_id": (each("{}"), "ignored", None),
    "iso dates": (cycle("1970-01-02", "1970-01-11", ""), "date", [1, 10, np.nan]),
    "iso times": (
        [f"1970-01-{row % 27 + 1:02d}T12:{row % 60:02d}:00Z" for row in range(ROWS)],
        "date",
        [0.5],
    ),
    "day first": (cycle("13/01/1970", "02/01/1970"), "date", [12, 1]),
    "month first": (cycle("01/02/1970", "01/12/1970"), "date", [1, 11]),
    "german dates": (cycle("02.01.1970", "12.1.1970"), "date", [1, 11]),
    "no dates": (cycle("1970-13-45", "1970-01-01"), "category", None),
    "empty": (cycle(""), "number", [np.nan]),
}


@pytest.mark.parametrize("name", FEATURES)
def test_features(readers: Any, name: str) -> None:
    cells, kind, values = FEATURES[name]
    graph = readers.read(*readers.write_nodes(**{"plain number": NUMBERS, name: cells}))
    (column,) = (column for column in graph.encoder.columns if column.name == name)
    assert column.kind == kind
    if values is not None:
        result = graph.features.to_dense()[:, 1].double()
        result[graph.missing[:, 1] if graph.missing.dim() == 2 else graph.missing] = torch.nan
        np.testing.assert_allclose(result[: len(values)], values, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("decimal commas", "a comma is read as the decimal point"),
        ("thousands", "commas are read as separators of thousands"),
        ("money", "'$ 35' as 35"),
        ("percent", "'12%' as 0.12"),
        ("dashes", "'—' is read as missing"),
        ("postcodes", "leading zeros are codes"),
        ("names", "nearly all cells differ"),
        ("units", "look like numbers"),
        ("near duplicates", "differ from another only in case"),
        ("words", "is read as a category"),
        ("day first", "dates, day first"),
        ("empty", "empty throughout"),
    ],
)
def test_conversions_are_noted(readers: Any, name: str, note: str) -> None:
    files = readers.write_nodes(**{"plain number": NUMBERS, name: FEATURES[name][0]})
    assert re.search(re.escape(note), "\n".join(readers.read(*files).notes))


def test_texts_that_repeat_less_than_twice_are_dropped(readers: Any) -> None:
    """1,845 county names on 3,100 rows are no categories."""
    names = [f"County {row % 1845}" for row in range(3100)]
    graph = readers.read(*readers.write_nodes(x=range(3100), name=names))
    assert graph.feature_names == ("x",)
    assert any("it holds 1,845 different texts" in note for note in graph.notes)


@pytest.mark.parametrize("cells", ["name {}", "{} kg"])
def test_more_texts_than_are_sampled(readers: Any, monkeypatch: pytest.MonkeyPatch, cells: str) -> None:
    """Bug: pack compared the texts of a sample with all cells, and took them for mistakes among numbers."""
    monkeypatch.setattr("pairnorm.data.queries.MAX_SAMPLED_TEXTS", 20)
    graph = readers.read(*readers.write_nodes(number=NUMBERS, x=each(cells)), keep=["x"])
    assert graph.num_features == 1 + ROWS


@pytest.mark.parametrize(
    ("cells", "code"),
    [
        (cycle("1", "2", "3", "x"), "not-a-number"),
        (cycle("1", "inf"), "not-finite"),
        (cycle("1e99", "2"), "not-finite"),
        (cycle("1,234", "5,678"), "ambiguous-number"),
        ([f"text {row % 190 if row < 9 else row % 3}" for row in range(ROWS)], None),
    ],
)
def test_errors(readers: Any, cells: list[Any], code: str | None) -> None:
    files = readers.write_nodes(number=NUMBERS, x=cells)
    if code is None:
        readers.read(*files)
    else:
        readers.check_refused(*files, code=code)


CLASSES = cycle("low", "high", "")


@pytest.mark.parametrize(
    ("labels", "options", "code"),
    [
        ([str(x) for x in NUMBERS], {}, "numeric-label"),
        ([str(x).replace(".", ",") for x in NUMBERS], {}, "numeric-label"),
        ([f"1.{n:03},5" for n in range(len(NUMBERS))], {}, "numeric-label"),
        (each("{}"), {}, "numeric-label"),
        (each("name {}"), {}, "too-many-classes"),
        (cycle("a"), {}, "too-few-classes"),
        (cycle(""), {}, "too-few-classes"),
        (CLASSES, {"split": "x"}, "unknown-part"),
        (CLASSES, {"classes": 3}, "not-a-number"),
        ([str(x) for x in NUMBERS], {"classes": 3}, None),
        (cycle("$1,200", "$35", "$7", "n/a", *(f"${n}" for n in range(50))), {"classes": 3}, None),
        (cycle("12%", "7.5%", "90%"), {"classes": 2}, None),
        (cycle("1 200", "12 345", "7"), {"classes": 3}, None),
        (cycle("2001-02-03", "2001-02-04"), {"classes": 2}, "not-a-number"),
        (each("{}"), {"classes": "each"}, None),
        (cycle("0.0", "1.0", ""), {}, None),
        (cycle("GOP", "dem", *(["GOP", "dem"] * 20), "Gop"), {}, None),
        (cycle("GOP", "demo", *(["GOP", "demo"] * 20), "Gop", "demmo"), {"merge_classes": True}, None),
        (cycle("-1", "1", "2"), {}, None),
        (cycle("unknown", "a"), {}, None),
        (cycle("yes", "Unbekannt ", "no", "?"), {"unknown_label": ["unbekannt", "?"]}, None),
        (cycle("2", "-1", "1"), {"unknown_label": "-1"}, None),
        (cycle("?", "yes"), {"unknown_label": "?"}, "too-few-classes"),
    ],
)
def test_labels(readers: Any, labels: list[Any], options: dict[str, Any], code: str | None) -> None:
    files = readers.write_nodes(x=NUMBERS, y=labels)
    if code is not None:
        readers.check_refused(*files, code=code, label="y", **options)
        return
    graph = readers.read(*files, label="y", **options)
    if "unknown_label" in options:
        assert graph.class_names in (("no", "yes"), ("1", "2"))
        shown = [str(graph.class_names[label]) if label >= 0 else "" for label in graph.labels.tolist()]
        assert shown == [text if text in graph.class_names else "" for text in labels]
        assert not any("read as a class" in note for note in graph.notes)
    if "Gop" in labels:
        assert any("'Gop' and 'GOP'" in note for note in graph.notes)
        assert graph.class_names == (("GOP", "demo") if options else ("GOP", "Gop", "dem"))


def test_repeated_rows_are_kept_once(readers: Any, write: Any) -> None:
    files = write("nodes.csv", "id,x\na,1\nb,2\na,1\nc,3\n\nb , 2\n"), write("edges.csv", "s,t\na,b\nb,c\n")
    graph = readers.read(*files)
    assert graph.node_names.tolist() == ["a", "b", "c"]
    assert "2 rows of nodes.csv repeat another exactly: kept once" in graph.notes
    write("nodes.csv", "id,x\na,1\nb,2\na,1\na,7\n")
    shutil.rmtree(readers.packed)
    first, second = readers.check_refused(*files, code="duplicate-id")
    assert "nodes.csv, line 5: id 'a' was used before" in str(first)
    assert "two nodes have the id 'a'" in str(second)


@pytest.mark.parametrize(
    ("name", "text", "options"),
    [
        ("edges.txt", "# Nodes: 4\n# FromNodeId ToNodeId\n1 2\n2 3\n\n3   1\n", {}),
        ("edges.edges", "1 2\n2 3\n3 1\n", {}),
        ("edges.csv", "1,2\n2,3\n3,1\n", {}),
        (
            "edges.txt",
            "1\t2\n2\t3\n3\t1\n",
            {"edge_delimiter": "tab", "source": "1", "target": "2"},
        ),
        ("edges.csv", "a;b\n1;2\n2;3\n3;1\n", {"edge_delimiter": ";"}),
        ("edges.txt", "1 1\n1 2\n2 3\n3 1\n", {}),
    ],
)
def test_edge_lists(readers: Any, write: Any, name: str, text: str, options: dict[str, Any]) -> None:
    graph = readers.read(write("nodes.csv", "id,x\n1,0.5\n2,1\n3,2\n4,3\n"), write(name, text), **options)
    assert graph.edge_index.tolist() == [[0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1]]


@pytest.mark.parametrize("weights", [None, "w"])
def test_repeated_edges(readers: Any, write: Any, weights: str | None) -> None:
    edges = write("edges.csv", "source,target,w\na,b,5\na,b,7\nb,a,2\nb,c,1\nc,b,1\n")
    graph = readers.read(write("nodes.csv", "id\na\nb\nc\n"), edges, weight=weights)
    assert graph.adjacency.values().tolist() == ([1, 1, 1, 1] if weights is None else [12, 12, 1, 1])


@pytest.mark.parametrize("options", [{"label": "tags"}, {"id": "tags"}, {}])
def test_lists_are_neither_labels_nor_ids(readers: Any, options: dict[str, Any]) -> None:
    nodes = pandas.DataFrame({"id": ["a", "b"], "tags": [["x", "y"], ["z"]]})
    files = readers.write(nodes, pandas.DataFrame({"source": ["a"], "target": ["b"]}), "parquet")
    for error in readers.check_refused(*files, code="not-a-cell", **options):
        assert "column 'tags' holds" in str(error)


@pytest.mark.parametrize(
    "kind", ["INTERVAL", "BLOB", "STRUCT(a INTEGER)", "INTEGER[]", "MAP(VARCHAR, INTEGER)"]
)
def test_types_of_parquet_that_are_no_cells(readers: Any, write: Any, tmp_path: Path, kind: str) -> None:
    duckdb = pytest.importorskip("duckdb")
    cell = {"INTERVAL": "to_days(1)", "BLOB": "'\\xAA'::BLOB", "INTEGER[]": "[1]"}.get(
        kind, "{'a': 1}" if kind.startswith("STRUCT") else "MAP {'a': 1}"
    )
    query = f"SELECT range AS id, {cell} AS x FROM range(4)"
    duckdb.sql(query).write_parquet(str(tmp_path / "nodes.parquet"))
    files = tmp_path / "nodes.parquet", write("edges.csv", "source,target\n1,2\n")
    for error in readers.check_refused(*files, code="not-a-cell"):
        assert "column 'x' holds" in str(error)


def test_dates_of_parquet(readers: Any, write: Any, tmp_path: Path) -> None:
    """Days are counted from the year 1 to 9999; dates before and after, and infinite ones, are missing."""
    duckdb = pytest.importorskip("duckdb")
    dates = ["0044-03-15 (BC)", "0001-01-01", "9999-12-31", "10000-01-01", "infinity", "-infinity"]
    cells = ", ".join(f"({n}, '{date}'::DATE, '{date}'::TIMESTAMP, 0)" for n, date in enumerate(dates))
    base = duckdb.sql(f"SELECT * FROM (VALUES {cells}) AS r(id, d, t, x)")
    base.write_parquet(str(tmp_path / "nodes.parquet"))
    graph = readers.read(tmp_path / "nodes.parquet", write("edges.csv", "source,target\n1,2\n"))
    assert graph.missing[:, 0].tolist() == [True, False, False, True, True, True]
    assert graph.features[1:3].tolist() == [[-719162, -719162, 0], [2932896, 2932896, 0]]


def test_sheets_by_name(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")
    with pandas.ExcelWriter(tmp_path / "book.xlsx") as book:
        pandas.DataFrame({"id": ["x"]}).to_excel(book, sheet_name="cover", index=False)
        pandas.DataFrame({"id": ["a", "b"], "x": [1, 2]}).to_excel(book, sheet_name="People", index=False)
        pandas.DataFrame({"source": ["a"], "target": ["b"]}).to_excel(book, sheet_name="links", index=False)
    graph = Graph.from_files(f"{tmp_path}/book.xlsx#people", f"{tmp_path}/book.xlsx#links")
    assert graph.node_names.tolist() == ["a", "b"]
    with pytest.raises(PairNormError, match=r"there is no sheet 'poeple'.*Did you mean 'People'"):
        Graph.from_files(f"{tmp_path}/book.xlsx#poeple", f"{tmp_path}/book.xlsx#links")
