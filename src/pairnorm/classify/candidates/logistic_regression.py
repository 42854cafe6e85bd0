"""Logistic regression, which sees no edges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from pairnorm.classify.candidates.base import Candidate, Found, Saved, State, Task, Tick, check_size, ready
from pairnorm.classify.candidates.sgc import SCALES
from pairnorm.classify.regression import regressions
from pairnorm.data import Graph
from pairnorm.nn import pair_norm


@dataclass(frozen=True)
class LogisticRegression:
    """An SGC of depth 0: a regression on a node's own features, centred and scaled by PairNorm.

    Args:
        scales: PairNorm's s, the strength of regularisation.
        name: of the family.
    """

    scales: Sequence[float] = SCALES
    name: str = "logistic regression"
    steps: int = 1

    def fit(self, task: Task, tick: Tick) -> Found:
        """Yield one for every scale."""
        check_size(task.graph)
        rows = pair_norm(task.features.to_dense().to(task.device))
        labels, train, validation = (
            part.to(task.device) for part in (task.graph.labels, task.graph.train, task.graph.validation)
        )
        for scale, weight, bias in regressions(rows[train], labels[train], task.classes, self.scales):
            fitted = Linear(scale * weight, bias)
            judged = task.judge((rows[validation] @ fitted.weight + bias).unsqueeze(1))
            candidate = Candidate(self.name, "none", 0, scale, *judged, f"scale {scale:g}")
            yield candidate, ready(fitted)
        tick(self.name)


@dataclass(frozen=True, eq=False)
class Linear:
    """A linear map of PairNorm's rows: weight [d, classes], bias [classes]."""

    weight: Tensor
    bias: Tensor

    def logits(self, graph: Graph, features: Tensor, device: torch.device) -> Tensor:
        """Return the logits of every node, [n, 1, classes]."""
        rows = pair_norm(features.to_dense().to(device))
        return (rows @ self.weight.to(device) + self.bias.to(device)).unsqueeze(1)

    def state(self) -> State:
        """Return weight and bias."""
        return {}, {"weight": self.weight, "bias": self.bias}

    @classmethod
    def restore(cls, saved: Saved) -> Self:
        """Take up weight and bias."""
        weight = saved.tensor("weight", saved.features, saved.classes)
        return cls(weight, saved.tensor("bias", saved.classes))
