"""The results store: one SQLite file of trials that survives ``kill -9`` and travels."""

import json
import os
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from math import nan
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from pairnorm.base.errors import PairNormError, one_of
from pairnorm.base.files import whole_file, writable
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
    read_csv,
    write_csv,
    write_parquet,
)
from pairnorm.train.spec import STORED_NAMES, Spec

if TYPE_CHECKING:
    import pandas
    import torch

APPLICATION = int.from_bytes(b"Pair", "big")
"""SQLite's ``application_id`` of a store."""

BUSY_SECONDS = 60
"""How long a process waits for others that write."""

_FILES = sorted(
    (files("pairnorm.train") / "migrations").iterdir(), key=lambda file: int(file.name.split(".")[0])
)
MIGRATIONS: tuple[tuple[str, ...], ...] = tuple(
    tuple(file.read_text(encoding="utf-8").strip().removesuffix(";").split(";\n")) for file in _FILES
)
"""Entry i lifts a store from schema version i to i + 1; a new store starts at 0. Append, never edit."""


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """Open a store's file, made if there is none and lifted to the present schema if it is older.

    Of an older file that is only to be read, a copy in memory is lifted.

    The journal is a rollback journal, SQLite's default, and not a write-ahead log: between two writes the one
    file is complete and can be copied, and it can be read from a folder where nothing may be written.
    """
    if read_only and not path.exists():
        raise _no_store(
            path, "file-missing", "there is no store at", "Check the path, or run an experiment first."
        )
    if path.exists() and not path.is_file():
        raise _no_store(path, "not-a-file", "not a file:", "Name a store, such as results.sqlite.")
    # Less than a page is no database, though SQLite would take a single byte for an empty one and use it.
    if path.exists() and 0 < path.stat().st_size < 512:
        raise _foreign(path)
    with writable(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    # A reader also opens for writing where it may, so that it can undo what a killed writer left half done.
    mode = "rwc" if not read_only else "rw" if os.access(path, os.W_OK) else "ro"
    connection = None
    try:
        with faults(path):
            uri = f"{path.absolute().as_uri()}?mode={mode}"
            connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
            # One look, not several: another process may be making the store right now.
            with transaction(connection, "DEFERRED"):
                version = _version(connection, path)
            if read_only:
                if version == 0:
                    raise _no_store(path, "empty-store", "an empty file:", "Run an experiment first.")
                if version < len(MIGRATIONS):
                    connection = _lifted_copy(connection, path)
                connection.execute("PRAGMA query_only = ON")
            elif version < len(MIGRATIONS):
                _lift(connection, path)
    except BaseException:
        if connection is not None:
            connection.close()
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
        raise _no_store(path, "not-a-store", "the SQLite file of another program:", "Choose another path.")
    if version > len(MIGRATIONS):
        problem = f"{path} was written by a newer pairnorm (schema version {version})"
        expected = f"up to {len(MIGRATIONS)}"
        hint = "Upgrade pairnorm."
        raise PairNormError(problem, code="newer-store", value=version, expected=expected, hint=hint)
    return version


def _lift(connection: sqlite3.Connection, path: Path) -> None:
    connection.create_function("hash_number", 1, _hash_number, deterministic=True)
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


def _hash_number(digits: str) -> int:
    return int.from_bytes(bytes.fromhex(digits), "big", signed=True)


@contextmanager
def faults(path: Path) -> Iterator[None]:
    """Say what went wrong with a store's file, in place of SQLite's own errors."""
    try:
        yield
    except UnicodeDecodeError as error:  # SQLite quotes what a damaged file holds, and Python cannot read it
        raise _fault(path, error) from error
    except sqlite3.Error as error:
        if isinstance(error, sqlite3.ProgrammingError | sqlite3.InterfaceError):
            raise  # a mistake of ours, such as a wrong number of values
        raise _fault(path, error, getattr(error, "sqlite_errorcode", 0) & 0xFF) from error


def _fault(path: Path, error: Exception, code: int = 0) -> PairNormError:
    if code == sqlite3.SQLITE_NOTADB:
        return _foreign(path)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        problem = f"{path} has been locked by another process for {BUSY_SECONDS} seconds"
        hint = "Wait until that one ends, or end it; the same command then goes on."
        return PairNormError(problem, code="store-locked", value=path, hint=hint)
    journal = path.with_name(f"{path.name}-journal")
    if code in _NOT_WRITABLE:
        hint = "Make room, or choose a place where you may write."
        if journal.exists():
            hint = f"Make room, or copy it with {journal.name} to where you may write."
        return PairNormError(
            f"{path} cannot be opened or written ({error})", code="not-writable", value=path, hint=hint
        )
    problem = f"{path} is damaged ({' '.join(str(error).split())[:200]})"
    hint = "Restore a copy; `sqlite3 FILE .recover` saves what can be read."
    return PairNormError(problem, code="store-damaged", value=path, hint=hint)


_NOT_WRITABLE = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
)


def _no_store(path: Path, code: str, what: str, hint: str) -> PairNormError:
    return PairNormError(f"{what} {path}", code=code, value=path, hint=hint)


def _foreign(path: Path) -> PairNormError:
    return _no_store(path, "not-a-store", "neither a store nor any SQLite file:", "Choose another path.")


def _names(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


_VARIED = ("depth", "scale", "missing_rate")
_PROTOCOL = tuple(name for name in SPEC if name not in _VARIED)
_METRICS = tuple(name for name in TRIAL if TYPES[name] is float)
_SPECS = "specs JOIN protocols ON protocols.id = specs.protocol"
_TRIALS = f"trials JOIN ({_SPECS}) USING (hash) JOIN origins ON origins.id = trials.origin"


def _insert(table: str, columns: Sequence[str]) -> str:
    return f"INSERT INTO {table} ({_names(columns)}) VALUES ({', '.join('?' * len(columns))})"


class Merged(NamedTuple):
    """What a merge found.

    Args:
        added: how many trials were new here.
        same: how many were here already with the same result.
        different: how many were here with another one, which is kept.
    """

    added: int
    same: int
    different: int


class Store:
    """Results in one SQLite file.

    Several processes may write at once, each through a ``Store`` of its own. A cell is written in full or not
    at all, whatever happens meanwhile, and a trial that is there is never overwritten. The file can be copied
    to another machine, added to there and merged back. Its view ``results`` has a row per trial.

    Args:
        path: the file; if there is none it is made, with its folder, when something is first written.
        read_only: refuse to write or to create; also so for a file that may not be written.

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
        """Open the file; one that is not there is made, or refused, only where ``create`` asks for it."""
        if self._connection is None and (create or self.path.exists()):
            self._connection = connect(self.path, read_only=self.read_only)
        return self._connection

    def _query(self, query: str, condition: str = "", values: Sequence[Any] = ()) -> list[Any]:
        connection = self._connect(create=False)
        with faults(self.path):
            # Fetched at once: an open query would hold up the writers.
            found = connection.execute(query.replace("%s", condition), values) if connection else None
            return found.fetchall() if found else []

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        if self.read_only:
            problem = f"{self.path} is open for reading only"
            hint = "Copy it to where you may write."
            raise PairNormError(problem, code="read-only", value=self.path, hint=hint)
        connection = self._connect(create=True)
        assert connection is not None
        with faults(self.path), transaction(connection):
            yield connection

    def check_writable(self) -> None:
        """Write the file as it is, made if there is none: what cannot be written is better known early."""
        with self._transaction() as connection:
            connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")

    def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r}, read_only={self.read_only})"

    def __len__(self) -> int:
        """Return the number of trials."""
        return sum(count for (count,) in self._query("SELECT count(*) FROM trials"))

    def missing(self, spec: Spec, seeds: Iterable[int]) -> list[int]:
        """Return the seeds for which there is no trial of this spec yet, in the order given."""
        found = self._query("SELECT seed FROM trials WHERE %s", *_condition({"hash": spec.hash}))
        present = {seed for (seed,) in found}
        return [seed for seed in dict.fromkeys(seeds) if seed not in present]

    def add(
        self, spec: Spec, trials: Iterable[Trial], *, seconds: float, device: "torch.device | str" = "cpu"
    ) -> int:
        """Write a cell, all of it or nothing, and return how many of its trials are new."""
        return self.add_cells({spec: trials}, seconds=seconds, device=device)

    def add_cells(
        self, cells: Mapping[Spec, Iterable[Trial]], *, seconds: float, device: "torch.device | str" = "cpu"
    ) -> int:
        """Write cells that this process computed together, and return how many trials are new.

        Args:
            cells: the trials of each spec.
            seconds: the time all of them took together.
            device: where they were computed.
        """
        pairs = [(spec, trial) for spec, trials in cells.items() for trial in trials]
        origin = Origin.here(seconds=seconds, shared_by=len(pairs), device=device)
        return self.add_results(Result(spec, trial, origin) for spec, trial in pairs)

    def add_results(self, results: Iterable[Result]) -> int:
        """Write results, all or nothing, and return how many are new."""
        given = list(results)
        with self._transaction() as connection:
            return _add(connection, given)

    def trials(self, spec: Spec) -> list[Trial]:
        """Return the trials of a spec by seed."""
        return self.cells(hash=spec.hash).get(spec, [])

    def cells(self, **where: Any) -> dict[Spec, list[Trial]]:
        """Return the trials of every spec, sorted; ``where`` narrows a field to a value or a list."""
        return {spec: [trial for trial, _ in found] for spec, found in self._read(where)}

    def results(self, **where: Any) -> list[Result]:
        """Return all results, sorted by spec and seed; ``where`` as in ``cells``."""
        return [result for some in self.results_by_spec(**where).values() for result in some]

    def results_by_spec(self, **where: Any) -> dict[Spec, list[Result]]:
        """Return the results of every spec, sorted; ``where`` as in ``cells``."""
        cells = list(self._read(where))
        found = self._query(f"SELECT id, {_names(ORIGIN)} FROM origins")
        try:
            origins = {number: Origin(**dict(zip(ORIGIN, values, strict=True))) for number, *values in found}
            results: dict[Spec, list[Result]] = defaultdict(list)
            for spec, trials in cells:  # of an older store, several may be the same spec by now
                results[spec] += [Result(spec, trial, origins[key]) for trial, key in trials]
            return results
        except UNEXPECTED as error:
            raise _fault(self.path, error) from error

    def frame(self, **where: Any) -> "pandas.DataFrame":
        """Return the trials as a data frame, a column for each measure; ``where`` as in ``cells``."""
        return frame(self.results(**where))

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write all trials as ``.csv``, which ``merge`` reads, or as ``.parquet``, without curves.

        The same trials always give the same file: rows are sorted, numbers have all their digits.
        """
        target = Path(path)
        suffix = one_of("suffix of the export", target.suffix, (".csv", ".parquet"))
        with whole_file(target) as draft:
            if suffix == ".csv":
                write_csv(self.results(), draft)
            else:
                write_parquet(self.results(), draft)
        return target

    def merge(self, other: str | os.PathLike[str]) -> Merged:
        """Add the trials of another store, or of a store's CSV export, that are not here yet."""
        source = Path(other)
        if source.suffix == ".csv":
            theirs = read_csv(source)
        else:
            with Store(source, read_only=True) as store:
                theirs = store.results()
        with self._transaction() as connection:
            ours = {
                (spec, trial.seed): _outcome(trial)
                for spec, trials in self.cells().items()
                for trial in trials
            }
            added = _add(connection, theirs)
            same = sum(ours.get((spec, trial.seed)) == _outcome(trial) for spec, trial, _ in theirs)
        return Merged(added, same, len(theirs) - added - same)

    def _read(self, where: Mapping[str, Any]) -> Iterator[tuple[Spec, list[tuple[Trial, int]]]]:
        """Yield the specs, sorted, with their trials by seed and the numbers of these trials' origins.

        A spec is made once, however many trials it has.
        """
        where = {STORED_NAMES.get(name, name): value for name, value in where.items()}
        of_spec = {name: value for name, value in where.items() if name in ("hash", *SPEC)}
        # In the order of the file: nothing is sorted, and nothing joined where all are requested.
        tables = _TRIALS if where else "trials"
        trial_query = f"SELECT hash, origin, {_names(TRIAL)} FROM {tables} WHERE %s ORDER BY hash, seed"
        trial_rows = self._query(trial_query, *_condition(where))
        varied = f"hash, protocol, {_names(_VARIED)}"
        spec_query = f"SELECT {varied} FROM {_SPECS} WHERE %s ORDER BY {_names(SPEC)}"
        spec_rows = self._query(spec_query, *_condition(of_spec))
        found = self._query(f"SELECT id, {_names(_PROTOCOL)} FROM protocols")
        names = [SPEC[column] for column in _PROTOCOL]
        protocols = {number: dict(zip(names, values, strict=True)) for number, *values in found}
        trials: dict[int, list[tuple[Trial, int]]] = defaultdict(list)

        @cache
        def shallow(protocol: int, scale: float, missing_rate: float) -> Spec:
            return Spec(depth=1, scale=scale, missing_rate=missing_rate, **protocols[protocol])

        try:
            for number, origin, *values in trial_rows:
                trials[number].append((_trial(values), origin))
            for number, protocol, depth, *others in spec_rows:
                if number in trials:
                    yield shallow(protocol, *others).at(depth), trials[number]
        except UNEXPECTED as error:
            raise _fault(self.path, error) from error


def _condition(where: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """Return what SQL asks of a row, and the values for its question marks."""
    parts = ["1"]
    values: list[Any] = []
    for name, requested in where.items():
        several = isinstance(requested, list | tuple | set | range)
        choices = list(requested) if several else [requested]
        parts.append(f'"{one_of("column", name, tuple(TYPES))}" IN ({", ".join("?" * len(choices))})')
        values += map(_hash_number, choices) if name == "hash" else choices
    return " AND ".join(parts), values


def _add(connection: sqlite3.Connection, results: Iterable[Result]) -> int:
    """Insert the trials that are new, and what of their protocols, specs and origins is; return how many."""
    protocols, origins = (
        _Rows(connection, *table) for table in (("protocols", _PROTOCOL), ("origins", ORIGIN))
    )
    numbers: dict[Spec, int] = {}
    added = 0
    for spec, trial, origin in results:
        if spec not in numbers:
            numbers[spec] = _hash_number(spec.hash)
        key = [numbers[spec], trial.seed]
        if connection.execute("SELECT 1 FROM trials WHERE hash = ? AND seed = ?", key).fetchone():
            continue
        varied = [getattr(spec, name) for name in _VARIED]
        connection.execute(
            f"{_insert('specs', ('hash', 'protocol', *_VARIED))} ON CONFLICT DO NOTHING",
            [numbers[spec], protocols.number(spec), *varied],
        )
        values = [_encode(value) for value in (vars(trial) | {"measures": trial.measures or None}).values()]
        connection.execute(
            _insert("trials", ("hash", *TRIAL, "origin")), [numbers[spec], *values, origins.number(origin)]
        )
        added += 1
    return added


class _Rows:
    """The rows of a table that many others refer to by number."""

    def __init__(self, connection: sqlite3.Connection, table: str, columns: Sequence[str]) -> None:
        self._connection, self._columns, self._insert = connection, columns, _insert(table, columns)
        found = connection.execute(f"SELECT id, {_names(columns)} FROM {table}")
        self._numbers: dict[tuple[Any, ...], int] = {tuple(values): number for number, *values in found}

    def number(self, part: Spec | Origin) -> int:
        """Return the number of the row with the values of ``part``, which is added if there is none."""
        values = tuple(getattr(part, SPEC.get(name, name)) for name in self._columns)
        if values not in self._numbers:
            number = self._connection.execute(self._insert, values).lastrowid
            assert number is not None
            self._numbers[values] = number
        return self._numbers[values]


def _encode(value: Any) -> Any:
    return json.dumps(value, sort_keys=True) if isinstance(value, dict) else value


def _trial(found: Sequence[Any]) -> Trial:
    values = dict(zip(TRIAL, found, strict=True))
    for name in _METRICS:
        if values[name] is None:
            values[name] = nan
    values["measures"] = json.loads(values["measures"]) if values["measures"] else {}
    values["curves"] = json.loads(values["curves"]) if values["curves"] else None
    return Trial(**values)


def _outcome(trial: Trial) -> str:
    # Text, since NaN differs from itself and must not here.
    return json.dumps(vars(trial), sort_keys=True)
