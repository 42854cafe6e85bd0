"""Measure the effect of propagation on features, depth by depth, and suggest a depth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pairnorm.classify.candidates.prepared import has_many_nodes
from pairnorm.classify.regression import span
from pairnorm.data import Graph
from pairnorm.data.adjacency import reachable
from pairnorm.measure import col_diff, effective_rank, row_diff
from pairnorm.nn import SparseMatrix, normalized_adjacency, sgc_iterates

DEPTHS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 60)
NODES, COLUMNS = 400, 300
# Distances between columns are taken over so many nodes at most.
ROWS = 50_000
PROBES = 64
# Graphs with many nodes are measured up to this depth.
MAX_DEPTH_MANY_NODES = 16
TINY = 1e-30
# An average over fewer nodes is noise; the depths that this gives are near the best ones of the paper.
MIN_SOURCES = 20
# A depth that reaches this share of the largest number of sources is deep enough.
SUFFICIENT_SHARE = 0.95


@dataclass(frozen=True)
class Smoothing:
    """The measures of one state: those of depth 0 are of the features themselves."""

    norm: str
    depth: int
    row_diff: float
    col_diff: float
    effective_rank: float


def smoothing(
    graph: Graph,
    features: Tensor,
    depths: Sequence[int] = DEPTHS,
    tick: Callable[[str], None] = lambda done: None,
) -> list[Smoothing]:
    """Propagate features with D̃⁻¹Ã and measure, without PairNorm and with it (PN). No model is trained.

    Measured on at most 400 nodes (row-diff, effective rank), and 300 columns of at most 50,000 nodes
    (col-diff), drawn at random; of a graph with many nodes, at the first depths only.

    Args:
        graph: whose edges.
        features: [n, d], scaled.
        depths: where to measure.
        tick: is told what was done.
    """
    if has_many_nodes(graph):
        depths = [depth for depth in depths if depth <= MAX_DEPTH_MANY_NODES]
    matrix, rows = normalized_adjacency(graph.adjacency, "rw").to(features.device), []
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(graph.num_nodes, generator=generator)
    nodes, many = order[:NODES], order[:ROWS].sort().values
    columns = torch.randperm(graph.num_features, generator=generator)[:COLUMNS]
    dense = features.to_dense()
    # Distances between nodes need few columns; those between columns do not depend on PairNorm's scale.
    basis, reduced = span(dense)
    same = basis is None and len(columns) == graph.num_features
    iterates, others = _states(matrix, reduced), None if same else _states(matrix, dense[:, columns])
    for depth, state in zip(range(max(depths) + 1), iterates, strict=False):
        some = state if others is None else next(others)
        if depth not in depths:
            continue
        for norm in ("none", "PN"):
            drawn, between = state.of(norm, nodes), col_diff(some.of(norm, many))
            rows.append(
                Smoothing(norm, depth, float(row_diff(drawn)), float(between), float(effective_rank(drawn)))
            )
        tick(f"propagation, depth {depth}")
    return rows


class _State(NamedTuple):
    """A state after PairNorm, and what tells the one without: length · state + row."""

    state: Tensor
    length: float
    row: Tensor

    def of(self, norm: str, nodes: Tensor) -> Tensor:
        state = self.state[nodes]
        return state if norm == "PN" else self.length * state + self.row


def _states(matrix: SparseMatrix, features: Tensor) -> Iterator[_State]:
    """Yield the state of every depth, without PairNorm and with it, from one propagation.

    Every row of D̃⁻¹Ã sums to one: what is centered before a step and what is not differ by the same row
    afterwards. So PairNorm's state, one scale and one row tell the plain state, whose own small differences
    would be lost next to its mean.
    """
    row, length = features.new_zeros(features.shape[1]), 1.0

    def norm(state: Tensor) -> Tensor:
        nonlocal row, length
        mean = state.mean(0)
        row = row + length * mean
        state = state - mean
        spread = max(float(state.square().sum(1).mean().sqrt()), TINY)
        length *= spread
        return state / spread

    for state in sgc_iterates(features, matrix, norm):
        yield _State(state, length, row)


HEADINGS = ("depth", "row-diff", "with PN", "col-diff", "with PN", "effective rank", "with PN")


def measured(rows: Sequence[Smoothing]) -> list[list[str]]:
    """Return the lines of a table, to be headed by ``HEADINGS``; differences as a share of depth 0."""
    plain, normed = ([row for row in rows if row.norm == norm] for norm in ("none", "PN"))

    def share(lines: list[Smoothing], number: int, measure: str) -> str:
        start = getattr(lines[0], measure)
        return f"{getattr(lines[number], measure) / start:.0%}" if start else "–"

    return [
        [
            str(line.depth),
            *(share(lines, number, name) for name in ("row_diff", "col_diff") for lines in (plain, normed)),
            *(f"{lines[number].effective_rank:.1f}" for lines in (plain, normed)),
        ]
        for number, line in enumerate(plain)
    ]


@dataclass(frozen=True)
class Suggestion:
    """A depth to start from, and why.

    Args:
        depth: the number of graph convolutions.
        sources: the median number of nodes with features that a node averages over at that depth.
        missing: how many nodes have no features.
        unreachable: how many of those no path connects to a node with features.
        deepest: the largest depth that was measured.
    """

    depth: int
    sources: float
    missing: int
    unreachable: int
    deepest: int

    @property
    def reason(self) -> str:
        """The reason, in words."""
        missing, count = self.missing > 0, round(self.sources)
        who = f"half of the nodes {'without features ' if missing else ''}average over at least"
        whom = "with some" if missing else "including themselves"
        text = f"At depth {self.depth} {who} {count} node{'' if count == 1 else 's'} {whom}"
        if self.sources < MIN_SOURCES:
            deeper = "was not tried" if self.depth == self.deepest else "brings hardly more"
            return f"{text}, fewer than the {MIN_SOURCES} aimed at; deeper {deeper}."
        return f"{text}: enough for their average to mean something."


def suggest_depth(graph: Graph, deepest: int = max(DEPTHS), seed: int = 0) -> Suggestion:
    r"""Return the smallest depth at which half of the nodes without features average over enough others.

    At depth $K$ a node's state averages over the nodes $j$ with features, with the weights
    $w_j = (\tilde{\mathbf{A}}^K)_{ij}$: over $(\sum_j w_j)^2 / \sum_j w_j^2$ of them, their number if
    the weights are equal. $\sum_j w_j^2$ is the mean square of $\sum_j \pm w_j$ over random signs. Nodes
    without a path to a node with features are left out; where all nodes have features, all count. Where no
    depth reaches enough, it is the smallest depth with nearly as many as any.

    Args:
        graph: whose edges, and which nodes lack features.
        deepest: the most that is suggested.
        seed: of the random signs.
    """
    missing = graph.missing_vectors.cpu()
    there = (~missing).float()
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (graph.num_nodes, PROBES), generator=generator).float() * 2 - 1
    matrix = normalized_adjacency(graph.adjacency.cpu(), "rw")
    is_reachable = reachable(graph.adjacency, ~missing)
    asked = is_reachable & (missing if missing.any() else torch.ones_like(missing))
    state = torch.cat([there[:, None], signs * there[:, None]], 1)
    counts: list[float] = []
    while len(counts) < deepest:
        state = matrix @ state
        total, square = state[asked, 0].square(), state[asked, 1:].square().mean(1)
        effective = torch.where(square > 0, total / square.where(square > 0, 1), 0)
        counts.append(float(effective.median()) if len(effective) else 0.0)
        if counts[-1] >= MIN_SOURCES or not len(effective):
            break
    enough = min(MIN_SOURCES, SUFFICIENT_SHARE * max(counts))
    depth = next(depth for depth, sources in enumerate(counts, 1) if sources >= enough)
    unreachable = int((missing & ~is_reachable).sum())
    return Suggestion(depth, counts[depth - 1], int(missing.sum()), unreachable, len(counts))
