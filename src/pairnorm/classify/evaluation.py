"""How good predictions are, with intervals, and how much confidence they deserve."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import nan, sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairnorm.errors import PairNormError
from pairnorm.train.trainers import part_losses

NORMAL_95 = 1.959964
HOTTEST, TEMPERATURES = 30.0, 60
# Of fewer nodes than this, a temperature cannot be learnt.
FEWEST = 20


@dataclass(frozen=True, eq=False)
class Scores:
    """What a confusion matrix says.

    Args:
        confusion: int64 [classes, classes]: row = the true class, column = the predicted one.
    """

    confusion: NDArray[np.int64]

    @classmethod
    def of(cls, labels: NDArray[np.int64], predicted: NDArray[np.int64], classes: int) -> Scores:
        """Count how often each class was taken for each other one."""
        pairs = labels * classes + predicted
        return cls(np.bincount(pairs, minlength=classes * classes).reshape(classes, classes))

    @property
    def count(self) -> int:
        """How many nodes were judged."""
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
        raise PairNormError(
            f"the probabilities of {int((~found.isfinite()).any(1).sum()):,} nodes are not finite",
            code="not-finite",
            remedy="Look for very large features, or pass another {scaling}.",
            scaling="columns",
        )
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
