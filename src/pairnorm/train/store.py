"""The results store: one SQLite file with a row per trial that survives ``kill -9`` and travels."""

import csv
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from math import nan
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from pairnorm.errors import PairNormError, one_of
from pairnorm.train.result import COLUMNS, SPEC, TRIAL, TYPES, Origin, Row, Trial, row, spec_of, trial_of
from pairnorm.train.spec import LATER, Spec
from pairnorm.writing import whole_file, writable

if TYPE_CHECKING:
    import pandas
    import torch


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


# Each measure has a column of its own, after the others.
_FIXED = tuple(name for name in COLUMNS if name != "measures")


def measure_names(rows: Sequence[Row]) -> list[str]:
    """Return the names of all measures in the rows, sorted."""
    return sorted({name for row in rows for name in row["measures"]})


def frame(rows: Sequence[Row]) -> "pandas.DataFrame":
    """Return the rows as a data frame, a column for each measure, without the curves."""
    import pandas

    names = [name for name in _FIXED if name != "curves"]
    columns = {name: [row[name] for row in rows] for name in names}
    columns |= {name: [row["measures"].get(name, nan) for row in rows] for name in measure_names(rows)}
    # Types are given, so that a table without rows has them too.
    numeric = {
        name: TYPES.get(name, float) for name in columns if TYPES.get(name, float) in (bool, int, float)
    }
    return pandas.DataFrame(columns).astype(numeric)


def write_parquet(rows: Sequence[Row], path: Path) -> None:
    """Write the ``frame`` of the rows as Parquet."""
    try:
        frame(rows).to_parquet(path, index=False)
    except ImportError as error:
        raise PairNormError("Parquet needs pyarrow; pip install pyarrow, or export as .csv.") from error


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """Write the rows as CSV: numbers with all their digits, ``nan`` for NaN, nothing for what is absent."""
    measures = measure_names(rows)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*_FIXED, *measures])
        for row in rows:
            values = [row[name] for name in _FIXED] + [row["measures"].get(name) for name in measures]
            writer.writerow([_write(value) for value in values])


def read_csv(path: Path) -> list[Row]:
    """Read what ``write_csv`` wrote; a column that is not the store's own is a measure."""
    with _long_fields(), path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file, strict=True)
        try:
            absent = [name for name in _FIXED if name not in (reader.fieldnames or ()) and name not in LATER]
            if absent:
                raise PairNormError(f"{path} has no column {absent[0]!r}; expected a CSV export of a store.")
            return [_read_row(values, f"{path}, line {reader.line_num}") for values in reader]
        except (csv.Error, UnicodeDecodeError) as error:
            raise PairNormError(
                f"{path} cannot be read as CSV ({error}); expected an export of a store."
            ) from error


def _write(value: Any) -> str:
    if value is None:
        return ""
    return json.dumps(value, sort_keys=True) if isinstance(value, dict) else str(value)


def _read_row(values: dict[str, str], place: str) -> Row:
    if None in values or None in values.values():
        raise PairNormError(f"{place} has more or fewer values than there are columns.")
    values = {**LATER, **values}
    row: Row = {name: _read(name, values[name], place) for name in _FIXED}
    extra = {name: value for name, value in values.items() if name not in TYPES and value}
    row["measures"] = {name: _read(name, value, place) for name, value in extra.items()}
    if row["hash"] != spec_of(row).hash:
        raise PairNormError(
            f"{place}: the spec has the hash {spec_of(row).hash}, not {row['hash']}; was it edited?"
        )
    return row


def _read(name: str, value: str, place: str) -> Any:
    kind = TYPES.get(name, float)
    try:
        if kind is bool:
            return {"False": False, "True": True}[value]
        if kind in (int, float, str):
            return kind(value)
        return (json.loads(value) if name == "curves" else value) if value else None
    except (KeyError, ValueError):
        raise PairNormError(
            f"{place}: {name} is {value!r}; expected a value as the store writes it."
        ) from None


@contextmanager
def _long_fields() -> Iterator[None]:
    """Let a CSV field be as long as the curves of many epochs are; the limit is global, so it is put back."""
    limit = csv.field_size_limit(2**31 - 1)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


_ALL = ", ".join(f'"{name}"' for name in COLUMNS)
_SORTED = ", ".join(f'"{name}"' for name in (*SPEC, "seed"))
_INSERT = f"""
    INSERT INTO trials ({_ALL}) VALUES ({", ".join("?" * len(COLUMNS))})
    ON CONFLICT ("hash", "seed") DO NOTHING
"""


class Merged(NamedTuple):
    """What a merge found: trials added, here already with the same result, or with another (ours is kept)."""

    added: int
    same: int
    different: int


class Store:
    """Results in one SQLite file, a row per trial.

    Several processes may write at once, each through a ``Store`` of its own. A cell is written in full or not
    at all, whatever happens meanwhile, and a trial that is there is never overwritten. The file can be copied
    to another machine, added to there and merged back.

    Args:
        path: the file; it is created, with its folder, if there is none.
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
        self._connection = connect(self.path, read_only=self.read_only)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        if self.read_only:
            raise PairNormError(f"{self.path} is open for reading only; copy it to where you may write.")
        with transaction(self._connection):
            yield self._connection

    def close(self) -> None:
        """Close the file."""
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
        return int(self._connection.execute("SELECT count(*) FROM trials").fetchone()[0])

    def missing(self, spec: Spec, seeds: Iterable[int]) -> list[int]:
        """Return the seeds for which there is no trial of this spec yet, in the order given."""
        found = self._connection.execute('SELECT "seed" FROM trials WHERE "hash" = ?', [spec.hash]).fetchall()
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
        """Write cells that were computed together, all or nothing, and return how many trials are new.

        Args:
            cells: the trials of each spec.
            seconds: the time all of them took together.
            device: where they were computed.
        """
        pairs = [(spec, trial) for spec, trials in cells.items() for trial in trials]
        origin = Origin.here(seconds=seconds, shared_by=len(pairs), device=device)
        rows = [row(spec, trial, origin) for spec, trial in pairs]
        with self._transaction() as connection:
            return sum(connection.execute(_INSERT, _encode(values)).rowcount for values in rows)

    def trials(self, spec: Spec) -> list[Trial]:
        """Return the trials of a spec by seed."""
        return [trial_of(values) for values in self._rows(hash=spec.hash)]

    def cells(self, **where: Any) -> dict[Spec, list[Trial]]:
        """Return the trials of every spec, sorted; ``where`` narrows a column to a value or a list."""
        groups = groupby(self._rows(**where), key=lambda values: values["hash"])
        listed = [list(group) for _, group in groups]
        return {spec_of(group[0]): [trial_of(values) for values in group] for group in listed}

    def frame(self, **where: Any) -> "pandas.DataFrame":
        """Return the trials as a data frame, a column for each measure; ``where`` as in ``cells``."""
        return frame(self._rows(**where))

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write all trials as ``.csv``, which ``merge`` reads, or as ``.parquet``, without curves.

        The same trials always give the same file: rows are sorted, numbers have all their digits.
        """
        target = Path(path)
        suffix = one_of("suffix of the export", target.suffix, (".csv", ".parquet"))
        with whole_file(target) as draft:
            if suffix == ".csv":
                write_csv(self._rows(), draft)
            else:
                write_parquet(self._rows(), draft)
        return target

    def merge(self, other: str | os.PathLike[str]) -> Merged:
        """Add the trials of another store, or of a store's CSV export, that are not here yet."""
        source = Path(other)
        if source.suffix == ".csv":
            theirs = read_csv(source)
        else:
            with Store(source, read_only=True) as store:
                theirs = store._rows()
        with self._transaction() as connection:
            ours = {(values["hash"], values["seed"]): _outcome(values) for values in self._rows()}
            added = same = 0
            for values in theirs:
                if connection.execute(_INSERT, _encode(values)).rowcount:
                    added += 1
                else:
                    same += ours.get((values["hash"], values["seed"])) == _outcome(values)
        return Merged(added, same, len(theirs) - added - same)

    def _rows(self, **where: Any) -> list[Row]:
        conditions, values = ["1"], []
        for name, wanted in where.items():
            choices = list(wanted) if isinstance(wanted, list | tuple | set | range) else [wanted]
            conditions.append(f'"{one_of("column", name, COLUMNS)}" IN ({", ".join("?" * len(choices))})')
            values += choices
        query = f"SELECT {_ALL} FROM trials WHERE {' AND '.join(conditions)} ORDER BY {_SORTED}"
        # Fetched at once: an open query would hold up the writers.
        return [_decode(found) for found in self._connection.execute(query, values).fetchall()]


def _encode(values: Row) -> list[Any]:
    ordered = [values[name] for name in COLUMNS]
    return [json.dumps(value, sort_keys=True) if isinstance(value, dict) else value for value in ordered]


def _decode(found: tuple[Any, ...]) -> Row:
    values = dict(zip(COLUMNS, found, strict=True))
    for name, value in values.items():
        if TYPES[name] is float and value is None:
            values[name] = nan
    values["diverged"] = bool(values["diverged"])
    values["measures"] = json.loads(values["measures"])
    values["curves"] = json.loads(values["curves"]) if values["curves"] else None
    return values


def _outcome(values: Row) -> str:
    # Text, since NaN differs from itself and must not here.
    return json.dumps({name: values[name] for name in TRIAL}, sort_keys=True)
