"""What propagation alone does to a graph's features, depth by depth, and the depth that suggests."""

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
# Of so many nodes a step takes a second, and what it does is seen early.
DEEP_ENOUGH = 16
TINY = 1e-30
# Below this many voices a node's average is noise; the depths this gives are near the paper's best ones.
VOICES = 20
# Depths at which as good as no more are heard than at any.
NEARLY = 0.95


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
        depths = [depth for depth in depths if depth <= DEEP_ENOUGH]
    matrix, rows = normalized_adjacency(graph.adjacency, "rw").to(features.device), []
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(graph.num_nodes, generator=generator)
    nodes, many = order[:NODES], order[:ROWS].sort().values
    columns = torch.randperm(graph.num_features, generator=generator)[:COLUMNS]
    dense = features.to_dense()
    # Distances between nodes need few columns; those between columns do not depend on PairNorm's scale.
    basis, reduced = span(dense)
    same = basis is None and len(columns) == graph.num_features
    walk, others = _states(matrix, reduced), None if same else _states(matrix, dense[:, columns])
    for depth, state in zip(range(max(depths) + 1), walk, strict=False):
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
    would be lost beside its mean.
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

    def share(lines: list[Smoothing], place: int, measure: str) -> str:
        start = getattr(lines[0], measure)
        return f"{getattr(lines[place], measure) / start:.0%}" if start else "–"

    return [
        [
            str(line.depth),
            *(share(lines, place, name) for name in ("row_diff", "col_diff") for lines in (plain, normed)),
            *(f"{lines[place].effective_rank:.1f}" for lines in (plain, normed)),
        ]
        for place, line in enumerate(plain)
    ]


@dataclass(frozen=True)
class Suggestion:
    """A depth to start from, and why.

    Args:
        depth: the number of graph convolutions.
        voices: how many nodes with features the middle node hears from at that depth.
        missing: how many nodes have no features.
        unreachable: how many of those no path connects to a node with features.
        tried: the largest depth that was looked at.
    """

    depth: int
    voices: float
    missing: int
    unreachable: int
    tried: int

    @property
    def reason(self) -> str:
        """The reason, in words."""
        missing, count = self.missing > 0, round(self.voices)
        who = f"half of the nodes {'without features ' if missing else ''}hear from at least"
        whom = "with some" if missing else "including themselves"
        text = f"At depth {self.depth} {who} {count} node{'' if count == 1 else 's'} {whom}"
        if self.voices < VOICES:
            deeper = "was not tried" if self.depth == self.tried else "brings hardly more"
            return f"{text}, fewer than the {VOICES} aimed at; deeper {deeper}."
        return f"{text}: enough for their average to mean something."


def suggest_depth(graph: Graph, deepest: int = max(DEPTHS), seed: int = 0) -> Suggestion:
    r"""Return the smallest depth at which half of the nodes without features hear from enough others.

    At depth $K$ a node's state averages over the nodes $j$ with features, with the weights
    $w_j = (\tilde{\mathbf{A}}^K)_{ij}$. It hears from $(\sum_j w_j)^2 / \sum_j w_j^2$ of them: their number,
    were the weights equal. $\sum_j w_j^2$ is the mean square of $\sum_j \pm w_j$ over random signs. Nodes
    that no path connects to a feature are left out; where all nodes have features, all count. Where there
    never are enough, it is the smallest depth with nearly as many as any.

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
    heard_from = reachable(graph.adjacency, ~missing)
    asked = heard_from & (missing if missing.any() else torch.ones_like(missing))
    state = torch.cat([there[:, None], signs * there[:, None]], 1)
    found: list[float] = []
    while len(found) < deepest:
        state = matrix @ state
        total, square = state[asked, 0].square(), state[asked, 1:].square().mean(1)
        heard = torch.where(square > 0, total / square.where(square > 0, 1), 0)
        found.append(float(heard.median()) if len(heard) else 0.0)
        if found[-1] >= VOICES or not len(heard):
            break
    enough = min(VOICES, NEARLY * max(found))
    depth = next(depth for depth, voices in enumerate(found, 1) if voices >= enough)
    unreachable = int((missing & ~heard_from).sum())
    return Suggestion(depth, found[depth - 1], int(missing.sum()), unreachable, len(found))
