"""``pairnorm reproduce`` and ``report``: run the experiments of the paper, and write tables and figures."""

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Collection, Iterable
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pairnorm.base.errors import PairNormError
from pairnorm.base.files import write_text
from pairnorm.base.memory import without_collection
from pairnorm.commands import console
from pairnorm.commands.console import safe
from pairnorm.commands.options import (
    SHARED,
    add_command,
    command_line,
    match_name,
    minutes_in,
    names_in,
    numbers_in,
    option,
    refuse,
)

if TYPE_CHECKING:
    from pairnorm.compare.depth import DepthComparison
    from pairnorm.compare.missing import Protocol
    from pairnorm.paper.experiments import Selection
    from pairnorm.sweep.runner import Outcome
    from pairnorm.train import Progress
    from pairnorm.train.schedule import Running

Value = TypeVar("Value")
COMPARISONS = ("depth", "missing")
"""Comparisons of methods beyond the paper; each has a store of its own."""
SELECTION = ("dataset", "runs", "epochs", "depth", "missing")
WRITING = "Writing tables and figures"


def add(commands: Any) -> None:
    """Add the command and its options."""
    example = "pairnorm reproduce table2 --dataset cora --runs 1 --depth 2,4,8,12"
    parser = add_command(commands, "reproduce WHAT...", run, example)
    parser.add_argument_group("What").add_argument(
        "what",
        nargs="+",
        metavar="WHAT",
        help="table1, table1-rows, table2, table3, figure1, figure2, figure3, figure4, bars, case-study, "
        "deep-gcn, sgc-modes, tuned, ablation; or all of these: paper; or scaling, splits, claims (more runs "
        "where a verdict is within noise); or all. Several may be named. Or depth: every method against "
        "oversmoothing at every depth; or missing: every method where features are missing.",
    )
    parser.group(
        "Selection",
        *SELECTION,
        model=option("NAMES", "For depth and missing: use only these models, such as GCN,GAT; or fit."),
        method=option("NAMES", "For depth: use only these methods, or yours as package.module:attribute."),
        protocol=option("NAMES", "For missing: use only these protocols, such as ssnc-mv,fp-vectors."),
    )
    parser.group(
        "Files",
        "root",
        out=option("FOLDER", "Write tables and figures to this folder.", "reproduction"),
        store=option(
            "FILE",
            "Keep results in this file. Default: results.sqlite in --out, or depth.sqlite, missing.sqlite.",
        ),
    )
    parser.group("Running", "device", "workers", "backend", "time-limit", "quiet")
    _add_report(commands)


def _add_report(commands: Any) -> None:
    example = "pairnorm report --store results/store.sqlite --out reproduction"
    parser = add_command(commands, "report --store FILE", run_report, example)
    parser.group(
        "Files",
        store=option("FILE", "Read results from this file, or its export as .csv or .csv.gz.", required=True),
        out=option("FOLDER", "Write the report to this folder.", "reproduction"),
        tensorboard=option("FOLDER", "Write the case study's histograms for TensorBoard here."),
    )
    parser.group("Selection", *SELECTION, quiet=SHARED["quiet"])


def run(options: Namespace) -> int | None:
    """Run experiments of the paper, and compare results with its numbers.

    Results in the store are not computed again, so the same command resumes an
    interrupted run.
    """
    if set(options.what) & set(COMPARISONS):
        return _compare(options)
    why = f"is for depth and missing, and {', '.join(options.what)} is of the paper"
    refuse(options, ("model", "method", "protocol"), why, "Leave it out.")
    from pairnorm.paper import runner
    from pairnorm.paper.case_study import read_layers
    from pairnorm.paper.experiments import GROUPS
    from pairnorm.report.paper_report import write_outputs, write_report
    from pairnorm.sweep.index import ResultIndex, open_results
    from pairnorm.sweep.tables import terminal

    chosen, out = selection(options, *options.what), options.out
    path = options.store or out / "results.sqlite"
    experiments = chosen.experiments()
    graphs = {name for experiment in experiments for name in experiment.datasets}
    outcome = train(path, runner, experiments, graphs, _command(options), running(options))
    if outcome is None:
        return 130
    if not path.exists():  # the time limit came before the first result
        show_remaining(outcome.left, _command(options))
        return None
    with console.progress() as on_progress:
        on_progress(WRITING, 0, None)
        if set(options.what) & set(GROUPS):
            outputs = write_report(path, out, chosen, workers=drawers())
            following = f"read [bold]{safe(outputs.files[-1])}[/]"
        else:
            with open_results(path) as store:
                results, layers = ResultIndex(store.trials_by_spec()), read_layers(store)
            outputs = write_outputs(chosen.names(), results, layers, chosen, out)
            following = (
                f"[bold]pairnorm report --store {safe(path)} --out {safe(out)}{safe(chosen.options)}[/] "
                "writes all of it as a report, claim by claim."
            )
    for table in outputs.tables.values():
        console.show(terminal(table))
    show_remaining(outcome.left, _command(options))
    console.show(f"Results: {safe(path)}")
    show_written(outputs.files)
    console.show(f"\nNext: {following}")
    return None


def drawers() -> int:
    """Return how many processes draw figures: more than four would end before the rest is written."""
    return min(4, os.cpu_count() or 1)


def _compare(options: Namespace) -> int | None:
    """Train what a comparison lacks, and write what its store then says."""
    if len(options.what) > 1:
        problem = f"{', '.join(options.what)} are asked for together"
        hint = "Give each of depth and missing a command of its own: it has a store of its own."
        raise PairNormError(problem, code="not-together", value=options.what, hint=hint)
    (what,) = options.what
    path = options.store or options.out / f"{what}.sqlite"
    return _depth(options, path) if what == "depth" else _missing(options, path)


def _depth(options: Namespace, path: Path) -> int | None:
    from pairnorm.compare import depth

    refuse(options, ("protocol",), "is for missing, and this is depth", "Leave it out.")
    chosen = selection(options)
    given: dict[str, Any] = {
        "datasets": chosen.datasets,
        "models": names_in("model", options.model),
        "methods": methods_in(options.method),
        "depths": chosen.depths,
        "missing": chosen.missing,
        "runs": chosen.runs,
        "epochs": chosen.epochs,
    }
    comparison = depth.DepthComparison(**{name: value for name, value in given.items() if value is not None})
    outcome = train(path, depth, comparison, set(comparison.datasets), _command(options), running(options))
    if outcome is None:
        return 130
    show_remaining(outcome.left, _command(options))
    console.show(f"Results: {safe(path)}")
    files = write_depths(comparison, path, options.out, "depth", "reproduce depth")
    console.show(f"\nNext: read [bold]{safe(files[-1])}[/]")
    return None


def _missing(options: Namespace, path: Path) -> int | None:
    from pairnorm.compare.missing import Selection
    from pairnorm.compare.missing_runs import MissingResults, compare, count_pending

    refuse(options, ("method",), "is for depth, and this is missing", "Leave it out.")
    if options.depth is not None or options.backend != "here":
        problem = "'missing' runs on this machine, with depths of its own"
        hint = "Leave out {depths} and {on}."
        raise PairNormError(problem, code="wrong-option", value=options.what, hint=hint, depths=..., on=...)
    how = running(options)
    chosen = Selection(
        names_in("protocol", options.protocol),
        names_in("dataset", options.dataset),
        names_in("model", options.model),
        numbers_in("missing", options.missing, float),
        options.runs,
        options.epochs,
    ).chosen()
    pending = count_pending(chosen, MissingResults.read(path))
    if pending:
        console.show(f"Pending runs: {pending:,} or more; results in {safe(path)} are not computed again.")

    def progress(stage: str, now: "Progress") -> None:
        if now.trials:
            on_progress(stage, now.done, now.total, now.label if now.done else f"{now.trials:,} runs")

    try:
        with console.progress() as on_progress:
            left = compare(chosen, path, how, progress) if pending else 0
    except KeyboardInterrupt:
        console.show(f"\n[yellow]Stopped.[/] Resume with: [bold]{safe(_command(options))}[/]")
        return 130
    files = _write_missing(chosen, path, options.out)
    show_remaining(left, _command(options), "runs")
    console.show(f"Results: {safe(path)}")
    show_written(files)
    console.show(f"\nNext: read [bold]{safe(files[-1])}[/]")
    return None


def _write_missing(chosen: "list[Protocol]", path: Path, out: Path) -> list[Path]:
    """Print and write the comparison of methods for missing features; return the files."""
    from pairnorm.compare.missing_report import draw, lines, report, write_csv
    from pairnorm.compare.missing_runs import MissingResults

    results = lines(chosen, MissingResults.read(path))
    rows = [
        (
            *(line.cell.protocol, line.cell.dataset, f"{line.cell.missing_percent:g}%", line.method),
            *(f"{line.accuracy:.3f}", "" if isnan(line.std) else f"{line.std:.3f}"),
            str(len(line.accuracies)),
        )
        for line in results
        if line.accuracies
    ]
    headings = ("Protocol", "Graph", "Missing", "Method", "Accuracy", "±", "Runs")
    console.table(headings, rows, left=(0, 1, 3))
    figures = _drawn(lambda: draw(results, out / "figures")) or []
    files = [out / "missing.csv", *figures, out / "missing.md"]
    write_csv(results, files[0])
    write_text(files[-1], report(chosen, results, "figures/missing.png" if figures else None))
    return files


def methods_in(text: str | None) -> list[str] | None:
    """Return the methods that an option names; ``module:attribute`` may be in the working directory."""
    from pairnorm.train import METHODS

    if text is None:
        return None
    if ":" in text and "" not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    return [match_name(name.strip(), METHODS) for name in text.split(",")]


def write_depths(comparison: "DepthComparison", path: Path, out: Path, name: str, command: str) -> list[Path]:
    """Write table, figures and report of a comparison by depth, say so, and return the files.

    Args:
        comparison: the comparison.
        path: the store.
        out: folder of the files.
        name: of the files, without an ending.
        command: that the report names.
    """
    from pairnorm.compare.depth import DepthTable
    from pairnorm.compare.depth_report import draw, report
    from pairnorm.train import Store

    with Store(path) as store:
        table = DepthTable.read(comparison, store)
    figures = _drawn(lambda: draw(comparison, table.rows, out / "figures", name)) or {}
    pictures = {key: f"figures/{paths[0].name}" for key, paths in figures.items()}
    texts = {out / f"{name}.csv": table.csv(), out / f"{name}.md": report(table, command, pictures)}
    for target, text in texts.items():
        write_text(target, text)
    table_file, report_file = texts
    files = [table_file, *(path for paths in figures.values() for path in paths), report_file]
    show_written(files)
    return files


def _drawn(draw: Callable[[], Value]) -> Value | None:
    """Draw figures; without matplotlib, print a note instead."""
    try:
        return draw()
    except ImportError as error:
        console.note(f"no figure was drawn: it needs {error.name}.")
        return None


def show_remaining(left: int, command: str, what: str = "trials") -> None:
    """Print how much remains after the time limit, and the command that resumes it."""
    if left:
        console.show(f"Time limit reached: {left:,} {what} remain. Resume with: [bold]{safe(command)}[/]")


def show_written(files: Iterable[Path]) -> None:
    """Print the names of files that were written."""
    for file in files:
        console.show(f"Wrote {safe(file)}")


def running(options: Namespace) -> "Running":
    """Return where and for how long the options ask to train."""
    from pairnorm.train.schedule import Running

    return Running(
        options.device,
        options.root,
        options.workers,
        getattr(options, "backend", "here"),
        minutes_in(options.time_limit),
    )


def _command(options: Namespace) -> str:
    return command_line("reproduce", options, *options.what)


def selection(options: Namespace, *what: str) -> "Selection":
    """Return as much of the named experiments as the options ask for."""
    from pairnorm.paper.experiments import DATASETS, Selection

    graphs = names_in("dataset", options.dataset, DATASETS)
    depths, missing = (numbers_in(name, getattr(options, name)) for name in ("depth", "missing"))
    return Selection(what, graphs, options.runs, options.epochs, depths, missing)


def train(
    path: Path, runner: Any, requested: Any, graphs: Collection[str], command: str, running: "Running"
) -> "Outcome | None":
    """Train what a store lacks and show how far it is; None, and how to go on, after an interruption.

    Args:
        path: the store; a new one is made once nothing is known that would keep it empty.
        runner: the module whose ``reproduce`` and ``count_pending`` are called.
        requested: their first argument, such as experiments.
        graphs: names of those that are needed.
        command: goes on after an interruption.
        running: where, and for how long.
    """
    from pairnorm.data import datasets, load
    from pairnorm.train import Store

    for dataset in datasets() if not path.exists() else ():
        if dataset.name in graphs and dataset.absent(running.root):
            load(dataset.name, running.root)

    def progress(stage: str, now: "Progress") -> None:
        if now.trials:
            latest = now.label if now.done else f"{now.trials:,} trials to train"
            on_progress(stage, now.done, now.total, latest, "layer-epochs")

    with Store(path) as store:
        pending = runner.count_pending(requested, store)
        if pending and store.read_only:
            problem = f"{path} cannot be written, and {pending:,} trials are to be trained"
            hint = "Copy it to where you may write, and name it: {store}"
            raise PairNormError(problem, code="not-writable", value=str(path), hint=hint, store=...)
        if pending:
            console.show(f"Training {pending:,} trials; results in {safe(path)} are not computed again.")
        try:
            with console.progress() as on_progress:
                outcome: Outcome = runner.reproduce(requested, store, running, progress)
                return outcome
        except KeyboardInterrupt:
            left = runner.count_pending(requested, store)
            console.show(
                f"\n[yellow]Stopped.[/] {max(0, pending - left):,} of {pending:,} trials are kept in "
                f"{safe(path)}; {left:,} are left.\nResume with: [bold]{safe(command)}[/]"
            )
            return None


@without_collection()
def run_report(options: Namespace) -> None:
    """Write all tables, figures, report.md and report.html from results.

    Nothing is trained. Give the same selection options as to `pairnorm reproduce`.
    """
    from pairnorm.report.paper_report import write_report

    chosen = selection(options, "all")
    if options.tensorboard is not None:
        _write_tensorboard(options.store, options.tensorboard, chosen)
    with console.progress() as on_progress:
        on_progress(WRITING, 0, None)
        outputs = write_report(options.store, options.out, chosen, workers=drawers())
    for table in outputs.tables.values():
        console.show(f"{table.name}: {table.filled} of {len(table.entries)} cells filled")
    console.show(f"{len(outputs.files)} files in {safe(options.out)}")
    console.show(f"\nNext: read [bold]{safe(outputs.files[-1])}[/]")


def _write_tensorboard(store: Path, folder: Path, chosen: "Selection") -> None:
    from pairnorm.paper.case_study import read_layers, studied, write_tensorboard
    from pairnorm.paper.experiments import CASE_STUDY
    from pairnorm.sweep.index import open_results

    with open_results(store) as results:
        layers, experiment = read_layers(results), chosen.narrow(CASE_STUDY)
    by_model = {model: studied(layers, experiment, model) for model in ("SGC", "GCN")} if experiment else {}
    if not any(by_model.values()):
        problem = f"{store} has no layers of the case study with these options"
        hint = f"Run pairnorm reproduce case-study{chosen.options} --store {store} first."
        raise PairNormError(problem, code="not-run", value=str(store), hint=hint)
    for model, studies in by_model.items():
        write_tensorboard(studies, model, folder)
    console.show(f"TensorBoard: [bold]tensorboard --logdir {safe(folder)}[/]")
