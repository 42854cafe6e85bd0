"""The pages of ``fit`` and ``diagnose``: what a manager asks, and the evidence an engineer wants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import isnan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pairnorm.base.escaping import terminal
from pairnorm.classify.candidates.base import best_by_depth
from pairnorm.classify.conformal import PredictionSets
from pairnorm.classify.diagnosis import HEADINGS, Smoothing, Suggestion, measured
from pairnorm.classify.evaluation import Scores, wilson
from pairnorm.classify.findings import COMING_LATER, LATER, Findings
from pairnorm.data import Graph
from pairnorm.data.adjacency import csr_matrix, hops
from pairnorm.report import (
    Chart,
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
from pairnorm.report.charts import NORMS, Line, confusion, intervals, lines, reliability

MAX_ROWS, MOST_CLASSES, LONGEST = 100_000, 10, 300
USUAL_RATE, CONFIDENT = 3, 0.9
# Shares of fewer held-out nodes are no measurement.
FEWEST_MEASURED = 10
GROUP_COLUMNS = ("nodes", "accuracy", "95% interval", "balanced accuracy", "macro F1")
CLASS_COLUMNS = ("class", "nodes", "found (recall)", "right when said (precision)", "F1")
Rows = list[list[str]]
GLOSSARY = {
    "Held-out node": "A node whose label is known but took no part in learning or in choosing the model. How "
    "often the model is right is counted on these alone.",
    "95% interval": "Where the true value lies with a confidence of 95%. The more nodes are held out, the "
    "narrower it is.",
    "Confidence": "The probability that the model gives to the label it predicts, softened so that it fits "
    "what was seen on validation nodes.",
    "Label with a guarantee": "A set of labels that holds the true one as often as was asked for, whatever "
    "the model, as long as other nodes are like the held-out ones (conformal prediction).",
    "Hop": "A step along an edge. A node learns from those that are as many hops away as the model has "
    "layers (its depth).",
    "Oversmoothing": "Averaging over neighbors again and again makes all nodes alike, until none can be "
    "told from another. PairNorm keeps them apart.",
}


def fit_page(findings: Findings, notes: Sequence[str] = ()) -> Document:
    """Return the page of a fitted classifier.

    Args:
        findings: what there is to say.
        notes: what else the user should know, a sentence each.
    """
    graph, test = findings.graph, findings.test
    sets = findings.prediction_sets()
    sections = [
        Section("Which labels to trust", list(_trust(findings))),
        *([Section("Labels with a guarantee", _guarantee(findings, sets))] if sets else []),
        Section("Every node, and why", [*_learned_again(findings), _nodes(findings, sets)]),
        *([Section("How often it is right", list(_accuracy(findings)))] if test.any() else []),
        *([Section("Against simpler methods", _comparison(findings))] if test.any() else []),
        *([Section("How deep", list(_depth(findings)))] if findings.chosen else []),
        *(
            [smoothing_section(findings.smoothing, 0 if findings.deep is None else findings.deep.depth)]
            if findings.smoothing
            else []
        ),
        Section("What it was made from", [_about(findings), *map(Text, notes)]),
    ]
    return Document(f"Labels for {graph.name}", _cards(findings), sections, GLOSSARY)


def diagnosis_page(graph: Graph, rows: Sequence[Smoothing], suggestion: Suggestion) -> Document:
    """Return the page of ``diagnose``.

    Args:
        graph: the graph.
        rows: the measures.
        suggestion: the depth to start from.
    """
    share = suggestion.lacking / max(graph.num_nodes, 1)
    reach = "All of them have a path to a node with features."
    if suggestion.unreachable:
        reach = (
            f"{suggestion.unreachable:,} of them have no path to one that has some: no depth reaches them."
        )
    cards = [
        (
            "What was asked",
            f"{graph.num_nodes:,} nodes",
            f"How quickly propagation makes the nodes of {graph.name} alike.",
        ),
        ("How deep to go", f"Depth {suggestion.depth}", suggestion.reason),
        (
            "Without features",
            f"{suggestion.lacking:,} ({share:.0%})",
            reach if suggestion.lacking else "Every node has features of its own.",
        ),
    ]
    facts = Section("The graph", [Table([], graph.describe())])
    glossary = {name: GLOSSARY[name] for name in ("Hop", "Oversmoothing")}
    sections = [smoothing_section(rows, suggestion.depth), facts]
    return Document(f"Oversmoothing of {graph.name}", cards, sections, glossary)


def smoothing_section(rows: Sequence[Smoothing], depth: int) -> Section:
    """Return what depth does to the features, without PairNorm and with it.

    Args:
        rows: the measures.
        depth: one to mark.
    """
    titles = {
        "row_diff": ("Distance between nodes (row-diff)", "% of depth 0"),
        "col_diff": ("Distance between features (col-diff)", "% of depth 0"),
        "effective_rank": ("Directions in use (effective rank)", "directions"),
    }
    charts = []
    for measure, (title, unit) in titles.items():
        found = []
        for norm, name in (("none", "without"), ("PN", "with PairNorm")):
            line = [row for row in rows if row.norm == norm]
            start = 1.0 if measure == "effective_rank" else max(getattr(line[0], measure), 1e-30) / 100
            values = [getattr(row, measure) / start for row in line]
            symbol = "square" if norm == "none" else "circle"
            found.append(Line(name, [row.depth for row in line], values, NORMS[norm], norm == "none", symbol))
        mark = (depth, f"depth {depth}") if depth else None
        charts.append(lines(title, found, "depth", unit, upright=mark, from_zero=True))
    what = Text(
        "Repeated averaging makes nodes alike and features alike. PairNorm keeps the total squared distance "
        "between nodes where it was. Measured on the scaled features, propagated without any training."
    )
    numbers = Details("The numbers", [Table(HEADINGS, measured(rows))])
    return Section("What depth does to the features", [what, *charts, numbers], wide=True)


def _cards(findings: Findings) -> list[tuple[str, str, str]]:
    graph, classes = findings.graph, findings.graph.num_classes
    lacking, unknown = int(graph.missing_vectors.sum()), int((~graph.labeled).sum())
    asked = (
        f"One of {classes} classes for each of {graph.num_nodes:,} nodes, learned from "
        f"{int(graph.train.sum()):,} labeled ones. {unknown:,} had no label; {lacking:,} have no features."
    )
    cards = [("What was asked", f"{unknown or graph.num_nodes:,} labels", asked)]
    headline, _, rest = findings.verdict().removeprefix("**").partition("** ")
    if not findings.test.any():
        return [*cards, ("How often is it right?", "Not known", headline)]
    groups = findings.groups()
    scores = groups.pop("all held-out nodes")
    low, high = scores.interval
    few = scores.count < FEWEST_MEASURED
    headed = f"{scores.right} of {scores.count}" if few else f"{100 * scores.accuracy:.1f}%"
    sure = (
        f"{scores.right:,} of {scores.count:,} held-out {'node' if scores.count == 1 else 'nodes'}. "
        "On all nodes like them it lies between "
        f"{100 * low:.1f} and {100 * high:.1f}% (95% interval)."
    )
    if groups:
        sure += (
            " "
            + "; ".join(f"{name} {100 * one.accuracy:.1f}%" for name, one in groups.items()).capitalize()
            + "."
        )
    counted = (findings.probabilities.max(1) >= CONFIDENT)[findings.wanted]
    share = findings.confident(CONFIDENT)[1]
    seen = "" if isnan(share) else f" Of held-out labels as confident, {percent(share)} are right."
    return [
        *cards,
        ("How often is it right?", headed, sure),
        ("Is it worth using over the simple way?", headline, rest),
        (
            "Which labels to trust?",
            f"{int(counted.sum()):,} of {len(counted):,}",
            f"have a confidence of {CONFIDENT:.0%} or more; the other {int((~counted).sum()):,} are to be "
            f"reviewed.{seen} Below, other thresholds.",
        ),
    ]


def _trust(findings: Findings) -> Iterator[Text | Threshold]:
    confidence, test = _thousandths(findings.probabilities.max(1)), findings.test
    right = findings.predicted == findings.graph.labels.cpu().numpy()
    counted = findings.wanted
    what = "in all" if findings.graph.labeled.all() else "without a known label"
    total, sentences = int(counted.sum()), []
    for least in range(101):
        sure = confidence >= 10 * least
        trusted, evaluated = int((counted & sure).sum()), int((test & sure).sum())
        text = f"Of {total:,} nodes {what}, {trusted:,} to trust and {total - trusted:,} to review."
        for group, name in ((test & sure, "at least so confident"), (test & ~sure, "less so")):
            if count := int(group.sum()):
                hits = int(right[group].sum())
                text += f" Of {count:,} held-out {'node' if count == 1 else 'nodes'} on which it is {name}, "
                if count < FEWEST_MEASURED:
                    text += f"{hits} {'is' if hits == 1 else 'are'} right."
                else:
                    low, high = (100 * share for share in wilson(hits, count))
                    text += f"{100 * hits / count:.1f}% are right (95% interval {low:.1f} to {high:.1f}%)."
        if test.any() and not evaluated:
            text += " On no held-out node is it so confident: how often it would be right is not known."
        sentences.append(text)
    yield Text(
        "Set how confident the model must be for its label to be used as it is; a person looks at the others."
    )
    yield Threshold("Trust labels with a confidence of at least", sentences, round(100 * CONFIDENT))


def _guarantee(findings: Findings, sets: Sequence[PredictionSets]) -> list[Text | Choices | Details]:
    lacking, counted = findings.graph.missing_vectors.cpu().numpy(), findings.wanted
    what = "nodes" if findings.graph.labeled.all() else "nodes without a known label"
    groups = {f"all {what}": counted}
    if (counted & lacking).any() and (counted & ~lacking).any():
        groups |= {"with features": counted & ~lacking, "without features": counted & lacking}
    choices = {}
    for found in sets:
        rows = [[name, f"{group.sum():,}", *_shares(found.sizes[group])] for name, group in groups.items()]
        measured_rows = [
            [
                name,
                f"{one.nodes:,}",
                f"{100 * (1 - found.rate):g}%" if one.guaranteed else "–",
                *(
                    ("too few", "–")
                    if one.nodes < FEWEST_MEASURED
                    else (f"{100 * one.mean:.1f}%", f"{100 * one.low:.1f} to {100 * one.high:.1f}%")
                ),
            ]
            for name, one in found.coverage.items()
        ]
        blocks: list[Table | Text] = [
            Table(["group", "nodes", "one label", "several"], rows, "What they get"),
            Table(
                ["group", "held out", "asked for", "measured", "9 of 10 times"],
                measured_rows,
                "How often the true label is among those given",
            ),
        ]
        if not all(one.guaranteed for one in found.coverage.values()):
            blocks.append(
                Text(
                    "Too few nodes of one kind are held out for a guarantee of its own: it holds for all "
                    "together."
                )
            )
        choices[f"{found.rate:.0%}"] = blocks
    return [
        Text(
            "Choose how often the true label may be left out. A node then gets the labels that cannot be "
            "ruled out, at least one. A person should look at nodes with several."
        ),
        Choices("Error rate", choices, USUAL_RATE),
        Text(
            "The guarantee is that of conformal prediction: it holds on average over nodes that are like the "
            "held-out ones, not for each class or each node. Measured: random halves of the held-out nodes, "
            "one to set the threshold and one to judge."
        ),
    ]


def _learned_again(findings: Findings) -> Iterator[Text]:
    """Say what the page does not show: the labels that are delivered learned from the held-out nodes too."""
    classifier, counted = findings.classifier, findings.wanted
    if classifier.refit:
        changed = classifier.decide(classifier.probabilities_) != findings.predicted
        yield Text(
            "This page shows the model as it was evaluated, learned from training nodes alone. "
            "predictions.csv is from afterwards, when it had learned from further known labels too: there, "
            f"{int(changed[counted].sum()):,} of {int(counted.sum()):,} labels are others than here."
        )


def _shares(sizes: NDArray[np.int64]) -> list[str]:
    counts = [int((sizes == 1).sum()), int((sizes > 1).sum())]
    return [f"{count:,} ({count / max(len(sizes), 1):.0%})" for count in counts]


def _nodes(findings: Findings, sets: Sequence[PredictionSets]) -> Nodes:
    """Return a row for every node; of very many, those that the model is least sure of."""
    from scipy.sparse import csr_array

    graph, probabilities = findings.graph, findings.probabilities
    confidence = probabilities.max(1)
    rows = np.sort(np.argsort(confidence, kind="stable")[:MAX_ROWS])
    labels, lacking = graph.labels.cpu().numpy(), graph.missing_vectors.cpu().numpy()
    train = graph.train.cpu().numpy()
    pattern = csr_matrix(graph.adjacency)
    pattern.data = np.ones(pattern.nnz, dtype=np.int32)
    known = np.flatnonzero(labels >= 0)
    classes = csr_array(
        (np.ones(len(known), dtype=np.int32), (known, labels[known])),
        shape=(graph.num_nodes, graph.num_classes),
    )
    likeliest = np.argsort(-probabilities[rows], axis=1, kind="stable")[:, :MOST_CLASSES]
    shares = _thousandths(np.take_along_axis(probabilities[rows], likeliest, 1))
    parts = np.select([train, graph.validation.cpu().numpy(), findings.test], [1, 2, 3], 0)
    columns = {
        "classes": [_cut(name) for name in graph.class_names],
        "id": [_cut(str(name)) for name in graph.node_names[rows].tolist()],
        "predicted": findings.predicted[rows].tolist(),
        "confidence": _thousandths(confidence[rows]).tolist(),
        "top": [
            [
                number
                for pair in zip(kinds, values, strict=True)
                if pair[1] or pair[0] == kinds[0]
                for number in pair
            ]
            for kinds, values in zip(likeliest.tolist(), shares.tolist(), strict=True)
        ],
        "label": labels[rows].tolist(),
        "part": parts[rows].tolist(),
        "features": (~lacking[rows]).astype(int).tolist(),
        "featureHops": hops(graph.adjacency, ~lacking)[rows].tolist(),
        "labelHops": hops(graph.adjacency, train)[rows].tolist(),
        "neighbors": _flat_rows((pattern[rows] @ classes).tocsr()),
        "degree": np.diff(pattern.indptr)[rows].tolist(),
        "sets": [found.sizes[rows].tolist() for found in sets],
    }
    return Nodes(graph.num_nodes, columns)


def _flat_rows(counts: Any) -> list[list[int]]:
    """Return class and number in turn for every row of a sparse matrix, the most frequent class first."""
    starts, kinds, numbers = (part.tolist() for part in (counts.indptr, counts.indices, counts.data))
    found = []
    for low, high in pairwise(starts):
        pairs = sorted(zip(kinds[low:high], numbers[low:high], strict=True), key=lambda pair: -pair[1])
        found.append([number for pair in pairs for number in pair])
    return found


def _thousandths(values: NDArray[np.float32]) -> NDArray[np.int64]:
    # Down, as 0.9997 is not certain; but 0.9, which float32 holds a little low, is 900.
    down = np.floor(values.astype(np.float64) * 1000 + 1e-4)
    return np.asarray(down, dtype=np.int64)


def _cut(text: str) -> str:
    text = terminal(text)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _accuracy(findings: Findings) -> Iterator[Text | Table | Chart]:
    groups, names, test = findings.groups(), findings.graph.class_names, findings.test
    scores = groups["all held-out nodes"]
    by_group, by_class = accuracy_tables(groups, names)
    yield Text("On held-out nodes. Balanced accuracy and macro F1 count small classes as much as large ones.")
    if LATER in groups:
        yield Text(COMING_LATER)
    yield Table(["group", *GROUP_COLUMNS], by_group)
    yield Table(CLASS_COLUMNS, by_class)
    yield confusion(
        "Which class is taken for which (shade: share of the true class)", scores.confusion, names
    )
    right = findings.predicted[test] == findings.graph.labels.cpu().numpy()[test]
    title = "How far confidence can be believed (on the diagonal: as often right as it says)"
    yield reliability(title, findings.probabilities[test].max(1), right)


def _comparison(findings: Findings) -> list[Markdown | Table | Chart]:
    found = findings.comparison()
    ends = [(one.accuracy, *one.interval) for one in found.values()]
    values = [(100 * value, 100 * low, 100 * high) for value, low, high in ends]
    rows = [[name, *numbers(one)] for name, one in found.items()]
    return [
        Markdown(findings.verdict()),
        intervals("Right on held-out nodes, with 95% interval", list(found), values, "accuracy (%)"),
        Table(["method", *GROUP_COLUMNS[1:]], rows),
    ]


def _depth(findings: Findings) -> Iterator[Text | Chart]:
    best, tried = findings.deep or findings.classifier.best_, findings.classifier.search_
    symbols = ("circle", "square", "triangle-up", "diamond", "cross", "x")
    models = list(dict.fromkeys(one.model for one in tried))
    yield Text(
        f"Of {len(tried):,} models tried, {best.name} had the smallest loss of all that have a depth, on "
        f"{findings.judges} (right on {percent(best.validation_accuracy)}). Of each depth the best setting "
        "is drawn."
    )
    found = []
    for (model, norm), accuracy in best_by_depth(tried).items():
        depths, bare = sorted(accuracy), norm == "none"
        name, symbol = model if bare else f"{model}-{norm}", symbols[models.index(model) % len(symbols)]
        found.append(
            Line(name, depths, [100 * accuracy[depth] for depth in depths], NORMS[norm], bare, symbol)
        )
    if found:
        marks = (
            [(best.depth, 100 * best.validation_accuracy, f"smallest loss: {best.name}")]
            if best.depth
            else []
        )
        yield lines("Accuracy on validation nodes against depth", found, "depth", "right (%)", marks=marks)


def _about(findings: Findings) -> Table:
    graph, classifier = findings.graph, findings.classifier
    rows = [*graph.describe(), ("scaling", classifier.scaling_.sentence)]
    if findings.direction is not None:
        rows.append(("direction", findings.direction))
    return Table([], [*rows, ("model", f"{classifier.best_.name}, adjacency {classifier.adjacency}")])


def accuracy_tables(groups: Mapping[str, Scores], classes: Sequence[str]) -> tuple[Rows, Rows]:
    """Return the rows of two tables: of each group of held-out nodes, and of each class among all of them."""
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
    """Return accuracy, its 95% interval, balanced accuracy and macro F1, as they are written."""
    low, high = scores.interval
    return [
        percent(scores.accuracy),
        f"{100 * low:.1f} to {100 * high:.1f}%",
        percent(scores.balanced_accuracy),
        percent(scores.macro_f1),
    ]


def percent(value: float) -> str:
    """Return a share as it is written; a dash where there is none."""
    return "–" if isnan(value) else f"{100 * value:.1f}%"
