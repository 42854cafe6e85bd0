"""Calibrate a model on held-out nodes: temperature, decision rule, and conformal prediction sets."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf, nan
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairnorm.base.errors import PairNormError
from pairnorm.classify.evaluation import RANKING_METRICS, Scores, confusion_metric, rankings
from pairnorm.train.problem import part_losses

MAX_TEMPERATURE, NUM_TEMPERATURES = 30.0, 60
# A temperature cannot be fitted to fewer nodes.
MIN_TEMPERATURE_NODES = 20
TILTS = (0.0, 0.25, 0.5, 0.75, 1.0)
ERROR_RATES = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3)
# A group of fewer held-out nodes shares the conformal threshold of all.
MIN_GROUP = 30
MAX_SPLITS, MAX_SPLIT_DRAWS = 100, 1_000_000
ALL, COMPLETE, INCOMPLETE = "all held-out nodes", "with features", "without features"


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


def decide(metric: str, labels: Tensor, probabilities: Tensor, prior: Tensor) -> tuple[float, float]:
    """Return the value of a metric, larger being better, and the tilt t of the decision rule that reaches it.

    The rule predicts the class with the largest p / prior^t: t = 0 is right most often, t = 1 weighs all
    classes equally. With two classes, any t is a threshold. It is chosen for the two metrics that weigh
    classes equally, and 0 for the others.
    """
    truth, p = labels.numpy(), probabilities.double().numpy()
    if len(truth) == 0:
        return nan, 0.0
    if metric in RANKING_METRICS:
        return rankings(truth, p)[metric != "auc"], 0.0
    if metric == "accuracy":
        return float((p.argmax(1) == truth).mean()), 0.0
    if metric == "loss":
        return float(np.log(p[np.arange(len(truth)), truth].clip(1e-30)).mean()), 0.0
    values = []
    for tilt in TILTS:
        confusion = Scores.of(truth, tilted(p, prior.numpy(), tilt).argmax(1), p.shape[1]).confusion
        values.append((float(confusion_metric(metric, confusion)), tilt))
    return max(values, key=lambda one: one[0])


def tilted(probabilities: NDArray[Any], prior: NDArray[Any], tilt: float) -> NDArray[Any]:
    """Return p / prior^t, whose largest entry is predicted; see ``decide``."""
    return np.asarray(probabilities / prior**tilt, dtype=probabilities.dtype)


class Coverage(NamedTuple):
    """How often prediction sets hold the true class, over random halves of the held-out nodes.

    One half sets the threshold, the other is evaluated.

    Args:
        nodes: number of held-out nodes.
        mean: over the halves.
        low: the 5th percentile over the halves.
        high: the 95th percentile.
        guaranteed: whether the guarantee holds for the group by itself.
    """

    nodes: int
    mean: float
    low: float
    high: float
    guaranteed: bool = True


class PredictionSets(NamedTuple):
    """The prediction set of every node at one error rate: its most probable classes, at least one.

    Args:
        rate: how often the true class may be left out.
        sizes: int64 [n], the number of classes in each set.
        coverage: as measured, by group of nodes.
    """

    rate: float
    sizes: NDArray[np.int64]
    coverage: dict[str, Coverage]


class Calibration(NamedTuple):
    r"""Conformity scores of held-out nodes, for split conformal prediction.

    The score $s(y)$ of a class is 0 for the most probable one, else $1 - p(y)$. With $q$ the
    $\lceil (m + 1)(1 - \alpha) \rceil$-th smallest score of the true classes of m held-out nodes,
    $\{y : s(y) \le q\}$ holds the true class of an exchangeable node with a probability of $1 - \alpha$ or
    more (Vovk et al., 2005; Sadinle et al., 2019), and is never empty. Nodes with and without features have
    a threshold each, and so the guarantee each, where enough of both are held out.

    Args:
        scores: float64 [m], of the true classes.
        incomplete: bool [m], nodes that lack most features.
    """

    scores: NDArray[np.float64]
    incomplete: NDArray[np.bool_]

    @classmethod
    def of(
        cls, probabilities: NDArray[np.float32], labels: NDArray[np.int64], incomplete: NDArray[np.bool_]
    ) -> Self:
        """Score held-out nodes that no choice has used: [m, classes], int64 [m] and bool [m]."""
        scores = 1 - probabilities[np.arange(len(labels)), labels].astype(np.float64)
        scores[probabilities.argmax(1) == labels] = 0
        return cls(scores, incomplete)

    @property
    def by_group(self) -> bool:
        """Whether enough nodes with and without features are held out for a threshold each."""
        return bool(min(np.count_nonzero(self.incomplete), np.count_nonzero(~self.incomplete)) >= MIN_GROUP)

    def thresholds(self, rates: Sequence[float], by_group: bool) -> NDArray[np.float64]:
        """Return q, [rates, 2]: for nodes with features, then for nodes without."""
        groups = [self.scores[self.incomplete == kind] if by_group else self.scores for kind in (False, True)]

        def threshold(scores: NDArray[np.float64], rate: float) -> float:
            rank = ceil((len(scores) + 1) * (1 - rate) - 1e-9)
            return float(scores[rank - 1]) if rank <= len(scores) else inf

        return np.array([[threshold(np.sort(scores), rate) for scores in groups] for rate in rates])

    def contains(
        self, probabilities: NDArray[np.float32], incomplete: NDArray[np.bool_], rate: float
    ) -> NDArray[np.bool_]:
        """Return which classes are in the prediction set of each node, [n, classes], at an error rate."""
        (limits,) = self.thresholds([rate], self.by_group)
        inside = 1 - probabilities.astype(np.float64) <= limits[incomplete.astype(int)][:, None]
        inside[np.arange(len(inside)), probabilities.argmax(1)] = True
        return np.asarray(inside)

    def prediction_sets(
        self,
        probabilities: NDArray[np.float32],
        incomplete: NDArray[np.bool_],
        rates: Sequence[float] = ERROR_RATES,
    ) -> list[PredictionSets]:
        """Return the sizes of the sets of some nodes, and their measured coverage, for each error rate."""
        groups = {ALL: np.ones(len(self.scores), dtype=bool)}
        if self.incomplete.any() and not self.incomplete.all():
            groups |= {COMPLETE: ~self.incomplete, INCOMPLETE: self.incomplete}
        covered = self._measure_coverage(rates, groups)
        results = []
        for index, rate in enumerate(rates):
            coverage = {}
            for name, group in groups.items():
                shares = covered[name][:, index]
                low, high = np.nanpercentile(shares, [5, 95]).tolist()
                guaranteed = self.by_group or name == ALL
                coverage[name] = Coverage(int(group.sum()), float(np.nanmean(shares)), low, high, guaranteed)
            sizes = self.contains(probabilities, incomplete, rate).sum(1)
            results.append(PredictionSets(rate, sizes, coverage))
        return results

    def _measure_coverage(
        self, rates: Sequence[float], groups: dict[str, NDArray[np.bool_]]
    ) -> dict[str, NDArray[np.float64]]:
        """Return the share of true classes in their sets, [splits, rates], by group, in random halves."""
        random, count = np.random.default_rng(0), len(self.scores)
        splits = max(2, min(MAX_SPLITS, MAX_SPLIT_DRAWS // count))
        covered = {name: np.full((splits, len(rates)), nan) for name in groups}
        for split in range(splits):
            order = random.permutation(count)
            some, others = order[: count // 2], order[count // 2 :]
            half = Calibration(self.scores[some], self.incomplete[some])
            limits = half.thresholds(rates, self.by_group)
            inside = self.scores[others] <= limits[:, self.incomplete[others].astype(int)]
            for name, group in groups.items():
                if (members := group[others]).any():
                    covered[name][split] = inside[:, members].mean(1)
        return covered
