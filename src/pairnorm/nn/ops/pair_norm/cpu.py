"""PairNorm in numba, for tensors that fit the cache; ``large`` serves larger ones."""

from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from pairnorm.nn.ops.jit import kernel
from pairnorm.nn.ops.simd import LANES, empty, fill, load, store, total, widen

HALF, ONE = np.float32(0.5), np.float32(1)
# Of four squares of this size, the sum is still a number.
LARGEST_SQUARE = np.float32(8e37)
# Norms beyond the range of single precision divide in two steps.
FIRST_STEP = np.float32(2.0**-64)


def serves(x: Tensor) -> bool:
    """Say whether this type is served."""
    return x.dtype == torch.float32


def forward(x: Tensor, scale: float, eps: float, individually: bool) -> tuple[Tensor, Tensor]:
    """Return s·c/r and r; see ``_formula`` in ``plain``."""
    rows = stacked(x)
    y = empty(rows.shape)
    norm = empty(rows.size(1), rows.size(0) if individually else 1)
    _forward(rows.numpy(), scale, eps, y.numpy(), norm.numpy())
    return y.view(x.shape), norm.t().reshape(-1, *x.shape[1:-1], 1)


def backward(grad: Tensor, y: Tensor, norm: Tensor, scale: float, individually: bool) -> Tensor:
    """Return dL/dx; see ``formula_gradient`` in ``plain``."""
    rows = stacked(y)
    result = empty(rows.shape)
    norms = norm.detach().reshape(-1, rows.size(1)).t().contiguous().numpy()
    _backward(stacked(grad).numpy(), rows.numpy(), norms, scale, result.numpy())
    return result.view(y.shape)


def stacked(x: Tensor) -> Tensor:
    """View as ``[nodes, trials, features]``."""
    return x.detach().contiguous().view(x.size(0), -1, x.size(-1))


@kernel
def _forward(x: Any, scale: float, eps: float, y: Any, norm: Any) -> None:
    sums = np.empty((1, x.shape[2]), np.float64)
    for trial in range(x.shape[1]):
        column_sums(x[:, trial], sums)
        normalize(x[:, trial], sums, scale, eps, y[:, trial], norm[trial])


@kernel
def _backward(grad: Any, y: Any, norm: Any, scale: float, result: Any) -> None:
    for trial in range(y.shape[1]):
        mean = gradient(grad[:, trial], y[:, trial], norm[trial], scale, result[:, trial])
        for start in range(0, y.shape[2], LANES):
            shift = load(mean, 0, start)
            for row in range(y.shape[0]):
                store(result[:, trial], row, start, load(result[:, trial], row, start) - shift)


@kernel
def column_sums(x: Any, sums: Any) -> None:
    """Add up every column, in float64: a large common offset leaves the small differences alone."""
    for start in range(0, x.shape[1], LANES):
        column = widen(load(x, 0, start))
        for row in range(1, x.shape[0]):
            column = column + widen(load(x, row, start))
        store(sums, 0, start, column)


@kernel
def normalize(x: Any, sums: Any, scale: float, eps: float, y: Any, norm: Any) -> None:
    """Write s·c/r of ``x`` whose columns add up to ``sums``; ``norm`` has one r, or one for every row.

    Half of c is worked with, which is as exact: the difference of two of the largest numbers is none.
    """
    rows = len(x)
    individually = len(norm) == rows
    mean = sums / (2 * rows)
    high = mean.astype(np.float32)
    low = (mean - high).astype(np.float32)
    if individually:
        for row in range(rows):
            norm[row] = centerd_square(x, row, high, low)
        for row in range(rows):
            square = norm[row]
            norm[row] = np.sqrt(np.float32(4) * square + np.float32(eps))
            if square < LARGEST_SQUARE:
                write_centerd(x, row, high, low, np.float32(2 * scale) / norm[row], y)
            else:
                write_centerd(x, row, high, low, ONE, y)
                norm[row] = rescale_wide(y, row, row + 1, scale, eps)
        return
    squares: Any = 0.0
    for row in range(rows):
        squares += centerd_square(x, row, high, low)
    norm[0] = np.sqrt(4 * squares / rows + eps)
    factor = np.float32(2 * scale) / norm[0] if squares < np.inf else ONE
    for row in range(rows):
        write_centerd(x, row, high, low, factor, y)
    if not squares < np.inf:
        norm[0] = rescale_wide(y, 0, rows, scale, eps)


@njit(inline="always")
def half_centerd(x: Any, row: int, start: int, high: Any, low: Any) -> Any:
    """Return half of c; the mean comes in two parts, so that none of its digits is lost."""
    return load(x, row, start) * HALF - load(high, 0, start) - load(low, 0, start)


@njit(inline="always")
def centerd_square(x: Any, row: int, high: Any, low: Any) -> Any:
    """Return the squared norm of half a centerd row."""
    products = fill(np.float32(0))
    for start in range(0, x.shape[1], LANES):
        centerd = half_centerd(x, row, start, high, low)
        products = products + centerd * centerd
    return total(products)


@njit(inline="always")
def write_centerd(x: Any, row: int, high: Any, low: Any, factor: Any, y: Any) -> None:
    """Write half a centerd row times a number: centerd again, for what was just stored is slow to load."""
    for start in range(0, x.shape[1], LANES):
        store(y, row, start, half_centerd(x, row, start, high, low) * factor)


@kernel
def rescale_wide(y: Any, first: int, last: int, scale: float, eps: float) -> Any:
    """Divide rows by their common norm, which is returned, where squares leave single precision."""
    squares: Any = 0.0
    for row in range(first, last):
        for start in range(0, y.shape[1], LANES):
            wide = widen(load(y, row, start))
            squares += total(wide * wide)
    root = np.sqrt(4 * squares / (last - first) + eps)
    factor = np.float32(2 * scale / FIRST_STEP / root)
    for row in range(first, last):
        rescale(y, row, FIRST_STEP)
        rescale(y, row, factor)
    return np.float32(root)


@njit(inline="always")
def rescale(x: Any, row: int, factor: Any) -> None:
    """Multiply a row by a number."""
    for start in range(0, x.shape[1], LANES):
        store(x, row, start, load(x, row, start) * factor)


@kernel
def gradient(grad: Any, y: Any, norm: Any, scale: float, result: Any) -> Any:
    """Write dL/dc to ``result``; return its mean over the rows, ``[1, features]``, still to be subtracted."""
    rows, features = y.shape
    individually = len(norm) == rows
    pulls, product = np.empty(len(norm), np.float32), 0.0
    for row in range(rows):
        if individually:
            pulls[row] = dot(grad, y, row) / (norm[row] * np.float32(scale))
        else:
            product += dot(grad, y, row)
    if not individually:
        pulls[0] = product / (norm[0] * scale * rows)
    sums = np.empty((1, features), np.float64)
    for start in range(0, features, LANES):
        column = widen(fill(np.float32(0)))
        for row in range(rows):
            of = row if individually else 0
            value = load(grad, row, start) * (np.float32(scale) / norm[of]) - load(y, row, start) * pulls[of]
            store(result, row, start, value)
            column = column + widen(value)
        store(sums, 0, start, column)
    return (sums / rows).astype(np.float32)


@njit(inline="always")
def dot(a: Any, b: Any, row: int) -> Any:
    """Return the inner product of two matrices' rows."""
    products = fill(np.float32(0))
    for start in range(0, a.shape[1], LANES):
        products = products + load(a, row, start) * load(b, row, start)
    return total(products)
