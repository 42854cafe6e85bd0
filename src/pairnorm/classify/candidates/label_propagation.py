"""Candidates that use labels only: label propagation, and the most frequent class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

import torch
from torch import Tensor

from pairnorm.base.errors import real_number
from pairnorm.classify.candidates.candidate import Candidate, Results, SavedState, State, Tick
from pairnorm.classify.candidates.prepared import PreparedGraph
from pairnorm.classify.candidates.task import KnownLabels, Task, expected_shares
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
        """Yield one candidate per α; all share one propagation."""
        by_fold = [
            _propagate(fold.prepared, KnownLabels.of(fold), self.alphas, fold.classes)[
                fold.graph.validation.to(fold.device)
            ]
            for fold in task.folds
        ]
        for alpha, logits in zip(self.alphas, torch.cat(by_fold).split(1, 1), strict=True):
            candidate = Candidate(self.name, setting=f"α = {alpha:g}")
            yield task.evaluate(candidate, logits, partial(_fit, alpha=alpha))
        tick(self.name)


def _fit(task: Task, alpha: float) -> PropagatedLabels:
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
        """Return the logarithms of the propagated labels, [n, 1, classes]."""
        return _propagate(prepared, self.known, [self.alpha], self.classes)

    def state(self) -> State:
        """Return α and the labels."""
        return {"alpha": self.alpha}, {"names": self.known.names, "labels": self.known.labels}

    @classmethod
    def restore(cls, saved: SavedState) -> Self:
        """Read α and the labels."""
        alpha = real_number("alpha", saved.settings["alpha"], least=0, below=1)
        return cls(alpha, KnownLabels.restore(saved.tensors, saved.classes), saved.classes)


def _propagate(prepared: PreparedGraph, known: KnownLabels, alphas: Sequence[float], classes: int) -> Tensor:
    """Return the logits for every α, [n, alphas, classes]."""
    start = known.one_hot(prepared, classes)
    state = propagate_with_restart(prepared.adjacency("sym"), start, alphas, ROUNDS)
    # Where no label arrives, the class shares among the nodes where labels arrive are the best answer.
    total, count = state.sum(-1, keepdim=True), torch.bincount(known.labels, minlength=classes).to(state)
    reached = (total > 0)[:, 0, 0] & (start.sum(1) == 0)
    shares = expected_shares(state / total.clamp(min=1e-30), reached, count / count.sum())
    return (state + 1e-12 * count.sum() * shares + 1e-30).log()


@dataclass(frozen=True)
class MostFrequent:
    """Gives every node the frequencies of the classes among the training nodes."""

    name: str = "most frequent class"
    steps: int = 0

    def fit(self, task: Task, tick: Tick) -> Results:
        """Yield the only candidate."""
        yield task.evaluate(Candidate(self.name), task.held_out_logits(Frequencies.of), Frequencies.of)


@dataclass(frozen=True, eq=False)
class Frequencies:
    """The share of every class."""

    frequencies: Tensor

    @classmethod
    def of(cls, task: Task) -> Self:
        """Count the training labels."""
        counts = torch.bincount(task.graph.labels[task.graph.train].cpu(), minlength=task.classes)
        return cls(counts.float() / counts.sum())

    def logits(self, prepared: PreparedGraph) -> Tensor:
        """Return their logarithms for every node, [n, 1, classes]."""
        logarithms = (self.frequencies + 1e-30).log().to(prepared.device)
        return logarithms.expand(prepared.graph.num_nodes, 1, -1)

    def state(self) -> State:
        """Return the frequencies."""
        return {}, {"frequencies": self.frequencies}

    @classmethod
    def restore(cls, saved: SavedState) -> Self:
        """Read the frequencies."""
        return cls(saved.tensor("frequencies", saved.classes))
