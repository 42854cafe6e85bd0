"""Fitting a graph to a model that was learnt on another: features and classes are matched by name."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairnorm.data import Graph
from pairnorm.errors import PairNormError


def align_features(graph: Graph, names: tuple[str, ...] | None, count: int) -> Graph:
    """Return the graph with the features of a model, in the model's order.

    A category that no node of this graph has becomes a column of zeros. A column that is not there, and a
    category or column that the model does not know, are errors that name it.

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
    found = {name: place for place, name in enumerate(graph.feature_names)}
    columns = {_column(name) for name in graph.feature_names}
    absent = [name for name in names if name not in found]
    lost = [name for name in absent if "=" not in name or _column(name) not in columns]
    if lost:
        close = get_close_matches(_column(lost[0]), columns - set(names), n=1)
        hint = f" Did you mean {close[0]!r}?" if close else " Add it; its cells may be empty."
        raise PairNormError(f"graph {graph.name!r} has no column {_shown(lost)}, which the model uses.{hint}")
    new = [name for name in graph.feature_names if name not in set(names)]
    if new:
        raise PairNormError(
            f"graph {graph.name!r} has {_describe(new, names)}, unknown to the model. {_remedy(new)}"
        )
    places = [found.get(name, -1) for name in names]
    return graph.replace(
        features=_columns_of(graph.features, places),
        missing=_missing_of(graph, names, places),
        feature_names=names,
    )


def _column(name: str) -> str:
    return name.partition("=")[0]


def _shown(names: Sequence[str], most: int = 3) -> str:
    columns = list(dict.fromkeys(_column(name) for name in names))
    more = f" and {len(columns) - most} more" if len(columns) > most else ""
    return ", ".join(map(repr, columns[:most])) + more


def _describe(new: Sequence[str], names: Sequence[str]) -> str:
    known = {_column(name) for name in names if "=" in name}
    column, _, category = new[0].partition("=")
    if "=" in new[0] and column in known:
        others = f" (and {len(new) - 1} more)" if len(new) > 1 else ""
        return f"a category {category!r} in column {column!r}{others}"
    return f"a column {_shown(new)}"


def _remedy(new: Sequence[str]) -> str:
    column, equals, _ = new[0].partition("=")
    if equals:
        return "Empty those cells, which counts as missing, or fit again with them."
    return f"Pass ignore=[{column!r}], or fit again with it."


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
    row, column = matrix.coords
    moved = csr_array((matrix.data, (row, new_place[column])), shape=(features.shape[0], len(places)))
    moved.sort_indices()
    return csr_tensor(moved).to(features.device)


def _missing_of(graph: Graph, names: Sequence[str], places: Sequence[int]) -> Tensor:
    """A category that nobody has is missing where the other categories of its column are."""
    if graph.missing.dim() == 1:
        return graph.missing
    known = {_column(name): place for name, place in zip(names, places, strict=True) if place >= 0}
    filled = [
        place if place >= 0 else known.get(_column(name), -1)
        for name, place in zip(names, places, strict=True)
    ]
    padded = torch.cat([graph.missing, graph.missing.new_zeros(graph.num_nodes, 1)], 1)
    return padded[:, torch.tensor(filled, device=graph.missing.device)]


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
