"""``pairnorm predict``: labels for a graph that has changed since a model was fitted."""

import sys
from argparse import Namespace
from contextlib import nullcontext, redirect_stdout
from typing import TYPE_CHECKING, Any

from pairnorm.base.errors import PairNormError
from pairnorm.base.files import is_stream, whole_file
from pairnorm.commands import console
from pairnorm.commands.console import safe
from pairnorm.commands.options import ENDS, FILES, add_command, files_of, option, read_graph, refuse_inputs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pairnorm.classify import NodeClassifier
    from pairnorm.data import Graph


def add(commands: Any) -> None:
    """Add the command and its options."""
    example = (
        "pairnorm predict --model run --nodes customers.csv --edges payments.csv \\\n"
        "      --out predictions.csv"
    )
    parser = add_command(commands, "predict --model FOLDER --nodes FILE --edges FILE", run, example)
    model = option("FOLDER", "Folder that pairnorm fit wrote.", required=True)
    out = option("FILE", "File for the predictions, .csv or .parquet.", "predictions.csv")
    parser.group("Files", *FILES, "spreadsheet-safe", out=out)
    parser.group("Columns", "id", *ENDS, "ignore")
    parser.group("Model", "device", model=model)


def run(options: Namespace) -> None:
    """Label the nodes of a graph with a model fitted before.

    Columns are read as they were then, unless options say otherwise, and matched by
    name. The column of classes may be absent or empty.
    """
    out = options.out
    refuse_inputs(out, *files_of(options), *options.model.glob("model.*"))
    # Predictions that go to a pipe, or to /dev/stdout, must not meet what is said about them.
    with redirect_stdout(sys.stderr) if is_stream(out) else nullcontext():
        _predict(options)


def _predict(options: Namespace) -> None:
    from pairnorm.classify import NodeClassifier
    from pairnorm.classify.predictions import prediction_table, write_table

    model, out = options.model, options.out
    classifier = NodeClassifier.load(model).set_params(device=options.device)
    with whole_file(out) as file:
        graph = read_graph(options, classifier.encoder_)
        with console.progress() as tell:
            tell(f"Predicting with {classifier.best_.name}", 0, None)
            probabilities = classifier.predict_proba(graph)
            frame = prediction_table(graph, probabilities, classifier)
        write_table(frame, file, options.spreadsheet_safe)
    counts = frame["predicted"].value_counts()
    console.show(f"\nPredicted: {safe(', '.join(f'{name} {count:,}' for name, count in counts.items()))}.")
    _judge(classifier, graph, classifier.decide(probabilities))
    console.show(f"Wrote {safe(out)}: a row for each of {len(frame):,} nodes.")
    if (held_out := classifier.held_out_) is not None:
        low, high = held_out.interval
        console.show(
            f"When it was fitted, {held_out.accuracy:.1%} of {held_out.count:,} held-out nodes were right "
            f"(95% interval {low:.1%} to {high:.1%})."
        )
    console.show(f"\nNext: [bold]{safe(model / 'report.md')}[/] says how far to trust these labels.")


def _judge(classifier: "NodeClassifier", graph: "Graph", predicted: "NDArray[np.int64]") -> None:
    """Say how often predictions are right where the class is known, on nodes learned from and on others."""
    from pairnorm.classify.evaluation import Scores

    try:
        labels = graph.labels_among(classifier.classes_.tolist()).cpu().numpy()
    except PairNormError as strange:  # a class that came up since: nothing that labels need
        console.note(f"{strange.problem}: how often predictions are right is not told.")
        return
    new = classifier.unseen(graph)
    for judged, what in ((new, "labels are new"), ((labels >= 0) & ~new, "labels it has learned from")):
        scores = Scores.of(labels[judged], predicted[judged], len(classifier.classes_))
        if scores.count:
            low, high = scores.interval
            console.show(
                f"Right on {scores.accuracy:.1%} of {scores.count:,} nodes whose {what} "
                f"(95% interval {low:.1%} to {high:.1%})."
            )
