"""Rows of the comparison by depth: grouped, ranked, chosen among by validation, and named."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from statistics import fmean
from typing import Any, NamedTuple

from pairnorm.compare.depth import DepthComparison
from pairnorm.compare.ranking import Standing, ranking
from pairnorm.sweep.tables import TITLES

NONE = "none"
PAIR_NORM = ("PN", "PN-SI", "PN-SCS", "PN-degree", "PN-SI-degree")
DEEP = 16
MOST_NAMED = 5

Row = Mapping[str, Any]
"""A row of the table, with the accuracies of its runs."""


class Choice(NamedTuple):
    """The row that validation chooses among some."""

    method: str
    depth: int
    accuracies: Sequence[float]

    @classmethod
    def among(cls, rows: Iterable[Row]) -> "Choice | None":
        """Return the one with the best validation accuracy; None where there are no rows."""
        best = max(rows, key=itemgetter("validation_accuracy"), default=None)
        return None if best is None else cls(best["remedy"], best["depth"], best["accuracies"])

    def __str__(self) -> str:
        return f"{short(self.method)}, {self.depth} layers"

    @property
    def accuracy(self) -> float:
        """The mean test accuracy."""
        return fmean(self.accuracies)


def short(method: str) -> str:
    """Return a method's name without the module that it comes from: ``Whiten@1``."""
    return method.rpartition(":")[2]


def compared(rows: Iterable[Row]) -> list[Row]:
    """Return the rows of situations that have at least half of their model's methods.

    Where fewer were run there is too little to choose from, or to rank.
    """
    rows, place = list(rows), itemgetter("model", "dataset", "missing_percent", "depth")
    counts = Counter(map(place, rows))
    most: dict[str, int] = {}
    for (model, *_), count in counts.items():
        most[model] = max(count, most.get(model, 0))
    return [row for row in rows if 2 * counts[place(row)] >= most[row["model"]]]


Situation = tuple[str, int, int]
"""A graph, the percentage that is missing, a depth."""


def ranked(rows: Sequence[Row]) -> tuple[list[Standing], list[Situation]]:
    """Rank the methods of a model over graphs, depths and missing rates; also: over which of these.

    Only what is ``compared`` counts, and methods that lack a situation are left out. Of several graphs, the
    interval is what other graphs would give.
    """
    situations: dict[Situation, dict[str, Sequence[float]]] = defaultdict(dict)
    for row in compared(rows):
        where = row["dataset"], row["missing_percent"], row["depth"]
        situations[where][row["remedy"]] = row["accuracies"]
    full = list(situations.values())
    methods = [method for method in (full[0] if full else ()) if all(method in scores for scores in full)]
    if len(methods) < 2:
        return [], []
    graphs = [graph for graph, *_ in situations]
    scores = [{method: scores[method] for method in methods} for scores in full]
    return ranking(scores, graphs if len({*graphs}) > 1 else None), list(situations)


def title(wanted: DepthComparison, dataset: str) -> str:
    """Return what to call a graph."""
    graph = wanted.graphs.get(dataset)
    return TITLES.get(dataset, dataset) if graph is None else graph.name


def features(percent: int) -> str:
    """Return a missing rate in words."""
    words = {0: "all features", 100: "training nodes' features alone"}
    return words.get(percent, f"{percent}% of vectors missing")


def by(rows: Iterable[Row], *names: str) -> dict[tuple[Any, ...], list[Row]]:
    """Group rows by some of their columns."""
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in names)].append(row)
    return dict(groups)


def names(methods: Sequence[str]) -> str:
    """Name a few methods, and say how many more there are."""
    more = len(methods) - MOST_NAMED
    named = ", ".join(map(short, methods[:MOST_NAMED]))
    return f"{named} and {more} more" if more > 0 else named


def only(rows: Iterable[Row], methods: Sequence[str]) -> list[Row]:
    """Return the rows of some methods."""
    return [row for row in rows if row["remedy"] in methods]
