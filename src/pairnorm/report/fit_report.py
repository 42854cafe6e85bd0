"""Compose the reports of ``fit`` and ``diagnose``, and write them to a folder as Markdown and HTML."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from pairnorm.base.errors import PairNormError
from pairnorm.base.files import atomic_folder, check_not_file, drafts_in, locked_folder
from pairnorm.base.memory import size
from pairnorm.classify.calibration import ALL, PredictionSets
from pairnorm.classify.candidates.candidate import best_by_depth
from pairnorm.classify.evaluation import paired_difference, wilson
from pairnorm.classify.explanation import HEADINGS, Smoothing, Suggestion, smoothing_table
from pairnorm.classify.findings import COMING_LATER, LATER, Findings, headline, verdict
from pairnorm.classify.persistence import FACTS, TENSORS, holds_model
from pairnorm.classify.predictions import PREDICTION_FILES
from pairnorm.classify.regression import MAX_SELECTION_ROWS
from pairnorm.classify.search_space import BASELINE_EPOCHS, BASELINE_SEEDS
from pairnorm.classify.streaming import Outcome
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
    can_render_html,
    render_html,
    render_markdown,
)
from pairnorm.report.fit_tables import (
    MIN_MEASURED,
    SCORE_COLUMNS,
    accuracy_tables,
    node_table,
    percent,
    percent_range,
    score_columns,
    set_tables,
    thousandths,
)

REPORT, PAGE = "report.md", "report.html"
REPORT_FILES = {REPORT, PAGE, "smoothing.png", "confusion.png", "comparison.png", "depth.png"}
OUTPUT_FILES = {*PREDICTION_FILES, FACTS, TENSORS, *REPORT_FILES}
"""All that a run may write."""
DEFAULT_RATE, CONFIDENT = 3, 0.9
GLOSSARY = {
    "Held-out node": "A node with a known label that was used neither to train nor to select the model. "
    "Accuracies are measured on these nodes alone.",
    "95% interval": "The range that contains the true value with 95% confidence. More held-out nodes make it "
    "narrower.",
    "Confidence": "The probability that the model gives to the label it predicts, calibrated on nodes "
    "that selected it.",
    "Prediction set": "A set of labels that contains the true one as often as you ask for, whatever the "
    "model, as long as other nodes are like the held-out ones (conformal prediction).",
    "Hop": "A step along an edge. A model of depth k uses nodes up to k hops away.",
    "Oversmoothing": "Repeated averaging over neighbors makes nodes more and more similar, until a model "
    "cannot distinguish them. PairNorm prevents it.",
}


def write_document(document: Document, folder: Path) -> None:
    """Write ``report.md`` with its figures and, where the libraries are installed, ``report.html``."""
    (folder / REPORT).write_text(render_markdown(document, folder), encoding="utf-8")
    if can_render_html():
        (folder / PAGE).write_text(render_html(document), encoding="utf-8")


def fit_page(findings: Findings, notes: Sequence[str] = ()) -> Document:
    """Return the report of a fitted classifier; ``notes`` are further sentences for the user."""
    labels = "Labels and confidences are those of predictions.csv"
    if findings.classifier.refit:
        labels += (
            ", from the delivered model, which is refitted on all labels except your test labels. "
            "Accuracies are those of the evaluation model, which was not trained on the held-out nodes"
        )
    sets = findings.prediction_sets()
    sections = [
        Section("Labels to trust", _trust(findings)),
        Section("Every node", [Text(f"{labels}."), node_table(findings, sets)]),
    ]
    if sets:
        sections.append(Section("Prediction sets", _prediction_sets(findings, sets)))
    if findings.test.any():
        sections.append(Section("Accuracy", list(_accuracy(findings)), wide=True))
        if findings.baselines:
            sections.append(Section("Comparison with baselines", _comparison(findings)))
    if findings.chosen:
        sections += [Section("Ensemble", _ensemble(findings)), Section("Depth", _depth(findings))]
    if findings.smoothing:
        depth = 0 if findings.deep is None else findings.deep.depth
        sections.append(smoothing_section(findings.smoothing, depth))
    sections.append(Section("Data and model", [_about(findings), *map(Text, notes)]))
    return Document(
        f"Labels for {findings.graph.name}",
        _cards(findings),
        sections,
        GLOSSARY,
        lead=headline(findings),
        download="Download the nodes to review (CSV)",
    )


def diagnosis_page(graph: Graph, rows: Sequence[Smoothing], suggestion: Suggestion) -> Document:
    """Return the report of ``diagnose``: a suggested depth, and the measures behind it."""
    missing, reach = suggestion.missing, "Every node has features."
    if suggestion.unreachable:
        reach = f"{suggestion.unreachable:,} of them have no path to a node with features, at any depth."
    elif missing:
        reach = "All of them have a path to a node with features."
    share = f"{missing:,} ({missing / max(graph.num_nodes, 1):.0%})"
    cards = [
        ("Suggested depth", str(suggestion.depth), suggestion.reason),
        ("Nodes without features", share, reach),
    ]
    about = Section("The graph", [Table([], graph.describe())])
    sections = [smoothing_section(rows, suggestion.depth), about]
    glossary = {name: GLOSSARY[name] for name in ("Hop", "Oversmoothing")}
    return Document(f"Oversmoothing of {graph.name}", cards, sections, glossary)


def smoothing_section(rows: Sequence[Smoothing], depth: int) -> Section:
    """Return the section on what depth does to the features; a ``depth`` above 0 is marked."""
    charts = []
    for measure, title, unit in (
        ("row_diff", "Distance between nodes (row-diff)", "% of depth 0"),
        ("col_diff", "Distance between features (col-diff)", "% of depth 0"),
        ("effective_rank", "Directions in use (effective rank)", "directions"),
    ):
        curves = []
        for norm, name, symbol in (("none", "without", "square"), ("PN", "with PairNorm", "circle")):
            some = [row for row in rows if row.norm == norm]
            start = 1.0 if measure == "effective_rank" else max(getattr(some[0], measure), 1e-30) / 100
            values = [getattr(row, measure) / start for row in some]
            depths = [row.depth for row in some]
            curves.append(Line(name, depths, values, NORMS[norm], norm == "none", symbol))
        mark = (depth, f"depth {depth}") if depth else None
        charts.append(
            lines(title, curves, "depth", unit, vertical=mark, from_zero=True, file_name="smoothing")
        )
    text = Text(
        "Repeated averaging makes nodes similar, and features similar. PairNorm keeps the total squared "
        "distance between nodes constant. Measured on the scaled features, propagated without training."
    )
    numbers = Details("The numbers", [Table(HEADINGS, smoothing_table(rows))])
    return Section("Oversmoothing", [text, *charts, numbers], wide=True)


def streamed_page(outcome: Outcome) -> Document:
    """Return the report of a model that was fitted to a packed graph."""
    search, scores, best = outcome.search, outcome.scores, outcome.best
    graph, rows, plan, metric = search.graph, search.rows, search.plan, search.metric.replace("-", " ")
    candidates = [
        [one.name, one.setting, f"{score:.3f}", percent(one.validation_accuracy),
         f"{one.validation_loss:.3f}"]
        for one, score, _ in outcome.best_by_method
    ]  # fmt: skip
    setting = f" ({best.setting})" if best.setting else ""
    labeled = np.count_nonzero(rows.train_labels >= 0)
    selected = (
        f"{best.name}{setting} was selected by its {metric} on {len(rows.validation):,} validation nodes. "
        f"It was trained on {len(rows.train):,} of {labeled:,} training nodes, a stratified sample; the "
        f"candidates were compared on {min(MAX_SELECTION_ROWS, len(rows.train)):,} of them."
    )
    memory = (
        f"At most {size(plan.peak(plan.width))} of {size(plan.memory)} allowed were planned, in blocks of "
        f"{plan.width} columns."
    )
    caveat = [Text(outcome.caveat)] if outcome.caveat else []
    headings = ["candidate", "setting", metric, "validation accuracy", "validation loss"]
    sections = [
        Section("Accuracy", [*caveat, *accuracy_tables({ALL: scores}, graph.facts.classes)]),
        Section("Candidates", [Text(selected), Table(headings, candidates)]),
        Section("Not tried", [Text(f"{what}.") for what in search.left_out]),
        Section("Data and memory", [Table([], graph.describe()), Text(memory)]),
    ]
    text = (
        f"on {scores.count:,} test nodes, whose labels were not used otherwise; 95% interval "
        f"{percent_range(*scores.interval)}; {percent(scores.most_frequent_share)} have the most frequent "
        "class."
    )
    cards = [("Accuracy", percent(scores.accuracy), text)]
    return Document(f"Labels for {graph.folder.name}", cards, sections)


def _nodes(count: int) -> str:
    return f"{count:,} held-out {'node' if count == 1 else 'nodes'}"


def _cards(findings: Findings) -> list[tuple[str, str, str]]:
    """Return the three numbers of the first screen: accuracy, gain, and labels to review."""
    confidence, counted = findings.delivered_probabilities.max(1), findings.nodes_to_label
    review = f"{int((counted & (confidence < CONFIDENT)).sum()):,} of {int(counted.sum()):,}"
    total = "in all" if findings.graph.labeled.all() else "without a known label"
    to_review = ("Labels to review", review, f"nodes {total} have a confidence below {CONFIDENT:.0%}.")
    test = findings.test
    if not test.any():
        return [("Accuracy", "Not known", "There are no held-out nodes to measure it on."), to_review]
    scores = findings.groups()[ALL]
    few = scores.count < MIN_MEASURED
    answer = f"{scores.right} of {scores.count}" if few else percent(scores.accuracy)
    meaning = (
        f"95% interval {percent_range(*scores.interval)}, on {_nodes(scores.count)}; "
        f"{percent(scores.most_frequent_share)} have the most frequent class."
    )
    cards = [("Accuracy", answer, meaning)]
    if findings.baselines:
        labels = findings.graph.labels.cpu().numpy()
        right = {one.name: (one.predicted == labels)[test] for one in findings.baselines}
        name = max(right, key=lambda one: right[one].sum())
        difference = paired_difference((findings.predicted == labels)[test], right[name])
        gain, low, high = (100 * value for value in difference)
        text = f"95% interval {low:+.1f} to {high:+.1f}, over {name} ({100 * right[name].mean():.1f}%)."
        cards.append(("Gain over the best baseline", f"{gain:+.1f} points", text))
    return [*cards, to_review]


def _trust(findings: Findings) -> list[Text | Threshold]:
    delivered, evaluated = (
        thousandths(one.max(1)) for one in (findings.delivered_probabilities, findings.probabilities)
    )
    test, counted = findings.test, findings.nodes_to_label
    right = findings.predicted == findings.graph.labels.cpu().numpy()
    what = "in all" if findings.graph.labeled.all() else "without a known label"
    total, sentences = int(counted.sum()), []
    for threshold in range(101):
        trusted, sure = int((counted & (delivered >= 10 * threshold)).sum()), evaluated >= 10 * threshold
        text = f"Of {total:,} nodes {what}, {trusted:,} to trust and {total - trusted:,} to review."
        for group, name in ((test & sure, "at least this confidence"), (test & ~sure, "less")):
            if not (count := int(group.sum())):
                continue
            hits = int(right[group].sum())
            share = f"{percent(hits / count)} are right (95% interval {percent_range(*wilson(hits, count))})."
            number = f"{hits} {'is' if hits == 1 else 'are'} right."
            text += f" Of {_nodes(count)} with {name}, {number if count < MIN_MEASURED else share}"
        if test.any() and not (test & sure).any():
            text += " No held-out node has this confidence, so the accuracy there is not known."
        sentences.append(text)
    return [
        Text("Set the confidence above which a label is used as it is. A person reviews the others."),
        Threshold("Trust labels with a confidence of at least", sentences, round(100 * CONFIDENT)),
    ]


def _prediction_sets(findings: Findings, sets: Sequence[PredictionSets]) -> list[Text | Choices]:
    missing, counted = findings.graph.missing_vectors.cpu().numpy(), findings.nodes_to_label
    what = "nodes" if findings.graph.labeled.all() else "nodes without a known label"
    groups = {f"all {what}": counted}
    if (counted & missing).any() and (counted & ~missing).any():
        groups |= {"with features": counted & ~missing, "without features": counted & missing}
    choices = {f"{one.rate:.0%}": set_tables(one, groups) for one in sets}
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


def _accuracy(findings: Findings) -> Iterator[Text | Table | Chart]:
    groups, names, test = findings.groups(), findings.graph.class_names, findings.test
    yield Text(
        "On held-out nodes, whose labels were used neither to train nor to select the model. Balanced "
        "accuracy and macro F1 are means over classes, so that small classes count as much as large ones."
    )
    if LATER in groups:
        yield Text(COMING_LATER)
    yield from accuracy_tables(groups, names)
    yield confusion("Confusion matrix (shade: share of the true class)", groups[ALL].confusion, names)
    right = findings.predicted[test] == findings.graph.labels.cpu().numpy()[test]
    title = "Reliability: accuracy against confidence (ideal: the diagonal)"
    yield reliability(title, findings.probabilities[test].max(1), right)


def _comparison(findings: Findings) -> list[Markdown | Table | Chart | Text]:
    scores = findings.comparison()
    ends = [(100 * one.accuracy, 100 * one.interval[0], 100 * one.interval[1]) for one in scores.values()]
    rows = [[name, *score_columns(one)] for name, one in scores.items()]
    title = "Accuracy on held-out nodes, with 95% interval"
    return [
        Markdown(verdict(findings)),
        intervals(title, list(scores), ends, "accuracy (%)"),
        Table(["method", *SCORE_COLUMNS], rows),
        Text(_tuning(findings)),
    ]


def _tuning(findings: Findings) -> str:
    """Describe how each method was tuned."""
    if not findings.chosen:
        return "All methods were trained on the same nodes. Without validation nodes, settings are fixed."
    listed = [f"{findings.classifier.best_.name}: {len(findings.classifier.search_):,}"]
    for one in findings.baselines:
        if one.num_candidates > 1:
            setting = f" ({one.best.setting})" if one.best.setting else ""
            listed.append(f"{one.name}: {one.num_candidates:,}{setting}")
    text = f"Settings were selected on {findings.selection_nodes}. Settings tried: {'; '.join(listed)}."
    split = findings.graph.split
    if findings.classifier.task_.fold_masks:
        count = int((split.train | split.validation).sum())
        text += f" Methods without networks were then trained on all {count:,} training and validation nodes."
    if any(one.best.model == "GCN" for one in findings.baselines):
        text += (
            f" The GCN trains on the {int(split.train.sum()):,} training nodes alone, for at most "
            f"{BASELINE_EPOCHS} epochs, averaged over {BASELINE_SEEDS} seeds; the validation nodes stop and "
            "select it."
        )
    return text


def _ensemble(findings: Findings) -> list[Text | Table]:
    classifier, best = findings.classifier, findings.classifier.best_
    how = f"that do best together on {findings.selection_nodes}, by {getattr(classifier, 'metric', 'loss')}"
    if best.one_per_model:
        how = f"that are the best of each model, as {findings.selection_nodes} prefer none"
    members = classifier.parts_
    if best.model == "average":
        members = [*members, (sum(weight for weight, _ in members), best)]
    rows = [
        [
            one.name if one.depth or one.model == "average" else f"{one.name} {one.setting}".strip(),
            f"{weight}",
            percent(one.validation_accuracy),
            f"{one.validation_loss:.3f}",
        ]
        for weight, one in members
    ]
    return [
        Text(f"Of {len(classifier.search_):,} models, the ensemble averages those {how}. Each alone:"),
        Table(["model", "weight", "validation accuracy", "validation loss"], rows),
    ]


def _depth(findings: Findings) -> list[Text | Chart]:
    best, candidates = findings.deep, [one for one in findings.classifier.search_ if one.depth]
    if best is None:
        return [Text("No model with a depth was tried.")]
    text = (
        f"Of {len(candidates):,} models with a depth, {best.name} had the smallest loss on "
        f"{findings.selection_nodes} (accuracy {percent(best.validation_accuracy)}). The chart shows "
        "the best setting of each depth."
    )
    depths = {one.depth for one in candidates if one.model == best.model}
    if len(depths) > 1 and best.depth == max(depths):
        text += f" No deeper {best.model} was tried; --depth tries others."
    symbols = ("circle", "square", "triangle-up", "diamond", "cross", "x")
    models = list(dict.fromkeys(one.model for one in candidates))
    curves = []
    for (model, norm), accuracy in best_by_depth(candidates).items():
        points = {depth: 100 * accuracy[depth] for depth in sorted(accuracy)}
        name = model if norm == "none" else f"{model}-{norm}"
        symbol = symbols[models.index(model) % len(symbols)]
        curves.append(Line(name, [*points], [*points.values()], NORMS[norm], norm == "none", symbol))
    marks = [(best.depth, 100 * best.validation_accuracy, f"smallest loss: {best.name}")]
    title = "Validation accuracy against depth"
    return [Text(text), lines(title, curves, "depth", "accuracy (%)", marks=marks, file_name="depth")]


def _about(findings: Findings) -> Table:
    graph, classifier, suggestion = findings.graph, findings.classifier, findings.suggestion
    rows: list[Any] = [*graph.describe(), ("scaling", classifier.scaling_.sentence)]
    if (column := getattr(classifier, "time", None)) is not None:
        rows.append(("tested on", f"the latest nodes by {column}"))
    if suggestion.unreachable:
        text = f"{suggestion.unreachable:,} nodes without features have no path to a node with features"
        rows.append(("unreachable", text))
    if findings.direction is not None:
        rows.append(("direction", findings.direction))
    return Table([], [*rows, ("model", f"{classifier.best_.name}, adjacency {classifier.adjacency}")])


@contextmanager
def result_folder(folder: Path, names: Collection[str] = OUTPUT_FILES) -> Iterator[Path]:
    """Give a folder for drafts, which move into ``folder`` at the end; after an error, nothing has changed.

    Args:
        folder: absent, empty, or with the output of an earlier run.
        names: files to replace or, where the drafts have no such file, to remove. Other files stay.
    """
    check_folder(folder)
    with atomic_folder(folder, names) as drafts:
        yield drafts


def check_folder(folder: Path) -> None:
    """Refuse a folder that is in use for something else."""
    check_not_file(folder)
    with locked_folder(folder):
        pass
    if not folder.is_dir() or holds_model(folder):
        return
    others = set(folder.iterdir()) - set(drafts_in(folder, folder.resolve()))
    if others and not _is_streamed(others):
        problem = f"{folder}: the folder holds files that no run wrote"
        hint = "Choose another, such as a new one in it."
        raise PairNormError(problem, code="foreign-folder", value=str(folder), hint=hint)


def _is_streamed(paths: set[Path]) -> bool:
    """Return whether files are the output for a packed graph, which has no model."""
    named = {path.name: path for path in paths}
    if not {PREDICTION_FILES[0], REPORT} <= named.keys() <= {*PREDICTION_FILES, *REPORT_FILES}:
        return False
    with named[PREDICTION_FILES[0]].open("rb") as file:
        return file.read(13) == b"id,predicted,"
