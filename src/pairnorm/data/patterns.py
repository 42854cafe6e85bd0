"""Features that are missing not at random: masks that depend on the class, the degree or the value.

A draw without replacement, each candidate with the weight ratio^q for its quantile q from 0 to 1. The rate is
kept exactly, and what is missing at one rate is missing at every higher rate too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairnorm.data.features import stored_values
from pairnorm.data.missing import Missing, drawn
from pairnorm.data.random import Stream
from pairnorm.errors import real_number

if TYPE_CHECKING:
    from pairnorm.data.graph import Graph


def missing_by_class(
    graph: Graph, rate: float, trials: int = 1, seed: int = 0, ratio: float = 10.0
) -> Missing:
    """Draw missing vectors outside the training set, of some classes more often than of others.

    The classes stand in a random order, another in each trial; their weights rise geometrically. A node of
    unknown class has the weight in the middle.

    Args:
        graph: whose nodes; those in ``graph.train`` keep their vectors.
        rate: the fraction of nodes outside the training set, from 0 to 1.
        trials: how many masks; trial t depends on seed + t alone.
        seed: the same seed gives the same masks on every machine.
        ratio: the weight of the last class over that of the first; 1 for no difference.
    """
    labels = graph.labels.cpu().numpy()
    classes = max(int(labels.max(initial=-1)) + 1, 1)

    def quantile(stream: Stream) -> NDArray[np.float64]:
        place = stream.order(classes) / max(classes - 1, 1)
        return np.where(labels < 0, 0.5, place[labels])

    return _drawn("vectors", "class", ~graph.train, quantile, rate, trials, seed, ratio)


def missing_by_degree(
    graph: Graph, rate: float, trials: int = 1, seed: int = 0, ratio: float = 10.0
) -> Missing:
    """Draw missing vectors outside the training set, more often of nodes with few edges, as new ones are.

    Args:
        graph: whose nodes; those in ``graph.train`` keep their vectors.
        rate: the fraction of nodes outside the training set, from 0 to 1.
        trials: how many masks; trial t depends on seed + t alone.
        seed: the same seed gives the same masks on every machine.
        ratio: the weight of the lowest degree over that of the highest; below 1, hubs are drawn more often.
    """
    degree = graph.adjacency.crow_indices().diff().cpu().numpy()
    quantile = _quantiles(-degree, np.zeros_like(degree))
    return _drawn("vectors", "degree", ~graph.train, lambda _: quantile, rate, trials, seed, ratio)


def missing_by_value(
    graph: Graph, rate: float, trials: int = 1, seed: int = 0, ratio: float = 10.0
) -> Missing:
    """Draw single entries, more often the larger values of a column, as with incomes.

    Of sparse features the stored entries are drawn, for a zero that is lost stays zero. Where those of a
    column are all equal, as in a bag of words, none is drawn more often.

    Args:
        graph: whose features.
        rate: the fraction of entries, from 0 to 1.
        trials: how many masks; trial t depends on seed + t alone.
        seed: the same seed gives the same masks on every machine.
        ratio: the weight of a column's largest value over that of its smallest; below 1, small ones are drawn
            more often.
    """
    features, stored = graph.features, stored_values(graph.features).flatten()
    if features.layout == torch.sparse_csr:
        column = features.col_indices()
    else:
        column = torch.arange(graph.num_features, device=features.device).repeat(graph.num_nodes)
    quantile = _quantiles(stored.cpu().numpy(), column.cpu().numpy())
    among = torch.ones_like(stored, dtype=torch.bool)
    return _drawn("entries", "value", among, lambda _: quantile, rate, trials, seed, ratio)


def _quantiles(values: NDArray[Any], groups: NDArray[Any]) -> NDArray[np.float64]:
    """Return the fraction of a value's group that is smaller, half of its equals counted in."""
    order = np.lexsort((values, groups))
    values, groups = values[order], groups[order]
    new_group = np.append(True, groups[1:] != groups[:-1])[: len(order)]
    new_value = new_group | np.append(True, values[1:] != values[:-1])[: len(order)]
    first, beyond = _runs(new_value)
    start, end = _runs(new_group)
    quantile = np.empty(len(order))
    quantile[order] = ((first + beyond) / 2 - start) / (end - start)
    return quantile


def _runs(starts: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return for each element where its run starts, and where the next one does."""
    bounds = np.append(np.flatnonzero(starts), len(starts))
    run = np.cumsum(starts)
    return bounds[run - 1], bounds[run]


def _drawn(
    kind: str,
    by: str,
    among: Tensor,
    quantile: Callable[[Stream], NDArray[np.float64]],
    rate: float,
    trials: int,
    seed: int,
    ratio: float,
) -> Missing:
    real_number("ratio", ratio, above=0)

    def times(stream: Stream) -> NDArray[np.float64]:
        # The first of exponential times, at rates like the weights, are such a draw; and draws nest.
        weight = ratio ** quantile(stream)
        return -np.log1p(-stream.uniform(len(among))) / weight

    return drawn(kind, among, rate, trials, seed, f"missing by {by}", times)
