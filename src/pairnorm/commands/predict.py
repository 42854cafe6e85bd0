"""``pairnorm predict``: labels for a graph that has changed since a model was fitted."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from pairnorm.commands.console import console
from pairnorm.commands.options import (
    Delimiter,
    Device,
    Edges,
    Id,
    Ignore,
    Nodes,
    Source,
    Target,
    Weight,
    read_graph,
    show_graph,
    steps,
    typed,
)
from pairnorm.writing import whole_file

EXAMPLE = (
    "Example: [bold]pairnorm predict --model run --nodes customers.csv --edges payments.csv "
    "--out predictions.csv[/]"
)


def predict(
    model: Annotated[Path, typer.Option(help="Folder that [bold]pairnorm fit[/] wrote.")],
    nodes: Nodes,
    edges: Edges = None,
    out: Annotated[Path, typer.Option(help="File for the predictions, .csv or .parquet.")] = Path(
        "predictions.csv"
    ),
    id: Id = None,
    source: Source = None,
    target: Target = None,
    weight: Weight = None,
    ignore: Ignore = None,
    delimiter: Delimiter = None,
    device: Device = "auto",
) -> None:
    """Label the nodes of a graph with a model fitted before.

    Columns are read as they were then, unless options say otherwise, and matched by
    name. The column of classes may be absent or empty.
    """
    from pairnorm.classify import NodeClassifier
    from pairnorm.classify.summary import predictions, write_table

    classifier = NodeClassifier.load(model).set_params(device=device)
    given = {
        "id": id, "source": source, "target": target, "weight": weight, "ignore": ignore,
        "delimiter": delimiter, "encoder": classifier.encoder_,
    }  # fmt: skip
    with whole_file(out) as file:
        graph = read_graph(nodes, edges, given)
        show_graph(graph)
        with typed(), steps(f"Predicting with {classifier.best_.name}", 1) as tick:
            frame = predictions(graph, classifier.predict_proba(graph), classifier.classes_)
            tick("done")
        write_table(frame, file)
    counts = frame["predicted"].value_counts()
    shares = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    console.print(f"\nPredicted: {escape(shares)}.", soft_wrap=True)
    console.print(f"Wrote {escape(str(out))}: a row for each of {len(frame):,} nodes.", soft_wrap=True)
    console.print(
        f"\nNext: [bold]{escape(str(model / 'report.md'))}[/] says how far to trust these labels.",
        soft_wrap=True,
    )
