"""A user's own graph, read from files."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from pairnorm.data.adjacency import symmetric_adjacency
from pairnorm.data.columns import read_features, read_labels, read_split
from pairnorm.data.graph import Graph
from pairnorm.data.names import Ends, node_names, read_edges
from pairnorm.data.numeric import EMPTY
from pairnorm.data.tables import TABLES, Source, is_table, open_table, read_blocks
from pairnorm.errors import PairNormError


class GraphWarning(UserWarning):
    """Something odd in a user's files that was handled. The graph's ``notes`` say the same."""


def from_files(
    nodes: str | PathLike[str],
    edges: str | PathLike[str] | None = None,
    *,
    id: str | None = None,
    label: str | None = None,
    source: str | None = None,
    target: str | None = None,
    weight: str | None = None,
    split: str | None = None,
    categorical: Sequence[str] = (),
    ignore: Sequence[str] = (),
    delimiter: str | None = None,
    name: str | None = None,
) -> Graph:
    """Read a graph from a table of nodes and a table of edges, or from one file that holds both.

    Tables are CSV, TSV or Parquet. Every column of the node table that is not named below is a feature:
    numbers as they are, text one-hot. An empty cell is missing; among numbers, so is ``NA`` and its like.
    Whole graphs are ``.npz`` (CSR pieces ``adj_*`` and ``attr_*``, and ``labels``), a PyG ``Data`` as
    ``.safetensors`` or ``.pt``, or ``.graphml``.
    What is odd is handled, noted in ``graph.notes``, and warned of once.

    Args:
        nodes: the table of nodes, or the file that holds the whole graph.
        edges: the table of edges.
        id: the column of ``nodes`` with their names. Default: the first.
        label: the column of ``nodes`` with their classes; an empty cell is unknown. Default: no labels.
        source: the column of ``edges`` with one end. Default: ``'source'`` if there is one, else the first.
        target: the column with the other end. Default: ``'target'`` if there is one, else the second.
        weight: the column of ``edges`` with their weights. Default: all weigh 1.
        split: the column of ``nodes`` that says train, validation or test. Default: no split.
        categorical: columns of ``nodes`` that are categories though they look like numbers.
        ignore: columns of ``nodes`` to leave out.
        delimiter: what separates the cells of text files, or ``'tab'``. Default: a comma, in ``.tsv`` a tab.
        name: what to call the graph. Default: the name of the node file.
    """
    path = Path(nodes)
    columns: dict[str, Any] = {
        "label": label, "split": split, "weight": weight, "categorical": categorical, "ignore": ignore,
    }  # fmt: skip
    name = name or path.stem
    if is_table(path, edges, delimiter):
        if edges is None:
            raise PairNormError(
                f"{path.name}: a table of nodes needs a table of edges beside it. Pass edges=..."
            )
        node_source, edge_source = open_table(path, delimiter), open_table(Path(edges), delimiter)
        ends = _ends(edge_source, source, target)
        graph = from_sources(node_source, edge_source, ends, id=id, name=name, **columns)
    else:
        from pairnorm.data.whole import read_whole

        if edges is not None:
            raise PairNormError(
                f"{path.name}: {path.suffix!r} is no table, but edges are given. "
                f"Expected {', '.join(TABLES)}. For a text file with another ending pass delimiter=','."
            )
        tables = {"id": id, "source": source, "target": target, "delimiter": delimiter}
        graph = read_whole(path, name, columns, tables)
    if graph.notes:
        warnings.warn(f"{name}: {'; '.join(graph.notes)}.", GraphWarning, stacklevel=3)
    return graph


def _ends(edges: Source, source: str | None, target: str | None) -> Ends:
    if len(edges.columns) < 2:
        raise PairNormError(
            f"{edges.name}: it has one column only, {edges.columns[0]!r}; an edge needs two ends."
        )
    titled = {"source", "target"} <= set(edges.columns)
    defaults = ("source", "target") if titled else edges.columns[:2]
    first = defaults[0] if source is None else edges.column("source", source)
    second = defaults[1] if target is None else edges.column("target", target)
    if first == second:
        raise PairNormError(f"{edges.name}: column {first!r} is both source and target. Name the two ends.")
    return Ends(first, second, guessed=not titled and source is None and target is None)


def from_sources(
    nodes: Source,
    edges: Source,
    ends: Ends,
    *,
    id: str | None = None,
    label: str | None = None,
    weight: str | None = None,
    split: str | None = None,
    categorical: Sequence[str] = (),
    ignore: Sequence[str] = (),
    name: str = "graph",
) -> Graph:
    """Make a graph of a table of nodes and a table of edges, wherever they are from.

    Args:
        nodes: the nodes.
        edges: the edges.
        ends: the two columns of ``edges`` that name nodes.
        id: as for ``from_files``, like all that follow.
        label: the column of the nodes' classes.
        weight: the column of the edges' weights.
        split: the column that says train, validation or test.
        categorical: columns that are categories though they look like numbers.
        ignore: columns to leave out.
        name: what to call the graph.
    """
    identity = nodes.columns[0] if id is None else nodes.column("id", id)
    _check_columns(nodes, label=[label], split=[split], categorical=categorical, ignore=ignore)
    _check_columns(edges, weight=[weight])
    if split is not None and label is None:
        raise PairNormError(f"split is {split!r} but label is not given. Name the column of the classes too.")

    text = [column for column in (identity, label, split, *categorical) if column is not None]
    (frame,) = read_blocks(nodes, text, rows=None)
    if len(frame) == 0:
        raise PairNormError(f"{nodes.name}: there are no rows under the header. Expected a row per node.")
    names = node_names(nodes, identity, frame[identity])
    parts: dict[str, Any] = {}
    if label is not None:
        parts["labels"], parts["class_names"] = read_labels(nodes, label, frame[label])
    if split is not None:
        parts |= read_split(nodes, split, frame[split], parts["labels"], parts["class_names"])
    chosen = [column for column in nodes.columns if column not in {identity, label, split, *ignore}]
    features = read_features(nodes, frame, chosen, categorical)
    del frame

    source, target, weights = read_edges(edges, ends, names, weight)
    adjacency, counts = symmetric_adjacency(source, target, len(names), weights)
    return Graph(
        adjacency,
        features.values,
        missing=features.missing,
        feature_names=features.names,
        node_names=names,
        name=name,
        notes=counts.notes() + _doubts(chosen, parts.get("class_names", ()), features.names),
        **parts,
    )


def _doubts(chosen: Sequence[str], classes: Sequence[str], features: Sequence[str]) -> tuple[str, ...]:
    """Return notes on what may not be meant: no features, and words that others write for an empty cell."""
    notes = [] if chosen else ["there are no feature columns"]
    notes += [
        f"{name!r} is read as a class; empty the cells if it means unknown"
        for name in classes
        if name in EMPTY
    ]
    categories = [feature.partition("=") for feature in features if "=" in feature]
    notes += [
        f"{word!r} in column {column!r} is read as a category; empty the cells if it means missing"
        for column, _, word in categories
        if word in EMPTY
    ]
    return tuple(notes)


def _check_columns(table: Source, **options: Sequence[str | None]) -> None:
    for option, columns in options.items():
        for column in columns:
            if column is not None:
                table.column(option, column)
