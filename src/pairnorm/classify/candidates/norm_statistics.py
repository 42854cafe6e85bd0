"""PairNorm's statistics of an SGC at prediction: those of the nodes that the model was fitted on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from pairnorm.classify.candidates.base import Saved
from pairnorm.classify.candidates.propagation import filled, kept_of, normalized
from pairnorm.classify.holdout import fingerprints
from pairnorm.classify.regression import span
from pairnorm.data import Graph
from pairnorm.nn import Mode, Normalization, sgc_iterates
from pairnorm.nn.ops.pair_norm import normalize_by

EPS = 1e-6
MIN_SHARE_PRESENT = 0.9
"""Share of the fitted nodes that a graph must hold for their statistics to be measured in it."""


class NormStatistics(NamedTuple):
    """The statistics of every normalization of a propagation: of the input, then after every step.

    A graph that still holds the fitted nodes is normalized by what these are in it, so that a shift that all
    nodes share cancels; deep propagation would amplify it. Other graphs are normalized by the stored values.
    Either way the prediction of a node does not depend on which new nodes come with it.

    Args:
        centers: [depth + 1, d], the means that are subtracted.
        mean_squares: [depth + 1], the mean squared row lengths after centering, which only ``PN`` uses.
        nodes: int64 [n], fingerprints of the nodes that they are the statistics of.
    """

    centers: Tensor
    mean_squares: Tensor
    nodes: Tensor

    @classmethod
    def of(
        cls,
        graph: Graph,
        features: Tensor,
        fill: str,
        kind: Normalization,
        mode: Mode,
        scale: float,
        depth: int,
    ) -> NormStatistics:
        """Return the statistics of a graph's features, measured once for all depths.

        Args:
            graph: whose edges, and what it lacks.
            features: [n, d], scaled, dense.
            fill: how missing features are imputed.
            kind: of the adjacency's normalization.
            mode: of PairNorm.
            scale: of PairNorm; one for all modes but PN-SCS, with which the others commute.
            depth: number of propagation steps.
        """
        cached: dict[Any, tuple[Tensor, Tensor, NormStatistics]] = kept_of(features, _MEASURED)
        key = fill, kind, mode, scale
        if key in cached:
            adjacency, missing, found = cached[key]
            if adjacency is graph.adjacency and missing is graph.missing and len(found.centers) > depth:
                return cls(found.centers[: depth + 1], found.mean_squares[: depth + 1], found.nodes)
        basis, reduced = span(features) if graph.missing.dim() == 1 else (None, features)
        matrix = normalized(graph, kind, features.device)
        steps: list[tuple[Tensor, Tensor]] = []
        norm = _measuring_norm(mode, scale, slice(None), steps)
        next(islice(sgc_iterates(filled(fill, graph, reduced), matrix, norm), depth, None))
        centers, squares = map(torch.stack, zip(*steps, strict=True))
        centers = centers if basis is None else centers @ basis.T
        found = cls(centers, squares, torch.from_numpy(fingerprints(graph)))
        cached[key] = graph.adjacency, graph.missing, found
        return found

    @classmethod
    def restore(cls, saved: Saved) -> Self:
        """Read the tensors ``centers``, ``mean_squares`` and ``nodes`` of a saved model."""
        length = saved.candidate.depth + 1
        squares = saved.tensor("mean_squares", length)
        if not (squares >= 0).all():
            raise ValueError("a mean square is negative")
        nodes = saved.tensors["nodes"]
        if nodes.dim() != 1 or nodes.dtype != torch.int64:
            raise ValueError("nodes are not fingerprints")
        return cls(saved.tensor("centers", length, saved.features), squares, nodes)

    def propagate(
        self,
        graph: Graph,
        features: Tensor,
        fill: str,
        kind: Normalization,
        mode: Mode,
        scale: float,
        last: int = 1,
    ) -> tuple[Tensor | None, Sequence[Tensor]]:
        """Propagate the features of a graph, normalized by the statistics of the fitted nodes.

        Args:
            graph: whose edges, and what it lacks.
            features: [n, d], scaled, dense.
            fill: how missing features are imputed.
            kind: of the adjacency's normalization.
            mode: of PairNorm.
            scale: of PairNorm, as the statistics were measured with.
            last: how many of the last states to return.

        Returns:
            A basis [d, r] and states in its coordinates, [n, r]; None and the states where r would be d.
        """
        centers, basis = self.centers.to(features), None
        if graph.missing.dim() == 1:
            basis, both = span(torch.cat([features, centers]))
            features, centers = both[: len(features)], both[len(features) :]
        matrix = normalized(graph, kind, features.device)
        fitted = torch.from_numpy(np.isin(fingerprints(graph), self.nodes.numpy()))
        if int(fitted.sum()) >= MIN_SHARE_PRESENT * len(self.nodes):
            norm = _measuring_norm(mode, scale, fitted.to(features.device), [])
        else:
            stored = iter(zip(centers, self.mean_squares.to(centers), strict=True))
            norm = lambda x: normalize_by(x, *next(stored), scale, EPS, mode)  # noqa: E731
        iterates = sgc_iterates(filled(fill, graph, features), matrix, norm)
        return basis, deque(islice(iterates, len(self.centers)), maxlen=last)


def _measuring_norm(
    mode: Mode, scale: float, rows: Tensor | slice, steps: list[tuple[Tensor, Tensor]]
) -> Callable[[Tensor], Tensor]:
    """Return PairNorm by the statistics of some rows; every call appends these to ``steps``."""

    def norm(x: Tensor) -> Tensor:
        center = x[rows].double().mean(0).float()
        steps.append((center, (x[rows] - center).double().square().sum(1).mean().float()))
        return normalize_by(x, *steps[-1], scale, EPS, mode)

    return norm


_MEASURED: Any = WeakTensorKeyDictionary()
