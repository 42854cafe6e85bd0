"""Evaluate predictions: metrics, intervals, differences; temperature, decision rule."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, exp, floor, isnan, nan, sqrt
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairnorm.base.errors import PairNormError
from pairnorm.train.problem import part_losses

NORMAL_95 = 1.959964
# A stratum of fewer held-out nodes does not state an accuracy.
MIN_STRATUM = 5
METRICS = ("loss", "accuracy", "balanced-accuracy", "macro-f1", "average-precision", "auc")
RANKING_METRICS = ("average-precision", "auc")
BOOTSTRAP_SAMPLES, MAX_BOOTSTRAP_DRAWS = 500, 2_000_000
MAX_TEMPERATURE, NUM_TEMPERATURES = 30.0, 60
# A temperature cannot be fitted to fewer nodes.
MIN_TEMPERATURE_NODES = 20
TILTS = (0.0, 0.25, 0.5, 0.75, 1.0)

Booleans = NDArray[np.bool_]
Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Interval = tuple[float, float]
Predictions = tuple[Integers, NDArray[Any]]
"""Predicted classes [m], and probabilities [m, classes]."""


def metric_name(metric: str) -> str:
    """Return the name of one of ``METRICS`` in reports, such as ``"macro F1"``."""
    return {"auc": "AUC", "macro-f1": "macro F1"}.get(metric, metric.replace("-", " "))


@dataclass(frozen=True, eq=False)
class Scores:
    """Metrics of predictions, from their confusion matrix and, where known, their probabilities.

    Args:
        confusion: int64 [classes, classes]: row = the true class, column = the predicted one.
        auc: area under the ROC curve; of two classes that of the rarer one, else the mean over classes.
        average_precision: area under the precision-recall curve; likewise.
    """

    confusion: Integers
    auc: float = nan
    average_precision: float = nan

    @classmethod
    def of(
        cls,
        labels: Integers,
        predicted: Integers,
        classes: int,
        probabilities: NDArray[Any] | None = None,
        cross_fitted: bool = False,
    ) -> Scores:
        """Compute the scores of some nodes, given labels and predicted classes, int64 [m].

        With ``cross_fitted``, the bias of the average precision is corrected; see
        ``expected_average_precision``.
        """
        pairs = labels * classes + predicted
        confusion = np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)
        if probabilities is None:
            return cls(confusion)
        auc, average_precision = rankings(labels, probabilities)[:, 0].tolist()
        if cross_fitted and (ranked := _ranked_classes(labels, classes)):
            values = [expected_average_precision(labels == one, probabilities[:, one]) for one in ranked]
            average_precision = float(np.mean(values))
        return cls(confusion, auc, average_precision)

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
        return self.value("accuracy")

    @property
    def most_frequent_share(self) -> float:
        """Share of the most frequent class: the accuracy of predicting it for every node."""
        return int(self.confusion.sum(1).max()) / self.count if self.count else nan

    @property
    def uninformed(self) -> Scores:
        """The scores of predicting the most frequent class for all nodes, with equal probabilities."""
        counts = self.confusion.sum(1)
        labels = np.repeat(np.arange(len(counts)), counts)
        constant = np.ones((self.count, len(counts)))
        return Scores.of(labels, np.full_like(labels, counts.argmax()), len(counts), constant)

    @property
    def interval(self) -> Interval:
        """Wilson's 95% interval of the accuracy."""
        return wilson(self.right, self.count)

    @property
    def precision(self) -> Floats:
        """Precision of every class; NaN for a class that is never predicted."""
        return _divide_or_nan(np.diagonal(self.confusion), self.confusion.sum(0))

    @property
    def recall(self) -> Floats:
        """Recall of every class; NaN for a class without nodes."""
        return _divide_or_nan(np.diagonal(self.confusion), self.confusion.sum(1))

    @property
    def f1(self) -> Floats:
        """F1 of every class; NaN for a class that neither occurs nor is predicted."""
        return _divide_or_nan(2 * np.diagonal(self.confusion), self.confusion.sum(0) + self.confusion.sum(1))

    def value(self, metric: str) -> float:
        """Return the value of one of ``METRICS``; NaN for the loss, which is not known here.

        Balanced accuracy is the mean recall of the classes that occur, macro F1 the mean F1 of the classes
        that occur or are predicted.
        """
        if metric in RANKING_METRICS:
            return self.auc if metric == "auc" else self.average_precision
        return float(_confusion_metric(metric, self.confusion)) if self.count and metric != "loss" else nan

    def interval_of(self, metric: str) -> Interval:
        r"""Return the 95% interval of one of ``METRICS``; NaN where it is not known.

        Accuracy has Wilson's interval. Average precision and AUC have logit intervals, with the standard
        errors $1 / \sqrt{n_+ \, p (1 - p)}$ of the logit (Boyd et al., 2013) and of Hanley and McNeil
        (1982). Balanced accuracy and macro F1 have normal intervals, with standard errors from a bootstrap
        of the confusion matrix, to which half a node per cell of an occurring class is added.
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
        values = _confusion_metric(metric, drawn.reshape(-1, *self.confusion.shape))
        half = NORMAL_95 * float(values.std())
        return max(0.0, value - half), min(1.0, value + half)

    def describe(self, metric: str) -> str:
        """Return a metric with its interval, rounded outwards: ``85.0% (73 to 92)``; a dash where unknown."""
        low, high = (100 * end for end in self.interval_of(metric))
        return "–" if isnan(low) else f"{self.value(metric):.1%} ({floor(low)} to {ceil(high)})"

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


def _divide_or_nan(part: NDArray[Any], total: NDArray[Any]) -> Floats:
    shares: Floats = np.divide(part, total, out=np.full(total.shape, nan), where=total > 0)
    return shares


def _confusion_metric(metric: str, confusion: NDArray[Any]) -> Floats:
    """Compute accuracy, balanced accuracy or macro F1 of confusion matrices, [...]."""
    right = np.diagonal(confusion, axis1=-2, axis2=-1)
    return _class_metric(metric, right, confusion.sum(-1), confusion.sum(-2))


def _class_metric(metric: str, right: NDArray[Any], true: NDArray[Any], predicted: NDArray[Any]) -> Floats:
    """Compute a metric of ``_confusion_metric`` from counts per class, [..., classes]."""
    if metric == "accuracy":
        return np.asarray(right.sum(-1) / true.sum(-1))
    size = true if metric == "balanced-accuracy" else (true + predicted) / 2
    return np.asarray(np.nanmean(_divide_or_nan(right, size), -1))


def wilson(right: float, count: float) -> Interval:
    """Return Wilson's 95% interval of a share; the numbers may be effective ones, not whole."""
    if count == 0:
        return 0.0, 1.0
    p, pull = right / count, NORMAL_95**2 / count
    half = sqrt(pull * (p * (1 - p) + pull / 4))
    return max(0.0, (p + pull / 2 - half) / (1 + pull)), min(1.0, (p + pull / 2 + half) / (1 + pull))


def weighted_rankings(positive: Booleans, scores: NDArray[Any], weights: Floats) -> tuple[Floats, Floats]:
    """Compute AUC and average precision of a ranking under several weightings of its nodes, [samples, m].

    They are NaN where a sample has nodes of one kind only.
    """
    order = np.argsort(-scores, kind="stable")
    last = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))  # of every group of equal scores
    hits, misses = (
        np.cumsum(weights[:, order] * kind, axis=1)[:, last] for kind in (positive[order], ~positive[order])
    )
    before = [np.pad(sums[:, :-1], ((0, 0), (1, 0))) for sums in (hits, misses)]
    with np.errstate(invalid="ignore", divide="ignore"):
        precision = np.nan_to_num(hits / (hits + misses))
        auc = ((hits + before[0]) / 2 * (misses - before[1])).sum(1) / (hits[:, -1] * misses[:, -1])
        average_precision = ((hits - before[0]) * precision).sum(1) / hits[:, -1]
    average_precision[misses[:, -1] == 0] = nan
    return auc, average_precision


def rankings(labels: Integers, probabilities: NDArray[Any], weights: Floats | None = None) -> Floats:
    """Return AUC and average precision, see ``Scores``, [2, samples]; NaN for one class.

    ``weights`` of the nodes are [samples, m]; by default one sample in which all weigh the same.
    """
    weights = np.ones((1, len(labels))) if weights is None else weights
    ranked = _ranked_classes(labels, probabilities.shape[1])
    if not ranked:
        return np.full((2, len(weights)), nan)
    values = [weighted_rankings(labels == number, probabilities[:, number], weights) for number in ranked]
    return np.asarray(np.mean(values, axis=0))


def _ranked_classes(labels: Integers, classes: int) -> list[int]:
    """Return the rarer one of two classes, or all classes that some of the nodes have, and not all."""
    counts = np.bincount(labels, minlength=classes)
    ranked = [number for number, count in enumerate(counts) if 0 < count < len(labels)]
    return ranked if classes != 2 else ranked[:1] if counts[0] < counts[1] else ranked[1:]


def expected_average_precision(positive: Booleans, scores: NDArray[Any]) -> float:
    r"""Estimate the average precision of other nodes like these, without the bias of few positive ones.

    A positive node counts in its own precision, which is too high on average therefore. Here it is ranked
    among the others: with $t$ of the $n_+ - 1$ other positive nodes and $f$ negative ones before it or next
    to it, its precision is $n_+ t' / (n_+ t' + f)$ with $t' = t / (n_+ - 1)$, and 1 if $t = f = 0$.
    """
    count = int(positive.sum())
    ranked, own = np.sort(-scores[positive]), -scores[positive]
    others = count / max(count - 1, 1) * (np.searchsorted(ranked, own, side="right") - 1.0)
    misses = np.searchsorted(np.sort(-scores[~positive]), own, side="right")
    before = others + misses
    return float(np.divide(others, before, out=np.ones(count), where=before > 0).mean())


def comparable_scores(probabilities: NDArray[Any]) -> Floats:
    """Return log-odds of every class that rank nodes of several models together, [n, classes].

    Models of different folds differ in how far they spread probabilities, which would mix up their rankings:
    the log-odds are standardized by those of all nodes.
    """
    p = probabilities.astype(np.float64).clip(1e-12, 1 - 1e-12)
    scores: Floats = np.log(p / (1 - p))
    return np.asarray((scores - scores.mean(0)) / scores.std(0).clip(1e-12))


def paired_difference(ours: NDArray[Any], theirs: NDArray[Any]) -> tuple[float, float, float]:
    """Return the difference of two accuracies on the same nodes, and its 95% interval.

    The interval is that of Agresti and Min (2005), half a node more in each cell of the table of pairs: it
    has a width also where both models are right on the same nodes.
    """
    if len(ours) == 0:
        return nan, nan, nan
    difference, count = ours.astype(float) - theirs.astype(float), len(ours) + 2
    center = difference.sum() / count
    half = NORMAL_95 * sqrt(((difference**2).sum() + 1) / count - center**2) / sqrt(count)
    return float(difference.mean()), max(-1.0, float(center - half)), min(1.0, float(center + half))


def metric_difference(
    metric: str, labels: Integers, ours: Predictions, theirs: Predictions
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
    values = []
    for predicted, probabilities in (ours, theirs):
        if metric in RANKING_METRICS:
            values.append(rankings(labels, probabilities, weights)[int(metric != "auc")])
        else:
            true, decided = (np.eye(probabilities.shape[1])[classes] for classes in (labels, predicted))
            counts = (weights @ counted for counted in (true * decided, true, decided))
            values.append(_class_metric(metric, *counts))
    first, *others = values[0] - values[1]
    half = NORMAL_95 * float(np.nanstd(others)) if np.isfinite(others).any() else nan
    return float(first), float(first) - half, float(first) + half


class Standardized(NamedTuple):
    """The estimated accuracy on the target population, from held-out nodes weighted by stratum.

    ``unmatched`` is the share of the target in strata without enough held-out nodes.
    """

    accuracy: float
    interval: Interval
    unmatched: float


def standardize(right: Booleans, held_out: Integers, target: Integers) -> Standardized:
    r"""Weight the accuracy of every stratum by its share of the target (direct standardization).

    $\hat a = \sum_s w_s a_s$, with Wilson's interval for the effective number of nodes
    $1 / \sum_s (w_s^2 / n_s)$ (Kish, 1965).
    """
    names, counts = np.unique(target, return_counts=True)
    sizes = np.array([np.count_nonzero(held_out == name) for name in names])
    enough = sizes >= MIN_STRATUM
    unmatched = float(counts[~enough].sum() / max(counts.sum(), 1))
    if not enough.any():
        return Standardized(nan, (nan, nan), unmatched)
    weights = counts[enough] / counts[enough].sum()
    hits = np.array([right[held_out == name].sum() for name in names[enough]])
    p, nodes = float(weights @ (hits / sizes[enough])), 1 / float(weights**2 @ (1 / sizes[enough]))
    return Standardized(p, wilson(p * nodes, nodes), unmatched)


def mean_probabilities(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Return softmax(logits / T), averaged over models: [n, classes] from [n, models, classes]."""
    probabilities = (logits / temperature).softmax(-1).mean(1)
    if not probabilities.isfinite().all():
        count = int((~probabilities.isfinite()).any(1).sum())
        problem = f"the probabilities of {count:,} nodes are not finite"
        hint = "Look for very large features, or pass another {scaling}."
        raise PairNormError(problem, code="not-finite", hint=hint, scaling="columns")
    return probabilities


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """Fit the temperature from 1 to 30 that makes labels most likely (Guo et al., 2017); 1 for few nodes.

    It is never below 1, and one wrong label is added, as Platt (1999) proposes: a model that is right on all
    of a few validation nodes would otherwise be certain of everything.
    """
    if len(labels) < MIN_TEMPERATURE_NODES:
        return 1.0

    def loss(temperature: float) -> float:
        logarithms = mean_probabilities(logits.double(), temperature).clamp(min=1e-30).log()
        return float(part_losses(logarithms, labels) - logarithms.mean() / len(labels))

    temperatures = torch.logspace(0, torch.tensor(MAX_TEMPERATURE).log10().item(), NUM_TEMPERATURES).tolist()
    return float(min(temperatures, key=loss))


def fit_tilt(metric: str, labels: Tensor, probabilities: Tensor, prior: Tensor) -> tuple[float, float]:
    """Choose the tilt t of the decision rule by a metric; return the metric's value (larger is better) and t.

    The rule predicts the class with the largest p / prior^t: t = 0 is right most often, t = 1 weighs all
    classes equally. With two classes, any t is a threshold. It is chosen for the two metrics that weigh
    classes equally, and 0 for the others.
    """
    truth, p = labels.numpy(), probabilities.double().numpy()
    if len(truth) == 0:
        return nan, 0.0
    if metric in RANKING_METRICS:
        return float(rankings(truth, p)[int(metric != "auc"), 0]), 0.0
    if metric == "loss":
        return float(np.log(p[np.arange(len(truth)), truth].clip(1e-30)).mean()), 0.0
    values = []
    for tilt in TILTS[:1] if metric == "accuracy" else TILTS:
        predicted = apply_tilt(p, prior.numpy(), tilt).argmax(1)
        values.append((Scores.of(truth, predicted, p.shape[1]).value(metric), tilt))
    return max(values, key=lambda pair: pair[0])


def apply_tilt(probabilities: NDArray[Any], prior: NDArray[Any], tilt: float) -> NDArray[Any]:
    """Return p / prior^t, whose largest entry is predicted; see ``fit_tilt``."""
    return np.asarray(probabilities / prior**tilt, dtype=probabilities.dtype)
