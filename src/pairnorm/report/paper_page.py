"""The page of the paper: tables that sort, any cell's curve against depth, claims with their evidence."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import isnan
from statistics import fmean
from typing import Any

from pairnorm.paper.evidence import CASES, STATUSES, Verdict
from pairnorm.paper.experiments import EXPERIMENTS, Selection
from pairnorm.report import Chart, Choices, Details, Document, Markdown, Section, Text
from pairnorm.report import Table as Shown
from pairnorm.report.charts import COLORS, GRAY, SYMBOLS, Line, lines
from pairnorm.sweep.grid import Experiment, Summary, TableCell
from pairnorm.sweep.index import ResultIndex
from pairnorm.sweep.tables import PARTIAL, TITLES, Entry, Table

GLOSSARY = {
    "Missing": "The share of nodes outside the training set whose features were taken away.",
    "Layers": "How many graph convolutions; chosen by accuracy on the validation nodes.",
    "PN": "With PairNorm: after each layer, nodes are centered and rescaled so that their distances do not "
    "shrink.",
    "SGC, GCN, GAT": "The models: a linear one, one with hidden layers, and one with attention.",
    "Row-diff, col-diff": "The mean distance between nodes, and between features: both fall as a model "
    "oversmooths.",
    "±": "The standard deviation over the runs, which differ in their seeds.",
}


def paper_page(
    results: ResultIndex,
    selection: Selection,
    tables: Mapping[str, Table],
    decided: Sequence[Verdict],
    texts: Mapping[str, str],
) -> Document:
    """Return the page.

    Texts are Markdown by the name of the table they are about, or by their own; ``## `` opens their title.
    """
    sections = []
    for name, text in texts.items():
        if text:
            shown = [_shown(tables[name], results, selection)] if name in tables else []
            sections.append(_section(text, shown))
        if name == "differences":
            sections.append(_claims(decided))
    sections[-1:-1] = _figures(results, selection)
    return Document("The paper, reproduced", list(_cards(tables, decided)), sections, GLOSSARY)


def _section(text: str, blocks: Sequence[Any]) -> Section:
    title, _, rest = text.removeprefix("## ").partition("\n")
    return Section(title, [*([Markdown(rest)] if rest.strip() else []), *blocks])


def _cards(tables: Mapping[str, Table], decided: Sequence[Verdict]) -> Iterator[tuple[str, str, str]]:
    entries = [
        entry for name in ("table1", "table2", "table3") if name in tables for entry in tables[name].entries
    ]
    gaps = [abs(entry.difference) for entry in entries if entry.difference is not None]
    yield (
        "What was asked",
        "Does the paper hold?",
        "PairNorm (Zhao & Akoglu, ICLR 2020) was implemented independently, and its experiments run again.",
    )
    if gaps:
        near = sum(gap <= 0.05 for gap in gaps)
        yield (
            "Do the numbers agree?",
            f"{near} of {len(gaps)}",
            f"accuracies are within 0.05 of the paper's; on average they differ by {fmean(gaps):.3f}.",
        )
    counts = Counter(verdict.status for verdict in decided)
    rest = ", ".join(
        f"{counts[status]} {word}" for status, word in STATUSES.items() if counts[status] and word != "hold"
    )
    yield "Do its claims hold?", f"{counts['holds']} of {len(decided)}", f"hold; {rest}." if rest else "hold."


def _shown(table: Table, results: ResultIndex, selection: Selection) -> Shown:
    """Return a row for every cell, our number beside the paper's, with the curve it was chosen from."""
    names = ("table1", "tuned") if table.name == "tuned" else (table.name,)
    experiments = [one for name in names if (one := selection.narrow(EXPERIMENTS[name]))]
    headings = ["Graph", "Method", "Missing", "Ours", "±", "Layers", "Paper", "Paper's layers", "Difference"]
    entries = [entry for entry in table.entries if entry.ours or entry.paper]
    rows = [_row(entry) for entry in entries]
    if not table.against_paper:
        headings, rows = headings[:6], [row[:6] for row in rows]
    charts = [_curve(entry, results, experiments) for entry in entries]
    caption = "Test accuracy, ours beside the paper's" if table.against_paper else "Test accuracy"
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


def _claims(decided: Sequence[Verdict]) -> Section:
    marks = {True: "yes", False: "no", None: "not run"}
    rows = [
        [
            one.claim.section,
            one.claim.text,
            one.claim.reading,
            one.in_paper,
            f"{one.status}{one.hedge}, {one.counts}",
            one.strength,
        ]
        for one in decided
    ]
    evidence = [
        Details(
            f"{one.claim.text} ({one.status}: {one.counts})",
            [
                Shown(
                    ["Case", "Holds", "Evidence"],
                    [[case.label, marks[case.holds], case.evidence] for case in one.cases],
                )
            ],
        )
        for one in decided
        if one.run
    ]
    headings = ["Section", "The paper says", "Read as", "In its numbers", "In ours", "How strongly"]
    blocks = [
        Text(f"{CASES} Below the table, the evidence for each claim."),
        Shown(headings, rows, "Claims of the paper", search=True),
        *evidence,
    ]
    return Section("Claim by claim", blocks)


def _figures(results: ResultIndex, selection: Selection) -> Iterator[Section]:
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
            yield Section(title, [what, Choices("Graph", graphs)], wide=True)


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
