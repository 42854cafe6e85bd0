"""``pairnorm reproduce``, ``report``, ``demo`` and ``datasets``: the experiments of the paper."""

import os
import shlex
import time
from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pairnorm.base.errors import PairNormError
from pairnorm.base.memory import without_collection
from pairnorm.commands import console
from pairnorm.commands.compare import reproduce_depth, reproduce_missing
from pairnorm.commands.console import safe
from pairnorm.commands.options import (
    SHARED,
    add_command,
    command_line,
    match_name,
    names_in,
    numbers_in,
    option,
    refuse,
)
from pairnorm.commands.training import running, show_remaining, show_written, train

if TYPE_CHECKING:
    from pairnorm.paper.experiments import Selection

COMPARISONS = ("depth", "missing")
"""Comparisons of methods beyond the paper; each has a store of its own."""
SELECTION = ("dataset", "runs", "epochs", "depth", "missing")
WRITING = "Writing tables and figures"
DEMO_RUNS, DEMO_EPOCHS, DEMO_DEPTHS = 2, 300, (1, 2, 4, 7, 10, 15, 20, 30, 40, 60)
DATASET_HEADINGS = ("Name", "Nodes", "Edges", "Distinct", "Features", "Classes", "Label rate", "Files")


def add(commands: Any) -> None:
    """Add reproduce, report and datasets, with their options."""
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
    example = "pairnorm report --store reproduction/results.sqlite --out reproduction"
    parser = add_command(commands, "report --store FILE", run_report, example)
    parser.group(
        "Files",
        store=option(
            "FILE",
            "Read the results of `pairnorm reproduce` from this file, or their export as .csv.",
            required=True,
        ),
        out=option("FOLDER", "Write the report to this folder.", "reproduction"),
        tensorboard=option("FOLDER", "Write the case study's histograms for TensorBoard here."),
    )
    parser.group("Selection", *SELECTION, quiet=SHARED["quiet"])
    parser = add_command(commands, "datasets", run_datasets, "pairnorm datasets --root ~/graphs")
    parser.group("Options", "root")


def add_demo(commands: Any) -> None:
    """Add the demonstration and its options."""
    parser = add_command(commands, "demo", run_demo, "pairnorm demo")
    parser.group(
        "Options", "workers", "quiet", out=option("FOLDER", "Write the results to this folder.", "demo")
    )


def run(options: Namespace) -> int | None:
    """Run experiments of the paper, and compare results with its numbers.

    Results in the store are not computed again, so the same command resumes an
    interrupted run.
    """
    from pairnorm.paper.experiments import NAMES

    options.what = [match_name(name, (*NAMES, *COMPARISONS)) for name in options.what]
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
    """Return the number of processes that draw figures; more than four would wait for the rest."""
    return min(4, os.cpu_count() or 1)


def _compare(options: Namespace) -> int | None:
    """Run one comparison of methods; each has a store of its own."""
    if len(options.what) > 1:
        problem = f"{', '.join(options.what)} are asked for together"
        hint = "Give each of depth and missing a command of its own: it has a store of its own."
        raise PairNormError(problem, code="not-together", value=options.what, hint=hint)
    (what,) = options.what
    path = options.store or options.out / f"{what}.sqlite"
    return reproduce_depth(options, path) if what == "depth" else reproduce_missing(options, path)


def _command(options: Namespace) -> str:
    return command_line("reproduce", options, *options.what)


def selection(options: Namespace, *what: str) -> "Selection":
    """Return as much of the named experiments as the options ask for."""
    from pairnorm.paper.experiments import DATASETS, Selection

    graphs = names_in("dataset", options.dataset, DATASETS)
    depths, missing = (numbers_in(name, getattr(options, name)) for name in ("depth", "missing"))
    return Selection(what, graphs, options.runs, options.epochs, depths, missing)


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


def run_demo(options: Namespace) -> int | None:
    """Show what PairNorm does, without a network connection.

    SGC labels the papers of Cora from 140 labeled ones: with all features, and with
    the features of all other papers missing; each without and with PairNorm.
    """
    from pairnorm.base.plotting import save
    from pairnorm.paper import runner
    from pairnorm.paper.experiments import TABLE1, Selection, reported
    from pairnorm.paper.figures import against_depth
    from pairnorm.sweep.grid import TableCell
    from pairnorm.sweep.index import ResultIndex
    from pairnorm.sweep.tables import Table, terminal
    from pairnorm.train.schedule import Running

    part = Selection(
        datasets=("cora",), runs=DEMO_RUNS, epochs=DEMO_EPOCHS, depths=DEMO_DEPTHS, missing=(0, 100)
    )
    experiment = part.narrow(TABLE1)
    assert experiment is not None
    full = TABLE1.candidates(TableCell("cora", "SGC", 0))
    console.show(
        "Cora: 2,708 papers, 140 of them labeled. SGC predicts the labels of the others; at 100% missing,\n"
        "none of them has features, and only propagation distinguishes them.\n"
        f"Reduced from the paper's protocol: {DEMO_RUNS} runs instead of 5, {DEMO_EPOCHS} epochs instead of "
        f"{full[0].epochs},\n{len(DEMO_DEPTHS)} depths instead of {len(full)}."
    )
    start, store = time.monotonic(), options.out / "demo.sqlite"
    command = f"pairnorm demo --out {shlex.quote(str(options.out))}"
    running = Running("cpu", workers=options.workers)
    outcome = train(store, runner, [experiment], {"cora"}, command, running)
    if outcome is None:
        return 130
    results = ResultIndex.read(store)
    console.show(terminal(Table.of(results, experiment, reported=reported())))
    plain, normalized = (
        results.chosen(experiment, TableCell("cora", name, 100)) for name in ("SGC", "SGC-PN")
    )
    assert plain is not None
    assert normalized is not None
    console.show(
        f"With all other vectors missing, SGC gets {plain.accuracy:.0%} of the test papers right; with "
        f"PairNorm it is {normalized.accuracy:.0%},\nat {normalized.layers} layers: deep enough to reach the "
        "features that are known."
    )
    if find_spec("matplotlib") is None:
        console.note("no figure was drawn: matplotlib is not installed. pip install 'pairnorm[all]'")
    elif figure := against_depth(results, experiment, "cora", ("SGC",), 100, test_only=True):
        for file in save(figure, options.out, "accuracy-against-depth"):
            console.show(f"Wrote {safe(file)}")
    spent = f"in {time.monotonic() - start:.0f} s" if outcome.trained else "by an earlier run"
    console.show(f"Results: {safe(store)}, trained {spent}")
    console.show(
        "\nNext: [bold]pairnorm reproduce table1 --dataset cora --missing 0,100[/] is the same with the full "
        "protocol."
    )
    return None


def run_datasets(options: Namespace) -> None:
    """List the graphs of the paper, and where their files are."""
    from pairnorm.data import datasets
    from pairnorm.data.named import data_folder

    rows, absent = [], []
    for dataset in datasets():
        if dataset.absent(options.root):
            absent.append(dataset.name)
        where = "absent" if dataset.name in absent else "found" if dataset.files else "bundled"
        counts = (dataset.nodes, dataset.listed_edges, dataset.edges, dataset.features, dataset.classes)
        rows.append((dataset.name, *(f"{count:,}" for count in counts), f"{dataset.label_rate:.3f}", where))
    console.table(DATASET_HEADINGS, rows, left=(0, 7))
    console.show("Edges: all listed pairs, as in the paper. Distinct: undirected, counted once.")
    console.show("Cora's 5,429 citations, for instance, are 5,278 distinct undirected edges.")
    if absent:
        console.show(
            f"\n[yellow]Absent from {console.safe(data_folder(options.root))}: {', '.join(absent)}.\n"
            "They are downloaded when first used. Without a network, copy their files there,\n"
            "or name the folder that has them: --root FOLDER, or PAIRNORM_DATA.[/]"
        )
    console.show("\nNext: [bold]python -c \"import pairnorm; print(pairnorm.load('cora'))\"[/]")
