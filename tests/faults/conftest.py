"""Undamaged files, and commands that must fail with a short message."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from corpus import write_corpus

from pairnorm import cli
from pairnorm.classify import ClassifierWarning

Fails = Callable[..., str]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.warns(ClassifierWarning):  # few nodes are left to test on
        return write_corpus(tmp_path_factory.mktemp("corpus"))


def message(printed: str) -> str:
    """Return the error message: at most three lines, without a traceback."""
    assert "Traceback" not in printed
    error = printed[printed.index("Error:") :].strip()
    assert len(error.splitlines()) <= 3, error
    assert len(error) < 1500, error
    return error


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str]) -> Fails:
    """Run a command that has to fail with a code and a short message, which is returned."""

    def run(*words: object, code: int = 1) -> str:
        capsys.readouterr()
        assert cli.main([str(word) for word in words]) == code
        return message(capsys.readouterr().err)

    return run


@pytest.fixture(scope="module", autouse=True)
def _brief(brief_baselines: None) -> None:
    pass
