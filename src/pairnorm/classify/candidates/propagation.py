"""Propagation of features for an SGC, with PairNorm's statistics of the nodes that it was fitted on."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from pairnorm.classify.candidates.candidate import SavedState
from pairnorm.classify.candidates.prepared import PreparedGraph
from pairnorm.classify.regression import span
from pairnorm.nn import Mode, Normalization
from pairnorm.nn.ops.pair_norm import normalize_by

EPS = 1e-6
MIN_SHARE_PRESENT = 0.9
"""Share of the fitted nodes that a graph must hold for their statistics to be measured in it."""


class NormStatistics(NamedTuple):
    """The statistics of every normalization of an SGC, of the input and after every step, or of a network.

    In a graph that still holds the fitted nodes, the statistics are measured on these nodes again, so that a
    shift that all nodes share cancels; deep propagation would amplify it. Other graphs are normalized by the
    stored values. Either way the prediction of a node does not depend on which new nodes come with it.

    Args:
        centers: [depth + 1, d], the means that are subtracted; [depth - 1, models, hidden] of a network.
        mean_squares: [depth + 1], the mean squared row lengths after centering, which only ``PN`` uses;
            [depth - 1, models, 1] of a network.
        nodes: int64 [n], fingerprints of the nodes that they are the statistics of.
    """

    centers: Tensor
    mean_squares: Tensor
    nodes: Tensor

    @classmethod
    def restore(cls, saved: SavedState, length: int, width: int, *models: int) -> Self:
        """Read the tensors ``centers``, ``mean_squares`` and ``nodes`` of a saved model, of these shapes."""
        squares = saved.tensor("mean_squares", length, *models, *(1 for _ in models))
        if not (squares >= 0).all():
            raise ValueError("a mean square is negative")
        nodes = saved.tensors["nodes"]
        if nodes.dim() != 1 or nodes.dtype != torch.int64:
            raise ValueError("nodes are not fingerprints")
        return cls(saved.tensor("centers", length, *models, width), squares, nodes)

    def fitted_rows(self, prepared: PreparedGraph) -> tuple[Tensor, bool]:
        """Return which nodes of a graph were fitted on, bool [n], and whether these are all its nodes."""
        fitted = torch.from_numpy(np.isin(prepared.node_fingerprints, self.nodes.numpy()))
        return fitted, bool(fitted.all()) and len(fitted) == len(self.nodes)

    def are_measurable(self, fitted: Tensor) -> bool:
        """Return whether enough of the fitted nodes are in a graph to measure the statistics in it."""
        return int(fitted.sum()) >= MIN_SHARE_PRESENT * len(self.nodes)


class Propagation(NamedTuple):
    """How an SGC propagates features: imputed, then averaged over neighbors and normalized in every step.

    Args:
        method: of the imputation of missing features.
        normalization: of the adjacency.
        mode: of PairNorm, None without a norm.
        scale: of PairNorm: one for all modes that commute with it, which are all but PN-SCS.
    """

    method: str
    normalization: Normalization
    mode: Mode | None
    scale: float = 1.0

    def state(self, prepared: PreparedGraph, depth: int) -> Tensor:
        """Return the reduced features after some propagation steps: [n, r].

        It continues from the deepest state in the cache, and caches the statistics of every step.
        """
        done = (number for number in range(depth, -1, -1) if prepared.peek((self, number)) is not None)
        if (start := next(done, None)) == depth:
            return prepared.cached((self, depth), lambda: torch.empty(0))
        matrix = prepared.adjacency(self.normalization)
        state = prepared.imputed(self.method) if start is None else matrix @ prepared.peek((self, start))
        for number in range(0 if start is None else start + 1, depth + 1):
            if self.mode is not None:
                statistics = _measure(state, slice(None))
                prepared.cached((self, number, "statistics"), lambda: statistics)  # noqa: B023
                state = normalize_by(state, *statistics, self.scale, EPS, self.mode)
            state = state if number == depth else matrix @ state
        return prepared.cached((self, depth), lambda: state)

    def statistics(self, prepared: PreparedGraph, depth: int) -> NormStatistics | None:
        """Return the statistics of every step of a graph; None without a norm."""
        if self.mode is None:
            return None
        self.state(prepared, depth)
        steps = [prepared.peek((self, number, "statistics")) for number in range(depth + 1)]
        centers, squares = map(torch.stack, zip(*steps, strict=True))
        basis, _ = prepared.reduced
        centers = centers if basis is None else centers @ basis.T
        return NormStatistics(centers, squares, torch.from_numpy(prepared.node_fingerprints))

    def fitted_states(
        self, prepared: PreparedGraph, depth: int, statistics: NormStatistics | None, last: int = 1
    ) -> tuple[Tensor | None, Sequence[Tensor]]:
        """Propagate the features of any graph, normalized by the statistics of the fitted nodes.

        Args:
            prepared: the graph.
            depth: number of propagation steps.
            statistics: None without a norm.
            last: how many of the last states to return.

        Returns:
            A basis [d, r] and states in its coordinates, [n, r]; None and the states where r would be d.
        """
        fitted, same_nodes = (None, True) if statistics is None else statistics.fitted_rows(prepared)
        if same_nodes or statistics is None or fitted is None or self.mode is None:
            first = max(0, depth + 1 - last)
            return prepared.reduced[0], [self.state(prepared, step) for step in range(first, depth + 1)]
        features, basis, centers = prepared.dense, None, statistics.centers.to(prepared.device)
        if prepared.graph.missing.dim() == 1:
            basis, both = span(torch.cat([features, centers]))
            features, centers = both[: len(features)], both[len(features) :]
        measured = statistics.are_measurable(fitted)
        matrix, state = prepared.adjacency(self.normalization), prepared.imputed(self.method, features)
        states: deque[Tensor] = deque(maxlen=last)
        for number in range(depth + 1):
            state = matrix @ state if number else state
            center, square = centers[number], statistics.mean_squares[number].to(state)
            if measured:
                center, square = _measure(state, fitted.to(state.device))
            state = normalize_by(state, center, square, self.scale, EPS, self.mode)
            states.append(state)
        return basis, states


def sgc_scale(mode: Mode | None, scale: float) -> float:
    """Return the scale to propagate an SGC with: one, as all modes but PN-SCS commute with their scale."""
    return scale if mode == "PN-SCS" else 1.0


def _measure(x: Tensor, rows: Tensor | slice) -> tuple[Tensor, Tensor]:
    """Return the center of some rows, and their mean squared length after centering."""
    x = x[rows]
    center = x.mean(0, dtype=torch.float64).float()
    square = torch.linalg.vector_norm(x - center, dtype=torch.float64).square() / len(x)
    return center, square.float()
