"""Sections of the paper's report: whether PairNorm helps, tables, scaling, protocol, own trials, figures."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import isnan
from statistics import fmean
from typing import Any, NamedTuple

from pairnorm.paper.experiments import ABLATION, DATASETS, EXPERIMENTS, SPLITS, Selection
from pairnorm.report.charts import BLUE, COLORS, GRAY, GREEN, SYMBOLS, VERMILLION, Chart, Line, lines
from pairnorm.report.document import Choices, Details, Markdown, Only, Section, Text
from pairnorm.report.document import Table as Shown
from pairnorm.sweep.grid import Experiment, Summary, TableCell
from pairnorm.sweep.index import Chosen, ResultIndex
from pairnorm.sweep.significance import Difference, paired_difference, significant
from pairnorm.sweep.tables import PARTIAL, TITLES, Entry, Table, markdown

MODEL_STYLES = {"SGC": (BLUE, "circle"), "GCN": (VERMILLION, "square"), "GAT": (GREEN, "triangle-up")}


class Gain(NamedTuple):
    """The difference that PairNorm makes in one setting, and whether it is significant."""

    dataset: str
    model: str
    percent: int
    without: Chosen
    with_norm: Chosen
    difference: Difference
    is_significant: bool

    @property
    def verdict(self) -> str:
        """``better``, ``worse`` or ``no``."""
        return "no" if not self.is_significant else "better" if self.difference.mean > 0 else "worse"


def split_gains(results: ResultIndex, selection: Selection) -> list[Gain]:
    """Return PairNorm's gains over random splits, paired by split and tested together."""
    experiment = selection.narrow(SPLITS)
    if experiment is None:
        return []
    pairs = []
    for dataset, model, percent in product(experiment.datasets, MODEL_STYLES, experiment.missing):
        without, with_norm = (
            results.chosen(experiment, TableCell(dataset, method, percent))
            for method in (model, f"{model}-PN")
        )
        if without and with_norm and without.complete and with_norm.complete:
            runs = (one.best.values("test_accuracy") for one in (with_norm, without))
            pairs.append((dataset, model, percent, without, with_norm, paired_difference(*runs)))
    decided = significant([pair[-1] for pair in pairs])
    return [Gain(*pair, is_sure) for pair, is_sure in zip(pairs, decided, strict=True)]


def splits_section(gains: Sequence[Gain]) -> Section | None:
    """Return the figure and the table of PairNorm's gains over random splits."""
    if not gains:
        return None
    rows = [
        [
            TITLES[one.dataset],
            one.model,
            f"{one.percent}%",
            *(f"{chosen.accuracy:.3f} @ {chosen.layers}" for chosen in (one.without, one.with_norm)),
            str(one.difference),
            one.verdict,
        ]
        for one in gains
    ]
    headings = ["Graph", "Model", "Missing", "Without", "With PairNorm", "Difference (95%)", "Significant"]
    runs = min(one.difference.runs for one in gains)
    text = (
        f"Every run has a random split of its own with 20 training nodes a class, {runs} in all, the same "
        "for both models; 500 epochs, fewer depths than in the tables below, which have one split. SGC has "
        "PairNorm and raw features, GCN and GAT have PairNorm-SI. Differences are paired by split and tested "
        "together (Student's t, 5%, Holm); bars are 95% intervals. Accuracy @ layers chosen by validation."
    )
    charts = [_gain_chart(gains, percent) for percent in dict.fromkeys(one.percent for one in gains)]
    return Section("Does PairNorm help?", [*charts, Text(text), Shown(headings, rows)], wide=True)


def _gain_chart(gains: Sequence[Gain], percent: int) -> Chart:
    """Draw the differences at a missing rate with intervals: a row per graph and model."""
    some = [one for one in gains if one.percent == percent]
    names = [f"{TITLES[one.dataset]}, {one.model}" for one in some]
    rows = list(range(len(some)))
    styles = [MODEL_STYLES[one.model] for one in some]
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": [round(one.difference.mean, 4) for one in some],
        "y": rows,
        "text": ["" for _ in some],
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [round(one.difference.high - one.difference.mean, 4) for one in some],
            "arrayminus": [round(one.difference.mean - one.difference.low, 4) for one in some],
            "color": GRAY,
        },
        "marker": {
            "color": [color for color, _ in styles],
            "symbol": [symbol for _, symbol in styles],
            "size": 9,
        },
        "customdata": [f"{name}: {one.difference}" for name, one in zip(names, some, strict=True)],
        "hovertemplate": "%{customdata}<extra></extra>",
    }
    layout = {
        "xaxis": {"title": {"text": "gain in accuracy"}, "showgrid": True},
        "yaxis": {"tickvals": rows, "ticktext": names, "range": [len(rows) - 0.5, -0.5], "showgrid": False},
        "shapes": [
            {"type": "line", "x0": 0, "x1": 0, "y0": 0, "y1": 1, "yref": "paper",
             "line": {"color": GRAY, "width": 1}}
        ],
        "showlegend": False,
    }  # fmt: skip
    title = "All features" if percent == 0 else f"{percent}% missing (wider range)"
    return Chart(title, [trace], layout, height=90 + 24 * len(rows), name="figures/gains")


def table_blocks(table: Table, results: ResultIndex, selection: Selection) -> list[Any]:
    """Return a table: compact in Markdown, sortable and with the curve of every row in HTML."""
    return [
        Only("markdown", [Markdown(markdown(table).strip())]),
        Only("html", [_shown(table, results, selection)]),
    ]


def _shown(table: Table, results: ResultIndex, selection: Selection) -> Shown:
    """Return a row for every cell, our number next to the paper's, with the curve it was chosen from."""
    names = ("table1", "tuned") if table.name == "tuned" else (table.name,)
    experiments = [one for name in names if (one := selection.narrow(EXPERIMENTS[name]))]
    headings = ["Graph", "Method", "Missing", "Ours", "±", "Layers", "Paper", "Paper's layers", "Difference"]
    entries = [entry for entry in table.entries if entry.ours or entry.paper]
    rows = [_row(entry) for entry in entries]
    if not table.against_paper:
        headings, rows = headings[:6], [row[:6] for row in rows]
    charts = [_curve(entry, results, experiments) for entry in entries]
    caption = "Test accuracy, ours next to the paper's" if table.against_paper else "Test accuracy"
    return Shown(
        headings, rows, caption + (f" ({PARTIAL})" if table.partial else ""), search=True, charts=charts
    )


def _row(entry: Entry) -> list[str]:
    dataset, method, percent = entry.cell
    ours, paper, difference = entry.ours, entry.paper, entry.difference
    numbers = ["–", "–", "–"]
    if ours is not None:
        spread = "–" if isnan(ours.accuracy_std) else f"{ours.accuracy_std:.3f}"
        numbers = [f"{ours.accuracy:.3f}{'' if ours.complete else '*'}", spread, str(ours.layers)]
    theirs = ["–", "–"] if paper is None else [f"{paper.accuracy:.3f}", str(paper.layers)]
    gap = "–" if difference is None else f"{difference:+.3f}"
    return [TITLES[dataset], method, f"{percent}%", *numbers, *theirs, gap]


def _curve(entry: Entry, results: ResultIndex, experiments: Sequence[Experiment]) -> Chart | None:
    """Draw accuracies against depth at a cell, and mark what was chosen and what the paper reports."""
    cell = entry.cell
    experiment = next((one for one in experiments if cell.method in one.methods), None)
    curve = results.by_depth(experiment, cell) if experiment is not None else []
    if not curve or entry.ours is None:
        return None
    marks = [(float(entry.ours.layers), round(entry.ours.accuracy, 4), "ours, chosen by validation")]
    if entry.paper is not None:
        marks.append((entry.paper.layers, entry.paper.accuracy, "the paper's"))
    title = f"{TITLES[cell.dataset]}, {cell.method}, {cell.missing_percent}% missing"
    curves = [_line(curve, f"{part}_accuracy", part, COLORS[part], SYMBOLS[part]) for part in COLORS]
    return lines(title, curves, "layers", "accuracy", ".3f", marks)


def _line(curve: Sequence[Summary], metric: str, name: str, color: str, symbol: str = "circle") -> Line:
    depths = [one.spec.depth for one in curve]
    return Line(name, depths, [one.mean(metric) for one in curve], color, symbol=symbol)


class TunedGain(NamedTuple):
    """The gain of SGC-PN over SGC with the paper's optimizer, and with each its own best."""

    dataset: str
    percent: int
    accuracies: tuple[float, ...]
    untuned: Difference
    tuned: Difference


def tuned_gains(table: Table | None) -> list[TunedGain]:
    """Return the gains of the settings in which all four methods are complete."""
    if table is None:
        return []
    complete = {entry.cell: entry.ours for entry in table.entries if entry.ours and entry.ours.complete}
    methods = ("SGC", "SGC-PN", "SGC-tuned", "SGC-PN-tuned")
    gains = []
    for dataset, percent in product(DATASETS, table.percents):
        ours = [complete.get(TableCell(dataset, method, percent)) for method in methods]
        known = [one for one in ours if one is not None]
        if len(known) == len(methods):
            runs = [one.best.values("test_accuracy") for one in known]
            differences = paired_difference(runs[1], runs[0]), paired_difference(runs[3], runs[2])
            accuracies = tuple(one.accuracy for one in known)
            gains.append(TunedGain(dataset, percent, accuracies, *differences))
    return gains


def gain_section(table: Table | None, blocks: Sequence[Any] = ()) -> Section | None:
    """Return the section on SGC and SGC-PN when each has its own best optimizer."""
    if table is None:
        return None
    text = (
        "The paper trains SGC with the optimizer of GCN. Here validation accuracy also selects learning rate "
        "(0.005, 0.05, 0.2), weight decay (0, 5e-6, 5e-4) and dropout (0, 0.6), for SGC and for SGC-PN, both "
        "on raw features: first with one run of everything, then with all runs of the best setting."
    )
    gains = tuned_gains(table)
    rows = [[TITLES[one.dataset], f"{one.percent}%", str(one.untuned), str(one.tuned)] for one in gains]
    sentences = [
        f"On {TITLES[one.dataset]} with all vectors missing, a tuned SGC reaches {one.accuracies[2]:.3f} "
        f"without PairNorm and {one.accuracies[3]:.3f} with it; with the paper's optimizer "
        f"{one.accuracies[0]:.3f} and {one.accuracies[1]:.3f}."
        for one in gains
        if one.percent == 100
    ]
    headings = ["Graph", "Missing", "Gain of PairNorm, paper's optimizer (95%)", "Both tuned (95%)"]
    shown = [Shown(headings, rows), Text(" ".join(sentences))] if rows else []
    return Section("How much of the gain is PairNorm's", [Text(text), *blocks, *shown])


def scaling_section(tables: Mapping[str, Table], blocks: Sequence[Any] = ()) -> Section | None:
    """Return the section on features that are divided by their sum and features that are not."""
    shown = {name: tables[name] for name in ("scaling", "table1", "table1-rows") if name in tables}
    if "scaling" not in shown:
        return None
    text = (
        "The paper's text does not say how. Its released code gives SGC features as they are, GCN and GAT "
        "the features of a node divided by their sum, and so do the tables above. Here the other way for "
        "both; “raw” are features as they are."
    )
    del shown["scaling"]
    lines = []
    for table in shown.values():
        apart = [entry.difference for entry in table.entries if entry.difference is not None]
        if apart:
            lines.append(
                f"- {table.title}: {fmean(map(abs, apart)):.3f} from the paper on average "
                f"over {len(apart)} numbers, {sum(one < -0.02 for one in apart)} of them over 0.02 under it "
                f"([CSV]({table.name}.csv))"
            )
    return Section("How features are scaled", [Text(text), *blocks, Markdown("\n".join(lines))])


def ablation_section(
    results: ResultIndex, selection: Selection, table: Table | None, blocks: Sequence[Any] = ()
) -> Section | None:
    """Return the section on adjacency, order and norm, and what it recommends."""
    experiment = selection.narrow(ABLATION)
    if table is None or experiment is None:
        return None
    best_by_cell = {
        cell: chosen
        for cell in experiment.cells()
        if (chosen := results.chosen(experiment, cell)) is not None and chosen.complete
    }
    text = (
        "The paper, its released code and its authors' remarks disagree on details. “rw” is the random-walk "
        "adjacency and “sym” the symmetric one (attention has neither); the norm comes “after” the "
        "activation (the text) or “before” it (the code); PN-SCS is in the code only."
    )
    changes = (
        "What changes when one choice is changed and the others stay (mean difference of test accuracy over "
        "graphs and the other choices):"
    )
    rows: list[list[str]] = []
    for one, other in (("sym", "rw"), ("before", "after"), ("PN-SI", "PN"), ("PN-SCS", "PN")):
        for model in ("GCN", "GAT"):
            effects = [_effect(best_by_cell, model, one, other, percent) for percent in experiment.missing]
            if any(effect is not None for effect in effects):
                shown = ["" if effect is None else f"{effect:+.3f}" for effect in effects]
                rows.append([f"{model}: {one} instead of {other}", *shown])
    headings = ["Change", *(f"{percent}% missing" for percent in experiment.missing)]
    advice = [_recommendation(best_by_cell, model, list(experiment.missing)) for model in ("GCN", "GAT")]
    advised = Markdown("\n\n".join(filter(None, advice)))
    return Section(
        "Which protocol: adjacency, order, norm",
        [Text(text), *blocks, Text(changes), Shown(headings, rows), advised],
    )


def _effect(
    best_by_cell: dict[TableCell, Chosen], model: str, one: str, other: str, percent: int
) -> float | None:
    """Return the mean difference between cells whose methods differ in one word only."""
    differences = []
    for cell, chosen in best_by_cell.items():
        words = cell.method.split(" ")
        if words[0] != model or one not in words or len(words) < 3 or cell.missing_percent != percent:
            continue
        twin = " ".join(other if word == one else word for word in words)
        if (against := best_by_cell.get(cell._replace(method=twin))) is not None:
            differences.append(chosen.accuracy - against.accuracy)
    return fmean(differences) if differences else None


def _recommendation(best_by_cell: dict[TableCell, Chosen], model: str, percents: Sequence[int]) -> str:
    """Name the method that validation prefers where every method has been trained completely."""
    methods = [method for method in ABLATION.methods if method.split(" ")[0] == model]
    columns = [
        (dataset, percent)
        for dataset in ABLATION.datasets
        for percent in percents
        if all(TableCell(dataset, method, percent) in best_by_cell for method in methods)
    ]
    if not columns:
        return ""

    def mean(method: str, value: Callable[[Chosen], float], among: Iterable[tuple[str, int]]) -> float:
        return fmean(value(best_by_cell[TableCell(dataset, method, percent)]) for dataset, percent in among)

    # Chosen by validation, like everything else: the test set must not decide which protocol is best.
    scores = {
        method: mean(method, lambda chosen: chosen.best.validation, columns)
        for method in methods
        if len(method.split(" ")) > 2
    }
    best = max(scores, key=lambda method: scores[method])
    accuracies = [
        f"{mean(best, lambda chosen: chosen.accuracy, column):.3f} at {percent}% missing"
        for percent in percents
        if (column := [(dataset, other) for dataset, other in columns if other == percent])
    ]
    graphs = " and ".join(TITLES[dataset] for dataset in dict.fromkeys(dataset for dataset, _ in columns))
    return (
        f"**Recommendation for {model}: {' '.join(best.split(' ')[1:])}**: the best mean validation accuracy "
        f"over missing rates on {graphs} ({scores[best]:.3f}); test accuracy {', '.join(accuracies)}."
    )


def interactive_figures(results: ResultIndex, selection: Selection) -> Iterator[Any]:
    """Yield the figures against depth for the page, folded."""
    titles = {
        "figure1": "Figure 1: SGC against depth",
        "figure3": "Figure 3: GCN and GAT against depth",
        "figure4": "Figure 4: against depth, all vectors missing",
    }
    for name, title in titles.items():
        experiment = selection.narrow(EXPERIMENTS[name])
        graphs = {
            TITLES[dataset]: charts
            for dataset in (experiment.datasets if experiment else ())
            if experiment and (charts := list(_panels(results, experiment, dataset)))
        }
        if graphs:
            what = Text("Without PairNorm dashed, with it solid.")
            yield Details(title, [what, Choices("Graph", graphs)])


def _panels(results: ResultIndex, experiment: Experiment, dataset: str) -> Iterator[Chart]:
    """Draw a figure of the paper on one graph: a chart for every model, of Figure 1 one for every metric."""
    [percent] = experiment.missing
    measured = bool(experiment.measures)
    for model in (name for name in experiment.methods if not name.endswith("-PN")):
        curves = {
            method: results.by_depth(experiment, TableCell(dataset, method, percent), one_scale=measured)
            for method in (model, f"{model}-PN")
            if method in experiment.methods
        }
        if not any(curves.values()):
            continue
        for metric in ("accuracy", "loss") if measured else ("accuracy",):
            drawn = [
                _line(curve, f"{part}_{metric}", part, COLORS[part], SYMBOLS[part])._replace(
                    dashed=plain, listed=not plain, name=f"{part}, without" if plain else part
                )
                for method, curve in curves.items()
                for part in COLORS
                if curve
                for plain in [method == model]
            ]
            yield lines(f"{model}: {metric}", drawn, "layers", metric, ".3f")
        for measure in experiment.measures:
            drawn = [
                _line(curve, measure, method, GRAY)._replace(dashed=method == model)
                for method, curve in curves.items()
                if curve and all(measure in trial.measures for one in curve for trial in one.trials)
            ]
            if drawn:
                name = measure.replace("_", "-")
                yield lines(f"{model}: {name}", drawn, "layers", name, ".3g", from_zero=True)
