"""Run the command line: parse it, call a command, explain errors. Commands are in ``pairnorm.commands``."""

import json
import os
import shlex
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import NoReturn

from pairnorm import __version__
from pairnorm.base.errors import (
    PairNormError,
    did_you_mean,
    install,
    is_out_of_memory,
    quoted,
    redact,
    register_password,
)
from pairnorm.base.files import check_path
from pairnorm.base.memory import peak_memory
from pairnorm.commands import compare, console, fit, graphs, predict, reproduce
from pairnorm.commands.options import OPTION_NAMES, Command, CommandParser, Options, Parser

COMMANDS = {
    "Label the nodes of a graph": (fit.run, predict.run, graphs.diagnose, graphs.pack),
    "Compare methods": (reproduce.demo, compare.run),
    "Reproduce the paper": (reproduce.run, reproduce.report, graphs.datasets),
}
EXIT_CODES = {
    0: "Success.",
    1: "The input cannot be used, or a library is missing. The message says what to change.",
    2: "The command line is wrong.",
    70: "pairnorm has a bug. The message names a log file for a report.",
    130: "Interrupted by Ctrl-C. Finished results are kept.",
    141: "The reader of the output closed it, as `| head` does.",
    143: "Terminated by SIGTERM. Finished results are kept.",
}
DONE, UNUSABLE, WRONG_USAGE, BUG, INTERRUPTED, OUTPUT_CLOSED, TERMINATED = EXIT_CODES


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, by default that of the process, and return its exit code: one of ``EXIT_CODES``."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # show what a terminal cannot display in escaped form
            stream.reconfigure(errors="backslashreplace")
    words = list(sys.argv[1:] if arguments is None else arguments)
    for word in words:
        register_password(word)
    debug = "--debug" in words
    received: list[int] = []
    try:
        with warnings.catch_warnings(), _signals_interrupt(received):
            warnings.showwarning = console.show_warning
            code = _run([word for word in words if word != "--debug"])
        console.flush()
    except KeyboardInterrupt as stopped:
        return _stop(received, stopped)
    except console.OutputClosed as closed:
        # Further output of the interpreter at exit would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(closed.args[0], BrokenPipeError):
            return OUTPUT_CLOSED
        console.complain(f"cannot write to standard output: {closed}")
        return UNUSABLE
    except Exception as error:
        if debug:
            console.complain("".join(traceback.format_exception(error)))
        # A library may turn the interruption into an error of its own, as DuckDB does.
        if received and ("interrupted" in str(error) or not isinstance(error, PairNormError)):
            return _stop(received, error)
        return _explain(error)
    return code


def _stop(received: list[int], why: BaseException) -> int:
    """Say that a signal ended the command, and return the exit code."""
    if not isinstance(why, console.Stopped):
        console.show("\nStopped.", error=True)
    return TERMINATED if signal.SIGTERM in received else INTERRUPTED


@contextmanager
def _signals_interrupt(received: list[int]) -> Iterator[None]:
    """Clean up after SIGTERM as after Ctrl-C, and note in ``received`` which of them came."""
    numbers = [each for each in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(each) != signal.SIG_IGN]
    if threading.current_thread() is not threading.main_thread():
        numbers = []

    def interrupt(number: int, frame: object) -> NoReturn:
        received.append(number)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def build_parser() -> tuple[Parser, dict[str, CommandParser]]:
    """Return the parser for arguments without a command, such as --help, and that of each command."""
    sections = [
        "\n".join(
            [f"{title}:", *(f"  {each.name:<10} {each.help.partition(chr(10))[0]}" for each in commands)]
        )
        for title, commands in COMMANDS.items()
    ]
    parser = Parser(
        prog="pairnorm",
        usage="pairnorm COMMAND [options]",
        description="Deep graph neural networks that do not oversmooth, and node classification\n"
        "where many nodes have no features.",
        epilog="\n\n".join(
            [
                *sections,
                "Examples:\n  pairnorm demo\n  pairnorm fit --nodes n.csv --edges e.csv --label risk",
            ]
        ),
    )
    general = parser.add_argument_group("Options")
    general.add_argument(
        "-h", "--help", "--help-all", action="help", help="Show this; after a command, its options."
    )
    general.add_argument(
        "--version", action="version", version=f"pairnorm {__version__}", help="Show the version."
    )
    general.add_argument("--debug", action="store_true", help="Show the traceback of an error.")
    return parser, {entry.name: CommandParser(entry) for commands in COMMANDS.values() for entry in commands}


def _run(words: list[str]) -> int:
    parser, commands = build_parser()
    try:
        if not words or words[0].startswith("-"):
            parser.parse_args(words)
            parser.print_help()
            return WRONG_USAGE
        name, *words = words
        if name not in commands:
            parser.error(f"there is no command {quoted(name)}. {did_you_mean(name, list(commands))}".rstrip())
        options = commands[name].parse(words)
    except SystemExit as leaving:  # after the help, the version or an error
        return int(leaving.code or 0)
    _call(commands[name].command, options, words)
    return DONE


def _call(command: Command, options: Options, words: Sequence[str]) -> None:
    """Call a command with checked options, and print its summary for ``--json``."""
    try:
        Path.cwd()
    except OSError as error:
        problem, hint = "the working directory no longer exists", "Change to another folder with cd."
        raise PairNormError(problem, code="unusable-path", hint=hint) from error
    for value in vars(options).values():
        if isinstance(value, Path):
            check_path(value)
    options.command_line = shlex.join(["pairnorm", command.name, *words])
    options.started = start = time.monotonic()
    with console.output(quiet=getattr(options, "quiet", False), to_stderr=getattr(options, "json", False)):
        summary = command.run(options)
    if summary is not None and options.json:
        seconds = round(time.monotonic() - start, 1)
        measured = {"command": command.name, "seconds": seconds, "peak_memory_bytes": peak_memory()}
        summary = measured | summary
        lines = json.dumps(summary, indent=2, default=str).split("\n")
        console.show("\n".join(map(console.safe, lines)))


def _explain(error: Exception) -> int:
    """Print what went wrong and how to fix it, and return the exit code."""
    if isinstance(error, PairNormError):
        console.complain(error.typed(OPTION_NAMES))
        return UNUSABLE
    # pandas names the missing library in the error that caused its own.
    library, *_ = str(getattr(error, "name", None) or getattr(error.__cause__, "name", "")).split(".")
    if isinstance(error, ImportError) and library not in ("", "None", "pairnorm"):
        console.complain(
            f"this needs {library}, which is not installed.\n"
            f"Install everything that commands need: {install('all')}"
        )
        return UNUSABLE
    if is_out_of_memory(error):
        console.complain("there is not enough memory for this. Use a smaller graph or fewer workers.")
        return UNUSABLE
    summary = "".join(traceback.format_exception_only(error)).strip()
    console.complain(f"{summary}\nThis is a bug of pairnorm, not a mistake of yours. {_log(error)}")
    return BUG


def _log(error: Exception) -> str:
    lines = "".join(traceback.format_exception(error))
    text = redact(f"pairnorm {__version__}, Python {sys.version}\n{sys.argv}\n{lines}")
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="pairnorm-", suffix=".log", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as file:
            file.write(text)
    except OSError:
        return "Please open an issue with what --debug shows."
    return f"Please open an issue with this file: {file.name}"
