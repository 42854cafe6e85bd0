"""Reading a graph as the one that a model was fitted on was read."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pandas
    from numpy.typing import NDArray
    from torch import Tensor

    from pairnorm.data import Graph
    from pairnorm.data.tables import Source


def read_again(
    nodes: Path, edges: Path | None, saved: dict[str, Any], given: dict[str, Any], classes: "NDArray[np.str_]"
) -> "Graph":
    """Read a graph whose labels are optional; known ones must be of the model's classes.

    Args:
        nodes: the table of nodes, or the file of the whole graph.
        edges: the table of edges.
        saved: the columns that ``fit`` was told of, some of which may no longer be there.
        given: what the user names now instead, and the columns to ``ignore`` beside those.
        classes: the model's.
    """
    from pairnorm.data.tables import is_table, open_table, read_blocks

    kind, ignore = nodes.suffix.lower(), given.get("ignore") or []
    if kind == ".graphml":
        for_tables = {"id", "source", "target", "delimiter"}
        saved = {"label": "label", "split": "split"} | saved
        saved = {name: saved[name] for name in saved.keys() - for_tables}
    columns = saved | {name: value for name, value in given.items() if value and name != "ignore"}
    if is_table(nodes, edges, columns.get("delimiter")):
        table = open_table(nodes, columns.get("delimiter"))
    elif kind == ".graphml":
        table = _attributes(nodes)
    else:
        return _read(nodes, edges, given)
    for name in ignore:
        table.column("ignore", name)

    label, categorical = columns.get("label"), columns.get("categorical", [])
    ignored = [
        name for name in (label, columns.get("split"), *columns.get("ignore", [])) if name in table.columns
    ]
    text = [name for name in (label, *categorical) if name in table.columns]
    frame: Any = next(read_blocks(table, text, rows=None)) if text else {}
    # An empty column of categories has none, and nobody could tell that it is there.
    filled = [name for name in text if name != label and frame[name].notna().any()]
    changes = {"label": None, "split": None, "ignore": ignored + ignore, "categorical": filled}
    graph = _read(nodes, edges, columns | changes)
    if label not in text:
        return graph
    return graph.replace(labels=_labels(table, frame[label], classes), class_names=tuple(map(str, classes)))


def _read(nodes: Path, edges: Path | None, columns: dict[str, Any]) -> "Graph":
    from pairnorm.data import Graph, GraphWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphWarning)
        return Graph.from_files(nodes, edges, **{name: value for name, value in columns.items() if value})


def _attributes(path: Path) -> "Source":
    """Return the attributes of a GraphML file's nodes as a table."""
    import networkx
    import pandas

    from pairnorm.data.tables import Source, readable

    with readable(path.name):
        found = networkx.read_graphml(path)
        frame = pandas.DataFrame([attributes for _, attributes in found.nodes(data=True)])
    return Source(path.name, tuple(frame.columns), frame=frame)


def _labels(table: "Source", column: "pandas.Series", classes: "NDArray[np.str_]") -> "Tensor":
    import torch

    from pairnorm.data.tables import as_text

    place: dict[str | None, int] = {str(name): number for number, name in enumerate(classes)}
    known = ", ".join(map(repr, list(place)[:7]))
    place[None] = -1
    text = as_text(column)
    for row, value in enumerate(text):
        if value not in place:
            table.reject(
                row, f"class {value!r} is unknown to the model, which has {known}. Empty it or fit again."
            )
    return torch.tensor([place[value] for value in text])
