"""Methods ranked over several situations, with intervals: which are ahead, and which cannot be told apart."""

from collections.abc import Iterator, Mapping, Sequence
from math import sqrt
from statistics import fmean, variance
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
LEVEL = 0.95

Scores = Mapping[str, Sequence[float]]
"""The accuracies of the runs of every method in one situation."""


class Standing(NamedTuple):
    """A method's mean rank, 1 for the best, and its interval."""

    method: str
    rank: float
    low: float
    high: float


def ranking(situations: Sequence[Scores], groups: Sequence[str] | None = None) -> list[Standing]:
    """Rank methods by mean accuracy in every situation, and average the ranks; the best comes first.

    The interval holds 95% of the mean ranks when situations, and in each of them runs, are drawn again with
    replacement. Situations that share a graph are alike: unless graphs are drawn, with all that each of them
    has, it does not speak of other graphs.

    >>> for one in ranking([{"a": [0.9, 0.8], "b": [0.5, 0.6]}, {"a": [0.7, 0.9], "b": [0.3, 0.2]}]):
    ...     print(*one)
    a 1.0 1.0 1.0
    b 2.0 2.0 2.0

    Args:
        situations: of the same methods, each with as many runs in all of them.
        groups: the graph of each, to draw these; default: every situation is drawn by itself.
    """
    methods = list(situations[0])
    values = np.array([[situation[method] for method in methods] for situation in situations])
    generator = np.random.default_rng(0)
    runs = values.shape[2]
    names = np.array(range(len(values)) if groups is None else groups)
    together = [np.flatnonzero(names == name) for name in dict.fromkeys(names.tolist())]
    drawn = [values.mean(2)]
    for _ in range(RESAMPLES):
        places = generator.integers(len(together), size=len(together))
        some = values[np.concatenate([together[place] for place in places])]
        again = np.take_along_axis(some, generator.integers(runs, size=some.shape), axis=2)
        drawn.append(again.mean(2))
    ranks, *resampled = _mean_ranks(drawn)
    low, high = np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    found = zip(methods, ranks.tolist(), low.tolist(), high.tolist(), strict=True)
    return sorted((Standing(*one) for one in found), key=lambda one: one.rank)


def _mean_ranks(drawn: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the methods' mean ranks in each of several sets of situations, which are ranked all at once."""
    from scipy.stats import rankdata

    ranks = rankdata(-np.concatenate(drawn), axis=1)
    sizes = np.array([len(situations) for situations in drawn])
    means: NDArray[np.float64] = np.add.reduceat(ranks, np.cumsum(sizes) - sizes) / sizes[:, None]
    return means


def critical_difference(methods: int, situations: int) -> float:
    """Return by how much two mean ranks must differ for Nemenyi's test to tell them apart at 5%.

    q √(k (k + 1) / 6 N) with the studentized range q / √2 of k methods, over N independent situations.

    Args:
        methods: k.
        situations: N.
    """
    from scipy.stats import studentized_range

    q = float(studentized_range.ppf(LEVEL, methods, np.inf)) / sqrt(2)
    return q * sqrt(methods * (methods + 1) / (6 * situations))


def told_apart(one: Sequence[float], other: Sequence[float]) -> bool:
    """Say whether two means differ by more than two standard errors of their difference.

    Args:
        one: at least two values; with fewer nothing is told apart.
        other: likewise.
    """
    if min(len(one), len(other)) < 2:
        return False
    error = sqrt(variance(one) / len(one) + variance(other) / len(other))
    return abs(fmean(one) - fmean(other)) > 2 * error


def leaders(scores: Scores) -> Iterator[str]:
    """Yield the best method of a situation, then those that cannot be told apart from it, best first."""
    best, *others = sorted(scores, key=lambda method: -fmean(scores[method]))
    yield best
    for method in others:
        if not told_apart(scores[method], scores[best]):
            yield method
