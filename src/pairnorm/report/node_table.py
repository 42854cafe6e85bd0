"""Build the table of nodes of the page of ``fit``: label, confidence, prediction sets and reasons."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pairnorm.base.escaping import terminal
from pairnorm.classify.conformal import PredictionSets
from pairnorm.classify.findings import Findings
from pairnorm.data.adjacency import csr_matrix, hops
from pairnorm.report.document import Nodes

MAX_ROWS, MAX_CLASSES_PER_NODE, MAX_NAME_LENGTH = 100_000, 10, 300
# TreeSHAP takes seconds for this many nodes, or nodes times classes.
MAX_EXPLAINED, MAX_EXPLAINED_ENTRIES = 2000, 8000


def delivered_labels(findings: Findings) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the probabilities and the labels that predictions.csv holds."""
    classifier = findings.classifier
    return classifier.probabilities_, classifier.decide(classifier.probabilities_)


def node_table(findings: Findings, sets: Sequence[PredictionSets]) -> Nodes:
    """Return a row for every node; of very many, those with the least confidence."""
    from scipy.sparse import csr_array

    graph = findings.graph
    probabilities, predicted = delivered_labels(findings)
    confidence = probabilities.max(1)
    rows = np.sort(np.argsort(confidence, kind="stable")[:MAX_ROWS])
    labels, missing = graph.labels.cpu().numpy(), graph.missing_vectors.cpu().numpy()
    train = graph.train.cpu().numpy()
    pattern = csr_matrix(graph.adjacency)
    pattern.data = np.ones(pattern.nnz, dtype=np.int32)
    known = np.flatnonzero(labels >= 0)
    classes = csr_array(
        (np.ones(len(known), dtype=np.int32), (known, labels[known])),
        shape=(graph.num_nodes, graph.num_classes),
    )
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
        "features": (~missing[rows]).astype(int).tolist(),
        "featureHops": hops(graph.adjacency, ~missing)[rows].tolist(),
        "labelHops": hops(graph.adjacency, train)[rows].tolist(),
        "neighbors": _flat_rows((pattern[rows] @ classes).tocsr()),
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


def _flat_rows(counts: Any) -> list[list[int]]:
    """Return class and number in turn for every row of a sparse matrix, the most frequent class first."""
    starts, kinds, numbers = (part.tolist() for part in (counts.indptr, counts.indices, counts.data))
    flat = []
    for low, high in pairwise(starts):
        pairs = sorted(zip(kinds[low:high], numbers[low:high], strict=True), key=lambda pair: -pair[1])
        flat.append([number for pair in pairs for number in pair])
    return flat


def thousandths(values: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return probabilities in thousandths, as integers."""
    # Round down, so that 0.9997 is not shown as certain; but 0.9, slightly less in float32, is 900.
    down = np.floor(values.astype(np.float64) * 1000 + 1e-4)
    return np.asarray(down, dtype=np.int64)


def _cut(text: str) -> str:
    text = terminal(text)
    return text if len(text) <= MAX_NAME_LENGTH else text[: MAX_NAME_LENGTH - 1] + "…"
