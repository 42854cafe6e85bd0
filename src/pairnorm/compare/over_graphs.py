"""The comparison by depth over several graphs: what to use in which situation, and mean ranks."""

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from pairnorm.base import plotting
from pairnorm.compare.depth import (
    DEEP_LAYERS,
    NO_METHOD,
    PAIR_NORM,
    Choice,
    Row,
    describe_missing,
    group_by,
    list_methods,
    ranked,
    short,
)
from pairnorm.sweep.significance import MeanRank, Runs, compare_with
from pairnorm.sweep.tables import markdown_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LARGE = ("pubmed", "coauthor-cs")
"""Those of the package's graphs with some 19,000 nodes; the others have 3,000."""

SITUATIONS: dict[str, Callable[[Row], bool]] = {
    "few labels": lambda row: True,
    f"very deep: {DEEP_LAYERS} layers or more": lambda row: row["depth"] >= DEEP_LAYERS,
    "a larger graph": lambda row: row["dataset"] in LARGE,
}
CHOSEN = """\
Means over graphs, for each model by itself, since not every model was run on the same graphs. On every graph
validation accuracy selects the depth of each method; its mean over graphs then selects a method among those
that were run on all. Differences are tested as above, paired over runs, each run averaged over the graphs.
All graphs have few labels: 20 to 40 a class. The larger graphs have some 19,000 nodes.
"""
RANKING = """\
Mean rank by test accuracy over {situations} situations (depths and missing rates of {graphs} graphs), 1 is
best. The interval holds 95% of the mean ranks when graphs and runs are resampled; {graphs} graphs are few.
"""


class Contender(NamedTuple):
    """A model with a method, at the depth that validation accuracy selects on each graph."""

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

    @property
    def runs(self) -> Runs:
        """The test accuracy of every run, averaged over the graphs."""
        seeds = set.intersection(*({*choice.scores} for choice in self.choices))
        return {seed: fmean(choice.scores[seed] for choice in self.choices) for seed in sorted(seeds)}


def over_graphs(rows: Sequence[Row], figures: dict[str, str]) -> Iterator[str]:
    """Yield the sections over all graphs, in Markdown; nothing for a single graph.

    Args:
        rows: of the table.
        figures: files of the rankings, by model.
    """
    if len({row["dataset"] for row in rows}) < 2:
        return
    yield f"## By situation, over graphs\n\n{CHOSEN}"
    yield _by_situation(rows)
    for (model,), some in group_by(rows, "model").items():
        ranking, situations = ranked(some)
        graphs = len({graph for graph, *_ in situations})
        if not ranking or graphs < 2:
            continue
        yield f"### Ranking of {model} over {graphs} graphs"
        if model in figures:
            yield f"![Mean rank of every method, with intervals over graphs]({figures[model]})"
        yield RANKING.format(situations=len(situations), graphs=graphs)
        lines = [
            (short(one.method), f"{one.rank:.1f}", f"{one.low:.1f} to {one.high:.1f}") for one in ranking
        ]
        yield markdown_table(("method", "mean rank", "95% interval over graphs"), lines)


def _by_situation(rows: Sequence[Row]) -> str:
    lines = []
    for situation, applies in SITUATIONS.items():
        groups = group_by(filter(applies, rows), "missing_percent", "model")
        for (percent, _), some in sorted(groups.items()):
            every = _contenders(some)
            if not every:
                continue
            best = max(every, key=lambda one: one.validation)
            compared = compare_with(best.method, {one.method: one.runs for one in every})
            equal = [
                one.method
                for one in sorted(every, key=lambda one: -one.accuracy)
                if one is not best
                for gap, differs in [compared[one.method]]
                if not differs or gap.mean > 0
            ]
            words = (
                situation,
                describe_missing(percent),
                str(len(best.choices)),
                str(best),
                f"{best.accuracy:.3f}",
            )
            lines.append((*words, list_methods(equal), _best(every, (NO_METHOD,)), _best(every, PAIR_NORM)))
    headings = ("situation", "features", "graphs", "selected", "accuracy", "not significantly worse",
                "without a method", "PairNorm")  # fmt: skip
    return markdown_table(headings, lines)


def _contenders(rows: Sequence[Row]) -> list[Contender]:
    """Return the methods of a model that all its graphs have, where there are several."""
    graphs = {row["dataset"] for row in rows}
    found = []
    for (model, method), some in group_by(rows, "model", "method").items():
        best = {
            graph: max(here, key=lambda row: row["validation_score"])
            for (graph,), here in group_by(some, "dataset").items()
        }
        if len(graphs) > 1 and len(best) == len(graphs):
            choices = [Choice(method, row["depth"], row["scores"]) for row in best.values()]
            validation = fmean(row["validation_score"] for row in best.values())
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
    ranking, situations = ranked(rows)
    if len({graph for graph, *_ in situations}) < 2:
        return None
    return _figure(ranking, model)


def _figure(ranking: Sequence[MeanRank], model: str) -> "Figure":
    figure = plotting.new_figure(plotting.ONE_COLUMN, 0.9 + 0.16 * len(ranking))
    axis = figure.subplots()
    for row, one in enumerate(ranking):
        ours = one.method in PAIR_NORM
        color = plotting.VERMILLION if ours else "black" if one.method == NO_METHOD else plotting.BLUE
        axis.plot([one.low, one.high], [row, row], color=color, linewidth=1.5)
        axis.plot([one.rank], [row], marker="o", markersize=5, color=color)
    axis.set_yticks(range(len(ranking)), [short(one.method) for one in ranking])
    axis.set_ylim(len(ranking) - 0.4, -0.6)
    axis.set_xlim(left=0.5)
    axis.grid(visible=False, axis="y")
    axis.grid(visible=True, axis="x")
    axis.set_xlabel("mean rank (1 is best), 95% interval")
    axis.set_title(model)
    return figure
