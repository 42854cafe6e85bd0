"""PairNorm's statistics of an SGC, stored at fit: predictions of a node do not depend on the other nodes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from pairnorm.classify.candidates.base import Saved
from pairnorm.classify.candidates.propagation import filled, kept_of, normalized
from pairnorm.classify.regression import span
from pairnorm.data import Graph
from pairnorm.nn import Mode, Normalization, SparseMatrix, sgc_iterates

EPS = 1e-6


class NormStatistics(NamedTuple):
    """The statistics of every normalization of a propagation: of the input, then after every step.

    Args:
        centers: [depth + 1, d], the means that are subtracted.
        mean_squares: [depth + 1], the mean squared row lengths after centering, which only ``PN`` uses.
    """

    centers: Tensor
    mean_squares: Tensor

    @classmethod
    def measure(cls, x: Tensor, matrix: SparseMatrix, mode: Mode, scale: float, depth: int) -> NormStatistics:
        """Propagate features with PairNorm and return the statistics of every normalization.

        Args:
            x: [n, d].
            matrix: the normalized adjacency.
            mode: of PairNorm.
            scale: of PairNorm.
            depth: number of propagation steps.
        """
        centers: list[Tensor] = []
        mean_squares: list[Tensor] = []

        def norm(x: Tensor) -> Tensor:
            centers.append(x.double().mean(0).float())
            mean_squares.append((x - centers[-1]).double().square().sum(1).mean().float())
            return _normalize(x, mode, scale, centers[-1], mean_squares[-1])

        next(islice(sgc_iterates(x, matrix, norm), depth, None))
        return cls(torch.stack(centers), torch.stack(mean_squares))

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
                return cls(found.centers[: depth + 1], found.mean_squares[: depth + 1])
        basis, reduced = span(features) if graph.missing.dim() == 1 else (None, features)
        matrix = normalized(graph, kind, features.device)
        found = cls.measure(filled(fill, graph, reduced), matrix, mode, scale, depth)
        if basis is not None:
            found = cls(found.centers @ basis.T, found.mean_squares)
        cached[key] = graph.adjacency, graph.missing, found
        return found

    @classmethod
    def restore(cls, saved: Saved) -> Self:
        """Read the tensors ``centers`` and ``mean_squares`` of a saved model."""
        length = saved.candidate.depth + 1
        squares = saved.tensor("mean_squares", length)
        if not (squares >= 0).all():
            raise ValueError("a mean square is negative")
        return cls(saved.tensor("centers", length, saved.features), squares)

    def propagate(
        self, graph: Graph, features: Tensor, fill: str, kind: Normalization, mode: Mode, scale: float
    ) -> tuple[Tensor | None, Tensor]:
        """Propagate the features of a graph, normalized by these statistics.

        Args:
            graph: whose edges, and what it lacks.
            features: [n, d], scaled, dense.
            fill: how missing features are imputed.
            kind: of the adjacency's normalization.
            mode: of PairNorm.
            scale: of PairNorm, as the statistics were measured with.

        Returns:
            A basis [d, r] and the state in its coordinates, [n, r]; None and the state where r would be d.
        """
        centers, basis = self.centers.to(features), None
        if graph.missing.dim() == 1:
            basis, both = span(torch.cat([features, centers]))
            features, centers = both[: len(features)], both[len(features) :]
        matrix = normalized(graph, kind, features.device)
        norm = self._norm(centers, mode, scale)
        walk = sgc_iterates(filled(fill, graph, features), matrix, norm)
        return basis, next(islice(walk, len(self.centers) - 1, None))

    def _norm(self, centers: Tensor, mode: Mode, scale: float) -> Callable[[Tensor], Tensor]:
        steps = iter(zip(centers, self.mean_squares.to(centers), strict=True))
        return lambda x: _normalize(x, mode, scale, *next(steps))


def _scale_rows(x: Tensor, scale: float) -> Tensor:
    return scale * x / (x.square().sum(1, keepdim=True) + EPS).sqrt()


def _normalize(x: Tensor, mode: Mode, scale: float, center: Tensor, mean_square: Tensor) -> Tensor:
    """Normalize rows as PairNorm does, by given statistics."""
    if mode == "PN-SCS":
        return _scale_rows(x, scale) - center
    centered = x - center
    return scale * centered / (mean_square + EPS).sqrt() if mode == "PN" else _scale_rows(centered, scale)


_MEASURED: Any = WeakTensorKeyDictionary()
