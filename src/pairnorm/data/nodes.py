"""Read tables of nodes: ids, labels, split; features, numbers as they are, dates as days, texts one-hot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from typing import Any, NoReturn

import numpy as np
import pandas
import torch
from numpy.typing import NDArray

from pairnorm.base.errors import PairNormError, quoted
from pairnorm.data.encoder import (
    EACH,
    Column,
    ColumnOptions,
    ColumnValues,
    Encoder,
    assemble,
    compare_categories,
    compare_columns,
    reject_dates,
)
from pairnorm.data.files import quote_names
from pairnorm.data.labels import (
    SPELLING,
    bin_codes,
    bin_names,
    class_sort_key,
    encoder_notes,
    find_bins,
    near_duplicate_notes,
    plain_form,
    plain_integers,
    read_labels,
    read_split,
)
from pairnorm.data.profile import (
    DATE_PATTERNS,
    EMPTY_NOTE,
    ID_NAME,
    MONTH_FIRST,
    parse_dates,
)
from pairnorm.data.tables import Table, read_blocks

NUMBERS_AT_ONCE = 10_000_000


def read_nodes(
    tables: Sequence[Table],
    options: ColumnOptions,
    known: Encoder | None = None,
    long: Sequence[Table] = (),
) -> dict[str, Any]:
    """Return what tables of nodes say of a graph: names, features, labels, split, and the encoder.

    Tables are read by an earlier encoder, ``known``, where there is one; ``long`` ones hold node, feature and
    value.
    """
    columns = list(dict.fromkeys(name for table in tables for name in table.columns))
    everywhere = replace(tables[0], columns=tuple(columns))
    options = options if known is None else known.options(options, columns)
    identity = options.check(everywhere)
    roles = options.roles(identity)
    chosen = [name for name in columns if name not in roles]
    differences: list[str] = []
    absent: list[str] = []
    as_text = [identity, *(name for option, name in options.named if option not in ("ignore", "keep"))]
    if known is not None:
        differences = compare_columns(everywhere.name, chosen, known, options.strict)
        there, chosen = set(chosen), [column.name for column in known.named("number", "category", "date")]
        absent = [name for name in chosen if name not in there]
        as_text += [column.name for column in known.named("category") if column.name not in absent]
    as_text += [name for table in tables for name in table.padded()]
    table, frame, node_names = read_rows(tables, identity, as_text)
    if len(frame) == 0:
        problem = "there are no rows under the header"
        table.reject(None, problem, code="no-rows", expected="a row per node")
    for name in absent:
        frame[name] = np.nan
    parts, bins = _read_classes(table, frame, options, known)
    classes = parts.get("class_names", ())
    read = list(read_columns(table, frame, chosen, options, known))
    left_out = [column for one in read for column in one.columns if column.kind == "ignored"]
    read = [one for one in read if one.columns[0].kind != "ignored"]
    for one in read:
        for place in np.flatnonzero(one.empty.all(0)):
            if one.columns[place].name not in absent:
                table.add_column_note(EMPTY_NOTE, one.columns[place].name)
    if long or (known is not None and known.named("sparse")):
        read.append(read_long(long, identity, node_names, options, known))
    rest = (Column(name, kind, classes if kind == "label" else ()) for name, kind in roles.items())
    encoder = known or Encoder(
        (*rest, *left_out, *(column for one in read for column in one.columns)),
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
    remarks = [*differences, *table.all_notes(), *(remark for one in long for remark in one.all_notes())]
    notes = (*remarks, *near_duplicate_notes(node_names), *encoder_notes(encoder, classes, options))
    return parts | {
        "node_names": node_names,
        "features": features,
        "missing": missing,
        "encoder": encoder,
        "notes": notes,
    }


def _read_classes(
    table: Table, frame: pandas.DataFrame, options: ColumnOptions, known: Encoder | None
) -> tuple[dict[str, Any], tuple[float, ...]]:
    """Return labels, class names and split, as far as columns are named, and the cuts of a numeric label."""
    bins = () if known is None else known.bins
    if options.label is None:
        return {}, bins
    cells = frame[options.label]
    expected = None if known is None else next((c.categories for c in known.named("label")), None)
    if isinstance(options.classes, int):
        bins = find_bins(table, options.label, cells, options.classes)
    values = table.numbers(options.label, cells) if bins else None
    if values is not None:
        labels, names = torch.from_numpy(bin_codes(values, bins)), expected or bin_names(bins)
    else:
        expected = expected or (bin_names(bins) if bins else None)
        each, merge = options.classes == EACH, bool(options.merge_classes)
        labels, names = read_labels(table, options.label, cells, expected, each, merge)
    # A text file does not distinguish numbers from texts: there they are read as ids are.
    numbered = table.text is not None or not any(isinstance(cell, str) for cell in cells)
    parts: dict[str, Any] = {"labels": labels, "class_names": names, "numbered": numbered}
    if options.split is not None:
        parts |= read_split(table, options.split, frame[options.split], labels, names)._asdict()
    return parts, bins


def read_columns(
    table: Table,
    frame: pandas.DataFrame,
    names: Sequence[str],
    options: ColumnOptions,
    known: Encoder | None = None,
) -> Iterator[ColumnValues]:
    """Read columns in order: each by itself, but plain numbers many at a time, for a table may be wide."""
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
        if known and known.kind != decision.kind and not np.isnan(read.values).all():
            texts = (str(cells.dropna().iloc[0]),) if decision.kind == "date" else ()
            own = Column(name, "category" if texts else "number", texts)
            compare_categories(table.name, own, known, options.strict)  # refuses it
        unread = distinct[np.isnan(parse_dates(distinct, form))] if form else ()
        if any(map(DATE_PATTERNS[MONTH_FIRST].fullmatch, unread)):
            reject_dates(table.name, name, form)
        narrow = table.to_float32(name, read.values, lenient=lenient)
        column = known or Column(name, decision.kind, form=decision.form)
        return ColumnValues.of_numbers((column,), narrow[:, None])
    column = known or Column(name, "category", tuple(sorted(distinct)))
    if known:
        here = Column(name, "category", tuple(distinct))
        if note := compare_categories(table.name, here, known, options.strict):
            table.notes.append(note)
    order = pandas.Index(column.categories, dtype=object).get_indexer(pandas.Index(distinct, dtype=object))
    codes = np.append(order, -1)[read.codes].astype(np.int64)
    rows = np.flatnonzero(codes >= 0)
    return ColumnValues((column,), rows, codes[rows], np.ones(len(rows), np.float32), codes[:, None] < 0)


def read_rows(
    tables: Sequence[Table], identity: str, text: Sequence[str]
) -> tuple[Table, pandas.DataFrame, NDArray[Any]]:
    """Read tables of nodes whole, put together by id: what one leaves empty, another may fill.

    Returns where the rows are from, the rows, and the names of the nodes.
    """
    frames, sources = [], list[Table]()
    for table in tables:
        table.column("id", identity)
        (frame,) = read_blocks(table, [name for name in text if name in table.columns], rows=None)
        source, frame = _drop_repeated_rows(table, identity, frame)
        if len(tables) == 1:
            return source, frame, node_names(source, identity, frame[identity])
        frames.append(frame.assign(**{identity: _check_ids(source, identity, frame[identity])}))
        sources.append(source)
    frame = pandas.concat(frames, ignore_index=True)
    places = [np.stack([np.full(len(one), table), np.arange(len(one))]) for table, one in enumerate(frames)]
    rows = np.concatenate(places, 1)
    columns = tuple(dict.fromkeys(name for table in tables for name in table.columns))
    name = " and ".join(table.name for table in tables) if len(tables) < 4 else f"{tables[0].name} and others"
    merged = Table(name, columns, frame, tables[0].text, decimal=tables[0].decimal, parts=(sources, rows))
    again = frame[identity].duplicated().to_numpy()
    if again.any():
        _check_agreement(merged, identity, frame)
        frame = frame.groupby(identity, sort=False, as_index=False).first()[list(columns)]
        merged = replace(merged, parts=(sources, rows[:, ~again]))
    merged.notes.extend(remark for table in tables for remark in table.all_notes())
    return replace(merged, frame=frame), frame, _whole_numbers(frame[identity].to_numpy(dtype=object))


def _drop_repeated_rows(
    table: Table, identity: str, frame: pandas.DataFrame
) -> tuple[Table, pandas.DataFrame]:
    """Return a table without rows that repeat another exactly, which are noted."""
    repeated = np.zeros(0, bool)
    with suppress(TypeError):  # cells that are lists are refused where they are read
        repeated = frame.duplicated().to_numpy() if frame[identity].duplicated().any() else repeated
    if not repeated.any():
        return table, frame
    table.notes.append(repeated_rows_note(table.name, int(repeated.sum())))
    rows = np.flatnonzero(~repeated)
    parts = (table,), np.stack([np.zeros_like(rows), rows])
    return replace(table, parts=parts), frame[~repeated].reset_index(drop=True)


def repeated_rows_note(name: str, count: int) -> str:
    """Return the note on rows that repeat another exactly."""
    return f"{count:,} {'row' if count == 1 else 'rows'} of {name} repeat another exactly: kept once"


def _check_agreement(merged: Table, identity: str, frame: pandas.DataFrame) -> None:
    """Raise an error where two tables say different things of one node."""
    several = frame[frame[identity].duplicated(keep=False)]
    for name in (name for name in merged.columns if name != identity):
        differing = several[[identity, name]].dropna().drop_duplicates()
        second = differing[identity].duplicated()
        if second.any():
            row = int(second.index[int(second.to_numpy().argmax())])
            node = differing[identity][row]
            cells = [quoted(str(cell)) for cell in differing[name][differing[identity] == node][:2]]
            problem = (
                f"{quoted(node)} has {cells[1]} in column {quoted(name)}, but {cells[0]} in another file"
            )
            merged.reject(row, problem, "conflicting-rows", value=node, hint="Correct one of them.")


def node_names(source: Table, name: str, column: pandas.Series) -> NDArray[Any]:
    """Return the names of the nodes: int64 where all are plainly written whole numbers, else strings."""
    return _whole_numbers(_check_ids(source, name, column))


def _check_ids(source: Table, name: str, column: pandas.Series) -> NDArray[np.object_]:
    """Return the names of nodes as texts, once each is known to have one of its own."""
    text = source.texts(name, column)
    empty = pandas.isna(text)
    if empty.any():
        row, hint = int(empty.argmax()), "Give every node a name of its own."
        source.reject(row, f"the id in column {quoted(name)} is empty", "empty-cell", value=name, hint=hint)
    again = pandas.Series(text).duplicated().to_numpy()
    if again.any():
        row = int(again.argmax())
        first = source.line(text.tolist().index(text[row]))
        problem = f"id {quoted(text[row])} was used before, in {first}"
        source.reject(
            row, problem, code="duplicate-id", value=text[row], hint="Give every node an id of its own."
        )
    return text


def _whole_numbers(text: NDArray[np.object_]) -> NDArray[Any]:
    whole = plain_integers(text)
    return text if whole is None else whole


def read_long(
    tables: Sequence[Table],
    identity: str,
    names: NDArray[Any],
    options: ColumnOptions,
    known: Encoder | None,
) -> ColumnValues:
    """Read tables of node, feature and value: a node without a row lacks all, else what is absent is 0."""
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
            notes.append(
                f"{len(unknown):,} features unknown to the model are left out: {quote_names(unknown)}"
            )
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


class NodeIndex:
    """The number of each node by its name.

    Args:
        names: of all nodes.
        drop: give -1 for what is not a node instead of an error; ``unknown_example`` is the first of those.
    """

    def __init__(self, names: NDArray[Any], drop: bool = False) -> None:
        self._index, self._drop, self.unknown_example = pandas.Index(names), drop, ""
        self.is_whole = names.dtype == np.int64

    def places(self, table: Table, name: str, column: pandas.Series, first: int = 0) -> NDArray[np.int64]:
        """Return the number of each named node. ``first`` is the number of the block's first row."""
        cells: Any = column
        index = self._index
        if not self.is_whole:
            cells = table.texts(name, column, first)
        elif not pandas.api.types.is_integer_dtype(column.dtype):
            # Something among these cells is no whole number; compared as text, it will be found and named.
            cells, index = table.texts(name, column, first), pandas.Index(index.astype(str), dtype=object)
        places: NDArray[np.int64] = index.get_indexer(cells)
        if (unknown := places < 0).any():
            row = int(unknown.argmax())
            cell = cells.iloc[row].item() if cells is column else cells[row]
            if not self._drop:
                self._refuse(table, name, cell, first + row, int(unknown.sum()), len(unknown))
            example = "an empty cell" if cell is None else quoted(cell) + self._hint(cell)
            self.unknown_example = self.unknown_example or example
        return places

    def _refuse(self, table: Table, name: str, cell: Any, row: int, unknown: int, cells: int) -> NoReturn:
        if cell is None:
            problem = f"column {quoted(name)} is empty; an edge needs two ends"
            table.reject(row, problem, "empty-cell", hint="Fill it in or drop the edge.")
        more = f" ({unknown:,} of {cells:,} cells are not)" if unknown > 1 else ""
        problem = f"{quoted(cell)} in column {quoted(name)} is not the id of a node{more}{self._hint(cell)}"
        if 1 < unknown == cells:
            problem += f"; nodes are called {quote_names([str(node) for node in self._index[:3]])}"
            hint = "Pass {id} if their ids are in another column, or name another column of the edges."
            table.reject(row, problem, code="unknown-node", value=cell, hint=hint, id=...)
        hint = "Add the node, name another column, or drop such rows with {unknown_edges}."
        table.reject(row, problem, code="unknown-node", value=cell, hint=hint, unknown_edges="drop")

    def _hint(self, cell: object) -> str:
        """Name the node whose id differs from a cell only in how it is written."""
        plain = plain_form(cell)
        close = next((node for node in self._index if plain_form(node) == plain), None)
        if close is None:
            return ""
        return f"; it differs from the node {quoted(close)} {SPELLING}"
