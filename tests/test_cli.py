import json
import os
import re
import signal
import subprocess
import sys
import warnings
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path

import pytest

from pairnorm import __version__, cli
from pairnorm.base.errors import PairNormError
from pairnorm.commands import console
from pairnorm.commands.options import Command
from pairnorm.data import GraphWarning

NAMES = ["demo", "datasets", "reproduce", "report", "fit", "predict", "diagnose"]
COLUMNS = ["id", "source", "target", "weight", "ignore"]
SELECTION = ["dataset", "runs", "epochs", "depth", "missing"]
OPTIONS = {
    "demo": ["out", "workers"],
    "datasets": ["root"],
    "reproduce": [*SELECTION, "device", "out", "store", "time-limit", "workers", "root"],
    "report": [*SELECTION, "store", "out"],
    "fit": [
        "nodes", "edges", "out", "delimiter", "label", "split", "categorical", *COLUMNS, "model", "depth",
        "norm", "scale", "feature-scaling", "time-limit", "seeds", "epochs", "device", "seed",
    ],
    "predict": ["run", "nodes", "edges", "out", "delimiter", *COLUMNS, "device"],
    "diagnose": ["nodes", "edges", "out", "delimiter", "label", "categorical", *COLUMNS, "feature-scaling"],
}  # fmt: skip
"""Options that scripts of users may have; the old spellings of some are in ``OLD_NAMES``."""

Added = Callable[[Callable[[Namespace], None]], None]


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> Added:
    """Add a command ``act`` that does what it is given."""

    def add(act: Callable[[Namespace], None]) -> None:
        monkeypatch.setattr(cli, "COMMANDS", {**cli.COMMANDS, "Test": (Command(act, "act", "pairnorm act"),)})

    return add


def raising(error: BaseException) -> Callable[[Namespace], None]:
    def act(options: Namespace) -> None:
        raise error

    return act


def test_datasets_prints_the_papers_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["datasets", "--root", str(tmp_path)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["cora", "2,708", "5,429", "5,278", "1,433", "7", "0.052", "bundled"] in rows
    assert ["coauthor-cs", "18,333", "81,894", "81,894", "6,805", "15", "0.030", "absent"] in rows


def test_absent_datasets_print_a_hint(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cli.main(["datasets", "--root", str(tmp_path)])
    text = capsys.readouterr().out
    assert f"Absent from {tmp_path}: citeseer, pubmed, coauthor-cs." in text
    assert "PAIRNORM_DATA" in text
    table = [line for line in text.splitlines() if "bundled" in line or "Label rate" in line]
    assert len(table) == 2
    assert all(len(line) <= 80 for line in table)


def test_error_is_short_without_traceback(added: Added, capsys: pytest.CaptureFixture[str]) -> None:
    added(raising(PairNormError("nodes.csv, line 7: [x] is not a number.\nCorrect it.")))
    assert cli.main(["act"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "Error: nodes.csv, line 7: [x] is not a number.\nCorrect it.\n"


def test_hint_names_options_as_typed(added: Added, capsys: pytest.CaptureFixture[str]) -> None:
    added(raising(PairNormError("no column 'a'", hint="Pass {ignore}.", ignore=["two words"])))
    assert cli.main(["act"]) == 1
    assert capsys.readouterr().err == "Error: no column 'a'. Pass --ignore 'two words'.\n"


@pytest.mark.parametrize("words", [["--debug", "act"], ["act", "--debug"]])
@pytest.mark.parametrize("error", [PairNormError("line 7"), KeyError("line 7")])
def test_debug_shows_the_traceback(
    added: Added,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    error: Exception,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    added(raising(error))
    assert cli.main(words) == (1 if isinstance(error, PairNormError) else 70)
    printed = capsys.readouterr().err
    assert "Traceback (most recent call last)" in printed
    assert "line 7" in printed


def test_unexpected_error_is_logged(
    added: Added, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    added(raising(KeyError("\x1b[31mred")))
    assert cli.main(["act"]) == 70
    printed = capsys.readouterr().err
    assert printed.startswith(r"Error: KeyError: '\x1b[31mred'")
    assert len(printed.splitlines()) == 2
    [log] = tmp_path.iterdir()
    assert str(log) in printed
    assert "raise error" in log.read_text(encoding="utf-8")


def test_unwritable_log_still_prints_the_error(
    added: Added, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    added(raising(KeyError("x")))
    assert cli.main(["act"]) == 70
    assert "--debug" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ModuleNotFoundError("No module named 'pandas'", name="pandas"), 1),
        (ModuleNotFoundError("No module named 'x'", name="matplotlib.figure"), 1),
        (ModuleNotFoundError("No module named 'x'", name="pairnorm.x"), 70),
        (ImportError("broken"), 70),
    ],
)
def test_missing_library_is_named(
    added: Added, capsys: pytest.CaptureFixture[str], error: ImportError, code: int, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    added(raising(error))
    assert cli.main(["act"]) == code
    printed = capsys.readouterr().err
    assert ("pip install 'pairnorm[all]'" in printed) == (code == 1)
    assert ("pip install '.[all]' in a checkout" in printed) == (code == 1)
    if code == 1:
        assert f"this needs {str(error.name).partition('.')[0]}," in printed


def test_keyboard_interrupt_prints_one_line(added: Added, capsys: pytest.CaptureFixture[str]) -> None:
    added(raising(KeyboardInterrupt()))
    assert cli.main(["act"]) == 130
    assert capsys.readouterr().err.split() == ["Stopped."]


@pytest.mark.parametrize("module", ["pairnorm.cli", "argparse", "torch", "pandas"])
def test_keyboard_interrupt_during_imports_prints_one_line(tmp_path: Path, module: str) -> None:
    """Large libraries are imported after the handler of interrupts is installed."""
    program = f"""
import sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
sys.argv = ["pairnorm", "fit", "--nodes", "n.csv", "--edges", "e.csv", "--label", "c"]
from pairnorm.__main__ import main
sys.exit(main())
"""
    for name in ("n.csv", "e.csv"):
        (tmp_path / name).write_text("a,b,c\n1,2,3\n")
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 130, done.stderr
    assert done.stderr.split() == ["Stopped."]


@pytest.mark.parametrize("words", [["datasets"], ["fit", "--help"]])
def test_closed_pipe_prints_no_error(words: list[str]) -> None:
    program = f"import sys; from pairnorm.cli import main; sys.exit(main({words!r}))"
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    # argparse says nothing of it where the output is not buffered.
    assert process.wait() in ((141,) if words == ["datasets"] else (0, 141))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
def test_full_disk_prints_one_line() -> None:
    program = "import sys; from pairnorm.cli import main; sys.exit(main(['datasets']))"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr.startswith("Error: cannot write to standard output: [Errno 28] No space left")
    assert done.stderr.count("\n") == 1


def test_unwritable_summary_raises_output_closed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As with ``pairnorm fit … --json > summary.json`` on a full disk."""
    summary = {"classes": ["[bold]", "日本\x1b[31m"], "accuracy": 0.5}
    command = Command(lambda options: summary, "act", "pairnorm act")
    cli._call(command, Namespace(json=True), [])
    printed = json.loads(capsys.readouterr().out)
    assert printed.items() >= summary.items()
    assert printed["command"] == "act"
    for error in (OSError(28, "No space left on device"), BrokenPipeError()):
        stream = StringIO()
        monkeypatch.setattr(stream, "flush", partial(raising(error), Namespace()))
        monkeypatch.setattr(sys, "stdout", stream)
        with pytest.raises(console.OutputClosed):
            cli._call(command, Namespace(json=True), [])


def test_unsupported_characters_are_escaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = BytesIO()
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(printed, encoding="ascii"))
    assert cli.main(["datasets", "--root", str(tmp_path / "日本")]) == 0
    assert rb"\u65e5\u672c" in printed.getvalue()


def test_graph_warning_is_printed_as_note(added: Added, capsys: pytest.CaptureFixture[str]) -> None:
    added(lambda options: warnings.warn("3 self-loops were dropped", GraphWarning, stacklevel=1))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert cli.main(["act"]) == 0
    assert capsys.readouterr().err == "Note: 3 self-loops were dropped\n"


@pytest.mark.parametrize("words", [["datsets"], ["--bad"], ["datasets", "extra"], ["fit"], ["fit", "--bad"]])
def test_usage_error_has_exit_code_two(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert cli.main(words) == 2
    printed = capsys.readouterr().err
    assert "Usage: pairnorm" in printed
    assert len(printed.splitlines()) == 3


def test_unknown_command_suggests_the_closest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["datsets"]) == 2
    assert "Did you mean 'datasets'?" in capsys.readouterr().err


def test_no_arguments_print_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert set(NAMES) <= set(capsys.readouterr().out.split())


def test_version_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"pairnorm {__version__}\n"


@pytest.mark.parametrize("name", ["fit", "compare", "diagnose", "predict", "pack"])
def test_help_lists_nodes_before_edges(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert cli.main([name, "--help-all"]) == 0
    options = capsys.readouterr().out.partition("Files:")[2]
    assert -1 < options.find("--nodes ") < options.find("--edges ") < options.find("--delimiter ")


@pytest.mark.parametrize("name", ["", *NAMES])
@pytest.mark.parametrize("word", ["-h", "--help", "--help-all"])
def test_command_help_fits_eighty_columns_with_an_example(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, word: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    if word == "--help-all" and not name:
        return
    assert cli.main([*name.split(), word]) == 0
    printed = capsys.readouterr().out
    assert re.search(rf"Examples?:\n  pairnorm {name}", printed)
    assert max(map(len, printed.splitlines())) <= 80
    for option in OPTIONS.get(name, []) if word == "--help-all" else ():
        assert re.search(rf"^  --{option} [A-Z]", printed, re.MULTILINE), option


@pytest.mark.parametrize("name", NAMES)
def test_all_options_are_accepted(name: str) -> None:
    command = cli.build_parser()[1][name]
    words = [word for option in OPTIONS[name] for word in (f"--{option}", "7")]
    parsed = command.parse([*words, *(["table1"] if name == "reproduce" else [])])
    given = {option: getattr(parsed, option.replace("-", "_")) for option in OPTIONS[name]}
    assert all(value in (7, Path("7"), "7", ["7"]) for value in given.values()), given


def test_option_help_starts_with_a_verb_and_ends_with_a_period() -> None:
    for command in cli.build_parser()[1].values():
        for action in command._actions:
            if action.help and action.help != "==SUPPRESS==" and action.option_strings:
                assert re.match(r"[A-Z][a-z]+ ", action.help), action.help
                assert action.help.endswith((".", "…")), action.help


def test_commands_are_grouped_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    group = capsys.readouterr().out.partition("Reproduce the paper:\n")[2].partition("\n\n")[0]
    assert [line.split()[0] for line in group.splitlines()] == ["reproduce", "report", "datasets"]


def test_deleted_working_directory_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for words in (["fit", "--nodes", "n.csv", "--label", "x"], ["diagnose", "--nodes", "n.csv"]):
        assert cli.main(words) == 1
        printed = capsys.readouterr().err
        assert printed.count("\n") == 1
        assert "the working directory no longer exists" in printed


def test_closed_standard_input_is_an_error() -> None:
    program = "import os; os.close(0); os.execv(__import__('sys').argv[1], __import__('sys').argv[1:])"
    words = [sys.executable, "-m", "pairnorm", "fit", "--nodes", "-", "--edges", "-", "--label", "x"]
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "standard input is closed" in done.stderr


def test_sigterm_stops_like_ctrl_c(added: Added, capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    added(lambda options: os.kill(os.getpid(), signal.SIGTERM))
    assert cli.main(["act"]) == 143
    assert capsys.readouterr().err.split() == ["Stopped."]
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupt_converted_by_a_library_is_recognized(
    added: Added, capsys: pytest.CaptureFixture[str], number: int, code: int
) -> None:
    def act(options: Namespace) -> None:
        try:
            os.kill(os.getpid(), number)
        except KeyboardInterrupt:
            raise RuntimeError("Query interrupted") from None

    added(act)
    before = signal.signal(number, signal.default_int_handler)  # a job in the background ignores SIGINT
    try:
        assert cli.main(["act"]) == code
    finally:
        signal.signal(number, before)
    assert capsys.readouterr().err.split() == ["Stopped."]


def test_password_appears_in_no_message_or_log(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for url in (
        "postgresql://ann:MARKER77@127.0.0.1:notaport/bank",
        "postgresql://ann:MARKER77@[bad/bank",
        "postgresql://ann:MARKER77@127.0.0.1:1/bank?connect_timeout=1",
        "postgresql://ann:with@MARKER77@127.0.0.1:1/bank?connect_timeout=1",
        "nosuch://ann:MARKER77 x@host/bank",
        "nosuch://host/?access_token=MARKER77&api_key=MARKER77",
        "mssql+pyodbc:///?odbc_connect=DRIVER%3Dx%3BPWD%3DMARKER77",
        "sqlite:////nowhere/x.db?password=MARKER77",
        "ftp://ann:MARKER77@host/nodes.csv",
        "://ann:MARKER77@host",
    ):
        monkeypatch.setattr(sys, "argv", ["pairnorm", "fit", "--database", url])
        for words in (
            ["--database", url, "--nodes", "select 1"],
            ["--database", url, "--nodes", "select 1", "--debug"],
            ["--nodes", url],
            ["--nodes", "nodes.csv", f"--features={url}"],
        ):
            more = ["--edges", "select 1", "--label", "x", "--out", str(tmp_path / "run")]
            assert cli.main(["fit", *words, *more]) == 1, url
            printed = capsys.readouterr()
            assert "MARKER77" not in printed.out + printed.err
        assert cli.main(["fit", "--nodse", url]) == 2
        assert "MARKER77" not in capsys.readouterr().err
        for log in tmp_path.glob("*.log"):
            assert "MARKER77" not in log.read_text(encoding="utf-8")


def test_password_is_masked_in_the_error_log(
    added: Added, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    added(raising(KeyError("postgresql://ann:MARKER77@host/bank")))
    assert cli.main(["act"]) == 70
    [log] = tmp_path.iterdir()
    assert "MARKER77" not in capsys.readouterr().err + log.read_text(encoding="utf-8")


def test_package_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pairnorm", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"pairnorm {__version__}\n"


def test_closed_stream_is_replaced_by_devnull() -> None:
    program = (
        "import os, sys; os.close(2); sys.argv = ['pairnorm', '--version']; "
        "from pairnorm.__main__ import main; main(); "
        "sys.exit(not os.path.samestat(os.fstat(2), os.stat(os.devnull)))"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


@pytest.mark.parametrize("name", ["diagnose", "compare", "fit"])
def test_options_are_validated_before_files_are_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    absent = ["--nodes", str(tmp_path / "n.csv"), "--edges", str(tmp_path / "e.csv"), "--label", "y"]
    out = ["--out", str(tmp_path / "out.png")]
    assert cli.main([name, *absent, *out, "--feature-scaling", "rowss"]) == 1
    assert "Did you mean 'rows'?" in capsys.readouterr().err
