"""The average of several candidates, chosen greedily by validation (Caruana et al., 2004)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairnorm.classify.candidates.candidate import Candidate, CandidateResult, Fitted
from pairnorm.classify.candidates.prepared import PreparedGraph
from pairnorm.classify.candidates.smooth import ALPHAS, POWERS, Smooth, sharpened, smoothed
from pairnorm.classify.candidates.task import KnownLabels, Task, unreachable
from pairnorm.classify.evaluation import (
    NORMAL_95,
    decide,
    mean_probabilities,
    metric_difference,
    paired_difference,
    tilted,
)

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
    by_alpha: list[Tensor] = []
    for fold, average in zip(task.folds, averages, strict=True):
        before = average.logits(fold.prepared).softmax(-1)[:, 0]
        labels = fold.graph.labels.where(fold.graph.train, -1).to(before.device)
        held_out = fold.graph.validation.to(before.device)
        plain.append(before[held_out].cpu())
        by_alpha.append(smoothed(fold.prepared, before, labels, ALPHAS)[held_out].cpu())
    probabilities, setting = torch.cat(plain), None
    best, most = _value(task, probabilities), probabilities
    alphas = zip(ALPHAS, torch.cat(by_alpha).unbind(1), strict=True)
    for (alpha, blurred), power in product(alphas, POWERS):
        after = sharpened(blurred, power)
        after[task.held_out_unreachable] = task.held_out_fallback[task.held_out_unreachable]
        if (value := _value(task, after)) > best:
            best, setting, most = value, Smooth(alpha, power), after
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
        parts: (weight, settings, fitted) of each member; one is enough.
        known: the training labels.
        fallback_probabilities: [classes], the class shares of the training labels, for ``unreachable`` nodes.
        smooth: applied to the mean.
    """

    parts: Sequence[Part]
    known: KnownLabels
    fallback_probabilities: Tensor
    smooth: Smooth | None = None

    def __deepcopy__(self, memo: object) -> Average:
        return self  # it never changes

    def logits(self, prepared: PreparedGraph) -> Tensor:
        """Return the logarithm of the mean probabilities of every node, [n, 1, classes]."""
        # The same members may be asked again, smoothed. The cache holds them, so that no other has their id.
        _, mean = prepared.cached(("mean", id(self.parts)), lambda: (self.parts, self._mean(prepared)))
        probabilities, labels = mean.clone(), self.known.labels_in(prepared)
        if self.smooth is not None:
            probabilities = self.smooth(prepared, probabilities, labels.to(probabilities.device))
        unreached = unreachable(prepared.graph, labels >= 0).to(probabilities.device)
        probabilities[unreached] = self.fallback_probabilities.to(probabilities)
        return probabilities.clamp(min=1e-30).log().unsqueeze(1)

    def _mean(self, prepared: PreparedGraph) -> Tensor:
        total = sum(weight for weight, _, _ in self.parts)
        members = [
            weight / total * mean_probabilities(fitted.logits(prepared)) for weight, _, fitted in self.parts
        ]
        return torch.stack(members).sum(0)
