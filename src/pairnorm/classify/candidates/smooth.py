"""Smoothing of predictions over the graph: the second half of Correct & Smooth (Huang et al., 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pairnorm.classify.candidates.prepared import PreparedGraph
from pairnorm.nn.propagate import propagate_with_restart

ALPHAS, POWERS = (0.3, 0.5, 0.8, 0.9), (1.0, 1.5, 2.0, 3.0)
ROUNDS = 50


class Smooth(NamedTuple):
    r"""Propagates probabilities and known labels over the graph, and sharpens the result.

    $$\mathbf{Z} \leftarrow \alpha \mathbf{S} \mathbf{Z} + (1 - \alpha) \mathbf{Z}_0 \qquad
    p_{ic} \propto z_{ic}^{\gamma}$$

    The first half, which propagates the errors on training nodes, gained nothing over an ensemble.

    Args:
        alpha: α, the weight of the neighbors.
        power: γ, which changes no node's most probable class.
    """

    alpha: float
    power: float

    def __call__(self, prepared: PreparedGraph, probabilities: Tensor, labels: Tensor) -> Tensor:
        """Smooth the probabilities of every node, [n, classes], given the known labels (-1 for none)."""
        return sharpened(smoothed(prepared, probabilities, labels, [self.alpha])[:, 0], self.power)


def smoothed(
    prepared: PreparedGraph, probabilities: Tensor, labels: Tensor, alphas: Sequence[float]
) -> Tensor:
    """Return the smoothed probabilities for each α, [n, alphas, classes].

    Args:
        prepared: the graph.
        probabilities: [n, classes].
        labels: int64 [n], -1 where not known.
        alphas: α.
    """
    certain = torch.nn.functional.one_hot(labels.clamp(min=0), probabilities.shape[1]).to(probabilities)
    start = torch.where((labels >= 0)[:, None], certain, probabilities)
    return sharpened(propagate_with_restart(prepared.adjacency("sym"), start, alphas, ROUNDS), 1.0)


def sharpened(probabilities: Tensor, power: float) -> Tensor:
    """Return probabilities that are proportional to a power of what is given."""
    raised = probabilities.clamp(min=1e-12) ** power
    return raised / raised.sum(-1, keepdim=True)
