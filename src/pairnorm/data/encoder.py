"""Describe the columns of a table of nodes, so that later tables are read and matched the same way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairnorm.base.errors import PairNormError, did_you_mean, one_of, quoted, whole_number
from pairnorm.data.adjacency import csr_matrix, csr_tensor
from pairnorm.data.files import check_encoding, quote_names
from pairnorm.data.profile import is_number

if TYPE_CHECKING:
    from pairnorm.data.tables import Table

EACH = "each"
# Below this share of non-zeros a sparse tensor is both smaller and faster.
MAX_SPARSE_DENSITY = 0.1
Kind = Literal["id", "label", "split", "ignored", "number", "category", "date", "sparse", "structure", "edge"]
FEATURES: tuple[Kind, ...] = ("number", "category", "date", "sparse", "structure", "edge")


@dataclass(frozen=True, kw_only=True)
class ReadingOptions:
    """Options of reading that later files take over from the first file, unless they are given again.

    Args:
        id: the column of ``nodes`` with their names. Default: the first.
        source: the column of ``edges`` with one end. Default: ``'source'``, else the first.
        target: the column with the other end. Default: ``'target'``, else the second.
        weight: the column of ``edges`` with their weights. Default: all weigh 1.
        delimiter: what separates cells of text, or ``'tab'``. Default: a comma, in ``.tsv`` a tab.
        edge_delimiter: separates the cells of ``edges``, where it differs. Edge lists separated by spaces,
            with comments (#) and without a header, are recognized.
        encoding: of text. Default: found by its bytes, and noted unless it is UTF-8.
        decimal: the decimal point of text, ``'.'`` or ``','``. Default: a point; where all cells of a column
            have a comma, that, and noted.
        unknown_edges: ``'add'`` to add nodes that only edges name, without label and features; ``'drop'`` to
            leave out such edges. Default: ``'error'``.
        merge_classes: merge classes that differ by case, spaces or one letter. Default: they are noted.
        unknown_label: words in the label column that mean an unknown class, as an empty cell does.
    """

    id: str | None = None
    source: str | None = None
    target: str | None = None
    weight: str | None = None
    delimiter: str | None = None
    edge_delimiter: str | None = None
    encoding: str | None = None
    decimal: str | None = None
    unknown_edges: str | None = None
    merge_classes: bool | None = None
    unknown_label: tuple[str, ...] = ()

    def reading_options(self) -> dict[str, Any]:
        """Return the options that apply to later files, by name."""
        return {item.name: getattr(self, item.name) for item in fields(ReadingOptions)}


@dataclass(frozen=True, kw_only=True)
class ColumnOptions(ReadingOptions):
    """Options for the columns of tables of nodes and edges.

    Args besides those of ``ReadingOptions``:
        label: the column of ``nodes`` with their classes; an empty cell is unknown. Default: no labels.
        split: the column of ``nodes`` that says train, validation or test. Default: no split.
        categorical: columns of ``nodes`` that are categories though they look like numbers.
        ignore: columns of ``nodes`` to leave out.
        keep: columns of ``nodes`` to take as categories though there are very many of them.
        edge_columns: columns of ``edges`` to aggregate to features of nodes (counts, sums and means, by
            category), or ``'auto'`` for all. Default: none.
        classes: how many classes of equal size to cut a label of numbers into, or ``'each'`` to take every
            number for a class. Default: many different numbers are refused.
        strict: refuse columns, categories and classes that differ from those of an encoder.
    """

    label: str | None = None
    split: str | None = None
    categorical: Sequence[str] = ()
    ignore: Sequence[str] = ()
    keep: Sequence[str] = ()
    edge_columns: Sequence[str] = ()
    classes: int | str | None = None
    strict: bool = False

    @classmethod
    def of(cls, options: Mapping[str, Any], allowed: Sequence[str] = ()) -> ColumnOptions:
        """Make options from a dictionary; raise an error for a name outside ``allowed`` (default: all)."""
        for option in options:
            one_of("an option", option, allowed or [field.name for field in fields(cls)])
        return cls(**options)

    def columns_of(self, role: str) -> list[str]:
        """Return the columns of tables of nodes, edges or features that the user named."""
        options = {"edges": ("source", "target", "weight"), "nodes": ("id", "label", "split")}.get(role, ())
        return [name for option in options if (name := getattr(self, option)) is not None]

    def aggregated(self, columns: Sequence[str], used: Sequence[Any], known: Encoder | None) -> list[str]:
        """Return the columns of edges to aggregate: those of a model, those named, or all others."""
        if known is not None:
            return [column.name for column in known.edge_columns]
        is_auto = tuple(self.edge_columns) == ("auto",)
        return [name for name in columns if name not in used] if is_auto else list(self.edge_columns)

    def __post_init__(self) -> None:
        for option in ("categorical", "ignore", "keep", "edge_columns", "unknown_label"):
            if isinstance(name := getattr(self, option), str):
                object.__setattr__(self, option, (name,))
        object.__setattr__(self, "unknown_label", tuple(self.unknown_label))
        if self.decimal is not None:
            one_of("decimal", self.decimal, (".", ","))
        if self.encoding is not None:
            check_encoding(self.encoding)
        if self.unknown_edges is not None:
            one_of("unknown_edges", self.unknown_edges, ("error", "drop", "add"))
        if self.classes is not None and self.classes != EACH:
            whole_number("classes", self.classes, least=2)

    @property
    def named(self) -> list[tuple[str, str]]:
        """The options that name columns of nodes, except the id, and these columns."""
        single = [(option, getattr(self, option)) for option in ("label", "split")]
        both = [(option, name) for option, name in single if name is not None]
        several = ("categorical", "ignore", "keep")
        return both + [(option, name) for option in several for name in getattr(self, option)]

    def check(self, nodes: Table) -> str:
        """Return the column of ids, or raise an error about a column that is named but not there."""
        for option, name in self.named:
            nodes.column(option, name)
        if self.split is not None and self.label is None:
            problem = f"split is {quoted(self.split)} but label is not given"
            raise PairNormError(problem, code="option-missing", hint="Name the column of the classes too.")
        return nodes.columns[0] if self.id is None else nodes.column("id", self.id)

    def roles(self, identity: str) -> dict[str, Kind]:
        """Return the kind of each column of nodes that is no feature."""
        roles: dict[Any, Any] = dict.fromkeys(self.ignore, "ignored")
        roles |= {self.split: "split", self.label: "label", identity: "id"}
        roles.pop(None, None)
        return roles

    def after(self, encoder: Encoder | None) -> ColumnOptions:
        """Return the options for a later file: those of the first file, overridden by options given again."""
        if encoder is None:
            return self
        earlier = encoder.reading_options()
        return replace(self, **{name: getattr(self, name) or earlier[name] for name in earlier})


@dataclass(frozen=True)
class Column:
    """A column of nodes.

    Args:
        name: as in the header.
        kind: what it is; ``'sparse'`` a feature of a long table, ``'structure'`` one made of the graph,
            ``'edge'`` one made of columns of edges.
        categories: the texts that a category may be, or the names of the classes of a label.
        form: how dates are written, where day and month could be taken for each other: ``'%d/%m/%Y'``.
    """

    name: str
    kind: Kind
    categories: tuple[str, ...] = ()
    form: str = ""

    def __post_init__(self) -> None:
        one_of("kind", self.kind, get_args(Kind))

    @property
    def width(self) -> int:
        """The number of features that the column becomes."""
        return len(self.categories) if self.kind == "category" else int(self.kind in FEATURES)


@dataclass(frozen=True)
class Encoder(ReadingOptions):
    """How the columns of a user's files become features; all plain texts, so that it can be saved as JSON.

    Args:
        columns: of the nodes, in the order of their features.
        bins: where a numeric label was cut into classes.
        edge_columns: the columns of edges that are aggregated to features of kind ``'edge'``.
    """

    columns: tuple[Column, ...]
    bins: tuple[float, ...] = ()
    edge_columns: tuple[Column, ...] = ()

    @cached_property
    def features(self) -> dict[str, Column]:
        """The columns that are features, by name."""
        return {column.name: column for column in self.columns if column.kind in FEATURES}

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        """The name of each feature: ``age`` of a number, ``job=nurse`` of a category."""
        return tuple(
            column.name if value is None else f"{column.name}={value}"
            for column in self.features.values()
            for value in (column.categories if column.kind == "category" else (None,))
        )

    def named(self, *kinds: Kind) -> tuple[Column, ...]:
        """Return the columns of the given kinds."""
        return tuple(column for column in self.columns if column.kind in kinds)

    def options(self, changed: ColumnOptions, columns: Sequence[str]) -> ColumnOptions:
        """Return the options for a later file: those of the first, with changes, without absent columns."""
        for option in ("categorical", "keep", "classes", "edge_columns"):
            if value := getattr(changed, option):
                problem = f"{option} is given, but the encoder knows what every column is"
                hint = "Leave it out, or fit again."
                raise PairNormError(problem, code="conflicting-options", value=value, hint=hint)
        known = set(columns)
        kinds: tuple[Kind, ...] = ("id", "label", "split", "ignored")
        ids, labels, splits, ignored = ([c.name for c in self.named(k) if c.name in known] for k in kinds)
        merged = changed.after(self)
        return replace(
            merged,
            id=merged.id or (ids[0] if ids else None),
            label=merged.label or (labels[0] if labels else None),
            ignore=[*ignored, *splits, *labels, *merged.ignore],
        )


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
        """The number of features of each column."""
        return [column.width for column in self.columns]


def assemble(blocks: Sequence[ColumnValues], nodes: int) -> tuple[Tensor, Tensor]:
    """Return features [n, d], dense or sparse, and their missing mask, bool [n] or [n, d]."""
    starts = np.cumsum([0, *(sum(block.widths) for block in blocks)])
    width, stored = int(starts[-1]), sum(len(block.values) for block in blocks)
    places = [block.places + start for block, start in zip(blocks, starts, strict=False)]
    if stored < MAX_SPARSE_DENSITY * nodes * width:
        from scipy.sparse import coo_array

        rows, values = (np.concatenate([block[field] for block in blocks]) for field in (1, 3))
        matrix = coo_array((values, (rows, np.concatenate(places))), shape=(nodes, width)).tocsr()
        matrix.sort_indices()
        features = csr_tensor(matrix)
    else:
        dense = np.zeros((nodes, width), dtype=np.float32)
        for block, place in zip(blocks, places, strict=True):
            dense[block.rows, place] = block.values
        features = torch.from_numpy(dense)

    all_empty, any_empty = np.full(nodes, bool(blocks)), np.zeros(nodes, dtype=bool)
    for block in blocks:
        all_empty &= block.empty.all(1)
        any_empty |= block.empty.any(1)
    if (all_empty == any_empty).all():
        return features, torch.from_numpy(all_empty)
    entries = [np.repeat(block.empty, block.widths, axis=1) for block in blocks]
    return features, torch.from_numpy(np.concatenate(entries, 1))


def compare_columns(place: str, names: Sequence[str], known: Encoder, strict: bool) -> list[str]:
    """Return a note for columns that a model uses and a table lacks, and for those that it does not know.

    Absent columns are imputed and unknown ones ignored. Raises an error that names them where ``strict``, or
    where no column of the model is there.
    """
    there, notes = set(names), []
    expected = {column.name: column for column in known.named("number", "category", "date")}
    unknown = [name for name in names if name not in expected]
    if absent := [name for name in expected if name not in there]:
        problem = f"{place} has no column {quote_names(absent)}, which the model uses"
        hint = did_you_mean(absent[0], unknown)
        if strict or len(absent) == len(expected):
            hint = hint or "Add it; its cells may be empty."
            raise PairNormError(problem, code="column-missing", value=absent[0], hint=hint)
        notes.append(f"{problem}: imputed. {hint}".strip())
    if unknown:
        problem = f"{place} has a column {quote_names(unknown)}, unknown to the model"
        if strict:
            hint, first = "Pass {ignore}, or fit again with it.", unknown[0]
            raise PairNormError(problem, code="unknown-column", value=first, hint=hint, ignore=[first])
        notes.append(f"{problem}: ignored")
    return notes


def compare_categories(place: str, column: Column, known: Column, strict: bool) -> str:
    """Return a note on categories that a model does not know, which count as missing; empty for none.

    Raises an error where the column is of another kind and, where ``strict``, for unknown categories.
    """
    name, unknown = quoted(column.name), sorted(set(column.categories) - set(known.categories))
    if column.kind == "date":
        code, kind = "text-for-numbers", "numbers" if known.width == 1 else "texts"
        content = f"dates in column {name}, where the model knows {kind}"
    elif column.kind == "number" or (
        unknown and is_number(unknown[0]) and not any(map(is_number, known.categories))
    ):
        content = f"numbers in column {name}, where the model knows categories"
        code = "numbers-for-categories"
    elif not unknown:
        return ""
    elif known.kind == "number":
        code = "text-for-numbers"
        content = f"text such as {quoted(unknown[0])} in column {name}, where the model knows numbers"
    else:
        more = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
        code = "unknown-category"
        content = f"a category {quoted(unknown[0])} in column {name}{more}, unknown to the model"
        if not strict:
            return f"{place} has {content}: such cells count as missing"
    problem = f"{place} has {content}"
    hint = "Empty those cells, which counts as missing, or fit again with them."
    raise PairNormError(problem, code=code, value=unknown[0] if unknown else column.name, hint=hint)


def reject_dates(place: str, name: str, form: str) -> NoReturn:
    """Raise an error about dates whose day and month are in another order than those of a model."""
    problem = f"{place}: the dates in column {quoted(name)} are not written as the model knows them"
    expected = f"{'day' if form.startswith('%d') else 'month'} first ({form})"
    hint = "Write them so, or fit again."
    raise PairNormError(problem, code="other-dates", value=name, expected=expected, hint=hint)


def conform(place: str, values: ColumnValues, known: Column, strict: bool) -> tuple[ColumnValues, list[str]]:
    """Return the values of a column as a model has it, and a note on unknown categories: missing."""
    (column,), is_blank = values.columns, bool(values.empty.all())
    if known.kind == "date" and column.form and known.form and column.form != known.form:
        reject_dates(place, known.name, known.form)
    # A column whose cells are all empty is read as numbers, even if it was not before.
    if known.kind != "category" and (column.kind == known.kind or is_blank):
        return values._replace(columns=(known,)), []
    note = "" if is_blank else compare_categories(place, column, known, strict)
    numbers = {text: number for number, text in enumerate(known.categories)}
    codes = np.array([numbers.get(text, -1) for text in column.categories], np.int64)[values.places]
    is_known, empty = codes >= 0, values.empty.copy()
    empty[values.rows[~is_known]] = True
    values = ColumnValues((known,), values.rows[is_known], codes[is_known], values.values[is_known], empty)
    return values, [note] if note else []


def align_features(
    name: str, features: Tensor, missing: Tensor, current: Encoder, known: Encoder, strict: bool = False
) -> tuple[Tensor, Tensor, list[str]]:
    """Return features, their missing mask and notes, in the order of the features that a model knows.

    A category that no node has becomes a column of zeros, and so do all those of a column whose cells are
    all empty. An absent column and cells of unknown categories are missing; unknown columns are left out.
    """
    from scipy.sparse import csc_array

    notes = compare_columns(
        name, [column.name for column in current.named("number", "category", "date")], known, strict
    )
    ends = np.cumsum([column.width for column in current.features.values()])
    stops = dict(zip(current.features, ends.tolist(), strict=True))
    is_sparse = features.layout == torch.sparse_csr
    matrix = csc_array(csr_matrix(features) if is_sparse else features.cpu().numpy())
    entries = (missing if missing.dim() == 2 else missing[:, None].expand(features.shape)).cpu().numpy()
    everywhere, blocks = np.ones((len(entries), 1), bool), []
    for column in known.features.values():
        here, nothing = current.features.get(column.name), np.empty(0, np.int64)
        if here is None:  # a word of a long table that no node has is zero
            words = [stops[word.name] for word in current.named("sparse")] if column.kind == "sparse" else []
            empty = entries[:, words[0] - 1 : words[0]] if words else everywhere
            blocks.append(ColumnValues((column,), nothing, nothing, nothing.astype(np.float32), empty))
            continue
        stop = stops[here.name]
        cells = matrix[:, stop - here.width : stop].tocoo()
        rows, places = (axis.astype(np.int64) for axis in cells.coords)
        # All entries of a column of categories are missing together, and all where it has none.
        empty = entries[:, stop - 1 : stop] if here.width else everywhere
        values, more = conform(name, ColumnValues((here,), rows, places, cells.data, empty), column, strict)
        blocks.append(values)
        notes += more
    features, missing = (part.to(features.device) for part in assemble(blocks, len(entries)))
    return features, missing, notes


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
    for block in columns:
        (column,), name = block.columns, block.columns[0].name
        if column.kind == "category":
            codes = np.full(len(source), -1)
            codes[block.rows] = block.places
            indicators |= {f"{name}={text}": codes == place for place, text in enumerate(column.categories)}
            continue
        values = np.zeros(len(source))
        values[block.rows] = block.values
        sums, counts = total(values), total(~block.empty[:, 0])
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
