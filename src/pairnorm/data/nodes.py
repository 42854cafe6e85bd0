"""Read tables of nodes: ids, features, labels, split, and the encoder that describes the columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairnorm.base.errors import PairNormError, quoted
from pairnorm.data.adjacency import csr_tensor
from pairnorm.data.encoder import (
    EACH,
    READING_OPTIONS,
    Column,
    ColumnOptions,
    Encoder,
    Kind,
    compare_categories,
    compare_columns,
)
from pairnorm.data.labels import bin_names, binned, find_bins, numbers_first, read_labels, read_split
from pairnorm.data.names import NodeIndex, near_duplicate_notes, read_rows
from pairnorm.data.profile import (
    DROPPED_NAMES,
    EMPTY_NOTE,
    ID_NAME,
    MIN_NAMES,
    MISSING_WORDS,
    is_row_id,
    parse_dates,
    parse_numbers,
    unit_note,
)
from pairnorm.data.tables import Source, read_blocks, reject_dates, shown

if TYPE_CHECKING:
    import pandas

# Below this share of non-zeros a sparse tensor is both smaller and faster.
MAX_SPARSE_DENSITY = 0.1


def read_nodes(
    tables: Sequence[Source],
    options: ColumnOptions,
    known: Encoder | None = None,
    long: Sequence[Source] = (),
) -> dict[str, Any]:
    """Return what tables of nodes tell of a graph: names, features, labels, split, and the encoder.

    Tables are read by an earlier encoder, ``known``, where there is one; ``long`` ones hold node, feature and
    value.
    """
    columns = list(dict.fromkeys(name for table in tables for name in table.columns))
    everywhere = replace(tables[0], columns=tuple(columns))
    options.check(everywhere)
    options = options if known is None else known.options(options, columns)
    identity = columns[0] if options.id is None else everywhere.column("id", options.id)
    if options.split is not None and options.label is None:
        problem = f"split is {quoted(options.split)} but label is not given"
        raise PairNormError(problem, code="option-missing", hint="Name the column of the classes too.")
    roles = _roles(options, identity)
    chosen = [name for name in columns if name not in roles]
    differences: list[str] = []
    absent: list[str] = []
    if known is not None:
        differences = compare_columns(everywhere.name, chosen, known, options.strict)
        there, chosen = set(chosen), [column.name for column in known.named("number", "category", "date")]
        absent = [name for name in chosen if name not in there]

    as_text = [
        name for name in (identity, options.label, options.split, *options.categorical) if name is not None
    ]
    as_text += [] if known is None else [c.name for c in known.named("category") if c.name not in absent]
    as_text += [name for table in tables for name in table.padded()]
    table, frame, node_names = read_rows(tables, identity, as_text)
    if len(frame) == 0:
        problem = f"{table.name}: there are no rows under the header"
        raise PairNormError(problem, code="no-rows", expected="a row per node")
    for name in absent:
        frame[name] = np.nan
    parts, bins = _read_classes(table, frame, options, known)
    classes = parts.get("class_names", ())
    read = list(_read_features(table, frame, chosen, options, known))
    left_out = [column for one in read for column in one.columns if column.kind == "ignored"]
    read = [one for one in read if one.columns[0].kind != "ignored"]
    for one in read:
        for place in np.flatnonzero(one.empty.all(0)):
            if one.columns[place].name not in absent:
                table.note_column(EMPTY_NOTE, one.columns[place].name)
    if long or (known is not None and known.named("sparse")):
        read.append(_read_long(long, identity, node_names, options, known))
    parts["node_names"] = node_names
    parts["features"], parts["missing"] = _assemble(read, len(frame))
    rest = (Column(name, kind, classes if kind == "label" else ()) for name, kind in roles.items())
    encoder = known or Encoder(
        (*rest, *left_out, *(column for one in read for column in one.columns)),
        **{name: getattr(options, name) for name in READING_OPTIONS},
        bins=bins,
    )
    if encoder.named("structure"):  # they are made of the edges, later
        encoder = replace(encoder, columns=tuple(c for c in encoder.columns if c.kind != "structure"))
    _check_names(table.name, encoder)
    parts["encoder"] = encoder
    remarks = [*differences, *table.all_notes(), *(remark for one in long for remark in one.all_notes())]
    parts["notes"] = (*remarks, *near_duplicate_notes(node_names), *encoder_notes(encoder, classes, options))
    return parts


def _roles(options: ColumnOptions, identity: str) -> dict[str, Kind]:
    """Return what the columns are for that are no features."""
    named: tuple[tuple[str | None, Kind], ...] = (
        (options.split, "split"),
        (options.label, "label"),
        (identity, "id"),
    )
    ignored: dict[str, Kind] = dict.fromkeys(options.ignore, "ignored")
    return ignored | {column: kind for column, kind in named if column is not None}


def _read_classes(
    table: Source, frame: pandas.DataFrame, options: ColumnOptions, known: Encoder | None
) -> tuple[dict[str, Any], tuple[float, ...]]:
    """Return labels, class names and split, as far as columns are named, and the cuts of a numeric label."""
    parts: dict[str, Any] = {}
    bins = () if known is None else known.bins
    if options.label is not None:
        cells = frame[options.label]
        expected = None if known is None else next((c.categories for c in known.named("label")), None)
        if isinstance(options.classes, int):
            bins = find_bins(table, options.label, cells, options.classes)
        if bins:
            cells, expected = binned(table, options.label, cells, bins), expected or bin_names(bins)
        each, merge = options.classes == EACH, bool(options.merge_classes)
        classes = read_labels(table, options.label, cells, expected, each, merge)
        parts["labels"], parts["class_names"] = classes
        # A text file does not tell numbers and texts apart: there they are read as ids are.
        parts["numbered"] = table.delimiter is not None or not any(isinstance(cell, str) for cell in cells)
        if options.split is not None:
            parts |= read_split(table, options.split, frame[options.split], *classes)._asdict()
    return parts, bins


def _check_names(place: str, encoder: Encoder) -> None:
    wide = {column.name for column in encoder.named("number", "category", "date")}
    if twice := [column.name for column in encoder.named("sparse") if column.name in wide]:
        problem = f"{place}: {quoted(twice[0])} is a column, and a feature of the long table too"
        hint = "Rename one, or pass {ignore}."
        raise PairNormError(problem, code="duplicate-column", value=twice[0], hint=hint, ignore=twice[:1])


class ColumnValues(NamedTuple):
    """Columns, their stored entries (row, place, value) among their features, and which cells are empty."""

    columns: tuple[Column, ...]
    rows: NDArray[np.int64]
    places: NDArray[np.int64]
    values: NDArray[np.float32]
    empty: NDArray[np.bool_]

    @property
    def widths(self) -> list[int]:
        """How many features each column makes."""
        return [column.width for column in self.columns]


def _read_features(
    table: Source,
    frame: pandas.DataFrame,
    names: Sequence[str],
    options: ColumnOptions,
    known: Encoder | None,
) -> Iterator[ColumnValues]:
    """Read columns in order: each by itself, but plain numbers many at a time, for a table may be wide."""
    plain = {
        name for name, kind in frame.dtypes.items() if isinstance(kind, np.dtype) and kind.kind in "iufb"
    }
    plain -= {
        *options.categorical,
        *(() if known is None else (column.name for column in known.named("category", "date"))),
        *(() if known or len(frame) < MIN_NAMES else filter(ID_NAME.search, names)),
    }
    step = max(1, 10_000_000 // len(frame))
    for together, run in groupby(names, plain.__contains__):
        group = list(run)
        if together:
            for start in range(0, len(group), step):
                yield _read_numbers(table, frame[group[start : start + step]])
        else:
            for name in group:
                expected = None if known is None else known.features[name]
                yield read_column(table, name, frame[name], expected, options)


def _read_numbers(table: Source, frame: pandas.DataFrame) -> ColumnValues:
    with np.errstate(over="ignore"):
        values = frame.to_numpy(dtype=np.float64).astype(np.float32)
    if (infinite := np.isinf(values).any(0)).any():
        name = frame.columns[int(infinite.argmax())]
        table.numbers(name, frame[name])  # says which cell
    empty = np.isnan(values)
    rows, places = np.nonzero(~empty & (values != 0))
    columns = tuple(Column(name, "number") for name in frame.columns)
    return ColumnValues(columns, rows, places, values[rows, places], empty)


def read_column(
    table: Source, name: str, cells: pandas.Series, known: Column | None, options: ColumnOptions
) -> ColumnValues:
    """Read a feature: numbers and dates as numbers, text one-hot; by the encoder, or by its profile."""
    import pandas

    kind = known.kind if known else "category" if name in options.categorical else None
    keep = name in options.keep
    if kind is None and _is_numeric_categorical(cells):
        table.note_column("numbers are read as categories, as their type says", name)
        kind = "category"
    values = None if kind == "category" else table.native_values(name, cells)
    if values is not None and known is None and not keep:
        filled = values[~np.isnan(values)]
        if is_row_id(name, len(filled), len(np.unique(filled)), bool((filled % 1 == 0).all())):
            return _ignored(table, name, DROPPED_NAMES)
    if values is not None:
        is_date = pandas.api.types.infer_dtype(cells).startswith("date")
        own = Column(name, "date" if is_date else "number")
        if known is None or known.kind == own.kind or np.isnan(values).all():
            return _numeric(known or own, table.to_float32(name, values))
        compare_categories(table.name, own, known, options.strict)
    profiled = table.profile(name, cells)
    texts = profiled.profile.texts
    decision = table.decide(name, profiled, kind=kind, form=known.form if known else "", keep=keep)
    if decision.kind == "ignored":
        return _ignored(table, name)
    if decision.kind == "number":
        values = table.to_float32(name, profiled.values(parse_numbers(texts, decision.numbers)))
        return _numeric(known or Column(name, "number"), values)
    if decision.kind == "date":
        values = profiled.values(parse_dates(texts, decision.dates)).astype(np.float32)
        if known and (np.isnan(values) & (profiled.codes >= 0)).any():
            reject_dates(table.name, name, known.form)
        return _numeric(known or Column(name, "date", form=decision.form), values)
    if known:
        here = Column(name, "category", tuple(texts))
        if note := compare_categories(table.name, here, known, options.strict):
            table.notes.append(note)
        column, order = (
            known,
            pandas.Index(known.categories, dtype=object).get_indexer(pandas.Index(texts, dtype=object)),
        )
    else:
        column = Column(name, "category", tuple(sorted(texts)))
        order = np.argsort(np.argsort(texts)) if len(texts) else np.zeros(0, np.int64)
    codes = np.append(order, -1)[profiled.codes].astype(np.int64)
    rows = np.flatnonzero(codes >= 0)
    return ColumnValues(
        (column,), rows, codes[rows], np.ones(len(rows), dtype=np.float32), codes[:, None] < 0
    )


def _numeric(column: Column, values: NDArray[np.float32]) -> ColumnValues:
    empty = np.isnan(values)
    rows = np.flatnonzero(~empty & (values != 0))
    return ColumnValues((column,), rows, np.zeros_like(rows), values[rows], empty[:, None])


def _ignored(table: Source, name: str, note: str = "") -> ColumnValues:
    if note:
        table.note_column(note, name)
    nothing = np.zeros(0, dtype=np.int64)
    return ColumnValues((Column(name, "ignored"),), nothing, nothing, nothing.astype(np.float32), nothing > 0)


def _is_numeric_categorical(cells: pandas.Series) -> bool:
    """Return whether cells are pandas' categories of numbers; texts may be categories to save memory."""
    import pandas

    return isinstance(cells.dtype, pandas.CategoricalDtype) and cells.cat.categories.dtype.kind in "iuf"


def _read_long(
    tables: Sequence[Source],
    identity: str,
    names: NDArray[Any],
    options: ColumnOptions,
    known: Encoder | None,
) -> ColumnValues:
    """Read tables of node, feature and value: a node without a row lacks all, else what is absent is 0."""
    import pandas

    if not tables:
        problem = "the model knows features of a long table"
        raise PairNormError(problem, code="option-missing", hint="Pass {features}.", features=...)
    index = NodeIndex(names, options.unknown_edges == "drop")
    nodes, words, values = [], [], []
    for table in tables:
        node, feature, value = _long_columns(table, identity)
        first = 0
        for block in read_blocks(table, () if names.dtype == np.int64 else [node]):
            text = table.text(feature, block[feature], first)
            number = np.ones(len(block), np.float32)
            if value is not None:
                numbers_read = table.numbers(value, block[value], first)
                number = np.full(len(block), np.nan, np.float32) if numbers_read is None else numbers_read
            for row in np.flatnonzero(pandas.isna(text) | np.isnan(number))[:1].tolist():
                problem = f"expected a feature in {quoted(feature)} and a number in {quoted(value)}"
                table.reject(first + row, problem, "empty-cell", hint="Fill it in or drop the row.")
            place = index.places(table, node, block[node], first)
            nodes.append(place)
            words.append(text)
            values.append(number)
            first += len(block)
    rows, strings, numbers = np.concatenate(nodes), np.concatenate(words), np.concatenate(values)
    wide = [column.name for column in known.named("sparse")] if known else None
    ordered = sorted(set(strings), key=numbers_first) if wide is None else wide
    places = pandas.Index(ordered, dtype=object).get_indexer(pandas.Index(strings, dtype=object))
    if wide is not None and (unknown := set(strings[places < 0])):
        note = f"{len(unknown):,} features unknown to the model are left out: {shown(sorted(unknown))}"
        tables[0].notes.append(note)
    absent = np.ones(len(names), dtype=bool)
    absent[rows[rows >= 0]] = False
    if absent.any():
        tables[0].notes.append(
            f"{int(absent.sum()):,} nodes have no row in {tables[0].name}: features missing"
        )
    used = (rows >= 0) & (places >= 0)
    sums = pandas.Series(numbers[used]).groupby([rows[used], places[used]]).sum()
    if len(sums) < used.sum():
        tables[0].notes.append(f"{int(used.sum()) - len(sums):,} features given more than once were added up")
    row, place = (sums.index.get_level_values(level).to_numpy(np.int64) for level in (0, 1))
    columns = tuple(Column(name, "sparse") for name in ordered)
    empty = np.broadcast_to(absent[:, None], (len(names), len(columns)))
    return ColumnValues(columns, row, place, sums.to_numpy(np.float32), empty)


def _long_columns(table: Source, identity: str) -> tuple[str, str, str | None]:
    if not 2 <= len(table.columns) <= 3:
        problem = f"{table.name}: it has the columns {shown(table.columns)}"
        expected = "a row for each feature of a node: node, feature and value, or no value for 1"
        raise PairNormError(problem, code="wrong-shape", value=len(table.columns), expected=expected)
    node = identity if identity in table.columns else table.columns[0]
    feature, *value = (name for name in table.columns if name != node)
    return node, feature, value[0] if value else None


def _assemble(read: Sequence[ColumnValues], nodes: int) -> tuple[Tensor, Tensor]:
    """Return features [n, d], dense or sparse, and what is missing of them, bool [n] or [n, d]."""
    starts = np.cumsum([0, *(sum(one.widths) for one in read)])
    width, stored = int(starts[-1]), sum(len(one.values) for one in read)
    places = [one.places + start for one, start in zip(read, starts, strict=False)]
    if stored < MAX_SPARSE_DENSITY * nodes * width:
        from scipy.sparse import coo_array

        rows, values = (np.concatenate([one[field] for one in read]) for field in (1, 3))
        matrix = coo_array((values, (rows, np.concatenate(places))), shape=(nodes, width)).tocsr()
        matrix.sort_indices()
        features = csr_tensor(matrix)
    else:
        dense = np.zeros((nodes, width), dtype=np.float32)
        for one, place in zip(read, places, strict=True):
            dense[one.rows, place] = one.values
        features = torch.from_numpy(dense)

    whole, partly = np.full(nodes, bool(read)), np.zeros(nodes, dtype=bool)
    for one in read:
        whole &= one.empty.all(1)
        partly |= one.empty.any(1)
    if (whole == partly).all():
        return features, torch.from_numpy(whole)
    entries = [np.repeat(one.empty, one.widths, axis=1) for one in read]
    return features, torch.from_numpy(np.concatenate(entries, 1))


def encoder_notes(encoder: Encoder, classes: Sequence[str], options: ColumnOptions) -> tuple[str, ...]:
    """Return notes on what may be unintended: no features, near-duplicates, numbers or missing values."""
    notes = []
    if not encoder.features:
        notes.append("there are no feature columns: fit takes degrees and other structure instead")
    # Classes -1 and 1 are plausible, and so is any negative number among others.
    minus = len(classes) > 2 and all(name.isdecimal() for name in classes if name != "-1")
    notes += [
        f"{quoted(name)} is read as a class; empty the cells if it means unknown"
        for name in classes
        if name in MISSING_WORDS or name.lower() == "unknown" or (minus and name == "-1")
    ]
    for column in encoder.named("category"):
        where = f"texts in column {quoted(column.name)}"
        notes += near_duplicate_notes(column.categories, where, "categories")
        if column.name not in (*options.categorical, *options.keep):
            notes += unit_note(column.name, column.categories)
        for word in (word for word in column.categories if word in MISSING_WORDS):
            where = f"{word!r} in column {quoted(column.name)}"
            notes.append(f"{where} is read as a category; empty the cells if it means missing")
    return tuple(notes)
