"""Tables of nodes become names, features, labels and a split, and an encoder tells what each column is."""

from __future__ import annotations

import re
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
from pairnorm.data.encoder import AGAIN, EACH, Column, Encoder, Kind, Options, check_categories, check_columns
from pairnorm.data.labels import (
    bin_names,
    binned,
    find_bins,
    numbers_first,
    read_labels,
    read_split,
)
from pairnorm.data.names import NodeIndex, alike, read_rows
from pairnorm.data.tables import BLANK, CODES, EMPTY, Source, are_codes, read_blocks, shown

if TYPE_CHECKING:
    import pandas


# Below this share of non-zeros a sparse tensor is both smaller and faster.
SPARSE_BELOW = 0.1
MOST_CATEGORIES = 1000
# Texts that are so many, and of which so many are different, are names: each would be a category of one node.
FEWEST_NAMES = 50
NAMES = 0.9
LEFT_OUT = "left out, for nearly all cells differ; --keep (in Python, keep=) takes it in"
# Texts that are numbers but for a sign before or a unit behind; fewer of them may well be categories.
WITH_UNIT = re.compile(r"[^\w\s]?\s?[+-]?\d[\d.,' ]*\s?([^\w\s]|[^\W\d_]{1,3})?")
FEWEST_WITH_UNIT = 20
# A column without a name is the index that pandas writes and, as it reads it, calls so.
CALLED_ID = re.compile(r"(^|_| )id$|^$|^Unnamed: \d+$", re.IGNORECASE)


def read_nodes(
    tables: Sequence[Source], told: Options, known: Encoder | None = None, long: Sequence[Source] = ()
) -> dict[str, Any]:
    """Return what tables of nodes tell of a graph: names, features, labels, split, and the encoder.

    Tables of an earlier encoder, ``known``, must have its columns, categories and classes; ``long`` ones hold
    node, feature and value.
    """
    columns = list(dict.fromkeys(name for table in tables for name in table.columns))
    everywhere = replace(tables[0], columns=tuple(columns))
    told.check(everywhere)
    told = told if known is None else known.options(told, columns)
    identity = columns[0] if told.id is None else everywhere.column("id", told.id)
    if told.split is not None and told.label is None:
        problem = f"split is {quoted(told.split)} but label is not given"
        raise PairNormError(problem, code="option-missing", hint="Name the column of the classes too.")
    roles = _roles(told, identity)
    chosen = [name for name in columns if name not in roles]
    if known is not None:
        check_columns(everywhere.name, chosen, known)
        chosen = [column.name for column in known.named("number", "category", "date")]

    as_text = [name for name in (identity, told.label, told.split, *told.categorical) if name is not None]
    as_text += [] if known is None else [column.name for column in known.named("category")]
    as_text += [name for table in tables for name in table.padded()]
    table, frame, node_names = read_rows(tables, identity, as_text)
    if len(frame) == 0:
        problem = f"{table.name}: there are no rows under the header"
        raise PairNormError(problem, code="no-rows", expected="a row per node")
    parts, bins = _read_classes(table, frame, told, known)
    classes = parts.get("class_names", ())
    read = list(_read_features(table, frame, chosen, told, known))
    left_out = [column for one in read for column in one.columns if column.kind == "ignored"]
    read = [one for one in read if one.columns[0].kind != "ignored"]
    for one in read:
        for place in np.flatnonzero(one.empty.all(0)):
            table.tell(BLANK, one.columns[place].name)
    if long or (known is not None and known.named("sparse")):
        read.append(_read_long(long, identity, node_names, told, known))
    parts["node_names"] = node_names
    parts["features"], parts["missing"] = _assemble(read, len(frame))
    rest = (Column(name, kind, classes if kind == "label" else ()) for name, kind in roles.items())
    encoder = known or Encoder(
        (*rest, *left_out, *(column for one in read for column in one.columns)),
        **{name: getattr(told, name) for name in AGAIN},
        bins=bins,
    )
    if encoder.named("structure"):  # they are made of the edges, later
        encoder = replace(encoder, columns=tuple(c for c in encoder.columns if c.kind != "structure"))
    _check_names(table.name, encoder)
    parts["encoder"] = encoder
    remarks = [*table.remarks(), *(remark for one in long for remark in one.remarks())]
    parts["notes"] = (*remarks, *alike(node_names), *_doubts(encoder, classes, told))
    return parts


def _roles(told: Options, identity: str) -> dict[str, Kind]:
    """Return what the columns are for that are no features."""
    named: tuple[tuple[str | None, Kind], ...] = (
        (told.split, "split"),
        (told.label, "label"),
        (identity, "id"),
    )
    ignored: dict[str, Kind] = dict.fromkeys(told.ignore, "ignored")
    return ignored | {column: kind for column, kind in named if column is not None}


def _read_classes(
    table: Source, frame: pandas.DataFrame, told: Options, known: Encoder | None
) -> tuple[dict[str, Any], tuple[float, ...]]:
    """Return labels, names of the classes and split, as far as they are told; and where numbers were cut."""
    parts: dict[str, Any] = {}
    bins = () if known is None else known.bins
    if told.label is not None:
        cells = frame[told.label]
        expected = None if known is None else next((c.categories for c in known.named("label")), None)
        if isinstance(told.classes, int):
            bins = find_bins(table, told.label, cells, told.classes)
        if bins:
            cells, expected = binned(table, told.label, cells, bins), expected or bin_names(bins)
        found = read_labels(table, told.label, cells, expected, told.classes == EACH)
        parts["labels"], parts["class_names"] = found
        # A text file does not tell numbers and texts apart: there they are read as ids are.
        parts["numbered"] = table.delimiter is not None or not any(isinstance(cell, str) for cell in cells)
        if told.split is not None:
            parts |= read_split(table, told.split, frame[told.split], *found)._asdict()
    return parts, bins


def _check_names(place: str, encoder: Encoder) -> None:
    wide = {column.name for column in encoder.named("number", "category", "date")}
    if twice := [column.name for column in encoder.named("sparse") if column.name in wide]:
        problem = f"{place}: {quoted(twice[0])} is a column, and a feature of the long table too"
        hint = "Rename one, or pass {ignore}."
        raise PairNormError(problem, code="duplicate-column", value=twice[0], hint=hint, ignore=twice[:1])


class _Read(NamedTuple):
    """Columns, their stored entries (row, place, value) among their features, and which cells are empty."""

    columns: tuple[Column, ...]
    rows: NDArray[np.int64]
    places: NDArray[np.int64]
    values: NDArray[np.float32]
    empty: NDArray[np.bool_]

    @property
    def widths(self) -> list[int]:
        return [column.width for column in self.columns]


def _read_features(
    table: Source, frame: pandas.DataFrame, names: Sequence[str], told: Options, known: Encoder | None
) -> Iterator[_Read]:
    """Read columns in order: each by itself, but plain numbers many at a time, for a table may be wide."""
    plain = {
        name for name, kind in frame.dtypes.items() if isinstance(kind, np.dtype) and kind.kind in "iufb"
    }
    plain -= {
        *told.categorical,
        *(() if known is None else (column.name for column in known.named("category", "date"))),
        *(() if known or len(frame) < FEWEST_NAMES else filter(CALLED_ID.search, names)),
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
                yield _read_column(table, name, frame[name], expected, told)


def _read_numbers(table: Source, frame: pandas.DataFrame) -> _Read:
    with np.errstate(over="ignore"):
        values = frame.to_numpy(dtype=np.float64).astype(np.float32)
    if (infinite := np.isinf(values).any(0)).any():
        name = frame.columns[int(infinite.argmax())]
        table.numbers(name, frame[name])  # says which cell
    empty = np.isnan(values)
    rows, places = np.nonzero(~empty & (values != 0))
    columns = tuple(Column(name, "number") for name in frame.columns)
    return _Read(columns, rows, places, values[rows, places], empty)


def _read_column(
    table: Source, name: str, cells: pandas.Series, known: Column | None, told: Options
) -> _Read:
    """Read a feature: numbers and dates as numbers, text one-hot, as it is known or as its cells tell."""
    import pandas

    free = not known and name not in (*told.categorical, *told.keep)
    wanted = known.kind if known else "category" if name in told.categorical else None
    coded = wanted is None and are_codes(cells)
    if free and _are_names(cells, coded):
        table.tell(LEFT_OUT, name)
        nothing = np.zeros(0, dtype=np.int64)
        return _Read((Column(name, "ignored"),), nothing, nothing, nothing.astype(np.float32), nothing > 0)
    if coded:
        table.tell(CODES, name)
        wanted = "category"
    if wanted is None and _are_numbered(cells):
        table.tell("numbers are read as categories, as their type says", name)
        wanted = "category"
    values, form = None, ""
    kind: Kind = "number"
    if wanted in (None, "number"):
        values = table.numbers(name, cells)
    if values is None and wanted in (None, "date"):
        dates, kind = table.dates(name, cells, known.form if known else ""), "date"
        values, form = (None, "") if dates is None else dates
    if values is None and wanted == "date" and cells.isna().all():
        values = np.full(len(cells), np.nan, dtype=np.float32)
    if values is not None:
        empty = np.isnan(values)
        rows = np.flatnonzero(~empty & (values != 0))
        column = known or Column(name, kind, form=form)
        return _Read((column,), rows, np.zeros_like(rows), values[rows], empty[:, None])
    text = table.text(name, cells)
    if known:
        found = pandas.unique(text[text != None])  # noqa: E711 (elementwise)
        check_categories(table.name, Column(name, "category", tuple(found)), known)
        categories = pandas.Index(known.categories, dtype=object)
        column, codes = known, categories.get_indexer(pandas.Index(text, dtype=object))
    else:
        codes, found = pandas.factorize(text, sort=True)
        column = Column(name, "category", tuple(found))
    if free and len(found) > MOST_CATEGORIES:
        raise PairNormError(
            f"{table.name}: column {quoted(name)} holds {len(found):,} different texts",
            code="too-many-categories",
            value=name,
            expected=f"at most {MOST_CATEGORIES:,} categories",
            hint="Pass {ignore}, or {keep} to have them all.",
            ignore=[name],
            keep=[name],
        )
    rows = np.flatnonzero(codes >= 0)
    ones = np.ones(len(rows), dtype=np.float32)
    return _Read((column,), rows, codes[rows].astype(np.int64), ones, codes[:, None] < 0)


def _are_numbered(cells: pandas.Series) -> bool:
    """Say whether cells are pandas' categories, and numbers: a text may be one only to save memory."""
    import pandas

    return isinstance(cells.dtype, pandas.CategoricalDtype) and cells.cat.categories.dtype.kind in "iuf"


def _are_names(cells: pandas.Series, coded: bool) -> bool:
    """Say whether texts or codes, or the whole numbers of a column called id, are nearly all different."""
    import pandas

    filled = cells.dropna()
    if len(filled) < FEWEST_NAMES or pandas.api.types.is_datetime64_any_dtype(cells.dtype):
        return False
    if pandas.api.types.is_numeric_dtype(cells.dtype):
        return bool((filled % 1 == 0).all() and filled.is_unique)
    words = filled[[isinstance(cell, str) for cell in filled]]
    if (different := words.nunique()) < NAMES * len(filled):
        return False
    if coded:
        return True
    lettered = int(words.str.contains(r"[^\W\d_]", regex=True).sum())
    numbers = int(pandas.to_numeric(words, errors="coerce").notna().sum())
    return are_names(len(filled), different, lettered, numbers)


def are_names(filled: int, different: int, lettered: int, numbers: int) -> bool:
    """Say whether texts are names, by how many differ, have a letter, and are numbers such as ``1e5``.

    A date, or a number with a comma, has no letter.
    """
    return (
        filled >= FEWEST_NAMES
        and min(different, lettered) >= NAMES * filled > 0
        and numbers <= (1 - NAMES) * filled
    )


def _read_long(
    tables: Sequence[Source], identity: str, names: NDArray[Any], told: Options, known: Encoder | None
) -> _Read:
    """Read tables of node, feature and value: a node without a row lacks all, else what is absent is 0."""
    import pandas

    if not tables:
        problem = "the model knows features of a long table"
        raise PairNormError(problem, code="option-missing", hint="Pass {features}.", features=...)
    index = NodeIndex(names, told.unknown_edges == "drop")
    nodes, words, values = [], [], []
    for table in tables:
        node, feature, value = _long_columns(table, identity)
        first = 0
        for block in read_blocks(table, () if names.dtype == np.int64 else [node]):
            text = table.text(feature, block[feature], first)
            number = np.ones(len(block), np.float32)
            if value is not None:
                found = table.numbers(value, block[value], first)
                number = np.full(len(block), np.nan, np.float32) if found is None else found
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
    if wide is not None and (strange := set(strings[places < 0])):
        note = f"{len(strange):,} features unknown to the model are left out: {shown(sorted(strange))}"
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
    return _Read(columns, row, place, sums.to_numpy(np.float32), empty)


def _long_columns(table: Source, identity: str) -> tuple[str, str, str | None]:
    if not 2 <= len(table.columns) <= 3:
        problem = f"{table.name}: it has the columns {shown(table.columns)}"
        expected = "a row for each feature of a node: node, feature and value, or no value for 1"
        raise PairNormError(problem, code="wrong-shape", value=len(table.columns), expected=expected)
    node = identity if identity in table.columns else table.columns[0]
    feature, *value = (name for name in table.columns if name != node)
    return node, feature, value[0] if value else None


def _assemble(read: Sequence[_Read], nodes: int) -> tuple[Tensor, Tensor]:
    """Return features [n, d], dense or sparse, and what is missing of them, bool [n] or [n, d]."""
    starts = np.cumsum([0, *(sum(one.widths) for one in read)])
    width, stored = int(starts[-1]), sum(len(one.values) for one in read)
    places = [one.places + start for one, start in zip(read, starts, strict=False)]
    if stored < SPARSE_BELOW * nodes * width:
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


def _doubts(encoder: Encoder, classes: Sequence[str], told: Options) -> tuple[str, ...]:
    """Return notes on what may not be meant: no features, texts that are nearly one, numbers or empty."""
    notes = []
    if not encoder.features:
        notes.append("there are no feature columns: fit takes degrees and other structure instead")
    # -1 and 1 may be meant, and so may any negative number beside others.
    minus = len(classes) > 2 and all(name.isdecimal() for name in classes if name != "-1")
    notes += [
        f"{quoted(name)} is read as a class; empty the cells if it means unknown"
        for name in classes
        if name in EMPTY or name.lower() == "unknown" or (minus and name == "-1")
    ]
    notes += alike(classes, "classes", "classes")
    for column in encoder.named("category"):
        notes += alike(column.categories, f"texts in column {quoted(column.name)}", "categories")
        if column.name not in (*told.categorical, *told.keep):
            notes += _like_numbers(column)
        for word in (word for word in column.categories if word in EMPTY):
            where = f"{word!r} in column {quoted(column.name)}"
            notes.append(f"{where} is read as a category; empty the cells if it means missing")
    return tuple(notes)


def _like_numbers(column: Column) -> list[str]:
    """Return a note where many categories are numbers but for a sign or a unit, as ``'$ 1,200'``."""
    texts = [word for word in column.categories if WITH_UNIT.fullmatch(word) and not word.isdecimal()]
    if len(texts) < max(FEWEST_WITH_UNIT, NAMES * len(column.categories)):
        return []
    where = f"{len(column.categories):,} texts in column {quoted(column.name)} are read as categories"
    return [f"{where}, though they look like numbers, as {quoted(texts[0])}; write plain numbers if they are"]
