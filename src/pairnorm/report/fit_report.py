"""Compose the reports of ``fit`` and ``diagnose``, and write them to a folder as Markdown and HTML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pairnorm.base.memory import size
from pairnorm.classify.candidates.task import Candidate, best_by_depth
from pairnorm.classify.evaluation import RANKING_METRICS, Scores, metric_name, wilson
from pairnorm.classify.explanation import HEADINGS, SmoothingMeasures, Suggestion, smoothing_table
from pairnorm.classify.findings import CROSS_FITTED, LATER, Findings, headline, verdict
from pairnorm.classify.holdout import incomplete_nodes
from pairnorm.classify.persistence import PAGE, REPORT
from pairnorm.classify.predictions import ALL, PredictionSets
from pairnorm.classify.regression import MAX_SELECTION_ROWS
from pairnorm.classify.search_space import BASELINE_DROPOUTS, BASELINE_EPOCHS, BASELINE_RATES, BASELINE_SEEDS
from pairnorm.classify.streaming import Outcome
from pairnorm.data import Graph
from pairnorm.data.adjacency import reachable
from pairnorm.report import charts, document
from pairnorm.report.document import (
    Choices,
    Details,
    Document,
    Markdown,
    Nodes,
    Section,
    Table,
    Text,
    Threshold,
)
from pairnorm.report.node_table import node_columns, thousandths

DEFAULT_RATE, CONFIDENT = 3, 0.9
# Percentages of fewer held-out nodes are not shown.
MIN_MEASURED = 10
DEFAULT_METRICS = ("accuracy", "balanced-accuracy", "macro-f1")
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


def write_document(report: Document, folder: Path) -> None:
    """Write ``report.md`` with its figures and, where the libraries are installed, ``report.html``."""
    (folder / REPORT).write_text(document.render_markdown(report, folder), encoding="utf-8")
    if document.can_render_html():
        (folder / PAGE).write_text(document.render_html(report), encoding="utf-8")


def fit_page(findings: Findings, notes: Sequence[str] = ()) -> Document:
    """Return the report of a fitted classifier; ``notes`` are further sentences for the user."""
    labels = "Labels and confidences are those of predictions.csv"
    if findings.classifier.refit:
        labels += (
            ", from the delivered model, which is refitted on all labels except test labels of your split. "
            "Accuracies are those of the evaluation model, which was not trained on the held-out nodes"
        )
    sets = findings.prediction_sets()
    nodes = Nodes(findings.graph.num_nodes, node_columns(findings, sets))
    sections = [
        Section("Labels to trust", _trust(findings)),
        Section("Every node", [Text(f"{labels}."), nodes]),
    ]
    if sets:
        sections.append(Section("Prediction sets", _prediction_sets(findings, sets)))
    if findings.test.any():
        sections.append(Section("Accuracy", list(_accuracy(findings)), wide=True))
        if findings.baselines:
            sections.append(Section("Comparison with baselines", _comparison(findings)))
    if findings.selected_by_validation:
        sections += [Section("Ensemble", _ensemble(findings)), Section("Depth", _depth(findings))]
    if findings.smoothing:
        depth = 0 if findings.best_deep is None else findings.best_deep.depth
        sections.append(smoothing_section(findings.smoothing, depth))
    texts = [Text(note[:1].upper() + note[1:]) for note in notes]
    sections.append(Section("Data and model", [_about(findings), *texts]))
    title, download = f"Labels for {findings.graph.name}", "Download the nodes to review (CSV)"
    return Document(title, _cards(findings), sections, GLOSSARY, lead=headline(findings), download=download)


def diagnosis_page(graph: Graph, rows: Sequence[SmoothingMeasures], suggestion: Suggestion) -> Document:
    """Return the report of ``diagnose``: a suggested depth, and the measures behind it."""
    missing, reach = suggestion.missing, "Every node has features."
    if suggestion.unreachable:
        reach = f"{suggestion.unreachable:,} of them have no path to a node with features, at any depth."
    elif missing:
        reach = "All of them have a path to a node with features."
    cards = [
        ("Suggested depth", str(suggestion.depth), suggestion.reason),
        ("Nodes without features", f"{missing:,} ({missing / max(graph.num_nodes, 1):.0%})", reach),
    ]
    sections = [
        smoothing_section(rows, suggestion.depth),
        Section("The graph", [Table([], graph.describe())]),
    ]
    glossary = {name: GLOSSARY[name] for name in ("Hop", "Oversmoothing")}
    return Document(f"Oversmoothing of {graph.name}", cards, sections, glossary)


def smoothing_section(rows: Sequence[SmoothingMeasures], depth: int) -> Section:
    """Return the section on oversmoothing of the features by depth; a ``depth`` above 0 is marked."""
    text = Text(
        "Repeated averaging makes nodes similar, and features similar. PairNorm keeps the total squared "
        "distance between nodes constant. Measured on the scaled features, propagated without training."
    )
    numbers = Details("The numbers", [Table(HEADINGS, smoothing_table(rows))])
    return Section("Oversmoothing", [text, *charts.smoothing_charts(rows, depth), numbers], wide=True)


def streamed_page(outcome: Outcome) -> Document:
    """Return the report of a model that was fitted to a packed graph."""
    search, scores, best = outcome.search, outcome.scores, outcome.best
    graph, rows, plan, metric = search.graph, search.rows, search.plan, search.metric.replace("-", " ")
    candidates = [
        [candidate.name, candidate.setting, f"{score:.3f}", *_validation(candidate)]
        for candidate, score, _ in outcome.best_by_method
    ]
    setting = f" ({best.setting})" if best.setting else ""
    selected = (
        f"{best.name}{setting} was selected by its {metric} on {len(rows.validation):,} validation nodes. "
        f"It was trained on {len(rows.train):,} of {np.count_nonzero(rows.train_labels >= 0):,} training "
        "nodes, a stratified sample; the candidates were compared on "
        f"{min(MAX_SELECTION_ROWS, len(rows.train)):,} of them."
    )
    memory = (
        f"At most {size(plan.peak(plan.width))} of {size(plan.memory)} allowed were planned, in blocks of "
        f"{plan.width} columns."
    )
    caveat = [Text(outcome.caveat)] if outcome.caveat else []
    headings = ["candidate", "setting", metric, "validation accuracy", "validation loss"]
    accuracy = [accuracy_table({ALL: scores}), _class_table(scores, graph.facts.classes)]
    sections = [
        Section("Accuracy", [*caveat, *accuracy]),
        Section("Candidates", [Text(selected), Table(headings, candidates)]),
        Section("Not tried", [Text(f"{what}.") for what in search.left_out]),
        Section("Data and memory", [Table([], graph.describe()), Text(memory)]),
    ]
    return Document(f"Labels for {graph.folder.name}", [_card(scores)], sections)


def percent(value: float) -> str:
    """Return a share as a percentage; a dash for NaN."""
    return "–" if isnan(value) else f"{100 * value:.1f}%"


def _percent_range(low: float, high: float) -> str:
    return f"{100 * low:.1f} to {100 * high:.1f}%"


def _nodes(count: int) -> str:
    return f"{count:,} held-out {'node' if count == 1 else 'nodes'}"


def _card(scores: Scores, metric: str = "accuracy", nodes: str = "") -> tuple[str, str, str]:
    """Return the card of a metric: its name, value and interval, and the value without a model."""
    name, low_high = metric_name(metric), _percent_range(*scores.interval_of(metric))
    answer = percent(scores.value(metric))
    if metric == "accuracy" and scores.count < MIN_MEASURED:
        answer = f"{scores.right} of {scores.count}"
    without = f"{percent(scores.most_frequent_share)} have the most frequent class"
    if metric != "accuracy":
        other = "a random ranking" if metric in RANKING_METRICS else "the most frequent class alone"
        without = f"{other} reaches {percent(scores.uninformed.value(metric))}"
    meaning = f"95% interval {low_high}, on {nodes or _nodes(scores.count)}; {without}."
    return name[:1].upper() + name[1:], answer, meaning


def _cards(findings: Findings) -> list[tuple[str, str, str]]:
    """Return the title, number and meaning of each card: scores, gain, and labels to review."""
    confidence, counted = findings.classifier.probabilities_.max(1), findings.nodes_to_label
    review = f"{int((counted & (confidence < CONFIDENT)).sum()):,} of {int(counted.sum()):,}"
    meaning = f"nodes {_total(findings)} have a confidence below {CONFIDENT:.0%}."
    to_review = ("Labels to review", review, meaning)
    if not findings.test.any():
        return [("Accuracy", "Not known", "There are no held-out nodes to measure it on."), to_review]
    cards = [_card(findings.test_scores)]
    if findings.metric != "accuracy":
        cards.insert(0, _card(findings.best_scores, findings.metric, findings.best_nodes))
    if (gain := findings.gain) is not None:
        points, low, high = gain.difference
        over = f"over {gain.baseline.name} ({percent(gain.theirs)}), on {_nodes(findings.test_scores.count)}."
        text = f"95% interval {low:+.1f} to {high:+.1f}, {over}"
        cards.append(("Gain over the best baseline", f"{points:+.1f} points", text))
    return [*cards, to_review]


def _total(findings: Findings) -> str:
    return "in all" if findings.graph.labeled.all() else "without a known label"


def _trust(findings: Findings) -> list[Text | Threshold]:
    delivered, evaluated = (
        thousandths(x.max(1)) for x in (findings.classifier.probabilities_, findings.probabilities)
    )
    test, counted = findings.test, findings.nodes_to_label
    right = findings.predicted == findings.graph.labels.cpu().numpy()
    total, sentences = int(counted.sum()), []
    for threshold in range(0, 1010, 10):
        trusted, sure = int((counted & (delivered >= threshold)).sum()), evaluated >= threshold
        review = f"{trusted:,} to trust and {total - trusted:,} to review."
        text = f"Of {total:,} nodes {_total(findings)}, {review}"
        for group, name in ((test & sure, "at least this confidence"), (test & ~sure, "less")):
            count, hits = int(group.sum()), int(right[group].sum())
            share = f"{hits} {'is' if hits == 1 else 'are'} right."
            if count >= MIN_MEASURED:
                interval = _percent_range(*wilson(hits, count))
                share = f"{percent(hits / count)} are right (95% interval {interval})."
            text += f" Of {_nodes(count)} with {name}, {share}" if count else ""
        if test.any() and not (test & sure).any():
            text += " No held-out node has this confidence, so the accuracy there is not known."
        sentences.append(text)
    return [
        Text("Set the confidence above which a label is used as it is. A person reviews the others."),
        Threshold("Trust labels with a confidence of at least", sentences, round(100 * CONFIDENT)),
    ]


def _prediction_sets(findings: Findings, sets: Sequence[PredictionSets]) -> list[Text | Choices]:
    missing, counted = incomplete_nodes(findings.graph), findings.nodes_to_label
    groups = {"all nodes" if findings.graph.labeled.all() else "all nodes without a known label": counted}
    if (counted & missing).any() and (counted & ~missing).any():
        groups |= zip(findings.group_names, (counted & ~missing, counted & missing), strict=True)
    choices = {f"{by_rate.rate:.0%}": _set_tables(by_rate, groups) for by_rate in sets}
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


def _set_tables(sets: PredictionSets, groups: Mapping[str, NDArray[np.bool_]]) -> list[Table | Text]:
    """Return two tables about the prediction sets at one error rate: their sizes, and their coverage."""
    sizes = []
    for name, group in groups.items():
        single, total = int((sets.sizes[group] == 1).sum()), int(group.sum())
        shares = [f"{count:,} ({count / max(total, 1):.0%})" for count in (single, total - single)]
        sizes.append([name, f"{total:,}", *shares])
    coverage = []
    for name, share in sets.coverage.items():
        asked = f"{100 * (1 - sets.rate):g}%" if share.guaranteed else "–"
        few = share.nodes < MIN_MEASURED
        measured = ["too few", "–"] if few else [percent(share.mean), _percent_range(share.low, share.high)]
        coverage.append([name, f"{share.nodes:,}", asked, *measured])
    headings = ["group", "held out", "asked for", "measured", "90% range"]
    blocks: list[Table | Text] = [
        Table(["group", "nodes", "one label", "several"], sizes, "Sizes of the sets"),
        Table(headings, coverage, "How often the set contains the true label"),
    ]
    if not all(share.guaranteed for share in sets.coverage.values()):
        text = "Too few nodes of one group are held out: the guarantee holds for all groups together."
        blocks.append(Text(text))
    return blocks


def _accuracy(findings: Findings) -> Iterator[Text | Table | charts.Chart]:
    groups, names, test = findings.groups(), findings.graph.class_names, findings.test
    yield Text(
        "On held-out nodes, whose labels were used neither to train nor to select the model. Balanced "
        "accuracy and macro F1 are means over classes, so that small classes count as much as large ones."
    )
    if LATER in groups:
        yield Text(
            "Those coming later were taken out of the graph with all their edges; a model that was fitted "
            "without them labeled them when they came back."
        )
    if CROSS_FITTED in groups:
        yield Text(
            "Too few nodes of a rare class are held out to state how well it is ranked. Cross-fitting holds "
            "out each labeled node in turn, and fits a model without it."
        )
    yield accuracy_table(groups, _metrics(findings))
    yield _class_table(groups[ALL], names)
    yield charts.confusion("Confusion matrix (shade: share of the true class)", groups[ALL].confusion, names)
    right = findings.predicted[test] == findings.graph.labels.cpu().numpy()[test]
    title = "Reliability: accuracy against confidence (ideal: the diagonal)"
    yield charts.reliability(title, findings.probabilities[test].max(1), right)


def accuracy_table(
    scores: Mapping[str, Scores], metrics: Sequence[str] = DEFAULT_METRICS, title: str = "group"
) -> Table:
    """Return a table with a row of metrics and their 95% intervals for each of several named scores."""
    first, *others = (metric_name(metric) for metric in metrics)
    rows = [
        [name, f"{score.count:,}", *(score.describe(metric) for metric in metrics)]
        for name, score in scores.items()
    ]
    return Table([title, "nodes", f"{first} (95% interval)", *others], rows)


def _metrics(findings: Findings) -> list[str]:
    """Return the metrics to show; the ranking ones only where they matter."""
    ranked = findings.graph.num_classes == 2 or findings.metric in RANKING_METRICS
    return [*DEFAULT_METRICS, *(RANKING_METRICS if ranked else ())]


def _class_table(scores: Scores, classes: Sequence[str]) -> Table:
    columns = zip(classes, scores.confusion.sum(1), scores.recall, scores.precision, scores.f1, strict=True)
    rows = [[name, f"{count:,}", *map(percent, shares)] for name, count, *shares in columns]
    return Table(["class", "nodes", "recall", "precision", "F1"], rows)


def _comparison(findings: Findings) -> list[Markdown | Table | charts.Chart | Text]:
    scores, metric = findings.comparison(), findings.metric
    name = metric_name(metric)
    numbers = [(row.value(metric), *row.interval_of(metric)) for row in scores.values()]
    ends = [(100 * value, 100 * low, 100 * high) for value, low, high in numbers]
    title = f"{name[:1].upper()}{name[1:]} on held-out nodes, with 95% interval"
    return [
        Markdown(verdict(findings)),
        charts.intervals(title, list(scores), ends, f"{name} (%)"),
        accuracy_table(scores, _metrics(findings), "method"),
        Text(_tuning(findings)),
    ]


def _tuning(findings: Findings) -> str:
    """Describe how each method was tuned."""
    if not findings.selected_by_validation:
        return "All methods were trained on the same nodes. Without validation nodes, settings are fixed."
    classifier, split = findings.classifier, findings.graph.split
    tried = [f"{classifier.best_.name}: {len(classifier.search_):,}"]
    for other in findings.baselines:
        setting = f" ({other.best.setting})" if other.best.setting else ""
        tried += [f"{other.name}: {other.num_candidates:,}{setting}"] if other.num_candidates > 1 else []
    text = f"Settings were selected on {findings.selection_nodes}. Settings tried: {'; '.join(tried)}."
    if classifier.task_.fold_masks:
        count = int((split.train | split.validation).sum())
        text += f" Methods without networks were then trained on all {count:,} training and validation nodes."
    settings = len(BASELINE_RATES) * len(BASELINE_DROPOUTS)
    for baseline in (baseline for baseline in findings.baselines if baseline.best.model == "GCN"):
        text += (
            f" The GCN trains on the {int(split.train.sum()):,} training nodes alone, for at most "
            f"{BASELINE_EPOCHS} epochs, averaged over {BASELINE_SEEDS} seeds; the validation nodes stop and "
            "select it."
        )
        if (number := baseline.num_candidates) < settings:
            text += f" The time limit ended its search in setting {number} of {settings}: it may do better."
    return text


def _ensemble(findings: Findings) -> list[Text | Table]:
    classifier, best = findings.classifier, findings.classifier.best_
    how = f"that do best together on {findings.selection_nodes}, by {metric_name(classifier.metric)}"
    if best.one_per_model:
        how = f"that are the best of each model, as {findings.selection_nodes} prefer none"
    members = classifier.parts_
    if best.model == "average":
        members = [*members, (sum(weight for weight, _ in members), best)]
    rows = []
    for weight, member in members:
        name = member.name if member.depth or member.parts else f"{member.name} {member.setting}".strip()
        rows.append([name, f"{weight}", *_validation(member)])
    text = f"Of {len(classifier.search_):,} models, the ensemble averages those {how}. Each alone:"
    if len(members) == 1:
        text = f"Of {len(classifier.search_):,} models, this one is used alone:"
    return [Text(text), Table(["model", "weight", "validation accuracy", "validation loss"], rows)]


def _validation(candidate: Candidate) -> list[str]:
    return [percent(candidate.validation_accuracy), f"{candidate.validation_loss:.3f}"]


def _depth(findings: Findings) -> list[Text | charts.Chart]:
    candidates = [candidate for candidate in findings.classifier.search_ if candidate.depth]
    best = findings.best_deep
    if best is None:
        return [Text("No model with a depth was tried.")]
    text = (
        f"Of the candidates with a depth ({len(candidates):,}), {best.name} had the smallest loss on "
        f"{findings.selection_nodes} (accuracy {percent(best.validation_accuracy)}): the star in the "
        "chart, which shows the best setting of each depth."
    )
    depths = {candidate.depth for candidate in candidates if candidate.model == best.model}
    if len(depths) > 1 and best.depth == max(depths):
        text += f" No deeper {best.model} was tried; --depth tries others."
    symbols = ("circle", "square", "triangle-up", "diamond", "cross", "x")
    models = list(dict.fromkeys(candidate.model for candidate in candidates))
    curves = []
    for (model, norm), accuracy in best_by_depth(candidates).items():
        points = {depth: 100 * accuracy[depth] for depth in sorted(accuracy)}
        name = model if norm == "none" else f"{model}-{norm}"
        symbol = symbols[models.index(model) % len(symbols)]
        curves.append(
            charts.Line(name, [*points], [*points.values()], charts.NORMS[norm], norm == "none", symbol)
        )
    star = (best.depth, 100 * best.validation_accuracy)
    title = "Validation accuracy against depth"
    return [Text(text), charts.lines(title, curves, "depth", "accuracy (%)", star=star, file_name="depth")]


def _about(findings: Findings) -> Table:
    graph, classifier = findings.graph, findings.classifier
    rows: list[Any] = [*graph.describe(), ("scaling", classifier.scaling_.sentence)]
    if classifier.time is not None:
        rows.append(("tested on", f"the latest nodes by {classifier.time}"))
    if lost := int((~reachable(graph.adjacency, ~graph.missing_vectors)).sum()):
        text = f"{lost:,} nodes without features have no path to a node with features"
        rows.append(("unreachable", text))
    if any(candidate.directed for candidate in classifier.search_):
        selected = "and" if any(candidate.directed for _, candidate in classifier.parts_) else "but not"
        text = f"boosted trees that distinguish in- from out-neighbors were evaluated, {selected} selected"
        rows.append(("direction", f"{text}; all other models take edges as undirected"))
    return Table([], [*rows, ("model", f"{classifier.best_.name}, adjacency {classifier.adjacency}")])
