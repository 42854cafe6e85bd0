"""A row of the store: a spec, the trial it gave and where that comes from, under named columns."""

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Self

import torch

from pairnorm.version import __version__
from pairnorm.errors import PairNormError
from pairnorm.train.spec import Spec


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The outcome of training one spec with one seed, as plain numbers.

    Args:
        seed: decides initial weights, dropout, and the mask of what is missing.
        diverged: whether a loss became infinite or NaN; metrics may then be NaN.
        best_epoch: the epoch of best validation accuracy, at which the metrics are taken.
        train_loss: cross-entropy on the training nodes; likewise for validation and test.
        train_accuracy: fraction of training nodes that are right; likewise for validation and test.
        measures: such as ``row_diff`` and ``col_diff`` of the last hidden representation.
        curves: metrics by epoch, where they were asked for.
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
        # Numbers may arrive as tensors; what is kept can be pickled, stored and compared anywhere.
        for entry in fields(self):
            if entry.type in (bool, int, float):
                # Adding zero makes 0.0 of -0.0, whose sign SQLite does not keep.
                value = entry.type(getattr(self, entry.name))
                object.__setattr__(self, entry.name, value + 0.0 if entry.type is float else value)
        object.__setattr__(self, "measures", {name: float(value) for name, value in self.measures.items()})
        if self.curves is not None:
            curves = {name: [float(value) for value in curve] for name, curve in self.curves.items()}
            object.__setattr__(self, "curves", curves)
        if not 0 <= self.seed < 2**63:
            raise PairNormError(f"seed is {self.seed}; expected a whole number from 0 to 2**63 - 1.")
        if self.best_epoch < 0:
            raise PairNormError(f"best_epoch is {self.best_epoch}; expected 0 or more.")


@dataclass(frozen=True, kw_only=True)
class Origin:
    """How a cell was computed.

    Args:
        seconds: time the computation took.
        shared_by: number of trials that were trained together in this time.
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

    @classmethod
    def here(cls, *, seconds: float, shared_by: int, device: torch.device | str) -> Self:
        """Return the origin of what this process has just computed."""
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


def device_name(device: torch.device | str) -> str:
    """Return what a person calls the device: the accelerator's name, or the processor's and its cores."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "cpu":
        return f"{_processor()}, {os.cpu_count()} cores"
    return str(device)


@cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(names), platform.processor() or platform.machine())


@cache
def git_commit(file: Path) -> str | None:
    """Return the commit of the checkout that tracks ``file``, ``-dirty`` added if it was changed since.

    A package installed into an environment that merely lies inside somebody's repository has no commit.
    """
    # No lock is taken: a report of the commit must not get in the way of the user's own git commands.
    git = ["git", "--no-optional-locks", "-C", str(file.parent)]
    try:
        _output([*git, "ls-files", "--error-unmatch", file.name])
        return _output([*git, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"])
    except (OSError, subprocess.SubprocessError):
        return None


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()


Row = dict[str, Any]
"""Values by column: numbers and strings, ``measures`` and ``curves`` as dictionaries."""


def _types(kind: type) -> dict[str, Any]:
    return {field.name: getattr(field.type, "__origin__", field.type) for field in fields(kind)}


SPEC, TRIAL, ORIGIN = tuple(_types(Spec)), tuple(_types(Trial)), tuple(_types(Origin))
TYPES: dict[str, Any] = {"hash": str, **_types(Spec), **_types(Trial), **_types(Origin)}
COLUMNS = tuple(TYPES)


def row(spec: Spec, trial: Trial, origin: Origin) -> Row:
    """Return the row of a trial."""
    clash = sorted(set(trial.measures) & set(COLUMNS))
    if clash:
        raise PairNormError(
            f"a measure is named {clash[0]!r}, as is a column of the store; rename the measure."
        )
    parts = (spec, trial, origin)
    values = {field.name: getattr(part, field.name) for part in parts for field in fields(part)}
    return {"hash": spec.hash, **values}


def spec_of(values: Mapping[str, Any]) -> Spec:
    """Return the spec of a row."""
    return Spec(**{name: values[name] for name in SPEC})


def trial_of(values: Mapping[str, Any]) -> Trial:
    """Return the trial of a row."""
    return Trial(**{name: values[name] for name in TRIAL})
