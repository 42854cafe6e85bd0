"""How right predictions are: accuracy with its interval, and the figures that class imbalance calls for."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan, sqrt

import numpy as np
from numpy.typing import NDArray

NORMAL_95 = 1.959964


def wilson_interval(right: int, count: int) -> tuple[float, float]:
    """Return Wilson's 95% interval of a share, which stays between 0 and 1 and is honest for few nodes.

    >>> low, high = wilson_interval(3, 3)
    >>> print(f"{low:.2f} to {high:.2f}")
    0.44 to 1.00

    Args:
        right: how many were right.
        count: of how many.
    """
    if count == 0:
        return 0.0, 1.0
    share, z = right / count, NORMAL_95
    middle = share + z * z / (2 * count)
    half = z * sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    low, high = ((middle + sign * half) / (1 + z * z / count) for sign in (-1, 1))
    return max(0.0, low), min(1.0, high)


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
        """The 95% interval of the accuracy."""
        return wilson_interval(self.right, self.count)

    @property
    def recall(self) -> NDArray[np.float64]:
        """Of every class the share that was found; NaN for a class without nodes."""
        return _ratio(np.diag(self.confusion), self.confusion.sum(1))

    @property
    def precision(self) -> NDArray[np.float64]:
        """Of what was taken for a class the share that is of it; NaN for one that was never predicted."""
        return _ratio(np.diag(self.confusion), self.confusion.sum(0))

    @property
    def f1(self) -> NDArray[np.float64]:
        """2 right / (true + predicted), of every class; NaN for one that is neither there nor predicted."""
        return _ratio(2 * np.diag(self.confusion), self.confusion.sum(0) + self.confusion.sum(1))

    @property
    def balanced_accuracy(self) -> float:
        """The mean recall of the classes that are there."""
        return _mean(self.recall)

    @property
    def macro_f1(self) -> float:
        """The mean F1 of the classes that are there or were predicted."""
        return _mean(self.f1)


def _ratio(part: NDArray[np.int64], whole: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.where(whole > 0, part / np.maximum(whole, 1), nan)


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
    mean = float(difference.mean())
    half = NORMAL_95 * sqrt(max(float((difference**2).mean()) - mean**2, 0.0) / count)
    return mean, mean - half, mean + half
