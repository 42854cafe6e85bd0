"""Helpers of tests: trials with given accuracies, contents of folders, Python in another process."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from pairnorm.train import Trial


def make_trial(seed: int, validation: float = 0.5, test: float = 0.5, **fields: Any) -> Trial:
    """Return a trial with the given accuracies; losses are 1 unless given."""
    metrics = dict.fromkeys(("train_loss", "validation_loss", "test_loss", "train_accuracy"), 1.0)
    accuracies = {"validation_accuracy": validation, "test_accuracy": test}
    return Trial(**{"seed": seed, "best_epoch": 1, **metrics, **accuracies, **fields})


def contents(folder: Path) -> dict[str, str]:
    """Return the bytes of all files below a folder, as text in Latin-1, by relative path."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes().decode("latin-1") for path in files}


def run_python(
    *words: object, code: int = 0, env: dict[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run Python with arguments in another process, check its exit code, and return what it printed."""
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        **{"capture_output": True, "text": True, "env": os.environ | (env or {}), **options},
    )
    assert done.returncode == code, done.stderr
    return done
