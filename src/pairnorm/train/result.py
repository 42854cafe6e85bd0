"""Results: a trial with its spec and origin, and tables of results as data frames and files."""

import csv
import json
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from functools import cache
from math import nan
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, get_args

import torch

from pairnorm import __version__
from pairnorm.base.errors import PairNormError, quoted, real_number, whole_number
from pairnorm.data.files import long_cells
from pairnorm.train.spec import ADDED_FIELDS, STORED_NAMES, Spec

if TYPE_CHECKING:
    import pandas

# Errors that constructing a result from damaged values can raise.
UNEXPECTED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
LARGEST = 2**63 - 1
"""The largest whole number that SQLite keeps."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The outcome of training one spec with one seed.

    Args:
        seed: decides initial weights, dropout, and the mask of what is missing.
        diverged: whether a loss became infinite or NaN; metrics may then be NaN.
        best_epoch: the epoch of best validation accuracy, at which the metrics are taken.
        train_loss: cross-entropy on the training nodes; likewise for validation and test.
        train_accuracy: fraction of training nodes that are right; likewise for validation and test.
        measures: such as ``row_diff`` and ``col_diff`` of the last hidden representation.
        curves: metrics by epoch, if requested.
    """

    seed: int
    diverged: bool = False
    best_epoch: int
    train_loss: float
    train_accuracy: float
    validation_loss: float
    validation_accuracy: float
    test_loss: float
    test_accuracy: float
    measures: Mapping[str, float] = field(default_factory=dict)
    curves: Mapping[str, Sequence[float]] | None = None

    def __post_init__(self) -> None:
        # Convert tensors to plain numbers, which can be pickled, stored and compared.
        values = vars(self)  # faster than object.__setattr__: a store has a hundred thousand trials
        for name, kind in _NUMBERS.items():
            value = values[name]
            if type(value) is not kind or value == 0:
                # Adding zero turns -0.0, whose sign SQLite does not store, into 0.0.
                values[name] = kind(kind(value) + 0)
        values["measures"] = {name: float(value) for name, value in self.measures.items()}
        if self.curves is not None:
            curves = {name: [float(value) for value in curve] for name, curve in self.curves.items()}
            values["curves"] = curves
        check_seed(self.seed)
        whole_number("best_epoch", self.best_epoch, most=LARGEST)
        for name in self.measures.keys() & TYPES.keys():
            problem = f"a measure is named {quoted(name)}, as is a column of the store"
            raise PairNormError(problem, code="name-taken", value=name, hint="Rename the measure.")


_NUMBERS: dict[str, Any] = {
    field.name: field.type for field in fields(Trial) if field.type in (bool, int, float)
}


def check_seed(seed: Any) -> int:
    """Validate a seed: an integer that SQLite can store."""
    return whole_number("seed", seed, most=LARGEST)


def check_seeds(seeds: Any) -> list[int]:
    """Validate a sequence of seeds. A single number is refused: it could mean a seed or a count."""
    if isinstance(seeds, Iterable) and not isinstance(seeds, str):
        return [check_seed(seed) for seed in seeds]
    raise wrong_type("seeds", seeds, "a list of seeds, such as [0, 1, 2] or range(3)")


def wrong_type(name: str, value: Any, expected: str) -> PairNormError:
    """Return the error about an argument of a wrong type."""
    return PairNormError(f"{name} is {quoted(value)}", code="wrong-type", value=value, expected=expected)


@dataclass(frozen=True, kw_only=True)
class Origin:
    """How trials were computed.

    Args:
        seconds: time that the computation took.
        shared_by: number of trials trained together in this time.
        pairnorm_version: version of this package.
        torch_version: version of PyTorch.
        python_version: version of Python.
        device: name of the processor or accelerator.
        git_commit: commit of the checkout the package ran from, ``-dirty`` added if files differed from it;
            ``$PAIRNORM_COMMIT`` where that is set (for a copy without its history); ``None`` where it
            is installed.
        finished: UTC time in ISO format.
    """

    seconds: float
    shared_by: int
    pairnorm_version: str
    torch_version: str
    python_version: str
    device: str
    git_commit: str | None
    finished: str

    def __post_init__(self) -> None:
        real_number("seconds", self.seconds, least=0)
        whole_number("shared_by", self.shared_by, most=LARGEST)
        for name in _TEXTS:
            text = getattr(self, name)
            if not isinstance(text, str) and (text is not None or name != "git_commit"):
                raise _wrong_value(name, text, "a text")
        with suppress(ValueError):
            if datetime.fromisoformat(self.finished).tzinfo is not None and self.finished >= "1970-01-02":
                return
        raise _wrong_value("finished", self.finished, "a time such as 2020-04-26T12:00:00Z")

    @classmethod
    def here(cls, *, seconds: float, shared_by: int, device: torch.device | str) -> Self:
        """Return the origin of trials that this process has just computed."""
        return cls(
            seconds=float(seconds),
            shared_by=shared_by,
            pairnorm_version=__version__,
            torch_version=str(torch.__version__),
            python_version=platform.python_version(),
            device=device_name(device),
            git_commit=os.environ.get("PAIRNORM_COMMIT") or git_commit(Path(__file__)),
            finished=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        )


_TEXTS = tuple(field.name for field in fields(Origin) if field.type in (str, str | None))


def _wrong_value(name: str, value: Any, expected: str) -> PairNormError:
    """Return the error about a value that no result has."""
    return PairNormError(f"{name} is {quoted(value)}", code="wrong-value", value=value, expected=expected)


def device_name(device: torch.device | str) -> str:
    """Return the name of the accelerator, or of the processor with its number of cores."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "cpu":
        return f"{_processor_name()}, {os.cpu_count()} cores"
    return str(device)


@cache
def _processor_name() -> str:
    """Return the name of the processor, or of its architecture where the system does not name it."""
    with suppress(OSError):
        if name := re.search(r"^model name\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE):
            return name[1].strip()
    return platform.processor() or platform.machine()


@cache
def git_commit(file: Path) -> str | None:
    """Return the commit of the checkout that tracks ``file``, with ``-dirty`` if files have changed since.

    A package in an environment inside another repository has no commit.
    """

    def git(*words: str) -> str:
        # Take no lock, so that the user's own git commands are not blocked.
        command = ["git", "--no-optional-locks", "-C", str(file.parent), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", file.name)
        return git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return None


class Result(NamedTuple):
    """A trial with its spec and its origin."""

    spec: Spec
    trial: Trial
    origin: Origin


def _types(kind: type) -> dict[str, Any]:
    """Return the type of every field; a choice among texts is a text."""
    types = {field.name: getattr(field.type, "__origin__", field.type) for field in fields(kind)}
    return {name: str if get_args(hint) and kind is Spec else hint for name, hint in types.items()}


SPEC = {STORED_NAMES.get(name, name): name for name in _types(Spec)}
"""The field of a spec that each column of a store holds."""

TRIAL, ORIGIN = tuple(_types(Trial)), tuple(_types(Origin))
TYPES: dict[str, Any] = {
    "hash": str,
    **{column: _types(Spec)[name] for column, name in SPEC.items()},
    **_types(Trial),
    **_types(Origin),
}
"""The type of every column."""

_ATTRIBUTES = {"hash": "spec.hash"} | {column: f"spec.{name}" for column, name in SPEC.items()}
_ATTRIBUTES |= {name: f"trial.{name}" for name in TRIAL} | {name: f"origin.{name}" for name in ORIGIN}
_ADDED_COLUMNS = {STORED_NAMES.get(name, name): value for name, value in ADDED_FIELDS.items()}
_FIXED = tuple(name for name in TYPES if name != "measures")


def trial_row(trial: Trial) -> list[Any]:
    """Return the values of a trial as SQLite stores them; it stores NaN as NULL."""
    values = vars(trial) | {"measures": trial.measures or None}
    return [json.dumps(x, sort_keys=True) if isinstance(x, dict) else x for x in values.values()]


def trial_from_row(row: Sequence[Any]) -> Trial:
    """Return the trial of a ``trial_row``."""
    values = dict(zip(TRIAL, row, strict=True))
    for name, value in values.items():
        if value is None and TYPES[name] is float:
            values[name] = nan
    values["measures"] = json.loads(values["measures"]) if values["measures"] else {}
    values["curves"] = json.loads(values["curves"]) if values["curves"] else None
    return Trial(**values)


def outcome(trial: Trial) -> str:
    """Return a text that is equal for equal trials, also where a number is NaN."""
    return json.dumps(vars(trial), sort_keys=True)


def table(results: Sequence[Result]) -> dict[str, list[Any]]:
    """Return the columns of a table of results, followed by one column per measure."""
    columns = {name: list(map(attrgetter(_ATTRIBUTES[name]), results)) for name in _FIXED}
    measures = [result.trial.measures for result in results]
    for name in sorted({name for measured in measures for name in measured}):
        columns[name] = [measured.get(name) for measured in measures]
    return columns


def frame(results: Sequence[Result]) -> "pandas.DataFrame":
    """Return the table of results as a data frame, without the curves."""
    import pandas

    columns = table(results)
    del columns["curves"]
    # Explicit types, also for a table without rows.
    types = {name: TYPES.get(name, float) for name in columns}
    numeric = {name: kind for name, kind in types.items() if kind in (bool, int, float)}
    return pandas.DataFrame(columns).astype(numeric)


def write_csv(results: Sequence[Result], path: Path) -> None:
    """Write results as CSV: numbers with all digits, ``nan`` for NaN, an empty cell for an absent value.

    The standard library's writer, since pandas writes NaN and absent values alike, and is optional.
    """
    columns = table(results)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in zip(*columns.values(), strict=True):
            writer.writerow(json.dumps(x, sort_keys=True) if isinstance(x, dict) else x for x in row)


def read_csv(path: Path) -> list[Result]:
    """Read the file of ``write_csv``; an unknown column is a measure."""
    with long_cells(), path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file, strict=True)
        try:
            columns = {*(reader.fieldnames or ()), *_ADDED_COLUMNS}
            for name in _FIXED:
                if name not in columns:
                    raise _no_export(f"{path}: there is no column {name!r}", "unknown-column", name)
            return [_read_row(values, f"{path}, line {reader.line_num}") for values in reader]
        except (csv.Error, UnicodeDecodeError) as error:
            raise _no_export(f"{path} cannot be read as CSV ({error})", "file-damaged", path) from error


def _no_export(problem: str, code: str, value: Any) -> PairNormError:
    """Return the error about a file that is not an export of a store."""
    return PairNormError(problem, code=code, value=value, expected="a CSV export of a store")


def _read_row(texts: dict[str, str], where: str) -> Result:
    """Return the result in a row; errors name ``where`` it is."""
    try:
        if None in texts or None in texts.values():
            raise _no_export("more or fewer values than there are columns", "file-damaged", len(texts))
        cells = {**_ADDED_COLUMNS, **texts}
        values = {name: _read(name, text) for name, text in cells.items() if text or name in TYPES}
        measures = {name: value for name, value in values.items() if name not in TYPES}
        fields_of_spec = {name: values[column] for column, name in SPEC.items()}
        result = Result(
            Spec(**fields_of_spec),
            Trial(**{name: values[name] for name in TRIAL if name != "measures"}, measures=measures),
            Origin(**{name: values[name] for name in ORIGIN}),
        )
        as_written = copy(result.spec)  # an older version may not have fixed a field without effect
        vars(as_written).update(fields_of_spec)
        if (stored := values["hash"]) not in (result.spec.hash, as_written.hash):
            problem = f"hash is {quoted(stored)}, but the spec's {result.spec.hash!r}"
            raise _no_export(problem, "wrong-hash", stored)
    except PairNormError as error:
        raise error.within(where) from None
    except UNEXPECTED as error:
        raise _no_export(f"{where}: {quoted(str(error))}", "wrong-value", None) from error
    return result


def _read(name: str, text: str) -> Any:
    """Return the value of a cell; errors are those of ``UNEXPECTED``."""
    kind = TYPES.get(name, float)
    if kind is bool:
        return {"False": False, "True": True}[text]
    if kind in (int, float, str):
        return kind(text)
    return (json.loads(text) if name == "curves" else text) if text else None
