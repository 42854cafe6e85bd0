"""Logistic regression, which sees no edges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

import torch
from torch import Tensor

from pairnorm.classify.candidates.candidate import Candidate, Results, Saved, State, Tick
from pairnorm.classify.candidates.prepared import PreparedGraph, has_many_nodes
from pairnorm.classify.candidates.propagation import EPS
from pairnorm.classify.candidates.sgc import fold_weights, held_out_products
from pairnorm.classify.candidates.task import Task, fewer
from pairnorm.classify.scaling import check_size
from pairnorm.classify.search_limits import ENOUGH, MAX_TRAINING_ROWS, SCALES
from pairnorm.nn import pair_norm


@dataclass(frozen=True)
class LogisticRegression:
    """An SGC of depth 0: a regression on a node's own features, centered and scaled by PairNorm.

    Args:
        scales: PairNorm's s, the strength of regularization.
        name: of the family.
    """

    scales: Sequence[float] = SCALES
    name: str = "logistic regression"
    steps: int = 1

    def fit(self, task: Task, tick: Tick) -> Results:
        """Yield one for every scale, the best first, evaluated with a sample of many training nodes."""
        yield from sorted(task.limits.scales(self._candidates(task)), key=lambda one: one.validation_loss)
        tick(self.name)

    def _candidates(self, task: Task) -> Results:
        check_size(task.graph)
        rows = [pair_norm(one.prepared.dense) for one in task.tasks_by_features]
        weights = (
            fold_weights(fewer(one, ENOUGH), own, self.scales, self.name)
            for one, own in zip(task.tasks_by_features, rows, strict=True)
        )
        for solutions in zip(*weights, strict=True):
            scale = solutions[0][0]
            candidate = Candidate(self.name, scale=scale, setting=f"scale {scale:g}")
            logits = [
                held_out_products(one, own, scale * weight, bias)
                for one, own, (_, weight, bias) in zip(task.tasks_by_features, rows, solutions, strict=True)
            ]
            yield task.evaluate(candidate, torch.cat(logits), partial(_learn, scale=scale))


def _learn(task: Task, scale: float) -> Linear:
    """Fit a regression on PairNorm's rows, and express it for rows that are not normalized."""
    features = task.prepared.dense
    few = fewer(task, MAX_TRAINING_ROWS) if has_many_nodes(task.graph) else task
    ((_, weight, bias),) = fold_weights(few, pair_norm(features), [scale], "logistic regression")
    center = features.double().mean(0)
    length = ((features - center).square().sum(1).mean() + EPS).sqrt()
    slope = scale * weight[0].double() / length
    return Linear(slope.float(), (bias[0] - center @ slope).float())


@dataclass(frozen=True, eq=False)
class Linear:
    """A linear map of a node's own features: weight [d, classes], bias [classes]."""

    weight: Tensor
    bias: Tensor

    def logits(self, prepared: PreparedGraph) -> Tensor:
        """Return the logits of every node, [n, 1, classes]."""
        weight, bias = (one.to(prepared.device) for one in (self.weight, self.bias))
        return (prepared.dense @ weight + bias).unsqueeze(1)

    def state(self) -> State:
        """Return weight and bias."""
        return {}, {"weight": self.weight, "bias": self.bias}

    @classmethod
    def restore(cls, saved: Saved) -> Self:
        """Read weight and bias."""
        weight = saved.tensor("weight", saved.features, saved.classes)
        return cls(weight, saved.tensor("bias", saved.classes))
