"""``pairnorm predict``: label a graph that has changed since a model was fitted."""

import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from pairnorm.base.errors import PairNormError, real_number
from pairnorm.base.memory import peak_memory
from pairnorm.commands import console
from pairnorm.commands.console import safe
from pairnorm.commands.options import (
    EDGE_COLUMNS,
    FILES,
    Result,
    add_command,
    files_of,
    flag,
    option,
    read_graph,
    refuse_inputs,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pairnorm.classify import NodeClassifier
    from pairnorm.classify.predictions import Destination
    from pairnorm.data import Graph


def add(commands: Any) -> None:
    """Add the command and its options."""
    example = (
        "pairnorm predict --run run --nodes customers.csv --edges payments.csv \\\n"
        "      --out predictions.csv"
    )
    parser = add_command(commands, "predict --run FOLDER --nodes FILE --edges FILE", run, example)
    parser.old_names["--model"] = "--run"
    out = option(
        "FILE",
        "Write predictions to this file (.csv, .parquet, .json, .jsonl), to - (CSV on standard output), or "
        "to a database: sqlite:///….",
        "predictions.csv",
        type=str,
    )
    table = option("NAME", "Replace this table of a database given by --out.", "predictions")
    sets = option("SHARE", "Add a prediction set per node that holds the true class this often, such as 0.9.")
    explain = option(
        "FILE",
        "Write the features and neighbors that contribute most to each label (.csv, .parquet, .json).",
        type=str,
    )
    parser.group("Files", *FILES, "spreadsheet-safe", out=out, table=table, sets=sets, explain=explain)
    strict = flag("Refuse columns and categories that differ from the fit. Default: impute or ignore them.")
    parser.group("Columns", "id", *EDGE_COLUMNS, "ignore", strict=strict)
    model = option("FOLDER", "Use the model in this folder, which `pairnorm fit` wrote.", required=True)
    parser.group("Running", "device", "quiet", "json", run=model)


def run(options: Namespace) -> Result:
    """Label the nodes of a graph with a fitted model.

    Columns are read as for the fit, unless options say otherwise, and matched by
    name. New columns are ignored; absent columns and new categories count as
    missing. The label column may be absent or empty.
    """
    from pairnorm.classify.predictions import Destination

    if "://" not in options.out:
        refuse_inputs(Path(options.out), *files_of(options), *options.run.glob("model.*"))
    destination = Destination.parse(options.out, options.table)
    if options.explain is not None:
        Destination.parse(options.explain)
        refuse_inputs(Path(options.explain), *files_of(options), *options.run.glob("model.*"))
    coverage = None if options.sets is None else _parse_share(options.sets)
    if destination.is_stdout and options.json:
        problem = "--out - and --json both write to standard output"
        raise PairNormError(problem, code="conflicting-options", hint="Pass a file to {out}.", out=...)
    stdout = sys.stdout
    with console.output(options.quiet, to_stderr=options.json or destination.is_stdout):
        return _predict(options, destination, coverage, stdout)


def _parse_share(text: str) -> float:
    """Parse a share such as ``0.9`` or ``90%``."""
    try:
        share: Any = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = text
    return real_number("sets", share, least=0, below=1)


def _explain(
    classifier: "NodeClassifier", graph: "Graph", predicted: "NDArray[np.int64]", options: Namespace
) -> None:
    from pairnorm.classify.predictions import Destination

    explanation = classifier.explain_nodes(graph, predicted)
    with Destination.parse(options.explain, "explanations").opened(sys.stdout) as write:
        write(
            explanation.table(graph.node_names, classifier.classes_.astype(str)[predicted]),
            options.spreadsheet_safe,
        )
    if explanation.explained < 1:
        console.note(
            f"{safe(options.explain)} leaves out GCN, GAT, GCNII and APPNP, which have "
            f"{1 - explanation.explained:.0%} of the ensemble's weight."
        )


def _predict(
    options: Namespace, destination: "Destination", coverage: float | None, stdout: TextIO
) -> Result:
    from pairnorm.classify import NodeClassifier
    from pairnorm.classify.predictions import prediction_table

    start = time.monotonic()
    classifier = NodeClassifier.load(options.run).set_params(device=options.device)
    with destination.opened(stdout) as write:
        graph = read_graph(options, classifier.encoder_)
        with console.progress() as on_progress:
            on_progress(f"Predicting with {classifier.best_.name}", 0, None)
            probabilities = classifier.predict_proba(graph)
            frame = prediction_table(graph, probabilities, classifier, coverage)
            if options.explain is not None:
                on_progress("Explaining", 0, None)
                _explain(classifier, graph, classifier.decide(probabilities), options)
        write(frame, options.spreadsheet_safe)
    counts = frame["predicted"].value_counts()
    console.show(f"\nPredicted: {safe(', '.join(f'{name} {count:,}' for name, count in counts.items()))}.")
    _show_accuracy(classifier, graph, classifier.decide(probabilities))
    console.show(f"Wrote {safe(options.out)}: {len(frame):,} rows, one per node.")
    if (held_out := classifier.held_out_) is not None:
        low, high = held_out.interval
        console.show(
            f"At the fit, {held_out.accuracy:.1%} of {held_out.count:,} held-out nodes were right "
            f"(95% interval {low:.1%} to {high:.1%})."
        )
    if (report := options.run / "report.md").exists():
        console.show(f"\nNext: [bold]{safe(report)}[/] says how far to trust these labels.")
    return {
        "command": "predict",
        "nodes": len(frame),
        "predicted": {str(name): int(count) for name, count in counts.items()},
        "accuracy_at_fit": None if held_out is None else held_out.accuracy,
        "accuracy_at_fit_interval": None if held_out is None else list(held_out.interval),
        "seconds": round(time.monotonic() - start, 1),
        "peak_memory_bytes": peak_memory(),
        "files": [console.safe(options.out)],
    }


def _show_accuracy(classifier: "NodeClassifier", graph: "Graph", predicted: "NDArray[np.int64]") -> None:
    """Print the accuracy where the class is known, on nodes of the fit and on new ones."""
    from pairnorm.classify.evaluation import Scores

    try:
        labels = graph.labels_among(classifier.classes_.tolist()).cpu().numpy()
    except PairNormError as error:  # a class that is new since the fit
        console.note(f"{error.problem}: the accuracy on known labels is not computed.")
        return
    new = classifier.unseen(graph)
    for nodes, what in ((new, "labels are new"), ((labels >= 0) & ~new, "labels it was trained on")):
        scores = Scores.of(labels[nodes], predicted[nodes], len(classifier.classes_))
        if scores.count:
            low, high = scores.interval
            console.show(
                f"Right on {scores.accuracy:.1%} of {scores.count:,} nodes whose {what} "
                f"(95% interval {low:.1%} to {high:.1%})."
            )
