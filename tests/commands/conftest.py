"""Fixtures of commands; user files are written by a module of another folder."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from _pytest.capture import CaptureResult

from pairnorm import cli

Run = Callable[..., CaptureResult[str]]
sys.path.insert(0, str(Path(__file__).parents[1] / "classify"))  # for written.py


@pytest.fixture(scope="module", autouse=True)
def _brief(brief_baselines: None) -> None:
    pass


@pytest.fixture
def pairnorm(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command line, check its exit code, and return what it printed."""

    def run(*words: object, code: int = 0) -> CaptureResult[str]:
        capsys.readouterr()
        assert cli.main([str(word) for word in words]) == code
        return capsys.readouterr()

    return run
