"""``pairnorm compare``, ``reproduce depth`` and ``reproduce missing``: compare methods."""

import sys
from argparse import Namespace
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pairnorm.base.errors import PairNormError, one_of
from pairnorm.base.files import write_text
from pairnorm.commands import console
from pairnorm.commands.console import safe
from pairnorm.commands.options import (
    FILES,
    NODE_COLUMNS,
    SHARED,
    add_command,
    check_classes,
    command_line,
    files_of,
    match_name,
    names_in,
    numbers_in,
    option,
    read_graph,
    refuse,
    refuse_inputs,
)
from pairnorm.commands.training import draw_figures, running, show_remaining, show_written, train

if TYPE_CHECKING:
    from pairnorm.compare.depth import DepthComparison
    from pairnorm.compare.missing import Protocol
    from pairnorm.data import Graph
    from pairnorm.train import Progress

METHODS = ("none", "PN-SI", "GCNII", "APPNP", "Residual", "DropEdge", "Skip")
MODELS = ("GCN", "GAT", "SGC")
DEPTHS, RUNS, EPOCHS = "2,8,16", 3, 200


def add(commands: Any) -> None:
    """Add the command and its options."""
    example = "pairnorm compare --nodes customers.csv --edges payments.csv --label risk"
    parser = add_command(commands, "compare --nodes FILE --edges FILE --label COLUMN", run, example)
    parser.either = ("nodes", "dataset")
    parser.essential = (
        *("nodes", "edges", "dataset", "id", "label", "split", "model", "method", "depth", "missing"),
        *("runs", "time-limit", "out"),
    )
    parser.group(
        "Files",
        *FILES,
        nodes=SHARED["nodes"] | {"required": False},
        dataset=option(
            "NAMES", "Use graphs of `pairnorm datasets`, such as cora,citeseer, instead of files."
        ),
        root=SHARED["root"],
        out=option("FOLDER", "Write figure, table, report and results to this folder.", "comparison"),
    )
    parser.group("Columns", *NODE_COLUMNS)
    parser.group(
        "What",
        "feature-scaling",
        model=option("NAMES", "Use these models: GCN, GAT, SGC.", "GCN"),
        method=option(
            "NAMES",
            "Compare only these methods, or all. Your own, given as package.module:attribute, is compared "
            f"with the default ones. Default: {','.join(METHODS)}.",
        ),
        depth=option("NUMBERS", "Use these numbers of layers.", DEPTHS),
        missing=option("NUMBERS", "Remove these percentages of features outside train, as 0,100.", "0"),
        runs=option("N", "Train each setting N times; the first run selects the setting.", RUNS),
        epochs=option("N", "Train for N epochs.", EPOCHS),
    )
    parser.group("Running", "device", "workers", "time-limit", "quiet")


def run(options: Namespace) -> int | None:
    """Compare methods against oversmoothing on your graph, by depth.

    Selects one of four settings of each method on validation nodes. Shows test
    accuracy and effective rank against depth, and recommends a method. The same
    command resumes an interrupted run.
    """
    from pairnorm.classify.scaling import KINDS
    from pairnorm.compare import depth
    from pairnorm.compare.depth_report import advice, tables
    from pairnorm.paper.experiments import DATASETS
    from pairnorm.train import Store

    named = methods_in(options.method) or []
    if all(":" in name for name in named):
        named = [*METHODS, *named]
    settings: dict[str, Any] = {
        "models": names_in("model", options.model, MODELS),
        "methods": None if named == ["all"] else named,
        "depths": numbers_in("depth", options.depth),
        "missing": numbers_in("missing", options.missing),
        "runs": options.runs,
        "epochs": options.epochs,
        "shallow_first": True,
    }
    one_of("scaling", options.feature_scaling, ("auto", *KINDS))
    depth.DepthComparison(["graph"], **settings)  # validates the options before files are read
    if options.dataset is None:
        refuse_inputs(options.out, *files_of(options))
        graph = _prepared(options)
        graphs = {f"graph@{graph.fingerprint}": graph}
        comparison = depth.DepthComparison([*graphs], **settings, graphs=graphs)
    else:
        comparison = depth.DepthComparison(
            names_in("dataset", options.dataset, DATASETS) or DATASETS, **settings
        )
    path = options.out / "compare.sqlite"
    command = command_line("compare", options)
    outcome = train(path, depth, comparison, set(comparison.datasets), command, running(options))
    if outcome is None:
        return 130
    with Store(path) as store:
        rows = depth.DepthTable.read(comparison, store).rows
    for heading, table in tables(comparison, rows):
        console.show(f"\n{safe(heading)}: test accuracy, and effective rank in brackets")
        console.table(*table)
    show_remaining(outcome.left, command)
    for line in advice(comparison, rows):
        console.show(f"[bold]{safe(line)}[/]")
    console.show(f"\nResults: {safe(path)}")
    write_depths(comparison, path, options.out, "compare", "compare")
    return None


def _prepared(options: Namespace) -> "Graph":
    """Read the user's graph, scale its features and complete its split, as ``fit`` does."""
    from pairnorm.classify import Scaling
    from pairnorm.classify.holdout import complete_split
    from pairnorm.classify.scaling import check_features

    graph = read_graph(options).with_structure()
    check_classes(graph, options)
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
    """Return the methods that an option names; ``module:attribute`` may be in the working directory."""
    from pairnorm.train import METHODS

    if text is None:
        return None
    if ":" in text and "" not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    return [match_name(name.strip(), METHODS) for name in text.split(",")]


def write_depths(comparison: "DepthComparison", path: Path, out: Path, name: str, command: str) -> list[Path]:
    """Write table, figures and report of a comparison by depth, and return the files."""
    from pairnorm.compare.depth import DepthTable
    from pairnorm.compare.depth_report import draw, report
    from pairnorm.train import Store

    with Store(path) as store:
        table = DepthTable.read(comparison, store)
    figures = draw_figures(lambda: draw(comparison, table.rows, out / "figures", name)) or {}
    pictures = {key: f"figures/{paths[0].name}" for key, paths in figures.items()}
    texts = {out / f"{name}.csv": table.csv(), out / f"{name}.md": report(table, command, pictures)}
    for target, text in texts.items():
        write_text(target, text)
    table_file, report_file = texts
    files = [table_file, *(path for paths in figures.values() for path in paths), report_file]
    show_written(files)
    return files


def reproduce_depth(options: Namespace, path: Path) -> int | None:
    """Compare all methods by depth, with results in the store at ``path``."""
    from pairnorm.compare import depth

    refuse(options, ("protocol",), "is for missing, and this is depth", "Leave it out.")
    command = command_line("reproduce", options, *options.what)
    given: dict[str, Any] = {
        "datasets": names_in("dataset", options.dataset, depth.DATASETS),
        "models": names_in("model", options.model, MODELS),
        "methods": methods_in(options.method),
        "root": options.root,
        "depths": numbers_in("depth", options.depth),
        "missing": numbers_in("missing", options.missing),
        "runs": options.runs,
        "epochs": options.epochs,
    }
    comparison = depth.DepthComparison(**{name: value for name, value in given.items() if value is not None})
    outcome = train(path, depth, comparison, set(comparison.datasets), command, running(options))
    if outcome is None:
        return 130
    show_remaining(outcome.left, command)
    console.show(f"Results: {safe(path)}")
    files = write_depths(comparison, path, options.out, "depth", "reproduce depth")
    console.show(f"\nNext: read [bold]{safe(files[-1])}[/]")
    return None


def reproduce_missing(options: Namespace, path: Path) -> int | None:
    """Compare all methods where features are missing, with results in the store at ``path``."""
    from pairnorm.compare.missing import GROUPS, MODELS, PROTOCOLS, Selection
    from pairnorm.compare.missing_runs import MissingResults, compare, count_pending

    refuse(options, ("method",), "is for depth, and this is missing", "Leave it out.")
    if options.depth is not None or options.backend != "here":
        problem = "'missing' runs on this machine, with depths of its own"
        hint = "Leave out {depths} and {on}."
        raise PairNormError(problem, code="wrong-option", value=options.what, hint=hint, depths=..., on=...)
    command, how = command_line("reproduce", options, *options.what), running(options)
    chosen = Selection(
        names_in("protocol", options.protocol, (*PROTOCOLS, *GROUPS)),
        names_in("dataset", options.dataset),
        names_in("model", options.model, MODELS),
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
        console.show(f"\n[yellow]Stopped.[/] Resume with: [bold]{safe(command)}[/]")
        return 130
    files = _write_missing(chosen, path, options.out)
    show_remaining(left, command, "runs")
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
    figures = draw_figures(lambda: draw(results, out / "figures")) or []
    files = [out / "missing.csv", *figures, out / "missing.md"]
    write_csv(results, files[0])
    write_text(files[-1], report(chosen, results, "figures/missing.png" if figures else None))
    return files
