"""``pairnorm compare``: compare methods on a user's graph. Also what other commands need to train trials."""

import re
import sys
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pairnorm.base.errors import PairNormError, install, one_of, parse_duration
from pairnorm.base.files import write_text
from pairnorm.commands import console
from pairnorm.commands.console import safe
from pairnorm.commands.options import COLUMNS, FILES, Options, command, match_name, refuse_inputs, shared

if TYPE_CHECKING:
    from pairnorm.compare.depth import DepthComparison, DepthTable
    from pairnorm.data import Graph
    from pairnorm.report.document import Document
    from pairnorm.sweep.runner import Sweep
    from pairnorm.train import Progress
    from pairnorm.train.schedule import Running

Value = TypeVar("Value")
METHODS = ("none", "PN-SI", "GCNII", "APPNP", "Residual", "DropEdge", "Skip")
MODELS = ("GCN", "GAT", "SGC")
OPTIONS = {
    "Files": {
        **FILES,
        "--dataset NAMES": "Use graphs of `pairnorm datasets`, such as cora,citeseer, instead of files.",
        "--root FOLDER": "Look for the files of --dataset here. Default: $PAIRNORM_DATA, else your cache "
        "folder.",
        "--out FOLDER=comparison": "Write figure, table, report and results to this folder.",
    },
    "Columns": COLUMNS,
    "Comparison": {
        **shared("feature-scaling"),
        "--model NAMES=GCN": "Use these models: GCN, GAT, SGC.",
        "--method NAMES": "Compare only these methods, or all. Your own, given as "
        f"package.module:attribute, is compared with the default ones. Default: {','.join(METHODS)}.",
        "--depth NUMBERS=2,8,16": "Use these numbers of layers.",
        "--missing NUMBERS=0": "Remove these percentages of features outside train, such as 0,100.",
        "--runs N=3": "Train each setting N times; the first run selects the setting.",
        "--epochs N=200": "Train for N epochs.",
    },
    "Running": shared("device workers time-limit quiet"),
}


@command(
    "compare --nodes TABLE --edges TABLE --label COLUMN",
    "pairnorm compare --nodes customers.csv --edges payments.csv --label risk",
    options=OPTIONS,
    essential="nodes edges dataset id label split model method depth missing runs time-limit out",
    required=("nodes|dataset",),
)
def run(options: Options) -> None:
    """Compare methods against oversmoothing on your graph, by depth.

    Selects one of four settings of each method on validation nodes. Shows test
    accuracy and effective rank against depth, and recommends a method. The same
    command resumes an interrupted run.
    """
    from pairnorm.classify.scaling import KINDS
    from pairnorm.compare.depth import DepthComparison
    from pairnorm.paper.experiments import DATASETS
    from pairnorm.report.depth_report import advice, tables

    named = methods_in(options.method) or []
    if all(":" in name for name in named):
        named = [*METHODS, *named]
    settings = depth_settings(options) | {
        "methods": None if named == ["all"] else named,
        "shallow_first": True,
    }
    one_of("scaling", options.feature_scaling, ("auto", *KINDS))
    DepthComparison(["graph"], **settings)  # validates the options before files are read
    if options.dataset is None:
        refuse_inputs(options.out, *options.files)
        graph = _prepared(options)
        settings["graphs"] = {f"graph@{graph.fingerprint}": graph}
        names = list(settings["graphs"])
    else:
        names = options.names("dataset", DATASETS) or list(DATASETS)
    comparison, path = DepthComparison(names, **settings), options.out / "compare.sqlite"
    table = train_depths(comparison, path, options)
    for heading, rows in tables(comparison, table.rows):
        console.show(f"\n{safe(heading)}: test accuracy, and effective rank in brackets")
        console.table(*rows)
    for line in advice(comparison, table.rows):
        console.show(f"[bold]{safe(line)}[/]")
    write_depths(table, options.out, "compare", "compare")


def _prepared(options: Options) -> "Graph":
    """Read the user's graph, scale its features and complete its split, as ``fit`` does."""
    from pairnorm.classify import Scaling
    from pairnorm.classify.holdout import complete_split
    from pairnorm.classify.scaling import check_features

    graph = options.read_graph().with_structure()
    options.check_classes(graph)
    check_features(graph)
    split = complete_split(graph)
    if not split.validation.any() or not split.test.any():
        problem = f"{graph.name}: too few labeled nodes for validation and test"
        raise PairNormError(problem, code="too-few-labels", hint="Label more nodes of every class.")
    scaled = Scaling.of(graph, options.feature_scaling)
    console.show(f"Features: {safe(scaled.sentence)}.")
    # Missing features are imputed by the scaling.
    nothing = graph.missing_vectors.new_zeros(graph.num_nodes)
    return graph.with_split(split).replace(features=scaled(graph), missing=nothing)


def methods_in(text: str | None) -> list[str] | None:
    """Parse the methods that an option names; ``module:attribute`` may be in the working directory."""
    from pairnorm.train import METHODS

    if text is None:
        return None
    if ":" in text and "" not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    return [match_name(name.strip(), METHODS) for name in text.split(",")]


def depth_settings(options: Options) -> dict[str, Any]:
    """Return the arguments of ``DepthComparison`` that the options set."""
    return {
        "models": options.names("model", MODELS),
        "methods": methods_in(options.method),
        "depths": options.numbers("depth"),
        "missing": options.numbers("missing"),
        "runs": options.runs,
        "epochs": options.epochs,
    }


def train_depths(comparison: "DepthComparison", path: Path, options: Options) -> "DepthTable":
    """Train the pending trials of a comparison by depth, and return its results."""
    from pairnorm.compare.depth import DepthTable
    from pairnorm.train import Store

    train(path, comparison, comparison.datasets, options.command_line, run_settings(options))
    with Store(path) as store:
        return DepthTable(comparison, store.results())


def write_depths(table: "DepthTable", out: Path, name: str, command: str) -> Path:
    """Write CSV, figures and Markdown report of a comparison by depth, and return the report's path."""
    from pairnorm.compare.depth_analysis import draw
    from pairnorm.report.depth_report import document

    figures = draw_figures(lambda: draw(table.comparison, table.rows, out / "figures", name)) or {}
    pictures = {key: f"figures/{paths[0].name}" for key, paths in figures.items()}
    files = [path for paths in figures.values() for path in paths]
    return write_comparison(out, name, table.csv(), document(table, command, pictures), files)


def write_comparison(
    out: Path, name: str, csv: str, document: "Document", figures: Iterable[Path] = ()
) -> Path:
    """Write the CSV and the Markdown report of a comparison, and return the report's path."""
    from pairnorm.report.document import render_markdown

    table, report = out / f"{name}.csv", out / f"{name}.md"
    write_text(table, csv)
    write_text(report, render_markdown(document))
    show_written([table, *figures, report])
    return report


def run_settings(options: Options) -> "Running":
    """Return the device, workers, back end and time limit of training that the options set."""
    from pairnorm.train.schedule import Running

    limit = options.time_limit
    minutes = None if limit is None else parse_duration("time-limit", limit) / 60
    backend = getattr(options, "backend", "here")
    return Running(options.device, options.root, options.workers, backend, minutes)


def train(
    path: Path,
    sweep: "Sweep",
    graphs: Collection[str],
    resume: str,
    running: "Running",
    unit: str = "layer-epochs",
) -> None:
    """Train pending trials with a progress line, and print how many a time limit leaves pending.

    Args:
        path: the store of results.
        sweep: what to train.
        graphs: names of the graphs, which are fetched first.
        resume: the command that resumes, shown after Ctrl-C.
        running: where to train, and for how long.
        unit: what the progress counts.
    """
    from pairnorm.data import datasets, load
    from pairnorm.train import Store

    for dataset in datasets() if not path.exists() else ():
        if dataset.name in graphs and dataset.absent(running.root):
            load(dataset.name, running.root)

    counted: dict[str, int] = {}

    def update(stage: str, now: "Progress") -> None:
        if now.trials:
            if not now.done or stage not in counted:
                counted[stage] = sweep.count_pending(store)
            if counted[stage] > now.trials or pending > counted[stage]:
                stage = f"{stage} ({pending - counted[stage]:,} of {pending:,} trials done)"
            latest = now.label if now.done else f"{now.trials:,} trials to train"
            stage, latest = (re.sub(r"graph@\w+", "your graph", text) for text in (stage, latest))
            on_progress(console.Progress(stage, now.done, now.total, latest, unit))

    with Store(path) as store:
        pending = sweep.count_pending(store)
        if pending and store.read_only:
            problem = f"{path} cannot be written, and {pending:,} trials are to be trained"
            hint = "Copy it to where you may write, and name it: {store}"
            raise PairNormError(problem, code="not-writable", value=str(path), hint=hint, store=...)
        if pending:
            console.show(f"Training {pending:,} trials; results in {safe(path)} are not computed again.")
        try:
            with console.progress() as on_progress:
                remaining = sweep.reproduce(store, running, update).pending
        except KeyboardInterrupt:
            remaining = sweep.count_pending(store)
            console.show(
                f"\n[yellow]Stopped.[/] {max(0, pending - remaining):,} of {pending:,} trials are kept in "
                f"{safe(path)}; {remaining:,} are left.\nResume with: [bold]{safe(resume)}[/]"
            )
            raise console.Stopped from None
    if remaining:
        console.show(f"Time limit reached: {remaining:,} trials remain. Resume with: [bold]{safe(resume)}[/]")
    console.show(f"Results: {safe(path)}")


def show_written(files: Iterable[Path]) -> None:
    """Print the names of files that were written."""
    for file in files:
        console.show(f"Wrote {safe(file)}")


def draw_figures(draw: Callable[[], Value]) -> Value | None:
    """Draw figures; without matplotlib, print a note instead."""
    try:
        return draw()
    except ImportError as error:
        console.note(f"no figure was drawn: it needs {error.name}. {install('all')}")
        return None
