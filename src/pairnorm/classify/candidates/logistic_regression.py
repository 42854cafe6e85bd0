"""Logistic regression, which sees no edges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

import torch
from torch import Tensor

from pairnorm.classify.candidates.base import Candidate, Found, Saved, State, Task, Tick, check_size
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
        validation = task.graph.validation.to(task.device)
        held = pair_norm(task.features.to_dense().to(task.device))[validation]
        for scale, fitted in zip(sorted(self.scales), _learn(task, self.scales), strict=True):
            candidate = Candidate(self.name, scale=scale, setting=f"scale {scale:g}")
            logits = (held @ fitted.weight + fitted.bias).unsqueeze(1)
            yield task.tried(candidate, logits, partial(_learn_one, scale=scale))
        tick(self.name)


def _learn(task: Task, scales: Sequence[float]) -> Iterator[Linear]:
    """Yield one for every scale, from small to large."""
    train = task.graph.train.to(task.device)
    rows = pair_norm(task.features.to_dense().to(task.device))[train]
    for scale, weight, bias in regressions(
        rows, task.graph.labels.to(task.device)[train], task.classes, scales
    ):
        yield Linear(scale * weight, bias)


def _learn_one(task: Task, scale: float) -> Linear:
    return next(_learn(task, [scale]))


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
