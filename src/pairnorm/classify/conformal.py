"""Prediction sets: sets of classes that hold the true class as often as asked for (conformal prediction)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import NamedTuple, Self

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

    def contains(
        self, probabilities: NDArray[np.float32], incomplete: NDArray[np.bool_], rate: float
    ) -> NDArray[np.bool_]:
        """Return which classes are in the prediction set of each node, [n, classes], at an error rate."""
        (limits,) = _thresholds(self.scores, self.incomplete, self.by_group, [rate])
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
        covered = _measure_coverage(self.scores, self.incomplete, self.by_group, rates, groups)
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
    covered = {name: np.full((splits, len(rates)), np.nan) for name in groups}
    for split in range(splits):
        order = random.permutation(count)
        some, others = order[: count // 2], order[count // 2 :]
        limits = _thresholds(scores[some], incomplete[some], by_group, rates)
        inside = scores[others] <= limits[:, incomplete[others].astype(int)]
        for name, group in groups.items():
            if (members := group[others]).any():
                covered[name][split] = inside[:, members].mean(1)
    return covered
