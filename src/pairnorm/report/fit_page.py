"""Compose the reports of ``fit`` and ``diagnose``: which labels to trust, and the evidence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isnan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pairnorm.classify.candidates.candidate import best_by_depth
from pairnorm.classify.conformal import PredictionSets
from pairnorm.classify.diagnosis import HEADINGS, Smoothing, Suggestion, measured
from pairnorm.classify.evaluation import Scores, paired_difference, wilson
from pairnorm.classify.findings import COMING_LATER, LATER, Findings
from pairnorm.classify.search_space import BASELINE_EPOCHS, BASELINE_SEEDS
from pairnorm.classify.verdict import headline, verdict
from pairnorm.data import Graph
from pairnorm.report.charts import NORMS, Chart, Line, confusion, intervals, lines, reliability
from pairnorm.report.document import (
    Choices,
    Details,
    Document,
    Markdown,
    Section,
    Table,
    Text,
    Threshold,
)
from pairnorm.report.node_table import delivered_labels, node_table, thousandths

DEFAULT_RATE, CONFIDENT = 3, 0.9
# Percentages of fewer held-out nodes are not shown.
MIN_MEASURED = 10
GROUP_COLUMNS = ("nodes", "accuracy", "95% interval", "balanced accuracy", "macro F1")
CLASS_COLUMNS = ("class", "nodes", "recall", "precision", "F1")
Rows = list[list[str]]
GLOSSARY = {
    "Held-out node": "A node with a known label that was used neither to train nor to select the model. "
    "Accuracies are measured on these nodes alone.",
    "95% interval": "The range that contains the true value with 95% confidence. More held-out nodes make it "
    "narrower.",
    "Confidence": "The probability that the model gives to the label it predicts, calibrated on validation "
    "nodes.",
    "Prediction set": "A set of labels that contains the true one as often as you ask for, whatever the "
    "model, as long as other nodes are like the held-out ones (conformal prediction).",
    "Hop": "A step along an edge. A model of depth k uses nodes up to k hops away.",
    "Oversmoothing": "Repeated averaging over neighbors makes nodes more and more similar, until a model "
    "cannot distinguish them. PairNorm prevents it.",
}


def fit_page(findings: Findings, notes: Sequence[str] = ()) -> Document:
    """Return the report of a fitted classifier; ``notes`` are further sentences for the user."""
    graph, tested = findings.graph, bool(findings.test.any())
    sets = findings.prediction_sets()
    depth = 0 if findings.deep is None else findings.deep.depth
    parts: list[tuple[str, Sequence[Any], bool]] = [
        ("Labels to trust", list(_trust(findings)), True),
        ("Every node", [Text(_models(findings)), node_table(findings, sets)], True),
        ("Prediction sets", _prediction_sets(findings, sets), bool(sets)),
        ("Accuracy", list(_accuracy(findings)) if tested else [], tested),
        ("Comparison with baselines", _comparison(findings), tested and bool(findings.baselines)),
        ("Ensemble", list(_ensemble(findings)) if findings.chosen else [], findings.chosen),
        ("Depth", list(_depth(findings)) if findings.chosen else [], findings.chosen),
    ]
    # The charts of the accuracy stand side by side.
    sections = [Section(title, blocks, title == "Accuracy") for title, blocks, shown in parts if shown]
    if findings.smoothing:
        sections.append(smoothing_section(findings.smoothing, depth))
    sections.append(Section("Data and model", [_about(findings), *map(Text, notes)]))
    return Document(
        f"Labels for {graph.name}",
        _cards(findings),
        sections,
        GLOSSARY,
        lead=headline(findings),
        download="Download the nodes to review (CSV)",
    )


def _models(findings: Findings) -> str:
    labels = "Labels and confidences are those of predictions.csv"
    if not findings.classifier.refit:
        return f"{labels}."
    return (
        f"{labels}, from the delivered model, which is refitted on all labels except your test labels. "
        "Accuracies are those of the evaluation model, which was not trained on the held-out nodes."
    )


def diagnosis_page(graph: Graph, rows: Sequence[Smoothing], suggestion: Suggestion) -> Document:
    """Return the report of ``diagnose``: a suggested depth, and the measures behind it."""
    missing = suggestion.missing
    reach = "All of them have a path to a node with features."
    if suggestion.unreachable:
        reach = f"{suggestion.unreachable:,} of them have no path to a node with features, at any depth."
    cards = [
        ("Suggested depth", str(suggestion.depth), suggestion.reason),
        (
            "Nodes without features",
            f"{missing:,} ({missing / max(graph.num_nodes, 1):.0%})",
            reach if missing else "Every node has features.",
        ),
    ]
    sections = [
        smoothing_section(rows, suggestion.depth),
        Section("The graph", [Table([], graph.describe())]),
    ]
    glossary = {name: GLOSSARY[name] for name in ("Hop", "Oversmoothing")}
    return Document(f"Oversmoothing of {graph.name}", cards, sections, glossary)


def smoothing_section(rows: Sequence[Smoothing], depth: int) -> Section:
    """Return the section on what depth does to the features; a ``depth`` above 0 is marked."""
    titles = {
        "row_diff": ("Distance between nodes (row-diff)", "% of depth 0"),
        "col_diff": ("Distance between features (col-diff)", "% of depth 0"),
        "effective_rank": ("Directions in use (effective rank)", "directions"),
    }
    charts = []
    for measure, (title, unit) in titles.items():
        curves = []
        for norm, name in (("none", "without"), ("PN", "with PairNorm")):
            line = [row for row in rows if row.norm == norm]
            start = 1.0 if measure == "effective_rank" else max(getattr(line[0], measure), 1e-30) / 100
            values = [getattr(row, measure) / start for row in line]
            symbol = "square" if norm == "none" else "circle"
            curves.append(
                Line(name, [row.depth for row in line], values, NORMS[norm], norm == "none", symbol)
            )
        mark = (depth, f"depth {depth}") if depth else None
        charts.append(
            lines(title, curves, "depth", unit, vertical=mark, from_zero=True, file_name="smoothing")
        )
    text = Text(
        "Repeated averaging makes nodes similar, and features similar. PairNorm keeps the total squared "
        "distance between nodes constant. Measured on the scaled features, propagated without training."
    )
    numbers = Details("The numbers", [Table(HEADINGS, measured(rows))])
    return Section("Oversmoothing", [text, *charts, numbers], wide=True)


def _cards(findings: Findings) -> list[tuple[str, str, str]]:
    """Return the three numbers of the first screen: accuracy, gain, and labels to review."""
    confidence, counted = delivered_labels(findings)[0].max(1), findings.nodes_to_label
    review = int((counted & (confidence < CONFIDENT)).sum())
    answer, total = f"{review:,} of {int(counted.sum()):,}", "without a known label"
    total = "in all" if findings.graph.labeled.all() else total
    to_review = ("Labels to review", answer, f"nodes {total} have a confidence below {CONFIDENT:.0%}.")
    test = findings.test
    if not test.any():
        return [("Accuracy", "Not known", "There are no held-out nodes to measure it on."), to_review]
    scores = findings.groups()["all held-out nodes"]
    few, nodes = scores.count < MIN_MEASURED, "node" if scores.count == 1 else "nodes"
    answer = f"{scores.right} of {scores.count}" if few else f"{100 * scores.accuracy:.1f}%"
    low, high = scores.interval
    interval = f"95% interval {100 * low:.1f} to {100 * high:.1f}%"
    cards = [("Accuracy", answer, f"{interval}, on {scores.count:,} held-out {nodes}.")]
    if findings.baselines:
        labels = findings.graph.labels.cpu().numpy()
        right = {one.name: (one.predicted == labels)[test] for one in findings.baselines}
        name = max(right, key=lambda one: right[one].sum())
        difference = paired_difference((findings.predicted == labels)[test], right[name])
        gain, low, high = (100 * value for value in difference)
        text = f"95% interval {low:+.1f} to {high:+.1f}, over {name} ({100 * right[name].mean():.1f}%)."
        cards.append(("Gain over the best baseline", f"{gain:+.1f} points", text))
    return [*cards, to_review]


def _trust(findings: Findings) -> Iterator[Text | Threshold]:
    delivered, evaluated = (
        thousandths(one.max(1)) for one in (delivered_labels(findings)[0], findings.probabilities)
    )
    test, counted = findings.test, findings.nodes_to_label
    right = findings.predicted == findings.graph.labels.cpu().numpy()
    what = "in all" if findings.graph.labeled.all() else "without a known label"
    total, sentences = int(counted.sum()), []
    for least in range(101):
        trusted, sure = int((counted & (delivered >= 10 * least)).sum()), evaluated >= 10 * least
        text = f"Of {total:,} nodes {what}, {trusted:,} to trust and {total - trusted:,} to review."
        for group, name in ((test & sure, "at least this confidence"), (test & ~sure, "less")):
            if count := int(group.sum()):
                hits = int(right[group].sum())
                text += f" Of {count:,} held-out {'node' if count == 1 else 'nodes'} with {name}, "
                if count < MIN_MEASURED:
                    text += f"{hits} {'is' if hits == 1 else 'are'} right."
                else:
                    low, high = (100 * share for share in wilson(hits, count))
                    text += f"{100 * hits / count:.1f}% are right (95% interval {low:.1f} to {high:.1f}%)."
        if test.any() and not (test & sure).any():
            text += " No held-out node has this confidence, so the accuracy there is not known."
        sentences.append(text)
    yield Text("Set the confidence above which a label is used as it is. A person reviews the others.")
    yield Threshold("Trust labels with a confidence of at least", sentences, round(100 * CONFIDENT))


def _prediction_sets(findings: Findings, sets: Sequence[PredictionSets]) -> list[Text | Choices]:
    missing, counted = findings.graph.missing_vectors.cpu().numpy(), findings.nodes_to_label
    what = "nodes" if findings.graph.labeled.all() else "nodes without a known label"
    groups = {f"all {what}": counted}
    if (counted & missing).any() and (counted & ~missing).any():
        groups |= {"with features": counted & ~missing, "without features": counted & missing}
    choices = {}
    for one in sets:
        rows = [[name, f"{group.sum():,}", *_shares(one.sizes[group])] for name, group in groups.items()]
        measured_rows = [
            [
                name,
                f"{group.nodes:,}",
                f"{100 * (1 - one.rate):g}%" if group.guaranteed else "–",
                *(
                    ("too few", "–")
                    if group.nodes < MIN_MEASURED
                    else (f"{100 * group.mean:.1f}%", f"{100 * group.low:.1f} to {100 * group.high:.1f}%")
                ),
            ]
            for name, group in one.coverage.items()
        ]
        blocks: list[Table | Text] = [
            Table(["group", "nodes", "one label", "several"], rows, "Sizes of the sets"),
            Table(
                ["group", "held out", "asked for", "measured", "90% range"],
                measured_rows,
                "How often the set contains the true label",
            ),
        ]
        if not all(group.guaranteed for group in one.coverage.values()):
            text = "Too few nodes of one group are held out: the guarantee holds for all groups together."
            blocks.append(Text(text))
        choices[f"{one.rate:.0%}"] = blocks
    return [
        Text(
            "Choose how often the true label may be left out. Each node then gets the labels that cannot be "
            "excluded, at least one. A person reviews nodes with several."
        ),
        Choices("Error rate", choices, DEFAULT_RATE),
        Text(
            "Conformal prediction guarantees the rate on average over nodes like the held-out ones, not for "
            "each class or node. Measured on random halves of the held-out nodes: one sets the threshold, "
            "the other is evaluated."
        ),
    ]


def _shares(sizes: NDArray[np.int64]) -> list[str]:
    counts = [int((sizes == 1).sum()), int((sizes > 1).sum())]
    return [f"{count:,} ({count / max(len(sizes), 1):.0%})" for count in counts]


def _accuracy(findings: Findings) -> Iterator[Text | Table | Chart]:
    groups, names, test = findings.groups(), findings.graph.class_names, findings.test
    scores = groups["all held-out nodes"]
    by_group, by_class = accuracy_tables(groups, names)
    yield Text(
        "On held-out nodes, whose labels were used neither to train nor to select the model. Balanced "
        "accuracy and macro F1 are means over classes, so that small classes count as much as large ones."
    )
    if LATER in groups:
        yield Text(COMING_LATER)
    yield Table(["group", *GROUP_COLUMNS], by_group)
    yield Table(CLASS_COLUMNS, by_class)
    yield confusion("Confusion matrix (shade: share of the true class)", scores.confusion, names)
    right = findings.predicted[test] == findings.graph.labels.cpu().numpy()[test]
    title = "Reliability: accuracy against confidence (ideal: the diagonal)"
    yield reliability(title, findings.probabilities[test].max(1), right)


def _comparison(findings: Findings) -> list[Markdown | Table | Chart | Text]:
    scores = findings.comparison()
    ends = [(one.accuracy, *one.interval) for one in scores.values()]
    values = [(100 * value, 100 * low, 100 * high) for value, low, high in ends]
    rows = [[name, *numbers(one)] for name, one in scores.items()]
    title = "Accuracy on held-out nodes, with 95% interval"
    return [
        Markdown(verdict(findings)),
        intervals(title, list(scores), values, "accuracy (%)"),
        Table(["method", *GROUP_COLUMNS[1:]], rows),
        Text(_tuning(findings)),
    ]


def _tuning(findings: Findings) -> str:
    """Describe how each method was tuned."""
    if not findings.chosen:
        return "All methods were trained on the same nodes. Without validation nodes, settings are fixed."
    counts = [(findings.classifier.best_.name, len(findings.classifier.search_), "")]
    counts += [
        (one.name, one.num_candidates, one.best.setting)
        for one in findings.baselines
        if one.num_candidates > 1
    ]
    listed = [f"{name}: {count:,}{f' ({setting})' if setting else ''}" for name, count, setting in counts]
    return (
        f"Settings of each method were selected on {findings.selection_nodes}. Settings tried: "
        f"{'; '.join(listed)}. "
        f"The GCN trains on the training nodes for at most {BASELINE_EPOCHS} epochs, averaged over "
        f"{BASELINE_SEEDS} seeds; the validation nodes stop and select it."
    )


def _ensemble(findings: Findings) -> Iterator[Text | Table]:
    classifier = findings.classifier
    how = f"that do best together on {findings.selection_nodes}, by {getattr(classifier, 'metric', 'loss')}"
    if classifier.best_.one_per_model:
        how = f"that are the best of each model, as {findings.selection_nodes} prefer none"
    yield Text(f"Of {len(classifier.search_):,} models, the ensemble averages those {how}. Each alone:")
    members = [*classifier.parts_, (sum(weight for weight, _ in classifier.parts_), classifier.best_)]
    rows = [
        [
            one.name if one.depth or one.model == "average" else f"{one.name} {one.setting}".strip(),
            f"{weight}",
            percent(one.validation_accuracy),
            f"{one.validation_loss:.3f}",
        ]
        for weight, one in (members if classifier.best_.model == "average" else members[:1])
    ]
    yield Table(["model", "weight", "validation accuracy", "validation loss"], rows)


def _depth(findings: Findings) -> Iterator[Text | Chart]:
    best, candidates = findings.deep, [one for one in findings.classifier.search_ if one.depth]
    if best is None:
        yield Text("No model with a depth was tried.")
        return
    symbols = ("circle", "square", "triangle-up", "diamond", "cross", "x")
    models = list(dict.fromkeys(one.model for one in candidates))
    text = (
        f"Of {len(candidates):,} models with a depth, {best.name} had the smallest loss on "
        f"{findings.selection_nodes} (accuracy {percent(best.validation_accuracy)}). The chart shows "
        "the best setting of each depth."
    )
    depths = {one.depth for one in candidates if one.model == best.model}
    if len(depths) > 1 and best.depth == max(depths):
        text += f" No deeper {best.model} was tried; --depth tries others."
    yield Text(text)
    curves = []
    for (model, norm), accuracy in best_by_depth(candidates).items():
        depths_, bare = sorted(accuracy), norm == "none"
        name, symbol = model if bare else f"{model}-{norm}", symbols[models.index(model) % len(symbols)]
        values = [100 * accuracy[depth] for depth in depths_]
        curves.append(Line(name, depths_, values, NORMS[norm], bare, symbol))
    marks = [(best.depth, 100 * best.validation_accuracy, f"smallest loss: {best.name}")]
    title = "Validation accuracy against depth"
    yield lines(title, curves, "depth", "accuracy (%)", marks=marks, file_name="depth")


def _about(findings: Findings) -> Table:
    graph, classifier, suggestion = findings.graph, findings.classifier, findings.suggestion
    rows = [*graph.describe(), ("scaling", classifier.scaling_.sentence)]
    if (column := getattr(classifier, "time", None)) is not None:
        rows.append(("tested on", f"the latest nodes by {column}"))
    if suggestion.unreachable:
        text = f"{suggestion.unreachable:,} nodes without features have no path to a node with features"
        rows.append(("unreachable", text))
    if findings.direction is not None:
        rows.append(("direction", findings.direction))
    return Table([], [*rows, ("model", f"{classifier.best_.name}, adjacency {classifier.adjacency}")])


def accuracy_tables(groups: Mapping[str, Scores], classes: Sequence[str]) -> tuple[Rows, Rows]:
    """Return the rows of two tables: by group of held-out nodes, and by class."""
    scores = groups["all held-out nodes"]
    columns = zip(scores.confusion.sum(1), scores.recall, scores.precision, scores.f1, strict=True)
    return (
        [[name, f"{one.count:,}", *numbers(one)] for name, one in groups.items()],
        [
            [name, f"{count:,}", *map(percent, shares)]
            for name, (count, *shares) in zip(classes, columns, strict=True)
        ],
    )


def numbers(scores: Scores) -> list[str]:
    """Return accuracy, its 95% interval, balanced accuracy and macro F1 as texts."""
    low, high = scores.interval
    return [
        percent(scores.accuracy),
        f"{100 * low:.1f} to {100 * high:.1f}%",
        percent(scores.balanced_accuracy),
        percent(scores.macro_f1),
    ]


def percent(value: float) -> str:
    """Return a share as a percentage; a dash for NaN."""
    return "–" if isnan(value) else f"{100 * value:.1f}%"
