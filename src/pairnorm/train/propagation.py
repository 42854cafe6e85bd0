r"""SGC over a packed graph that may not fit memory: columns are independent, and propagated in blocks.

With PairNorm (PN) the state of depth k is $s_k \mathbf{C}_k$, where $\mathbf{C}_k$ is the propagation that is
centered after every step and never rescaled. Its columns are independent; the scale is one number per depth,
which follows afterwards from the mean squared row norm $t_k$ over all columns:

$$
\mathbf{C}_k = \text{center}(\tilde{\mathbf{A}}_{rw} \mathbf{C}_{k-1}), \qquad
s_k = s_{k-1} \Big/ \sqrt{s_{k-1}^2 t_k + \epsilon}
$$

PN-SI needs the norm of every row at every depth: all its blocks advance one step at a time, with their states
on disk, and the n norms of every depth are stored. Of every depth, only the requested rows are stored.
Predictions propagate classes instead of features: the state times $\mathbf{W}$ is the propagation of
$\mathbf{X} \mathbf{W}$.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
from pairnorm.train import hop

IMPUTATIONS, NORMS = ("zero", "mass", "fp"), ("none", "PN", "PN-SI")
EPS = 1e-6
MIN_MEAN_SQUARE, TINY = 2.0**-40, np.finfo(np.float32).tiny
IMPUTATION_STEPS = 40
# In standard deviations. It cannot exceed the root of n, except by the rounding of float16.
MAX_STANDARDIZED = 1e12
ROWS_PER_SLICE = 2**14
MAX_WIDTH = 64
# A cache line holds 16 float32 columns: narrower blocks waste a part of it.
COLUMNS_PER_LINE = 16
# Bytes of Python, torch and numba with its kernels.
BASE_BYTES = 225 * 10**6

OnProgress = Callable[[str], None]
Array = NDArray[np.float32]
BlockEvent = str | dict[str, Any]
"""What the propagation of a block yields: a message per step, and its stored rows at the end."""


def ignore_progress(message: str) -> None:
    """Ignore a message about progress."""


@dataclass(frozen=True)
class Plan:
    r"""The memory that a propagation takes, known before it starts. Mapped pages of files do not count.

    $$\text{bytes} = 8 n (B + 1) + 16 n + 4 B r k + 32 F r + 64 C r + 32 C^2 + 2.7 \cdot 10^8$$

    for n nodes, blocks of B of the F columns, r rows stored of k depths, and C classes: two states; the
    numbers per node of imputations and PN-SI; the stored rows of a block; the data and the probabilities of
    the regression; the confusion matrix; Python.

    Args:
        nodes: n.
        features: F.
        rows: r.
        depths: k.
        memory: bytes that it may take.
        max_width: the most columns of a block.
        classes: C.
    """

    nodes: int
    features: int
    rows: int
    depths: int
    memory: int
    max_width: int = MAX_WIDTH
    classes: int = 0

    def peak(self, width: int) -> int:
        """Return the peak memory in bytes with blocks of ``width`` columns."""
        states = 8 * self.nodes * (width + 1) + 16 * self.nodes
        regression = 32 * self.features * self.rows + 64 * self.classes * self.rows + 32 * self.classes**2
        return states + 4 * width * self.rows * self.depths + regression + BASE_BYTES

    @cached_property
    def width(self) -> int:
        """The number of columns of the widest block that fits into memory."""
        most = max(1, min(self.max_width, self.features))
        lines = range(most // COLUMNS_PER_LINE * COLUMNS_PER_LINE, 0, -COLUMNS_PER_LINE)
        for width in [most, *lines, *(narrow for narrow in (8, 4, 2, 1) if narrow < most)]:
            if self.peak(width) <= self.memory:
                return int(width)
        raise PairNormError(
            f"a propagation over {self.nodes:,} nodes that stores {self.rows:,} rows of {self.depths} depths "
            f"for {self.classes:,} classes takes {size(self.peak(1))} for a single column",
            code="too-large",
            value=self.peak(1),
            expected=f"at most {size(self.memory)}",
            hint="Allow {memory}, or ask for fewer depths, or merge rare classes.",
            memory=size(1.1 * self.peak(1)),
        )


@dataclass(frozen=True, eq=False)
class Propagation:
    """The propagation of SGC over the features of a packed graph, resumable: a finished block is a file.

    Args:
        graph: the graph.
        folder: of the files.
        rows: int64 [r], the nodes whose states are stored, such as the labeled ones.
        depths: at which states are stored, in rising order.
        width: columns of a block.
        imputation: of missing vectors: ``"zero"``, the mean of a column; ``"mass"``, the mean over known
            neighbors (``norm="none"`` only); ``"fp"``, feature propagation.
        norm: ``"none"``, ``"PN"`` or ``"PN-SI"``.
        on_progress: called with a message after every step.
    """

    graph: PackedGraph
    folder: Path
    rows: NDArray[np.int64]
    depths: tuple[int, ...]
    width: int
    imputation: str = "zero"
    norm: str = "PN"
    on_progress: OnProgress = ignore_progress

    def __post_init__(self) -> None:
        one_of("imputation", self.imputation, IMPUTATIONS)
        one_of("norm", self.norm, ("none",) if self.imputation == "mass" else NORMS)
        if self.imputation != "zero" and self.graph.facts.missing[1]:
            raise PairNormError(
                f"{self.graph.facts.missing[1]:,} nodes lack single features",
                code="entries-missing",
                value=self.imputation,
                expected="nodes that lack all features or none",
                hint="Pass {fill}.",
                fill="zero",
            )

    @cached_property
    def _path(self) -> Callable[[str], Path]:
        """Return the path of a file; its name depends on the graph, the rows and all settings."""
        facts, when = self.graph.folder / "graph.json", (self.graph.folder / "column").stat().st_mtime_ns
        settings = self.depths, self.width, self.imputation, self.norm, EPS, IMPUTATION_STEPS, when
        content = facts.read_bytes() + repr(settings).encode() + self.rows.tobytes()
        mark = blake2b(content, digest_size=8).hexdigest()
        return lambda name: self.folder / f"{self.imputation}-{self.norm}-{mark}-{name}"

    @property
    def steps(self) -> int:
        """The number of calls of ``on_progress`` if no block is finished."""
        return len(self._blocks) * (max(self.depths) + 1)

    @cached_property
    def _blocks(self) -> list[range]:
        return blocks(self.graph.facts.features, self.width)

    @cached_property
    def _roots(self) -> Array | None:
        return hop.degree_roots(self.graph.crow, self.graph.weight) if self.imputation == "fp" else None

    def run(self) -> None:
        """Compute the pending blocks."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.norm == "PN-SI":
            self._run_together()
            return
        for number in self.pending():
            for event in self.block(number):
                self.handle(number, event)

    def pending(self) -> list[int]:
        """Return the numbers of the blocks without a file. ``run`` computes those of PN-SI together."""
        return [number for number in range(len(self._blocks)) if not self._block_path(number).exists()]

    def block(self, number: int) -> Iterator[BlockEvent]:
        """Compute a block, perhaps on another machine; ``handle`` its events where the files are."""
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

    def handle(self, number: int, event: BlockEvent) -> None:
        """Report a step of a block, or write its file."""
        if isinstance(event, str):
            self.on_progress(event)
            return
        with atomic_file(self._block_path(number)) as draft, open(draft, "wb") as file:
            np.savez(file, **event)

    def columns(self, number: int) -> range:
        """Return the columns of a block."""
        return self._blocks[number]

    def _block_path(self, number: int) -> Path:
        return self._path(f"{number:04d}.npz")

    def state(self, depth: int) -> Array:
        """Return the normalized state of the stored rows at a depth, [r, features]."""
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
        """Return the logits of every node, [n, classes], mapped from a file. Call ``run`` first.

        Args:
            weight: [features, classes].
            bias: [classes].
            depth: at most the deepest stored depth.
            out: the file.
        """
        nodes, every = self.graph.facts.nodes, range(self.graph.facts.features)
        result = _new_file(out, nodes, weight.shape[1])
        for classes in blocks(weight.shape[1], self.width):
            part, place = weight[:, classes.start : classes.stop], slice(classes.start, classes.stop)
            state = np.empty((nodes, len(classes) + (self.imputation == "mass")), np.float32)
            for rows in _slices(nodes):
                state[rows, : len(classes)] = self._standardized(rows, every) @ part
            found, unit = state, 1.0
            for k, (found, unit, _) in enumerate(self._steps(self._impute(state), depth)):  # noqa: B007
                self.on_progress(f"classes {classes.start + 1} to {classes.stop}, depth {k}")
            factor = np.float32(unit * self._scales[depth])
            for rows in _slices(nodes):
                result[rows, place] = _divided(found[rows], len(classes)) * factor + bias[place]
            del state, found
        return result

    @cached_property
    def _scales(self) -> NDArray[np.float64]:
        """The scale s_k of every depth."""
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
        """Return the imputed features of a block; for ``"mass"``, with a last column of known nodes."""
        nodes, width = self.graph.facts.nodes, len(columns)
        state = np.empty((nodes, width + (self.imputation == "mass")), np.float32)
        for rows in _slices(nodes):
            state[rows, :width] = self._standardized(rows, columns)
        return self._impute(state)

    def _standardized(self, rows: slice, columns: range) -> Array:
        """Return the features, each column standardized over its known values, zero where missing."""
        facts = self.graph.facts
        mean, deviation = (
            np.array(part)[columns.start : columns.stop] for part in (facts.mean, facts.deviation)
        )
        deviation = np.where(deviation > 1e-6 * np.abs(mean) + 1e-12, deviation, 1)
        values = self.graph.features(rows, columns)
        values -= mean.astype(np.float32)
        values /= deviation.astype(np.float32)
        np.nan_to_num(values, copy=False, nan=0.0)
        if values.size and max(-values.min(), values.max()) > MAX_STANDARDIZED:
            raise PairNormError(
                f"{self.graph.folder}: features are far from the mean and deviation in graph.json",
                code="file-damaged",
                value=str(self.graph.folder),
                hint="Pack the graph again.",
            )
        return values

    def _impute(self, state: Array) -> Array:
        if self.imputation == "mass":
            state[:, -1] = self.graph.missing != 2
        if self.imputation == "fp":
            other = np.empty_like(state)
            for step in range(IMPUTATION_STEPS):
                # Known rows are copied, since every second array holds them already.
                source, result = (state, other) if step % 2 == 0 else (other, state)
                self._propagate(source, result, self._roots)
                for rows in _slices(len(state)):
                    known = self.graph.missing[rows] != 2
                    result[rows][known] = source[rows][known]
        return state

    def _propagate(self, state: Array, other: Array, roots: Array | None = None) -> None:
        hop.hop(self.graph.crow, self.graph.column, self.graph.weight, state, other, roots)

    def _steps(self, state: Array, depth: int) -> Iterator[tuple[Array, float, float]]:
        """Yield state, unit and t for every depth from 0; the propagated columns are state · unit.

        After many steps the numbers would underflow float32: when they are small, the state is multiplied by
        a power of two. Arrays are reused: use a state before asking for the next.
        """
        other, unit = np.empty_like(state), 1.0
        for k in range(depth + 1):
            if k:
                self._propagate(state, other)
                state, other = other, state
            square = 0.0 if self.norm == "none" else _center(state, self.norm)
            if self.norm == "PN-SI":
                factors = self._row_factors(k)
                for rows in _slices(len(state)):
                    state[rows] *= factors[rows, None]
            elif 0 < square < MIN_MEAN_SQUARE * state.shape[1]:
                up = 2.0 ** (-np.floor(np.log2(square / state.shape[1])) // 2)
                np.multiply(state, np.float32(up), out=state)
                unit, square = unit / up, square * up**2
            yield state, unit, square * unit**2

    def _row_factors(self, depth: int) -> Array:
        return np.memmap(self._path(f"rows-{depth}"), "<f4", "r")

    def _run_together(self) -> None:
        """Advance all blocks one step at a time; states stay on disk until the next depth is complete."""
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
                    self._propagate(scaled, state)
                    del scaled
                _center(state, self.norm)
                hop.row_squares(state, squares)
                state.tofile(self._path(f"state-{depth % 2}-{number:04d}"))
                del state
                self.on_progress(f"columns {columns.start + 1} to {columns.stop}, depth {depth}")
            found = (1 / np.sqrt(squares + EPS)).astype("<f4")
            if depth in self.depths:
                for number in range(len(self._blocks)):
                    kept = self._mapped(depth, number)[self.rows] * found[self.rows, None]
                    np.save(self._path(f"{number:04d}-{depth}.npy"), kept)
            with atomic_file(self._path(f"rows-{depth}")) as draft:  # with this file, the depth is complete
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
    r"""Propagate labels by $F \leftarrow \alpha S F + (1 - \alpha) Y$; F is mapped from a file, [n, classes].

    Args:
        graph: the graph.
        labels: int [n], the known labels, -1 elsewhere.
        alpha: weight of the neighbors.
        rounds: number of iterations.
        width: classes propagated at a time.
        out: the file.
    """
    roots, classes = hop.degree_roots(graph.crow, graph.weight), len(graph.facts.classes)
    result = _new_file(out, graph.facts.nodes, classes)
    for block in blocks(classes, width):
        state, other = (np.zeros((graph.facts.nodes, len(block)), np.float32) for _ in range(2))
        labeled = np.flatnonzero((labels >= block.start) & (labels < block.stop))
        column = labels[labeled] - block.start
        state[labeled, column] = 1
        for _ in range(rounds):
            hop.hop(graph.crow, graph.column, graph.weight, state, other, roots)
            np.multiply(other, np.float32(alpha), out=other)
            other[labeled, column] += np.float32(1 - alpha)
            state, other = other, state
        result[:, block.start : block.stop] = state
    return result


def _new_file(path: Path, *shape: int) -> Array:
    """Return an array mapped from a new file, allocated first: a full disk would crash the process."""
    with open(path, "wb") as file:
        file.truncate(4 * math.prod(shape))
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, 4 * math.prod(shape))
    return np.memmap(path, "<f4", "r+", shape=shape)


def _slices(rows: int) -> Iterator[slice]:
    """Yield slices of rows, each small compared with a state."""
    return (slice(start, min(start + ROWS_PER_SLICE, rows)) for start in range(0, rows, ROWS_PER_SLICE))


def _center(state: Array, norm: str) -> float:
    """Center in place and return the mean squared row norm.

    Rounding leaves a small mean, which a propagation without rescaling keeps while everything else decays:
    for PN, center twice. For PN-SI, this would enlarge the rounding of rows that are zero.
    """
    nodes = len(state)
    squares = hop.center(state, hop.column_sums(state) / nodes)
    if norm == "PN":
        squares = hop.center(state, hop.column_sums(state) / nodes)
    return float(squares.sum()) / nodes


def _divided(state: Array, width: int) -> Array:
    """Return the first ``width`` columns of a state; with one more column, divided by it."""
    if state.shape[1] == width:
        return state
    mass = state[:, width:]
    result: Array = np.divide(state[:, :width], np.where(mass > TINY, mass, np.float32(1)), dtype=np.float32)
    return result
