"""A step over mapped arrays in numba, threads sharing out the rows: what a node gathers lies far apart."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pairnorm.nn.ops._numba.vectors import LANES, kernel, load, share_out, store

ROWS_PER_TASK = 2**16
NONE = np.empty(0, np.float32)

Array = NDArray[np.float32]


def hop(
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
    values, factors = NONE if weight is None else weight, NONE if roots is None else roots
    share_out(
        len(x), ROWS_PER_TASK, lambda start, stop: _hop(crow, column, values, factors, x, y, start, stop)
    )


def degree_roots(crow: NDArray[np.int64], weight: Array | None) -> Array:
    """Return D̃^(-1/2) [n], the self-loop counted."""
    result, values = np.empty(len(crow) - 1, np.float32), NONE if weight is None else weight
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
def _hop(crow: Any, column: Any, values: Any, factors: Any, x: Any, y: Any, start: int, stop: int) -> None:
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
        for place in range(0, x.shape[1], LANES):
            total = load(x, row, place) * own
            for entry in range(first, last):
                other = column[entry]
                value = values[entry] if weighted else np.float32(1)
                value *= factors[other] if symmetric else np.float32(1)
                total = total + load(x, other, place) * value
            store(y, row, place, total * factor)


def column_sums(x: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the sum of every column, in float64."""
    starts = range(0, len(x), ROWS_PER_TASK)
    parts = np.zeros((len(starts), x.shape[1]))
    share_out(len(x), ROWS_PER_TASK, lambda start, stop: _sums(x, parts[start // ROWS_PER_TASK], start, stop))
    total: NDArray[np.float64] = parts.sum(0)
    return total


@kernel
def _sums(x: Any, result: Any, start: int, stop: int) -> None:
    for row in range(start, stop):
        for place in range(x.shape[1]):
            result[place] += x[row, place]


def center(x: NDArray[np.float32], mean: NDArray[np.float64]) -> NDArray[np.float64]:
    """Subtract a mean from every row in place and return the sum of squares of every column, in float64.

    The mean is taken off in two parts, of which the second is what float32 cannot hold of it.
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
        for place in range(x.shape[1]):
            value = x[row, place] - high[place] - low[place]
            x[row, place] = value
            result[place] += np.float64(value) * value


def row_squares(x: NDArray[np.float32], result: NDArray[np.float64]) -> None:
    """Add the squared norm of every row to ``result``."""
    share_out(len(x), ROWS_PER_TASK, lambda start, stop: _row_squares(x, result, start, stop))


@kernel
def _row_squares(x: Any, result: Any, start: int, stop: int) -> None:
    for row in range(start, stop):
        total = 0.0
        for place in range(x.shape[1]):
            total += np.float64(x[row, place]) * x[row, place]
        result[row] += total
