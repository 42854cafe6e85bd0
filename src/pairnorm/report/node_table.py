"""Make the columns of the table of nodes on the page of ``fit``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pairnorm.base.errors import terminal
from pairnorm.classify.findings import Findings
from pairnorm.classify.predictions import PredictionSets
from pairnorm.data.adjacency import csr_matrix, hops

MAX_ROWS, MAX_CLASSES_PER_NODE, MAX_NAME_LENGTH = 100_000, 10, 300
# TreeSHAP takes seconds for this many nodes, or nodes times classes.
MAX_EXPLAINED, MAX_EXPLAINED_ENTRIES = 2000, 8000

Integers = NDArray[np.int64]


def thousandths(values: NDArray[Any]) -> Integers:
    """Return probabilities in thousandths, as integers."""
    # Round down, so that 0.9997 is not shown as certain; but 0.9, slightly less in float32, is 900.
    return np.floor(values.astype(np.float64) * 1000 + 1e-4).astype(np.int64)


def node_columns(findings: Findings, sets: Sequence[PredictionSets]) -> dict[str, Any]:
    """Return the columns of the page's node table, of at most ``MAX_ROWS`` nodes, the least confident."""
    graph, probabilities = findings.graph, findings.classifier.probabilities_
    order = np.argsort(probabilities.max(1), kind="stable")
    rows = np.sort(order[:MAX_ROWS])
    labels, train = graph.labels.cpu().numpy(), graph.train.cpu().numpy()
    has_features = ~graph.missing_vectors.cpu().numpy()
    pattern = csr_matrix(graph.adjacency)
    starts, around = pattern.indptr, labels[pattern.indices]
    known_around = ([label for label in around[starts[row] : starts[row + 1]] if label >= 0] for row in rows)
    likeliest = np.argsort(-probabilities[rows], axis=1, kind="stable")[:, :MAX_CLASSES_PER_NODE]
    shares = thousandths(np.take_along_axis(probabilities[rows], likeliest, 1))
    parts = np.select([train, graph.validation.cpu().numpy(), findings.test], [1, 2, 3], 0)
    max_explained = min(MAX_EXPLAINED, max(1, MAX_EXPLAINED_ENTRIES // graph.num_classes))
    reason_names, reasons = _reasons(findings, np.sort(order[:max_explained]))
    return {
        "classes": [_shorten(name) for name in graph.class_names],
        "id": [_shorten(str(name)) for name in graph.node_names[rows].tolist()],
        "predicted": findings.delivered[rows].tolist(),
        "evaluated": findings.predicted[rows].tolist(),
        "confidence": thousandths(probabilities.max(1)[rows]).tolist(),
        "top": [
            _flatten(pair for pair in zip(kinds, values, strict=True) if pair[1] or pair[0] == kinds[0])
            for kinds, values in zip(likeliest.tolist(), shares.tolist(), strict=True)
        ],
        "label": labels[rows].tolist(),
        "part": parts[rows].tolist(),
        "features": has_features[rows].astype(int).tolist(),
        "featureHops": hops(graph.adjacency, has_features)[rows].tolist(),
        "labelHops": hops(graph.adjacency, train)[rows].tolist(),
        # Classes and their numbers among the neighbors, the most frequent class first.
        "neighbors": [_flatten(Counter(map(int, sorted(known))).most_common()) for known in known_around],
        "degree": np.diff(starts)[rows].tolist(),
        "sets": [at_rate.sizes[rows].tolist() for at_rate in sets],
        "reasonNames": reason_names,
        "reasons": [reasons.get(row, []) for row in rows.tolist()],
    }


def _reasons(findings: Findings, nodes: Integers) -> tuple[list[tuple[str, str]], dict[int, list[int]]]:
    """Return what contributes to the nodes' labels: names, and pairs of name number and value by node.

    Names are (source, name); values are in hundredths, of log-odds or of a share.
    """
    names: dict[tuple[str, str], int] = {}
    by_node: dict[int, list[int]] = {}
    *columns, _ = findings.explain(nodes)
    for node, source, name, value in zip(*(column.tolist() for column in columns), strict=True):
        number = names.setdefault((source, _shorten(str(name))), len(names))
        by_node.setdefault(node, []).extend((number, round(100 * value)))
    return [*names], by_node


def _flatten(pairs: Iterable[tuple[int, int]]) -> list[int]:
    return list(chain.from_iterable(pairs))


def _shorten(text: str) -> str:
    text = terminal(text)
    return text if len(text) <= MAX_NAME_LENGTH else text[: MAX_NAME_LENGTH - 1] + "…"
