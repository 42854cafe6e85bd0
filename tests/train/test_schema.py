import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from pairnorm.errors import PairNormError
from pairnorm.train import Spec, Store, Trial, schema
from pairnorm.train.origin import Origin
from pairnorm.train.record import COLUMNS, TYPES, row
from pairnorm.train.schema import APPLICATION, MIGRATIONS, connect, transaction
from pairnorm.train.spec import LATER


def columns(connection: sqlite3.Connection) -> dict[str, str]:
    return {row[1]: row[2] for row in connection.execute("PRAGMA table_info(trials)")}


def version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a store with a row, of the present version."""
    path = tmp_path / "results.sqlite"
    with closing(connect(path)) as connection:
        values = [0 if TYPES[name] in (int, float, bool) else name for name in COLUMNS]
        names = ", ".join(f'"{name}"' for name in COLUMNS)
        connection.execute(f"INSERT INTO trials ({names}) VALUES ({', '.join('?' * len(values))})", values)
    return path


def test_the_table_has_the_columns_of_a_row(path: Path) -> None:
    with closing(connect(path)) as connection:
        found = columns(connection)
        assert version(connection) == len(MIGRATIONS)
        assert connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION
        # No write-ahead log: the one file must be complete.
        assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "delete"
    assert set(found) == set(COLUMNS)
    kinds = {bool: "INTEGER", int: "INTEGER", float: "REAL"}
    assert found == {name: kinds.get(TYPES[name], "TEXT") for name in COLUMNS}


def test_an_older_store_is_lifted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = (("ALTER TABLE trials ADD COLUMN note TEXT", "UPDATE trials SET note = device"),)
    monkeypatch.setattr(schema, "MIGRATIONS", MIGRATIONS + steps)
    before = path.read_bytes()
    with closing(connect(path, read_only=True)) as connection:
        assert connection.execute("SELECT seed, note FROM trials").fetchall() == [(0, "device")]
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            connection.execute("DELETE FROM trials")
    assert path.read_bytes() == before
    with closing(connect(path)) as connection:
        assert version(connection) == 3
        assert connection.execute("SELECT seed, note FROM trials").fetchall() == [(0, "device")]
    with closing(connect(path, read_only=True)) as connection:
        assert "note" in columns(connection)
    with closing(connect(path.with_name("new.sqlite"))) as connection:
        assert version(connection) == 3
        assert "note" in columns(connection)


def test_a_store_of_the_first_version_keeps_its_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, spec = tmp_path / "old.sqlite", Spec("cora", "SGC", 2)
    metrics = {
        f"{part}_{what}": 0.5 for part in ("train", "validation", "test") for what in ("loss", "accuracy")
    }
    first = [name for name in COLUMNS if name not in LATER]
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", MIGRATIONS[:1])
        with closing(connect(path)) as connection:
            assert set(columns(connection)) == set(first)
            written = row(
                spec,
                Trial(seed=3, best_epoch=1, **metrics),
                Origin.here(seconds=1.0, shared_by=1, device="cpu"),
            )
            values = [json.dumps(written[name]) if name == "measures" else written[name] for name in first]
            names = ", ".join(f'"{name}"' for name in first)
            marks = ", ".join("?" * len(first))
            connection.execute(f"INSERT INTO trials ({names}) VALUES ({marks})", values)
    for read_only in (True, False):
        with Store(path, read_only=read_only) as store:
            assert store.missing(spec, [3, 4]) == [4]
            assert list(store.cells()) == [spec]


def test_a_lift_that_fails_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path.read_bytes()
    steps = (("ALTER TABLE trials ADD COLUMN note TEXT", "UPDATE nowhere SET note = 1"),)
    monkeypatch.setattr(schema, "MIGRATIONS", MIGRATIONS + steps)
    with pytest.raises(
        PairNormError, match=r"cannot be opened \(no such table: main.nowhere\)|no such table: nowhere"
    ):
        connect(path)
    assert path.read_bytes() == before


def test_a_newer_store_is_refused(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 7")
    _check_refused(
        path, "was written by a newer pairnorm .schema version 7; this one reads up to 2.; upgrade"
    )


@pytest.mark.parametrize(
    "content", [b"x", b"dataset,model\n" * 5, bytes(5000), b"SQLite format 3\0" + bytes(100)]
)
def test_what_is_no_database_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "results.csv"
    path.write_bytes(content)
    _check_refused(path, "results.csv is not a store, nor any SQLite file; choose another path")


@pytest.mark.parametrize(
    "statement",
    ["CREATE TABLE trials (seed INTEGER)", "PRAGMA user_version = 1", "PRAGMA application_id = 5"],
)
def test_the_database_of_another_program_is_refused(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "places.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(statement)
    _check_refused(path, "places.sqlite is the SQLite file of another program; choose another path")


def _check_refused(path: Path, message: str) -> None:
    before = path.read_bytes()
    for read_only in (True, False):
        with pytest.raises(PairNormError, match=message):
            connect(path, read_only=read_only)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_path_that_cannot_be_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PairNormError, match="is not a file; expected the path of a store"):
        connect(tmp_path)
    with pytest.raises(PairNormError, match="there is no store at"):
        connect(tmp_path / "none.sqlite", read_only=True)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_file_is_a_new_store_but_nothing_to_read(tmp_path: Path) -> None:
    path = tmp_path / "a ?name# with%20signs"
    path.touch()
    with pytest.raises(PairNormError, match="is an empty file; run an experiment first"):
        connect(path, read_only=True)
    with closing(connect(path)) as connection:
        assert version(connection) == 2
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_transaction_leaves_nothing(path: Path) -> None:
    with closing(connect(path)) as connection:
        with pytest.raises(sqlite3.OperationalError), transaction(connection):
            connection.executemany("DELETE FROM trials WHERE ? = device OR nothing()", [("device",)])
        assert connection.execute("SELECT count(*) FROM trials").fetchone() == (1,)


def test_what_a_killed_writer_left_is_undone_or_explained(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = path.read_bytes()
    journal = path.with_name(f"{path.name}-journal")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        # So small a cache spills changes into the file before they are committed, as in a commit cut short.
        connection.execute("PRAGMA cache_size = 1")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("UPDATE trials SET curves = hex(zeroblob(100000))")
        shutil.copy(path, path.with_name("copy"))
        shutil.copy(journal, path.with_name("copy-journal"))
        connection.execute("ROLLBACK")
    copy = path.with_name("copy")
    assert copy.read_bytes() != whole
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
        with pytest.raises(PairNormError, match="copy it with copy-journal to where you may write"):
            connect(copy, read_only=True)
    with closing(connect(copy, read_only=True)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("SELECT curves FROM trials").fetchall() == [("curves",)]
