"""How good predictions are, with intervals, and how much confidence they deserve."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import nan, sqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairnorm.base.errors import PairNormError
from pairnorm.train.problem import part_losses

NORMAL_95 = 1.959964
HOTTEST, TEMPERATURES = 30.0, 60
# Of fewer nodes than this, a temperature cannot be learned.
FEWEST = 20
METRICS = ("loss", "accuracy", "balanced-accuracy", "macro-f1", "average-precision", "auc")
TILTS = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, eq=False)
class Scores:
    """What a confusion matrix says, and where probabilities are known, how well they rank.

    Args:
        confusion: int64 [classes, classes]: row = the true class, column = the predicted one.
        auc: the area under the ROC curve: how often a node of a class is ranked above one of another. Of two
            classes that of the rarer, else the mean over classes, as for the next.
        average_precision: the area under the precision-recall curve.
    """

    confusion: NDArray[np.int64]
    auc: float = nan
    average_precision: float = nan

    @classmethod
    def of(
        cls,
        labels: NDArray[np.int64],
        predicted: NDArray[np.int64],
        classes: int,
        probabilities: NDArray[np.float32] | None = None,
    ) -> Scores:
        """Count how often each class was taken for each other one.

        Args:
            labels: int64 [m].
            predicted: int64 [m].
            classes: how many there are.
            probabilities: [m, classes], where they are known.
        """
        pairs = labels * classes + predicted
        confusion = np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)
        ranked = () if probabilities is None else rankings(labels, probabilities)
        return cls(confusion, *ranked)

    @property
    def count(self) -> int:
        """How many nodes were evaluated."""
        return int(self.confusion.sum())

    @property
    def right(self) -> int:
        """How many were right."""
        return int(np.trace(self.confusion))

    @property
    def accuracy(self) -> float:
        """The share that is right."""
        return self.right / self.count if self.count else nan

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95% interval of the accuracy, which stays between 0 and 1 and is honest for few nodes."""
        return wilson(self.right, self.count)

    @cached_property
    def _by_class(self) -> tuple[NDArray[np.float64], ...]:
        """Precision, recall and F1 of every class; NaN where a class is not there."""
        from sklearn.metrics import precision_recall_fscore_support

        if self.count == 0:
            return (np.full(len(self.confusion), nan),) * 3
        true, predicted = np.indices(self.confusion.shape).reshape(2, -1)
        found = precision_recall_fscore_support(
            true, predicted, sample_weight=self.confusion.ravel(), zero_division=nan
        )
        return tuple(found[:3])

    @property
    def precision(self) -> NDArray[np.float64]:
        """Of what was taken for a class the share that is of it; NaN for one that was never predicted."""
        return self._by_class[0]

    @property
    def recall(self) -> NDArray[np.float64]:
        """Of every class the share that was found; NaN for a class without nodes."""
        return self._by_class[1]

    @property
    def f1(self) -> NDArray[np.float64]:
        """2 right / (true + predicted), of every class; NaN for one that is neither there nor predicted."""
        return self._by_class[2]

    @property
    def balanced_accuracy(self) -> float:
        """The mean recall of the classes that are there."""
        return _mean(self.recall)

    @property
    def macro_f1(self) -> float:
        """The mean F1 of the classes that are there or were predicted."""
        return _mean(self.f1)


def wilson(right: int, count: int) -> tuple[float, float]:
    """Return Wilson's 95% interval of a share.

    Args:
        right: how many are right.
        count: of how many.
    """
    from scipy.stats import binomtest

    if count == 0:
        return 0.0, 1.0
    found = binomtest(right, count).proportion_ci(method="wilson")
    return float(found.low), float(found.high)


def rankings(labels: NDArray[np.int64], probabilities: NDArray[Any]) -> tuple[float, float]:
    """Return the area under the ROC curve and the average precision; see ``Scores``. NaN for one class.

    Args:
        labels: int64 [m].
        probabilities: [m, classes].
    """
    from sklearn.metrics import average_precision_score, roc_auc_score

    counts = np.bincount(labels, minlength=probabilities.shape[1])
    there = [number for number, count in enumerate(counts) if 0 < count < len(labels)]
    if probabilities.shape[1] == 2:
        there = there[:1] if counts[0] < counts[1] else there[1:]
    if not there:
        return nan, nan
    truth = [(labels == number, probabilities[:, number]) for number in there]
    return tuple(  # type: ignore[return-value]
        float(np.mean([score(*one) for one in truth])) for score in (roc_auc_score, average_precision_score)
    )


def decide(metric: str, labels: Tensor, probabilities: Tensor, prior: Tensor) -> tuple[float, float]:
    """Return how good probabilities are by a metric, larger being better, and the tilt t that makes them so.

    The class with the largest p / prior^t is predicted: t = 0 is right most often, t = 1 finds every class as
    often as it can (of two classes any t is a threshold). It is chosen for the two metrics that count classes
    alike, and 0 for the others.

    Args:
        metric: one of ``METRICS``; ``"loss"`` is minus the mean cross-entropy.
        labels: int64 [m].
        probabilities: [m, classes].
        prior: the share of every class among those learned from.
    """
    truth, values = labels.numpy(), probabilities.double().numpy()
    if len(truth) == 0:
        return nan, 0.0
    if metric in ("auc", "average-precision"):
        return rankings(truth, values)[metric != "auc"], 0.0
    if metric == "accuracy":
        return float((values.argmax(1) == truth).mean()), 0.0
    if metric == "loss":
        return float(np.log(values[np.arange(len(truth)), truth].clip(1e-30)).mean()), 0.0
    found = []
    for tilt in TILTS:
        confusion = Scores.of(truth, tilted(values, prior.numpy(), tilt).argmax(1), values.shape[1]).confusion
        right, true, said = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
        # Recall, or F1; not scikit-learn's, which takes a hundred times as long, for this is asked often.
        size = true if metric == "balanced-accuracy" else (true + said) / 2
        found.append((float((right[size > 0] / size[size > 0]).mean()), tilt))
    return max(found, key=lambda one: one[0])


def tilted(probabilities: NDArray[Any], prior: NDArray[Any], tilt: float) -> NDArray[Any]:
    """Return p / prior^t, whose largest is predicted; see ``decide``."""
    return np.asarray(probabilities / prior**tilt, dtype=probabilities.dtype)


def _mean(values: NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else nan


def paired_difference(ours: NDArray[np.bool_], theirs: NDArray[np.bool_]) -> tuple[float, float, float]:
    """Return by how much we are more often right on the same nodes, and the 95% interval of that.

    Args:
        ours: which of the nodes we got right.
        theirs: which of them they did.
    """
    count = len(ours)
    if count == 0:
        return nan, nan, nan
    difference = ours.astype(float) - theirs.astype(float)
    mean, half = float(difference.mean()), NORMAL_95 * float(difference.std()) / sqrt(count)
    return mean, mean - half, mean + half


def mean_probabilities(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Return softmax(logits / T), averaged over the trials: [n, classes] from [n, trials, classes].

    Args:
        logits: of every trial.
        temperature: T.
    """
    found = (logits / temperature).softmax(-1).mean(1)
    if not found.isfinite().all():
        problem = f"the probabilities of {int((~found.isfinite()).any(1).sum()):,} nodes are not finite"
        hint = "Look for very large features, or pass another {scaling}."
        raise PairNormError(problem, code="not-finite", hint=hint, scaling="columns")
    return found


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """Return the T from 1 to 30 under which the labels are likeliest (Guo et al., 2017); 1 for few nodes.

    Never below 1, and with one imagined mistake among the labels, as Platt (1999) has it: a model that is
    right on all of a few validation nodes would else be certain of everything.

    Args:
        logits: [m, trials, classes], of the validation nodes.
        labels: int64 [m].
    """
    if len(labels) < FEWEST:
        return 1.0
    temperatures = torch.logspace(0, torch.tensor(HOTTEST).log10().item(), TEMPERATURES).tolist()

    def loss(temperature: float) -> float:
        logarithms = mean_probabilities(logits.double(), temperature).clamp(min=1e-30).log()
        return float(part_losses(logarithms, labels) - logarithms.mean() / len(labels))

    return float(min(temperatures, key=loss))
