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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairnorm.base.errors import PairNormError, one_of
from pairnorm.base.files import atomic_file
from pairnorm.data.packed import PackedGraph, blocks
from pairnorm.train.block_ops import Array, BlockOps, from_mapped, slices
from pairnorm.train.pools import Cluster, check_version

IMPUTATIONS, NORMS = ("zero", "mass", "fp"), ("none", "PN", "PN-SI")
EPS = 1e-6
TINY = np.finfo(np.float32).tiny
IMPUTATION_STEPS = 40
# In standard deviations. It cannot exceed the root of n, except by the rounding of features in float16.
MAX_STANDARDIZED = 1e12

OnProgress = Callable[[str], None]
Block = tuple["Propagation", int]
"""A propagation and the number of one of its blocks."""
BlockEvent = str | dict[str, Any]
"""What the propagation of a block yields: a message per step, and its stored rows at the end."""


def ignore_progress(message: str) -> None:
    """Ignore a message about progress."""


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
        ops: the arithmetic, see ``BlockOps``. Default: that of the CPU.
    """

    graph: PackedGraph
    folder: Path
    rows: NDArray[np.int64]
    depths: tuple[int, ...]
    width: int
    imputation: str = "zero"
    norm: str = "PN"
    on_progress: OnProgress = ignore_progress
    ops: BlockOps | None = None

    def __post_init__(self) -> None:
        one_of("imputation", self.imputation, IMPUTATIONS)
        one_of("norm", self.norm, ("none",) if self.imputation == "mass" else NORMS)
        if self.imputation != "zero" and self.graph.facts.missing[1]:
            problem = f"{self.graph.facts.missing[1]:,} nodes lack single features"
            details = {"expected": "nodes that lack all features or none", "hint": "Pass {impute}."}
            raise PairNormError(
                problem, code="entries-missing", value=self.imputation, **details, impute="zero"
            )

    @cached_property
    def _path(self) -> Callable[[str], Path]:
        """Return the path of a file; its name depends on the graph, the rows and all settings."""
        facts, when = self.graph.folder / "graph.json", (self.graph.folder / "column").stat().st_mtime_ns
        settings = self.depths, self.width, self.imputation, self.norm, EPS, IMPUTATION_STEPS, when
        device = self._ops.device.type if self._ops.is_cuda else ""
        content = facts.read_bytes() + repr(settings).encode() + device.encode() + self.rows.tobytes()
        mark = blake2b(content, digest_size=8).hexdigest()
        return lambda name: self.folder / f"{self.imputation}-{self.norm}-{mark}-{name}"

    @property
    def steps(self) -> int:
        """The number of calls of ``on_progress`` if no block is finished."""
        return len(self._blocks) * (max(self.depths) + 1)

    @cached_property
    def _blocks(self) -> list[range]:
        """The columns of every block."""
        return blocks(self.graph.facts.features, self.width)

    @cached_property
    def _ops(self) -> BlockOps:
        """The arithmetic; by default, that of the CPU."""
        return BlockOps(self.graph) if self.ops is None else self.ops

    def run(self) -> None:
        """Compute the pending blocks."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.norm == "PN-SI":
            self._run_together()
            return
        for number in self.pending():
            for event in self.compute_block(number):
                self.handle(number, event)

    def pending(self) -> list[int]:
        """Return the numbers of the blocks without a file. ``run`` computes those of PN-SI together."""
        return [number for number in range(len(self._blocks)) if not self._block_path(number).exists()]

    def compute_block(self, number: int) -> Iterator[BlockEvent]:
        """Compute a block, perhaps on another machine; ``handle`` its events where the files are."""
        columns = self._blocks[number]
        stored: dict[str, Any] = {}
        squares, units = np.zeros((2, max(self.depths) + 1))
        steps = self._steps(self._start(columns), max(self.depths))
        for depth, (state, unit, square) in enumerate(steps):
            squares[depth], units[depth] = square, unit
            if depth in self.depths:
                stored[f"depth-{depth}"] = _divided(self._ops.read(state, self.rows), len(columns))
            yield f"columns {columns.start + 1} to {columns.stop}, depth {depth}"
        yield stored | {"squares": squares, "units": units}

    def handle(self, number: int, event: BlockEvent) -> None:
        """Report a step of a block, or write its file."""
        if isinstance(event, str):
            self.on_progress(event)
            return
        with atomic_file(self._block_path(number)) as draft, open(draft, "wb") as file:
            np.savez(file, **event)

    def _block_path(self, number: int) -> Path:
        """Return the path of a finished block."""
        return self._path(f"{number:04d}.npz")

    def state(self, depth: int) -> Array:
        """Return the normalized state of the stored rows at a depth, [r, features]."""
        parts = []
        for number in range(len(self._blocks)):
            if self.norm == "PN-SI":
                stored = np.load(self._path(f"{number:04d}-{depth}.npy"), allow_pickle=False)
                parts.append(stored * self._row_factors(depth).numpy()[self.rows, None])
            else:
                with np.load(self._block_path(number), allow_pickle=False) as arrays:
                    factor = np.float32(arrays["units"][depth] * self._scales[depth])
                    parts.append(arrays[f"depth-{depth}"] * factor)
        return np.concatenate(parts, 1)

    def logits(self, weight: Array, bias: Array, depth: int, out: Path) -> Array:
        """Return the logits of every node, [n, classes], mapped from a file. Call ``run`` first.

        Args:
            weight: [features, classes].
            bias: [classes].
            depth: at most the deepest stored depth.
            out: the file.
        """
        all_columns, ops = range(self.graph.facts.features), self._ops
        result = _new_file(out, self.graph.facts.nodes, weight.shape[1])
        for classes in blocks(weight.shape[1], self.width):
            part = slice(classes.start, classes.stop)
            steps = self._steps(self._start(all_columns, weight[:, part]), depth)
            for k, (state, unit, _) in enumerate(steps):  # noqa: B007
                self.on_progress(f"classes {classes.start + 1} to {classes.stop}, depth {k}")
            factor = np.float32(unit * self._scales[depth])
            for rows in ops.slices(len(classes)):
                values = _divided(ops.read(state, rows), len(classes))
                result[rows, part] = values * factor + bias[part]
            del state  # before the next one is allocated
        return result

    @cached_property
    def _scales(self) -> NDArray[np.float64]:
        """The scale s_k of every depth."""
        scales, last = np.ones(max(self.depths) + 1), 1.0
        if self.norm == "PN":
            total = np.zeros(len(scales))
            for number in range(len(self._blocks)):
                with np.load(self._block_path(number), allow_pickle=False) as arrays:
                    total += arrays["squares"]
            for depth, square in enumerate(total):
                scales[depth] = last = last / np.sqrt(last**2 * square + EPS)
        return scales

    def _start(self, columns: range, weight: Array | None = None) -> Tensor:
        """Return the imputed features of a block, or their product with ``weight``.

        For ``"mass"``, the last column says which nodes are known.
        """
        width = len(columns) if weight is None else weight.shape[1]
        state = self._ops.empty(width + (self.imputation == "mass"))

        def load(rows: slice) -> None:
            self._ops.write(state, rows, self._standardized(rows, columns), weight)

        with ThreadPoolExecutor(self._ops.threads) as pool:
            list(pool.map(load, self._ops.slices(len(columns))))
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
            folder, hint = str(self.graph.folder), "Pack the graph again."
            problem = f"{folder}: features are far from the mean and deviation in graph.json"
            raise PairNormError(problem, code="file-damaged", value=folder, hint=hint)
        return values

    def _impute(self, state: Tensor) -> Tensor:
        """Return a state of features with zeros where they are missing, imputed."""
        if self.imputation == "mass":
            self._ops.write_known(state)
        if self.imputation == "fp":
            other = torch.empty_like(state)
            for step in range(IMPUTATION_STEPS):
                source, result = (state, other) if step % 2 == 0 else (other, state)
                self._ops.propagate(source, result, symmetric=True)
                self._ops.copy_known(source, result)
        return state

    def _steps(self, state: Tensor, depth: int) -> Iterator[tuple[Tensor, float, float]]:
        """Yield state, unit and t for every depth from 0; the propagated columns are state · unit.

        After many steps the numbers would underflow: when they are small, the state is multiplied by a power
        of two. States are reused: use one before asking for the next.
        """
        ops, other, unit = self._ops, torch.empty_like(state), 1.0
        for k in range(depth + 1):
            if k:
                ops.propagate(state, other)
                state, other = other, state
            square = 0.0 if self.norm == "none" else self._center(state)
            if self.norm == "PN-SI":
                _multiply_rows(state, self._row_factors(k), state)
            else:
                factor = ops.scale_up(state, square / state.size(1))
                unit, square = unit / factor, square * factor**2
            yield state, unit, square * unit**2

    def _center(self, state: Tensor) -> float:
        """Center in place and return the mean squared row norm.

        Rounding leaves a small mean, which a propagation without rescaling keeps while everything else
        decays: for PN, center twice. For PN-SI, this would enlarge the rounding of rows that are zero.
        """
        square = self._ops.center(state)
        return self._ops.center(state) if self.norm == "PN" else square

    def _row_factors(self, depth: int) -> Tensor:
        """Return the factor of every row at a depth of PN-SI, mapped from its file."""
        return from_mapped(np.memmap(self._path(f"rows-{depth}"), "<f4", "r"))

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
                    before = np.memmap(self._state_path(depth - 1, number), "<f4", "r")
                    state, scaled = (self._ops.empty(len(columns)) for _ in range(2))
                    _multiply_rows(from_mapped(before).view_as(state), self._row_factors(depth - 1), scaled)
                    self._ops.propagate(scaled, state)
                    del scaled
                self._center(state)
                for rows in slices(nodes, 2**11):  # the float64 copy of a slice stays in the cache
                    squares[rows] += state[rows].double().square_().sum(1).numpy()
                if depth in self.depths:
                    np.save(self._path(f"{number:04d}-{depth}.npy"), self._ops.read(state, self.rows))
                self._state_path(depth, number).write_bytes(state.numpy().data)
                del state
                self.on_progress(f"columns {columns.start + 1} to {columns.stop}, depth {depth}")
            with atomic_file(self._path(f"rows-{depth}")) as draft:  # with this file, the depth is complete
                draft.write_bytes((1 / np.sqrt(squares + EPS)).astype("<f4").data)
        for number in range(2 * len(self._blocks)):
            self._state_path(number % 2, number // 2).unlink(missing_ok=True)

    def _state_path(self, depth: int, number: int) -> Path:
        """Return the path of the state of a block of PN-SI."""
        return self._path(f"state-{depth % 2}-{number:04d}")


class RayBlocks(Cluster):
    """Blocks of propagations as Ray tasks, as many on a node as its cores and its memory allow.

    Columns are independent, so that a dead worker costs one block. Workers map the files of the graph, which
    every node must have at the same path.

    Attributes:
        memory: bytes that the largest node has for tasks.
        cores: of all nodes.
    """

    def __init__(self) -> None:
        super().__init__()
        alive = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        self._nodes = [node for node in alive if node.get("CPU", 0)]
        self.memory = max((int(node.get("memory", 0)) for node in self._nodes), default=0)
        self.cores = sum(int(node["CPU"]) for node in self._nodes)

    def run(self, propagations: Sequence[Propagation], bytes_per_block: int) -> None:
        """Compute the pending blocks; those of PN-SI stay, since they depend on each other at every step.

        Args:
            propagations: over one graph.
            bytes_per_block: memory that a block takes.
        """
        # The cores of a node are shared by the blocks that fit into its memory.
        rooms = [(node["CPU"], node.get("memory", 0) // bytes_per_block) for node in self._nodes]
        threads = max(1, min((int(cores // room) for cores, room in rooms if room), default=1))
        independent = [propagation for propagation in propagations if propagation.norm != "PN-SI"]
        tasks = [(propagation, number) for propagation in independent for number in propagation.pending()]
        reported: set[tuple[Propagation, str]] = set()

        def arguments(task: Block) -> Sequence[Any]:
            propagation, number = task
            # A new graph has no mapped arrays, which would travel with the task.
            graph = PackedGraph(propagation.graph.folder.resolve(), propagation.graph.facts)
            return replace(propagation, graph=graph, on_progress=ignore_progress), number, threads

        def handle(task: Block, event: BlockEvent) -> None:
            propagation, number = task
            if isinstance(event, str):
                if (propagation, event) in reported:  # by a worker that died
                    return
                reported.add((propagation, event))
            propagation.handle(number, event)

        self.run_tasks(
            _propagate_block, tasks, self.cores, arguments, handle, num_cpus=threads, memory=bytes_per_block
        )


def _propagate_block(
    version: str, propagation: Propagation, number: int, threads: int
) -> Iterator[BlockEvent]:
    """Compute a block on a worker and yield its events."""
    check_version(version)
    torch.set_num_threads(threads)
    folder, facts = propagation.graph.folder, propagation.graph.facts
    if not folder.exists() or PackedGraph.open(folder).facts != facts:
        problem = f"a node of the Ray cluster does not have the packed graph {folder}"
        hint = "Copy the folder to the same path on every node, or use a folder that all nodes share."
        raise PairNormError(problem, code="file-missing", value=str(folder), hint=hint)
    yield from propagation.compute_block(number)


def label_propagation(
    ops: BlockOps, labels: NDArray[Any], alpha: float, rounds: int, width: int, out: Path
) -> Array:
    r"""Propagate labels by $F \leftarrow \alpha S F + (1 - \alpha) Y$; F is mapped from a file, [n, classes].

    Args:
        ops: the arithmetic over the graph.
        labels: int [n], the known labels, -1 elsewhere.
        alpha: weight of the neighbors.
        rounds: number of iterations.
        width: classes propagated at a time.
        out: the file.
    """
    classes = len(ops.graph.facts.classes)
    result = _new_file(out, ops.graph.facts.nodes, classes)
    for block in blocks(classes, width):
        state, other = (ops.empty(len(block)) for _ in range(2))
        labeled = np.flatnonzero((labels >= block.start) & (labels < block.stop))
        column = labels[labeled] - block.start
        state.zero_()
        ops.add(state, labeled, column, 1.0)
        for _ in range(rounds):
            ops.propagate(state, other, symmetric=True)
            other.mul_(alpha)
            ops.add(other, labeled, column, 1 - alpha)
            state, other = other, state
        for rows in ops.slices(len(block)):
            result[rows, block.start : block.stop] = ops.read(state, rows)
    return result


def _multiply_rows(state: Tensor, factors: Tensor, out: Tensor) -> None:
    """Multiply each row by a factor into ``out``, slice by slice: a state may be mapped from a file."""
    for rows in slices(len(state)):
        torch.mul(state[rows], factors[rows, None], out=out[rows])


def _new_file(path: Path, *shape: int) -> Array:
    """Return an array mapped from a new file, allocated first: a full disk would crash the process."""
    with open(path, "wb") as file:
        file.truncate(4 * math.prod(shape))
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, 4 * math.prod(shape))
    return np.memmap(path, "<f4", "r+", shape=shape)


def _divided(state: Array, width: int) -> Array:
    """Return the first ``width`` columns of a state, divided by the mass in the next column, if any."""
    if state.shape[1] == width:
        return state
    mass = state[:, width:]
    result: Array = np.divide(state[:, :width], np.where(mass > TINY, mass, np.float32(1)), dtype=np.float32)
    return result
