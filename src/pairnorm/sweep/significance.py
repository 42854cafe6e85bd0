"""The one significance test: paired over runs, with intervals, Holm-corrected; and mean ranks."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import inf, isnan, nan, sqrt
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np

ERROR_RATE = 0.05
"""Probability of any false positive in a family of comparisons."""
MIN_DEVIATION = 5e-4
"""The least standard deviation that is assumed of paired differences: accuracies are shown to 0.001."""

Runs = Mapping[int, float]
"""The score of every run, by seed. Runs with one seed share the split and the mask of missing features."""


class Difference(NamedTuple):
    """The mean of paired differences, its 95% interval and the p-value of no difference.

    Args:
        mean: of the first minus the second.
        low: lower end of the interval, minus infinity for a single pair.
        high: upper end.
        p: two-sided, 1 for a single pair.
        runs: number of pairs.
    """

    mean: float
    low: float
    high: float
    p: float
    runs: int

    def __str__(self) -> str:
        interval = "" if self.runs < 2 else f" ({self.low:+.3f} to {self.high:+.3f})"
        return f"{self.mean:+.3f}{interval}"


def paired_difference(one: Runs, other: Runs | float) -> Difference:
    """Compare two methods over the seeds that both have, with Student's t.

    $$ t = \\bar d \\sqrt n / s_d, \\qquad d_i = a_i - b_i $$

    >>> print(paired_difference({0: 0.81, 1: 0.80, 2: 0.83}, {0: 0.79, 1: 0.79, 2: 0.80}))
    +0.020 (-0.005 to +0.045)
    """
    seeds = [seed for seed in one if isinstance(other, float) or seed in other]
    differences = [one[seed] - (other if isinstance(other, float) else other[seed]) for seed in seeds]
    runs = len(differences)
    if not runs or any(map(isnan, differences)):
        return Difference(nan, -inf, inf, 1.0, 0)
    mean = fmean(differences)
    if runs == 1:
        return Difference(mean, -inf, inf, 1.0, 1)
    from scipy.special import stdtr, stdtrit

    error = max(stdev(differences), MIN_DEVIATION) / sqrt(runs)
    p = 2 * float(stdtr(runs - 1, -abs(mean) / error))
    half = float(stdtrit(runs - 1, 1 - ERROR_RATE / 2)) * error
    return Difference(mean, mean - half, mean + half, p, runs)


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of the 95% interval of a mean (Student's t); the value itself for a single one."""
    if len(values) < 2:
        return values[0], values[0]
    from scipy.special import stdtrit

    half = float(stdtrit(len(values) - 1, 1 - ERROR_RATE / 2)) * stdev(values) / sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


def significant(differences: Sequence[Difference]) -> list[bool]:
    """Decide which of a family of differences are not zero, by Holm's procedure.

    The probability of any false positive among them is at most ``ERROR_RATE``.

    >>> significant([Difference(0.1, 0, 0, p, 5) for p in (0.03, 0.001, 0.02)])
    [True, True, True]
    >>> significant([Difference(0.1, 0, 0, p, 5) for p in (0.04, 0.001, 0.03)])
    [False, True, False]
    """
    decided = [False] * len(differences)
    order = sorted(range(len(differences)), key=lambda position: differences[position].p)
    for rank, position in enumerate(order):
        if differences[position].p > ERROR_RATE / (len(differences) - rank):
            break
        decided[position] = True
    return decided


def compare_with(
    reference: str, scores: Mapping[str, Runs], is_selected: bool = False
) -> dict[str, tuple[Difference, bool]]:
    """Compare every other method with a reference: its score minus that, and whether this is significant.

    Args:
        reference: a method.
        scores: of every method, the reference included.
        is_selected: whether a high validation accuracy selected the reference among these methods. It
            correlates with test accuracy, so that the selected method is a lucky one. The error rate then
            holds for all pairs of methods, and so for any reference.
    """
    others = [method for method in scores if method != reference]
    differences = [paired_difference(scores[method], scores[reference]) for method in others]
    pairs = combinations(others, 2) if is_selected else ()
    between_others = [paired_difference(scores[one], scores[other]) for one, other in pairs]
    decided = significant([*differences, *between_others])[: len(others)]
    return dict(zip(others, zip(differences, decided, strict=True), strict=True))


class MeanRank(NamedTuple):
    """A method's mean rank, 1 for the best, and the lowest and highest of its mean ranks on single graphs."""

    method: str
    rank: float
    low: float
    high: float


def mean_ranks(situations: Sequence[Mapping[str, Sequence[float]]], graphs: Sequence[str]) -> list[MeanRank]:
    """Rank methods by mean accuracy in every situation and average the ranks; the best comes first.

    >>> for one in mean_ranks([{"a": [0.9, 0.8], "b": [0.5, 0.6]}, {"a": [0.7, 0.9], "b": [1.0]}], "xy"):
    ...     print(*one)
    a 1.5 1.0 2.0
    b 1.5 1.0 2.0
    """
    from scipy.stats import rankdata

    means = [[fmean(runs) for runs in situation.values()] for situation in situations]
    ranks = rankdata(-np.array(means), axis=1)
    on = np.array([ranks[[name == graph for name in graphs]].mean(0) for graph in dict.fromkeys(graphs)])
    columns = (values.tolist() for values in (ranks.mean(0), on.min(0), on.max(0)))
    rows = zip(situations[0], *columns, strict=True)
    return sorted((MeanRank(*row) for row in rows), key=lambda row: row.rank)
