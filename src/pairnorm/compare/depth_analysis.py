"""Analyze a comparison by depth: what validation accuracy selects, how methods rank, and figures."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import isnan, nan
from operator import attrgetter, itemgetter
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pairnorm.base import plotting
from pairnorm.base.plotting import BLUE, GREEN, ORANGE, PURPLE, VERMILLION
from pairnorm.compare.depth import DepthComparison, Row
from pairnorm.sweep.significance import MeanRank, Runs, compare_with, mean_interval, mean_ranks
from pairnorm.sweep.tables import TITLES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NO_METHOD = "none"
PAIR_NORM = ("PN", "PN-SI", "PN-SCS", "PN-degree", "PN-SI-degree")
MAX_NAMED = 5
COLORS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")
LINE_STYLES = [{"color": color, "marker": marker} for color, marker in zip(COLORS, MARKERS, strict=True)]
OTHERS = "others"


class Choice(NamedTuple):
    """A method with the depth that validation selects on every graph; scores are means over the graphs."""

    method: str
    depths: tuple[int, ...]
    validation: float
    scores: Runs

    @classmethod
    def among(cls, rows: Iterable[Row]) -> "Choice | None":
        """Select the row with the highest validation score; None without rows."""
        best = max(rows, key=itemgetter("validation_score"), default=None)
        if best is None:
            return None
        return cls(best["method"], (best["depth"],), best["validation_score"], best["scores"])

    @classmethod
    def mean(cls, choices: "Sequence[Choice]") -> "Choice":
        """Average the choices of one method over graphs, run by run."""
        seeds = set.intersection(*({*choice.scores} for choice in choices))
        scores = {seed: fmean(choice.scores[seed] for choice in choices) for seed in sorted(seeds)}
        depths = tuple(depth for choice in choices for depth in choice.depths)
        return cls(choices[0].method, depths, fmean(choice.validation for choice in choices), scores)

    def __str__(self) -> str:
        depths = dict.fromkeys((min(self.depths), max(self.depths)))
        return f"{short(self.method)}, {' to '.join(map(str, depths))} layers"

    @property
    def accuracy(self) -> float:
        """The mean test score."""
        return fmean(self.scores.values())


class Selected(NamedTuple):
    """The best of several methods by validation, without a method, and of the modes of PairNorm.

    Other methods are ``not_worse`` if they are not significantly worse on the test nodes.
    """

    best: Choice
    not_worse: list[str]
    plain: Choice | None
    pair_norm: Choice | None

    @classmethod
    def among(cls, choices: Sequence[Choice]) -> "Selected":
        """Select the best choice by validation; there must be at least one."""

        def best_of(methods: Iterable[str]) -> Choice | None:
            allowed = [choice for choice in choices if choice.method in methods]
            return max(allowed, key=attrgetter("validation"), default=None)

        best = max(choices, key=attrgetter("validation"))
        scores = {choice.method: choice.scores for choice in choices}
        compared = compare_with(best.method, scores, is_selected=True)
        not_worse = [
            choice.method
            for choice in sorted(choices, key=lambda choice: -choice.accuracy)
            if choice is not best
            for gap, differs in [compared[choice.method]]
            if not differs or gap.mean > 0
        ]
        return cls(best, not_worse, best_of([NO_METHOD]), best_of(PAIR_NORM))


def choose_depths(rows: Iterable[Row]) -> list[Choice]:
    """Select the depth of every method on one graph."""
    return [choice for group in group_by(rows, "method").values() if (choice := Choice.among(group))]


def short(method: str) -> str:
    """Return a method's name without its module.

    >>> short("own_method:Whiten@1")
    'Whiten@1'
    """
    return method.rpartition(":")[2]


def comparable(rows: Iterable[Row]) -> list[Row]:
    """Return the rows of situations in which more than a third of their model's methods were run.

    With fewer methods there is too little to select from, or to rank.
    """
    rows, situation = list(rows), itemgetter("model", "dataset", "missing_percent", "depth")
    counts = Counter(map(situation, rows))
    largest: dict[str, int] = {}
    for (model, *_), count in counts.items():
        largest[model] = max(count, largest.get(model, 0))
    return [row for row in rows if 3 * counts[situation(row)] > largest[row["model"]]]


Situation = tuple[str, int, int]
"""A graph, the percentage of missing vectors, a depth."""


def ranked(rows: Sequence[Row]) -> tuple[list[MeanRank], list[Situation]]:
    """Rank the methods of a model over graphs, depths and missing rates; also return these situations.

    Only ``comparable`` rows count, and methods that were not run in some situation are left out.
    """
    situations: dict[Situation, dict[str, Sequence[float]]] = defaultdict(dict)
    for row in comparable(rows):
        where = row["dataset"], row["missing_percent"], row["depth"]
        situations[where][row["method"]] = [*row["scores"].values()]
    full = list(situations.values())
    methods = [method for method in (full[0] if full else ()) if all(method in scores for scores in full)]
    if len(methods) < 2:
        return [], []
    graphs = [graph for graph, *_ in situations]
    scores = [{method: scores[method] for method in methods} for scores in full]
    return mean_ranks(scores, graphs), list(situations)


def title(comparison: DepthComparison, dataset: str) -> str:
    """Return the title of a graph."""
    graph = comparison.graphs.get(dataset)
    return TITLES.get(dataset, dataset.replace("-", " ").capitalize()) if graph is None else graph.name


def describe_missing(percent: int) -> str:
    """Describe a missing rate in words."""
    words = {0: "all features", 100: "training nodes' features alone"}
    return words.get(percent, f"{percent}% of vectors missing")


def group_by(rows: Iterable[Row], *columns: str) -> dict[tuple[Any, ...], list[Row]]:
    """Group rows by the named columns."""
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in columns)].append(row)
    return dict(groups)


def list_methods(methods: Sequence[str]) -> str:
    """Format a list of methods: the first few names, and the number of the others."""
    more = len(methods) - MAX_NAMED
    named = ", ".join(map(short, methods[:MAX_NAMED]))
    return f"{named} and {more} more" if more > 0 else named


def never_trained(row: Row) -> bool:
    """Return whether all runs diverged in the first epoch: then no node has a label."""
    return row["score"] == 0 and row["diverged"] == row["runs"]  # type: ignore[no-any-return]


def draw(
    comparison: DepthComparison, rows: Sequence[Row], folder: Path, name: str
) -> dict[tuple[str, str], list[Path]]:
    """Draw accuracy and effective rank against depth for every graph and model.

    Six have a color and a marker: the user's own methods, what validation selects, PN and PN-SI, and the best
    of the others by mean rank. No method is dashed and black, and what remains is gray.
    """
    files, rows = {}, comparable(rows)
    is_alone = len(comparison.datasets) * len(comparison.models) == 1
    with plotting.style():
        for (dataset, model), group in group_by(rows, "dataset", "model").items():
            if not is_alone and len({row["depth"] for row in group}) == 1:
                continue  # its table says as much
            figure = _depth_figure(group, f"{title(comparison, dataset)}, {model}")
            file = name if is_alone else f"{name}-{dataset.partition('@')[0]}-{model}".lower()
            files[dataset, model] = plotting.save(figure, folder, file)
    return files


def _depth_figure(rows: Sequence[Row], name: str) -> "Figure":
    """Draw a row of panels per measure and a column per missing rate; of a single rate, side by side."""
    percents = sorted({row["missing_percent"] for row in rows})
    measures = {"score": "test AUC" if not isnan(rows[0]["auc"]) else "test accuracy"}
    if any(not isnan(row["effective_rank"]) for row in rows):
        measures["effective_rank"] = "effective rank of the last state"
    if len(percents) > 1:
        figure = plotting.new_figure(plotting.TWO_COLUMNS, 2.0 * len(measures) + 0.4)
        axes = figure.subplots(len(measures), len(percents), sharex=True, sharey="row", squeeze=False)
    else:
        figure = plotting.new_figure(plotting.TWO_COLUMNS, 2.4)
        axes = figure.subplots(1, len(measures), squeeze=False).T
    styles, depths = _line_styles(rows), sorted({row["depth"] for row in rows})
    for measure, line in zip(measures, axes, strict=True):
        line[0].set_ylabel(measures[measure])
        for axis, percent in zip(line, percents, strict=True):
            group = [row for row in rows if row["missing_percent"] == percent]
            _draw_curves(axis, group, measure, styles)
            axis.set_xscale("log", base=2)
            axis.set_xticks(depths, [str(depth) for depth in depths])
            axis.minorticks_off()
            if len(percents) == 1 or measure == [*measures][-1]:
                axis.set_xlabel("layers")
    for axis, percent in zip(axes[0], percents, strict=True):
        if len(percents) > 1 or percent:
            axis.set_title(describe_missing(percent))
    handles, labels = axes[0, 0].get_legend_handles_labels()
    by_label = dict(zip(labels, handles, strict=True))
    order = [text for text in (*map(short, styles), OTHERS) if text in by_label]
    figure.legend([by_label[text] for text in order], order, loc="outside right center", title=name)
    return figure


def _line_styles(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Return the line styles of the methods to highlight: the best ones, PairNorm, and no method."""
    best = [rank.method for rank in ranked(rows)[0]] or list(dict.fromkeys(row["method"] for row in rows))
    panels = group_by(rows, "missing_percent").values()
    chosen = {choice.method for group in panels if (choice := Choice.among(group))}
    first = [method for method in best if "@" in method] + [method for method in best if method in chosen]
    first += [method for method in ("PN", "PN-SI") if method in best]
    shown = [method for method in dict.fromkeys([*first, *best]) if method != NO_METHOD][: len(COLORS)]
    styles = dict(zip(sorted(shown, key=best.index), LINE_STYLES, strict=False))
    styles[NO_METHOD] = {"color": "black", "linestyle": plotting.PLAIN, "marker": "o"}
    if len(remaining := {row["method"] for row in rows} - {*styles}) == 1:
        styles[remaining.pop()] = {"color": plotting.GRAY, "marker": "o"}
    return styles


def _draw_curves(axis: "Axes", rows: Sequence[Row], measure: str, styles: Mapping[str, Any]) -> None:
    for (method,), group in group_by(rows, "method").items():
        depths = [row["depth"] for row in group]
        values = [nan if never_trained(row) else row[measure] for row in group]
        if method not in styles:
            axis.plot(depths, values, color="#bbbbbb", linewidth=1, label=OTHERS, zorder=2)
            continue
        axis.plot(depths, values, label=short(method), zorder=3, **styles[method])
        if measure == "score":
            ends = np.clip([mean_interval(list(row["scores"].values())) for row in group], 0, 1)
            axis.vlines(depths, *ends.T, color=styles[method]["color"], linewidth=0.8)
