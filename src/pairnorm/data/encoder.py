"""What every column of a user's nodes is, so that later ones are read, or matched, as the first were."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairnorm.data.adjacency import csr_tensor
from pairnorm.data.features import take_columns
from pairnorm.data.split import Split
from pairnorm.data.tables import EMPTY, Source, node_names, read_blocks, shown
from pairnorm.errors import PairNormError, closest, one_of, quoted

if TYPE_CHECKING:
    import pandas


PARTS = {"train": 0, "training": 0, "validation": 1, "valid": 1, "val": 1, "dev": 1, "test": 2}
# Below this share of non-zeros a sparse tensor is both smaller and faster.
SPARSE_BELOW = 0.1
MOST_CATEGORIES = 1000
Kind = Literal["id", "label", "split", "ignored", "number", "category"]


@dataclass(frozen=True)
class Options:
    """What a user says of the columns of two tables; see ``Graph.from_files``."""

    id: str | None = None
    label: str | None = None
    split: str | None = None
    source: str | None = None
    target: str | None = None
    weight: str | None = None
    delimiter: str | None = None
    categorical: Sequence[str] = ()
    ignore: Sequence[str] = ()


@dataclass(frozen=True)
class Column:
    """A column of nodes.

    Args:
        name: as in the header.
        kind: what it is.
        categories: the texts that a category may be, or the names of the classes of a label.
    """

    name: str
    kind: Kind
    categories: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        one_of("kind", self.kind, get_args(Kind))

    @property
    def width(self) -> int:
        """How many features it makes."""
        return {"number": 1, "category": len(self.categories)}.get(self.kind, 0)


@dataclass(frozen=True)
class Encoder:
    """How a user's files were read: plain texts all through, so that it can be saved as JSON.

    Args:
        columns: of the nodes, in the order of their features.
        id: the column of ids, where the user named it. Default: the one of that kind, else the first.
        source: the column of edges with one end, where the user named it, as for all that follow.
        target: the other end.
        weight: the weights.
        delimiter: what separates cells.
    """

    columns: tuple[Column, ...]
    id: str | None = None
    source: str | None = None
    target: str | None = None
    weight: str | None = None
    delimiter: str | None = None

    @classmethod
    def of_numbers(cls, names: Sequence[str]) -> Self:
        """Return the encoder of features that have names, each a column of numbers."""
        return cls(tuple(Column(name, "number") for name in names))

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Self:
        """Return what ``dataclasses.asdict`` and JSON made a dictionary of."""
        columns = (Column(one["name"], one["kind"], tuple(one["categories"])) for one in found["columns"])
        return cls(**(found | {"columns": tuple(columns)}))

    @cached_property
    def features(self) -> dict[str, Column]:
        """The columns that are features, by name."""
        return {column.name: column for column in self.columns if column.kind in ("number", "category")}

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        """The name of each feature: ``age`` of a number, ``job=nurse`` of a category."""
        return tuple(
            column.name if value is None else f"{column.name}={value}"
            for column in self.features.values()
            for value in (column.categories if column.kind == "category" else (None,))
        )

    def named(self, *kinds: Kind) -> tuple[Column, ...]:
        """Return the columns of some kinds."""
        return tuple(column for column in self.columns if column.kind in kinds)

    def options(self, changed: Options, columns: Sequence[str]) -> Options:
        """Return how to read another file: as the first, but for what is said anew and what is not there.

        Args:
            changed: what is said anew; columns to ignore come beside the known ones.
            columns: of the nodes of that file.
        """
        if changed.categorical:
            raise PairNormError(
                "categorical is given, but the encoder knows what every column is",
                code="conflicting-options",
                value=list(changed.categorical),
                remedy="Leave it out, or fit again.",
            )
        known = set(columns)
        ids, labels, splits, ignored = (
            [column.name for column in self.named(kind) if column.name in known]
            for kind in ("id", "label", "split", "ignored")
        )
        return Options(
            id=changed.id or self.id or (ids[0] if ids else None),
            label=changed.label or (labels[0] if labels else None),
            split=changed.split,
            source=changed.source or self.source,
            target=changed.target or self.target,
            weight=changed.weight or self.weight,
            delimiter=changed.delimiter or self.delimiter,
            ignore=[*ignored, *splits, *labels, *changed.ignore],
        )


def read_nodes(table: Source, told: Options, known: Encoder | None = None) -> dict[str, Any]:
    """Return what a table of nodes tells of a graph: names, features, labels, split, and the encoder.

    Args:
        table: the nodes.
        told: what the user says of its columns.
        known: how an earlier table was read; this one must have its columns, categories and classes.
    """
    options: dict[str, Sequence[str | None]] = {
        "label": [told.label], "split": [told.split], "categorical": told.categorical, "ignore": told.ignore,
    }  # fmt: skip
    for option, names in options.items():
        for name in names:
            if name is not None:
                table.column(option, name)
    told = told if known is None else known.options(told, table.columns)
    identity = table.columns[0] if told.id is None else table.column("id", told.id)
    if told.split is not None and told.label is None:
        problem = f"split is {quoted(told.split)} but label is not given"
        raise PairNormError(problem, code="option-missing", remedy="Name the column of the classes too.")
    named: tuple[tuple[str | None, Kind], ...] = (
        (told.split, "split"),
        (told.label, "label"),
        (identity, "id"),
    )
    roles: dict[str, Kind] = dict.fromkeys(told.ignore, "ignored")
    roles |= {column: kind for column, kind in named if column is not None}
    chosen = [name for name in table.columns if name not in roles]
    if known is not None:
        _check_columns(table.name, chosen, known)
        chosen = list(known.features)

    as_text = [name for name in (identity, told.label, told.split, *told.categorical) if name is not None]
    as_text += [] if known is None else [column.name for column in known.named("category")]
    (frame,) = read_blocks(table, as_text, rows=None)
    if len(frame) == 0:
        raise PairNormError(
            f"{table.name}: there are no rows under the header", code="no-rows", expected="a row per node"
        )
    parts: dict[str, Any] = {"node_names": node_names(table, identity, frame[identity])}
    classes: tuple[str, ...] = ()
    if told.label is not None:
        expected = None if known is None else next((c.categories for c in known.named("label")), None)
        parts["labels"], classes = read_labels(table, told.label, frame[told.label], expected)
        parts["class_names"] = classes
    if told.split is not None:
        parts |= read_split(table, told.split, frame[told.split], parts["labels"], classes)._asdict()
    read = list(_read_features(table, frame, chosen, told.categorical, known))
    parts["features"], parts["missing"] = _assemble(read, len(frame))
    rest = (Column(name, kind, classes if kind == "label" else ()) for name, kind in roles.items())
    parts["encoder"] = known or Encoder(
        (*rest, *(column for one in read for column in one.columns)),
        *(told.id, told.source, told.target, told.weight, told.delimiter),
    )
    parts["notes"] = _doubts(parts["encoder"], classes)
    return parts


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
    table: Source,
    frame: pandas.DataFrame,
    names: Sequence[str],
    categorical: Sequence[str],
    known: Encoder | None,
) -> Iterator[_Read]:
    """Read columns in order: each by itself, but plain numbers many at a time, for a table may be wide."""
    plain = {
        name for name, kind in frame.dtypes.items() if isinstance(kind, np.dtype) and kind.kind in "iufb"
    }
    plain -= {*categorical, *(() if known is None else (column.name for column in known.named("category")))}
    step = max(1, 10_000_000 // len(frame))
    for together, run in groupby(names, plain.__contains__):
        group = list(run)
        if together:
            for start in range(0, len(group), step):
                yield _read_numbers(table, frame[group[start : start + step]])
        else:
            for name in group:
                expected = None if known is None else known.features[name]
                yield _read_column(table, name, frame[name], expected, name in categorical)


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
    table: Source, name: str, cells: pandas.Series, known: Column | None, categorical: bool
) -> _Read:
    """Read a feature: numbers as they are, text one-hot, as it is known or as its cells tell."""
    import pandas

    as_number = known.kind == "number" if known else not categorical
    values = table.numbers(name, cells) if as_number else None
    if values is not None:
        empty = np.isnan(values)
        rows = np.flatnonzero(~empty & (values != 0))
        return _Read((Column(name, "number"),), rows, np.zeros_like(rows), values[rows], empty[:, None])
    text = table.text(name, cells)
    if known:
        found = pandas.unique(text[text != None])  # noqa: E711 (elementwise)
        _check_categories(table.name, Column(name, "category", tuple(found)), known)
        column, codes = (
            known,
            pandas.Index(known.categories, dtype=object).get_indexer(pandas.Index(text, dtype=object)),
        )
    else:
        codes, found = pandas.factorize(text, sort=True)
        column = Column(name, "category", tuple(found))
    if not known and not categorical and len(found) > MOST_CATEGORIES:
        raise PairNormError(
            f"{table.name}: column {quoted(name)} holds {len(found):,} texts, too many for categories",
            code="too-many-categories",
            value=name,
            remedy="Pass {ignore}, or {categorical} to keep it.",
            ignore=[name],
            categorical=[name],
        )
    rows = np.flatnonzero(codes >= 0)
    ones = np.ones(len(rows), dtype=np.float32)
    return _Read((column,), rows, codes[rows].astype(np.int64), ones, codes[:, None] < 0)


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


def _doubts(encoder: Encoder, classes: Sequence[str]) -> tuple[str, ...]:
    """Return notes on what may not be meant: no features, and words that others write for an empty cell."""
    notes = [] if encoder.features else ["there are no feature columns"]
    notes += [
        f"{quoted(name)} is read as a class; empty the cells if it means unknown"
        for name in classes
        if name in EMPTY
    ]
    notes += [
        f"{word!r} in column {quoted(column.name)} is read as a category; empty the cells if it means missing"
        for column in encoder.named("category")
        for word in column.categories
        if word in EMPTY
    ]
    return tuple(notes)


def read_labels(
    table: Source, name: str, cells: pandas.Series, known: Sequence[str] | None = None
) -> tuple[Tensor, tuple[str, ...]]:
    """Return the class of each node, -1 where the cell is empty, and the names of the classes in order.

    Args:
        table: where the column is from, for messages.
        name: of the column.
        cells: its cells.
        known: the classes of a model; others are refused, and cells may all be empty.
    """
    import pandas

    text = table.text(name, cells)
    codes, found = pandas.factorize(text)
    if known is None and len(found) < 2:
        only = f"holds one class only, {quoted(found[0])}" if len(found) else "is empty throughout"
        problem = f"column {quoted(name)} {only}"
        raise PairNormError(
            f"{table.name}: {problem}" if len(found) else f"{table.name}: no node has a label: {problem}",
            code="too-few-classes",
            value=len(found),
            remedy="Label some of another." if len(found) else "Label some nodes.",
        )
    names = sorted(found, key=_numbers_first) if known is None else list(known)
    order = {value: place for place, value in enumerate(names)}
    if strange := [place for place, value in enumerate(found) if value not in order]:
        table.reject(
            int((codes == strange[0]).argmax()),
            f"class {quoted(found[strange[0]])} is unknown to the model, which has {shown(names, 7)}",
            code="unknown-class",
            value=found[strange[0]],
            remedy="Empty it or fit again.",
        )
    places = np.array([*(order[value] for value in found), -1])
    return torch.from_numpy(places[codes].astype(np.int64)), tuple(names)


def _numbers_first(text: str) -> tuple[int, int, str]:
    """Sort '10' after '9', and words after numbers."""
    return (0, int(text), text) if text.isdecimal() and text.isascii() and len(text) < 19 else (1, 0, text)


def read_split(
    table: Source, name: str, cells: pandas.Series, labels: Tensor, class_names: tuple[str, ...]
) -> Split:
    """Return the three masks that a column of 'train', 'validation', 'test' or nothing describes.

    Args:
        table: where the column is from, for messages.
        name: of the column.
        cells: its cells.
        labels: int64 [n]; -1 where unknown.
        class_names: to name a class that has no training node.
    """
    text = table.text(name, cells)
    parts = np.array(
        [-1 if value is None else PARTS.get(value.lower(), -2) for value in text], dtype=np.int64
    )
    if (parts == -2).any():
        row = int((parts == -2).argmax())
        table.reject(
            row,
            f"{quoted(text[row])} in column {quoted(name)}",
            code="unknown-part",
            value=text[row],
            expected="'train', 'validation', 'test' or an empty cell",
        )
    blank = (parts >= 0) & (labels.numpy() < 0)
    if blank.any():
        row = int(blank.argmax())
        problem = f"the node is in {quoted(text[row])} but has no label"
        table.reject(
            row, problem, code="label-missing", remedy=f"Label it, or empty its {quoted(name)} cell."
        )
    counts = np.bincount(labels.numpy()[parts == 0], minlength=len(class_names))
    if (counts == 0).any():
        empty = class_names[int((counts == 0).argmax())]
        raise PairNormError(
            f"{table.name}: class {quoted(empty)} has no training node",
            code="class-without-training",
            value=empty,
            remedy=f"Mark one of its nodes 'train' in column {quoted(name)}.",
        )
    return Split(*(torch.from_numpy(parts == number) for number in range(3)))


def _check_columns(place: str, found: Sequence[str], known: Encoder) -> None:
    """Raise an error that names the columns that a model lacks, or does not know."""
    there, wanted = set(found), known.features
    if lost := [name for name in wanted if name not in there]:
        raise PairNormError(
            f"{place} has no column {shown(lost)}, which the model uses",
            code="column-missing",
            value=lost[0],
            remedy=closest(lost[0], sorted(there - wanted.keys())) or "Add it; its cells may be empty.",
        )
    if strange := [name for name in found if name not in wanted]:
        raise PairNormError(
            f"{place} has a column {shown(strange)}, unknown to the model",
            code="unknown-column",
            value=strange[0],
            remedy="Pass {ignore}, or fit again with it.",
            ignore=strange[:1],
        )


def _check_categories(place: str, found: Column, known: Column) -> None:
    """Raise an error unless a column is of the kind that a model knows, and has no other categories."""
    name, strange = quoted(found.name), sorted(set(found.categories) - set(known.categories))
    if found.kind == "number" or (
        strange and _number(strange[0]) and not any(map(_number, known.categories))
    ):
        code, what = "numbers-for-categories", f"numbers in column {name}, where the model knows categories"
    elif not strange:
        return
    elif known.kind == "number":
        code = "text-for-numbers"
        what = f"text such as {quoted(strange[0])} in column {name}, where the model knows numbers"
    else:
        more = f" (and {len(strange) - 1} more)" if len(strange) > 1 else ""
        code = "unknown-category"
        what = f"a category {quoted(strange[0])} in column {name}{more}, unknown to the model"
    raise PairNormError(
        f"{place} has {what}",
        code=code,
        value=strange[0] if strange else found.name,
        remedy="Empty those cells, which counts as missing, or fit again with them.",
    )


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text not in EMPTY


def align_features(
    name: str, features: Tensor, missing: Tensor, found: Encoder, known: Encoder
) -> tuple[Tensor, Tensor]:
    """Return features, and what is missing of them, in the order of the features that a model knows.

    A category that no node has becomes a column of zeros, and so do all those of a column whose cells are
    all empty. A column that is not there, and a category or column that the model does not know, are errors.

    Args:
        name: of the graph, for messages.
        features: [n, d].
        missing: bool [n] or [n, d].
        found: what they are.
        known: what the model was fitted on.
    """
    _check_columns(name, list(found.features), known)
    widths = [column.width for column in found.features.values()]
    starts = dict(zip(found.features, np.cumsum([0, *widths]), strict=False))
    empty = missing.all(0).expand(features.shape[1]).tolist()
    places, lacking = [], []
    for column in known.features.values():
        here, start = found.features[column.name], int(starts[column.name])
        # A column whose cells are all empty is read as one of numbers, whatever it was before.
        blank = here.kind == "number" and column.kind == "category" and empty[start]
        if here.kind == column.kind == "number":
            places.append(start)
        else:
            if not blank:
                _check_categories(name, here, column)
            order = {value: start + place for place, value in enumerate(here.categories)}
            places += [order.get(value, -1) for value in column.categories]
        # Of a column of categories any place will do: all are missing together, and all where it has none.
        lacking += [start if here.width else -1] * column.width
    if missing.dim() == 2:
        missing = torch.cat([missing, missing.new_ones(len(missing), 1)], 1)[:, lacking]
    return take_columns(features, places), missing
