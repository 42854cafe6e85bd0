import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from pairnorm import __version__, cli
from pairnorm.data import GraphWarning
from pairnorm.errors import PairNormError


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = list(cli.app.registered_commands)
    monkeypatch.setattr(cli.app, "registered_commands", commands)

    @cli.app.command()
    def fail() -> None:
        raise PairNormError("nodes.csv, line 7: [x] is not a number.\nCorrect it.")

    @cli.app.command()
    def warn() -> None:
        warnings.warn("3 self-loops were dropped", GraphWarning, stacklevel=1)


def test_datasets_shows_the_papers_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["datasets", "--root", str(tmp_path)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["cora", "2,708", "5,429", "5,278", "1,433", "7", "0.052", "bundled"] in rows
    assert ["coauthor-cs", "18,333", "81,894", "81,894", "6,805", "15", "0.030", "absent"] in rows


def test_absent_files_get_a_hint(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cli.main(["datasets", "--root", str(tmp_path)])
    text = capsys.readouterr().out
    assert f"Absent from {tmp_path}: citeseer, pubmed, coauthor-cs." in text
    assert "PAIRNORM_DATA" in text


def test_a_wide_table_fits_eighty_columns(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cli.main(["datasets"])
    table = [
        line for line in capsys.readouterr().out.splitlines() if "bundled" in line or "Label rate" in line
    ]
    assert len(table) == 2
    assert all(len(line) <= 80 for line in table)


@pytest.mark.usefixtures("failing")
def test_an_error_is_short_and_has_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fail"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "Error: nodes.csv, line 7: [x] is not a number.\nCorrect it.\n"


@pytest.mark.usefixtures("failing")
@pytest.mark.parametrize("words", [["--debug", "fail"], ["fail", "--debug"]])
def test_debug_shows_the_traceback(words: list[str]) -> None:
    with pytest.raises(PairNormError, match="line 7"):
        cli.main(words)


@pytest.mark.usefixtures("failing")
def test_a_warning_about_the_users_data_is_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert cli.main(["warn"]) == 0
    assert capsys.readouterr().err == "Note: 3 self-loops were dropped\n"


@pytest.mark.parametrize("words", [["datsets"], ["--bad"], ["datasets", "extra"]])
def test_a_wrong_command_line_is_code_two(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert cli.main(words) == 2
    assert "Usage: pairnorm" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"pairnorm {__version__}\n"


@pytest.mark.parametrize(
    "command", [[], *([command.callback.__name__] for command in cli.app.registered_commands)]
)
def test_every_command_has_help_with_an_example(
    capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    assert cli.main([*command, "--help"]) == 0
    assert "Example: pairnorm" in capsys.readouterr().out


def test_it_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pairnorm", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"pairnorm {__version__}\n"
