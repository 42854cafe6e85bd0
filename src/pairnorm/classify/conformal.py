"""Prediction sets: sets of classes that hold the true class as often as asked for (conformal prediction)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf

import numpy as np
from numpy.typing import NDArray

ERROR_RATES = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3)
# A group of fewer held-out nodes shares the threshold of all.
MIN_GROUP = 30
MAX_SPLITS, MAX_DRAWN = 100, 1_000_000
ALL, COMPLETE, INCOMPLETE = "all held-out nodes", "with features", "without features"


@dataclass(frozen=True)
class Coverage:
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


@dataclass(frozen=True, eq=False)
class PredictionSets:
    """The prediction set of every node at one error rate: its most probable classes, at least one.

    Args:
        rate: how often the true class may be left out.
        sizes: int64 [n], the number of classes in each set.
        coverage: as measured, by group of nodes.
    """

    rate: float
    sizes: NDArray[np.int64]
    coverage: dict[str, Coverage]


def prediction_sets(
    evaluated: NDArray[np.float32],
    labels: NDArray[np.int64],
    incomplete: NDArray[np.bool_],
    delivered: NDArray[np.float32],
    delivered_incomplete: NDArray[np.bool_],
    rates: Sequence[float] = ERROR_RATES,
) -> list[PredictionSets]:
    r"""Build the prediction sets of every error rate by split conformal prediction.

    The score $s(y)$ of a class is 0 for the most probable one, else $1 - p(y)$. With $q$ the
    $\lceil (m + 1)(1 - \alpha) \rceil$-th smallest score of the true classes of m held-out nodes,
    $\{y : s(y) \le q\}$ holds the true class of an exchangeable node with a probability of $1 - \alpha$ or
    more (Vovk et al., 2005; Sadinle et al., 2019), and is never empty. Nodes with and without features have
    a threshold each, and so the guarantee each, where enough of both are held out.

    Args:
        evaluated: [m, classes], probabilities of held-out nodes that no choice has used.
        labels: int64 [m], their classes.
        incomplete: bool [m], those that lack most features.
        delivered: [n, classes], probabilities of the nodes that get sets.
        delivered_incomplete: bool [n], those that lack most features.
        rates: the error rates.
    """
    scores = 1 - evaluated[np.arange(len(labels)), labels].astype(np.float64)
    scores[evaluated.argmax(1) == labels] = 0
    by_group = bool(min(np.count_nonzero(incomplete), np.count_nonzero(~incomplete)) >= MIN_GROUP)
    groups = {ALL: np.ones(len(labels), dtype=bool)}
    if incomplete.any() and not incomplete.all():
        groups |= {COMPLETE: ~incomplete, INCOMPLETE: incomplete}
    covered = _measure_coverage(scores, incomplete, by_group, rates, groups)
    limits = _thresholds(scores, incomplete, by_group, rates)
    distances, found = 1 - delivered.astype(np.float64), []
    for index, rate in enumerate(rates):
        sizes = (distances <= limits[index, delivered_incomplete.astype(int)][:, None]).sum(1).clip(min=1)
        coverage = {}
        for name, group in groups.items():
            shares = covered[name][:, index]
            low, high = np.nanpercentile(shares, [5, 95]).tolist()
            guaranteed = by_group or name == ALL
            coverage[name] = Coverage(int(group.sum()), float(np.nanmean(shares)), low, high, guaranteed)
        found.append(PredictionSets(rate, sizes, coverage))
    return found


def _thresholds(
    scores: NDArray[np.float64], incomplete: NDArray[np.bool_], by_group: bool, rates: Sequence[float]
) -> NDArray[np.float64]:
    """Return q, [rates, 2]: for nodes with features, then for nodes without."""
    groups = [np.sort(scores[incomplete == kind] if by_group else scores) for kind in (False, True)]

    def threshold(known: NDArray[np.float64], rate: float) -> float:
        rank = ceil((len(known) + 1) * (1 - rate) - 1e-9)
        return float(known[rank - 1]) if rank <= len(known) else inf

    return np.array([[threshold(known, rate) for known in groups] for rate in rates])


def _measure_coverage(
    scores: NDArray[np.float64],
    incomplete: NDArray[np.bool_],
    by_group: bool,
    rates: Sequence[float],
    groups: dict[str, NDArray[np.bool_]],
) -> dict[str, NDArray[np.float64]]:
    """Return the share of true classes in their sets, [splits, rates], by group, in random halves."""
    random, count = np.random.default_rng(0), len(scores)
    splits = max(2, min(MAX_SPLITS, MAX_DRAWN // count))
    found = {name: np.full((splits, len(rates)), np.nan) for name in groups}
    for split in range(splits):
        order = random.permutation(count)
        some, others = order[: count // 2], order[count // 2 :]
        limits = _thresholds(scores[some], incomplete[some], by_group, rates)
        inside = scores[others] <= limits[:, incomplete[others].astype(int)]
        for name, group in groups.items():
            if (members := group[others]).any():
                found[name][split] = inside[:, members].mean(1)
    return found
