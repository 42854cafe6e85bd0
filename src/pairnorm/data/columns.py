"""Encode columns as features: numbers as they are, dates as days, texts one-hot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pandas
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairnorm.base.errors import quoted
from pairnorm.data.adjacency import csr_tensor
from pairnorm.data.encoder import Column, ColumnOptions, Encoder, compare_categories, reject_dates
from pairnorm.data.labels import near_duplicate_notes
from pairnorm.data.profile import (
    DATE_PATTERNS,
    EMPTY_NOTE,
    ID_NAME,
    MISSING_WORDS,
    MONTH_FIRST,
    decide_typed,
    parse_dates,
    parse_numbers,
    unit_note,
)
from pairnorm.data.tables import Table

# Below this share of non-zeros a sparse tensor is both smaller and faster.
MAX_SPARSE_DENSITY = 0.1
NUMBERS_AT_ONCE = 10_000_000


class ColumnValues(NamedTuple):
    """Columns, their stored entries (row, place, value) among their features, and which cells are empty."""

    columns: tuple[Column, ...]
    rows: NDArray[np.int64]
    places: NDArray[np.int64]
    values: NDArray[np.float32]
    empty: NDArray[np.bool_]

    @classmethod
    def of_numbers(cls, columns: tuple[Column, ...], values: NDArray[np.float32]) -> ColumnValues:
        """Store numbers, [rows, columns], NaN where empty."""
        empty = np.isnan(values)
        rows, places = np.nonzero(~empty & (values != 0))
        return cls(columns, rows, places, values[rows, places], empty)

    @property
    def widths(self) -> list[int]:
        """How many features each column makes."""
        return [column.width for column in self.columns]


def read_columns(
    table: Table,
    frame: pandas.DataFrame,
    names: Sequence[str],
    options: ColumnOptions,
    known: Encoder | None = None,
) -> Iterator[ColumnValues]:
    """Read columns in order: each by itself, but plain numbers many at a time, for a table may be wide."""
    plain = {
        name for name, kind in frame.dtypes.items() if isinstance(kind, np.dtype) and kind.kind in "iufb"
    }
    plain -= {
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
    if kind is None and _is_numeric_categorical(cells):
        table.add_column_note("numbers are read as categories, as their type says", name)
        kind = "category"
    typed = None if kind == "category" else table.typed(name, cells)
    if typed is not None:
        values = typed[1]
        decision = table.note(name, decide_typed(typed[0], name, None if known or keep else _counts(values)))
        if decision.kind == "ignored":
            return _ignored(name)
        own = Column(name, decision.kind)
        if known is None or known.kind == own.kind or np.isnan(values).all():
            narrow = table.to_float32(name, values, lenient=lenient)
            return ColumnValues.of_numbers((known or own,), narrow[:, None])
        compare_categories(table.name, own, known, options.strict)
    coded = table.profile(name, cells)
    texts = coded.profile.texts
    form = known.form if known else ""
    decision = table.decide(name, *coded, kind=kind, form=form, keep=keep, lenient=lenient)
    if decision.kind == "ignored":
        return _ignored(name)
    if decision.kind in ("number", "date"):
        is_date = decision.kind == "date"
        parsed = parse_dates(texts, decision.dates) if is_date else parse_numbers(texts, decision.numbers)
        if is_date and form and any(map(DATE_PATTERNS[MONTH_FIRST].fullmatch, texts[np.isnan(parsed)])):
            reject_dates(table.name, name, form)
        narrow = table.to_float32(name, coded.values(parsed), lenient=lenient)
        return ColumnValues.of_numbers(
            (known or Column(name, decision.kind, form=decision.form),), narrow[:, None]
        )
    column = known or Column(name, "category", tuple(sorted(texts)))
    if known:
        here = Column(name, "category", tuple(texts))
        if note := compare_categories(table.name, here, known, options.strict):
            table.notes.append(note)
    order = pandas.Index(column.categories, dtype=object).get_indexer(pandas.Index(texts, dtype=object))
    codes = np.append(order, -1)[coded.codes].astype(np.int64)
    rows = np.flatnonzero(codes >= 0)
    return ColumnValues((column,), rows, codes[rows], np.ones(len(rows), np.float32), codes[:, None] < 0)


def _counts(values: NDArray[np.float64]) -> Any:
    filled = values[~np.isnan(values)]
    return lambda: (len(filled), len(np.unique(filled)), int((filled != np.floor(filled)).sum()))


def _ignored(name: str) -> ColumnValues:
    nothing = np.zeros(0, dtype=np.int64)
    return ColumnValues((Column(name, "ignored"),), nothing, nothing, nothing.astype(np.float32), nothing > 0)


def _is_numeric_categorical(cells: pandas.Series) -> bool:
    """Return whether cells are pandas' categories of numbers; texts may be categories to save memory."""
    return isinstance(cells.dtype, pandas.CategoricalDtype) and cells.cat.categories.dtype.kind in "iuf"


def assemble(read: Sequence[ColumnValues], nodes: int) -> tuple[Tensor, Tensor]:
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


def note_empty_columns(table: Table, read: Sequence[ColumnValues], absent: Sequence[str]) -> None:
    """Note the columns of a table that have no filled cell."""
    for one in read:
        for place in np.flatnonzero(one.empty.all(0)):
            if one.columns[place].name not in absent:
                table.add_column_note(EMPTY_NOTE, one.columns[place].name)


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
