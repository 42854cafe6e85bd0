"""Where a result comes from: time spent, versions, device, git commit, date."""

import os
import platform
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Self

import torch

import pairnorm


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
            pairnorm_version=pairnorm.__version__,
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
