"""Print text with a little markup, notes, errors, tables and progress.

Control characters in names are escaped, passwords hidden.
"""

import os
import re
import shutil
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from itertools import count
from math import isnan, nan
from typing import Any
from unicodedata import combining, east_asian_width

from pairnorm.base.errors import terminal

SECONDS_BETWEEN_LINES = 15

_STYLES = {"/": 0, "bold": 1, "dim": 2, "red": 31, "yellow": 33}
_TAG = re.compile(r"\[(/|bold|dim|yellow|red)\]")
_BRACKET = "\x00"  # a "[" that starts no tag
_quiet = False
_has_line = False  # whether the last line of the terminal shows progress


class OutputClosed(Exception):
    """Standard output cannot be written, as after ``pairnorm datasets | head -1`` or on a full disk."""


class Stopped(KeyboardInterrupt):
    """The user stopped a command, which has printed what it keeps."""


def safe(text: object) -> str:
    r"""Escape a name or message so that ``show`` prints it unchanged, except for control characters.

    >>> show("[bold]Wrote[/] " + safe("[bold]\x1b[31m.csv"))
    Wrote [bold]\x1b[31m.csv
    """
    return terminal(text).replace("[", _BRACKET)


def show(text: str = "", *, error: bool = False) -> None:
    """Print a text, whose tags ``[bold]``, ``[dim]``, ``[yellow]``, ``[red]`` and ``[/]`` set its style.

    Args:
        text: names and messages in it must have gone through ``safe``.
        error: print to standard error.
    """
    stream = sys.stderr if error else sys.stdout
    if stream is None or (_quiet and not error):
        return
    has_styles = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    if _has_line:  # text goes above the line of progress, which is drawn again later
        _redraw("")
    styled = _TAG.sub(lambda tag: f"\x1b[{_STYLES[tag[1]]}m" if has_styles else "", text)
    try:
        print(styled.replace(_BRACKET, "["), file=stream, flush=True)
    except OSError as why:
        if not error:  # an error that cannot be printed is lost
            raise OutputClosed(why) from None


def is_quiet() -> bool:
    """Return whether --quiet holds: only notes and errors are printed."""
    return _quiet


def flush() -> None:
    """Flush standard output, or raise ``OutputClosed``."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as why:
        raise OutputClosed(why) from None


def note(text: object) -> None:
    """Print a note to standard error."""
    show(f"[yellow]Note:[/] {_lines(text)}", error=True)


def complain(text: object) -> None:
    """Print an error to standard error."""
    show(f"[red]Error:[/] {_lines(text)}", error=True)


def show_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    """Print a warning, as ``warnings.showwarning`` does; a warning of this package is a note."""
    if category.__module__.startswith("pairnorm."):
        note(message)
    else:
        show(_lines(warnings.formatwarning(message, category, *where[:2]).rstrip()), error=True)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[int] = (0,)) -> None:
    """Print a table; columns that are not in ``left`` are aligned right, as numbers are."""
    cells = [[safe(cell) for cell in row] for row in (headings, *rows)]
    widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]

    def line(row: list[str]) -> str:
        spaces = [" " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)]
        padded = [
            cell + space if column in left else space + cell
            for column, (cell, space) in enumerate(zip(row, spaces, strict=True))
        ]
        return "  ".join(padded).rstrip()

    rule = "─" * (sum(widths) + 2 * len(widths) - 2)
    show("\n".join(["", line(cells[0]), rule, *map(line, cells[1:]), ""]))


def facts(rows: Iterable[tuple[str, str]]) -> None:
    """Print names and texts in two columns; long texts are wrapped."""
    pairs = [(safe(name), safe(text)) for name, text in rows]
    margin = " " * (max((_width(name) for name, _ in pairs), default=0) + 2)
    width = max(shutil.get_terminal_size().columns, len(margin) + 20)
    for name, text in pairs:
        filled = textwrap.fill(text, width, initial_indent=margin, subsequent_indent=margin)
        show(f"[dim]{name}[/]{filled[_width(name) :]}")


@dataclass(frozen=True)
class Progress:
    """The progress of a stage: finished steps, all steps, and what to show next to them.

    Args:
        stage: its name.
        done: finished units.
        total: all units; None where it is unknown.
        latest: the unit that finished last.
        unit: name of the units, to show how many are done in a second.
        seconds_left: estimated, or NaN where it is unknown. Default: extrapolated.
    """

    stage: str
    done: int
    total: int | None
    latest: str = ""
    unit: str = ""
    seconds_left: float | None = None


OnProgress = Callable[[Progress], None]


@contextmanager
def output(quiet: bool = False, to_stderr: bool = False) -> Iterator[None]:
    """Print notes and errors only if ``quiet``, and everything to standard error if ``to_stderr``."""
    global _quiet
    before, _quiet = _quiet, quiet
    try:
        with redirect_stdout(sys.stderr) if to_stderr else nullcontext():
            yield
    finally:
        _quiet = before


@contextmanager
def silent(condition: bool) -> Iterator[None]:
    """Print nothing if ``condition`` holds, as in the ranks that repeat what the first rank does."""
    if not condition:
        yield
        return
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


@contextmanager
def progress() -> Iterator[OnProgress]:
    """Show one line per stage that is redrawn in a terminal; elsewhere one at its start and every 15 s."""
    shown = _ProgressLine()
    try:
        yield shown
    finally:
        shown.finish()


@contextmanager
def stage(name: str, total: int | None = None, is_even: bool = True) -> Iterator[Callable[[str], None]]:
    """Show the progress of a stage; yields a function to call with the name of each finished step.

    Args:
        name: of the stage.
        total: number of steps.
        is_even: whether steps take about as long as each other; else no time left is shown.
    """
    left = None if is_even else nan
    steps = count(1)
    with progress() as on_progress:
        on_progress(Progress(name, 0, total))
        yield lambda latest: on_progress(
            Progress(name, min(next(steps), total or 0), total, latest, seconds_left=left)
        )


class _ProgressLine:
    """Prints the share done, the rate and the time left.

    The rate counts from the first progress on, as workers and kernels take seconds to start.
    """

    def __init__(self) -> None:
        self._stage, self._first, self._start, self._last = "", 0, 0.0, 0.0
        self._is_terminal = not _quiet and sys.stdout is not None and sys.stdout.isatty()
        self._has_advanced = False

    def __call__(self, progress: Progress) -> None:
        now, done, total = time.monotonic(), progress.done, progress.total
        latest = progress.latest
        if progress.stage != self._stage:
            self.finish()
            self._stage, self._last, self._first, self._has_advanced = progress.stage, now, done, False
            self._print(f"{self._stage}: {latest}" if latest else f"{self._stage} …")
        if done == self._first or not total:
            return
        if not self._has_advanced:
            self._has_advanced, self._start, self._first = True, now, done
        elif now - self._last >= (0.1 if self._is_terminal else SECONDS_BETWEEN_LINES) and now > self._start:
            self._last = now
            rate = (done - self._first) / (now - self._start)
            speed = f", {rate:,.0f} {progress.unit}/s" if progress.unit else ""
            seconds = (total - done) / rate if progress.seconds_left is None else progress.seconds_left
            left = f"{seconds / 60:.1f} min left" if seconds >= 60 else f"{max(0.0, seconds):.0f} s left"
            shown = speed if isnan(seconds) else f"{speed}, {left}"
            self._print(f"{self._stage}: {done / total:.0%}{shown}{f'; {latest}' if latest else ''}")

    def _print(self, text: str) -> None:
        if not self._is_terminal:
            show(safe(text))
            return
        width = shutil.get_terminal_size().columns - 1
        _redraw(terminal(text)[:width])

    def finish(self) -> None:
        """Remove the line from the terminal."""
        if self._is_terminal and self._stage:
            _redraw("")


def _redraw(line: str) -> None:
    """Replace the last line of the terminal."""
    global _has_line
    try:
        print(f"\r\x1b[K{line}", end="", flush=True)
    except OSError as why:
        raise OutputClosed(why) from None
    _has_line = bool(line)


def _lines(text: object) -> str:
    return "\n".join(map(safe, str(text).split("\n")))


def _width(text: str) -> int:
    return sum(0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text)
