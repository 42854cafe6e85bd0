r"""SGC over a packed graph: the columns of a state do not meet, so they are walked a block at a time.

With PairNorm (PN) the state of depth k is $s_k \mathbf{C}_k$, where $\mathbf{C}_k$ is the walk that is centred after
every step and never rescaled. Its columns are independent; the scale is one number per depth, which follows
afterwards from the mean squared row norm $t_k$ over all columns:

$$
\mathbf{C}_k = \text{centre}(\tilde{\mathbf{A}}_{rw} \mathbf{C}_{k-1}), \qquad
s_k = s_{k-1} \Big/ \sqrt{s_{k-1}^2 t_k + \epsilon}
$$

A walk keeps of every depth the rows that are asked for. Predictions need classes instead of features:
$\mathbf{C}_K \mathbf{W}$ is the walk of $\mathbf{X} \mathbf{W}$.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pairnorm.data.packed import PackedGraph
from pairnorm.errors import PairNormError, one_of
from pairnorm.nn.ops.hop import cpu

NORMS = ("none", "PN")
EPS = 1e-6
ROWS = 2**17

Tick = Callable[[str], None]
Array = NDArray[np.float32]


def bytes_needed(graph: PackedGraph, width: int, rows: int, depths: int) -> int:
    """Return the memory that a walk takes besides what is mapped: two states, and the rows that are kept.

    bytes = 8 · nodes · B + 4 · rows · depths · B + 4 · nodes for the means and sums of a block of B columns.
    """
    return 8 * graph.facts.nodes * width + 4 * rows * depths * width + 4 * graph.facts.nodes


def widest(graph: PackedGraph, memory: int, rows: int, depths: int) -> int:
    """Return how many columns a block may have within ``memory`` bytes; a cache line holds 16 of them."""
    least = bytes_needed(graph, 1, rows, depths)
    if least > memory:
        raise PairNormError(
            f"a walk over {graph.facts.nodes:,} nodes that keeps {rows:,} rows of {depths} depths takes "
            f"{least / 2**30:.1f} GiB for a single column",
            code="too-large", value=least, expected=f"at most {memory / 2**30:.1f} GiB",
            remedy="Allow more {memory}, or keep fewer rows or depths.", memory=f"{least / 2**30:.0f}GB",
        )  # fmt: skip
    per_column = bytes_needed(graph, 2, rows, depths) - least
    width = 1 + (memory - least) // per_column
    return int(min(width, 64) if width < 16 else min(width // 16 * 16, 64))


@dataclass(frozen=True, eq=False)
class Walk:
    """What a walk has kept: the chosen rows of every chosen depth, and the scale of each.

    Args:
        rows: int64 [r], the nodes.
        depths: rising.
        states: float32 [depths, r, features], the centred walk, or the plain one without a norm.
        scales: float64 [depths], what multiplies them.
        shares: float32 [depths, r]: the known mass that reached each row, 1 where nothing is missing.
    """

    rows: NDArray[np.int64]
    depths: tuple[int, ...]
    states: NDArray[np.float32]
    scales: NDArray[np.float64]

    def state(self, depth: int) -> Array:
        """Return the normalised state of the kept rows at a depth."""
        place = self.depths.index(depth)
        return (self.states[place] * self.scales[place]).astype(np.float32)


def standardised(graph: PackedGraph, number: int, out: Array) -> None:
    """Write a block of features, each column standardised over what is known, zero where missing, to ``out``."""
    columns = [graph.facts.columns[place] for place in graph.facts.blocks[number]]
    mean = np.array([column.mean for column in columns], np.float32)
    deviation = np.array([column.deviation for column in columns], np.float64)
    tiny = 1e-6 * np.abs(mean) + 1e-12
    factor = (1 / np.where(deviation > tiny, deviation, 1)).astype(np.float32)
    block = graph.features(number)
    for start in range(0, len(out), ROWS):
        part = (block[start : start + ROWS].astype(np.float32) - mean) * factor
        np.nan_to_num(part, copy=False, nan=0.0)
        out[start : start + ROWS] = part


def steps(
    graph: PackedGraph, state: Array, depth: int, norm: str, symmetric: bool = False
) -> Iterator[tuple[Array, float, float]]:
    """Yield the walk of every depth from 0: the state, t (summed over its columns), and the power of two it is short of.

    The state is scaled by a power of two now and then, lest a long walk fall below what float32 can hold; true is
    state · 2^-exponent. The arrays are reused: look at a state before the next.
    """
    one_of("norm", norm, NORMS)
    other, exponent = np.empty_like(state), 0.0
    squares = _centred(state) if norm == "PN" else 0.0
    yield state, squares, exponent
    for _ in range(depth):
        cpu.hop(graph.crow, graph.column, graph.weight, state, other, symmetric)
        state, other = other, state
        if norm == "PN":
            squares = _centred(state)
            mean_square = squares / state.shape[1]
            if 0 < mean_square < 2.0**-40:
                up = int(-np.floor(np.log2(mean_square)) // 2)
                np.multiply(state, np.float32(2.0**up), out=state)
                exponent, squares = exponent + up, squares * 4.0**up
        yield state, squares * 4.0**-exponent, exponent


def _centred(state: Array) -> float:
    """Centre in place and return the mean squared row norm, the second mean being what rounding left of the first."""
    nodes = len(state)
    cpu.centre(state, cpu.column_sums(state) / nodes)
    return float(cpu.centre(state, cpu.column_sums(state) / nodes).sum()) / nodes


def walk(
    graph: PackedGraph,
    rows: NDArray[np.int64],
    depths: Sequence[int],
    folder: Path,
    *,
    norm: str = "PN",
    symmetric: bool = False,
    tick: Tick = lambda done: None,
) -> Walk:
    """Walk all features of a packed graph, block by block, and keep some rows; a block that is a file is not walked again.

    Args:
        graph: the graph.
        rows: int64 [r], the nodes to keep, such as the labelled ones.
        depths: which depths to keep.
        folder: where finished blocks are written, and found by a later call.
        norm: ``"PN"`` or ``"none"``.
        symmetric: D̃^(-1/2) Ã D̃^(-1/2) instead of D̃⁻¹ Ã.
        tick: is told of every step.
    """
    kept = tuple(sorted(set(depths)))
    folder.mkdir(parents=True, exist_ok=True)
    deepest = kept[-1]
    found: list[NDArray[np.float32]] = []
    totals = np.zeros(deepest + 1)
    for number, columns in enumerate(graph.facts.blocks):
        path = folder / f"{norm}-{'sym' if symmetric else 'rw'}-{deepest}-{number:04d}.npz"
        if not path.exists():
            states = np.empty((len(kept), len(rows), len(columns)), np.float32)
            squares = np.empty(deepest + 1)
            start = np.empty((graph.facts.nodes, len(columns)), np.float32)
            standardised(graph, number, start)
            for depth, (state, square, exponent) in enumerate(steps(graph, start, deepest, norm, symmetric)):
                squares[depth] = square
                if depth in kept:
                    states[kept.index(depth)] = state[rows] * np.float32(2.0**-exponent)
                tick(f"columns {columns.start + 1} to {columns.stop}, depth {depth}")
            del start, state
            draft = path.with_suffix(".partial.npz")
            np.savez(draft, states=states, squares=squares)
            draft.replace(path)
        with np.load(path, allow_pickle=False) as block:
            found.append(block["states"])
            totals += block["squares"]
    scales = np.ones(deepest + 1)
    if norm == "PN":
        scales = pair_norm_scales(totals)
    return Walk(rows, kept, np.concatenate(found, 2), scales[list(kept)])


def pair_norm_scales(squares: NDArray[np.float64], eps: float = EPS) -> NDArray[np.float64]:
    """Return s_k of every depth from t_k, the mean squared row norm of the centred walk."""
    scales, last = np.empty(len(squares)), 1.0
    for depth, square in enumerate(squares):
        last = last / np.sqrt(last**2 * square + eps)
        scales[depth] = last
    return scales


def logits(
    graph: PackedGraph,
    weight: Array,
    bias: Array,
    depth: int,
    scale: float,
    *,
    norm: str = "PN",
    symmetric: bool = False,
    tick: Tick = lambda done: None,
) -> Array:
    """Return the logits of every node, [n, classes]: the walk of X·W, whose columns are classes, not features.

    Args:
        graph: the graph.
        weight: [features, classes].
        bias: [classes].
        depth: how deep.
        scale: s_depth of the walk of the features (of ``Walk.scales``).
        norm: as the features were walked.
        symmetric: likewise.
        tick: is told of every step.
    """
    state = np.zeros((graph.facts.nodes, weight.shape[1]), np.float32)
    block: Any = None
    for number, columns in enumerate(graph.facts.blocks):
        if block is None or block.shape[1] != len(columns):
            block = np.empty((graph.facts.nodes, len(columns)), np.float32)
        standardised(graph, number, block)
        state += block @ weight[columns.start : columns.stop]
    del block
    for number, (state, _, exponent) in enumerate(steps(graph, state, depth, norm, symmetric)):
        tick(f"predicting, depth {number}")
    state *= np.float32(scale * 2.0**-exponent)
    state += bias
    return state
