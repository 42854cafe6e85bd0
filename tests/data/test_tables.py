from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas
import pyarrow
import pytest

from pairnorm.data.formats import open_table
from pairnorm.data.tables import Table, read_blocks

Write = Callable[[str, str], Path]


def test_lines_are_counted_as_an_editor_does(write: Write) -> None:
    path = write("t.csv", '\nid,text\na,"two\nlines"\n\n   \nb,x\nc,"y"\n')
    table = open_table(path)
    assert [table.line(row) for row in range(3)] == ["line 3", "line 7", "line 8"]
    (frame,) = read_blocks(table, rows=None)
    assert frame["id"].tolist() == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("text", "code", "where"),
    [
        ("id,x\na,1\nb,2,3\n", "file-damaged", "t.csv"),
        ("id,x\na,1,9\nb,2,3\n", "file-damaged", "t.csv"),
        ('id,x\na,"1\n', "file-damaged", "t.csv"),
    ],
)
def test_broken_rows_are_reported_by_line(
    write: Write, text: str, code: str, where: str, raises: Callable
) -> None:
    with raises(code, where):
        list(read_blocks(open_table(write("t.csv", text))))


def test_an_unknown_column_suggests_the_closest(raises: Callable) -> None:
    source = Table("nodes.csv", ("customer", "risk", "age"))
    assert source.column("label", "risk") == "risk"
    with raises("unknown-column", "nodes.csv", value="riks", hint="Did you mean 'risk'?"):
        source.column("label", "riks")


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
    assert Table("t", ("x",)).texts("x", pandas.Series(cells)).tolist() == expected


def test_numbers_are_nan_where_cells_are_empty() -> None:
    source = Table("t", ("x",))
    for column in ([1, None, 3.5], ["1", None, "3.5"], pandas.array([1, None, 3.5], dtype="Float64")):
        np.testing.assert_array_equal(source.numbers("x", pandas.Series(column)), [1, np.nan, 3.5])
    np.testing.assert_array_equal(source.numbers("x", pandas.Series([True, False, None])), [1, 0, np.nan])
    assert source.numbers("x", pandas.Series(["red", None])) is None


@pytest.mark.parametrize(
    ("cells", "code", "where", "value"),
    [
        (["1", "2", "three"], "not-a-number", "t, row 13", "three"),
        (["1", "2", "\x00"], "not-a-number", "t, row 13", "\x00"),
        ([1.0, np.inf], "not-finite", "t, row 12", np.inf),
        ([1.0, 1e39], "not-finite", "t, row 12", 1e39),
    ],
)
def test_cells_that_are_not_numbers_are_refused(
    cells: object, code: str, where: str, value: object, raises: Callable
) -> None:
    with raises(code, where, value=value):
        Table("t", ("x",)).numbers("x", pandas.Series(cells), first=10)  # type: ignore[call-overload]


@pytest.mark.parametrize("unit", ["s", "ns"])
def test_durations_are_days_and_noted(unit: str) -> None:
    source = Table("t", ("x",))
    cells = pandas.Series(pandas.to_timedelta(["36h", None, "-1D"])).astype(f"m8[{unit}]")
    for column in (cells, cells.astype(object), cells.astype(pandas.ArrowDtype(pyarrow.duration(unit)))):
        np.testing.assert_array_equal(source.numbers("x", column), [1.5, np.nan, -1])
    assert "durations are read as days" in source.all_notes()[0]


def test_bytes_are_refused(raises: Callable) -> None:
    with raises("not-a-cell", hint="Decode it, or pass {ignore}."):
        Table("t", ("x",)).numbers("x", pandas.Series([b"ab", b"c"]))


@pytest.mark.parametrize("kind", [complex, object])
def test_complex_numbers_are_refused(kind: type, raises: Callable) -> None:
    with raises("not-a-cell", "t, row 1: column 'x' holds a complex", value="x"):
        Table("t", ("x",)).numbers("x", pandas.Series([3, 1 + 2j], dtype=kind))


def test_cells_that_are_lists_are_refused(raises: Callable) -> None:
    for cells in ([[1, 2], [3, 4]], [1.0, np.ones(2)], ["1", {"a": 1}]):
        with raises("not-a-cell", value="x"):
            Table("t", ("x",)).numbers("x", pandas.Series(cells))
