from pathlib import Path

import numpy as np
import pytest

from pairnorm.base import databases
from pairnorm.data import queries
from pairnorm.data.encoder import ColumnOptions
from pairnorm.data.queries import Cell, Database, QueriedTable

duckdb = pytest.importorskip("duckdb", reason="needs duckdb: pip install pairnorm[all]")


@pytest.fixture
def database(tmp_path: Path) -> Database:
    result = Database(tmp_path, 2**28)
    yield result
    result.close()


@pytest.mark.parametrize(
    ("cell", "kind", "text"),
    [
        ("'  a b '", "VARCHAR", "a b"),
        ("'   '", "VARCHAR", None),
        ("3.0", "DOUBLE", "3"),
        ("3.5", "DOUBLE", "3.5"),
        ("7", "BIGINT", "7"),
    ],
)
def test_cells_are_text_as_files_write_it(database: Database, cell: str, kind: str, text: str | None) -> None:
    query = f"SELECT {Cell('x', kind).text} FROM (SELECT {cell}::{kind} AS x)"
    assert database.run(query) == [(text,)]


@pytest.mark.parametrize(
    ("cell", "number"),
    [
        ("7", 7),
        ("7.0", 7),
        ("7.5", None),
        ("07", 7),
        ("x", None),
        (" 7 ", 7),
        ("", None),
        ("9007199254740993", 9007199254740993),
    ],
)
def test_an_endpoint_is_a_node_where_it_is_the_same_whole_number(database, cell, number) -> None:
    query = f"SELECT {Cell('x', 'VARCHAR').endpoint(is_integer=True)} FROM (SELECT '{cell}' AS x)"
    assert database.run(query) == [(number,)]


@pytest.mark.parametrize(("cell", "number"), [("1e3", 1000.0), ("NA", None), ("", None), ("two", None)])
def test_a_text_may_be_a_number(database: Database, cell: str, number: float | None) -> None:
    query = f"SELECT {Cell('x', 'VARCHAR').number} FROM (SELECT '{cell}' AS x)"
    assert database.run(query) == [(number,)]


@pytest.mark.parametrize("name", ["a", "o'brien", 'say "so"', "x; DROP TABLE y", "größe"])
def test_names_and_texts_come_through_sql_as_they_are(database: Database, name: str) -> None:
    column, text = queries.sql_name(name), queries.sql_text(name)
    assert database.run(f"SELECT {column} FROM (SELECT {text} AS {column})") == [(name,)]
    assert database.run(f"SELECT {text} IN {queries.sql_row([name, 'b'])}") == [(True,)]


def test_batches_are_all_rows_in_order(database: Database) -> None:
    result = [column for (column,) in database.batches("SELECT * FROM range(10000)", 3000)]
    assert len(result) > 1
    np.testing.assert_array_equal(np.concatenate(result), np.arange(10000))


def test_files_of_a_pattern_are_one_table(database: Database, tmp_path: Path) -> None:
    for number in (2, 1):
        (tmp_path / f"part-{number}.csv").write_text(f"id;x\nn{number};{number}\n")
    table = QueriedTable(database, tmp_path / "part-*.csv", "nodes", ColumnOptions())
    assert table.source.text.delimiter == ";"
    rows = database.run(f"SELECT * FROM {table.from_(['id', 'x'])} ORDER BY ALL")
    assert rows == [("n1", "1"), ("n2", "2")]


def test_files_with_other_columns_are_refused(database: Database, tmp_path: Path, raises) -> None:
    (tmp_path / "a.csv").write_text("id,x\n1,2\n")
    (tmp_path / "b.csv").write_text("id,y\n1,2\n")
    with raises("unlike-columns", value="b.csv"):
        QueriedTable(database, [tmp_path / "a.csv", tmp_path / "b.csv"], "nodes", ColumnOptions())


def test_duckdb_errors_on_memory_suggest_the_option(raises) -> None:
    with raises("too-large", value=100), databases.explain_duckdb_errors(100):
        raise duckdb.OutOfMemoryException("no room")
    with raises("file-damaged"), databases.explain_duckdb_errors(100):
        raise duckdb.InvalidInputException("line 3")
