"""Label propagation, which uses no features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

import torch
from torch import Tensor

from pairnorm.base.errors import real_number
from pairnorm.classify.candidates.candidate import Candidate, Results, Saved, State, Tick
from pairnorm.classify.candidates.prepared import PreparedGraph
from pairnorm.classify.candidates.task import KnownLabels, Task
from pairnorm.nn.propagate import propagate_with_restart

ALPHAS = (0.5, 0.9, 0.99)
ROUNDS = 100


@dataclass(frozen=True)
class LabelPropagation:
    r"""Label propagation (Zhou et al., 2004) for several α: $F \leftarrow \alpha S F + (1 - \alpha) Y$.

    Args:
        alphas: the weight of the neighbors against that of a node's own label.
        name: of the family.
    """

    alphas: Sequence[float] = ALPHAS
    name: str = "label propagation"
    steps: int = 1

    def fit(self, task: Task, tick: Tick) -> Results:
        """Yield one for every α."""
        by_fold = [self._held_out(fold) for fold in task.folds]
        for alpha, logits in zip(self.alphas, torch.cat(by_fold).split(1, 1), strict=True):
            candidate = Candidate(self.name, setting=f"α = {alpha:g}")
            yield task.evaluate(candidate, logits, partial(_learn, alpha=alpha))
        tick(self.name)

    def _held_out(self, fold: Task) -> Tensor:
        """Return the logits of the nodes that a fold holds out, [m, alphas, classes]."""
        logits = _propagate(fold.prepared, KnownLabels.of(fold), self.alphas, fold.classes)
        return logits[fold.graph.validation.to(fold.device)]


def _learn(task: Task, alpha: float) -> PropagatedLabels:
    return PropagatedLabels(alpha, KnownLabels.of(task), task.classes)


@dataclass(frozen=True, eq=False)
class PropagatedLabels:
    """Known labels, which are propagated from the nodes of the same names in any graph.

    Args:
        alpha: α.
        known: the labels.
        classes: number of classes.
    """

    alpha: float
    known: KnownLabels
    classes: int

    def logits(self, prepared: PreparedGraph) -> Tensor:
        """Return the logarithm of what arrived of every class, [n, 1, classes]."""
        return _propagate(prepared, self.known, [self.alpha], self.classes)

    def state(self) -> State:
        """Return α and the labels."""
        return {"alpha": self.alpha}, {"names": self.known.names, "labels": self.known.labels}

    @classmethod
    def restore(cls, saved: Saved) -> Self:
        """Read α and the labels."""
        alpha = real_number("alpha", saved.settings["alpha"], least=0, below=1)
        return cls(alpha, KnownLabels.restore(saved), saved.classes)


def _propagate(prepared: PreparedGraph, known: KnownLabels, alphas: Sequence[float], classes: int) -> Tensor:
    """Return the logits for every α, [n, alphas, classes]."""
    labels = known.labels_in(prepared).to(prepared.device)
    one_hot = torch.nn.functional.one_hot(labels.clamp(min=0), classes) * (labels >= 0)[:, None].float()
    state = propagate_with_restart(prepared.adjacency("sym"), one_hot, alphas, ROUNDS)
    # Where no label arrives, the most frequent class is the best answer.
    return (state + 1e-12 * one_hot.sum(0) + 1e-30).log()
