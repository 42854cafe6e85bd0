"""Fitting a graph to a model that was learnt on another: features and classes are matched by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairnorm.data.adjacency import csr_tensor
from pairnorm.data.split import Split
from pairnorm.data.tables import Source, as_text, numbers
from pairnorm.errors import PairNormError

if TYPE_CHECKING:
    import pandas

    from pairnorm.data.graph import Graph


PARTS = {"train": 0, "training": 0, "validation": 1, "valid": 1, "val": 1, "dev": 1, "test": 2}
# Below this share of non-zeros a sparse tensor is both smaller and faster.
SPARSE_BELOW = 0.1
MOST_CATEGORIES = 1000


@dataclass(frozen=True)
class NodeFeatures:
    """Features [n, d], what is missing of them (bool [n] or [n, d]), and the names of the d features."""

    values: Tensor
    missing: Tensor
    names: tuple[str, ...]


@dataclass(frozen=True)
class _Column:
    """A column's share of the features: its stored entries (row, place, value) and its empty cells."""

    names: tuple[str, ...]
    rows: NDArray[np.int64]
    places: NDArray[np.int64]
    values: NDArray[np.float32]
    empty: NDArray[np.bool_]


def read_features(
    source: Source, frame: pandas.DataFrame, names: Sequence[str], categorical: Sequence[str] = ()
) -> NodeFeatures:
    """Make features of columns: numbers as they are, text one-hot, empty cells zero and recorded as missing.

    Args:
        source: where the table is from, for messages.
        frame: the table.
        names: the columns that are features.
        categorical: those of them that are categories even if they look like numbers.
    """
    columns = [_read_column(source, name, frame[name], name in categorical) for name in names]
    nodes, width = len(frame), sum(len(column.names) for column in columns)
    stored = sum(len(column.values) for column in columns)
    starts = np.cumsum([0, *(len(column.names) for column in columns)])
    values = (_sparse if stored < SPARSE_BELOW * nodes * width else _dense)(columns, starts, nodes, width)
    feature_names = tuple(name for column in columns for name in column.names)
    return NodeFeatures(values, _missing(columns, starts, nodes, width), feature_names)


def _read_column(source: Source, name: str, column: pandas.Series, categorical: bool) -> _Column:
    values = None if categorical else numbers(source, name, column)
    if values is not None:
        empty = np.isnan(values)
        rows = np.flatnonzero(~empty & (values != 0))
        return _Column((name,), rows, np.zeros_like(rows), values[rows], empty)
    import pandas

    codes, found = pandas.factorize(as_text(column), sort=True)
    if len(found) > MOST_CATEGORIES and not categorical:
        raise PairNormError(
            f"{source.name}: column {name!r} holds {len(found):,} different texts, too many for categories. "
            f"Pass ignore=[{name!r}], or categorical=[{name!r}] to keep it."
        )
    rows = np.flatnonzero(codes >= 0)
    names = tuple(f"{name}={value}" for value in found)
    return _Column(names, rows, codes[rows].astype(np.int64), np.ones(len(rows), dtype=np.float32), codes < 0)


def _sparse(columns: list[_Column], starts: NDArray[np.int64], nodes: int, width: int) -> Tensor:
    from scipy.sparse import coo_array

    rows = np.concatenate([column.rows for column in columns])
    places = np.concatenate([column.places + start for column, start in zip(columns, starts, strict=False)])
    values = np.concatenate([column.values for column in columns])
    matrix = coo_array((values, (rows, places)), shape=(nodes, width)).tocsr()
    matrix.sort_indices()
    return csr_tensor(matrix)


def _dense(columns: list[_Column], starts: NDArray[np.int64], nodes: int, width: int) -> Tensor:
    matrix = np.zeros((nodes, width), dtype=np.float32)
    for column, start in zip(columns, starts, strict=False):
        matrix[column.rows, column.places + start] = column.values
    return torch.from_numpy(matrix)


def _missing(columns: list[_Column], starts: NDArray[np.int64], nodes: int, width: int) -> Tensor:
    empty_cells = np.zeros(nodes, dtype=np.int64)
    for column in columns:
        empty_cells += column.empty
    whole = (empty_cells == len(columns)) & bool(columns)
    if (whole == (empty_cells > 0)).all():
        return torch.from_numpy(whole)
    entries = np.zeros((nodes, width), dtype=bool)
    for column, start in zip(columns, starts, strict=False):
        entries[:, start : start + len(column.names)] = column.empty[:, None]
    return torch.from_numpy(entries)


def read_labels(source: Source, name: str, column: pandas.Series) -> tuple[Tensor, tuple[str, ...]]:
    """Return the class of each node, -1 where the cell is empty, and the names of the classes in order.

    Args:
        source: where the table is from, for messages.
        name: of the column.
        column: its cells.
    """
    import pandas

    codes, found = pandas.factorize(as_text(column))
    if len(found) == 0:
        raise PairNormError(
            f"{source.name}: no node has a label: column {name!r} is empty throughout. Label some nodes."
        )
    if len(found) == 1:
        raise PairNormError(
            f"{source.name}: column {name!r} holds one class only, {found[0]!r}. Label some of another."
        )
    names = sorted(found, key=_numbers_first)
    order = {value: place for place, value in enumerate(names)}
    places = np.array([*(order[value] for value in found), -1])
    return torch.from_numpy(places[codes].astype(np.int64)), tuple(names)


def _numbers_first(text: str) -> tuple[int, int, str]:
    """Sort '10' after '9', and words after numbers."""
    return (0, int(text), text) if text.isdecimal() and text.isascii() and len(text) < 19 else (1, 0, text)


def read_split(
    source: Source, name: str, column: pandas.Series, labels: Tensor, class_names: tuple[str, ...]
) -> dict[str, Any]:
    """Return the three masks that a column of 'train', 'validation', 'test' or nothing describes.

    Args:
        source: where the table is from, for messages.
        name: of the column.
        column: its cells.
        labels: int64 [n]; -1 where unknown.
        class_names: to name a class that has no training node.
    """
    text = as_text(column)
    parts = np.array(
        [-1 if value is None else PARTS.get(value.lower(), -2) for value in text], dtype=np.int64
    )
    if (parts == -2).any():
        row = int((parts == -2).argmax())
        source.reject(
            row, f"{text[row]!r} in column {name!r}; expected 'train', 'validation', 'test' or an empty cell."
        )
    blank = (parts >= 0) & (labels.numpy() < 0)
    if blank.any():
        row = int(blank.argmax())
        source.reject(
            row, f"the node is in {text[row]!r} but has no label. Label it, or empty its {name!r} cell."
        )
    counts = np.bincount(labels.numpy()[parts == 0], minlength=len(class_names))
    if (counts == 0).any():
        empty = class_names[int((counts == 0).argmax())]
        raise PairNormError(
            f"{source.name}: class {empty!r} has no training node. "
            f"Mark one of its nodes 'train' in column {name!r}."
        )
    masks = [torch.from_numpy(parts == number) for number in range(3)]
    return Split(*masks)._asdict()


def align_features(graph: Graph, names: tuple[str, ...] | None, count: int) -> Graph:
    """Return the graph with the features of a model, in the model's order.

    A category that no node of this graph has becomes a column of zeros, and so do all those of a column whose
    cells are all empty. A column that is not there, and a category or column that the model does not know,
    are errors that name it.

    Args:
        graph: the graph to predict for.
        names: of the model's features; None where they had none.
        count: how many the model has.
    """
    if names is None or graph.feature_names is None:
        if graph.num_features != count:
            raise PairNormError(
                f"graph {graph.name!r} has {graph.num_features} features; the model was fitted on {count}."
            )
        return graph
    if graph.feature_names == names:
        return graph
    # Of a column of categories any place will do: all of them are missing together.
    columns = {_column(name): place for place, name in enumerate(graph.feature_names)}
    lost = [_column(name) for name in names if _column(name) not in columns]
    if lost:
        close = get_close_matches(lost[0], columns.keys() - set(names), n=1)
        hint = f" Did you mean {close[0]!r}?" if close else " Add it; its cells may be empty."
        raise PairNormError(f"graph {graph.name!r} has no column {_shown(lost)}, which the model uses.{hint}")
    known, kinds = set(names), {_column(name): "=" in name for name in names}
    # A column whose cells are all empty is read as one of numbers, whatever it was before.
    empty = graph.missing.all(0).expand(graph.num_features).tolist()
    new = [
        name
        for name, nothing in zip(graph.feature_names, empty, strict=True)
        if name not in known and not (nothing and kinds.get(name))
    ]
    if new:
        raise PairNormError(f"graph {graph.name!r} has {_describe(new, kinds)}")
    found = {name: place for place, name in enumerate(graph.feature_names)}
    missing = graph.missing
    if missing.dim() == 2:
        missing = missing[:, [found.get(name, columns[_column(name)]) for name in names]]
    return graph.replace(
        features=_columns_of(graph.features, [found.get(name, -1) for name in names]),
        missing=missing,
        feature_names=names,
    )


def _column(name: str) -> str:
    return name.partition("=")[0]


def _shown(columns: Sequence[str], most: int = 3) -> str:
    columns = list(dict.fromkeys(columns))
    more = f" and {len(columns) - most} more" if len(columns) > most else ""
    return ", ".join(map(repr, columns[:most])) + more


def _describe(new: Sequence[str], kinds: Mapping[str, bool]) -> str:
    """Say what is new to a model whose columns are of categories (True) or of numbers, and what to do."""
    column, text, category = new[0].partition("=")
    if column not in kinds:
        others = [_column(name) for name in new if _column(name) not in kinds]
        remedy = f"Pass ignore=[{column!r}], or fit again with it."
        return f"a column {_shown(others)}, unknown to the model. {remedy}"
    if not text:
        what = f"numbers in column {column!r}, where the model knows categories."
    elif not kinds[column]:
        what = f"text such as {category!r} in column {column!r}, where the model knows numbers."
    else:
        others = [name for name in new[1:] if _column(name) == column]
        more = f" (and {len(others)} more)" if others else ""
        what = f"a category {category!r} in column {column!r}{more}, unknown to the model."
    return f"{what} Empty those cells, which counts as missing, or fit again with them."


def _columns_of(features: Tensor, places: Sequence[int]) -> Tensor:
    """Return the columns at ``places``; zeros for -1."""
    if features.layout != torch.sparse_csr:
        padded = torch.cat([features, features.new_zeros(len(features), 1)], 1)
        return padded[:, torch.tensor(places, device=features.device)]
    from scipy.sparse import csr_array

    from pairnorm.data.adjacency import csr_tensor

    pieces = [
        piece.cpu().numpy() for piece in (features.values(), features.col_indices(), features.crow_indices())
    ]
    new_place = np.full(features.shape[1], -1)
    known = np.asarray(places) >= 0
    new_place[np.asarray(places)[known]] = np.flatnonzero(known)
    matrix = csr_array(tuple(pieces), shape=tuple(features.shape)).tocoo()
    row, column = matrix.row, new_place[matrix.col]
    kept = column >= 0
    shape = (features.shape[0], len(places))
    moved = csr_array((matrix.data[kept], (row[kept], column[kept])), shape=shape)
    moved.sort_indices()
    return csr_tensor(moved).to(features.device)


def align_labels(graph: Graph, classes: NDArray[np.str_]) -> NDArray[np.int64]:
    """Return the labels of a graph as numbers of the model's classes, -1 where unknown.

    Args:
        graph: with classes by name.
        classes: the names of the model's.
    """
    place = {str(name): number for number, name in enumerate(classes)}
    labels = graph.labels.cpu().numpy()
    used = {graph.class_names[number] for number in np.unique(labels[labels >= 0])}
    if strange := sorted(used - place.keys()):
        raise PairNormError(
            f"graph {graph.name!r} has nodes of class {strange[0]!r}; the model knows "
            f"{', '.join(map(repr, map(str, classes[:7])))}. Correct the label, or fit again with it."
        )
    numbers = np.array([*(place.get(name, -1) for name in graph.class_names), -1])
    return np.asarray(numbers[labels])
