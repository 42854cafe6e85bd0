from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas
import pytest

from pairnorm.data import tables
from pairnorm.data.tables import (
    EMPTY,
    Ends,
    Source,
    node_names,
    open_table,
    read_blocks,
    read_edges,
)
from pairnorm.errors import PairNormError

Write = Callable[[str, str], Path]


def test_lines_are_counted_as_an_editor_does(write: Write) -> None:
    path = write("t.csv", '\nid,text\na,"two\nlines"\n\n   \nb,x\nc,"y"\n')
    table = open_table(path)
    assert [table.line(row) for row in range(3)] == ["line 3", "line 7", "line 8"]
    (frame,) = read_blocks(table, rows=None)
    assert frame["id"].tolist() == ["a", "b", "c"]


def test_rows_of_other_sources_are_counted_from_one() -> None:
    assert Source("the nodes", ("id",)).line(4) == "row 5"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.csv", "", r"t\.csv: the file is empty"),
        ("t.csv", "\n  \n\n", r"t\.csv: the file is empty"),
        (
            "t.csv",
            "id;label;x\na;b;1\n",
            r"one column 'id;label;x': separated by ';', not by ','\? .*delimiter=';'",
        ),
        ("t.csv", "id\tx\na\t1\n", r"delimiter='\\t'"),
        ("t.tsv", "id,x\na,1\n", "separated by ',', not by "),
        ("t.csv", "id,x,x\na,1,2\n", "column 'x' is there twice"),
    ],
)
def test_a_file_that_cannot_be_a_table_is_named(write: Write, name: str, text: str, message: str) -> None:
    with pytest.raises(PairNormError, match=message):
        open_table(write(name, text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,x\na,1\nb,2,3\n", r"t\.csv: line 3 has 3 cells, expected 2"),
        ("id,x\na,1,9\nb,2,3\n", r"t\.csv: its rows have more cells than its header"),
        ('id,x\na,"1\n', r"t\.csv: EOF inside string"),
    ],
)
def test_broken_rows_are_named(write: Write, text: str, message: str) -> None:
    with pytest.raises(PairNormError, match=message):
        list(read_blocks(open_table(write("t.csv", text))))


@pytest.mark.parametrize("delimiter", ["\t", "\\t", "tab"])
def test_a_tab_has_three_names(write: Write, delimiter: str) -> None:
    assert open_table(write("t.csv", "id\tx\na\t1\n"), delimiter).columns == ("id", "x")


def test_a_delimiter_is_one_character(write: Write) -> None:
    with pytest.raises(PairNormError, match="delimiter is '::'; expected one character, or 'tab'"):
        open_table(write("t.csv", "id::x\na::1\n"), "::")


def test_other_encodings_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("id,city\na,Zürich\n".encode("latin-1"))
    with pytest.raises(PairNormError, match=r"t\.csv: byte .* is not UTF-8"):
        list(read_blocks(open_table(path)))


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xef\xbb\xbfid,x\na,1\n")
    assert open_table(path).columns == ("id", "x")


def test_a_column_that_is_not_there_suggests_the_closest() -> None:
    source = Source("nodes.csv", ("customer", "risk", "age"))
    assert source.column("label", "risk") == "risk"
    message = r"no column 'riks' \(label\); it has 'customer', 'risk', 'age'\. Did you mean 'risk'"
    with pytest.raises(PairNormError, match=message):
        source.column("label", "riks")


def test_parquet_is_read_as_written_whatever_its_index(tmp_path: Path) -> None:
    frame = pandas.DataFrame({"id": ["a", "b"], "x": [1.5, None]}).set_index("id")
    frame.to_parquet(tmp_path / "t.parquet")
    source = open_table(tmp_path / "t.parquet")
    assert set(source.columns) == {"id", "x"}
    (found,) = read_blocks(source)
    assert found["id"].tolist() == ["a", "b"]


def test_blocks_cover_all_rows(write: Write) -> None:
    source = open_table(write("t.csv", "x\n" + "\n".join(map(str, range(10))) + "\n"))
    blocks = list(read_blocks(source, rows=4))
    assert [len(block) for block in blocks] == [4, 4, 2]
    assert pandas.concat(blocks)["x"].tolist() == list(range(10))


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["a", " b ", "", None], ["a", "b", None, None]),
        ([1, 2], ["1", "2"]),
        ([1.0, np.nan], ["1", None]),
        ([1.5, np.nan], ["1.5", None]),
        ([True, False], ["True", "False"]),
    ],
)
def test_text(cells: list[object], expected: list[object]) -> None:
    assert Source("t", ("x",)).text("x", pandas.Series(cells)).tolist() == expected


def test_numbers_keep_what_is_empty_apart() -> None:
    source = Source("t", ("x",))
    for column in ([1, None, 3.5], ["1", None, "3.5"], pandas.array([1, None, 3.5], dtype="Float64")):
        np.testing.assert_array_equal(source.numbers("x", pandas.Series(column)), [1, np.nan, 3.5])
    np.testing.assert_array_equal(source.numbers("x", pandas.Series([True, False, None])), [1, 0, np.nan])
    assert source.numbers("x", pandas.Series(["red", None])) is None


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["1", "2", "three"], "row 13: 'three' in column 'x' is not a number.*categorical="),
        ([1.0, np.inf], "row 12: inf in column 'x' is not finite"),
        ([1.0, 1e39], r"row 12: 1e\+39 in column 'x' is not finite"),
        (pandas.to_datetime(["2020-01-01"]), "column 'x' holds dates.*ignore="),
    ],
)
def test_what_is_no_number_is_named(cells: object, message: str) -> None:
    with pytest.raises(PairNormError, match=message):
        Source("t", ("x",)).numbers("x", pandas.Series(cells), first=10)  # type: ignore[call-overload]


@pytest.mark.parametrize("empty", EMPTY)
def test_words_for_nothing_are_empty_among_numbers_only(empty: str) -> None:
    source = Source("t", ("x",))
    np.testing.assert_array_equal(source.numbers("x", pandas.Series(["1.5", empty])), [1.5, np.nan])
    np.testing.assert_array_equal(source.numbers("x", pandas.Series([empty, None])), [np.nan, np.nan])
    assert source.numbers("x", pandas.Series(["red", empty])) is None


def test_truths_are_numbers_however_they_are_written() -> None:
    source = Source("t", ("x",))
    for column in (["TRUE", "FALSE", "NA"], ["true", "false", None], [True, False, None]):
        np.testing.assert_array_equal(source.numbers("x", pandas.Series(column)), [1, 0, np.nan])
    assert source.numbers("x", pandas.Series(["true", "false", "unknown"])) is None


def test_cells_that_are_lists_are_named() -> None:
    for cells in ([[1, 2], [3, 4]], [1.0, np.ones(2)], ["1", {"a": 1}]):
        with pytest.raises(PairNormError, match=r"t, row .: column 'x' holds a \w+; expected a number"):
            Source("t", ("x",)).numbers("x", pandas.Series(cells))


Write_names = Callable[[str, str], Path]
NODES = Source("nodes.csv", ("id",))


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["3", "1", "-2"], [3, 1, -2]),
        (["007", "7"], ["007", "7"]),
        (["1", "b"], ["1", "b"]),
        (["99999999999999999999", "1"], ["99999999999999999999", "1"]),
        ([3.0, 4.0], [3, 4]),
    ],
)
def test_names_are_numbers_only_where_nothing_is_lost(cells: list[object], expected: list[object]) -> None:
    assert node_names(NODES, "id", pandas.Series(cells)).tolist() == expected


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["a", "b", "a"], "row 3: id 'a' was used before, in row 1. Give every node an id of its own"),
        (["a", None], "row 2: the id in column 'id' is empty"),
    ],
)
def test_names_are_there_and_unlike(cells: list[object], message: str) -> None:
    with pytest.raises(PairNormError, match=message):
        node_names(NODES, "id", pandas.Series(cells))


@pytest.mark.parametrize("names", [np.array([5, 7, 9]), np.array(["5", "7", "x"], dtype=object)])
def test_ends_are_found(write: Write_names, names: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables.read_blocks, "__defaults__", ((), 2))
    last = names[2]
    edges = open_table(write("edges.csv", f"a,b,w\n5,7,1\n7,{last},2.5\n{last},5,3\n"))
    ends, weights = read_edges(edges, Ends("a", "b"), names, "w")
    assert ends.tolist() == [[0, 1, 2], [1, 2, 0]]
    assert weights is not None
    assert weights.tolist() == [1, 2.5, 3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b,w\n5,7,1\n7,8,1\n", r"edges\.csv, line 3: 8 in column 'b' is not the id of a node"),
        (
            "a,b,w\n5,7,1\n7,8,1\n7,6,1\n",
            r"edges\.csv, line 3: 8 in .* is not the id of a node \(2 of 3 cells are not\)",
        ),
        ("a,b,w\n5,7,1\n7,ann,1\n", r"edges\.csv, line 3: 'ann' in column 'b' is not the id of a node"),
        ("a,b,w\n5,7,1\n\n,7,1\n", r"edges\.csv, line 4: column 'a' is empty; an edge needs two ends"),
        (
            "a,b,w\n5,7,0\n",
            r"edges\.csv, line 2: the weight in column 'w' is '0'; expected a positive number",
        ),
        ("a,b,w\n5,7,1\n7,9,\n", r"edges\.csv, line 3: the weight in column 'w' is None"),
        ("a,b,w\n5,7,heavy\n", r"edges\.csv, line 2: the weight in column 'w' is 'heavy'"),
        ("a,b,w\n5,7,1\n5,7,x\n", r"edges\.csv, line 3: 'x' in column 'w' is not a number"),
        ("a,b,w\n5,7,inf\n", r"edges\.csv, line 2: inf in column 'w' is not finite"),
    ],
)
def test_bad_edges_are_named_by_line_and_value(write: Write_names, text: str, message: str) -> None:
    with pytest.raises(PairNormError, match=message):
        read_edges(open_table(write("edges.csv", text)), Ends("a", "b"), np.array([5, 7, 9]), "w")


def test_a_file_without_a_header_is_noticed(write: Write_names) -> None:
    edges = open_table(write("edges.csv", "5,7\n7,9\n"))
    with pytest.raises(PairNormError, match="line 1 is no header: it holds the node ids '5' and '7'"):
        read_edges(edges, Ends("5", "7", guessed=True), np.array([5, 7, 9]), None)


def test_no_edges_are_fine(write: Write_names) -> None:
    ends, weights = read_edges(open_table(write("e.csv", "a,b\n")), Ends("a", "b"), np.array([1]), None)
    assert (ends.tolist(), weights) == ([[], []], None)


def test_cells_longer_than_csv_allows_are_quoted_in_part(write: Write, raises: Callable) -> None:
    long = "x" * 200_000
    path = write("t.csv", f"id,text\na,{long}\n{long},b\n{long},c\n")
    table = open_table(path)
    (frame,) = read_blocks(table, rows=None)
    with raises("duplicate-id", value=long) as caught:
        node_names(table, "id", frame["id"])
    assert "t.csv, line 4: id 'xxx" in str(caught.value)
    assert len(str(caught.value)) < 250
    with raises("unknown-column") as caught:
        table.column("label", long)
    assert len(str(caught.value)) < 250


def test_whole_numbers_of_parquet_stay_exact_beside_an_empty_cell(tmp_path: Path) -> None:
    numbers = [9007199254740993, 9007199254740992, None]
    pandas.DataFrame({"id": pandas.array(numbers, dtype="Int64")}).to_parquet(tmp_path / "t.parquet")
    table = open_table(tmp_path / "t.parquet")
    (frame,) = read_blocks(table)
    assert table.text("id", frame["id"]).tolist() == ["9007199254740993", "9007199254740992", None]
    assert table.numbers("id", frame["id"]).tolist()[2] is not None


def test_bytes_of_parquet_are_text_or_refused(tmp_path: Path, raises: Callable) -> None:
    frame = pandas.DataFrame({"id": [b"a", "b\u00fc".encode()], "x": [b"\xff\xfe", b"1"]})
    frame.to_parquet(tmp_path / "t.parquet")
    table = open_table(tmp_path / "t.parquet")
    (found,) = read_blocks(table)
    assert table.text("id", found["id"]).tolist() == ["a", "b\u00fc"]
    for read in (table.text, table.numbers):
        with raises("not-a-cell", value="x", options={"ignore": ["x"]}):
            read("x", found["x"])


def test_time_grows_with_the_number_of_columns_and_not_with_its_square(write: Write) -> None:
    names = [f"c{number}" for number in range(30_000)]
    path = write("t.csv", ",".join(names) + "\n" + ",".join(["1"] * 30_000) + "\n")
    assert open_table(path).columns == tuple(names)
