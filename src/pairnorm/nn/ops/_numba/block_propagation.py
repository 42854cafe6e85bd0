"""A propagation step over a block of columns on a CPU, and its centering: threads share the rows."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pairnorm.nn.ops._numba import vectors as vec

DTYPES = (torch.float32,)
ROWS_PER_TASK = 2**16
NO_VALUES = np.empty(0, np.float32)


def propagate(
    crow: Tensor, column: Tensor, weight: Tensor | None, roots: Tensor | None, x: Tensor, y: Tensor
) -> None:
    """Write D̃⁻¹ Ã x, or with ``roots`` D̃^(-1/2) Ã D̃^(-1/2) x, to ``y``.

    Args:
        crow: int64 [n + 1].
        column: int32 [entries].
        weight: float32 [entries]; None for ones.
        roots: float32 [n], D̃^(-1/2).
        x: [n, columns], contiguous.
        y: like x.
    """
    values, factors = (NO_VALUES if part is None else part.numpy() for part in (weight, roots))
    arrays = crow.numpy(), column.numpy(), values, factors, x.numpy(), y.numpy()
    vec.share_out(len(x), ROWS_PER_TASK, lambda start, stop: _propagate(*arrays, start, stop))


@vec.kernel
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
        for first_lane in range(0, x.shape[1], vec.LANES):
            total = vec.load(x, row, first_lane) * own
            for entry in range(first, last):
                other = column[entry]
                value = values[entry] if weighted else np.float32(1)
                value *= factors[other] if symmetric else np.float32(1)
                total = total + vec.load(x, other, first_lane) * value
            vec.store(y, row, first_lane, total * factor)


def center(x: Tensor) -> float:
    """Subtract the mean of every column in place and return the sum of squares. Sums are in float64.

    The mean is subtracted in two parts: its float32 value, and the rounding error of that.
    """
    rows, size, state = len(x), ROWS_PER_TASK, x.numpy()
    sums, squares = np.zeros((2, -(-rows // size), x.size(1)))
    vec.share_out(rows, size, lambda start, stop: _sum(state, sums[start // size], start, stop))
    mean = sums.sum(0) / rows
    high = mean.astype(np.float32)
    low = (mean - high).astype(np.float32)
    vec.share_out(
        rows, size, lambda start, stop: _center(state, high, low, squares[start // size], start, stop)
    )
    return float(squares.sum(0).sum())


@vec.kernel
def _sum(x: Any, result: Any, start: int, stop: int) -> None:
    for row in range(start, stop):
        for position in range(x.shape[1]):
            result[position] += x[row, position]


@vec.kernel
def _center(x: Any, high: Any, low: Any, result: Any, start: int, stop: int) -> None:
    for row in range(start, stop):
        for position in range(x.shape[1]):
            value = x[row, position] - high[position] - low[position]
            x[row, position] = value
            result[position] += np.float64(value) * value
