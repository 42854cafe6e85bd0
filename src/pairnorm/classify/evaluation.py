"""Metrics of predictions, their intervals, and differences between two models."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import exp, nan, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

NORMAL_95 = 1.959964
# A stratum of fewer held-out nodes does not state an accuracy.
MIN_STRATUM = 5
METRICS = ("loss", "accuracy", "balanced-accuracy", "macro-f1", "average-precision", "auc")
RANKING_METRICS = ("average-precision", "auc")
BOOTSTRAP_SAMPLES, MAX_BOOTSTRAP_DRAWS = 500, 2_000_000

Interval = tuple[float, float]
Predictions = tuple[NDArray[np.int64], NDArray[Any]]
"""Predicted classes [m], and probabilities [m, classes]."""


@dataclass(frozen=True, eq=False)
class Scores:
    """Metrics of predictions, from their confusion matrix and, where known, their probabilities.

    Args:
        confusion: int64 [classes, classes]: row = the true class, column = the predicted one.
        auc: area under the ROC curve; of two classes that of the rarer one, else the mean over classes.
        average_precision: area under the precision-recall curve; likewise.
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
        probabilities: NDArray[Any] | None = None,
        folds: NDArray[np.int64] | None = None,
    ) -> Scores:
        """Compute the scores of some nodes.

        Args:
            labels: int64 [m].
            predicted: int64 [m].
            classes: number of classes.
            probabilities: [m, classes], where known.
            folds: int64 [m], which model predicted each node, where there are several.
        """
        pairs = labels * classes + predicted
        confusion = np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)
        if folds is not None and probabilities is not None:
            probabilities = comparable_scores(labels, probabilities, folds)
        return cls(confusion, *(() if probabilities is None else rankings(labels, probabilities)))

    @property
    def count(self) -> int:
        """Number of evaluated nodes."""
        return int(self.confusion.sum())

    @property
    def right(self) -> int:
        """Number of correct predictions."""
        return int(np.trace(self.confusion))

    @property
    def accuracy(self) -> float:
        """Share of correct predictions."""
        return self.right / self.count if self.count else nan

    @property
    def most_frequent_share(self) -> float:
        """Share of the most frequent class: the accuracy of predicting it for every node."""
        return int(self.confusion.sum(1).max()) / self.count if self.count else nan

    @property
    def interval(self) -> Interval:
        """Wilson's 95% interval of the accuracy."""
        return wilson(self.right, self.count)

    @cached_property
    def _by_class(self) -> tuple[NDArray[np.float64], ...]:
        from sklearn.metrics import precision_recall_fscore_support

        if self.count == 0:
            return (np.full(len(self.confusion), nan),) * 3
        true, predicted = np.indices(self.confusion.shape).reshape(2, -1)
        scores = precision_recall_fscore_support(
            true, predicted, sample_weight=self.confusion.ravel(), zero_division=nan
        )
        return tuple(scores[:3])

    @property
    def precision(self) -> NDArray[np.float64]:
        """Precision of every class; NaN for a class that is never predicted."""
        return self._by_class[0]

    @property
    def recall(self) -> NDArray[np.float64]:
        """Recall of every class; NaN for a class without nodes."""
        return self._by_class[1]

    @property
    def f1(self) -> NDArray[np.float64]:
        """F1 of every class; NaN for a class that neither occurs nor is predicted."""
        return self._by_class[2]

    @property
    def balanced_accuracy(self) -> float:
        """Mean recall of the classes that occur."""
        return float(np.nanmean(self.recall)) if self.count else nan

    @property
    def macro_f1(self) -> float:
        """Mean F1 of the classes that occur or are predicted."""
        return float(np.nanmean(self.f1)) if self.count else nan

    def value(self, metric: str) -> float:
        """Return the value of a metric by its name; the loss has none here.

        Args:
            metric: one of ``METRICS``.
        """
        return float(getattr(self, metric.replace("-", "_"), nan))

    def interval_of(self, metric: str) -> Interval:
        r"""Return the 95% interval of a metric; NaN where it is not known.

        Accuracy has Wilson's interval. Average precision and AUC have logit intervals, with the standard
        errors $1 / \sqrt{n_+ \, p (1 - p)}$ of the logit (Boyd et al., 2013) and of Hanley and McNeil
        (1982). Balanced accuracy and macro F1 have normal intervals, with standard errors from a bootstrap
        of the confusion matrix, to which half a node per cell of an occurring class is added.

        Args:
            metric: one of ``METRICS``.
        """
        value = self.value(metric)
        if np.isnan(value):
            return nan, nan
        if metric == "accuracy":
            return self.interval
        if metric in RANKING_METRICS:
            return self._ranking_interval(metric, value)
        cells = (self.confusion + 0.5 * (self.confusion.sum(1, keepdims=True) > 0)).ravel()
        drawn = np.random.default_rng(0).multinomial(self.count, cells / cells.sum(), BOOTSTRAP_SAMPLES)
        half = NORMAL_95 * float(
            np.nanstd(confusion_metric(metric, drawn.reshape(-1, *self.confusion.shape)))
        )
        return max(0.0, value - half), min(1.0, value + half)

    def _ranking_interval(self, metric: str, value: float) -> Interval:
        counts = self.confusion.sum(1)
        sizes = counts[(counts > 0) & (counts < self.count)]
        # With two classes the rarer one is ranked. A mean over classes is taken to be as uncertain as one.
        positives = float(sizes.min() if len(counts) == 2 else sizes.mean())
        negatives = self.count - positives
        edge = 0.5 / (positives + 1)
        p = min(max(value, edge), 1 - edge)
        variance = p * (1 - p) / positives
        if metric == "auc":
            first, second = p / (2 - p) - p**2, 2 * p**2 / (1 + p) - p**2
            pairs = p * (1 - p) + (positives - 1) * first + (negatives - 1) * second
            variance = pairs / (positives * negatives)
        half = NORMAL_95 * sqrt(variance) / (p * (1 - p))
        low, high = (1 / (1 + (1 - p) / p * exp(-sign * half)) for sign in (-1, 1))
        return min(low, value), max(high, value)


def wilson(right: int, count: int) -> Interval:
    """Return Wilson's 95% interval of a share."""
    from scipy.stats import binomtest

    if count == 0:
        return 0.0, 1.0
    interval = binomtest(right, count).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


def confusion_metric(metric: str, confusion: NDArray[Any]) -> NDArray[np.float64]:
    """Compute accuracy, balanced accuracy or macro F1 of confusion matrices, [...]."""
    right = np.diagonal(confusion, axis1=-2, axis2=-1).astype(np.float64)
    return _class_metric(metric, right, confusion.sum(-1), confusion.sum(-2))


def _class_metric(
    metric: str, right: NDArray[np.float64], true: NDArray[Any], predicted: NDArray[Any]
) -> NDArray[np.float64]:
    """Compute a metric of ``confusion_metric`` from counts per class, [..., classes]."""
    if metric == "accuracy":
        return np.asarray(right.sum(-1) / true.sum(-1))
    size = true if metric == "balanced-accuracy" else (true + predicted) / 2
    shares = np.divide(right, size, out=np.zeros_like(right), where=size > 0)
    return np.asarray(shares.sum(-1) / np.maximum((size > 0).sum(-1), 1))


def weighted_rankings(
    positive: NDArray[np.bool_], scores: NDArray[Any], weights: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute the AUC and the average precision of one ranking under several weightings of its nodes.

    Returns:
        Two arrays [samples]; NaN where a sample has nodes of one kind only.
    """
    order = np.argsort(-scores, kind="stable")
    last = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))  # of every group of equal scores
    hits, misses = (
        np.cumsum(weights[:, order] * kind, axis=1)[:, last] for kind in (positive[order], ~positive[order])
    )
    before = [np.pad(one[:, :-1], ((0, 0), (1, 0))) for one in (hits, misses)]
    with np.errstate(invalid="ignore", divide="ignore"):
        precision = np.nan_to_num(hits / (hits + misses))
        auc = ((hits + before[0]) / 2 * (misses - before[1])).sum(1) / (hits[:, -1] * misses[:, -1])
        average_precision = ((hits - before[0]) * precision).sum(1) / hits[:, -1]
    average_precision[misses[:, -1] == 0] = nan
    return auc, average_precision


def rankings(labels: NDArray[np.int64], probabilities: NDArray[Any]) -> tuple[float, float]:
    """Return the area under the ROC curve and the average precision; see ``Scores``. NaN for one class."""
    auc, average_precision = _sampled_rankings(labels, probabilities, np.ones((1, len(labels))))[:, 0]
    return float(auc), float(average_precision)


def _sampled_rankings(
    labels: NDArray[np.int64], probabilities: NDArray[Any], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return AUC and average precision under several weightings of the nodes, [2, samples]."""
    counts = np.bincount(labels, minlength=probabilities.shape[1])
    ranked = [number for number, count in enumerate(counts) if 0 < count < len(labels)]
    if probabilities.shape[1] == 2:
        ranked = ranked[:1] if counts[0] < counts[1] else ranked[1:]
    if not ranked:
        return np.full((2, len(weights)), nan)
    values = [weighted_rankings(labels == number, probabilities[:, number], weights) for number in ranked]
    return np.asarray(np.mean(values, axis=0))


def comparable_scores(
    labels: NDArray[np.int64], probabilities: NDArray[Any], folds: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return log-odds of every class that rank nodes of several models together, [m, classes].

    Models of different folds differ in how far they spread probabilities, which would mix up their rankings:
    the log-odds are standardized by those of the nodes of other classes in the same fold.
    """
    p = probabilities.astype(np.float64).clip(1e-12, 1 - 1e-12)
    scores: NDArray[np.float64] = np.log(p / (1 - p))
    for fold in np.unique(folds):
        rows = folds == fold
        for number in range(p.shape[1]):
            others = scores[rows & (labels != number), number]
            if len(others):
                scores[rows, number] = (scores[rows, number] - others.mean()) / max(others.std(), 1e-12)
    return scores


def paired_difference(ours: NDArray[Any], theirs: NDArray[Any]) -> tuple[float, float, float]:
    """Return the mean difference of two values per node, and its 95% interval."""
    if len(ours) == 0:
        return nan, nan, nan
    difference = ours.astype(float) - theirs.astype(float)
    mean, half = float(difference.mean()), NORMAL_95 * float(difference.std()) / sqrt(len(ours))
    return mean, mean - half, mean + half


def metric_difference(
    metric: str, labels: NDArray[np.int64], ours: Predictions, theirs: Predictions
) -> tuple[float, float, float]:
    """Return the difference of a metric between two models on the same nodes, and its 95% interval.

    Accuracy is compared node by node; other metrics by a paired bootstrap over nodes.
    """
    if metric in ("loss", "accuracy") or len(labels) == 0:
        return paired_difference(ours[0] == labels, theirs[0] == labels)
    samples = max(50, min(BOOTSTRAP_SAMPLES, MAX_BOOTSTRAP_DRAWS // len(labels)))
    share = np.full(len(labels), 1 / len(labels))
    drawn = np.random.default_rng(0).multinomial(len(labels), share, samples)
    weights = np.concatenate([np.ones((1, len(labels))), drawn]).astype(np.float64)
    values = [_sampled_metric(metric, labels, model, weights) for model in (ours, theirs)]
    first, *others = values[0] - values[1]
    half = NORMAL_95 * float(np.nanstd(others)) if np.isfinite(others).any() else nan
    return float(first), float(first) - half, float(first) + half


def _sampled_metric(
    metric: str, labels: NDArray[np.int64], model: Predictions, weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    predicted, probabilities = model
    if metric in RANKING_METRICS:
        return np.asarray(_sampled_rankings(labels, probabilities, weights)[int(metric != "auc")])
    true, decided = (np.eye(probabilities.shape[1])[kinds] for kinds in (labels, predicted))
    return _class_metric(metric, *(weights @ one for one in (true * decided, true, decided)))


class Standardized(NamedTuple):
    """The accuracy that held-out nodes suggest for the target, after weighting by stratum.

    Args:
        accuracy: over the strata that have enough held-out nodes.
        low: lower end of its 95% interval.
        high: upper end.
        unmatched: share of the target in strata without enough held-out nodes, which no figure describes.
    """

    accuracy: float
    low: float
    high: float
    unmatched: float


def standardize(
    right: NDArray[np.bool_], held_out: NDArray[np.int64], target: NDArray[np.int64]
) -> Standardized:
    r"""Weight the accuracy of every stratum by its share of the target (direct standardization).

    $\hat a = \sum_s w_s a_s$, with Wilson's interval for the effective number of nodes
    $1 / \sum_s (w_s^2 / n_s)$ (Kish, 1965).
    """
    names, counts = np.unique(target, return_counts=True)
    sizes = np.array([np.count_nonzero(held_out == name) for name in names])
    enough = sizes >= MIN_STRATUM
    unmatched = float(counts[~enough].sum() / max(counts.sum(), 1))
    if not enough.any():
        return Standardized(nan, nan, nan, unmatched)
    weights = counts[enough] / counts[enough].sum()
    hits = np.array([right[held_out == name].sum() for name in names[enough]])
    p, nodes = float(weights @ (hits / sizes[enough])), 1 / float(weights**2 @ (1 / sizes[enough]))
    pull = NORMAL_95**2 / nodes
    center, half = p + pull / 2, sqrt(pull * (p * (1 - p) + pull / 4))
    return Standardized(p, (center - half) / (1 + pull), (center + half) / (1 + pull), unmatched)
