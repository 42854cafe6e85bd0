"""Which features are missing: masks of SSNC-MV, and those that depend on class, degree or value.

A mask is data and edits nothing. Not at random means a draw without replacement, each candidate with the
weight ratio^q for its quantile q from 0 to 1. The rate is exact, and what is missing at one rate is
missing at every higher rate too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairnorm.base.errors import PairNormError, one_of, real_number, whole_number
from pairnorm.data.features import SCALINGS, row_normalize, stored_rows, stored_values, with_values
from pairnorm.data.graph import Graph
from pairnorm.data.split import Stream


@dataclass(frozen=True, eq=False)
class Features:
    """Features shared by all trials, and which of them each trial keeps.

    Args:
        values: [n, d], scaled, dense or ``torch.sparse_csr``.
        keep: bool, what survives in each trial: [nnz, trials] (stored entries) where ``values`` is sparse;
            [n, trials] (whole rows) or [n, trials, d] (single entries) where it is dense.
    """

    values: Tensor
    keep: Tensor

    @property
    def trials(self) -> int:
        """How many trials there are."""
        return self.keep.shape[1]

    def trial(self, number: int) -> Tensor:
        """Return what one trial sees, [n, d], of the same kind as ``values``; what is erased is zero."""
        keep = self.keep[:, number]
        if self.values.layout == torch.sparse_csr:
            return with_values(self.values, self.values.values() * keep)
        return self.values * (keep if keep.dim() == 2 else keep[:, None])

    def dense(self) -> Tensor:
        """Return what every trial sees as one dense tensor, [n, trials, d]."""
        if self.values.layout == torch.sparse_csr:
            return torch.stack([self.trial(number).to_dense() for number in range(self.trials)], 1)
        return self.values[:, None] * (self.keep if self.keep.dim() == 3 else self.keep[..., None])


def features_after(graph: Graph, missing: Missing | None = None, scaling: str = "rows") -> Features:
    """Return a graph's features, scaled, then erased where missing. The graph is not changed.

    Args:
        graph: whose features.
        missing: what to erase, in each trial. Default: nothing, one trial.
        scaling: ``"rows"`` for ``row_normalize``, ``"none"`` for features as they are.
    """
    values, device = graph.features, graph.device
    if one_of("scaling", scaling, SCALINGS) == "rows":
        values = row_normalize(values)
    sparse = values.layout == torch.sparse_csr
    entries = values.values().numel() if sparse else values.numel()
    if missing is None:
        keep = torch.ones(entries if sparse else graph.num_nodes, 1, dtype=torch.bool, device=device)
        return Features(values, keep)

    keep = ~missing.mask.to(device)
    expected = entries if missing.kind == "entries" else graph.num_nodes
    if len(keep) != expected:
        problem = f"missing is about {len(keep):,} {missing.unit}, but graph {graph.name!r} has {expected:,}"
        raise PairNormError(problem, code="wrong-shape", value=len(keep), hint="Draw it again.")
    if sparse and missing.kind != "entries":
        keep = keep[stored_rows(values)]
    elif not sparse and missing.kind == "entries":
        keep = keep.view(graph.num_nodes, graph.num_features, -1).transpose(1, 2)
    return Features(values, keep)


@dataclass(frozen=True, eq=False, repr=False)
class Missing:
    """What is missing, in each trial.

    Args:
        kind: ``'vectors'`` (outside the training set), ``'nodes'`` (anywhere), ``'entries'``, or ``'given'``.
        rate: the fraction that is missing.
        seed: of trial 0; trial t was drawn with seed + t. None where nothing was drawn.
        mask: bool, True where missing: [n, trials], or [entries, trials] for ``'entries'``: the stored ones
            of sparse features, all n d of dense ones, row by row.
    """

    kind: str
    rate: float
    seed: int | None
    mask: Tensor

    @property
    def trials(self) -> int:
        """How many trials there are."""
        return self.mask.shape[1]

    @property
    def unit(self) -> str:
        """What the mask is about: nodes or entries."""
        return "entries" if self.kind == "entries" else "nodes"

    def __repr__(self) -> str:
        counts = self.mask.sum(0)
        low, high = (int(counts.min()), int(counts.max())) if len(counts) else (0, 0)
        count = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        return (
            f"Missing(kind={self.kind!r}, rate={self.rate:g}, seed={self.seed}, trials={self.trials}: "
            f"{count} of {len(self.mask):,} {self.unit})"
        )


def missing_vectors(graph: Graph, rate: float, trials: int = 1, seed: int = 0) -> Missing:
    """Draw the missing vectors of SSNC-MV: a fraction p = |M| / |V_u| of the nodes outside the training set.

    Trial t depends on seed + t alone. What is missing at one rate is missing at every higher rate too.

    Args:
        graph: whose nodes; those in ``graph.train`` keep their vectors.
        rate: p, from 0 to 1.
        trials: how many masks.
        seed: the same seed gives the same masks on every machine.
    """
    return _draw("vectors", ~graph.train, rate, trials, seed)


def missing_nodes(graph: Graph, rate: float, trials: int = 1, seed: int = 0) -> Missing:
    """Draw the nodes that lose their vectors from all nodes, those of the training set included.

    Args:
        graph: whose nodes.
        rate: the fraction of nodes, from 0 to 1.
        trials: how many masks.
        seed: the same seed gives the same masks on every machine.
    """
    return _draw("nodes", torch.ones_like(graph.train), rate, trials, seed)


def missing_entries(graph: Graph, rate: float, trials: int = 1, seed: int = 0) -> Missing:
    """Draw single entries: of sparse features among the stored ones, for a zero that is lost stays zero.

    Args:
        graph: whose features.
        rate: the fraction of entries, from 0 to 1.
        trials: how many masks.
        seed: the same seed gives the same masks on every machine.
    """
    stored = stored_values(graph.features).flatten()
    return _draw("entries", torch.ones_like(stored, dtype=torch.bool), rate, trials, seed)


def given_missing(graph: Graph, trials: int = 1) -> Missing:
    """Return the vectors that the data itself lacks. (Single entries it lacks are zero already.)

    Args:
        graph: whose nodes.
        trials: how often to repeat the mask.
    """
    mask = graph.missing_vectors
    rate = float(mask.double().mean()) if len(mask) else 0.0
    return Missing("given", rate, None, mask[:, None].repeat(1, whole_number("trials", trials, least=1)))


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

    return _draw("vectors", ~graph.train, rate, trials, seed, "class", ratio, quantile)


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
    return _draw("vectors", ~graph.train, rate, trials, seed, "degree", ratio, lambda _: quantile)


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
    return _draw("entries", among, rate, trials, seed, "value", ratio, lambda _: quantile)


def _draw(
    kind: str,
    among: Tensor,
    rate: float,
    trials: int,
    seed: int,
    by: str = "",
    ratio: float = 1.0,
    quantile: Callable[[Stream], NDArray[np.float64]] | None = None,
) -> Missing:
    """Mark the ``rate`` of candidates whose random keys are smallest, for each trial."""
    rate = real_number("rate", rate, least=0, most=1)
    real_number("ratio", ratio, above=0)
    candidates = np.flatnonzero(among.cpu().numpy())
    count = round(rate * len(candidates))
    mask = np.zeros((len(among), whole_number("trials", trials, least=1)), dtype=bool)
    for trial in range(trials):
        # Every node draws a key, so that the key of a node does not depend on who is in the training set.
        stream = Stream(seed + trial, f"missing by {by}" if by else f"missing {kind}")
        keys: NDArray[Any]
        if quantile is None:
            keys = stream.keys(len(among))
        else:
            # The first of exponential times, at rates like the weights, are such a draw; and draws nest.
            weight = ratio ** quantile(stream)
            keys = -np.log1p(-stream.uniform(len(among))) / weight
        mask[candidates[np.argsort(keys[candidates], kind="stable")[:count]], trial] = True
    return Missing(kind, rate, seed, torch.from_numpy(mask).to(among.device))


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
