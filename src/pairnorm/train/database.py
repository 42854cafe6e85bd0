"""The SQLite file of a store: its schema, how it is opened and checked, and the messages of its errors."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

from pairnorm.base.errors import PairNormError
from pairnorm.base.files import writable
from pairnorm.train.result import UNEXPECTED

APPLICATION = int.from_bytes(b"Pair", "big")
"""SQLite's ``application_id`` of a store."""

SCHEMA_VERSION = 7
"""SQLite's ``user_version`` of a store with the schema of ``schema.sql``; no other is read."""

BUSY_SECONDS = 60
"""How long a process waits for other processes that write."""


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """Open the file of a store, or create it.

    The journal is a rollback journal, SQLite's default, and not a write-ahead log: between two writes the one
    file is complete and can be copied, and it can be read from a folder where nothing may be written.
    """
    if read_only and not path.exists():
        hint = "Check the path, or run an experiment first."
        raise _no_store(path, "file-missing", "there is no store at", hint)
    if path.exists() and not path.is_file():
        raise _no_store(path, "not-a-file", "not a file:", "Name a store, such as results.sqlite.")
    # SQLite would take a file of a single byte for an empty database; a database has at least one page.
    if path.exists() and 0 < path.stat().st_size < 512:
        raise _not_a_database(path)
    with writable(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    # A reader also opens for writing if it may, so that SQLite can roll back the write of a killed process.
    mode = "rwc" if not read_only else "rw" if os.access(path, os.W_OK) else "ro"
    connection = None
    try:
        with translate_errors(path):
            uri = f"{path.absolute().as_uri()}?mode={mode}"
            connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
            connection.execute("PRAGMA trusted_schema = OFF")
            # One transaction, since another process may be creating the store at this moment.
            with transaction(connection, "DEFERRED" if path.stat().st_size else "IMMEDIATE"):
                is_empty = _check_schema(connection, path)
                if is_empty and read_only:
                    raise _no_store(path, "empty-store", "an empty file:", "Run an experiment first.")
                if is_empty:
                    _create_tables(connection)
            if read_only:
                connection.execute("PRAGMA query_only = ON")
    except BaseException:
        if connection is not None:
            connection.close()
        raise
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection, kind: str = "IMMEDIATE") -> Iterator[None]:
    """Commit everything inside at once, or roll all of it back after an error."""
    connection.execute(f"BEGIN {kind}")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _check_schema(connection: sqlite3.Connection, path: Path) -> bool:
    """Return whether the file is empty; raise an error for a file that is not a store."""
    application, version = (
        int(connection.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("application_id", "user_version")
    )
    objects = connection.execute("SELECT type, name, rootpage FROM sqlite_master").fetchall()
    if not (application or version or objects):
        return True
    if application != APPLICATION:
        raise _no_store(path, "not-a-store", "the SQLite file of another program:", "Choose another path.")
    if version != SCHEMA_VERSION:
        which, hint = "newer", "Upgrade pairnorm."
        if version < SCHEMA_VERSION:
            which, hint = "older", "Export it as .csv with the pairnorm that wrote it, and merge that file."
        problem = f"{path} is from a pairnorm that is {which} than this one (schema version {version})"
        expected = f"version {SCHEMA_VERSION}"
        raise PairNormError(problem, code=f"{which}-store", value=version, expected=expected, hint=hint)
    for kind, name, page in objects:
        # A view or a virtual table can run without end when it is read, a trigger when a row is added.
        is_computed = kind == "trigger" or (kind in ("table", "view") and not page)
        if is_computed and (kind, name) != ("view", "results"):
            problem = f"{path} has a {kind} {str(name)[:50]!r} that no store has"
            hint = "Do not use this file: somebody changed it."
            raise PairNormError(problem, code="store-damaged", value=path, hint=hint)
    return False


def _create_tables(connection: sqlite3.Connection) -> None:
    schema = (files("pairnorm.train") / "schema.sql").read_text(encoding="utf-8")
    for statement in schema.strip().removesuffix(";").split(";\n"):
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute(f"PRAGMA application_id = {APPLICATION}")


def hash_number(digits: str) -> int:
    """Return the 16 hexadecimal digits of a hash as the signed integer that SQLite stores."""
    return int.from_bytes(bytes.fromhex(digits), "big", signed=True)


@contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Replace SQLite's errors about a file by errors that say what happened and what helps."""
    try:
        yield
    except UnicodeDecodeError as error:  # SQLite's message quotes the bytes of a damaged file
        raise file_error(path, error) from error
    except sqlite3.Error as error:
        if isinstance(error, sqlite3.ProgrammingError | sqlite3.InterfaceError):
            raise  # a mistake of this package, such as a wrong number of values
        raise file_error(path, error, getattr(error, "sqlite_errorcode", 0) & 0xFF) from error


@contextmanager
def damaged_values(path: Path) -> Iterator[None]:
    """Replace errors about values that no store holds; a method that is not imported is no damage."""
    try:
        yield
    except UNEXPECTED as error:
        if isinstance(error, PairNormError) and error.code == "not-imported":
            raise
        raise file_error(path, error) from error


_NOT_WRITABLE = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
)


def file_error(path: Path, error: Exception, code: int = 0) -> PairNormError:
    """Return the error to raise for an error of SQLite, or for values that no store holds."""
    if code == sqlite3.SQLITE_NOTADB:
        return _not_a_database(path)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        problem = f"{path} has been locked by another process for {BUSY_SECONDS} seconds"
        hint = "Wait until that process ends, or end it; then run the same command again."
        return PairNormError(problem, code="store-locked", value=path, hint=hint)
    if code in _NOT_WRITABLE:
        journal = path.with_name(f"{path.name}-journal")
        hint = "Make room, or choose a folder where you may write."
        if journal.exists():
            hint = f"Make room, or copy it with {journal.name} to where you may write."
        problem = f"{path} cannot be opened or written ({error})"
        return PairNormError(problem, code="not-writable", value=path, hint=hint)
    problem = f"{path} is damaged ({' '.join(str(error).split())[:200]})"
    hint = "Restore a copy; `sqlite3 FILE .recover` saves what can be read."
    return PairNormError(problem, code="store-damaged", value=path, hint=hint)


def _no_store(path: Path, code: str, problem: str, hint: str) -> PairNormError:
    return PairNormError(f"{problem} {path}", code=code, value=path, hint=hint)


def _not_a_database(path: Path) -> PairNormError:
    return _no_store(path, "not-a-store", "neither a store nor any SQLite file:", "Choose another path.")
