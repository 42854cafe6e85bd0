"""Build the tables of the page of ``fit``: accuracies, prediction sets, and a row for every node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import isnan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pairnorm.base.errors import terminal
from pairnorm.classify.calibration import PredictionSets
from pairnorm.classify.evaluation import Scores
from pairnorm.classify.findings import Findings
from pairnorm.data.adjacency import csr_matrix, hops
from pairnorm.report.document import Nodes, Table, Text

MAX_ROWS, MAX_CLASSES_PER_NODE, MAX_NAME_LENGTH = 100_000, 10, 300
# TreeSHAP takes seconds for this many nodes, or nodes times classes.
MAX_EXPLAINED, MAX_EXPLAINED_ENTRIES = 2000, 8000
MIN_MEASURED = 10
"""Percentages of fewer held-out nodes are not shown."""
SCORE_COLUMNS = ("accuracy", "95% interval", "balanced accuracy", "macro F1")


def percent(value: float) -> str:
    """Return a share as a percentage; a dash for NaN."""
    return "–" if isnan(value) else f"{100 * value:.1f}%"


def percent_range(low: float, high: float) -> str:
    """Return two shares as a range of percentages."""
    return f"{100 * low:.1f} to {100 * high:.1f}%"


def score_columns(scores: Scores) -> list[str]:
    """Return the ``SCORE_COLUMNS`` as texts."""
    means = (scores.balanced_accuracy, scores.macro_f1)
    return [percent(scores.accuracy), percent_range(*scores.interval), *map(percent, means)]


def accuracy_tables(groups: Mapping[str, Scores], classes: Sequence[str]) -> list[Table]:
    """Return two tables: accuracy by group of held-out nodes, the first of which has all, and by class."""
    scores = next(iter(groups.values()))
    columns = zip(scores.confusion.sum(1), scores.recall, scores.precision, scores.f1, strict=True)
    by_group = [[name, f"{one.count:,}", *score_columns(one)] for name, one in groups.items()]
    by_class = [
        [name, f"{count:,}", *map(percent, shares)]
        for name, (count, *shares) in zip(classes, columns, strict=True)
    ]
    return [
        Table(["group", "nodes", *SCORE_COLUMNS], by_group),
        Table(["class", "nodes", "recall", "precision", "F1"], by_class),
    ]


def set_tables(sets: PredictionSets, groups: Mapping[str, NDArray[np.bool_]]) -> list[Table | Text]:
    """Return two tables about the prediction sets at one error rate: their sizes, and their coverage.

    Args:
        sets: the prediction sets.
        groups: the nodes to label, by name of the group.
    """
    sizes = []
    for name, group in groups.items():
        counts = [int((sets.sizes[group] == 1).sum()), int((sets.sizes[group] > 1).sum())]
        total = max(int(group.sum()), 1)
        shares = [f"{count:,} ({count / total:.0%})" for count in counts]
        sizes.append([name, f"{group.sum():,}", *shares])
    coverage = []
    for name, one in sets.coverage.items():
        asked = f"{100 * (1 - sets.rate):g}%" if one.guaranteed else "–"
        measured = [percent(one.mean), percent_range(one.low, one.high)]
        shown = ["too few", "–"] if one.nodes < MIN_MEASURED else measured
        coverage.append([name, f"{one.nodes:,}", asked, *shown])
    headings = ["group", "held out", "asked for", "measured", "90% range"]
    blocks: list[Table | Text] = [
        Table(["group", "nodes", "one label", "several"], sizes, "Sizes of the sets"),
        Table(headings, coverage, "How often the set contains the true label"),
    ]
    if not all(one.guaranteed for one in sets.coverage.values()):
        text = "Too few nodes of one group are held out: the guarantee holds for all groups together."
        blocks.append(Text(text))
    return blocks


def thousandths(values: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return probabilities in thousandths, as integers."""
    # Round down, so that 0.9997 is not shown as certain; but 0.9, slightly less in float32, is 900.
    return np.floor(values.astype(np.float64) * 1000 + 1e-4).astype(np.int64)


def node_table(findings: Findings, sets: Sequence[PredictionSets]) -> Nodes:
    """Return a row for every node; of very many, those with the least confidence."""
    from scipy.sparse import csr_array

    graph = findings.graph
    probabilities, predicted = findings.delivered_probabilities, findings.delivered
    confidence = probabilities.max(1)
    rows = np.sort(np.argsort(confidence, kind="stable")[:MAX_ROWS])
    labels, train = graph.labels.cpu().numpy(), graph.train.cpu().numpy()
    has_features = ~graph.missing_vectors.cpu().numpy()
    pattern = csr_matrix(graph.adjacency)
    pattern.data = np.ones(pattern.nnz, dtype=np.int32)
    known = np.flatnonzero(labels >= 0)
    classes = csr_array(
        (np.ones(len(known), dtype=np.int32), (known, labels[known])),
        shape=(graph.num_nodes, graph.num_classes),
    )
    around = (pattern[rows] @ classes).tocsr()
    kinds_around, counts_around = around.indices.tolist(), around.data.tolist()
    likeliest = np.argsort(-probabilities[rows], axis=1, kind="stable")[:, :MAX_CLASSES_PER_NODE]
    shares = thousandths(np.take_along_axis(probabilities[rows], likeliest, 1))
    parts = np.select([train, graph.validation.cpu().numpy(), findings.test], [1, 2, 3], 0)
    columns = {
        "classes": [_cut(name) for name in graph.class_names],
        "id": [_cut(str(name)) for name in graph.node_names[rows].tolist()],
        "predicted": predicted[rows].tolist(),
        "evaluated": findings.predicted[rows].tolist(),
        "confidence": thousandths(confidence[rows]).tolist(),
        "top": [
            _flat(pair for pair in zip(kinds, values, strict=True) if pair[1] or pair[0] == kinds[0])
            for kinds, values in zip(likeliest.tolist(), shares.tolist(), strict=True)
        ],
        "label": labels[rows].tolist(),
        "part": parts[rows].tolist(),
        "features": has_features[rows].astype(int).tolist(),
        "featureHops": hops(graph.adjacency, has_features)[rows].tolist(),
        "labelHops": hops(graph.adjacency, train)[rows].tolist(),
        # Classes and their numbers among the neighbors, the most frequent class first.
        "neighbors": [
            _flat(
                sorted(
                    zip(kinds_around[low:high], counts_around[low:high], strict=True),
                    key=lambda pair: -pair[1],
                )
            )
            for low, high in pairwise(around.indptr.tolist())
        ],
        "degree": np.diff(pattern.indptr)[rows].tolist(),
        "sets": [one.sizes[rows].tolist() for one in sets],
        **_reasons(findings, rows, confidence),
    }
    return Nodes(graph.num_nodes, columns)


def _reasons(findings: Findings, rows: NDArray[np.int64], confidence: NDArray[np.float32]) -> dict[str, Any]:
    """Return the contributions to the labels with the least confidence: names, and pairs of name and value.

    Names are [source, name]; values are in hundredths, of log-odds or of a share.
    """
    count = min(MAX_EXPLAINED, max(1, MAX_EXPLAINED_ENTRIES // findings.graph.num_classes))
    nodes = np.sort(rows[np.argsort(confidence[rows], kind="stable")[:count]])
    explanation = findings.explain(nodes)
    names: dict[tuple[str, str], int] = {}
    by_node: dict[int, list[int]] = {}
    columns = (explanation.nodes, explanation.sources, explanation.names, explanation.values)
    for node, source, name, value in zip(*(column.tolist() for column in columns), strict=True):
        number = names.setdefault((source, _cut(str(name))), len(names))
        by_node.setdefault(node, []).extend((number, round(100 * value)))
    return {"reasonNames": [*names], "reasons": [by_node.get(row, []) for row in rows.tolist()]}


def _flat(pairs: Any) -> list[int]:
    return [number for pair in pairs for number in pair]


def _cut(text: str) -> str:
    text = terminal(text)
    return text if len(text) <= MAX_NAME_LENGTH else text[: MAX_NAME_LENGTH - 1] + "…"
