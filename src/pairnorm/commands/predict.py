"""``pairnorm predict``: labels for a graph that has changed since a model was fitted."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from pairnorm.commands.own_files import Device, Edges, Id, Ignore, Nodes, read_graph, show_graph, steps, typed
from pairnorm.commands.terminal import console

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pairnorm.data import Graph

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
    ignore: Ignore = None,
    device: Device = "auto",
) -> None:
    """Label the nodes of a graph with a model fitted before.

    Columns are read as they were then and matched by name. The column of classes
    may be absent or empty.
    """
    from pairnorm.classify import NodeClassifier
    from pairnorm.classify.output import predictions, whole_file, write_table
    from pairnorm.classify.saved import read_facts

    classifier = NodeClassifier.load(model).set_params(device=device)
    columns = dict(read_facts(model).get("columns", {}))
    columns["id"] = id or columns.get("id")
    columns["ignore"] = [*columns.get("ignore", []), *(ignore or [])]
    with whole_file(out) as file:
        graph = _read(nodes, edges, columns, classifier.classes_)
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


def _read(nodes: Path, edges: Path | None, columns: dict[str, Any], classes: "NDArray[np.str_]") -> "Graph":
    """Read a graph whose labels are optional: known ones must be of the model's classes."""
    from pairnorm.data.tables import TABLES, open_table

    label, split = columns.pop("label", None), columns.pop("split", None)
    if nodes.suffix.lower() not in TABLES and columns.get("delimiter") is None:
        return read_graph(nodes, edges, columns | ({"label": label} if nodes.suffix == ".graphml" else {}))
    with typed():
        table = open_table(nodes, columns.get("delimiter"))
    ignored = [name for name in columns.pop("ignore") if name in table.columns]
    ignored += [name for name in (label, split) if name is not None and name in table.columns]
    graph = read_graph(nodes, edges, columns | {"ignore": ignored})
    if label not in table.columns:
        return graph
    return graph.replace(labels=_labels(table, label, classes), class_names=tuple(map(str, classes)))


def _labels(table: Any, label: str, classes: "NDArray[np.str_]") -> Any:
    import torch

    from pairnorm.data.tables import as_text, read_blocks

    (frame,) = read_blocks(table, [label], rows=None)
    place = {str(name): number for number, name in enumerate(classes)} | {None: -1}
    text = as_text(frame[label])
    for row, value in enumerate(text):
        if value not in place:
            known = ", ".join(map(repr, list(place)[:7]))
            table.reject(
                row, f"class {value!r} is unknown to the model, which has {known}. Empty it or fit again."
            )
    return torch.tensor([place[value] for value in text])
