"""The most frequent class, which sees neither features nor edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from pairnorm.classify.candidates.candidate import Candidate, Results, Saved, State, Tick
from pairnorm.classify.candidates.prepared import PreparedGraph
from pairnorm.classify.candidates.task import Task


@dataclass(frozen=True)
class MostFrequent:
    """Gives every node the frequencies of the classes among the training nodes."""

    name: str = "most frequent class"
    steps: int = 0

    def fit(self, task: Task, tick: Tick) -> Results:
        """Count."""
        yield task.evaluate(Candidate(self.name), task.held_out_logits(_count), _count)


def _count(task: Task) -> Frequencies:
    counts = torch.bincount(task.graph.labels[task.graph.train].cpu(), minlength=task.classes)
    return Frequencies(counts.float() / counts.sum())


@dataclass(frozen=True, eq=False)
class Frequencies:
    """The share of every class."""

    frequencies: Tensor

    def logits(self, prepared: PreparedGraph) -> Tensor:
        """Return their logarithms for every node, [n, 1, classes]."""
        logarithms = (self.frequencies + 1e-30).log().to(prepared.device)
        return logarithms.expand(prepared.graph.num_nodes, 1, -1)

    def state(self) -> State:
        """Return them."""
        return {}, {"frequencies": self.frequencies}

    @classmethod
    def restore(cls, saved: Saved) -> Self:
        """Read the frequencies."""
        return cls(saved.tensor("frequencies", saved.classes))
