"""``pairnorm reproduce missing``: all methods beside one another where features are missing."""

import shlex
from argparse import Namespace
from collections.abc import Callable
from math import isnan
from typing import TYPE_CHECKING, TypeVar

from pairnorm.commands import console
from pairnorm.commands.console import safe
from pairnorm.errors import PairNormError, quoted, real_number, whole_number

if TYPE_CHECKING:
    from pairnorm.train import Progress

Value = TypeVar("Value", str, float)
OPTIONS = (
    "protocol",
    "dataset",
    "model",
    "missing",
    "runs",
    "epochs",
    "minutes",
    "device",
    "workers",
    "root",
)


def run(options: Namespace) -> int | None:
    """Train and judge what the store lacks, then show and write the comparison."""
    from pairnorm.compare.missing import Selection
    from pairnorm.compare.missing_report import draw, lines, report, write_csv
    from pairnorm.compare.missing_runs import Found, compare, count_lacking
    from pairnorm.train.engine import find_device
    from pairnorm.writing import whole_file

    if options.depths is not None or options.on != "here" or len(options.what) > 1:
        raise PairNormError(
            "'missing' is an experiment of its own, on this machine, with depths of its own",
            code="wrong-option",
            value=options.what,
            remedy="Leave out other experiments, {depths} and {on}.",
            depths=...,
            on=...,
        )
    find_device(options.device)
    if options.workers is not None:
        whole_number("workers", options.workers, least=1)
    if options.minutes is not None:
        real_number("minutes", options.minutes, least=0)
    chosen = Selection(
        _several(options.protocol, str),
        _several(options.dataset, str),
        _several(options.model, str),
        _several(options.missing, _percent),
        options.runs,
        options.epochs,
    ).chosen()
    out = options.out
    path = options.store or out / "missing.sqlite"
    given = [(name, getattr(options, name)) for name in ("out", "store", *OPTIONS)]
    words = [
        word for name, value in given if value not in (None, "auto") for word in (f"--{name}", str(value))
    ]
    command = f"pairnorm reproduce missing {shlex.join(words)}"
    lacking = count_lacking(chosen, Found.read(path))
    if lacking:
        console.show(f"{lacking:,} runs at least are lacking; what is in {safe(path)} is not run again.")

    def progress(stage: str, now: "Progress") -> None:
        if now.trials:
            tell(stage, now.done, now.total, now.label if now.done else f"{now.trials:,} runs")

    settings = {name: getattr(options, name) for name in ("device", "root", "workers", "minutes")}
    try:
        with console.progress() as tell:
            left = compare(chosen, path, progress=progress, **settings) if lacking else 0
    except KeyboardInterrupt:
        console.show(f"\n[yellow]Stopped.[/] Go on with: [bold]{safe(command)}[/]")
        return 130
    found = lines(chosen, Found.read(path))
    rows = [
        (
            *(line.cell.protocol, line.cell.dataset, f"{line.cell.missing_percent:g}%", line.method),
            *(f"{line.accuracy:.3f}", "" if isnan(line.std) else f"{line.std:.3f}"),
            str(len(line.accuracies)),
        )
        for line in found
        if line.accuracies
    ]
    headings = ("Protocol", "Graph", "Missing", "Method", "Accuracy", "±", "Runs")
    console.table(headings, rows, left=(0, 1, 3))
    files = [out / "missing.csv"]
    write_csv(found, files[0])
    figure = None
    try:
        files += draw(found, out / "figures")
        figure = "figures/missing.png" if len(files) > 1 else None
    except ImportError as error:
        console.note(f"there is no figure: it needs {error.name}.")
    files.append(out / "missing.md")
    with whole_file(files[-1]) as draft:
        draft.write_text(report(chosen, found, figure), encoding="utf-8")
    if left:
        console.show(f"Time is up: {left:,} runs are left. Go on with: [bold]{safe(command)}[/]")
    console.show(f"Results: {safe(path)}")
    for file in files:
        console.show(f"Wrote {safe(file)}")
    console.show(f"\nNext: read [bold]{safe(files[-1])}[/]")
    return None


def _several(text: str | None, read: Callable[[str], Value]) -> list[Value] | None:
    """Read ``cora,citeseer``; None and ``all`` stand for no choice."""
    if text is None or text == "all":
        return None
    return [read(word.strip()) for word in text.split(",")]


def _percent(word: str) -> float:
    try:
        return float(word.removesuffix("%"))
    except ValueError:
        raise PairNormError(
            f"missing is {quoted(word)}",
            code="not-a-number",
            value=word,
            expected="numbers with commas, such as 50,99.5",
        ) from None
