from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas
import pytest

from pairnorm.data.tables import Source, as_text, open_table, read_blocks
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
    assert as_text(pandas.Series(cells)).tolist() == expected
