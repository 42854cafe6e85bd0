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
from _pytest.capture import CaptureResult

from helpers import run_python
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


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that logs of errors are written to."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def act(monkeypatch: pytest.MonkeyPatch, pairnorm) -> Callable[..., CaptureResult[str]]:
    """Run a command ``act`` that calls a function or raises an error, and return what it prints."""

    def run(
        action: BaseException | Callable[[Namespace], object], *words: str, code: int = 0
    ) -> CaptureResult[str]:
        function = raising(action) if isinstance(action, BaseException) else action
        added = Command(function, "act", "pairnorm act")
        monkeypatch.setattr(cli, "COMMANDS", {**cli.COMMANDS, "Test": (added,)})
        return pairnorm(*(words or ("act",)), code=code)

    return run


def raising(error: BaseException) -> Callable[[Namespace], None]:
    def act(options: Namespace) -> None:
        raise error

    return act


def test_datasets_prints_the_papers_table(pairnorm, tmp_path):
    rows = [line.split() for line in pairnorm("datasets", "--root", tmp_path).out.splitlines()]
    assert ["cora", "2,708", "5,429", "5,278", "1,433", "7", "0.052", "bundled"] in rows
    assert ["coauthor-cs", "18,333", "81,894", "81,894", "6,805", "15", "0.030", "absent"] in rows


def test_absent_datasets_print_a_hint(pairnorm, tmp_path):
    text = pairnorm("datasets", "--root", tmp_path).out
    assert f"Absent from {tmp_path}: citeseer, pubmed, coauthor-cs." in text
    assert "PAIRNORM_DATA" in text
    table = [line for line in text.splitlines() if "bundled" in line or "Label rate" in line]
    assert len(table) == 2
    assert all(len(line) <= 80 for line in table)


def test_error_is_short_without_traceback(act):
    printed = act(PairNormError("nodes.csv, line 7: [x] is not a number.\nCorrect it."), code=1)
    assert printed.out == ""
    assert printed.err == "Error: nodes.csv, line 7: [x] is not a number.\nCorrect it.\n"


def test_hint_names_options_as_typed(act):
    error = PairNormError("no column 'a'", hint="Pass {ignore}.", ignore=["two words"])
    assert act(error, code=1).err == "Error: no column 'a'. Pass --ignore 'two words'.\n"


@pytest.mark.usefixtures("logs")
@pytest.mark.parametrize("words", [["--debug", "act"], ["act", "--debug"]])
@pytest.mark.parametrize(("error", "code"), [(PairNormError("line 7"), 1), (KeyError("line 7"), 70)])
def test_debug_shows_the_traceback(act, words, error, code):
    printed = act(error, *words, code=code).err
    assert "Traceback (most recent call last)" in printed
    assert "line 7" in printed


def test_unexpected_error_is_logged(act, logs):
    printed = act(KeyError("\x1b[31mred"), code=70).err
    assert printed.startswith(r"Error: KeyError: '\x1b[31mred'")
    assert len(printed.splitlines()) == 2
    [log] = logs.iterdir()
    assert str(log) in printed
    assert "raise error" in log.read_text(encoding="utf-8")


def test_unwritable_log_still_prints_the_error(act, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    assert "--debug" in act(KeyError("x"), code=70).err


@pytest.mark.usefixtures("logs")
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ModuleNotFoundError("No module named 'pandas'", name="pandas"), 1),
        (ModuleNotFoundError("No module named 'x'", name="matplotlib.figure"), 1),
        (ModuleNotFoundError("No module named 'x'", name="pairnorm.x"), 70),
        (ImportError("broken"), 70),
    ],
)
def test_missing_library_is_named(act, error, code):
    printed = act(error, code=code).err
    assert ("pip install 'pairnorm[all]'" in printed) == (code == 1)
    assert ("pip install '.[all]' in a checkout" in printed) == (code == 1)
    if code == 1:
        assert f"this needs {str(error.name).partition('.')[0]}," in printed


def test_keyboard_interrupt_prints_one_line(act):
    assert act(KeyboardInterrupt(), code=130).err.split() == ["Stopped."]


@pytest.mark.parametrize("module", ["pairnorm.cli", "argparse", "torch", "pandas"])
def test_keyboard_interrupt_during_imports_prints_one_line(tmp_path, module):
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
    assert run_python("-c", program, cwd=tmp_path, code=130).stderr.split() == ["Stopped."]


@pytest.mark.parametrize("words", [["datasets"], ["fit", "--help"]])
def test_closed_pipe_prints_no_error(words):
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
def test_full_disk_prints_one_line():
    program = "import sys; from pairnorm.cli import main; sys.exit(main(['datasets']))"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr.startswith("Error: cannot write to standard output: [Errno 28] No space left")
    assert done.stderr.count("\n") == 1


def test_unwritable_summary_raises_output_closed(monkeypatch, capsys):
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


def test_unsupported_characters_are_escaped(tmp_path, monkeypatch):
    printed = BytesIO()
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(printed, encoding="ascii"))
    assert cli.main(["datasets", "--root", str(tmp_path / "日本")]) == 0
    assert rb"\u65e5\u672c" in printed.getvalue()


def test_graph_warning_is_printed_as_note(act):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        printed = act(lambda _: warnings.warn("3 self-loops were dropped", GraphWarning, stacklevel=1))
    assert printed.err == "Note: 3 self-loops were dropped\n"


@pytest.mark.parametrize("words", [["datsets"], ["--bad"], ["datasets", "extra"], ["fit"], ["fit", "--bad"]])
def test_usage_error_has_exit_code_two(pairnorm, words):
    printed = pairnorm(*words, code=2).err
    assert "Usage: pairnorm" in printed
    assert len(printed.splitlines()) == 3


def test_unknown_command_suggests_the_closest(pairnorm):
    assert "Did you mean 'datasets'?" in pairnorm("datsets", code=2).err


def test_no_arguments_print_help(pairnorm):
    assert set(NAMES) <= set(pairnorm(code=2).out.split())


def test_version_option(pairnorm):
    assert pairnorm("--version").out == f"pairnorm {__version__}\n"


@pytest.mark.parametrize("name", ["fit", "compare", "diagnose", "predict", "pack"])
def test_help_lists_nodes_before_edges(pairnorm, name):
    options = pairnorm(name, "--help-all").out.partition("Files:")[2]
    assert -1 < options.find("--nodes ") < options.find("--edges ") < options.find("--delimiter ")


@pytest.mark.parametrize("name", ["", *NAMES])
@pytest.mark.parametrize("word", ["-h", "--help", "--help-all"])
def test_command_help_fits_eighty_columns_with_an_example(pairnorm, monkeypatch, name, word):
    monkeypatch.setenv("COLUMNS", "80")
    if word == "--help-all" and not name:
        return
    printed = pairnorm(*name.split(), word).out
    assert re.search(rf"Examples?:\n  pairnorm {name}", printed)
    assert max(map(len, printed.splitlines())) <= 80
    for option in OPTIONS.get(name, []) if word == "--help-all" else ():
        assert re.search(rf"^  --{option} [A-Z]", printed, re.MULTILINE), option


@pytest.mark.parametrize("name", NAMES)
def test_all_options_are_accepted(name):
    command = cli.build_parser()[1][name]
    words = [word for option in OPTIONS[name] for word in (f"--{option}", "7")]
    parsed = command.parse([*words, *(["table1"] if name == "reproduce" else [])])
    given = {option: getattr(parsed, option.replace("-", "_")) for option in OPTIONS[name]}
    assert all(value in (7, Path("7"), "7", ["7"]) for value in given.values()), given


def test_option_help_starts_with_a_verb_and_ends_with_a_period():
    for command in cli.build_parser()[1].values():
        for action in command._actions:
            if action.help and action.help != "==SUPPRESS==" and action.option_strings:
                assert re.match(r"[A-Z][a-z]+ ", action.help), action.help
                assert action.help.endswith((".", "…")), action.help


def test_commands_are_grouped_in_the_help(pairnorm):
    group = pairnorm("--help").out.partition("Reproduce the paper:\n")[2].partition("\n\n")[0]
    assert [line.split()[0] for line in group.splitlines()] == ["reproduce", "report", "datasets"]


def test_deleted_working_directory_is_an_error(tmp_path, monkeypatch, pairnorm):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for words in (["fit", "--nodes", "n.csv", "--label", "x"], ["diagnose", "--nodes", "n.csv"]):
        printed = pairnorm(*words, code=1).err
        assert printed.count("\n") == 1
        assert "the working directory no longer exists" in printed


def test_closed_standard_input_is_an_error():
    program = "import os; os.close(0); os.execv(__import__('sys').argv[1], __import__('sys').argv[1:])"
    words = [sys.executable, "-m", "pairnorm", "fit", "--nodes", "-", "--edges", "-", "--label", "x"]
    assert "standard input is closed" in run_python("-c", program, *words, code=1).stderr


def test_sigterm_stops_like_ctrl_c(act):
    before = signal.getsignal(signal.SIGTERM)
    printed = act(lambda _: os.kill(os.getpid(), signal.SIGTERM), code=143)
    assert printed.err.split() == ["Stopped."]
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupt_converted_by_a_library_is_recognized(act, number, code):
    def convert(options: Namespace) -> None:
        try:
            os.kill(os.getpid(), number)
        except KeyboardInterrupt:
            raise RuntimeError("Query interrupted") from None

    before = signal.signal(number, signal.default_int_handler)  # a job in the background ignores SIGINT
    try:
        printed = act(convert, code=code)
    finally:
        signal.signal(number, before)
    assert printed.err.split() == ["Stopped."]


def test_password_appears_in_no_message_or_log(pairnorm, logs, monkeypatch):
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
            more = ["--edges", "select 1", "--label", "x", "--out", str(logs / "run")]
            printed = pairnorm("fit", *words, *more, code=1)
            assert "MARKER77" not in printed.out + printed.err
        assert "MARKER77" not in pairnorm("fit", "--nodse", url, code=2).err
        for log in logs.glob("*.log"):
            assert "MARKER77" not in log.read_text(encoding="utf-8")


def test_password_is_masked_in_the_error_log(act, logs):
    printed = act(KeyError("postgresql://ann:MARKER77@host/bank"), code=70)
    [log] = logs.iterdir()
    assert "MARKER77" not in printed.err + log.read_text(encoding="utf-8")


def test_package_runs_as_a_module():
    assert run_python("-m", "pairnorm", "--version").stdout == f"pairnorm {__version__}\n"


def test_closed_stream_is_replaced_by_devnull():
    program = (
        "import os, sys; os.close(2); sys.argv = ['pairnorm', '--version']; "
        "from pairnorm.__main__ import main; main(); "
        "sys.exit(not os.path.samestat(os.fstat(2), os.stat(os.devnull)))"
    )
    run_python("-c", program)


@pytest.mark.parametrize("name", ["diagnose", "compare", "fit"])
def test_options_are_validated_before_files_are_read(pairnorm, tmp_path, name):
    absent = ["--nodes", str(tmp_path / "n.csv"), "--edges", str(tmp_path / "e.csv"), "--label", "y"]
    out = ["--out", str(tmp_path / "out.png")]
    error = pairnorm(name, *absent, *out, "--feature-scaling", "rowss", code=1).err
    assert "Did you mean 'rows'?" in error
