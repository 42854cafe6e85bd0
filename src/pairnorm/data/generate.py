"""Graphs made to order: a degree-corrected stochastic block model with a bag of words on each node."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from pairnorm.base.csr import sparse_csr
from pairnorm.base.errors import PairNormError
from pairnorm.data.adjacency import first_of_run, mark_validated, symmetric_adjacency
from pairnorm.data.graph import Graph
from pairnorm.data.random import Stream
from pairnorm.data.split import per_class


def csbm(
    nodes: int = 1000,
    *,
    classes: int = 5,
    degree: float = 10.0,
    homophily: float = 0.8,
    features: int = 500,
    words: int | None = None,
    signal: float = 0.5,
    exponent: float = 3.0,
    seed: int = 0,
) -> Graph:
    """Generate a graph in time and memory linear in its nodes and edges.

    Classes are equally large. Nodes have weights that follow a power law. An edge joins a node drawn by
    weight to one of its own class, or of another, drawn by weight too, until there are exactly n * degree / 2
    distinct edges, of which exactly the fraction ``homophily`` joins equal classes. Each word of a node is
    one of its class's own words with probability ``signal``, else any word.

    >>> csbm(200, degree=6, homophily=0.75).homophily
    0.75

    Args:
        nodes: n, from 100 to 10 million.
        classes: how many classes.
        degree: the average number of neighbors.
        homophily: the fraction of edges that join nodes of one class.
        features: d, the size of the vocabulary.
        words: how many words a node draws; those drawn twice count once. Default: 16, or the whole
            vocabulary if that is smaller.
        signal: from 0 (features tell nothing about the class) to 1.
        exponent: of the power law of the degrees, above 2; ``math.inf`` gives all nodes the same weight.
        seed: for everything that is drawn.
    """
    words = min(16, features) if words is None else words
    peers = nodes / max(classes, 1)
    most = min((peers - 1) / 2 / max(homophily, 1e-9), (nodes - peers) / 2 / max(1 - homophily, 1e-9))
    for name, value, fine, expected in (
        ("nodes", nodes, 100 <= nodes <= 10_000_000, "from 100 to 10,000,000"),
        ("classes", classes, 2 <= classes <= nodes // 10, "at least 2, and at most one for every ten nodes"),
        ("homophily", homophily, 0 <= homophily <= 1, "from 0 to 1"),
        ("degree", degree, 0 <= degree <= most, f"from 0 to {most:.4g}, half of all pairs of so many nodes"),
        ("features", features, classes <= features, "at least one word for each class"),
        ("words", words, 1 <= words <= features, "from 1 to the number of features"),
        ("signal", signal, 0 <= signal <= 1, "from 0 to 1"),
        ("exponent", exponent, exponent > 2, "above 2"),
    ):
        if not fine:
            raise PairNormError(f"{name} is {value}", code="out-of-range", value=value, expected=expected)
    stream = Stream(seed, "csbm")
    labels = np.empty(nodes, dtype=np.int64)
    members = stream.order(nodes)
    labels[members] = np.arange(nodes) % classes
    members = np.argsort(labels, kind="stable")

    draw = _WeightedDraw(stream, members, np.bincount(labels), exponent)
    edges = round(nodes * degree / 2)
    inside = round(homophily * edges)
    keys = np.concatenate(
        [_distinct(draw, nodes, inside, within=True), _distinct(draw, nodes, edges - inside, within=False)]
    )
    source, target = np.divmod(keys, nodes)
    adjacency, _ = symmetric_adjacency(source, target, nodes)
    del keys, source, target
    known = torch.from_numpy(labels)
    split = per_class(known, count=max(1, min(20, nodes // (10 * classes))), seed=seed)
    return Graph(
        mark_validated(adjacency),
        _bag_of_words(stream, labels, classes, features, words, signal),
        known,
        *split,
        name="csbm",
    )


class _WeightedDraw:
    """Draws nodes by weight in constant time: a table of quantiles tells where to look."""

    def __init__(
        self, stream: Stream, members: NDArray[np.int64], sizes: NDArray[np.int64], exponent: float
    ) -> None:
        count = len(members)
        self.uniform = stream.uniform
        self.members, self.classes = members, np.repeat(np.arange(len(sizes)), sizes)
        weights = np.power(1 - self.uniform(count), -1 / (exponent - 1) if math.isfinite(exponent) else 0.0)
        # A hub that wants more neighbors than there are would make the search for new edges endless.
        np.minimum(weights, math.sqrt(count), out=weights)
        weights /= np.bincount(self.classes, weights)[self.classes]
        self.ends = np.cumsum(weights)
        self.starts = np.searchsorted(self.ends, np.arange(count) * (len(sizes) / count), side="right")
        self.step = count / len(sizes)
        self.last = np.cumsum(sizes) - 1
        self.first = self.last - sizes + 1

    def any(self, count: int) -> NDArray[np.int64]:
        """Draw places of nodes of any class (each class weighs the same)."""
        return self._at(self.uniform(count) * len(self.last))

    def of(self, classes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Draw a place of a node of each of the given classes."""
        place = self._at(classes + self.uniform(len(classes)))
        # Rounding in the cumulative weights must not lead into a neighboring class.
        return np.clip(place, self.first[classes], self.last[classes])

    def _at(self, levels: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the first place whose cumulative weight exceeds each level."""
        place = self.starts[np.minimum((levels * self.step).astype(np.int64), len(self.starts) - 1)]
        np.minimum(place, len(self.ends) - 1, out=place)
        behind = np.flatnonzero(self.ends[place] <= levels)
        while len(behind):
            place[behind] += 1
            behind = behind[place[behind] < len(self.ends) - 1]
            behind = behind[self.ends[place[behind]] <= levels[behind]]
        return place


def _distinct(draw: _WeightedDraw, nodes: int, wanted: int, *, within: bool) -> NDArray[np.int64]:
    """Draw distinct edges, all within classes or all between them, as sorted keys low * n + high."""
    found = np.empty(0, dtype=np.int64)
    while len(found) < wanted:
        count = wanted - len(found)
        first = draw.any(count)
        classes = draw.classes[first]
        if not within:
            others = len(draw.last) - 1
            classes = (classes + 1 + (draw.uniform(count) * others).astype(np.int64)) % (others + 1)
        a, b = draw.members[first], draw.members[draw.of(classes)]
        low, high = np.minimum(a, b), np.maximum(a, b)
        # Exactly as many as are wanted are drawn, so that none has to be thrown away but repeats and loops.
        found = np.concatenate([found, (low * nodes + high)[low != high]])
        found.sort()
        found = found[first_of_run(found)]
    return found


def _bag_of_words(
    stream: Stream, labels: NDArray[np.int64], classes: int, features: int, words: int, signal: float
) -> torch.Tensor:
    """Return 0/1 features [n, d] as a CSR tensor; word w is a word of class w mod classes."""
    rows = max(1, 4_000_000 // words)
    blocks, counts = [], []
    for start in range(0, len(labels), rows):
        own = labels[start : start + rows, None]
        shape = (len(own), words)
        drawn = stream.uniform(len(own) * words).reshape(shape)
        topical = stream.uniform(len(own) * words).reshape(shape) < signal
        vocabulary = (features - own + classes - 1) // classes
        word = np.where(
            topical,
            own + classes * (drawn * vocabulary).astype(np.int64),
            (drawn * features).astype(np.int64),
        )
        word.sort(axis=1)
        new = np.ones(shape, dtype=bool)
        np.not_equal(word[:, 1:], word[:, :-1], out=new[:, 1:])
        blocks.append(word[new])
        counts.append(new.sum(1))
    columns = torch.from_numpy(np.concatenate(blocks))
    rows_end = torch.from_numpy(np.concatenate([[0], np.cumsum(np.concatenate(counts))]))
    return sparse_csr(rows_end, columns, torch.ones(len(columns)), (len(labels), features))
