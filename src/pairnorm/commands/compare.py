"""``pairnorm compare``: remedies against oversmoothing, and the user's own, on the user's graph by depth."""

from argparse import Namespace
from typing import TYPE_CHECKING, Any

from pairnorm.base.errors import PairNormError
from pairnorm.commands import console
from pairnorm.commands.console import safe
from pairnorm.commands.options import (
    ENDS,
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
from pairnorm.commands.reproduce import remedies, running, tell_left, train, write_depths

if TYPE_CHECKING:
    from pairnorm.data import Graph

REMEDIES = ("none", "PN-SI", "GCNII", "APPNP", "Residual", "DropEdge", "Skip")
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
        dataset=option("NAMES", "Graphs of `pairnorm datasets`, such as cora,citeseer, instead of files."),
        root=SHARED["root"],
        out=option("FOLDER", "Folder for the figure, the table, the report and the results.", "comparison"),
    )
    parser.group("Columns", "id", "label", "classes", "split", *ENDS, "categorical", "ignore", "keep")
    parser.group(
        "What",
        "scaling",
        model=option("NAMES", "GCN, GAT, SGC, or several.", "GCN"),
        remedy=option(
            "NAMES",
            "Only these remedies, or all. Your own, as package.module:attribute, is compared with the "
            f"usual ones where no others are named. Default: {','.join(REMEDIES)}.",
        ),
        depths=option("NUMBERS", "Numbers of layers.", DEPTHS),
        missing=option("NUMBERS", "Erase so many percent of the vectors outside train, as 0,100.", "0"),
        runs=option("N", "Runs of each; the first chooses its settings.", RUNS),
        epochs=option("N", "Epochs of each.", EPOCHS),
    )
    minutes = option("MINUTES", "Start nothing more after this time; small depths come first.")
    parser.group("Running", "device", "workers", minutes=minutes)


def run(options: Namespace) -> int | None:
    """Compare remedies against oversmoothing on your graph, depth by depth.

    Each has four settings, of which validation chooses. Shows test accuracy and the
    effective rank of what nodes have become, draws both against depth, and says in a
    line what to take. The same command goes on where it stopped.
    """
    from pairnorm.compare import depth
    from pairnorm.compare.depth_report import advice, tables
    from pairnorm.paper.experiments import DATASETS
    from pairnorm.train import Store

    named = remedies(options.remedy) or []
    if all(":" in name for name in named):
        named = [*REMEDIES, *named]
    wanted: dict[str, Any] = {
        "models": names_in("model", options.model),
        "methods": None if named == ["all"] else named,
        "depths": numbers_in("depths", options.depths),
        "missing": numbers_in("missing", options.missing),
        "runs": options.runs,
        "epochs": options.epochs,
        "shallow_first": True,
    }
    depth.DepthComparison(["graph"], **wanted)  # what is wrong with it is said before files are read
    if options.dataset is None:
        refuse_inputs(options.out, *files_of(options))
        graph = _prepared(options)
        graphs = {f"graph@{graph.fingerprint}": graph}
        comparison = depth.DepthComparison([*graphs], **wanted, graphs=graphs)
    else:
        comparison = depth.DepthComparison(
            names_in("dataset", options.dataset, DATASETS) or DATASETS, **wanted
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
    tell_left(outcome.left, command)
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
        problem = f"{graph.name}: no labeled node is left to choose by, or to test on"
        raise PairNormError(problem, code="too-few-labels", hint="Label more nodes of every class.")
    scaled = Scaling.of(graph, options.scaling)
    console.show(f"Features: {safe(scaled.sentence)}.")
    # What is missing has its stand-in now.
    nothing = graph.missing_vectors.new_zeros(graph.num_nodes)
    return graph.with_split(split).replace(features=scaled(graph), missing=nothing)
