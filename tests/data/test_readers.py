from collections.abc import Callable
from pathlib import Path

import pandas
import pytest

from pairnorm.data.readers import open_table, open_tables
from pairnorm.data.tables import read_blocks
from pairnorm.errors import PairNormError

Write = Callable[[str, str], Path]


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


@pytest.mark.parametrize("delimiter", ["\t", "\\t", "tab"])
def test_a_tab_has_three_names(write: Write, delimiter: str) -> None:
    assert open_table(write("t.csv", "id\tx\na\t1\n"), delimiter).columns == ("id", "x")


def test_a_delimiter_is_one_character(write: Write) -> None:
    with pytest.raises(PairNormError, match="delimiter is '::'; expected one character, or 'tab'"):
        open_table(write("t.csv", "id::x\na::1\n"), "::")


@pytest.mark.parametrize(
    ("encoding", "said"),
    [
        ("utf-8", ""),
        ("utf-8-sig", ""),
        ("utf-16", ""),
        ("utf-32", ""),
        ("utf-16-le", "UTF-16-LE"),
        ("utf-16-be", "UTF-16-BE"),
        ("latin-1", "Windows-1252 (Latin-1)"),
    ],
)
def test_encodings_are_found_and_said(tmp_path: Path, encoding: str, said: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("id,city\na,Zürich\nb,Köln\n".encode(encoding))
    for table in (open_table(path), open_table(path, encoding=encoding)):
        assert table.columns == ("id", "city")
        (frame,) = read_blocks(table)
        assert frame["city"].tolist() == ["Zürich", "Köln"]
        assert table.line(1) == "line 3"
    expected = [f"t.csv is not UTF-8 and is read as {said}; the option encoding names another"]
    assert open_table(path).notes == (expected if said else [])


def test_bytes_that_windows_does_not_know_are_latin_1(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"id,x\na,\x81\xfc\n")
    (frame,) = read_blocks(open_table(tmp_path / "t.csv"))
    assert frame["x"].tolist() == ["\x81ü"]


def test_a_wrong_encoding_is_named(tmp_path: Path, raises: Callable) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("id,city\na,Zürich\n".encode("latin-1"))
    with raises("wrong-encoding", options={"encoding": ...}):
        list(read_blocks(open_table(path, encoding="utf-8")))
    for name in ("utf-9", "base64", "\0"):
        with raises("unknown-choice", value=name):
            open_tables("nodes", path, encoding=name)


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xef\xbb\xbfid,x\na,1\n")
    assert open_table(path).columns == ("id", "x")


def test_parquet_is_read_as_written_whatever_its_index(tmp_path: Path) -> None:
    frame = pandas.DataFrame({"id": ["a", "b"], "x": [1.5, None]}).set_index("id")
    frame.to_parquet(tmp_path / "t.parquet")
    source = open_table(tmp_path / "t.parquet")
    assert set(source.columns) == {"id", "x"}
    (found,) = read_blocks(source)
    assert found["id"].tolist() == ["a", "b"]


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
