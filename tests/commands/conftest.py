"""Fixtures of commands; user files are written by a module of another folder."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "classify"))  # for written.py


@pytest.fixture(scope="module", autouse=True)
def _brief(brief_baselines: None) -> None:
    pass
