"""The comparison by depth over several graphs: what to use in which situation, and who is ahead."""

from collections.abc import Callable, Iterator, Sequence
from math import sqrt
from statistics import fmean, variance
from typing import TYPE_CHECKING, NamedTuple

from pairnorm.base import plotting
from pairnorm.compare.depth_rows import DEEP, NONE, PAIR_NORM, Choice, Row, by, features, names, ranked, short
from pairnorm.compare.ranking import Standing, critical_difference
from pairnorm.sweep.tables import markdown_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LARGE = ("pubmed", "coauthor-cs")
"""Those of the package's graphs with some 19,000 nodes; the others have 3,000."""

SITUATIONS: dict[str, Callable[[Row], bool]] = {
    "few labels": lambda row: True,
    f"very deep: {DEEP} layers or more": lambda row: row["depth"] >= DEEP,
    "a larger graph": lambda row: row["dataset"] in LARGE,
}
CHOSEN = """\
Means over graphs, of each model by itself, for not every one was run on the same graphs. On every graph
validation chooses the depth of each remedy; of those that were run on all, it then chooses by its mean.
Beside it are those that are as good or not told apart from it over the runs of these graphs. All have few
labels: 20 to 40 a class. The larger graphs have some 19,000 nodes.
"""
RANKING = """\
Mean rank by test accuracy over {situations} situations (depths and missing rates of {graphs} graphs), 1 is
best. The interval is what 95% of the draws give when graphs and runs are drawn again; {graphs} graphs are
few. Nemenyi's test, which compares all pairs at once and takes situations for independent, tells apart ranks
that differ by {difference:.1f}: the gray band, from the best on.
"""


class Contender(NamedTuple):
    """A model with a method, at the depth that validation chooses on each graph."""

    model: str
    method: str
    validation: float
    choices: Sequence[Choice]

    def __str__(self) -> str:
        depths = sorted({choice.depth for choice in self.choices})
        layers = f"{depths[0]} layers" if len(depths) == 1 else f"{depths[0]} to {depths[-1]} layers"
        return f"{self.model}, {short(self.method)}, {layers}"

    @property
    def accuracy(self) -> float:
        """The mean test accuracy over graphs."""
        return fmean(choice.accuracy for choice in self.choices)

    def told_apart(self, other: "Contender") -> bool:
        """Say whether the means differ by more than two standard errors over the runs of these graphs."""
        runs = [choice.accuracies for choice in (*self.choices, *other.choices)]
        if min(map(len, runs)) < 2:
            return False
        error = sqrt(sum(variance(some) / len(some) for some in runs)) / len(self.choices)
        return abs(self.accuracy - other.accuracy) > 2 * error


def over_graphs(rows: Sequence[Row], figures: dict[str, str]) -> Iterator[str]:
    """Yield what is to be said of all graphs together, in Markdown; nothing where there is one.

    Args:
        rows: of the table.
        figures: files of the rankings, by model.
    """
    if len({row["dataset"] for row in rows}) < 2:
        return
    yield f"## By situation, over graphs\n\n{CHOSEN}"
    yield _by_situation(rows)
    for (model,), some in by(rows, "model").items():
        standings, situations = ranked(some)
        graphs = len({graph for graph, *_ in situations})
        if not standings or graphs < 2:
            continue
        yield f"### Ranking of {model} over {graphs} graphs"
        if model in figures:
            yield f"![Mean rank of every remedy, with intervals over graphs]({figures[model]})"
        difference = critical_difference(len(standings), len(situations))
        yield RANKING.format(situations=len(situations), graphs=graphs, difference=difference)
        lines = [
            (short(one.method), f"{one.rank:.1f}", f"{one.low:.1f} to {one.high:.1f}") for one in standings
        ]
        yield markdown_table(("remedy", "mean rank", "95% interval over graphs"), lines)


def _by_situation(rows: Sequence[Row]) -> str:
    lines = []
    for situation, applies in SITUATIONS.items():
        groups = by(filter(applies, rows), "missing_percent", "model")
        for (percent, _), some in sorted(groups.items()):
            every = _contenders(some)
            if not every:
                continue
            best = max(every, key=lambda one: one.validation)
            equal = [
                one.method
                for one in sorted(every, key=lambda one: -one.accuracy)
                if one is not best and (one.accuracy >= best.accuracy or not one.told_apart(best))
            ]
            words = (situation, features(percent), str(len(best.choices)), str(best), f"{best.accuracy:.3f}")
            lines.append((*words, names(equal), _best(every, (NONE,)), _best(every, PAIR_NORM)))
    headings = ("situation", "features", "graphs", "chosen", "accuracy", "as good, or not told apart",
                "without a remedy", "PairNorm")  # fmt: skip
    return markdown_table(headings, lines)


def _contenders(rows: Sequence[Row]) -> list[Contender]:
    """Return the methods of a model that all its graphs have, where there are several."""
    graphs = {row["dataset"] for row in rows}
    found = []
    for (model, method), some in by(rows, "model", "remedy").items():
        best = {
            graph: max(here, key=lambda row: row["validation_accuracy"])
            for (graph,), here in by(some, "dataset").items()
        }
        if len(graphs) > 1 and len(best) == len(graphs):
            choices = [Choice(method, row["depth"], row["accuracies"]) for row in best.values()]
            validation = fmean(row["validation_accuracy"] for row in best.values())
            found.append(Contender(model, method, validation, choices))
    return found


def _best(every: Sequence[Contender], methods: Sequence[str]) -> str:
    some = [one for one in every if one.method in methods]
    if not some:
        return "not run"
    best = max(some, key=lambda one: one.validation)
    return f"{best.accuracy:.3f} ({best})"


def draw_ranking(rows: Sequence[Row], model: str) -> "Figure | None":
    """Draw the mean ranks of a model's methods with their intervals; None for fewer than two graphs."""
    standings, situations = ranked(rows)
    if len({graph for graph, *_ in situations}) < 2:
        return None
    return _figure(standings, critical_difference(len(standings), len(situations)), model)


def _figure(standings: Sequence[Standing], difference: float, model: str) -> "Figure":
    figure = plotting.new_figure(6.4, 1.1 + 0.24 * len(standings))
    axis = figure.subplots()
    best = standings[0].rank
    axis.axvspan(best, best + difference, color="#e8e8e8", linewidth=0)
    for place, one in enumerate(standings):
        ours = one.method in PAIR_NORM
        color = plotting.VERMILLION if ours else "black" if one.method == NONE else plotting.BLUE
        axis.plot([one.low, one.high], [place, place], color=color, linewidth=1.5)
        axis.plot([one.rank], [place], marker="o", markersize=5, color=color)
    axis.set_yticks(range(len(standings)), [short(one.method) for one in standings])
    axis.set_ylim(len(standings) - 0.4, -0.6)
    axis.set_xlim(left=0.5)
    axis.grid(visible=False, axis="y")
    axis.grid(visible=True, axis="x")
    axis.set_xlabel("mean rank, 1 is best, with intervals over graphs")
    axis.set_title(f"{model}; gray: not told apart from the best")
    return figure
