"""The results store: one SQLite file of trials that survives ``kill -9`` and can be copied and merged."""

import json
import os
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from math import nan
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from pairnorm.base.errors import PairNormError, one_of
from pairnorm.base.files import atomic_file
from pairnorm.train.database import (
    SCHEMA_VERSION,
    connect,
    damaged_values,
    hash_number,
    transaction,
    translate_errors,
)
from pairnorm.train.result import (
    ORIGIN,
    SPEC,
    TRIAL,
    TYPES,
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


def _names(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


_VARIED = ("depth", "scale", "missing_rate")
_PROTOCOL = tuple(name for name in SPEC if name not in _VARIED)
_METRICS = tuple(name for name in TRIAL if TYPES[name] is float)
_SPECS = "specs JOIN protocols ON protocols.id = specs.protocol"
_TRIALS = f"trials JOIN ({_SPECS}) USING (hash) JOIN origins ON origins.id = trials.origin"


_RECORD = ("collection", "key", "value")
_RECORDS = f"SELECT {_names(_RECORD)} FROM records"
_CREATE_RECORDS = (
    "CREATE TABLE IF NOT EXISTS records (collection TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, "
    "PRIMARY KEY (collection, key)) WITHOUT ROWID"
)


def _insert(table: str, columns: Sequence[str]) -> str:
    return f"INSERT INTO {table} ({_names(columns)}) VALUES ({', '.join('?' * len(columns))})"


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
        connection = self._connect(create=False)
        with translate_errors(self.path):
            # Fetch all rows at once: an open query would block writers.
            return connection.execute(query, values).fetchall() if connection else []

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        if self.read_only:
            problem = f"{self.path} is open for reading only"
            hint = "Copy it to where you may write."
            raise PairNormError(problem, code="read-only", value=self.path, hint=hint)
        connection = self._connect(create=True)
        assert connection is not None
        with translate_errors(self.path), transaction(connection):
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
        """Return the seeds without a trial of this spec, in the order given."""
        query = "SELECT seed FROM trials WHERE hash = ?"
        present = {seed for (seed,) in self._query(query, [hash_number(spec.hash)])}
        return [seed for seed in dict.fromkeys(seeds) if seed not in present]

    def add(
        self, spec: Spec, trials: Iterable[Trial], *, seconds: float, device: "torch.device | str" = "cpu"
    ) -> int:
        """Write the trials of a spec atomically and return how many of them are new."""
        return self.add_trials({spec: trials}, seconds=seconds, device=device)

    def add_trials(
        self, trials: Mapping[Spec, Iterable[Trial]], *, seconds: float, device: "torch.device | str" = "cpu"
    ) -> int:
        """Write trials that this process computed together, atomically, and return how many are new.

        Args:
            trials: of each spec.
            seconds: time that all of them took together.
            device: on which they were computed.
        """
        pairs = [(spec, trial) for spec, some in trials.items() for trial in some]
        origin = Origin.here(seconds=seconds, shared_by=len(pairs), device=device)
        return self.add_results(Result(spec, trial, origin) for spec, trial in pairs)

    def add_results(self, results: Iterable[Result]) -> int:
        """Write results atomically and return how many are new."""
        given = list(results)
        with self._transaction() as connection:
            return _add(connection, given)

    def trials(self, spec: Spec) -> list[Trial]:
        """Return the trials of a spec by seed."""
        return self.trials_by_spec(hash=spec.hash).get(spec, [])

    def trials_by_spec(self, **where: Any) -> dict[Spec, list[Trial]]:
        """Return the trials of every spec, sorted. ``where`` restricts a field to a value or several."""
        results = self.results_by_spec(**where)
        return {spec: [result.trial for result in some] for spec, some in results.items()}

    def results(self, **where: Any) -> list[Result]:
        """Return all results, sorted by spec and seed. ``where`` as in ``trials_by_spec``."""
        return [result for some in self.results_by_spec(**where).values() for result in some]

    def results_by_spec(self, **where: Any) -> dict[Spec, list[Result]]:
        """Return the results of every spec, sorted. ``where`` as in ``trials_by_spec``."""
        where = {STORED_NAMES.get(name, name): value for name, value in where.items()}
        condition, requested = _condition(where)
        # The order of the file needs no sorting, and without a condition nothing is joined.
        tables = _TRIALS if where else "trials"
        trials = self._query(
            f"SELECT hash, origin, {_names(TRIAL)} FROM {tables} WHERE {condition} ORDER BY hash, seed",
            requested,
        )
        condition, requested = _condition({name: where[name] for name in where if name in ("hash", *SPEC)})
        varied = f"hash, protocol, {_names(_VARIED)}"
        specs = self._query(
            f"SELECT {varied} FROM {_SPECS} WHERE {condition} ORDER BY {_names(SPEC)}", requested
        )
        names = [SPEC[column] for column in _PROTOCOL]
        protocols = self._rows("protocols", _PROTOCOL, names)

        @cache
        def deep(protocol: int, scale: float, missing_rate: float) -> Spec:  # deep enough for any skip
            return Spec(depth=10**9, scale=scale, missing_rate=missing_rate, **protocols[protocol])

        by_hash: dict[int, list[tuple[Trial, Origin]]] = defaultdict(list)
        by_spec: dict[Spec, list[Result]] = {}
        with damaged_values(self.path):
            origins = {number: Origin(**row) for number, row in self._rows("origins", ORIGIN, ORIGIN).items()}
            for number, origin, *values in trials:
                by_hash[number].append((_trial(values), origins[origin]))
            for number, protocol, depth, *others in specs:
                if number in by_hash:
                    spec = deep(protocol, *others).at(depth)
                    by_spec[spec] = [Result(spec, trial, origin) for trial, origin in by_hash[number]]
        return by_spec

    def _rows(self, table: str, columns: Sequence[str], names: Sequence[str]) -> dict[int, dict[str, Any]]:
        """Return the values of every row by name, by the id of the row."""
        rows = self._query(f"SELECT id, {_names(columns)} FROM {table}")
        return {number: dict(zip(names, values, strict=True)) for number, *values in rows}

    def frame(self, **where: Any) -> "pandas.DataFrame":
        """Return the trials as a data frame with a column per measure. ``where`` as in ``trials_by_spec``."""
        return frame(self.results(**where))

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write all trials to a ``.csv`` file, which ``merge`` reads, or to ``.parquet`` without curves.

        The same trials give the same file: rows are sorted, and numbers have all their digits.
        """
        target, writers = Path(path), {".csv": write_csv, ".parquet": write_parquet}
        write = writers[one_of("suffix of the export", target.suffix, tuple(writers))]
        with atomic_file(target) as draft:
            write(self.results(), draft)
        return target

    def merge(self, other: str | os.PathLike[str]) -> Merged:
        """Add the trials and records of another store, or the trials of a CSV export, that are new here."""
        source, records = Path(other), list[tuple[str, str, str]]()
        if source.suffix == ".csv":
            theirs = read_csv(source)
        else:
            with Store(source, read_only=True) as store:
                theirs, records = store.results(), store._query(_RECORDS) if store._has_records else []
        with self._transaction() as connection:
            ours = {
                (spec, trial.seed): _outcome(trial)
                for spec, trials in self.trials_by_spec().items()
                for trial in trials
            }
            added = _add(connection, theirs)
            same = sum(ours.get((spec, trial.seed)) == _outcome(trial) for spec, trial, _ in theirs)
            if records:
                connection.execute(_CREATE_RECORDS)
                connection.executemany(f"{_insert('records', _RECORD)} ON CONFLICT DO NOTHING", records)
        return Merged(added, same, len(theirs) - added - same)

    def records(self, collection: str) -> dict[str, Any]:
        """Return the JSON values of a collection by key, sorted by key.

        Args:
            collection: name under which ``write_records`` wrote them, such as ``"case-study"``.
        """
        if not self._has_records:
            return {}
        query = "SELECT key, value FROM records WHERE collection = ? ORDER BY key"
        with damaged_values(self.path):
            return {key: json.loads(value) for key, value in self._query(query, [collection])}

    def write_records(self, collection: str, records: Mapping[str, Any]) -> None:
        """Write JSON values of a collection atomically, replacing values with the same keys.

        Args:
            collection: name of what belongs together.
            records: values that ``json`` can write, by key.
        """
        rows = [(collection, key, json.dumps(value)) for key, value in records.items()]
        replace = "ON CONFLICT DO UPDATE SET value = excluded.value"
        with self._transaction() as connection:
            connection.execute(_CREATE_RECORDS)
            connection.executemany(f"{_insert('records', _RECORD)} {replace}", rows)

    @property
    def _has_records(self) -> bool:
        return bool(self._query("SELECT 1 FROM sqlite_master WHERE name = 'records'"))


def _condition(where: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """Return the SQL condition on a row, and the values of its question marks."""
    parts = ["1"]
    values: list[Any] = []
    for name, requested in where.items():
        several = isinstance(requested, list | tuple | set | range)
        choices = list(requested) if several else [requested]
        parts.append(f'"{one_of("column", name, tuple(TYPES))}" IN ({", ".join("?" * len(choices))})')
        values += map(hash_number, choices) if name == "hash" else choices
    return " AND ".join(parts), values


def _add(connection: sqlite3.Connection, results: Iterable[Result]) -> int:
    """Insert the new trials with their protocols, specs and origins; return how many were new."""
    protocols, origins = _Rows(connection, "protocols", _PROTOCOL), _Rows(connection, "origins", ORIGIN)
    added = 0
    for spec, trial, origin in results:
        number = hash_number(spec.hash)
        present = "SELECT 1 FROM trials WHERE hash = ? AND seed = ?"
        if connection.execute(present, [number, trial.seed]).fetchone():
            continue
        connection.execute(
            f"{_insert('specs', ('hash', 'protocol', *_VARIED))} ON CONFLICT DO NOTHING",
            [number, protocols.number(spec), *(getattr(spec, name) for name in _VARIED)],
        )
        values = [_encode(value) for value in (vars(trial) | {"measures": trial.measures or None}).values()]
        connection.execute(
            _insert("trials", ("hash", *TRIAL, "origin")), [number, *values, origins.number(origin)]
        )
        added += 1
    return added


class _Rows:
    """The rows of a table that rows of other tables refer to by id."""

    def __init__(self, connection: sqlite3.Connection, table: str, columns: Sequence[str]) -> None:
        self._connection, self._columns, self._insert = connection, columns, _insert(table, columns)
        rows = connection.execute(f"SELECT id, {_names(columns)} FROM {table}")
        self._numbers: dict[tuple[Any, ...], int] = {tuple(values): number for number, *values in rows}

    def number(self, part: Spec | Origin) -> int:
        """Return the id of the row with the values of ``part``; insert it if there is none."""
        values = tuple(getattr(part, SPEC.get(name, name)) for name in self._columns)
        if values not in self._numbers:
            number = self._connection.execute(self._insert, values).lastrowid
            assert number is not None
            self._numbers[values] = number
        return self._numbers[values]


def _encode(value: Any) -> Any:
    return json.dumps(value, sort_keys=True) if isinstance(value, dict) else value


def _trial(row: Sequence[Any]) -> Trial:
    values = dict(zip(TRIAL, row, strict=True))
    for name in _METRICS:
        if values[name] is None:
            values[name] = nan
    values["measures"] = json.loads(values["measures"]) if values["measures"] else {}
    values["curves"] = json.loads(values["curves"]) if values["curves"] else None
    return Trial(**values)


def _outcome(trial: Trial) -> str:
    # Text, since NaN differs from itself and must not here.
    return json.dumps(vars(trial), sort_keys=True)
