"""``pairnorm predict``: label a graph that has changed since a model was fitted."""

import sys
from typing import TYPE_CHECKING, Any, TextIO

from pairnorm.base.errors import PairNormError, quoted, real_number
from pairnorm.commands import console
from pairnorm.commands.console import safe
from pairnorm.commands.options import FILES, Options, Result, command, interval, refuse_inputs, shared

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pairnorm.classify import NodeClassifier
    from pairnorm.classify.predictions import Destination
    from pairnorm.data import Graph

PREDICTIONS, EXPLANATIONS = "predictions", "explanations"
"""The tables of a database that ``--out`` and ``--explain`` write to."""
OPTIONS = {
    "Model": {
        "--run FOLDER": "Use the model in this folder, which `pairnorm fit` wrote.",
    },
    "Files": {
        **FILES,
        **shared("spreadsheet-safe"),
        "--out FILE|URL=predictions.csv": "Write predictions to this file (.csv, .parquet, .json, .jsonl), "
        "to - (CSV on standard output), or to a database: sqlite:///….",
        "--table NAME": "Replace this table of a database given by --out. Default: predictions.",
        "--sets SHARE": "Add a prediction set per node that holds the true class this often, such as 0.9. "
        "Default: none.",
        "--explain FILE|URL": "Write the features and neighbors that contribute most to each label (.csv, "
        ".parquet, .json). Default: not written.",
    },
    "Columns": {
        **shared("id source target weight on-unknown-node ignore"),
        "--strict": "Refuse columns, categories and classes that differ from the fit. Default: impute or "
        "ignore them.",
    },
    "Running": shared("device quiet json"),
}


@command(
    "predict --run FOLDER --nodes TABLE --edges TABLE",
    "pairnorm predict --run run --nodes customers.csv --edges payments.csv \\\n      --out predictions.csv",
    options=OPTIONS,
    required=("run", "nodes"),
)
def run(options: Options) -> Result:
    """Label the nodes of a graph with a fitted model.

    Columns are read as for the fit, unless options say otherwise, and matched by
    name. New columns are ignored; absent columns and new categories count as
    missing. The label column may be absent or empty.
    """
    from pairnorm.classify.predictions import Destination

    outputs = [Destination.parse(options.out, options.table or PREDICTIONS)]
    if options.explain:
        outputs.append(Destination.parse(options.explain, EXPLANATIONS))
    for output in outputs:
        if output.path is not None:
            refuse_inputs(output.path, *options.files, *options.run.glob("model.*"))
        elif options.database and output.replaces(options.database, options.tables):
            problem = f"table {quoted(output.table)} of the database would be replaced, and is read"
            hint = "Choose another: {table}"
            raise PairNormError(problem, code="would-overwrite", value=output.table, hint=hint, table=...)
    places = {(each.path and each.path.resolve(), each.url, each.url and each.table) for each in outputs}
    if len(places) < len(outputs):
        problem = "--out and --explain write to the same place"
        raise PairNormError(problem, code="conflicting-options", hint="Choose another: {out}", out=...)
    uses_stdout = any(output.is_stdout for output in outputs)
    if uses_stdout and options.json:
        problem = "predictions or explanations and --json both write to standard output"
        raise PairNormError(problem, code="conflicting-options", hint="Pass a file to {out}.", out=...)
    if not any(output.url for output in outputs):
        options.refuse(["table"], "is for a database, and --out is none", "Leave it out.")
    if options.sets is not None:
        real_number("sets", options.sets, least=0, below=1)
    stdout = sys.stdout
    with console.output(options.quiet, to_stderr=options.json or uses_stdout):
        return _predict(options, outputs, stdout)


def _predict(options: Options, outputs: "list[Destination]", stdout: TextIO) -> Result:
    from pairnorm.classify import NodeClassifier
    from pairnorm.classify.predictions import open_destinations, prediction_table

    classifier = NodeClassifier.load(options.run).set_params(device=options.device)
    classes = classifier.classes_.astype(str)
    with open_destinations(outputs, stdout) as write:
        graph = options.read_graph(classifier.encoder_)
        with console.progress() as on_progress:
            on_progress(console.Progress(f"Predicting with {classifier.best_.name}", 0, None))
            probabilities = classifier.predict_proba(graph)
            predicted = classifier.decide(probabilities)
            frames = [prediction_table(graph, probabilities, classifier, options.sets)]
            if options.explain:
                on_progress(console.Progress("Explaining", 0, None))
                explanation = classifier.explain_nodes(graph, predicted)
                frames.append(explanation.table(graph.node_names, classes[predicted]))
                if explanation.explained < 1:
                    console.note(
                        f"{safe(options.explain)} leaves out networks, which have "
                        f"{1 - explanation.explained:.0%} of the ensemble's weight."
                    )
        write(frames, options.spreadsheet_safe)
    counts = frames[0]["predicted"].value_counts()
    console.show(f"\nPredicted: {safe(', '.join(f'{name} {count:,}' for name, count in counts.items()))}.")
    accuracy, notes = _show_accuracy(classifier, graph, predicted)
    console.show(f"Wrote {safe(options.out)}: {len(frames[0]):,} rows, one per node.")
    if (held_out := classifier.held_out_) is not None:
        console.show(
            f"At the fit, {held_out.accuracy:.1%} of {held_out.count:,} held-out nodes were right "
            f"{interval(held_out)}."
        )
    if (report := options.run / "report.md").exists():
        console.show(f"\nNext: [bold]{safe(report)}[/] says how far to trust these labels.")
    return {
        "nodes": len(frames[0]),
        "predicted": {str(name): int(count) for name, count in counts.items()},
        **accuracy,
        "accuracy_at_fit": held_out and held_out.accuracy,
        "accuracy_at_fit_interval": held_out and list(held_out.interval),
        "notes": [*graph.notes, *notes],
        "files": [safe(name) for name in (options.out, options.explain) if name],
    }


def _show_accuracy(
    classifier: "NodeClassifier", graph: "Graph", predicted: "NDArray[np.int64]"
) -> tuple[dict[str, Any], list[str]]:
    """Print and return the accuracy on labeled nodes, new or trained on, and notes where the fit had more."""
    from pairnorm.classify.evaluation import Scores

    facts, notes = dict[str, Any](), list[str]()
    try:
        labels = graph.labels_among(classifier.classes_.tolist()).cpu().numpy()
    except PairNormError as error:  # a class that is new since the fit
        console.note(f"{error.problem}: the accuracy on known labels is not computed.")
        return facts, notes
    new, held_out = classifier.unseen(graph), classifier.held_out_
    known = (labels >= 0) & ~new
    for name, nodes, which in (
        ("new_labels", new, "labels are new"),
        ("trained_labels", known, "labels it was trained on"),
    ):
        scores = Scores.of(labels[nodes], predicted[nodes], len(classifier.classes_))
        if scores.count:
            facts[f"accuracy_on_{name}"] = scores.accuracy
            facts[f"accuracy_on_{name}_interval"] = list(scores.interval)
            facts[name] = scores.count
            console.show(
                f"Right on {scores.accuracy:.1%} of {scores.count:,} nodes whose {which} {interval(scores)}."
            )
        if scores.count and held_out is not None and scores.interval[1] < held_out.interval[0]:
            text = (
                f"only {scores.accuracy:.1%} of the nodes whose {which} are right, {held_out.accuracy:.1%} "
                "at the fit: the graph has changed too much for this model. Run pairnorm fit again."
            )
            console.note(text)
            notes.append(text)
    return facts, notes
