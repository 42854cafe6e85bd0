"""The most frequent class, which sees neither features nor edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from pairnorm.classify.candidates.base import Candidate, Found, Saved, State, Task, Tick, ready
from pairnorm.data import Graph


@dataclass(frozen=True)
class MostFrequent:
    """Gives every node the frequencies of the classes among the training nodes."""

    name: str = "most frequent class"
    steps: int = 0

    def fit(self, task: Task, tick: Tick) -> Found:
        """Count."""
        graph = task.graph
        counts = torch.bincount(graph.labels[graph.train].cpu(), minlength=task.classes)
        fitted = Frequencies(counts.float() / counts.sum())
        logits = fitted.logits(graph, task.features, task.device)
        judged = task.judge(logits[graph.validation.to(logits.device)])
        yield Candidate(self.name, "none", 0, 1.0, *judged), ready(fitted)


@dataclass(frozen=True, eq=False)
class Frequencies:
    """The share of every class."""

    frequencies: Tensor

    def logits(self, graph: Graph, features: Tensor, device: torch.device) -> Tensor:
        """Return their logarithms for every node, [n, 1, classes]."""
        logarithms = (self.frequencies + 1e-30).log().to(device)
        return logarithms.expand(graph.num_nodes, 1, -1)

    def state(self) -> State:
        """Return them."""
        return {}, {"frequencies": self.frequencies}

    @classmethod
    def restore(cls, saved: Saved) -> Self:
        """Take up the frequencies."""
        return cls(saved.tensor("frequencies", saved.classes))
