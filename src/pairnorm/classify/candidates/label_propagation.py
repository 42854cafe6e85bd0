"""Label propagation, which sees no features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

import torch
from torch import Tensor

from pairnorm.base.errors import real_number
from pairnorm.classify.candidates.base import Candidate, KnownLabels, Results, Saved, State, Task, Tick
from pairnorm.classify.candidates.propagation import normalized
from pairnorm.data import Graph
from pairnorm.nn.propagate import propagate_with_restart

ALPHAS = (0.5, 0.9, 0.99)
ROUNDS = 100


@dataclass(frozen=True)
class LabelPropagation:
    r"""Label propagation (Zhou et al., 2004) for several α: $F \leftarrow \alpha S F + (1 - \alpha) Y$.

    Args:
        alphas: how much a node listens to its neighbors against its own label.
        name: of the family.
    """

    alphas: Sequence[float] = ALPHAS
    name: str = "label propagation"
    steps: int = 1

    def fit(self, task: Task, tick: Tick) -> Results:
        """Yield one for every α."""
        found = [self._held(fold) for fold in task.folds]
        for alpha, logits in zip(self.alphas, torch.cat(found).split(1, 1), strict=True):
            candidate = Candidate(self.name, setting=f"α = {alpha:g}")
            yield task.evaluate(candidate, logits, partial(_learn, alpha=alpha))
        tick(self.name)

    def _held(self, fold: Task) -> Tensor:
        """Return what arrives at the nodes that a fold holds out, [m, alphas, classes]."""
        labels = KnownLabels.of(fold.graph).labels_in(fold.graph).to(fold.device)
        logits = _spread(fold.graph, labels, self.alphas, fold.classes)
        return logits[fold.graph.validation.to(fold.device)]


def _learn(task: Task, alpha: float) -> Spreading:
    return Spreading(alpha, KnownLabels.of(task.graph), task.classes)


@dataclass(frozen=True, eq=False)
class Spreading:
    """The known labels, which spread from the nodes of the same names in any graph.

    Args:
        alpha: α.
        known: whose labels.
        classes: how many there are.
    """

    alpha: float
    known: KnownLabels
    classes: int

    def logits(self, graph: Graph, features: Tensor, device: torch.device) -> Tensor:
        """Return the logarithm of what arrived of every class, [n, 1, classes]."""
        return _spread(graph, self.known.labels_in(graph).to(device), [self.alpha], self.classes)

    def state(self) -> State:
        """Return α and the labels."""
        return {"alpha": self.alpha}, {"names": self.known.names, "labels": self.known.labels}

    @classmethod
    def restore(cls, saved: Saved) -> Self:
        """Take up the labels of the nodes that were learned from."""
        alpha = real_number("alpha", saved.settings["alpha"], least=0, below=1)
        return cls(alpha, KnownLabels.restore(saved), saved.classes)


def _spread(graph: Graph, labels: Tensor, alphas: Sequence[float], classes: int) -> Tensor:
    """Return the logits of ``Spreading`` for every α, [n, alphas, classes], of one walk."""
    given = torch.nn.functional.one_hot(labels.clamp(min=0), classes) * (labels >= 0)[:, None].float()
    state = propagate_with_restart(normalized(graph, "sym", labels.device), given, alphas, ROUNDS)
    # Where no label arrives, the most frequent class is the best fallback_probabilities.
    return (state + 1e-12 * given.sum(0) + 1e-30).log()
