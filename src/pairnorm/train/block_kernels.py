"""The arithmetic of a propagation on a CPU, in numba: threads share the rows of mapped arrays."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pairnorm.data.packed import PackedGraph
from pairnorm.nn.ops._numba.vectors import LANES, kernel, load, share_out, store
from pairnorm.train.block_ops import Array, BlockOps, Index, slices

ROWS_PER_TASK = 2**16
NO_VALUES = np.empty(0, np.float32)


class _CpuOps(BlockOps):
    """States are float32 arrays."""

    def __init__(self, graph: PackedGraph) -> None:
        self.graph, self.threads = graph, torch.get_num_threads()

    @cached_property
    def _roots(self) -> Array:
        return degree_roots(self.graph.crow, self.graph.weight)

    def empty(self, width: int, exact: bool = False) -> Array:
        return np.empty((self.graph.facts.nodes, width), np.float32)

    def empty_like(self, state: Array) -> Array:
        return np.empty_like(state)

    def write(self, state: Array, rows: slice, values: Array, weight: Array | None = None) -> None:
        width = values.shape[1] if weight is None else weight.shape[1]
        state[rows, :width] = values if weight is None else values @ weight

    def read(self, state: Array, rows: Index) -> Array:
        return state[rows]

    def propagate(self, source: Array, result: Array, symmetric: bool = False) -> None:
        graph = self.graph
        propagate(graph.crow, graph.column, graph.weight, source, result, self._roots if symmetric else None)

    def center(self, state: Array) -> float:
        nodes = len(state)
        return float(center(state, column_sums(state) / nodes).sum()) / nodes

    def multiply(self, state: Array, factor: float) -> None:
        np.multiply(state, np.float32(factor), out=state)

    def add(self, state: Array, rows: NDArray[Any], columns: NDArray[Any], value: float) -> None:
        state[rows, columns] += np.float32(value)

    def write_known(self, state: Array) -> None:
        state[:, -1] = self.graph.missing != 2

    def copy_known(self, source: Array, result: Array) -> None:
        for rows in slices(len(source)):
            known = self.graph.missing[rows] != 2
            result[rows][known] = source[rows][known]


def cpu_ops(graph: PackedGraph) -> BlockOps:
    """Return the arithmetic of a CPU over a packed graph."""
    return _CpuOps(graph)


def propagate(
    crow: NDArray[np.int64],
    column: NDArray[np.int32],
    weight: Array | None,
    x: Array,
    y: Array,
    roots: Array | None = None,
) -> None:
    """Write D̃⁻¹ Ã x, or with ``roots`` D̃^(-1/2) Ã D̃^(-1/2) x, to ``y``.

    Args:
        crow: [n + 1].
        column: [entries].
        weight: [entries]; None for ones.
        x: [n, columns].
        y: [n, columns].
        roots: [n], D̃^(-1/2).
    """
    values, factors = NO_VALUES if weight is None else weight, NO_VALUES if roots is None else roots
    arrays = crow, column, values, factors, x, y
    share_out(len(x), ROWS_PER_TASK, lambda start, stop: _propagate(*arrays, start, stop))


def degree_roots(crow: NDArray[np.int64], weight: Array | None) -> Array:
    """Return D̃^(-1/2) [n], with self-loops."""
    result, values = np.empty(len(crow) - 1, np.float32), NO_VALUES if weight is None else weight
    share_out(len(result), ROWS_PER_TASK, lambda start, stop: _roots(crow, values, result, start, stop))
    return result


@kernel
def _roots(crow: Any, values: Any, result: Any, start: int, stop: int) -> None:
    for row in range(start, stop):
        degree = np.float64(crow[row + 1] - crow[row])
        if len(values):
            degree = np.float64(0)
            for entry in range(crow[row], crow[row + 1]):
                degree += values[entry]
        result[row] = 1.0 / np.sqrt(degree + 1.0)


@kernel
def _propagate(
    crow: Any, column: Any, values: Any, factors: Any, x: Any, y: Any, start: int, stop: int
) -> None:
    weighted, symmetric = len(values) > 0, len(factors) > 0
    for row in range(start, stop):
        first, last = np.uint64(crow[row]), np.uint64(crow[row + 1])
        own = factors[row] if symmetric else np.float32(1)
        degree = np.float32(last - first + 1)
        if weighted:
            degree = np.float32(1)
            for entry in range(first, last):
                degree += values[entry]
        factor = own if symmetric else np.float32(1) / degree
        for first_lane in range(0, x.shape[1], LANES):
            total = load(x, row, first_lane) * own
            for entry in range(first, last):
                other = column[entry]
                value = values[entry] if weighted else np.float32(1)
                value *= factors[other] if symmetric else np.float32(1)
                total = total + load(x, other, first_lane) * value
            store(y, row, first_lane, total * factor)


def column_sums(x: Array) -> NDArray[np.float64]:
    """Return the sum of every column, in float64."""
    starts = range(0, len(x), ROWS_PER_TASK)
    parts = np.zeros((len(starts), x.shape[1]))
    share_out(len(x), ROWS_PER_TASK, lambda start, stop: _sums(x, parts[start // ROWS_PER_TASK], start, stop))
    total: NDArray[np.float64] = parts.sum(0)
    return total


@kernel
def _sums(x: Any, result: Any, start: int, stop: int) -> None:
    for row in range(start, stop):
        for position in range(x.shape[1]):
            result[position] += x[row, position]


def center(x: Array, mean: NDArray[np.float64]) -> NDArray[np.float64]:
    """Subtract a mean from every row in place and return the sum of squares of every column, in float64.

    The mean is subtracted in two parts: its float32 value, and the rounding error of that.
    """
    high = mean.astype(np.float32)
    low = (mean - high).astype(np.float32)
    parts = np.zeros((-(-len(x) // ROWS_PER_TASK), x.shape[1]))
    share_out(
        len(x),
        ROWS_PER_TASK,
        lambda start, stop: _center(x, high, low, parts[start // ROWS_PER_TASK], start, stop),
    )
    total: NDArray[np.float64] = parts.sum(0)
    return total


@kernel
def _center(x: Any, high: Any, low: Any, result: Any, start: int, stop: int) -> None:
    for row in range(start, stop):
        for position in range(x.shape[1]):
            value = x[row, position] - high[position] - low[position]
            x[row, position] = value
            result[position] += np.float64(value) * value


def row_squares(x: Array, result: NDArray[np.float64]) -> None:
    """Add the squared norm of every row to ``result``."""
    share_out(len(x), ROWS_PER_TASK, lambda start, stop: _row_squares(x, result, start, stop))


@kernel
def _row_squares(x: Any, result: Any, start: int, stop: int) -> None:
    for row in range(start, stop):
        total = 0.0
        for position in range(x.shape[1]):
            total += np.float64(x[row, position]) * x[row, position]
        result[row] += total
