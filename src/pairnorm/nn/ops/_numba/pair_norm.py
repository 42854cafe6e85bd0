"""PairNorm in numba: sums of blocks of rows, merged as Chan does, then one pass that writes the result.

``forward`` reads the input twice and writes once; ``backward`` reads gradient and input twice, writes once.
Blocks fit the cache of a core and do not depend on the number of threads, and neither do the results.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from pairnorm.nn.ops._numba import vectors as vec
from pairnorm.nn.ops.pair_norm import MAX_NORM, in_double

DTYPES = (torch.float32,)
BLOCK_ELEMENTS = 2**16
BLOCKS_PER_TASK = 16
MIN_ELEMENTS_FOR_THREADS = 2**20
ZERO, ONE = np.float32(0), np.float32(1)


def forward(
    x: Tensor, groups: Any, scale: float, eps: float, mode: str, needs_backward: bool
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return y, and the norms and the mean for the backward pass."""
    rows, individually = _stacked(x), mode == "PN-SI"
    nodes, models, features = rows.shape
    y, norm = vec.empty(x.shape), vec.empty(models, nodes if individually else 1)
    mean = torch.empty(models, features, dtype=torch.float64, device="cpu")
    x_rows, result, norms, center = rows.numpy(), y.view(rows.shape).numpy(), norm.numpy(), mean.numpy()
    if x.numel() <= MIN_ELEMENTS_FOR_THREADS:
        normalize_in_one_thread(x_rows, scale, eps, result, norms, center)
    else:
        step = _rows_per_block(rows)
        blocks = -(-nodes // step)
        means, squares = np.empty((blocks, models, features)), np.empty((blocks, models))
        square = np.empty(models)

        def add(row: slice, block: slice) -> None:
            _block_moments(x_rows[row], step, not individually, means[block], squares[block])

        _share(rows, add)
        _merge(means, squares, nodes, step, center, square)

        def write(row: slice, _: slice) -> None:
            norm_r = norms[:, row] if individually else norms
            _normalize(x_rows[row], center, square, scale, eps, result[row], norm_r, individually)

        _share(rows, write)
    if has_huge_norm(norms):
        y = in_double(x, (groups, scale, eps, mode))
    return y, (norm, mean)


def backward(saved: Any, inputs: Any, settings: Any, grads: Any, needs_grad: Any) -> tuple[Tensor]:
    """Return dL/dx."""
    (norm, mean), (x,), (_, scale, _, mode) = saved, inputs, settings
    if has_huge_norm(norm.numpy()):
        return (in_double(x, settings, grads[0]),)
    rows, grad_out, individually = _stacked(x), _stacked(grads[0]).numpy(), mode == "PN-SI"
    nodes, models, features = rows.shape
    x_rows, gradient, norms, center = rows.numpy(), vec.empty(x.shape), norm.numpy(), mean.numpy()
    result = gradient.view(rows.shape).numpy()
    if x.numel() <= MIN_ELEMENTS_FOR_THREADS:
        gradient_in_one_thread(grad_out, x_rows, center, norms, scale, result)
        return (gradient,)
    step = _rows_per_block(rows)
    sums, dots = np.empty((-(-nodes // step), models, features)), np.empty((-(-nodes // step), models))

    def add(row: slice, block: slice) -> None:
        norm_r = norms[:, row] if individually else norms
        _gradient_sums(
            grad_out[row], x_rows[row], center, norm_r, scale, step, individually, result[row], sums[block],
            dots[block],
        )  # fmt: skip

    _share(rows, add)
    grad_mean, grad_dot = sums.sum(0) / nodes, dots.sum(0) / nodes
    _share(
        rows,
        lambda row, _: _finish_gradient(
            grad_out[row], x_rows[row], center, norms, scale, grad_mean, grad_dot, individually, result[row]
        ),
    )
    return (gradient,)


def _stacked(x: Tensor) -> Tensor:
    """Return ``x`` as a contiguous view ``[nodes, models, features]``, detached."""
    return x.detach().contiguous().view(x.size(0), -1, x.size(-1))


def _rows_per_block(x: Tensor) -> int:
    return max(1, BLOCK_ELEMENTS // x[0].numel())


def _share(x: Tensor, work: Callable[[slice, slice], Any]) -> None:
    """Call ``work`` in threads with ranges of rows, and with the ranges of their blocks."""
    step = _rows_per_block(x)

    def run_range(start: int, stop: int) -> None:
        work(slice(start, stop), slice(start // step, -(-stop // step)))

    vec.share_out(len(x), step * BLOCKS_PER_TASK, run_range)


@vec.kernel
def has_huge_norm(norms: Any) -> bool:
    """Return whether a norm of ``[models, rows]`` is near the end of float32; NaN is not."""
    for model in range(len(norms)):
        for norm in norms[model]:
            if norm >= MAX_NORM:
                return True
    return False


@vec.kernel
def normalize_in_one_thread(x: Any, scale: float, eps: float, y: Any, norm: Any, mean: Any) -> None:
    """Normalize ``x`` ``[nodes, models, features]`` in one thread.

    Writes the means ``[models, features]`` and the norms ``[models, 1]``, or ``[models, nodes]`` to scale
    every row individually.
    """
    nodes, models, features = x.shape
    step = max(1, BLOCK_ELEMENTS // (models * features))
    blocks, individually = -(-nodes // step), norm.shape[1] == nodes
    means, squares = np.empty((blocks, models, features)), np.empty((blocks, models))
    square = np.empty(models)
    _block_moments(x, step, not individually, means, squares)
    _merge(means, squares, nodes, step, mean, square)
    _normalize(x, mean, square, scale, eps, y, norm, individually)


@vec.kernel
def gradient_in_one_thread(grad: Any, x: Any, mean: Any, norm: Any, scale: float, result: Any) -> None:
    """Write dL/dx of ``[nodes, models, features]`` in one thread."""
    nodes, models, features = x.shape
    step = max(1, BLOCK_ELEMENTS // (models * features))
    blocks, individually = -(-nodes // step), norm.shape[1] == nodes
    sums, dots = np.empty((blocks, models, features)), np.empty((blocks, models))
    _gradient_sums(grad, x, mean, norm, scale, step, individually, result, sums, dots)
    sums, dots = sums.sum(0) / nodes, dots.sum(0) / nodes
    _finish_gradient(grad, x, mean, norm, scale, sums, dots, individually, result)


@vec.kernel
def _block_moments(x: Any, step: int, needs_squares: bool, means: Any, squares: Any) -> None:
    for block in range(len(means)):
        part = x[block * step : (block + 1) * step]
        for model in range(x.shape[1]):
            squares[block, model] = moments(part[:, model], needs_squares, means[block, model : model + 1])


@vec.kernel
def _merge(means: Any, squares: Any, nodes: int, step: int, mean: Any, square: Any) -> None:
    """Merge the moments of blocks (Chan et al.): mean, and mean squared distance from it."""
    mean[:] = 0
    square[:] = 0
    for model in range(means.shape[1]):
        for block in range(len(means)):
            count, gain = min(step, nodes - block * step), 0.0
            share = count / (block * step + count)
            for feature in range(means.shape[2]):
                change = means[block, model, feature] - mean[model, feature]
                mean[model, feature] += change * share
                gain += change * change
            square[model] += squares[block, model] + gain * (block * step) * share
        square[model] /= nodes


@vec.kernel
def _normalize(
    x: Any, mean: Any, square: Any, scale: float, eps: float, y: Any, norm: Any, individually: bool
) -> None:
    for model in range(x.shape[1]):
        normalize(
            x[:, model], mean[model : model + 1], square[model], scale, eps, y[:, model], norm[model],
            individually,
        )  # fmt: skip


@vec.kernel
def moments(x: Any, needs_squares: bool, mean: Any) -> float:
    """Write the mean of the rows, in float64; return the sum of squared distances from it, if needed."""
    for start in range(0, x.shape[1], vec.LANES):
        column = vec.widen(vec.load(x, 0, start))
        for row in range(1, len(x)):
            column = column + vec.widen(vec.load(x, row, start))
        vec.store(mean, 0, start, column)
    mean /= len(x)
    square = 0.0
    if not needs_squares:
        return square
    high, low = two_parts(mean)
    for row in range(len(x)):
        square += squared_distance(x, row, high, low)
    return square


@vec.kernel
def normalize(
    x: Any, mean: Any, square: float, scale: float, eps: float, y: Any, norm: Any, individually: bool
) -> None:
    """Write s·c/r; ``square`` is the mean squared distance of all rows from ``mean`` ``[1, features]``."""
    high, low = two_parts(mean)
    if not individually:
        norm[0] = np.sqrt(square + eps)
        factor = np.float32(scale / norm[0])
        for row in range(len(x)):
            write_scaled(x, row, high, low, factor, y)
        return
    for row in range(len(x)):
        norm[row] = np.sqrt(squared_distance(x, row, high, low) + np.float32(eps))
        write_scaled(x, row, high, low, np.float32(scale) / norm[row], y)


@njit(inline="always")
def write_scaled(x: Any, row: Any, high: Any, low: Any, factor: Any, y: Any) -> None:
    """Write a centered row times a factor; it is centered again, since stored values are slow to load."""
    for start in range(0, x.shape[1], vec.LANES):
        vec.store(y, row, start, centered(x, row, start, high, low) * factor)


@njit(inline="always")
def two_parts(mean: Any) -> Any:
    """Return a float64 mean as two float32 numbers, so that none of its digits is lost."""
    high = mean.astype(np.float32)
    return high, (mean - high).astype(np.float32)


@njit(inline="always")
def centered(x: Any, row: Any, start: Any, high: Any, low: Any) -> Any:
    """Return x - mean."""
    return vec.load(x, row, start) - vec.load(high, 0, start) - vec.load(low, 0, start)


@njit(inline="always")
def squared_distance(x: Any, row: Any, high: Any, low: Any) -> Any:
    """Return the squared norm of a centered row."""
    products = vec.fill(ZERO)
    for start in range(0, x.shape[1], vec.LANES):
        value = centered(x, row, start, high, low)
        products = products + value * value
    return vec.total(products)


@njit(inline="always")
def centered_dot(grad: Any, x: Any, row: Any, high: Any, low: Any) -> Any:
    """Return the inner product of a gradient and a centered row."""
    products = vec.fill(ZERO)
    for start in range(0, x.shape[1], vec.LANES):
        products = products + vec.load(grad, row, start) * centered(x, row, start, high, low)
    return np.float64(vec.total(products))


@vec.kernel
def _gradient_sums(
    grad: Any, x: Any, mean: Any, norm: Any, scale: float, step: int, individually: bool, result: Any,
    sums: Any, dots: Any,
) -> None:  # fmt: skip
    high, low = two_parts(mean)
    by_row = np.empty((2, min(step, len(x))), np.float32)
    for block in range(len(sums)):
        part = slice(block * step, (block + 1) * step)
        grads, rows, results = grad[part], x[part], result[part]
        for model in range(x.shape[1]):
            norm_r = norm[model, part] if individually else norm[model]
            dots[block, model] = gradient_sums(
                grads[:, model], rows[:, model], high[model : model + 1], low[model : model + 1],
                norm_r, scale, individually, by_row, results[:, model], sums[block, model : model + 1],
            )  # fmt: skip


@vec.kernel
def gradient_sums(
    grad: Any, x: Any, high: Any, low: Any, norm: Any, scale: float, individually: bool, by_row: Any,
    result: Any, sums: Any,
) -> float:  # fmt: skip
    """Write the sums of dL/dy over the rows, and return the sum of dL/dy·c.

    Where rows are scaled individually, write dL/dc to ``result``, and its sums instead. ``by_row`` is memory
    for two numbers of each row, since divisions take long.
    """
    dot = 0.0
    if individually and x.shape[1] <= vec.LANES:  # a vector holds a row
        column = vec.widen(vec.fill(ZERO))
        upper, lower = vec.load(high, 0, 0), vec.load(low, 0, 0)
        for row in range(len(x)):
            value, unit = vec.load(grad, row, 0), vec.load(x, row, 0) - upper - lower
            inverse = ONE / norm[row]
            # Divided as a number of float64: LLVM may otherwise square the inverse, which underflows.
            pull = np.float32(np.float64(vec.total(value * unit)) / norm[row])
            value = (value - unit * inverse * pull) * (np.float32(scale) * inverse)
            vec.store(result, row, 0, value)
            column = column + vec.widen(value)
        vec.store(sums, 0, 0, column)
        return dot
    for row in range(len(x)):
        product = centered_dot(grad, x, row, high, low)
        dot += product
        if individually:
            by_row[0, row], by_row[1, row] = ONE / norm[row], product / norm[row]
    for start in range(0, x.shape[1], vec.LANES):
        column = vec.widen(vec.fill(ZERO))
        upper, lower = vec.load(high, 0, start), vec.load(low, 0, start)
        for row in range(len(x)):
            value = vec.load(grad, row, start)
            if individually:
                inverse = by_row[0, row]
                unit = (vec.load(x, row, start) - upper - lower) * inverse
                value = (value - unit * by_row[1, row]) * (np.float32(scale) * inverse)
                vec.store(result, row, start, value)
            column = column + vec.widen(value)
        vec.store(sums, 0, start, column)
    return dot


@vec.kernel
def _finish_gradient(
    grad: Any, x: Any, mean: Any, norm: Any, scale: float, sums: Any, dots: Any, individually: bool,
    result: Any,
) -> None:  # fmt: skip
    high, low = two_parts(mean)
    for model in range(x.shape[1]):
        finish_gradient(
            grad[:, model], x[:, model], high[model : model + 1], low[model : model + 1], norm[model, 0],
            scale, sums[model : model + 1], dots[model], individually, result[:, model],
        )  # fmt: skip


@vec.kernel
def finish_gradient(
    grad: Any, x: Any, high: Any, low: Any, norm: Any, scale: float, grad_mean: Any, mean_dot: float,
    individually: bool, result: Any,
) -> None:  # fmt: skip
    """Write dL/dx: center dL/dc, which ``result`` holds where rows are scaled individually."""
    shift = grad_mean.astype(np.float32)
    factor, inverse, grad_dot = np.float32(scale / norm), np.float32(1 / norm), np.float32(mean_dot / norm)
    for start in range(0, x.shape[1], vec.LANES):
        offset = vec.load(shift, 0, start)
        upper, lower = vec.load(high, 0, start), vec.load(low, 0, start)
        for row in range(len(x)):
            if individually:
                value = vec.load(result, row, start) - offset
            else:
                unit = (vec.load(x, row, start) - upper - lower) * inverse
                value = (vec.load(grad, row, start) - offset - unit * grad_dot) * factor
            vec.store(result, row, start, value)
