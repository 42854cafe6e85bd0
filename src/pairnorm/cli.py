"""The command line: parse, call, say what went wrong; each command is a module of ``pairnorm.commands``."""

import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path

from pairnorm.base.errors import PairNormError, closest, is_out_of_memory, quoted
from pairnorm.base.files import check_path
from pairnorm.commands import (
    compare,
    console,
    datasets,
    demo,
    diagnose,
    fit,
    pack,
    predict,
    report,
    reproduce,
)
from pairnorm.commands.options import Command, Parser
from pairnorm.version import __version__

COMMANDS = (demo, datasets, fit, predict, diagnose, compare, pack, reproduce, report)
DONE, UNUSABLE, WRONG, FAULT, INTERRUPTED, UNREAD = 0, 1, 2, 70, 130, 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    0: done; 1: an input that cannot be used, or a library that is lacking; 2: a wrong command line; 70: a
    fault of this package; 130: interrupted; 141: nobody reads what is printed.

    Args:
        arguments: the command line without the program's name. Default: that of the process.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal that cannot show a letter is no reason to fail
            stream.reconfigure(errors="backslashreplace")
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    try:
        with warnings.catch_warnings():
            warnings.showwarning = console.show_warning
            code = _run([word for word in words if word != "--debug"])
        console.flush()
        return code
    except KeyboardInterrupt:
        console.show("\nStopped.", error=True)
        return INTERRUPTED
    except console.OutputClosed as closed:
        # What is still to be written at exit would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(closed.args[0], BrokenPipeError):
            return UNREAD
        console.complain(f"what is to be printed cannot be written: {closed}")
        return UNUSABLE
    except Exception as error:
        if debug:
            raise
        return _explain(error)


def _run(words: list[str]) -> int:
    parser = Parser(
        prog="pairnorm",
        usage="pairnorm COMMAND [options]",
        description="Deep graph neural networks that do not oversmooth, and labels for nodes that\n"
        "have no features.",
        epilog="Examples:\n  pairnorm demo\n  pairnorm fit --help",
    )
    commands = parser.add_subparsers(
        title="Commands", metavar="COMMAND ...", prog="pairnorm", parser_class=Command
    )
    for module in COMMANDS:
        module.add(commands)
    general = parser.add_argument_group("Options")
    general.add_argument("-h", "--help", action="help", help="Show this, or the help of a command.")
    general.add_argument(
        "--version", action="version", version=f"pairnorm {__version__}", help="Show the version."
    )
    general.add_argument("--debug", action="store_true", help="Show the traceback of an error.")
    if not words:
        parser.print_help()
        return WRONG
    name = next((word for word in words if not word.startswith("-")), None)
    try:
        if name is not None and name not in commands.choices:
            parser.error(
                f"there is no command {quoted(name)}. {closest(name, list(commands.choices))}".rstrip()
            )
        options = parser.parse_args(words)
    except SystemExit as leaving:  # the help or the version was shown, or the command line is wrong
        return int(leaving.code or 0)
    for value in vars(options).values():
        if isinstance(value, Path):
            check_path(value)
    return options.run(options) or DONE


def _explain(error: Exception) -> int:
    """Print what went wrong and what to do about it, and return the exit code."""
    if isinstance(error, PairNormError):
        console.complain(error.typed())
        return UNUSABLE
    # pandas says which library it lacks in what its error was raised from.
    library, *_ = str(getattr(error, "name", None) or getattr(error.__cause__, "name", "")).split(".")
    if isinstance(error, ImportError) and library not in ("", "None", "pairnorm"):
        console.complain(
            f"this needs {library}, which is not installed.\nInstall all that commands need: "
            "pip install 'pairnorm[all]'"
        )
        return UNUSABLE
    if is_out_of_memory(error):
        console.complain("there is not enough memory for this. Take a smaller graph, or fewer at once.")
        return UNUSABLE
    what = "".join(traceback.format_exception_only(error)).strip()
    console.complain(f"{what}\nThis is a fault of pairnorm, not of what you gave it. {_log(error)}")
    return FAULT


def _log(error: Exception) -> str:
    lines = "".join(traceback.format_exception(error))
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="pairnorm-", suffix=".log", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as file:
            file.write(f"pairnorm {__version__}, Python {sys.version}\n{sys.argv}\n{lines}")
    except OSError:
        return "Please open an issue with what --debug shows."
    return f"Please open an issue with this file: {file.name}"
