"""Read graphs from tables or frames: endpoints and weights of edges, and columns of edges as features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas
import torch
from numpy.typing import NDArray

from pairnorm.base.errors import PairNormError, quoted
from pairnorm.data.adjacency import csr_matrix, csr_tensor
from pairnorm.data.encoder import Column, ColumnOptions, ColumnValues, Encoder
from pairnorm.data.files import quote_names
from pairnorm.data.nodes import NodeIndex, read_column, read_nodes
from pairnorm.data.readers import arrow_frame, check_column_names
from pairnorm.data.tables import Table, read_blocks, without_header

AUTO = "auto"
MAX_EDGE_CATEGORIES = 50
# Columns of a frame without names, as pandas writes them.
PANDAS_DEFAULT = ("0", "1")


class EndpointColumns(NamedTuple):
    """The two columns of a table of edges that name nodes, and whether we guessed them by their place."""

    source: str
    target: str
    guessed: bool = False


def find_endpoint_columns(
    edges: Table, source: str | None = None, target: str | None = None
) -> EndpointColumns:
    """Return the columns that are named, else ``source`` and ``target``, else the first two."""
    if len(edges.columns) < 2:
        problem = f"{edges.name}: it has one column only, {quoted(edges.columns[0])}"
        hint = "Pass --edge-delimiter ' ' if spaces separate its cells." if " " in edges.columns[0] else ""
        raise PairNormError(problem, code="too-few-columns", expected="the two ends of an edge", hint=hint)
    titled = {"source", "target"} <= set(edges.columns)
    defaults = ("source", "target") if titled else edges.columns[:2]
    first = defaults[0] if source is None else edges.column("source", source)
    second = defaults[1] if target is None else edges.column("target", target)
    if first == second:
        problem = f"{edges.name}: column {quoted(first)} is both source and target"
        raise PairNormError(problem, code="same-column", value=first, hint="Name the two ends.")
    return EndpointColumns(first, second, guessed=not titled and source is None and target is None)


def note_unused_columns(
    table: Table, ends: EndpointColumns, weight: str | None, edge_columns: Sequence[str] = ()
) -> None:
    """Check that the columns that are named exist, and note the columns of edges that are not used."""
    if weight is not None:
        table.column("weight", weight)
    for name in edge_columns:
        table.column("edge_columns", name)
    if unused := [name for name in table.columns if name not in (*ends[:2], weight, *edge_columns)]:
        columns = f"{'column' if len(unused) == 1 else 'columns'} {quote_names(unused)}"
        more = "" if weight else "; --weight (weight=) weighs edges by one of numbers"
        more += "; --edge-columns (edge_columns=) makes features of them"
        table.notes.append(f"{columns} of {table.name}: not used{more}")


def header_is_edge(edges: Table, ends: EndpointColumns) -> bool:
    """Return whether the header of a table of edges, whose two titles are nodes, is an edge itself."""
    if edges.text is not None and edges.text.is_converted:  # pandas writes neither spaces nor comments
        return True
    if edges.text is None or (ends.guessed and ends[:2] == PANDAS_DEFAULT):
        sign = "," if edges.text is None else edges.text.delimiter
        raise PairNormError(
            f"{edges.name}: line 1 may be a header or an edge between the nodes {quoted(ends.source)} and "
            f"{quoted(ends.target)}",
            code="header-missing",
            value=ends[:2],
            hint="If it is an edge, put a first line such as "
            f"{quoted(sign.join(('source', 'target')))} above it; if it is a header, name its columns.",
        )
    return ends.guessed or ends[:2] != PANDAS_DEFAULT


def read_edges(
    edges: Table,
    ends: EndpointColumns,
    names: NDArray[Any],
    weight: str | None,
    drop: bool = False,
    columns: Sequence[str] = (),
    text: Sequence[str] = (),
) -> tuple[NDArray[np.int64], NDArray[np.float32] | None, pandas.DataFrame | None]:
    """Return the numbers of the two nodes of every edge, the weights, and other columns, some as text.

    With ``drop``, an edge with unknown endpoints is left out, and how many those are is noted.
    """
    is_named = all((names.astype(str) == end).any() for end in ends[:2])
    if edges.has_header and is_named and header_is_edge(edges, ends):
        edges = without_header(edges, "an edge", edges.columns)
    index, first = NodeIndex(names, drop), 0
    pairs, weights = [np.zeros((2, 0), dtype=np.int64)], []
    frames: list[pandas.DataFrame] = []
    # Whole numbers are read as such: that is several times faster than text.
    text = [*text, *(edges.padded() if columns else ())]
    for block in read_blocks(edges, text if names.dtype == np.int64 else [*text, *ends[:2]]):
        numbers = np.stack([index.places(edges, name, block[name], first) for name in ends[:2]])
        both = (numbers >= 0).all(0)
        pairs.append(numbers if both.all() else numbers[:, both])
        frames += [block.filter(list(columns), axis=1).iloc[np.flatnonzero(both)]] if columns else []
        if weight is not None:
            weights.append(_weights(edges, weight, block[weight], first)[both])
        first += len(block)
    whole = np.concatenate(pairs, 1)
    if dropped := first - whole.shape[1]:
        edges.notes.append(
            f"{dropped:,} of {first:,} edges in {edges.name} were dropped: an end is not a node, such as "
            f"{index.unknown_example}"
        )
    table = pandas.concat(frames, ignore_index=True) if frames else None
    return whole, np.concatenate(weights) if weights else None, table


def _weights(edges: Table, name: str, column: pandas.Series, first: int) -> NDArray[np.float32]:
    values = edges.numbers(name, column, first)
    if values is None or not (values > 0).all():
        row = 0 if values is None else int((~(values > 0)).argmax())
        cell = edges.texts(name, column.iloc[row : row + 1], first + row)[0]
        problem = f"the weight in column {quoted(name)} is {quoted(cell)}"
        edges.reject(first + row, problem, "bad-weight", value=cell, expected="a positive number")
    return values


def choose_edge_columns(
    table: Table, ends: EndpointColumns, weight: str | None, options: ColumnOptions, known: Encoder | None
) -> list[str]:
    """Return the columns of edges to aggregate: those of a model, those that are named, or all others."""
    if known is not None:
        return [column.name for column in known.edge_columns]
    if tuple(options.edge_columns) != (AUTO,):
        return list(options.edge_columns)
    return [name for name in table.columns if name not in (*ends[:2], weight)]


def read_tables(
    tables: Sequence[Sequence[Table]], options: ColumnOptions, known: Encoder | None
) -> dict[str, Any]:
    """Return the parts of a graph in tables of nodes, of edges, and of features."""
    nodes, edges, features = tables
    if known is not None and any(column.name.startswith("column ") for column in known.columns):
        has_number = {f"column {n + 1}" for n in range(len(known.columns))}.__contains__
        nodes = [
            without_header(one, "a node", [])
            if one.text is not None and one.has_header and not any(map(has_number, one.columns))
            else one
            for one in nodes
        ]
    ends = [find_endpoint_columns(table, options.source, options.target) for table in edges]
    for table, two in zip(edges, ends, strict=True):
        columns = choose_edge_columns(table, two, options.weight, options, known)
        note_unused_columns(table, two, options.weight, columns)
    parts = read_nodes(nodes, options, known, features)
    return add_edges(parts, edges, ends, options.weight, options, known)


def add_edges(
    parts: dict[str, Any],
    tables: Sequence[Table],
    ends: Sequence[EndpointColumns],
    weight: str | None,
    options: ColumnOptions,
    known: Encoder | None,
) -> dict[str, Any]:
    """Return the parts of a graph with its edges, and the aggregates of their columns as features."""
    columns = choose_edge_columns(tables[0], ends[0], weight, options, known)
    text = [] if known is None else [one.name for one in known.edge_columns if one.kind == "category"]
    drop, names = options.unknown_edges == "drop", parts["node_names"]
    read = (
        read_edges(table, two, names, weight, drop, columns, text)
        for table, two in zip(tables, ends, strict=True)
    )
    pairs, weights, frames = zip(*read, strict=True)
    parts = parts | {
        "edge_index": np.concatenate(pairs, 1),
        "weights": None if weight is None else np.concatenate(weights),
        "notes": (*parts["notes"], *(remark for table in tables for remark in table.all_notes())),
        "num_nodes": len(names),
    }
    if not columns:
        return parts
    frame = pandas.concat(frames, ignore_index=True)
    first = tables[0]
    rows = Table(first.name, first.columns, frame, first.text, decimal=first.decimal)
    return _add_edge_features(parts, rows, frame, options, known)


def _add_edge_features(
    parts: dict[str, Any],
    table: Table,
    frame: pandas.DataFrame,
    options: ColumnOptions,
    known: Encoder | None,
) -> dict[str, Any]:
    expected = {} if known is None else {column.name: column for column in known.edge_columns}
    used = []
    for name in frame.columns:
        one = read_column(table, name, frame[name], expected.get(name), options)
        (column,) = one.columns
        if known is None and len(column.categories) > MAX_EDGE_CATEGORIES:
            table.add_column_note(
                f"left out, because it holds {len(column.categories):,} different texts", name
            )
        elif column.kind != "ignored":
            used.append(one)
    names, values = aggregate_edges(used, parts["edge_index"], parts["num_nodes"])
    encoder, features, missing = parts["encoder"], parts["features"], parts["missing"]
    if known is None:
        columns = (*encoder.columns, *(Column(name, "edge") for name in names))
        edge_columns = tuple(one.columns[0] for one in used)
        encoder = replace(encoder, columns=columns, edge_columns=edge_columns)
    entries = missing if missing.dim() == 2 else missing[:, None].expand(features.shape)
    entries = torch.cat([entries, torch.from_numpy(np.isnan(values))], 1)
    dense = np.nan_to_num(values)
    if features.layout == torch.sparse_csr:
        from scipy.sparse import csr_array, hstack

        features = csr_tensor(hstack([csr_matrix(features), csr_array(dense)], format="csr"))
    else:
        features = torch.cat([features, torch.from_numpy(dense)], 1)
    return parts | {
        "features": features,
        "missing": entries if entries.any() else entries.any(1),
        "encoder": encoder,
        "notes": (*parts["notes"], *table.all_notes()),
    }


def aggregate_edges(
    columns: Sequence[ColumnValues], edge_index: NDArray[np.int64], nodes: int
) -> tuple[list[str], NDArray[np.float32]]:
    """Return the names and values [nodes, aggregates] of counts, sums and means over the edges of each node.

    An edge counts at both of its nodes. Numbers give a sum and a mean, dates a mean, categories a count each
    and the sums of the numbers. The mean over no edge is NaN.
    """
    source, target = edge_index
    is_between = source != target

    def total(values: NDArray[Any]) -> NDArray[np.float64]:
        sums = np.bincount(source, values, nodes).astype(np.float64)
        return sums + np.bincount(target[is_between], values[is_between], nodes)

    aggregates = {"edges: count": total(np.ones(len(source)))}
    numbers: dict[str, NDArray[Any]] = {}
    indicators: dict[str, NDArray[Any]] = {}
    for one in columns:
        (column,), name = one.columns, one.columns[0].name
        if column.kind == "category":
            codes = np.full(len(source), -1)
            codes[one.rows] = one.places
            indicators |= {f"{name}={text}": codes == place for place, text in enumerate(column.categories)}
            continue
        values = np.zeros(len(source))
        values[one.rows] = one.values
        sums, counts = total(values), total(~one.empty[:, 0])
        if column.kind == "number":
            numbers[name] = values
            aggregates[f"edges: sum of {name}"] = sums
        aggregates[f"edges: mean of {name}"] = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    for category, holds in indicators.items():
        aggregates[f"edges: count of {category}"] = total(holds)
        for name, values in numbers.items():
            aggregates[f"edges: sum of {name} where {category}"] = total(values * holds)
    largest = float(np.finfo(np.float32).max)
    return list(aggregates), np.stack([*aggregates.values()], 1).clip(-largest, largest).astype(np.float32)


def from_frames(
    nodes: Any, edges: Any, features: Any, options: ColumnOptions, encoder: Encoder | None
) -> dict[str, Any]:
    """Return the parts of a graph in frames of pandas, or of any library that hands its columns over."""
    tables = [
        [] if role == "features" and frame is None else [_frame_source(f"the frame of {role}", frame)]
        for role, frame in (("nodes", nodes), ("edges", edges), ("features", features))
    ]
    try:
        return read_tables(tables, options.after(encoder), encoder)
    except PairNormError as error:
        if error.code == "unknown-node" and str(error.value) in _unread_index(nodes):
            error.hint += " It is in the index of the nodes; only one with a name, such as 'id', is read."
        raise


def _unread_index(frame: Any) -> set[str]:
    if not isinstance(frame, pandas.DataFrame) or isinstance(frame.index, pandas.RangeIndex):
        return set()
    return set() if any(frame.index.names) else set(map(str, frame.index))


def _frame_source(name: str, frame: Any) -> Table:
    if isinstance(frame, Mapping):
        frame = pandas.DataFrame(frame)
    if not isinstance(frame, pandas.DataFrame):
        import pyarrow

        if hasattr(frame, "__arrow_c_stream__"):
            frame = arrow_frame(pyarrow.table(frame))
        elif hasattr(frame, "__dataframe__"):
            from pyarrow.interchange import from_dataframe

            frame = arrow_frame(from_dataframe(frame))
        else:
            problem = f"{name} is a {type(frame).__name__}"
            expected = "a pandas.DataFrame, or one that has __arrow_c_stream__ or __dataframe__"
            raise PairNormError(problem, code="wrong-type", value=type(frame).__name__, expected=expected)
    if any(frame.index.names):  # an index with a name is a column
        frame = frame.reset_index()
    columns = check_column_names(name, list(frame.columns))
    return Table(name, columns, frame.set_axis(columns, axis=1))
