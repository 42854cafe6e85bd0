"""PairNorm in numba for tensors larger than a CPU's cache: threads share out the rows.

``forward`` reads the input twice and writes once; ``backward`` reads gradient and output twice, writes once.
Sums are of blocks of rows that fit a core's own cache, and are merged in order: results do not depend on the
number of threads.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from pairnorm.nn.ops.jit import kernel
from pairnorm.nn.ops.pair_norm import blocks
from pairnorm.nn.ops.pair_norm.cpu import column_sums, dot, stacked
from pairnorm.nn.ops.simd import LANES, empty, fill, load, store, total
from pairnorm.nn.ops.threads import share_out

BLOCK_ELEMENTS = 2**16
BLOCKS_PER_TASK = 16


def serves(x: Tensor) -> bool:
    """Say whether this type and size is served."""
    return blocks.serves(x)


def forward(x: Tensor, scale: float, eps: float, individually: bool) -> tuple[Tensor, Tensor]:
    """Return s·c/r and r; see ``_formula`` in ``plain``."""
    rows = stacked(x)
    nodes, trials, features = rows.shape
    given, step = rows.numpy(), _rows_per_block(rows)
    count = np.minimum(step, nodes - np.arange(0, nodes, step))[:, None, None]
    means, squares = np.empty((len(count), trials, features)), np.zeros((len(count), trials))
    _share(rows, lambda row, block: _moments(given[row], step, means[block], squares[block]))
    mean = (count * means).sum(0) / nodes
    square = (squares.sum(0) + (count * (means - mean) ** 2).sum((0, 2))) / nodes
    if not np.isfinite(square).all():
        # Squares beyond the range of single precision, or what is no number from the start.
        return blocks.forward(x, scale, eps, individually)
    high = mean.astype(np.float32)
    low = (mean - high).astype(np.float32)
    y, norm = empty(rows.shape), empty(nodes if individually else 1, trials)
    result, divisors = y.numpy(), norm.numpy()
    divisors[:1] = np.sqrt(square + eps)
    if individually:
        _share(
            rows, lambda row, _: _scale_rows(given[row], high, low, scale, eps, result[row], divisors[row])
        )
    else:
        factor = np.float32(scale) / divisors[0]
        _share(rows, lambda row, _: _scale(given[row], high, low, factor, result[row]))
    return y.view(x.shape), norm.reshape(-1, *x.shape[1:-1], 1)


def backward(grad: Tensor, y: Tensor, norm: Tensor, scale: float, individually: bool) -> Tensor:
    """Return dL/dx; see ``formula_gradient`` in ``plain``."""
    rows, slopes = stacked(y), stacked(grad).numpy()
    nodes, trials, features = rows.shape
    given, step, gradient = rows.numpy(), _rows_per_block(rows), empty(rows.shape)
    result, divisors = gradient.numpy(), norm.detach().reshape(-1, trials).contiguous().numpy()
    number = -(-nodes // step)
    sums, products = np.empty((number, trials, features)), np.zeros((number, trials))
    if individually:

        def first(row: slice, block: slice) -> None:
            _row_gradients(slopes[row], given[row], divisors[row], scale, step, result[row], sums[block])

        _share(rows, first)
        mean = (sums.sum(0) / nodes).astype(np.float32)
        _share(rows, lambda row, _: _subtract(result[row], mean))
    else:
        _share(rows, lambda row, block: _sums(slopes[row], given[row], step, sums[block], products[block]))
        factor = np.float32(scale) / divisors[0]
        shift = (sums.sum(0) / -nodes).astype(np.float32) * factor[:, None]
        pull = (products.sum(0) / (-scale * nodes) / divisors[0]).astype(np.float32)
        _share(rows, lambda row, _: _combine(slopes[row], given[row], factor, shift, pull, result[row]))
    return gradient.view(y.shape)


def _rows_per_block(x: Tensor) -> int:
    return max(1, BLOCK_ELEMENTS // x[0].numel())


def _share(x: Tensor, work: Callable[[slice, slice], Any]) -> None:
    """Call ``work`` with rows, and the blocks they are."""
    step = _rows_per_block(x)

    def some(start: int, stop: int) -> None:
        work(slice(start, stop), slice(start // step, -(-stop // step)))

    share_out(len(x), step * BLOCKS_PER_TASK, some)


@kernel
def _moments(x: Any, step: int, means: Any, squares: Any) -> None:
    """Write the mean of every block of rows, and add the squares about it."""
    for block in range(len(means)):
        part = x[block * step : (block + 1) * step]
        for trial in range(x.shape[1]):
            rows, mean = part[:, trial], means[block, trial : trial + 1]
            column_sums(rows, mean)
            mean /= len(rows)
            high = mean.astype(np.float32)
            low = (mean - high).astype(np.float32)
            for row in range(len(rows)):
                products = fill(np.float32(0))
                for start in range(0, x.shape[2], LANES):
                    centerd = load(rows, row, start) - load(high, 0, start) - load(low, 0, start)
                    products = products + centerd * centerd
                squares[block, trial] += total(products)


@kernel
def _scale(x: Any, high: Any, low: Any, factor: Any, y: Any) -> None:
    for trial in range(x.shape[1]):
        rows, result = x[:, trial], y[:, trial]
        for row in range(len(rows)):
            for start in range(0, x.shape[2], LANES):
                centerd = load(rows, row, start) - load(high, trial, start) - load(low, trial, start)
                store(result, row, start, centerd * factor[trial])


@kernel
def _scale_rows(x: Any, high: Any, low: Any, scale: float, eps: float, y: Any, norm: Any) -> None:
    for trial in range(x.shape[1]):
        rows, result = x[:, trial], y[:, trial]
        for row in range(len(rows)):
            products = fill(np.float32(0))
            for start in range(0, x.shape[2], LANES):
                centerd = load(rows, row, start) - load(high, trial, start) - load(low, trial, start)
                store(result, row, start, centerd)
                products = products + centerd * centerd
            norm[row, trial] = np.sqrt(total(products) + np.float32(eps))
            factor = np.float32(scale) / norm[row, trial]
            for start in range(0, x.shape[2], LANES):
                store(result, row, start, load(result, row, start) * factor)


@kernel
def _sums(grad: Any, y: Any, step: int, sums: Any, products: Any) -> None:
    """Write the sums of every block of the gradient, and add its products with ``y``."""
    for block in range(len(sums)):
        part = slice(block * step, (block + 1) * step)
        for trial in range(y.shape[1]):
            slopes, rows = grad[part][:, trial], y[part][:, trial]
            column_sums(slopes, sums[block, trial : trial + 1])
            for row in range(len(rows)):
                products[block, trial] += dot(slopes, rows, row)


@kernel
def _combine(grad: Any, y: Any, factor: Any, shift: Any, pull: Any, result: Any) -> None:
    for trial in range(y.shape[1]):
        slopes, rows, own = grad[:, trial], y[:, trial], result[:, trial]
        for row in range(len(rows)):
            for start in range(0, y.shape[2], LANES):
                value = load(slopes, row, start) * factor[trial] + load(shift, trial, start)
                store(own, row, start, value + load(rows, row, start) * pull[trial])


@kernel
def _row_gradients(grad: Any, y: Any, norm: Any, scale: float, step: int, result: Any, sums: Any) -> None:
    """Write the gradient of what was centerd, and the sums of every block of it."""
    for block in range(len(sums)):
        part = slice(block * step, (block + 1) * step)
        for trial in range(y.shape[1]):
            slopes, rows, own = grad[part][:, trial], y[part][:, trial], result[part][:, trial]
            for row in range(len(rows)):
                root = norm[block * step + row, trial]
                pull, factor = dot(slopes, rows, row) / (root * np.float32(scale)), np.float32(scale) / root
                for start in range(0, y.shape[2], LANES):
                    value = load(slopes, row, start) * factor - load(rows, row, start) * pull
                    store(own, row, start, value)
            column_sums(own, sums[block, trial : trial + 1])


@kernel
def _subtract(x: Any, mean: Any) -> None:
    for trial in range(x.shape[1]):
        rows = x[:, trial]
        for row in range(len(rows)):
            for start in range(0, x.shape[2], LANES):
                store(rows, row, start, load(rows, row, start) - load(mean, trial, start))
