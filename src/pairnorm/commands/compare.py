"""``pairnorm compare``: compare methods against oversmoothing on the user's graph, by depth."""

from argparse import Namespace
from typing import TYPE_CHECKING, Any

from pairnorm.base.errors import PairNormError
from pairnorm.commands import console
from pairnorm.commands.console import safe
from pairnorm.commands.options import (
    EDGE_COLUMNS,
    FILES,
    SHARED,
    add_command,
    check_classes,
    command_line,
    files_of,
    names_in,
    numbers_in,
    option,
    read_graph,
    refuse_inputs,
)
from pairnorm.commands.reproduce import methods_in, running, show_remaining, train, write_depths

if TYPE_CHECKING:
    from pairnorm.data import Graph

METHODS = ("none", "PN-SI", "GCNII", "APPNP", "Residual", "DropEdge", "Skip")
MODELS = ("GCN", "GAT", "SGC")
DEPTHS, RUNS, EPOCHS = "2,8,16", 3, 200


def add(commands: Any) -> None:
    """Add the command and its options."""
    example = "pairnorm compare --nodes customers.csv --edges payments.csv --label risk"
    parser = add_command(commands, "compare --nodes FILE --edges FILE --label COLUMN", run, example)
    parser.either = ("nodes", "dataset")
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
    parser.group(
        "Columns",
        "id",
        "label",
        "classes",
        "merge-classes",
        "split",
        *EDGE_COLUMNS,
        "categorical",
        "ignore",
        "keep",
    )
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
