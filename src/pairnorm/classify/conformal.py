"""Labels with a guarantee: sets that hold the true class as often as was asked for (conformal prediction)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf

import numpy as np
from numpy.typing import NDArray

from pairnorm.classify.holdout import FEW

RATES = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3)
SPLITS, DRAWN = 100, 1_000_000


@dataclass(frozen=True)
class Coverage:
    """How often sets held the true class of held-out nodes that had no part in setting the threshold.

    Args:
        nodes: how many held-out nodes there are.
        mean: over random halves: one sets the threshold, the other is judged.
        low: the 5th percentile over the halves.
        high: the 95th.
        own: whether the group has a threshold of its own, and so the guarantee for itself.
    """

    nodes: int
    mean: float
    low: float
    high: float
    own: bool = True


@dataclass(frozen=True, eq=False)
class LabelSets:
    """For every node the classes that cannot be ruled out at an error rate: the most probable so many.

    Args:
        rate: how often the true class may be left out.
        sizes: int64 [n], how many classes; 0 where no class is probable enough.
        coverage: measured, by group of nodes.
    """

    rate: float
    sizes: NDArray[np.int64]
    coverage: dict[str, Coverage]


def label_sets(
    probabilities: NDArray[np.float32],
    labels: NDArray[np.int64],
    held_out: NDArray[np.bool_],
    lacking: NDArray[np.bool_],
    rates: Sequence[float] = RATES,
) -> list[LabelSets]:
    r"""Return the sets of every error rate, by split conformal prediction on the held-out nodes.

    With $s_i = 1 - p_i(y_i)$ on m held-out nodes and $q$ the $\lceil (m + 1)(1 - \alpha) \rceil$-th smallest
    of them, $\{y : 1 - p(y) \le q\}$ holds the true class of a node that is like them with a probability of
    $1 - \alpha$ or more (Vovk et al., 2005; Sadinle et al., 2019). Nodes with features and nodes without have
    a threshold each, and so the guarantee each, where enough of both are held out.

    Args:
        probabilities: [n, classes].
        labels: int64 [n].
        held_out: bool [n], labeled nodes that no choice has seen.
        lacking: bool [n], the nodes without features.
        rates: the error rates.
    """
    nodes = np.flatnonzero(held_out)
    scores, kinds = 1 - probabilities[nodes, labels[nodes]].astype(np.float64), lacking[nodes]
    own = bool(min(np.count_nonzero(kinds), np.count_nonzero(~kinds)) >= FEW)
    groups = {"all held-out nodes": np.ones(len(nodes), dtype=bool)}
    if kinds.any() and not kinds.all():
        groups |= {"with features": ~kinds, "without features": kinds}
    covered = _covered(scores, kinds, own, rates, groups)
    distances = 1 - probabilities.astype(np.float64)
    found = []
    for place, (rate, limit) in enumerate(zip(rates, _thresholds(scores, kinds, own, rates), strict=True)):
        sizes = (distances <= limit[lacking.astype(int)][:, None]).sum(1)
        coverage = {}
        for name, group in groups.items():
            shares = covered[name][:, place]
            low, high = np.nanpercentile(shares, [5, 95]).tolist()
            guaranteed = own or name == "all held-out nodes"
            coverage[name] = Coverage(int(group.sum()), float(np.nanmean(shares)), low, high, guaranteed)
        found.append(LabelSets(rate, sizes, coverage))
    return found


def _thresholds(
    scores: NDArray[np.float64], kinds: NDArray[np.bool_], own: bool, rates: Sequence[float]
) -> NDArray[np.float64]:
    """Return q, [rates, 2]: of nodes with features and of nodes without."""
    both = [np.sort(scores[kinds == kind] if own else scores) for kind in (False, True)]
    ranks = [[ceil((len(known) + 1) * (1 - rate) - 1e-9) for known in both] for rate in rates]
    return np.array(
        [
            [known[rank - 1] if rank <= len(known) else inf for known, rank in zip(both, pair, strict=True)]
            for pair in ranks
        ]
    )


def _covered(
    scores: NDArray[np.float64],
    kinds: NDArray[np.bool_],
    own: bool,
    rates: Sequence[float],
    groups: dict[str, NDArray[np.bool_]],
) -> dict[str, NDArray[np.float64]]:
    """Return the share of true classes in their sets, [splits, rates], by group, in random halves."""
    random, count = np.random.default_rng(0), len(scores)
    splits = max(2, min(SPLITS, DRAWN // count))
    found = {name: np.full((splits, len(rates)), np.nan) for name in groups}
    for split in range(splits):
        order = random.permutation(count)
        some, others = order[: count // 2], order[count // 2 :]
        limits = _thresholds(scores[some], kinds[some], own, rates)
        inside = scores[others] <= limits[:, kinds[others].astype(int)]
        for name, group in groups.items():
            if (judged := group[others]).any():
                found[name][split] = inside[:, judged].mean(1)
    return found
