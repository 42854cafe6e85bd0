"""The average of several candidates, chosen greedily by validation (Caruana et al., 2004)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairnorm.classify.candidates.base import (
    Candidate,
    CandidateResult,
    Fitted,
    KnownLabels,
    Task,
    unreachable,
)
from pairnorm.classify.candidates.smooth import ALPHAS, POWERS, Smooth, sharpened, spread
from pairnorm.classify.evaluation import (
    NORMAL_95,
    decide,
    mean_probabilities,
    metric_difference,
    paired_difference,
    tilted,
)
from pairnorm.data import Graph

ROUNDS, SHORTLIST = 20, 100
# An average that gains less by another member stays as it is.
MIN_GAIN = 1e-4
# By so many standard errors an average gains on the shares of the classes, or what is held out tells nothing.
PRIOR_Z = 2.0
Part = tuple[int, Candidate, Fitted]


def choose(task: Task, tried: Sequence[CandidateResult]) -> Counter[int]:
    """Return how often each candidate is taken: greedily, the one with which the average gains most.

    Args:
        task: with validation nodes and the metric.
        tried: to choose from.
    """
    order = sorted(range(len(tried)), key=lambda place: tried[place].rank, reverse=True)
    kinds = [tuple(getattr(one.candidate, name) for name in ("model", "norm", "fill")) for one in tried]
    # The best of all, and the best of each kind: an average gains by what differs.
    shortlist = dict.fromkeys([*order[:SHORTLIST], *{kinds[place]: place for place in order[::-1]}.values()])
    chosen: Counter[int] = Counter(order[:1])
    total = tried[order[0]].probabilities.double()
    for count in range(2, ROUNDS + 1):
        values = {place: _value(task, (total + tried[place].probabilities) / count) for place in shortlist}
        place = max(values, key=lambda place: values[place])
        new = total + tried[place].probabilities
        before = _value(task, total / (count - 1))
        if values[place] <= (before[0] + MIN_GAIN, before[1]):
            break
        chosen[place] += 1
        total = new
    return chosen


def beats_prior(task: Task, probabilities: Tensor) -> bool:
    """Say whether what is held out tells some probabilities from the shares of the classes.

    Where labels are few, chance chooses among hundreds of candidates, and often one that gives all nodes the
    same.

    Args:
        task: with validation nodes or folds.
        probabilities: [m, classes], chosen by them.
    """
    gain = (probabilities.clamp(min=1e-30) / task.prior).log().gather(1, task.held_out_labels.unsqueeze(1))
    return bool(gain.mean() > PRIOR_Z * gain.std() / len(gain) ** 0.5)


def one_per_model(tried: Sequence[CandidateResult]) -> Counter[int]:
    """Take the best of every model once, but the most frequent class, which says nothing of a node.

    Args:
        tried: to choose from.
    """
    order = sorted(range(len(tried)), key=lambda place: tried[place].rank)
    best = {tried[place].candidate.model: place for place in order}
    best.pop("most frequent class", None)
    return Counter(best.values())


def _value(task: Task, probabilities: Tensor) -> tuple[float, float]:
    """Return the score by the task's metric, and by the loss, which decides between equals."""
    value, loss = (
        decide(metric, task.held_out_labels, probabilities, task.prior)[0] for metric in (task.metric, "loss")
    )
    return (loss if value != value else value), loss


def choose_smooth(task: Task, averages: Sequence[Average]) -> tuple[Smooth | None, Tensor]:
    """Return the ``Smooth`` with which an average gains most, or None, and its probabilities.

    Args:
        task: with validation nodes or folds.
        averages: learned in each fold.
    """
    plain: list[Tensor] = []
    smoothed: list[Tensor] = []
    for fold, average in zip(task.folds, averages, strict=True):
        found = average.logits(fold.graph, fold.features, fold.device).softmax(-1)[:, 0]
        labels = fold.graph.labels.where(fold.graph.train, -1).to(found.device)
        held = fold.graph.validation.to(found.device)
        plain.append(found[held].cpu())
        smoothed.append(spread(fold.graph, found, labels, ALPHAS)[held].cpu())
    probabilities, setting = torch.cat(plain), None
    best, most = _value(task, probabilities), probabilities
    by_alpha = zip(ALPHAS, torch.cat(smoothed).unbind(1), strict=True)
    for (alpha, blurred), power in product(by_alpha, POWERS):
        found = sharpened(blurred, power)
        found[task.held_out_unreachable] = task.held_out_fallback[task.held_out_unreachable]
        if (value := _value(task, found)) > best:
            best, setting, most = value, Smooth(alpha, power), found
    return (setting, most) if gains(task, most, probabilities) else (None, probabilities)


def gains(task: Task, probabilities: Tensor, before: Tensor) -> bool:
    """Say whether probabilities of held-out nodes improve on others by more than the paired standard error.

    The standard error is that of the mean difference per node; for metrics that are no means over nodes,
    that of a paired bootstrap.

    Args:
        task: with validation nodes or folds, and the metric.
        probabilities: [m, classes].
        before: [m, classes], what they are compared with.
    """
    labels = task.held_out_labels
    if task.metric == "loss":
        logs = [one.double().clamp(min=1e-30).log() for one in (probabilities, before)]
        ours, theirs = (one.gather(1, labels.unsqueeze(1)).squeeze(1).numpy() for one in logs)
        gain, low, _ = paired_difference(ours, theirs)
    else:
        decided = [_decided(task, one.double()) for one in (probabilities, before)]
        gain, low, _ = metric_difference(task.metric, labels.numpy(), *decided)
    return gain > (gain - low) / NORMAL_95


def _decided(task: Task, probabilities: Tensor) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the classes that the metric's decision rule predicts, and the probabilities."""
    tilt = decide(task.metric, task.held_out_labels, probabilities, task.prior)[1]
    return tilted(probabilities.numpy(), task.prior.numpy(), tilt).argmax(1), probabilities.numpy()


@dataclass(frozen=True, eq=False)
class Average:
    """A weighted mean of the probabilities of fitted candidates.

    Args:
        parts: (how often it was taken, what it is, fitted) of each; one is enough.
        known: the labels of the nodes that were learned from.
        fallback_probabilities: [classes], the class shares of the training labels, for ``unreachable`` nodes.
        smooth: what is done with the mean.
        said: the mean that was last asked for, and of what: the same parts may be smoothed afterwards.
    """

    parts: Sequence[Part]
    known: KnownLabels
    fallback_probabilities: Tensor
    smooth: Smooth | None = None
    said: dict[str, tuple[object, Graph, Tensor, Tensor]] = field(default_factory=dict, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "said": {}}  # a pickle has no graph in it

    def __deepcopy__(self, memo: object) -> Average:
        return replace(self, said={})  # fitted candidates never change

    def logits(self, graph: Graph, features: Tensor, device: torch.device) -> Tensor:
        """Return the logarithm of the mean probabilities of every node, [n, 1, classes]."""
        parts, about, of, mean = self.said.get("last", (None, None, None, None))
        if mean is None or parts is not self.parts or about is not graph or of is not features:
            mean = self._mean(graph, features, device)
            self.said["last"] = self.parts, graph, features, mean
        probabilities, labels = mean.to(device, copy=True), self.known.labels_in(graph)
        if self.smooth is not None:
            probabilities = self.smooth(graph, probabilities, labels.to(probabilities.device))
        probabilities[unreachable(graph, labels >= 0).to(probabilities.device)] = (
            self.fallback_probabilities.to(probabilities)
        )
        return probabilities.clamp(min=1e-30).log().unsqueeze(1)

    def _mean(self, graph: Graph, features: Tensor, device: torch.device) -> Tensor:
        total = sum(weight for weight, _, _ in self.parts)
        found = [
            weight / total * mean_probabilities(fitted.logits(graph, features, device))
            for weight, _, fitted in self.parts
        ]
        return torch.stack(found).sum(0)
