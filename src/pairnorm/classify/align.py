"""Fitting a graph to a model that was learnt on another: features and classes are matched by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairnorm.data import Graph
from pairnorm.errors import PairNormError


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
