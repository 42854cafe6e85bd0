"""What candidates walk with: the normalized adjacency, filled features, and SGC's states, each made once."""

from __future__ import annotations

from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from pairnorm.data import Graph
from pairnorm.impute import impute
from pairnorm.nn import Mode, Normalization, PairNorm, SparseMatrix, normalized_adjacency, sgc_iterates

MANY_NODES = 100_000
# So many products make a step expensive: what comes of one is then kept, for those who need it again.
EXPENSIVE_STEP = 2**26
# Features up to this size, filled, are kept as long as they are: feature propagation takes 40 steps.
LARGEST_KEPT = 2**30
# States of walks with expensive steps: the oldest make room for new ones.
KEPT_STATES = 2 * 2**30


def has_many_nodes(graph: Graph) -> bool:
    """Say whether a graph has so many nodes that ``fit`` must be sparing with its steps."""
    return graph.num_nodes >= MANY_NODES


def is_expensive(graph: Graph, features: Tensor) -> bool:
    """Say whether a step over some columns takes so long that what comes of it is kept.

    Args:
        graph: whose edges.
        features: [n, d].
    """
    return has_many_nodes(graph) or 2 * graph.num_edges * features.shape[1] >= EXPENSIVE_STEP


def normalized(graph: Graph, kind: Normalization, device: torch.device) -> SparseMatrix:
    """Return ``normalized_adjacency`` of a graph's adjacency, made once.

    Args:
        graph: whose edges.
        kind: of propagation.
        device: where to walk.
    """
    kept: dict[tuple[str, torch.device], SparseMatrix] = _MATRICES.setdefault(graph.adjacency, {})
    if (kind, device) not in kept:
        kept[kind, device] = normalized_adjacency(graph.adjacency, kind).to(device)
    return kept[kind, device]


def filled(fill: str, graph: Graph, features: Tensor) -> Tensor:
    """Return features in which something stands in for what the graph misses.

    Args:
        fill: one of ``IMPUTATIONS``; ``"zero"`` is what scaled features have already.
        graph: whose edges, and what it misses.
        features: [n, d], scaled; or any columns of it where whole vectors are missing.
    """
    if fill == "zero" or not graph.missing.any():
        return features
    kept: dict[str, tuple[Tensor, Tensor, Tensor]] = kept_of(features, _FILLED)
    if fill in kept and kept[fill][0] is graph.adjacency and kept[fill][1] is graph.missing:
        return kept[fill][2]
    device = features.device
    result = impute(features, graph.missing.to(device), graph.adjacency.to(device), method=fill)
    if result.nbytes <= LARGEST_KEPT and is_expensive(graph, features):
        kept[fill] = (graph.adjacency, graph.missing, result)
    return result


def kept_of(features: Tensor, every: Any) -> dict[Any, Any]:
    """Return what is kept of some features; what was kept of others is forgotten, lest memory fill up.

    Args:
        features: of which something is made.
        every: what was made of features, by these.
    """
    if features not in every:
        every.clear()
        every[features] = {}
    found: dict[Any, Any] = every[features]
    return found


class SharedPropagation(NamedTuple):
    """A walk of SGC with PairNorm of scale one.

    Args:
        graph: whose edges, and what it misses.
        features: [n, d], scaled.
        fill: what stands in for what is missing.
        kind: of propagation.
        mode: of PairNorm, None without.
    """

    graph: Graph
    features: Tensor
    fill: str
    kind: Normalization
    mode: Mode | None

    def state(self, depth: int) -> Tensor:
        """Return the state of a depth, continuing from the deepest state that is cached."""
        norm = None if self.mode is None else PairNorm(1.0, self.mode)
        matrix, kept = normalized(self.graph, self.kind, self.features.device), self._kept()
        start = max((known for known in kept if known <= depth), default=None)
        if start is None:
            return self.keep(depth, _after(depth, filled(self.fill, self.graph, self.features), matrix, norm))
        if start == depth:
            return kept[depth]
        return self.keep(depth, _after(depth - start - 1, matrix @ kept[start], matrix, norm))

    def keep(self, depth: int, state: Tensor) -> Tensor:
        """Cache the state of a depth where propagation is expensive, and return it."""
        if is_expensive(self.graph, self.features) and state.shape == self.features.shape:
            every = kept_of(self.features, _STATES)
            every[self._key(depth)] = (self.graph.adjacency, self.graph.missing, state)
            while sum(one.nbytes for _, _, one in every.values()) > KEPT_STATES:
                del every[next(iter(every))]
        return state

    def _key(self, depth: int) -> tuple[Any, ...]:
        return self.fill, self.kind, self.mode, depth

    def _kept(self) -> dict[int, Tensor]:
        """Return the states that are kept of this walk, by depth."""
        graph, every = self.graph, _STATES.get(self.features, {})
        return {
            key[-1]: state
            for key, (adjacency, missing, state) in every.items()
            if key == self._key(key[-1]) and adjacency is graph.adjacency and missing is graph.missing
        }


def _after(steps: int, x: Tensor, matrix: SparseMatrix, norm: PairNorm | None) -> Tensor:
    return next(islice(sgc_iterates(x, matrix, norm), steps, None))


# By adjacency: normalized. By features: filled, and states of walks; with the graph that they are of.
_MATRICES: Any = WeakTensorKeyDictionary()
_FILLED: Any = WeakTensorKeyDictionary()
_STATES: Any = WeakTensorKeyDictionary()
