"""PairNorm in numba, for tensors that fit the cache; ``pairnorm.nn.blocks`` serves larger ones."""

from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from pairnorm.nn.cpu.arrays import empty
from pairnorm.nn.cpu.simd import LANES, fill, load, store, total, widen

DTYPES = (torch.float32,)


def forward(x: Tensor, scale: float, eps: float, individually: bool) -> tuple[Tensor, Tensor]:
    """Return s·c/r and r; see ``pairnorm.nn.pair_norm._formula``."""
    stacked = _stacked(x)
    y = empty(stacked.shape)
    length = empty(stacked.size(1), stacked.size(0) if individually else 1)
    _forward(stacked.numpy(), scale, eps, y.numpy(), length.numpy())
    return y.view(x.shape), length.t().reshape(-1, *x.shape[1:-1], 1)


def backward(grad: Tensor, y: Tensor, length: Tensor, scale: float, individually: bool) -> Tensor:
    """Return dL/dx; see ``pairnorm.nn.pair_norm.formula_gradient``."""
    stacked = _stacked(y)
    result = empty(stacked.shape)
    lengths = length.detach().reshape(-1, stacked.size(1)).t().contiguous().numpy()
    _backward(_stacked(grad).numpy(), stacked.numpy(), lengths, scale, result.numpy())
    return result.view(y.shape)


def _stacked(x: Tensor) -> Tensor:
    """View as ``[nodes, trials, features]``."""
    return x.detach().contiguous().view(x.size(0), -1, x.size(-1))


@njit(cache=True, nogil=True, error_model="numpy")
def _forward(x: Any, scale: float, eps: float, y: Any, length: Any) -> None:
    sums = np.empty((1, x.shape[2]), np.float64)
    for trial in range(x.shape[1]):
        column_sums(x[:, trial], sums)
        normalise(x[:, trial], sums, scale, eps, y[:, trial], length[trial])


@njit(cache=True, nogil=True, error_model="numpy")
def _backward(grad: Any, y: Any, length: Any, scale: float, result: Any) -> None:
    for trial in range(y.shape[1]):
        mean = slope(grad[:, trial], y[:, trial], length[trial], scale, result[:, trial])
        for start in range(0, y.shape[2], LANES):
            shift = load(mean, 0, start)
            for row in range(y.shape[0]):
                store(result[:, trial], row, start, load(result[:, trial], row, start) - shift)


@njit(cache=True, nogil=True, error_model="numpy")
def column_sums(x: Any, sums: Any) -> None:
    """Add up every column, in float64: a large common offset leaves the small differences alone."""
    for start in range(0, x.shape[1], LANES):
        column = widen(load(x, 0, start))
        for row in range(1, x.shape[0]):
            column = column + widen(load(x, row, start))
        store(sums, 0, start, column)


@njit(cache=True, nogil=True, error_model="numpy")
def normalise(x: Any, sums: Any, scale: float, eps: float, y: Any, length: Any) -> None:
    """Write s·c/r of ``x`` whose columns add up to ``sums``; ``length`` has one r, or one for every row."""
    rows, features = x.shape
    individually = len(length) == rows
    mean = sums / rows
    high = mean.astype(np.float32)
    low = (mean - high).astype(np.float32)
    squares: Any = 0.0
    for row in range(rows):
        products = fill(np.float32(0))
        for start in range(0, features, LANES):
            centred = load(x, row, start) - load(high, 0, start) - load(low, 0, start)
            store(y, row, start, centred)
            products = products + centred * centred
        square = total(products)
        if individually:
            length[row] = np.sqrt(square + np.float32(eps))
            rescale(y, row, np.float32(scale) / length[row])
        squares += square
    if not individually:
        length[0] = np.sqrt(squares / rows + eps)
        for row in range(rows):
            rescale(y, row, np.float32(scale) / length[0])


@njit(inline="always")
def rescale(x: Any, row: int, factor: Any) -> None:
    """Multiply a row by a number."""
    for start in range(0, x.shape[1], LANES):
        store(x, row, start, load(x, row, start) * factor)


@njit(cache=True, nogil=True, error_model="numpy")
def slope(grad: Any, y: Any, length: Any, scale: float, result: Any) -> Any:
    """Write dL/dc to ``result``; return its mean over the rows, ``[1, features]``, still to be subtracted."""
    rows, features = y.shape
    individually = len(length) == rows
    pull = np.float32(0)
    if not individually:
        product = 0.0
        for row in range(rows):
            product += dot(grad, y, row)
        pull = np.float32(product / (length[0] * scale * rows))
    for row in range(rows):
        root = length[row if individually else 0]
        if individually:
            pull = dot(grad, y, row) / (root * np.float32(scale))
        factor = np.float32(scale) / root
        for start in range(0, features, LANES):
            value = load(grad, row, start) * factor - load(y, row, start) * pull
            store(result, row, start, value)
    sums = np.empty((1, features), np.float64)
    column_sums(result, sums)
    return (sums / rows).astype(np.float32)


@njit(inline="always")
def dot(a: Any, b: Any, row: int) -> Any:
    """Return the inner product of two matrices' rows."""
    products = fill(np.float32(0))
    for start in range(0, a.shape[1], LANES):
        products = products + load(a, row, start) * load(b, row, start)
    return total(products)
