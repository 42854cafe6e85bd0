"""``pairnorm reproduce``, ``report`` and ``demo``: the experiments of the paper."""

from pathlib import Path
from typing import TYPE_CHECKING

from pairnorm.base.errors import PairNormError, one_of
from pairnorm.base.memory import without_collection
from pairnorm.commands import compare, console
from pairnorm.commands.console import safe
from pairnorm.commands.options import Options, command, match_name, shared

if TYPE_CHECKING:
    from pairnorm.paper.experiments import Selection

SELECTION = shared("dataset runs epochs depth missing")
WRITING = "Writing tables and figures"
DEMO_RUNS, DEMO_EPOCHS, DEMO_DEPTHS = 2, 300, (1, 2, 4, 7, 10, 15, 20, 30, 40, 60)
REPRODUCE_OPTIONS = {
    "What": {
        "WHAT...": "table1, table1-rows, table2, table3, figure1, figure2, figure3, figure4, bars, "
        "case-study, deep-gcn, sgc-modes, tuned, ablation; or all of these: paper; or scaling, splits, "
        "claims (more runs where a verdict is within noise); or all. Several may be named. Or depth: every "
        "method against oversmoothing at every depth; or missing: every method where features are missing.",
    },
    "Selection": {
        **SELECTION,
        "--model NAMES": "Use only these models in depth and missing, such as GCN,GAT; or fit. Default: all.",
        "--method NAMES": "Use only these methods in depth, or yours as package.module:attribute. Default: "
        "all.",
        "--protocol NAMES": "Use only these protocols in missing, such as ssnc-mv,fp-vectors. Default: all.",
    },
    "Files": {
        **shared("root"),
        "--out FOLDER=reproduction": "Write tables and figures to this folder.",
        "--store FILE": "Keep results in this file. Default: results.sqlite in --out, or depth.sqlite, "
        "missing.sqlite.",
    },
    "Running": shared("device workers backend time-limit quiet"),
}
REPORT_OPTIONS = {
    "Files": {
        "--store FILE": "Read the results of `pairnorm reproduce` from this file, or their export as .csv.",
        "--out FOLDER=reproduction": "Write the report to this folder.",
    },
    "Selection": SELECTION,
    "Running": shared("quiet"),
}


@command(
    "reproduce WHAT...",
    "pairnorm reproduce table2 --dataset cora --runs 1 --depth 2,4,8,12",
    options=REPRODUCE_OPTIONS,
)
def run(options: Options) -> None:
    """Run experiments of the paper, and compare results with its numbers.

    Results in the store are not computed again, so the same command resumes an
    interrupted run.
    """
    from pairnorm.paper.experiments import NAMES

    comparisons = {"depth": _reproduce_depth, "missing": _reproduce_missing}
    names = (*NAMES, *comparisons)
    options.what = [one_of("what to reproduce", match_name(name, names), names) for name in options.what]
    if not comparisons.keys() & options.what:
        _reproduce_paper(options)
        return
    if len(options.what) > 1:
        problem = f"{', '.join(options.what)} are asked for together"
        hint = "Give each of depth and missing a command of its own: it has a store of its own."
        raise PairNormError(problem, code="not-together", value=options.what, hint=hint)
    (experiment,) = options.what
    path = options.store or options.out / f"{experiment}.sqlite"
    report_file = comparisons[experiment](options, path)
    console.show(f"\nNext: read [bold]{safe(report_file)}[/]")


def _reproduce_paper(options: Options) -> None:
    from pairnorm.paper.evidence import read_layers
    from pairnorm.paper.experiments import GROUPS
    from pairnorm.paper.runner import PaperSweep
    from pairnorm.report.paper_report import write_outputs, write_report
    from pairnorm.sweep.index import ResultIndex, open_results
    from pairnorm.sweep.tables import terminal

    why = f"is for depth and missing, and {', '.join(options.what)} is of the paper"
    options.refuse(("model", "method", "protocol"), why, "Leave it out.")
    chosen, out = _selection(options, *options.what), options.out
    path = options.store or out / "results.sqlite"
    experiments = chosen.experiments()
    graphs = {name for experiment in experiments for name in experiment.datasets}
    sweep = PaperSweep(experiments)
    compare.train(path, sweep, graphs, options.command_line, compare.run_settings(options))
    if not path.exists():  # the time limit came before the first result
        return
    with console.stage(WRITING):
        if set(options.what) & set(GROUPS):
            outputs = write_report(path, out, chosen)
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
    compare.show_written(outputs.files)
    console.show(f"\nNext: {following}")


def _reproduce_depth(options: Options, path: Path) -> Path:
    """Compare all methods by depth; return the report."""
    from pairnorm.compare.depth import DATASETS, DepthComparison

    options.refuse(("protocol",), "is for missing, and this is depth", "Leave it out.")
    settings = {"datasets": options.names("dataset", DATASETS)} | compare.depth_settings(options)
    comparison = DepthComparison(**{name: value for name, value in settings.items() if value is not None})
    table = compare.train_depths(comparison, path, options)
    return compare.write_depths(table, options.out, "depth", "reproduce depth")


def _reproduce_missing(options: Options, path: Path) -> Path:
    """Compare all methods where features are missing; return the report."""
    from pairnorm.compare import missing_runs
    from pairnorm.compare.missing import GROUPS, MODELS, PROTOCOLS, choose_protocols
    from pairnorm.report.missing_report import as_csv, document, lines
    from pairnorm.train import Store

    options.refuse(("method",), "is for depth, and this is missing", "Leave it out.")
    options.refuse(("depth", "backend"), "is not for missing, which runs here", "Leave it out.")
    chosen = choose_protocols(
        options.names("protocol", (*PROTOCOLS, *GROUPS)),
        options.names("dataset"),
        options.names("model", MODELS),
        options.numbers("missing", float),
        options.runs,
        options.epochs,
    )
    graphs = {name for protocol in chosen for name in protocol.datasets}
    sweep, running = missing_runs.MissingSweep(chosen), compare.run_settings(options)
    compare.train(path, sweep, graphs, options.command_line, running, "")
    with Store(path) as store:
        stored = missing_runs.MissingResults.read(store)
    rows = lines(chosen, stored)
    report = document(chosen, rows, stored.origins)
    return compare.write_comparison(options.out, "missing", as_csv(rows), report)


def _selection(options: Options, *names: str) -> "Selection":
    """Return the part of the named experiments that the options select."""
    from pairnorm.paper.experiments import DATASETS, Selection

    graphs = options.names("dataset", DATASETS)
    depths, missing = (options.numbers(name) for name in ("depth", "missing"))
    return Selection(names, graphs, options.runs, options.epochs, depths, missing)


@command(
    "report --store FILE",
    "pairnorm report --store results/store.sqlite --out reproduction",
    options=REPORT_OPTIONS,
    required=("store",),
)
@without_collection()
def report(options: Options) -> None:
    """Write all tables, figures, report.md and report.html from results.

    Nothing is trained. Give the same selection options as to `pairnorm reproduce`.
    """
    from pairnorm.report.paper_report import write_report

    chosen = _selection(options, "all")
    with console.stage(WRITING):
        outputs = write_report(options.store, options.out, chosen)
    for table in outputs.tables.values():
        console.show(f"{table.name}: {table.filled} of {len(table.entries)} cells filled")
    console.show(f"{len(outputs.files)} files in {safe(options.out)}")
    console.show(f"\nNext: read [bold]{safe(outputs.files[-1])}[/]")


@command(
    "demo",
    "pairnorm demo",
    options={
        "Options": {
            **shared("workers quiet"),
            "--out FOLDER=demo": "Write the results to this folder.",
        }
    },
)
def demo(options: Options) -> None:
    """Show what PairNorm does, without a network connection.

    SGC labels the papers of Cora from 140 labeled ones: with all features, and with
    the features of all other papers missing; each without and with PairNorm.
    """
    from pairnorm.base.plotting import save
    from pairnorm.paper.experiments import TABLE1, Selection, reported
    from pairnorm.paper.figures import against_depth
    from pairnorm.paper.runner import PaperSweep
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
    store = options.out / "demo.sqlite"
    cpu = Running("cpu", workers=options.workers)
    compare.train(store, PaperSweep([experiment]), {"cora"}, options.command_line, cpu)
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
    figure = compare.draw_figures(
        lambda: against_depth(results, experiment, "cora", ("SGC",), 100, test_only=True)
    )
    compare.show_written(save(figure, options.out, "accuracy-against-depth") if figure else ())
    console.show(
        "\nNext: [bold]pairnorm reproduce table1 --dataset cora --missing 0,100[/] is the same with the full "
        "protocol."
    )
