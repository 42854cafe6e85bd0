"""The results store: one SQLite file with a row per trial that survives ``kill -9`` and travels."""

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from math import nan
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from pairnorm.errors import PairNormError, one_of
from pairnorm.train import exchange
from pairnorm.train.origin import Origin
from pairnorm.train.record import COLUMNS, SPEC, TRIAL, TYPES, Row, row, spec_of, trial_of
from pairnorm.train.schema import connect, transaction
from pairnorm.train.spec import Spec
from pairnorm.train.trial import Trial
from pairnorm.writing import whole_file

if TYPE_CHECKING:
    import pandas
    import torch

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
        return exchange.frame(self._rows(**where))

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write all trials as ``.csv``, which ``merge`` reads, or as ``.parquet``, without curves.

        The same trials always give the same file: rows are sorted, numbers have all their digits.
        """
        target = Path(path)
        suffix = one_of("suffix of the export", target.suffix, (".csv", ".parquet"))
        with whole_file(target) as draft:
            if suffix == ".csv":
                exchange.write_csv(self._rows(), draft)
            else:
                exchange.write_parquet(self._rows(), draft)
        return target

    def merge(self, other: str | os.PathLike[str]) -> Merged:
        """Add the trials of another store, or of a store's CSV export, that are not here yet."""
        source = Path(other)
        if source.suffix == ".csv":
            theirs = exchange.read_csv(source)
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
