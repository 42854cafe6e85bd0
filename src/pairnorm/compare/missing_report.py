"""The comparison under missing features as CSV, as a report in Markdown, and as a figure."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import isnan, nan
from pathlib import Path
from statistics import fmean, stdev
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from pairnorm.base import plotting
from pairnorm.base.files import csv_text, write_text
from pairnorm.base.plotting import BLUE, GRAY, GREEN, ORANGE, PURPLE, VERMILLION
from pairnorm.compare.graphs import REACHED, TABLES
from pairnorm.compare.missing import (
    FIT,
    FSD_CAP,
    FSD_CAP_RELEASED,
    MORE_LABELS,
    MOST_FREQUENT,
    PROTOCOLS,
    REFITTED,
    SSNC,
    MissingCell,
    Protocol,
)
from pairnorm.compare.missing_runs import MissingResults
from pairnorm.sweep.significance import Runs, paired_difference, significant
from pairnorm.sweep.tables import TITLES as GRAPHS
from pairnorm.sweep.tables import markdown_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = (
    "protocol",
    "dataset",
    "fill",
    "model",
    "missing_percent",
    "accuracy",
    "accuracy_std",
    "runs",
    "macro_f1",
    "auc",
    "published",
)
TITLES = {**GRAPHS, **{name: f"{GRAPHS[whole]}, reached" for name, whole in REACHED.items()}}
MIN_OTHERS = 5
"""Other methods that a setting needs to count in the summary; the most frequent class is none."""
IMPUTATION_TITLES = {
    "zero": "zero",
    "mean": "column mean",
    "mass": "known mass",
    "fp": "feature propagation",
    "pcfi": "PCFI",
    "mask": "zero and mask columns",
}
# Accuracies that papers report under the protocol of feature propagation, on Cora, Citeseer and Pubmed.
PUBLISHED: dict[tuple[str, str, str, float], tuple[float, float, float]] = {
    ("fp-vectors", "zero", "GCN", 0): (0.827, 0.700, 0.775),
    ("fp-vectors", "zero", "GCN", 99.5): (0.435, 0.313, 0.461),
    ("fp-vectors", "fp", "GCN", 99.5): (0.727, 0.580, 0.742),
    ("fp-vectors", "pcfi", "GCN", 99.5): (0.754, 0.661, 0.744),
    ("fp-vectors", "fsd-cap", FSD_CAP_RELEASED, 99.5): (0.806, 0.719, 0.770),
    ("fp-entries", "pcfi", "GCN", 99.5): (0.786, 0.691, 0.760),
}
INTRODUCTION = f"""\
# Missing features: which method where

Written by `pairnorm reproduce missing` from the runs in the store. Mean test accuracy ± standard deviation
over the runs (their number in brackets where some are pending). For each trained method the validation
accuracy of the first run selected one of twelve candidates; under the protocol of feature propagation it has
the published settings. `{FIT}` trains on the training labels; “{REFITTED}” also trains on the validation
labels after the selection. Bold: the best of a column, without that row and “{FSD_CAP_RELEASED}”.
“Reached” counts only test nodes in a component with a training node: at 100% missing no feature and no label
reaches the others, 6% of the test nodes of Cora and 33% of those of Citeseer.

For nodes that neither a feature nor a label reaches, `{FIT}`, label propagation and Correct & Smooth predict
the class shares of the training labels. `{FIT}` has its default time limit.
"""
EXTERNAL_RESULTS = f"""\
Not run by us: PaGCN (published: 0.318 / 0.242 / 0.388 on Cora / Citeseer / Pubmed, whole vectors, 99.5%).
FSD-CAP (ICLR 2026) is implemented from its formulas, with the settings that its authors state for Cora. In
its released code the imputation uses the true labels of the validation nodes (`pre_out_best =
data.y.clone()`, overwritten at the test nodes only), unlike the other methods: that is the row
“{FSD_CAP_RELEASED}”, next to the published numbers, and it is not compared. In the row “{FSD_CAP}” the
classes of validation nodes are predicted, like those of test nodes.
"""


class Line(NamedTuple):
    """A row of the comparison: means over the runs, NaN where unknown.

    Args:
        cell: the cell.
        accuracies: on the test nodes, of every run.
        macro_f1: their mean.
        auc: their mean.
        published: the accuracy that a paper reports.
        scores: of every run by seed, in the metric of ``_metric``.
    """

    cell: MissingCell
    accuracies: tuple[float, ...]
    macro_f1: float = nan
    auc: float = nan
    published: float = nan
    scores: Runs = MappingProxyType({})

    @property
    def accuracy(self) -> float:
        """The mean test accuracy."""
        return fmean(self.accuracies) if self.accuracies else nan

    @property
    def std(self) -> float:
        """The sample standard deviation over the runs, NaN for a single one."""
        return stdev(self.accuracies) if len(self.accuracies) > 1 else nan

    @property
    def method(self) -> str:
        """The name of the method in tables."""
        imputation = IMPUTATION_TITLES.get(self.cell.imputation)
        return self.cell.model if imputation is None else f"{self.cell.model}, {imputation}"


def lines(protocols: Sequence[Protocol], found: MissingResults) -> list[Line]:
    """Return a line for every cell that has runs, or a published number."""
    lines = [line for protocol in protocols for line in _lines(protocol, found)]
    return [line for line in lines if line.accuracies or not isnan(line.published)]


def _lines(protocol: Protocol, found: MissingResults) -> Iterator[Line]:
    for cell in protocol.cells():
        runs = {trial.seed: trial.test_accuracy for trial in found.index.runs(protocol, cell)}
        yield Line(cell, tuple(runs.values()), published=_published(cell), scores=runs)
    for cell in protocol.evaluated_cells():
        for dataset in (cell.dataset, *(name for name, whole in REACHED.items() if whole == cell.dataset)):
            for model in (FIT, REFITTED) if cell.model == FIT else (cell.model,):
                own = cell._replace(dataset=dataset, model=model)
                seeds = protocol.seeds(cell)
                rows = [found.evaluated[own, seed] for seed in seeds if (own, seed) in found.evaluated]
                accuracies = tuple(row.accuracy for row in rows)
                scores = [(row.macro_f1, row.auc) for row in rows] or [(nan, nan)]
                macro_f1, auc = (fmean(values) for values in zip(*scores, strict=True))
                by_seed = {row.seed: getattr(row, _metric(dataset)) for row in rows}
                yield Line(own, accuracies, macro_f1, auc, _published(own), by_seed)


def _published(cell: MissingCell) -> float:
    numbers = PUBLISHED.get((cell.protocol, cell.imputation, cell.model, cell.missing_percent), ())
    return dict(zip(PROTOCOLS[cell.protocol].datasets, numbers, strict=False)).get(cell.dataset, nan)


def write_csv(found: Sequence[Line], path: Path) -> None:
    """Write the lines, empty where a number is not known."""
    rows = []
    for line in found:
        numbers = (line.accuracy, line.std, line.macro_f1, line.auc, line.published)
        accuracy, std, *others = ("" if isnan(number) else f"{number:.4f}" for number in numbers)
        percent = f"{line.cell.missing_percent:g}"
        rows.append([*line.cell[:4], percent, accuracy, std, len(line.accuracies), *others])
    write_text(path, csv_text(COLUMNS, rows))


def report(protocols: Sequence[Protocol], found: Sequence[Line], figure: str | None = None) -> str:
    """Return the comparison in Markdown.

    Args:
        protocols: in the order to show them.
        found: what there is of them.
        figure: file of the figure, relative to the report.
    """
    parts = [INTRODUCTION]
    if figure is not None:
        parts.append(f"![Accuracy against the share of missing vectors]({figure})")
    parts.append(_fit_against_others(found))
    for protocol in protocols:
        own = [line for line in found if line.cell.protocol == protocol.name]
        if not own:
            continue
        parts.append(f"## {protocol.name}\n\n{protocol.title}.")
        for percent in protocol.missing:
            some = [line for line in own if line.cell.missing_percent == percent]
            if some:
                parts.append(f"### {percent:g}% missing\n\n{_table(protocol, some)}")
        if protocol.name == "fp-vectors":
            parts.append(EXTERNAL_RESULTS)
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _table(protocol: Protocol, found: Sequence[Line]) -> str:
    datasets = [name for name in protocol.datasets if any(line.cell.dataset == name for line in found)]
    top = {
        dataset: max((_main(line) for line in _ranked(found, dataset)), default=nan) for dataset in datasets
    }
    rows: dict[str, dict[str, Line]] = defaultdict(dict)
    for line in found:
        rows[line.method][line.cell.dataset] = line
    lines = []
    for method, of in rows.items():
        cells = []
        for dataset in datasets:
            if (one := of.get(dataset)) is None:
                cells.append("")
            else:
                best = one.cell.model not in MORE_LABELS and _main(one) == top[dataset]
                cells.append(_shown(protocol, one, best))
        lines.append([method, *cells])
    headings = ["Method", *(TITLES.get(dataset, dataset) for dataset in datasets)]
    return markdown_table(headings, lines)


def _metric(dataset: str) -> str:
    """Return the metric of a graph: on tables AUC for two classes and macro F1 for more, else accuracy."""
    if dataset not in TABLES:
        return "accuracy"
    return "auc" if dataset == "german" else "macro_f1"


def _main(line: Line) -> float:
    return round(float(getattr(line, _metric(line.cell.dataset))), 3)


def _ranked(found: Sequence[Line], dataset: str) -> list[Line]:
    return [
        line
        for line in found
        if line.cell.dataset == dataset and line.accuracies and line.cell.model not in MORE_LABELS
    ]


def _shown(protocol: Protocol, line: Line, best: bool) -> str:
    text = "not run"
    if line.accuracies:
        text = f"{line.accuracy:.3f}" + ("" if isnan(line.std) else f" ± {line.std:.3f}")
        if line.cell.dataset in TABLES:
            text = f"{_main(line):.3f} (accuracy {text})"
        text = f"**{text}**" if best else text
        text += "" if len(line.accuracies) == len(protocol.seeds(line.cell)) else f" [{len(line.accuracies)}]"
    return text if isnan(line.published) else f"{text}, published {line.published:.3f}"


def _fit_against_others(found: Sequence[Line]) -> str:
    """Compare ``fit`` with the most accurate other method of every setting."""
    settings: dict[tuple[str, str, float], list[Line]] = defaultdict(list)
    for line in found:
        settings[line.cell.protocol, line.cell.dataset, line.cell.missing_percent].append(line)
    rows, gaps, counted = [], [], []
    for (protocol, dataset, percent), some in settings.items():
        ranked = _ranked(some, dataset)
        ours = next((line for line in ranked if line.cell.model == FIT), None)
        others: list[tuple[float, str, Runs | float]] = [
            (_main(line), line.method, line.scores) for line in ranked if line.cell.model != FIT
        ]
        number = sum(line.cell.model not in (FIT, MOST_FREQUENT) for line in ranked)
        if ours is None:
            continue
        others += [
            (line.published, f"{line.method}, as published", line.published)
            for line in some
            if not isnan(line.published) and line.cell.model not in MORE_LABELS
        ]
        if not others:
            continue
        value, best, runs = max(others, key=lambda other: other[:2])
        gap = paired_difference(ours.scores, runs)
        gaps.append(gap._replace(mean=round(_main(ours) - value, 3)))
        counted.append(number >= MIN_OTHERS)
        interval = "" if gap.runs < 2 else f" ({gap.low:+.3f} to {gap.high:+.3f})"
        where = [protocol, TITLES.get(dataset, dataset), f"{percent:g}%"]
        difference = f"{gaps[-1].mean:+.3f}{interval}"
        rows.append([*where, f"{_main(ours):.3f}", best, f"{value:.3f}", str(number), difference])
    if not rows:
        return "`fit` has not been run next to other methods yet."
    headings = ("Protocol", "Graph", "Missing", "`fit`", "Best other", "Its result", "Others run",
                "Difference")  # fmt: skip
    differs = significant(gaps)
    enough = [(gap, sure) for gap, sure, many in zip(gaps, differs, counted, strict=True) if many]
    ahead = sum(gap.mean >= 0 for gap, _ in enough)
    behind = sum(sure and gap.mean < 0 for gap, sure in enough)
    single = sum(gap.runs < 2 for gap, _ in enough)
    return "\n".join(
        [
            "## `fit` against the other methods\n",
            f"{len(enough)} settings have {MIN_OTHERS} or more other methods. In {ahead} of them `fit` has "
            f"the highest mean or equals it; in {behind} it is significantly behind (Student's t, paired "
            f"over runs, 5% for all settings, Holm); {single} have a single run of `fit` and cannot be "
            f"tested. The other {len(rows) - len(enough)} settings have fewer methods and say little. The "
            "best other is selected on test, hence optimistic, among the methods that were run and "
            "published numbers for the protocol. On tables the numbers are AUC (two classes) or macro F1. "
            "In brackets: the 95% interval of the difference over the runs of both.\n",
            markdown_table(headings, rows),
        ]
    )


def draw(found: Sequence[Line], folder: Path) -> list[Path]:
    """Draw accuracy against missing vectors on our task: a column for each graph, SGC-PN above, GCN below."""
    colors = dict(zip(IMPUTATION_TITLES, (GRAY, ORANGE, GREEN, BLUE, VERMILLION, PURPLE), strict=True))
    own = [line for line in found if line.cell.protocol == SSNC.name and line.accuracies]
    there = {line.cell.dataset for line in own} - {*REACHED}
    datasets = [name for name in SSNC.datasets if name in there]
    if len({line.cell.missing_percent for line in own}) < 2:  # the tables say as much
        return []
    curves: dict[tuple[str, str, str], list[tuple[float, float]]] = defaultdict(list)
    for line in own:
        dataset, imputation, model, percent = line.cell[1:]
        trained = model in SSNC.trained
        # Where nothing is missing, all imputations are the same.
        for name in (colors if percent == 0 else (imputation,)) if trained else ("",):
            curves[dataset, model, name].append((percent, line.accuracy))
    with plotting.style():
        figure = plotting.new_figure(3.0 * len(datasets) + 2, 6)
        axes = figure.subplots(2, len(datasets), sharex=True, sharey="col", squeeze=False)
        for row, model in enumerate(("SGC-PN", "GCN")):
            for axis, dataset in zip(axes[row], datasets, strict=True):
                for imputation, color in colors.items():
                    _curve(
                        axis,
                        curves.get((dataset, model, imputation)),
                        color,
                        IMPUTATION_TITLES[imputation],
                        "-",
                    )
                _curve(axis, curves.get((dataset, FIT, "")), "black", "fit", "-")
                _curve(
                    axis, curves.get((dataset, "label propagation", "")), "black", "label propagation", ":"
                )
                axis.set_title(f"{TITLES[dataset]}, {model}")
                if row:
                    axis.set_xlabel("% of vectors missing")
        axes[0][0].set_ylabel("Test accuracy")
        axes[1][0].set_ylabel("Test accuracy")
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right center")
        return plotting.save(figure, folder, "missing")


def _curve(
    axis: "Axes", points: Sequence[tuple[float, float]] | None, color: str, label: str, style: str
) -> None:
    if points:
        percents, values = zip(*sorted(points), strict=True)
        axis.plot(percents, values, style, color=color, label=label, marker="o")
