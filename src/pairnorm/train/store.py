"""The results store: one SQLite file of trials that survives ``kill -9`` and can be copied and merged."""

import json
import os
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from pairnorm.base.errors import PairNormError, one_of
from pairnorm.base.files import atomic_file, writable
from pairnorm.train.result import (
    ORIGIN,
    SPEC,
    TRIAL,
    TYPES,
    UNEXPECTED,
    Origin,
    Result,
    Trial,
    frame,
    outcome,
    read_csv,
    trial_from_row,
    trial_row,
    write_csv,
)
from pairnorm.train.spec import STORED_NAMES, Spec

if TYPE_CHECKING:
    import pandas
    import torch

APPLICATION = int.from_bytes(b"Pair", "big")
"""SQLite's ``application_id`` of a store."""
SCHEMA_VERSION = 7
"""SQLite's ``user_version`` of a store with the schema of ``schema.sql``; no other is read."""
BUSY_SECONDS = 60
"""How long a process waits for other processes that write."""

_VARIED = ("depth", "scale", "missing_rate")
_PROTOCOL = tuple(name for name in SPEC if name not in _VARIED)
_TRIALS = (
    "trials JOIN (specs JOIN protocols ON protocols.id = specs.protocol) USING (hash) "
    "JOIN origins ON origins.id = trials.origin"
)
_RECORD = ("collection", "key", "value")
_CREATE_RECORDS = (
    "CREATE TABLE IF NOT EXISTS records (collection TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, "
    "PRIMARY KEY (collection, key)) WITHOUT ROWID"
)


def _quote_names(names: Iterable[str]) -> str:
    """Return the names of columns for a query."""
    return ", ".join(f'"{name}"' for name in names)


def _insert_statement(table: str, columns: Sequence[str]) -> str:
    """Return the statement that inserts a row."""
    return f"INSERT INTO {table} ({_quote_names(columns)}) VALUES ({', '.join('?' * len(columns))})"


class Merged(NamedTuple):
    """Counts of the trials that a merge read.

    Args:
        added: trials that this store did not have.
        same: trials that this store had with the same result.
        different: trials that this store had with another result, which it keeps.
    """

    added: int
    same: int
    different: int


class Store:
    """Results in one SQLite file.

    Several processes may write at once, each through a ``Store`` of its own. Trials that are added together
    are written atomically, and a stored trial is never overwritten. The file can be copied to another
    machine, extended there and merged back. Its view ``results`` has one row per trial. Other results of an
    experiment, as JSON, are its ``records``.

    Opening a store imports no code: see ``pairnorm.train.import_method``.

    Args:
        path: the file. A new file, and its folder, are created by the first write.
        read_only: refuse to write or create the file. Default: whether the file is write-protected.

    >>> import tempfile
    >>> spec = Spec("cora", "SGC", 2)
    >>> metrics = dict(train_loss=1.9, validation_loss=1.9, test_loss=1.9,
    ...                train_accuracy=1.0, validation_accuracy=0.79, test_accuracy=0.8)
    >>> with tempfile.TemporaryDirectory() as folder, Store(f"{folder}/results.sqlite") as store:
    ...     store.add(spec, [Trial(seed=0, best_epoch=7, **metrics)], seconds=0.5)
    ...     store.missing(spec, range(3))
    1
    [1, 2]
    """

    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False) -> None:
        self.path = Path(path)
        self.read_only = read_only or (self.path.exists() and not os.access(self.path, os.W_OK))
        self._connection: sqlite3.Connection | None = None
        self._connect(create=self.read_only)

    def _connect(self, *, create: bool) -> sqlite3.Connection | None:
        """Open the file if it exists or ``create`` is set."""
        if self._connection is None and (create or self.path.exists()):
            self._connection = connect(self.path, read_only=self.read_only)
        return self._connection

    def _query(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return all rows of a query; none if there is no file."""
        connection = self._connect(create=False)
        with _explain_errors(self.path):
            # Fetch all rows at once: an open query would block writers.
            return connection.execute(query, values).fetchall() if connection else []

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Write atomically through the connection; create the file if needed."""
        if self.read_only:
            problem = f"{self.path} is open for reading only"
            hint = "Copy it to where you may write."
            raise PairNormError(problem, code="read-only", value=self.path, hint=hint)
        connection = self._connect(create=True)
        assert connection is not None
        with _explain_errors(self.path), transaction(connection):
            yield connection

    def check_writable(self) -> None:
        """Raise an error now, and not after the first training, if the file cannot be written."""
        with self._transaction() as connection:
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        """Return the number of trials."""
        return sum(count for (count,) in self._query("SELECT count(*) FROM trials"))

    def missing(self, spec: Spec, seeds: Iterable[int]) -> list[int]:
        """Return the seeds without a trial of this spec, in the order given."""
        query = "SELECT seed FROM trials WHERE hash = ?"
        present = {seed for (seed,) in self._query(query, [_hash_number(spec.hash)])}
        return [seed for seed in dict.fromkeys(seeds) if seed not in present]

    def add(
        self, spec: Spec, trials: Iterable[Trial], *, seconds: float, device: "torch.device | str" = "cpu"
    ) -> int:
        """Write trials that this process computed together in some seconds; return how many are new."""
        listed = list(trials)
        origin = Origin.here(seconds=seconds, shared_by=len(listed), device=device)
        return self.add_results(Result(spec, trial, origin) for trial in listed)

    def add_results(self, results: Iterable[Result]) -> int:
        """Write results atomically and return how many are new."""
        listed = list(results)
        with self._transaction() as connection:
            return _add(connection, listed)

    def trials(self, spec: Spec) -> list[Trial]:
        """Return the trials of a spec by seed."""
        return self.trials_by_spec(hash=spec.hash).get(spec, [])

    def trials_by_spec(self, **where: Any) -> dict[Spec, list[Trial]]:
        """Return the trials of every spec, sorted. ``where`` restricts a field to a value or several."""
        results = self.results_by_spec(**where)
        return {spec: [result.trial for result in group] for spec, group in results.items()}

    def results(self, **where: Any) -> list[Result]:
        """Return all results, sorted by spec and seed. ``where`` as in ``trials_by_spec``."""
        return [result for group in self.results_by_spec(**where).values() for result in group]

    def results_by_spec(self, **where: Any) -> dict[Spec, list[Result]]:
        """Return the results of every spec, sorted. ``where`` as in ``trials_by_spec``."""
        condition, values = _condition({STORED_NAMES.get(name, name): where[name] for name in where})
        rows = self._query(
            f"SELECT {_quote_names(SPEC)}, {_quote_names(TRIAL)}, {_quote_names(ORIGIN)}, hash, origin "
            f"FROM {_TRIALS} WHERE {condition} ORDER BY {_quote_names(SPEC)}, seed",
            values,
        )
        specs: dict[int, Spec] = {}
        origins: dict[int, Origin] = {}
        by_spec: dict[Spec, list[Result]] = defaultdict(list)
        first, last = len(SPEC), len(SPEC) + len(TRIAL)
        with _explain_errors(self.path, *UNEXPECTED):
            for *row, number, origin in rows:
                if number not in specs:
                    specs[number] = Spec(**dict(zip(SPEC.values(), row[:first], strict=True)))
                if origin not in origins:
                    origins[origin] = Origin(**dict(zip(ORIGIN, row[last:], strict=True)))
                result = Result(specs[number], trial_from_row(row[first:last]), origins[origin])
                by_spec[result.spec].append(result)
        return dict(by_spec)

    def frame(self, **where: Any) -> "pandas.DataFrame":
        """Return the trials as a data frame with a column per measure. ``where`` as in ``trials_by_spec``."""
        return frame(self.results(**where))

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write all trials to a ``.csv`` file, which ``merge`` reads.

        The same trials give the same file: rows are sorted, and numbers have all their digits.
        """
        target = Path(path)
        one_of("suffix of the export", target.suffix, (".csv",))
        with atomic_file(target) as draft:
            write_csv(self.results(), draft)
        return target

    def merge(self, other: str | os.PathLike[str]) -> Merged:
        """Add the trials and records of another store, or the trials of a CSV export, that are new here."""
        source, records = Path(other), list[Any]()
        if source.suffix == ".csv":
            theirs = read_csv(source)
        else:
            with Store(source, read_only=True) as store:
                theirs, records = store.results(), store._records(_RECORD)
        with self._transaction() as connection:
            ours = {(result.spec, result.trial.seed): outcome(result.trial) for result in self.results()}
            added = _add(connection, theirs)
            same = sum(ours.get((spec, trial.seed)) == outcome(trial) for spec, trial, _ in theirs)
            if records:
                connection.execute(_CREATE_RECORDS)
                connection.executemany(
                    f"{_insert_statement('records', _RECORD)} ON CONFLICT DO NOTHING", records
                )
        return Merged(added, same, len(theirs) - added - same)

    def records(self, collection: str) -> dict[str, Any]:
        """Return the JSON values of a collection, such as ``"case-study"``, by key, sorted by key."""
        rows = self._records(("key", "value"), "WHERE collection = ? ORDER BY key", [collection])
        with _explain_errors(self.path, *UNEXPECTED):
            return {key: json.loads(value) for key, value in rows}

    def _records(self, columns: Sequence[str], which: str = "", values: Sequence[Any] = ()) -> list[Any]:
        """Return columns of the records, of which older stores have no table."""
        if not self._query("SELECT 1 FROM sqlite_master WHERE name = 'records'"):
            return []
        return self._query(f"SELECT {_quote_names(columns)} FROM records {which}", values)

    def write_records(self, collection: str, records: Mapping[str, Any]) -> None:
        """Write values of a collection as JSON, by key, atomically; they replace those of the same keys."""
        rows = [(collection, key, json.dumps(value)) for key, value in records.items()]
        replace = "ON CONFLICT DO UPDATE SET value = excluded.value"
        with self._transaction() as connection:
            connection.execute(_CREATE_RECORDS)
            connection.executemany(f"{_insert_statement('records', _RECORD)} {replace}", rows)


def _condition(where: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """Return the SQL condition on a row, and the values of its question marks."""
    parts = ["1"]
    values: list[Any] = []
    for name, requested in where.items():
        several = isinstance(requested, list | tuple | set | range)
        choices = list(requested) if several else [requested]
        parts.append(f'"{one_of("column", name, tuple(TYPES))}" IN ({", ".join("?" * len(choices))})')
        values += map(_hash_number, choices) if name == "hash" else choices
    return " AND ".join(parts), values


def _add(connection: sqlite3.Connection, results: Iterable[Result]) -> int:
    """Insert the new trials with their protocols, specs and origins; return how many were new."""
    columns = {"protocols": _PROTOCOL, "origins": ORIGIN}
    ids: dict[tuple[str, Any], int] = {}
    for table, names in columns.items():
        rows = connection.execute(f"SELECT id, {_quote_names(names)} FROM {table}")
        ids.update(((table, tuple(values)), number) for number, *values in rows)

    def row_id(table: str, *values: Any) -> int:
        """Return the id of the row with these values; insert it if there is none."""
        if (table, values) not in ids:
            inserted = connection.execute(_insert_statement(table, columns[table]), values)
            ids[table, values] = inserted.lastrowid or 0
        return ids[table, values]

    added = 0
    for spec, trial, origin in results:
        number = _hash_number(spec.hash)
        present = "SELECT 1 FROM trials WHERE hash = ? AND seed = ?"
        if connection.execute(present, [number, trial.seed]).fetchone():
            continue
        protocol = row_id("protocols", *(getattr(spec, SPEC[name]) for name in _PROTOCOL))
        connection.execute(
            f"{_insert_statement('specs', ('hash', 'protocol', *_VARIED))} ON CONFLICT DO NOTHING",
            [number, protocol, *(getattr(spec, name) for name in _VARIED)],
        )
        row = [number, *trial_row(trial), row_id("origins", *(getattr(origin, name) for name in ORIGIN))]
        connection.execute(_insert_statement("trials", ("hash", *TRIAL, "origin")), row)
        added += 1
    return added


def _hash_number(digits: str) -> int:
    """Return the 16 hexadecimal digits of a hash as the signed integer that SQLite stores."""
    return int.from_bytes(bytes.fromhex(digits), "big", signed=True)


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """Open the file of a store, or create it.

    The journal is a rollback journal, SQLite's default, and not a write-ahead log: between two writes the one
    file is complete and can be copied, and it can be read from a folder where nothing may be written.
    """
    if read_only and not path.exists():
        hint = "Check the path, or run an experiment first."
        raise _refused(path, "file-missing", "there is no store at", hint)
    if path.exists() and not path.is_file():
        raise _refused(path, "not-a-file", "not a file:", "Name a store, such as results.sqlite.")
    # SQLite would take a file of a single byte for an empty database; a database has at least one page.
    if path.exists() and 0 < path.stat().st_size < 512:
        raise _refused(path, "not-a-store", "neither a store nor any SQLite file:")
    with writable(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    # A reader also opens for writing if it may, so that SQLite can roll back the write of a killed process.
    mode = "rwc" if not read_only else "rw" if os.access(path, os.W_OK) else "ro"
    connection = None
    try:
        with _explain_errors(path):
            uri = f"{path.absolute().as_uri()}?mode={mode}"
            connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
            connection.execute("PRAGMA trusted_schema = OFF")
            # One transaction, since another process may be creating the store at this moment.
            with transaction(connection, "DEFERRED" if path.stat().st_size else "IMMEDIATE"):
                if _is_empty(connection, path):
                    if read_only:
                        raise _refused(path, "empty-store", "an empty file:", "Run an experiment first.")
                    schema = (files("pairnorm.train") / "schema.sql").read_text(encoding="utf-8")
                    for statement in schema.strip().removesuffix(";").split(";\n"):
                        connection.execute(statement)
                    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
                    connection.execute(f"PRAGMA application_id = {APPLICATION}")
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


def _is_empty(connection: sqlite3.Connection, path: Path) -> bool:
    """Return whether the file is empty; raise an error for a file that is not a store."""
    pragmas = (connection.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version"))
    application, version = (int(value) for (value,) in pragmas)
    objects = connection.execute("SELECT type, name, rootpage FROM sqlite_master").fetchall()
    if not (application or version or objects):
        return True
    if application != APPLICATION:
        raise _refused(path, "not-a-store", "the SQLite file of another program:")
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


def _refused(path: Path, code: str, problem: str, hint: str = "Choose another path.") -> PairNormError:
    """Return the error about a path that cannot be opened as a store."""
    return PairNormError(f"{problem} {path}", code=code, value=path, hint=hint)


_NOT_WRITABLE = ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")


@contextmanager
def _explain_errors(path: Path, *kinds: type[Exception]) -> Iterator[None]:
    """Replace errors of SQLite, and errors of other kinds about values that no store holds."""
    try:
        yield
    except (sqlite3.ProgrammingError, sqlite3.InterfaceError):
        raise  # a mistake of this package, such as a wrong number of values
    except Exception as error:
        # SQLite may quote bytes of a damaged file, which are not UTF-8.
        if not isinstance(error, (sqlite3.Error, UnicodeDecodeError, *kinds)):
            raise
        if getattr(error, "code", "") == "not-imported":  # a method that is not imported is no damage
            raise
        kind = getattr(error, "sqlite_errorname", "")
        if kind == "SQLITE_NOTADB":
            raise _refused(path, "not-a-store", "neither a store nor any SQLite file:") from error
        name, problem = "store-damaged", f"{path} is damaged ({' '.join(str(error).split())[:200]})"
        hint = "Restore a copy; `sqlite3 FILE .recover` saves what can be read."
        if kind.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            name, problem = (
                "store-locked",
                f"{path} has been locked by another process for {BUSY_SECONDS} seconds",
            )
            hint = "Wait until that process ends, or end it; then run the same command again."
        elif kind.startswith(_NOT_WRITABLE):
            name, problem = "not-writable", f"{path} cannot be opened or written ({error})"
            hint = "Make room, or choose a folder where you may write."
            journal = path.with_name(f"{path.name}-journal")
            if journal.exists():
                hint = f"Make room, or copy it with {journal.name} to where you may write."
        raise PairNormError(problem, code=name, value=path, hint=hint) from error
