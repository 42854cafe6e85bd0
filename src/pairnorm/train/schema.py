"""The file behind the store: its table, how it is opened, lifted when older and refused when foreign."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pairnorm.errors import PairNormError
from pairnorm.writing import writable

APPLICATION = int.from_bytes(b"Pair", "big")
"""SQLite's ``application_id`` of a store."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    # NULL stands for NaN in the metrics: SQLite keeps no NaN.
    (
        """
    CREATE TABLE trials (
        "hash" TEXT NOT NULL,
        "dataset" TEXT NOT NULL,
        "model" TEXT NOT NULL,
        "depth" INTEGER NOT NULL,
        "hidden" INTEGER NOT NULL,
        "heads" INTEGER NOT NULL,
        "norm" TEXT NOT NULL,
        "scale" REAL NOT NULL,
        "order" TEXT NOT NULL,
        "skip" INTEGER NOT NULL,
        "dropout" REAL NOT NULL,
        "adjacency" TEXT NOT NULL,
        "missing_rate" REAL NOT NULL,
        "missing_kind" TEXT NOT NULL,
        "split" TEXT NOT NULL,
        "learning_rate" REAL NOT NULL,
        "weight_decay" REAL NOT NULL,
        "epochs" INTEGER NOT NULL,
        "seed" INTEGER NOT NULL,
        "diverged" INTEGER NOT NULL,
        "best_epoch" INTEGER NOT NULL,
        "train_loss" REAL,
        "train_accuracy" REAL,
        "validation_loss" REAL,
        "validation_accuracy" REAL,
        "test_loss" REAL,
        "test_accuracy" REAL,
        "measures" TEXT NOT NULL,
        "curves" TEXT,
        "seconds" REAL NOT NULL,
        "shared_by" INTEGER NOT NULL,
        "pairnorm_version" TEXT NOT NULL,
        "torch_version" TEXT NOT NULL,
        "python_version" TEXT NOT NULL,
        "device" TEXT NOT NULL,
        "git_commit" TEXT,
        "finished" TEXT NOT NULL,
        PRIMARY KEY ("hash", "seed")
    )
    """,
    ),
    ("ALTER TABLE trials ADD COLUMN \"scaling\" TEXT NOT NULL DEFAULT 'rows'",),
)
"""Entry i lifts a store from schema version i to i + 1; a new store starts at 0. Append, never edit."""

BUSY_SECONDS = 60
"""How long a process waits for others that write."""


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """Open a store's file, made if there is none and lifted to the present schema if it is older.

    Of an older file that is only to be read, a copy in memory is lifted.

    The journal is a rollback journal, SQLite's default, and not a write-ahead log: between two writes the one
    file is complete and can be copied, and it can be read from a folder where nothing may be written.
    """
    if read_only and not path.exists():
        raise PairNormError(f"there is no store at {path}; check the path, or run an experiment first.")
    if path.exists() and not path.is_file():
        raise PairNormError(f"{path} is not a file; expected the path of a store, such as results.sqlite.")
    # Less than a page is no database, though SQLite would take a single byte for an empty one and use it.
    if path.exists() and 0 < path.stat().st_size < 512:
        raise PairNormError(_foreign(path))
    with writable(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    # A reader also opens for writing where it may, so that it can undo what a killed writer left half done.
    mode = "rwc" if not read_only else "rw" if os.access(path, os.W_OK) else "ro"
    connection = None
    try:
        uri = f"{path.absolute().as_uri()}?mode={mode}"
        connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
        # One look, not several: another process may be making the store right now.
        with transaction(connection, "DEFERRED"):
            version = _version(connection, path)
        if read_only:
            if version == 0:
                raise PairNormError(f"{path} is an empty file; run an experiment first.")
            if version < len(MIGRATIONS):
                connection = _lifted_copy(connection, path)
            connection.execute("PRAGMA query_only = ON")
        elif version < len(MIGRATIONS):
            _lift(connection, path)
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, sqlite3.Error):
            raise PairNormError(_unreadable(path, error)) from error
        raise
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection, kind: str = "IMMEDIATE") -> Iterator[None]:
    """Do all that is inside at once as others see it, or, if anything goes wrong, nothing of it."""
    connection.execute(f"BEGIN {kind}")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection, path: Path) -> int:
    """Return the schema version, 0 for a file that is still empty; refuse a file that is no store."""
    application, version, tables = (
        int(connection.execute(query).fetchone()[0])
        for query in ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
    )
    if application != APPLICATION and (application or version or tables):
        raise PairNormError(f"{path} is the SQLite file of another program; choose another path.")
    if version > len(MIGRATIONS):
        raise PairNormError(
            f"{path} was written by a newer pairnorm (schema version {version}; "
            f"this one reads up to {len(MIGRATIONS)}); upgrade pairnorm."
        )
    return version


def _lift(connection: sqlite3.Connection, path: Path) -> None:
    with transaction(connection):
        # The version is read again: another process may have been first.
        for version in range(_version(connection, path), len(MIGRATIONS)):
            for statement in MIGRATIONS[version]:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {version + 1}")
        connection.execute(f"PRAGMA application_id = {APPLICATION}")


def _lifted_copy(connection: sqlite3.Connection, path: Path) -> sqlite3.Connection:
    copy = sqlite3.connect(":memory:", isolation_level=None)
    connection.backup(copy)
    connection.close()
    _lift(copy, path)
    return copy


def _unreadable(path: Path, error: sqlite3.Error) -> str:
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB:
        return _foreign(path)
    journal = path.with_name(f"{path.name}-journal")
    if journal.exists():
        return f"{path} cannot be opened ({error}); copy it with {journal.name} to where you may write."
    return f"{path} cannot be opened ({error}); check that it is whole and that you may read and write there."


def _foreign(path: Path) -> str:
    return f"{path} is not a store, nor any SQLite file; choose another path."
