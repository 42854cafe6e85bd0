"""Read graphs from tables: nodes, their features and labels, and edges, whose columns may be features."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pandas
from numpy.typing import NDArray

from pairnorm.base.errors import PairNormError, quoted
from pairnorm.data.encoder import (
    Column,
    ColumnOptions,
    ColumnValues,
    Encoder,
    aggregate_edges,
    assemble,
    compare_columns,
    conform,
    reject_dates,
)
from pairnorm.data.features import append_columns, class_sort_key
from pairnorm.data.files import quote_names
from pairnorm.data.ids import NodeIndex, integers_or_texts, near_duplicate_notes
from pairnorm.data.labels import encoder_notes, read_classes
from pairnorm.data.profile import DATE_PATTERNS, EMPTY_NOTE, ID_NAME, MONTH_FIRST, parse_dates
from pairnorm.data.tables import Table, read_blocks, read_rows, without_header

NUMBERS_AT_ONCE, MAX_EDGE_CATEGORIES = 10_000_000, 50
PANDAS_DEFAULT = ("0", "1")  # columns of a frame without names


def read_nodes(
    tables: Sequence[Table],
    options: ColumnOptions,
    known: Encoder | None = None,
    long: Sequence[Table] = (),
    more_names: pandas.Index | None = None,
) -> dict[str, Any]:
    """Read tables of nodes: names, features, labels, split, and the encoder.

    Tables are read by an earlier encoder, ``known``, where there is one; ``long`` ones hold node, feature and
    value. Nodes of ``more_names`` that no table has are added, without label and features.
    """
    columns = list(dict.fromkeys(name for table in tables for name in table.columns))
    everywhere = replace(tables[0], columns=tuple(columns))
    options = options if known is None else known.options(options, columns)
    identity = options.check(everywhere)
    roles = options.roles(identity)
    chosen = [name for name in columns if name not in roles]
    differences, absent = list[str](), list[str]()
    as_text = [identity, *(name for option, name in options.named if option not in ("ignore", "keep"))]
    if known is not None:
        differences = compare_columns(everywhere.name, chosen, known, options.strict)
        there, chosen = set(chosen), [column.name for column in known.named("number", "category", "date")]
        absent = [name for name in chosen if name not in there]
        as_text += [column.name for column in known.named("category") if column.name not in absent]
    as_text += [name for table in tables for name in table.padded()]
    table, frame, names = read_rows(tables, identity, as_text)
    if len(frame) == 0:
        problem = "there are no rows under the header"
        table.reject(None, problem, code="no-rows", expected="a row per node")
    if more_names is not None:
        listed = pandas.Index(names.astype(str), dtype=object)
        added = more_names.difference(listed, sort=False)
        table.notes.append(f"{len(added):,} nodes that only edges name were added, unlabeled")
        names = integers_or_texts(listed.append(added).to_numpy())
        frame = frame.reset_index(drop=True).reindex(range(len(names)))
    frame[absent] = np.nan
    parts, bins = read_classes(table, frame, options, known)
    classes = parts.get("class_names", ())
    read = list(read_columns(table, frame, chosen, options, known))
    left_out = [column for values in read for column in values.columns if column.kind == "ignored"]
    read = [values for values in read if values.columns[0].kind != "ignored"]
    for values in read:
        for place in np.flatnonzero(values.empty.all(0)):
            if values.columns[place].name not in absent:
                table.add_column_note(EMPTY_NOTE, values.columns[place].name)
    if long or (known is not None and known.named("sparse")):
        read.append(read_long(long, identity, names, options, known))
    special = (Column(name, kind, classes if kind == "label" else ()) for name, kind in roles.items())
    encoder = known or Encoder(
        (*special, *left_out, *(column for values in read for column in values.columns)),
        **options.reading_options(),
        bins=bins,
    )
    if encoder.named("structure"):  # they are made of the edges, later
        encoder = replace(encoder, columns=tuple(c for c in encoder.columns if c.kind != "structure"))
    wide = {column.name for column in encoder.named("number", "category", "date")}
    if twice := [column.name for column in encoder.named("sparse") if column.name in wide]:
        problem = f"{quoted(twice[0])} is a column, and a feature of the long table too"
        hint = "Rename one, or pass {ignore}."
        table.reject(None, problem, "duplicate-column", value=twice[0], hint=hint, ignore=twice[:1])
    features, missing = assemble(read, len(frame))
    remarks = [*differences, *(remark for source in (table, *long) for remark in source.all_notes())]
    notes = (*remarks, *near_duplicate_notes(names), *encoder_notes(encoder, classes, options))
    return parts | {
        "node_names": names,
        "features": features,
        "missing": missing,
        "encoder": encoder,
        "notes": notes,
    }


def read_columns(
    table: Table,
    frame: pandas.DataFrame,
    names: Sequence[str],
    options: ColumnOptions,
    known: Encoder | None = None,
) -> Iterator[ColumnValues]:
    """Read feature columns in order; plain numbers in batches, since a table may be wide."""
    dtypes = ((name, kind) for name, kind in frame.dtypes.items() if isinstance(kind, np.dtype))
    plain = {name for name, kind in dtypes if kind.kind in "iufb"} - {
        *options.categorical,
        *(() if known is None else (column.name for column in known.named("category", "date"))),
        *(() if known else filter(ID_NAME.search, names)),
    }
    step = max(1, NUMBERS_AT_ONCE // len(frame))
    for together, run in groupby(names, plain.__contains__):
        group = list(run)
        for start in range(0, len(group), step) if together else ():
            lenient = known is not None and not options.strict
            yield _read_numbers(table, frame[group[start : start + step]], lenient)
        for name in () if together else group:
            yield read_column(table, name, frame[name], known.features[name] if known else None, options)


def _read_numbers(table: Table, frame: pandas.DataFrame, lenient: bool) -> ColumnValues:
    """Read columns of plain numbers together."""
    with np.errstate(over="ignore"):
        values = frame.to_numpy(dtype=np.float64).astype(np.float32)
    for place in np.flatnonzero(np.isinf(values).any(0)).tolist():
        name = frame.columns[place]
        values[:, place] = table.to_float32(name, frame[name].to_numpy(np.float64), lenient=lenient)
    return ColumnValues.of_numbers(tuple(Column(name, "number") for name in frame.columns), values)


def read_column(
    table: Table, name: str, cells: pandas.Series, known: Column | None, options: ColumnOptions
) -> ColumnValues:
    """Read a feature: numbers and dates as numbers, text one-hot; by the encoder, or by its profile."""
    kind = known.kind if known else "category" if name in options.categorical else None
    keep, lenient = name in options.keep, known is not None and not options.strict
    # Numbers that pandas types as categories are meant so; texts may be typed so to save memory.
    categories = cells.cat.categories if isinstance(cells.dtype, pandas.CategoricalDtype) else None
    if kind is None and categories is not None and categories.dtype.kind in "iuf":
        table.add_column_note("numbers are read as categories, as their type says", name)
        kind = "category"
    form = known.form if known else ""
    read = table.read_column(name, cells, kind=kind, form=form, keep=keep, lenient=lenient)
    decision, distinct = read.decision, read.texts
    if decision.kind == "ignored":
        return ColumnValues.of_numbers((Column(name, "ignored"),), np.empty((0, 1), np.float32))
    if decision.kind in ("number", "date"):
        unread = distinct[np.isnan(parse_dates(distinct, form))] if form else ()
        if any(map(DATE_PATTERNS[MONTH_FIRST].fullmatch, unread)):
            reject_dates(table.name, name, form)
        narrow = table.to_float32(name, read.values, lenient=lenient)
        values = ColumnValues.of_numbers((Column(name, decision.kind, form=decision.form),), narrow[:, None])
    else:
        order = np.argsort(distinct)
        codes = np.append(np.argsort(order), -1)[read.codes]
        rows = np.flatnonzero(codes >= 0)
        column = Column(name, "category", tuple(distinct[order]))
        ones = np.ones(len(rows), np.float32)
        values = ColumnValues((column,), rows, codes[rows], ones, codes[:, None] < 0)
    if known is not None:
        values, notes = conform(table.name, values, known, options.strict)
        table.notes.extend(notes)
    return values


def read_long(
    tables: Sequence[Table],
    identity: str,
    names: NDArray[Any],
    options: ColumnOptions,
    known: Encoder | None,
) -> ColumnValues:
    """Read tables of node, feature and value: a node without rows misses all, else absent features are 0."""
    if not tables:
        problem = "the model knows features of a long table"
        raise PairNormError(problem, code="option-missing", hint="Pass {features}.", features=...)
    index = NodeIndex(names, options.unknown_edges == "drop")
    blocks = [block for table in tables for block in _long_blocks(table, identity, index)]
    rows, words, numbers = (np.concatenate(part) for part in zip(*blocks, strict=True))
    notes = tables[0].notes
    features = sorted(set(words), key=class_sort_key)
    if known:
        there, features = set(features), [column.name for column in known.named("sparse")]
        if unknown := sorted(there.difference(features)):
            listed = quote_names(unknown)
            notes.append(f"{len(unknown):,} features unknown to the model are left out: {listed}")
    places = pandas.Index(features, dtype=object).get_indexer(pandas.Index(words, dtype=object))
    absent = np.ones(len(names), dtype=bool)
    absent[rows[rows >= 0]] = False
    if absent.any():
        notes.append(f"{int(absent.sum()):,} nodes have no row in {tables[0].name}: features missing")
    used = (rows >= 0) & (places >= 0)
    sums = pandas.Series(numbers[used]).groupby([rows[used], places[used]]).sum()
    if len(sums) < used.sum():
        notes.append(f"{int(used.sum()) - len(sums):,} features given more than once were added up")
    row, place = (sums.index.get_level_values(level).to_numpy(np.int64) for level in (0, 1))
    columns = tuple(Column(name, "sparse") for name in features)
    empty = np.broadcast_to(absent[:, None], (len(names), len(columns)))
    return ColumnValues(columns, row, place, sums.to_numpy(np.float32), empty)


def _long_blocks(table: Table, identity: str, index: NodeIndex) -> Iterator[tuple[NDArray[Any], ...]]:
    """Yield the number of the node, the feature and the value of each row, block by block."""
    if not 2 <= len(table.columns) <= 3:
        problem = f"{table.name}: it has the columns {quote_names(table.columns)}"
        expected = "a row for each feature of a node: node, feature and value, or no value for 1"
        raise PairNormError(problem, code="wrong-shape", value=len(table.columns), expected=expected)
    node = identity if identity in table.columns else table.columns[0]
    feature, value = (*(name for name in table.columns if name != node), None)[:2]
    assert feature is not None
    first = 0
    for block in read_blocks(table, () if index.is_whole else [node]):
        words, numbers = table.texts(feature, block[feature], first), np.ones(len(block), np.float32)
        if value is not None:
            read = table.numbers(value, block[value], first)
            numbers = np.full(len(block), np.nan, np.float32) if read is None else read
        for row in np.flatnonzero(pandas.isna(words) | np.isnan(numbers))[:1].tolist():
            problem = f"expected a feature in {quoted(feature)} and a number in {quoted(value)}"
            table.reject(first + row, problem, "empty-cell", hint="Fill it in or drop the row.")
        yield index.places(table, node, block[node], first), words, numbers
        first += len(block)


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
        more = "" if weight else "; --weight (weight=) takes edge weights from a column of numbers"
        more += "; --edge-columns (edge_columns=) computes features from them"
        table.notes.append(f"{columns} of {table.name}: not used{more}")


def header_is_edge(edges: Table, ends: EndpointColumns) -> bool:
    """Return whether the header of a table of edges, whose two titles are nodes, is an edge itself."""
    if edges.text is not None and edges.text.is_converted:  # pandas writes neither spaces nor comments
        return True
    if edges.text is None or (ends.guessed and ends[:2] == PANDAS_DEFAULT):
        line = quoted(("," if edges.text is None else edges.text.delimiter).join(("source", "target")))
        problem = f"{edges.name}: line 1 may be a header or an edge between the nodes "
        problem += " and ".join(map(quoted, ends[:2]))
        hint = f"If it is an edge, put a first line such as {line} above it; if it is a header, "
        hint += "name its columns."
        raise PairNormError(problem, code="header-missing", value=ends[:2], hint=hint)
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
    index, first, frames = NodeIndex(names, drop), 0, list[pandas.DataFrame]()
    pairs, weights = [np.zeros((2, 0), dtype=np.int64)], []
    # Whole numbers are read as such: that is several times faster than text.
    text = [*text, *(edges.padded() if columns else ())]
    for block in read_blocks(edges, text if names.dtype == np.int64 else [*text, *ends[:2]]):
        numbers = np.stack([index.places(edges, name, block[name], first) for name in ends[:2]])
        both = (numbers >= 0).all(0)
        pairs.append(numbers if both.all() else numbers[:, both])
        frames += [block.filter(list(columns), axis=1).iloc[np.flatnonzero(both)]] if columns else []
        weights += [] if weight is None else [_weights(edges, weight, block[weight], first)[both]]
        first += len(block)
    endpoints = np.concatenate(pairs, 1)
    if dropped := first - endpoints.shape[1]:
        edges.notes.append(
            f"{dropped:,} of {first:,} edges in {edges.name} were dropped, because an endpoint is not a "
            f"node, such as {index.unknown_example}"
        )
    table = pandas.concat(frames, ignore_index=True) if frames else None
    return endpoints, np.concatenate(weights) if weights else None, table


def _weights(edges: Table, name: str, column: pandas.Series, first: int) -> NDArray[np.float32]:
    """Return weights of edges; raise an error for one that is not positive."""
    values = edges.numbers(name, column, first)
    if values is None or not (values > 0).all():
        row = 0 if values is None else int((~(values > 0)).argmax())
        cell = edges.texts(name, column.iloc[row : row + 1], first + row)[0]
        problem = f"the weight in column {quoted(name)} is {quoted(cell)}"
        edges.reject(first + row, problem, "bad-weight", value=cell, expected="a positive number")
    return values


def read_tables(
    tables: Sequence[Sequence[Table]], options: ColumnOptions, known: Encoder | None
) -> dict[str, Any]:
    """Return the parts of a graph in tables of nodes, of edges, and of features."""
    nodes, edges, features = tables
    if known is not None and any(column.name.startswith("column ") for column in known.columns):
        has_number = {f"column {n + 1}" for n in range(len(known.columns))}.__contains__
        nodes = [
            without_header(table, "a node", [])
            if table.text is not None and table.has_header and not any(map(has_number, table.columns))
            else table
            for table in nodes
        ]
    ends = [find_endpoint_columns(table, options.source, options.target) for table in edges]
    for table, two in zip(edges, ends, strict=True):
        columns = options.aggregated(table.columns, (*two[:2], options.weight), known)
        note_unused_columns(table, two, options.weight, columns)
    names = endpoint_names(edges, ends) if options.unknown_edges == "add" else None
    parts: dict[str, Any] = {}
    try:
        parts = read_nodes(nodes, options, known, features, names)
        return add_edges(parts, edges, ends, options.weight, options, known)
    except PairNormError as error:
        if error.code == "unknown-node" and "id" in error.options:
            error.hint += _columns_that_fit(error.value, nodes, edges, parts.get("node_names", ()))
        raise


def _columns_that_fit(cell: object, nodes: Sequence[Table], edges: Sequence[Table], names: Any) -> str:
    """Name the columns of nodes that have a cell once, as ids would, and those of edges that hold names."""
    fitting, ids = list[tuple[str, list[str]]](), list(map(str, names))
    for table in (*nodes, *edges):
        rows = next(read_blocks(table, table.columns)).astype(str)
        is_id_here = rows.isin([str(cell)]).any() & (rows.nunique() == len(rows))
        fits = rows.isin(ids).mean() > 0.5 if any(table is edge_table for edge_table in edges) else is_id_here
        fitting.append((table.name, rows.columns[fits].tolist()))
    return "".join(
        f" {name} has such ids in {quote_names(columns, 5)}." for name, columns in fitting if columns
    )


def endpoint_names(edges: Sequence[Table], ends: Sequence[EndpointColumns]) -> pandas.Index:
    """Return the different names of nodes in tables of edges, as texts."""
    names = pandas.Index([], dtype=object)
    for table, two in zip(edges, ends, strict=True):
        for block in read_blocks(table, two[:2]):
            cells = np.concatenate([table.texts(name, block[name]) for name in two[:2]])
            names = names.append(pandas.Index(cells, dtype=object)).dropna().unique()
    return names


def add_edges(
    parts: dict[str, Any],
    tables: Sequence[Table],
    ends: Sequence[EndpointColumns],
    weight: str | None,
    options: ColumnOptions,
    known: Encoder | None,
) -> dict[str, Any]:
    """Return the parts of a graph with its edges, and the aggregates of their columns as features."""
    columns = options.aggregated(tables[0].columns, (*ends[0][:2], weight), known)
    expected = {} if known is None else {column.name: column for column in known.edge_columns}
    text = [name for name, column in expected.items() if column.kind == "category"]
    drop, names = options.unknown_edges in ("drop", "add"), parts["node_names"]
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
    frame, used = pandas.concat(frames, ignore_index=True), list[ColumnValues]()
    table = replace(tables[0], frame=frame, load=None, notes=[], _column_notes={})
    for name in frame.columns:
        values = read_column(table, name, frame[name], expected.get(name), options)
        (column,) = values.columns
        if known is None and len(column.categories) > MAX_EDGE_CATEGORIES:
            note = f"left out, because it holds {len(column.categories):,} different texts"
            table.add_column_note(note, name)
        elif column.kind != "ignored":
            used.append(values)
    aggregates, sums = aggregate_edges(used, parts["edge_index"], len(names))
    encoder = parts["encoder"]
    if known is None:
        edge_columns = tuple(values.columns[0] for values in used)
        all_columns = (*encoder.columns, *(Column(name, "edge") for name in aggregates))
        encoder = replace(encoder, columns=all_columns, edge_columns=edge_columns)
    features, missing = append_columns(parts["features"], parts["missing"], sums)
    notes = (*parts["notes"], *table.all_notes())
    return parts | {"features": features, "missing": missing, "encoder": encoder, "notes": notes}
