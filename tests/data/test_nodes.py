from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pairnorm.data import Encoder, Graph
from pairnorm.data import encoder as module
from pairnorm.data.encoder import Column, ColumnOptions, align_features
from pairnorm.data.formats import arrow_frame
from pairnorm.data.tables import Table
from pairnorm.data.tabular import read_nodes

Cell = st.one_of(st.none(), st.integers(-9, 9))
Word = st.one_of(st.none(), st.sampled_from(["red", "green", "NA"]))


def table(frame: pandas.DataFrame) -> Table:
    return Table("nodes.csv", tuple(frame.columns), frame)


def read(frame: pandas.DataFrame, known: Encoder | None = None, **options: Any) -> dict[str, Any]:
    """Read a frame whose rows get ids of their own."""
    named = frame.assign(id=[f"n{row}" for row in range(len(frame))])
    return read_nodes([table(named)], ColumnOptions(id="id", **options), known)


@given(st.lists(st.tuples(Cell, Cell, Word), min_size=1, max_size=12), st.booleans())
def test_features_equal_those_written_by_hand_dense_and_sparse(
    rows: list[tuple[int | None, int | None, str | None]], sparse: bool
) -> None:
    frame = pandas.DataFrame(rows, columns=["a", "b", "c"]).astype({"a": float, "b": float, "c": object})
    words = sorted({word for *_, word in rows if word is not None})
    kept = module.MAX_SPARSE_DENSITY
    module.MAX_SPARSE_DENSITY = 2.0 if sparse else 0.0
    try:
        result = read(frame, categorical=["c"])
    finally:
        module.MAX_SPARSE_DENSITY = kept
    assert result["encoder"].feature_names == ("a", "b", *(f"c={word}" for word in words))
    expected = [[a or 0, b or 0, *(float(c == word) for word in words)] for a, b, c in rows]
    assert result["features"].to_dense().tolist() == expected

    empty = [[a is None, b is None, *(c is None for _ in words)] for a, b, c in rows]
    whole = [(a, b, c) == (None, None, None) for a, b, c in rows]
    partly = any(None in row for row, all_empty in zip(rows, whole, strict=True) if not all_empty)
    assert result["missing"].tolist() == (empty if partly else whole)

    again = read(frame, known=result["encoder"])
    assert torch.equal(again["features"].to_dense(), result["features"].to_dense())
    assert torch.equal(again["missing"], result["missing"])


def test_wide_and_empty_features_are_kept_sparse() -> None:
    frame = pandas.DataFrame({f"w{i}": [float(i == row) for row in range(20)] for i in range(20)})
    assert read(frame)["features"].layout == torch.sparse_csr
    assert read(frame[["w1", "w2"]])["features"].layout == torch.sparse_csr
    assert read(frame[["w1", "w2"]][:4])["features"].layout == torch.strided


def test_numbers_can_be_categories() -> None:
    result = read(pandas.DataFrame({"zip": ["007", "7", None]}), categorical=["zip"])
    assert result["encoder"].feature_names == ("zip=007", "zip=7")
    assert result["missing"].tolist() == [False, False, True]


def test_numbers_typed_as_categories_are_noted() -> None:
    frame = pandas.DataFrame({"zip": pandas.Series([7, None, 10]).astype("category")})
    result = read(frame)
    assert result["encoder"].feature_names == ("zip=10", "zip=7")
    assert result["missing"].tolist() == [False, True, False]
    assert "numbers are read as categories" in result["notes"][0]
    assert torch.equal(read(frame.astype(float), known=result["encoder"])["features"], result["features"])
    arrow = pyarrow.table({"zip": pyarrow.array([7, None, 10]).dictionary_encode()})
    assert torch.equal(read(arrow_frame(arrow))["features"], result["features"])


@pytest.mark.filterwarnings("ignore::pairnorm.data.GraphWarning")
def test_whole_numbers_with_leading_zeros_are_codes(tmp_path: Path) -> None:
    nodes, edges = tmp_path / "nodes.csv", tmp_path / "edges.csv"
    edges.write_text("source,target\na,b\n")
    nodes.write_text('id,zip,age,size,born\na,"01234",07,00.5,1990-01-02\nb, 1234,-3,07,1990-01-02\nc,,1,,\n')
    graph = Graph.from_files(nodes, edges)
    assert graph.feature_names == ("zip=01234", "zip=1234", "age", "size", "born")
    assert graph.features[:2, :4].tolist() == [[1, 0, 7, 0.5], [0, 1, -3, 7]]
    assert any("column 'zip' of nodes.csv: whole numbers with leading zeros" in note for note in graph.notes)
    frame = {"id": ["a", "b"], "zip": ["01234", "99999"]}
    assert Graph.from_frames(frame, {"s": ["a"], "t": ["b"]}).feature_names == ("zip=01234", "zip=99999")
    more = tmp_path / "more.csv"
    more.write_text("id,zip\nd,99999\ne,\n")
    assert Graph.from_files([nodes, more], edges).feature_names[:3] == ("zip=01234", "zip=1234", "zip=99999")
    options = Graph.from_files(nodes, edges, categorical=["zip"])
    assert options.feature_names == graph.feature_names
    assert not any("leading zeros" in note for note in options.notes if "codes" in note)
    nodes.write_text("id,zip,age,size,born\na,1234,1,1,1990-01-02\nb,01234,02,1,\n")
    again = Graph.from_files(nodes, edges, encoder=graph.encoder)
    assert again.features[:, :3].tolist() == [[0, 1, 1], [1, 0, 2]]


def test_categories_of_text_are_read_as_text_is() -> None:
    frame = pandas.DataFrame({"born": ["2001-02-03", "1970-01-01"], "age": ["7", "9"]}, dtype="category")
    assert [column.kind for column in read(frame)["encoder"].columns[1:]] == ["date", "number"]


@pytest.mark.parametrize(
    ("labels", "notes"),
    [([-1, 0, 1], 1), ([-1, 1], 0), ([-2, -1, 0], 0), (["-1", "low", "high"], 0)],
)
def test_a_class_of_minus_one_is_noted_among_numbers(labels: list[object], notes: int) -> None:
    result = read(pandas.DataFrame({"x": labels, "y": labels}), label="y", ignore="x")
    matching = [
        note for note in result["notes"] if note.startswith("'-1' is read as a class; --unknown-label '-1'")
    ]
    assert len(matching) == notes


def test_more_categories_than_the_maximum_are_refused(raises: Callable) -> None:
    frame = pandas.DataFrame({"city": [f"n{i % 1001}" for i in range(2002)]})
    with raises("too-many-categories", value="city", expected="at most 1,000 categories"):
        read(frame)
    assert read(frame, keep=["city"])["features"].shape == (2002, 1001)
    assert read(frame, categorical=["city"])["features"].shape == (2002, 1001)


def test_no_columns_are_no_features() -> None:
    result = read(pandas.DataFrame(index=range(2)))
    assert result["features"].shape == (2, 0)
    assert result["missing"].tolist() == [False, False]
    assert result["notes"] == ("there are no feature columns: fit takes degrees and other structure instead",)


def column(cells: list[Any], **options: Any) -> tuple[Any, list[float], tuple[str, ...]]:
    """Return what is made of the only column of a table: its column, its features, and the notes."""
    result = read(pandas.DataFrame({"x": cells}), **options)
    kind = next(one for one in result["encoder"].columns if one.name == "x")
    return kind, result["features"].to_dense().flatten().tolist(), result["notes"]


def test_columns_of_names_are_left_out_unless_kept() -> None:
    names = [f"page {i}" for i in range(95)] + [
        "7",
        "8",
        "9",
        "10",
        "11",
    ]  # some pages are called by a number
    kind, values, notes = column(names)
    assert (kind.kind, values) == ("ignored", [])
    assert notes[0] == (
        "column 'x' of nodes.csv: left out, because nearly all cells differ; "
        "--keep (in Python, keep=) takes it in"
    )
    for options in ({"keep": ["x"]}, {"categorical": ["x"]}):
        assert column(names, **options)[0].width == 100
    assert column(["red", "green"] * 50)[0].categories == ("green", "red")
    again = read(pandas.DataFrame({"x": names}), known=read(pandas.DataFrame({"x": names}))["encoder"])
    assert again["features"].shape == (100, 0)


def test_a_column_called_id_is_no_feature_where_all_its_numbers_differ() -> None:
    frame = pandas.DataFrame({"facebook_id": range(100), "paid": range(100), "group_id": [1, 2] * 50})
    assert read(frame)["encoder"].feature_names == ("paid", "group_id")
    assert read(frame, keep=["facebook_id"])["encoder"].feature_names == ("facebook_id", "paid", "group_id")


@pytest.mark.parametrize("name", ["", "Unnamed: 0"])
def test_the_index_that_pandas_writes_is_no_feature(name: str) -> None:
    """Bug: rows that were sorted by class gave the class away."""
    frame = pandas.DataFrame({name: range(100), "paid": range(100)})
    assert read(frame)["encoder"].feature_names == ("paid",)


@pytest.mark.parametrize(
    ("cells", "first"),
    [
        (["2001-02-03", None, "1970-01-01"], 11356),
        (["2001-02-03 12:00", "", "1970-01-01T00:00:00Z"], 11356.5),
        (["2001/02/03", None, "1970/1/1"], 11356),
        (["03.02.2001", None, "01.01.1970"], 11356),
        (["02/03/2001", None, "1/1/1970"], 11356),
        (["13/02/2001", None, "01/01/1970"], 11366),
        (list(pandas.to_datetime(["2001-02-03", None, "1970-01-01"])), 11356),
        (list(pandas.to_datetime(["2001-02-03", None, "1970-01-01"], utc=True)), 11356),
        ([pandas.Timestamp("2001-02-03").date(), None, pandas.Timestamp("1970-01-01").date()], 11356),
    ],
)
def test_dates_are_days_since_1970(cells: list[Any], first: float) -> None:
    kind, values, notes = column(cells)
    assert kind.kind == "date"
    assert values == [first, 0, 0]
    assert "are read as days since 1970-01-01" in notes[0]
    frame = pandas.DataFrame({"x": cells})
    result = read(frame)
    assert result["missing"].tolist() == [False, True, False]
    again = read(frame, known=result["encoder"])
    assert torch.equal(again["features"], result["features"])
    assert read(pandas.DataFrame({"x": [None] * 3}), known=result["encoder"])["missing"].all()


def test_dates_are_read_in_the_order_of_the_model(raises: Callable) -> None:
    """Bug: a file without a day after the 12th was read month first, whatever the model had learned."""
    first = read(pandas.DataFrame({"joined": ["31/01/2020", "02/03/2020"]}))
    assert first["encoder"].features["joined"] == Column("joined", "date", form="%d/%m/%Y")
    later = pandas.DataFrame({"joined": ["02/03/2020"]})
    again = read(later, known=first["encoder"])
    assert again["features"].to_dense()[0, 0] == first["features"].to_dense()[1, 0]
    guessed = read(later)
    assert guessed["encoder"].features["joined"].form == "%m/%d/%Y"
    with raises("other-dates", "nodes.csv: the dates in column 'joined'", value="joined"):
        read(pandas.DataFrame({"joined": ["31/01/2020"]}), known=guessed["encoder"])
    with raises("other-dates", "nodes.csv: the dates in column 'joined'", value="joined"):
        read(pandas.DataFrame({"joined": ["01/31/2020"]}), known=first["encoder"])
    with raises("other-dates", "graph: the dates in column 'joined'"):  # two graphs, each read by itself
        align_features("graph", torch.zeros(1, 1), torch.zeros(1, 1, dtype=torch.bool),
                       guessed["encoder"], first["encoder"])  # fmt: skip
    plain = read(pandas.DataFrame({"joined": ["2020-01-31"]}))
    assert plain["encoder"].features["joined"] == Column("joined", "date")


def test_ambiguous_commas_are_refused(raises: Callable) -> None:
    source = Table("t.csv", ("x",))
    with raises("ambiguous-number", value="x", options={"decimal": ","}):
        source.numbers("x", pandas.Series(["1,234", "5,678"]))
    for cells, values, decimal in (
        (["1,234", "5,678", "9"], [1234, 5678, 9], "."),
        (["-1,234.5", "5,678", "9", "12345.25"], [-1234.5, 5678, 9, 12345.25], None),
    ):
        source = Table("t.csv", ("x",), decimal=decimal)
        np.testing.assert_allclose(source.numbers("x", pandas.Series(cells)), values)
        assert source.all_notes() == ["column 'x' of t.csv: commas are read as separators of thousands"]
    for cells in (["1,23.5", "5,678"], ["1,234.5", "5,67"], ["1,234.5", "red"]):
        assert Table("t.csv", ("x",)).numbers("x", pandas.Series([*cells, "blue", "green"])) is None


def long(**columns: list[Any]) -> Table:
    frame = pandas.DataFrame(columns)
    return Table("long.csv", tuple(frame.columns), frame)


NODES = Table("nodes.csv", ("id", "age"), pandas.DataFrame({"id": ["a", "b", "c"], "age": [1.0, 2.0, 3.0]}))


def test_a_long_table_gives_sparse_features() -> None:
    table = long(node=["a", "b", "a", "a"], word=["10", "9", "red", "red"], count=[2, 1, 1, 4])
    result = read_nodes([NODES], ColumnOptions(), long=[table])
    assert result["encoder"].feature_names == ("age", "9", "10", "red")
    assert result["features"].to_dense().tolist() == [[1, 0, 2, 5], [2, 1, 0, 0], [3, 0, 0, 0]]
    assert result["missing"].tolist() == [[False] * 4, [False] * 4, [False, True, True, True]]
    assert result["notes"] == (
        "1 nodes have no row in long.csv: features missing",
        "1 features given more than once were added up",
    )


def test_a_later_long_table_has_the_features_of_the_encoder(raises: Callable) -> None:
    known = read_nodes([NODES], ColumnOptions(), long=[long(node=["a", "b"], word=["x", "y"])])["encoder"]
    later = long(node=["a", "c", "c"], word=["y", "x", "new"])
    result = read_nodes([NODES], ColumnOptions(), known, [later])
    assert result["features"].to_dense().tolist() == [[1, 0, 1], [2, 0, 0], [3, 1, 0]]
    assert "1 features unknown to the model are left out: 'new'" in result["notes"]
    with raises("option-missing"):
        read_nodes([NODES], ColumnOptions(), known)
    free = Graph.from_edges([[0], [1]], **read_nodes([NODES], ColumnOptions(), long=[later]))
    aligned = free.aligned(known, 3)
    assert torch.equal(aligned.features.to_dense(), result["features"].to_dense())
    assert torch.equal(aligned.missing, result["missing"])


@pytest.mark.parametrize(
    ("table", "code"),
    [
        (long(node=["z"], word=["x"]), "unknown-node"),
        (long(node=["a"], word=[None]), "empty-cell"),
        (long(node=["a"], word=["x"], count=["many"]), "empty-cell"),
        (long(node=["a"]), "wrong-shape"),
        (long(node=["a"], word=["x"], count=[1], more=[1]), "wrong-shape"),
        (long(node=["a"], word=["age"]), "duplicate-column"),
    ],
)
def test_an_invalid_long_table_is_refused(table: Table, code: str, raises: Callable) -> None:
    with raises(code):
        read_nodes([NODES], ColumnOptions(), long=[table])
