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
    """Return y, and the norms and the mean for the backward pass, which gets no norms where they are huge."""
    rows, individually = _stacked(x), mode == "PN-SI"
    nodes, models, features = rows.shape
    y, norm = vec.empty(x.shape), vec.empty(models, nodes if individually else 1)
    mean = torch.empty(models, features, dtype=torch.float64, device="cpu")
    x_rows, result, norms, center = rows.numpy(), y.view(rows.shape).numpy(), norm.numpy(), mean.numpy()
    if x.numel() <= MIN_ELEMENTS_FOR_THREADS:
        is_huge = normalize_in_one_thread(x_rows, scale, eps, result, norms, center)
    else:
        step = _rows_per_block(rows)
        blocks = -(-nodes // step)
        means, squares = np.empty((blocks, models, features)), np.empty((blocks, models))
        square = np.empty(models)

        def measure(row: slice, block: slice) -> None:
            _moments(x_rows[row], step, not individually, means[block], squares[block])

        def write(row: slice, _: slice) -> bool:
            norm_r = norms[:, row] if individually else norms
            return _normalize(x_rows[row], center, square, scale, eps, result[row], norm_r, individually)

        _share(rows, measure)
        _merge(means, squares, nodes, step, center, square)
        is_huge = any(_share(rows, write))
    if is_huge:
        y, norm = in_double(x, (groups, scale, eps, mode)), norm[:, :0] if needs_backward else norm
    return y, (norm, mean)


def backward(saved: Any, inputs: Any, settings: Any, grads: Any, needs_grad: Any) -> tuple[Tensor]:
    """Return dL/dx."""
    (norm, mean), (x,), (_, scale, _, mode) = saved, inputs, settings
    if not norm.numel():
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

    def finish(row: slice, _: slice) -> None:
        states = (grad_out[row], x_rows[row], center, norms)
        _finish_gradient(*states, scale, grad_mean, grad_dot, individually, result[row])

    _share(rows, add)
    grad_mean, grad_dot = sums.sum(0) / nodes, dots.sum(0) / nodes
    _share(rows, finish)
    return (gradient,)


def _stacked(x: Tensor) -> Tensor:
    """Return ``x`` as a contiguous view ``[nodes, models, features]``, detached."""
    return x.detach().contiguous().view(x.size(0), -1, x.size(-1))


def _rows_per_block(x: Tensor) -> int:
    return max(1, BLOCK_ELEMENTS // x[0].numel())


def _share(x: Tensor, work: Callable[[slice, slice], Any]) -> list[Any]:
    """Call ``work`` in threads with ranges of rows, and with the ranges of their blocks."""
    step = _rows_per_block(x)

    def run_range(start: int, stop: int) -> Any:
        return work(slice(start, stop), slice(start // step, -(-stop // step)))

    return vec.share_out(len(x), step * BLOCKS_PER_TASK, run_range)


@vec.kernel
def normalize_in_one_thread(x: Any, scale: float, eps: float, y: Any, norm: Any, mean: Any) -> bool:
    """Write PairNorm of ``[nodes, models, features]``, norms and means; return whether a norm is huge."""
    nodes, models, features = x.shape
    step = max(1, BLOCK_ELEMENTS // (models * features))
    blocks, individually = -(-nodes // step), norm.shape[1] == nodes
    means, squares = np.empty((blocks, models, features)), np.empty((blocks, models))
    square = np.empty(models)
    _moments(x, step, not individually, means, squares)
    _merge(means, squares, nodes, step, mean, square)
    return _normalize(x, mean, square, scale, eps, y, norm, individually)


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
def _moments(x: Any, step: int, needs_squares: bool, means: Any, squares: Any) -> None:
    """Write the mean of every block of rows, and if needed the sum of squared distances from it."""
    for block in range(len(means)):
        for model in range(x.shape[1]):
            rows, mean = x[block * step : (block + 1) * step, model], means[block, model : model + 1]
            for start in range(0, rows.shape[1], vec.LANES):
                column = vec.widen(vec.load(rows, 0, start))
                for row in range(1, len(rows)):
                    column = column + vec.widen(vec.load(rows, row, start))
                vec.store(mean, 0, start, column)
            mean /= len(rows)
            square = 0.0
            if needs_squares:
                high, low = two_parts(mean)
                for row in range(len(rows)):
                    square += squared_distance(rows, row, high, low)
            squares[block, model] = square


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
) -> bool:
    """Write s·c/r and r; ``square`` is the mean squared distance. Return whether a norm is huge."""
    largest = ZERO
    for model in range(x.shape[1]):
        rows, result = x[:, model], y[:, model]
        high, low = two_parts(mean[model : model + 1])
        if not individually:
            norm[model, 0] = np.sqrt(square[model] + eps)
        factor = np.float32(scale / norm[model, 0])
        for row in range(len(rows)):
            if individually:
                norm[model, row] = np.sqrt(squared_distance(rows, row, high, low) + np.float32(eps))
                factor = np.float32(scale) / norm[model, row]
                if norm[model, row] > largest:
                    largest = norm[model, row]
            # Centered again, since stored values are slow to load.
            for start in range(0, rows.shape[1], vec.LANES):
                vec.store(result, row, start, centered(rows, row, start, high, low) * factor)
        if norm[model, 0] > largest:
            largest = norm[model, 0]
    return bool(largest >= MAX_NORM)


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
    """Write the sums of dL/dy and dL/dy·c over every block; for PN-SI dL/dc to ``result``, and its sums."""
    by_row = np.empty((2, min(step, len(x))), np.float32)  # since divisions take long
    for block in range(len(sums)):
        part = slice(block * step, (block + 1) * step)
        for model in range(x.shape[1]):
            grads, rows, results = grad[part, model], x[part, model], result[part, model]
            norm_r = norm[model, part] if individually else norm[model]
            high, low = two_parts(mean[model : model + 1])
            dot = 0.0
            for row in range(len(rows)):
                product = centered_dot(grads, rows, row, high, low)
                dot += product
                if individually:
                    by_row[0, row], by_row[1, row] = ONE / norm_r[row], product / norm_r[row]
            dots[block, model] = dot
            for start in range(0, rows.shape[1], vec.LANES):
                column = vec.widen(vec.fill(ZERO))
                upper, lower = vec.load(high, 0, start), vec.load(low, 0, start)
                for row in range(len(rows)):
                    value = vec.load(grads, row, start)
                    if individually:
                        inverse = by_row[0, row]
                        unit = (vec.load(rows, row, start) - upper - lower) * inverse
                        value = (value - unit * by_row[1, row]) * (np.float32(scale) * inverse)
                        vec.store(results, row, start, value)
                    column = column + vec.widen(value)
                vec.store(sums[block, model : model + 1], 0, start, column)


@vec.kernel
def _finish_gradient(
    grad: Any, x: Any, mean: Any, norm: Any, scale: float, grad_mean: Any, mean_dots: Any, individually: bool,
    result: Any,
) -> None:  # fmt: skip
    """Write dL/dx: center dL/dc, which ``result`` holds where rows are scaled individually."""
    for model in range(x.shape[1]):
        grads, rows, results = grad[:, model], x[:, model], result[:, model]
        high, low = two_parts(mean[model : model + 1])
        shift, norm_r = grad_mean[model : model + 1].astype(np.float32), norm[model, 0]
        factor, inverse = np.float32(scale / norm_r), np.float32(1 / norm_r)
        grad_dot = np.float32(mean_dots[model] / norm_r)
        for start in range(0, rows.shape[1], vec.LANES):
            offset = vec.load(shift, 0, start)
            upper, lower = vec.load(high, 0, start), vec.load(low, 0, start)
            for row in range(len(rows)):
                if individually:
                    value = vec.load(results, row, start) - offset
                else:
                    unit = (vec.load(rows, row, start) - upper - lower) * inverse
                    value = (vec.load(grads, row, start) - offset - unit * grad_dot) * factor
                vec.store(results, row, start, value)
