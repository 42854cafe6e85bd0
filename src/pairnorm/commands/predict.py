"""``pairnorm predict``: labels for a graph that has changed since a model was fitted."""

import sys
from argparse import Namespace
from contextlib import nullcontext, redirect_stdout
from typing import Any

from pairnorm.commands import console
from pairnorm.commands.console import safe
from pairnorm.commands.options import (
    ENDS,
    FILES,
    SHARED,
    add_command,
    files_of,
    option,
    read_graph,
    refuse_inputs,
)
from pairnorm.writing import is_stream, whole_file


def add(commands: Any) -> None:
    """Add the command and its options."""
    example = (
        "pairnorm predict --model run --nodes customers.csv --edges payments.csv \\\n"
        "      --out predictions.csv"
    )
    parser = add_command(commands, "predict --model FOLDER --nodes FILE --edges FILE", run, example)
    model = option("FOLDER", "Folder that pairnorm fit wrote.", required=True)
    out = option("FILE", "File for the predictions, .csv or .parquet.", "predictions.csv")
    safe_option = {"spreadsheet-safe": SHARED["spreadsheet-safe"]}
    parser.group("Files", *FILES, out=out, **safe_option)
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
    from pairnorm.classify.summary import predictions, write_table

    model, out = options.model, options.out
    classifier = NodeClassifier.load(model).set_params(device=options.device)
    with whole_file(out) as file:
        graph = read_graph(options, classifier.encoder_)
        with console.progress() as tell:
            tell(f"Predicting with {classifier.best_.name}", 0, None)
            frame = predictions(graph, classifier.predict_proba(graph), classifier.classes_)
        write_table(frame, file, options.spreadsheet_safe)
    counts = frame["predicted"].value_counts()
    console.show(f"\nPredicted: {safe(', '.join(f'{name} {count:,}' for name, count in counts.items()))}.")
    console.show(f"Wrote {safe(out)}: a row for each of {len(frame):,} nodes.")
    console.show(f"\nNext: [bold]{safe(model / 'report.md')}[/] says how far to trust these labels.")
