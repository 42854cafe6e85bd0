r"""SGC over a packed graph: the columns of a state do not meet, so they are walked a block at a time.

With PairNorm (PN) the state of depth k is $s_k \mathbf{C}_k$, where $\mathbf{C}_k$ is the walk that is
centerd after every step and never rescaled. Its columns are independent; the scale is one number per depth,
which follows afterwards from the mean squared row norm $t_k$ over all columns:

$$
\mathbf{C}_k = \text{center}(\tilde{\mathbf{A}}_{rw} \mathbf{C}_{k-1}), \qquad
s_k = s_{k-1} \Big/ \sqrt{s_{k-1}^2 t_k + \epsilon}
$$

PN-SI needs the norm of every row at every depth: its blocks go step by step together, their states on disk,
and the n numbers of every depth are kept. A walk keeps of every depth the rows that are asked for.
Predictions need classes instead of features: the state times $\mathbf{W}$ is the walk of
$\mathbf{X} \mathbf{W}$.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pairnorm.base.errors import PairNormError, one_of
from pairnorm.base.files import atomic_file
from pairnorm.base.memory import size
from pairnorm.data.packed import PackedGraph, blocks
from pairnorm.nn.ops.hop import cpu

FILLS, NORMS = ("zero", "mass", "fp"), ("none", "PN", "PN-SI")
EPS = 1e-6
SMALL, TINY = 2.0**-40, np.finfo(np.float32).tiny
FILL_STEPS = 40
# In deviations; no more than the root of n can be, but for the rounding of float16.
FARTHEST = 1e12
ROWS = 2**14
WIDEST = 64
# A cache line holds 16 columns: narrower blocks waste it.
LINE = 16
# Python, torch and numba with its kernels.
BASE = 225 * 10**6

Tick = Callable[[str], None]
Array = NDArray[np.float32]
Told = str | dict[str, Any]
"""What the walk of a block tells: the steps that are done, and at the end what is kept of it."""


@dataclass(frozen=True)
class Plan:
    r"""How much memory a walk takes, said before the work; mapped pages, which can be dropped, do not count.

    $$\text{bytes} = 8 n (B + 1) + 16 n + 4 B r k + 32 F r + 2.7 \cdot 10^8$$

    for n nodes, blocks of B of the F columns, and r rows that are kept of k depths: two states; the numbers
    of every node that fills and PN-SI need; the kept rows of a block; what the regression works on; Python.

    Args:
        nodes: n.
        features: F.
        rows: r.
        depths: k.
        memory: the bytes that may be taken.
        widest: the most columns that a block has.
    """

    nodes: int
    features: int
    rows: int
    depths: int
    memory: int
    widest: int = WIDEST

    def peak(self, width: int) -> int:
        """Return the bytes taken at most with blocks of so many columns."""
        states = 8 * self.nodes * (width + 1) + 16 * self.nodes
        return states + 4 * width * self.rows * self.depths + 32 * self.features * self.rows + BASE

    @cached_property
    def width(self) -> int:
        """The widest block that fits."""
        most = max(1, min(self.widest, self.features))
        lines = range(most // LINE * LINE, 0, -LINE)
        for width in [most, *lines, *(narrow for narrow in (8, 4, 2, 1) if narrow < most)]:
            if self.peak(width) <= self.memory:
                return int(width)
        raise PairNormError(
            f"a walk over {self.nodes:,} nodes that keeps {self.rows:,} rows of {self.depths} depths takes "
            f"{size(self.peak(1))} for a single column",
            code="too-large",
            value=self.peak(1),
            expected=f"at most {size(self.memory)}",
            hint="Allow {memory}, or keep fewer depths.",
            memory=size(1.1 * self.peak(1)),
        )


@dataclass(frozen=True, eq=False)
class Walk:
    """SGC's walk over the features of a packed graph. What is finished is a file: a killed walk goes on.

    Args:
        graph: the graph.
        folder: where files are kept.
        rows: int64 [r], the nodes whose states are kept, such as the labeled ones.
        depths: at which they are kept, rising.
        width: how many columns a block has.
        fill: what stands in for missing vectors: ``"zero"``, the mean of a column; ``"mass"``, which divides
            what arrives by the known mass that arrived (``norm="none"`` only); ``"fp"``, feature propagation.
        norm: ``"none"``, ``"PN"`` or ``"PN-SI"``.
        tick: is told of every step.
    """

    graph: PackedGraph
    folder: Path
    rows: NDArray[np.int64]
    depths: tuple[int, ...]
    width: int
    fill: str = "zero"
    norm: str = "PN"
    tick: Tick = field(default=lambda done: None)

    def __post_init__(self) -> None:
        one_of("fill", self.fill, FILLS)
        one_of("norm", self.norm, ("none",) if self.fill == "mass" else NORMS)
        if self.fill != "zero" and self.graph.facts.missing[1]:
            raise PairNormError(
                f"{self.graph.facts.missing[1]:,} nodes lack single features",
                code="entries-missing",
                value=self.fill,
                expected="nodes that lack all features or none",
                hint="Pass {fill}.",
                fill="zero",
            )

    @cached_property
    def _path(self) -> Callable[[str], Path]:
        """Where a file of this very walk is: a walk of another graph, or of other rows, has another name."""
        facts, when = self.graph.folder / "graph.json", (self.graph.folder / "column").stat().st_mtime_ns
        told = repr((self.depths, self.width, self.fill, self.norm, EPS, FILL_STEPS, when)).encode()
        mark = blake2b(facts.read_bytes() + told + self.rows.tobytes(), digest_size=8).hexdigest()
        return lambda name: self.folder / f"{self.fill}-{self.norm}-{mark}-{name}"

    @property
    def steps(self) -> int:
        """How often ``tick`` is called by a walk that starts anew."""
        return len(self._blocks) * (max(self.depths) + 1)

    @cached_property
    def _blocks(self) -> list[range]:
        return blocks(self.graph.facts.features, self.width)

    @cached_property
    def _roots(self) -> Array | None:
        return cpu.degree_roots(self.graph.crow, self.graph.weight) if self.fill == "fp" else None

    def run(self) -> None:
        """Walk what is not finished yet."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.norm == "PN-SI":
            self._run_together()
            return
        for number in self.left():
            for told in self.block(number):
                self.hear(number, told)

    def left(self) -> list[int]:
        """Return the numbers of the blocks that are not finished; those of PN-SI cannot be walked apart."""
        return [number for number in range(len(self._blocks)) if not self._block_path(number).exists()]

    def block(self, number: int) -> Iterator[Told]:
        """Walk a block, wherever the graph is; ``hear`` what it yields where the files are."""
        columns = self.columns(number)
        kept: dict[str, Any] = {}
        squares, units = np.zeros((2, max(self.depths) + 1))
        steps = self._steps(self._start(columns), max(self.depths))
        for depth, (state, unit, square) in enumerate(steps):
            squares[depth], units[depth] = square, unit
            if depth in self.depths:
                kept[f"depth-{depth}"] = _divided(state[self.rows], len(columns))
            yield f"columns {columns.start + 1} to {columns.stop}, depth {depth}"
        yield kept | {"squares": squares, "units": units}

    def hear(self, number: int, told: Told) -> None:
        """Pass a step on, or write what is kept of a block."""
        if isinstance(told, str):
            self.tick(told)
            return
        with atomic_file(self._block_path(number)) as draft, open(draft, "wb") as file:
            np.savez(file, **told)

    def columns(self, number: int) -> range:
        """The columns of a block."""
        return self._blocks[number]

    def _block_path(self, number: int) -> Path:
        return self._path(f"{number:04d}.npz")

    def state(self, depth: int) -> Array:
        """Return the normalized state of the kept rows at a depth, [r, features]."""
        parts = []
        for number in range(len(self._blocks)):
            if self.norm == "PN-SI":
                parts.append(np.load(self._path(f"{number:04d}-{depth}.npy"), allow_pickle=False))
            else:
                with np.load(self._block_path(number), allow_pickle=False) as found:
                    factor = np.float32(found["units"][depth] * self._scales[depth])
                    parts.append(found[f"depth-{depth}"] * factor)
        return np.concatenate(parts, 1)

    def logits(self, weight: Array, bias: Array, depth: int, out: Path) -> Array:
        """Return the logits of every node, mapped from a file, [n, classes]: after ``run``.

        Args:
            weight: [features, classes].
            bias: [classes].
            depth: how deep; not beyond the deepest that is kept.
            out: the file.
        """
        nodes, every = self.graph.facts.nodes, range(self.graph.facts.features)
        result = _new_file(out, nodes, weight.shape[1])
        for classes in blocks(weight.shape[1], self.width):
            part, place = weight[:, classes.start : classes.stop], slice(classes.start, classes.stop)
            state = np.empty((nodes, len(classes) + (self.fill == "mass")), np.float32)
            for rows in _slices(nodes):
                state[rows, : len(classes)] = self._standardized(rows, every) @ part
            found, unit = state, 1.0
            for k, (found, unit, _) in enumerate(self._steps(self._filled(state), depth)):  # noqa: B007
                self.tick(f"classes {classes.start + 1} to {classes.stop}, depth {k}")
            factor = np.float32(unit * self._scales[depth])
            for rows in _slices(nodes):
                result[rows, place] = _divided(found[rows], len(classes)) * factor + bias[place]
            del state, found
        return result

    @cached_property
    def _scales(self) -> NDArray[np.float64]:
        """What multiplies the states of every depth."""
        scales, last = np.ones(max(self.depths) + 1), 1.0
        if self.norm == "PN":
            total = np.zeros(len(scales))
            for number in range(len(self._blocks)):
                with np.load(self._block_path(number), allow_pickle=False) as found:
                    total += found["squares"]
            for depth, square in enumerate(total):
                scales[depth] = last = last / np.sqrt(last**2 * square + EPS)
        return scales

    def _start(self, columns: range) -> Array:
        """Return the features to start from, filled, and for the mass fill a last column of what is known."""
        nodes, width = self.graph.facts.nodes, len(columns)
        state = np.empty((nodes, width + (self.fill == "mass")), np.float32)
        for rows in _slices(nodes):
            state[rows, :width] = self._standardized(rows, columns)
        return self._filled(state)

    def _standardized(self, rows: slice, columns: range) -> Array:
        """Return features, each column standardized over what is known of it, zero where missing."""
        facts = self.graph.facts
        mean, deviation = (
            np.array(part)[columns.start : columns.stop] for part in (facts.mean, facts.deviation)
        )
        deviation = np.where(deviation > 1e-6 * np.abs(mean) + 1e-12, deviation, 1)
        values = self.graph.features(rows, columns)
        values -= mean.astype(np.float32)
        values /= deviation.astype(np.float32)
        np.nan_to_num(values, copy=False, nan=0.0)
        if values.size and max(-values.min(), values.max()) > FARTHEST:
            raise PairNormError(
                f"{self.graph.folder}: features are far from the mean and deviation that are noted of them",
                code="file-damaged",
                value=str(self.graph.folder),
                hint="Pack the graph again.",
            )
        return values

    def _filled(self, state: Array) -> Array:
        if self.fill == "mass":
            state[:, -1] = self.graph.missing != 2
        if self.fill == "fp":
            other = np.empty_like(state)
            for step in range(FILL_STEPS):
                # Every second time what is known is set back in the array that holds it already.
                source, result = (state, other) if step % 2 == 0 else (other, state)
                self._hop(source, result, self._roots)
                for rows in _slices(len(state)):
                    known = self.graph.missing[rows] != 2
                    result[rows][known] = source[rows][known]
        return state

    def _hop(self, state: Array, other: Array, roots: Array | None = None) -> None:
        cpu.hop(self.graph.crow, self.graph.column, self.graph.weight, state, other, roots)

    def _steps(self, state: Array, depth: int) -> Iterator[tuple[Array, float, float]]:
        """Yield the walk at every depth from 0: state, unit, and t of its columns; the walk is state · unit.

        A long walk would fall below what float32 can hold: now and then the state is brought back to about 1,
        by a power of two. Arrays are used again: look at a state before the next.
        """
        other, unit = np.empty_like(state), 1.0
        for k in range(depth + 1):
            if k:
                self._hop(state, other)
                state, other = other, state
            square = 0.0 if self.norm == "none" else _center(state, self.norm)
            if self.norm == "PN-SI":
                factors = self._row_factors(k)
                for rows in _slices(len(state)):
                    state[rows] *= factors[rows, None]
            elif 0 < square < SMALL * state.shape[1]:
                up = 2.0 ** (-np.floor(np.log2(square / state.shape[1])) // 2)
                np.multiply(state, np.float32(up), out=state)
                unit, square = unit / up, square * up**2
            yield state, unit, square * unit**2

    def _row_factors(self, depth: int) -> Array:
        return np.memmap(self._path(f"rows-{depth}"), "<f4", "r")

    def _run_together(self) -> None:
        """Walk all blocks step by step; the states of a depth are files until those of the next are whole."""
        nodes, deepest = self.graph.facts.nodes, max(self.depths)
        done = max((k for k in range(deepest + 1) if self._path(f"rows-{k}").exists()), default=-1)
        for depth in range(done + 1, deepest + 1):
            squares = np.zeros(nodes)
            for number, columns in enumerate(self._blocks):
                if depth == 0:
                    state = self._start(columns)
                else:
                    before, factors = self._mapped(depth - 1, number), self._row_factors(depth - 1)
                    state, scaled = (np.empty((nodes, len(columns)), np.float32) for _ in range(2))
                    for rows in _slices(nodes):
                        np.multiply(before[rows], factors[rows, None], out=scaled[rows])
                    self._hop(scaled, state)
                    del scaled
                _center(state, self.norm)
                cpu.row_squares(state, squares)
                state.tofile(self._path(f"state-{depth % 2}-{number:04d}"))
                del state
                self.tick(f"columns {columns.start + 1} to {columns.stop}, depth {depth}")
            found = (1 / np.sqrt(squares + EPS)).astype("<f4")
            if depth in self.depths:
                for number in range(len(self._blocks)):
                    kept = self._mapped(depth, number)[self.rows] * found[self.rows, None]
                    np.save(self._path(f"{number:04d}-{depth}.npy"), kept)
            with atomic_file(self._path(f"rows-{depth}")) as draft:  # with it, the depth is whole
                found.tofile(draft)
        for path in (
            self._path(f"state-{k}-{number:04d}") for k in (0, 1) for number in range(len(self._blocks))
        ):
            path.unlink(missing_ok=True)

    def _mapped(self, depth: int, number: int) -> Array:
        shape = (self.graph.facts.nodes, len(self._blocks[number]))
        return np.memmap(self._path(f"state-{depth % 2}-{number:04d}"), "<f4", "r", shape=shape)


def label_propagation(
    graph: PackedGraph, labels: NDArray[Any], alpha: float, rounds: int, width: int, out: Path
) -> Array:
    r"""Return $F \leftarrow \alpha S F + (1 - \alpha) Y$ after some rounds, mapped from a file, [n, classes].

    Args:
        graph: the graph.
        labels: int [n], those to spread, -1 elsewhere.
        alpha: how much a node listens to its neighbors.
        rounds: how many.
        width: how many classes at a time.
        out: the file.
    """
    roots, classes = cpu.degree_roots(graph.crow, graph.weight), len(graph.facts.classes)
    result = _new_file(out, graph.facts.nodes, classes)
    for block in blocks(classes, width):
        state, other = (np.zeros((graph.facts.nodes, len(block)), np.float32) for _ in range(2))
        taught = np.flatnonzero((labels >= block.start) & (labels < block.stop))
        place = labels[taught] - block.start
        state[taught, place] = 1
        for _ in range(rounds):
            cpu.hop(graph.crow, graph.column, graph.weight, state, other, roots)
            np.multiply(other, np.float32(alpha), out=other)
            other[taught, place] += np.float32(1 - alpha)
            state, other = other, state
        result[:, block.start : block.stop] = state
    return result


def _new_file(path: Path, *shape: int) -> Array:
    """Return a file's array, mapped; its room is taken first, for writing to a full disk would be a crash."""
    with open(path, "wb") as file:
        file.truncate(4 * math.prod(shape))
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, 4 * math.prod(shape))
    return np.memmap(path, "<f4", "r+", shape=shape)


def _slices(rows: int) -> Iterator[slice]:
    """Yield ranges of rows that are small beside a state."""
    return (slice(start, min(start + ROWS, rows)) for start in range(0, rows, ROWS))


def _center(state: Array, norm: str) -> float:
    """Center in place and return the mean squared row norm.

    Rounding leaves a mean. A walk that is never rescaled would keep it, while all else fades: for PN it is
    taken off as well. PN-SI would enlarge what that does to rows that are zero.
    """
    nodes = len(state)
    squares = cpu.center(state, cpu.column_sums(state) / nodes)
    if norm == "PN":
        squares = cpu.center(state, cpu.column_sums(state) / nodes)
    return float(squares.sum()) / nodes


def _divided(state: Array, width: int) -> Array:
    """Return the first columns of a state, divided by the last where there is one more: the mass."""
    if state.shape[1] == width:
        return state
    mass = state[:, width:]
    result: Array = np.divide(state[:, :width], np.where(mass > TINY, mass, np.float32(1)), dtype=np.float32)
    return result
