"""Sparse products in numba: every row gathers its columns into a sum that stays in registers.

Where there is much to do, threads share out the rows. ``propagate`` and ``center`` are steps over a block of
columns, for graphs with any number of entries.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pairnorm.nn.ops._numba import vectors as vec
from pairnorm.nn.ops.kernels import Saved
from pairnorm.nn.ops.sparse_product import CODES, Pattern

if TYPE_CHECKING:
    from pairnorm.nn.sparse import SparseMatrix

DTYPES = (torch.float32,)
NUMBERS_PER_TASK = 2**19
ROWS_PER_TASK = 2**16
NO_VALUES = np.empty(0, np.float32)
# With fewer multiplications than this, waking a thread takes longer than the work it would share.
MIN_WORK_FOR_THREADS = 2**22


def forward(
    pattern: Pattern, values: Tensor, dense: Tensor, bias: Tensor | None = None, activation: str = "none"
) -> Tensor:
    """Return the product with ``dense`` ``[columns, ..., features]``, plus bias, activated.

    ``values`` are ``[entries]`` or ``[models, entries]``.
    """
    result = vec.empty(pattern.shape[0], *dense.shape[1:])
    shape = (len(dense), len(values) if values.dim() == 2 else 1, -1)
    offset = vec.zeros(dense[0].shape) if bias is None else bias
    (crow, column), entries = pattern.arrays, vec.array(torch.atleast_2d(values))
    x, added = vec.array(dense).reshape(shape), vec.array(offset).reshape(shape[1:])
    y = result.view(len(result), *shape[1:]).numpy()

    def work(start: int, stop: int) -> None:
        _multiply(crow[start : stop + 1], column, entries, x, added, CODES[activation], y[start:stop])

    rows, width = pattern.shape[0], x[0].size
    large = pattern.num_entries * width > MIN_WORK_FOR_THREADS
    vec.share_out(rows, max(1, NUMBERS_PER_TASK // width) if large else rows, work)
    return result


def activation_backward(grad: Tensor, y: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """Return the gradients of an activation's input and of the bias in it, from its output ``y``."""
    result, sums = vec.empty(y.shape), vec.empty(y.shape[1:])
    states, written = (vec.array(grad.flatten(1)), vec.array(y.flatten(1))), result.flatten(1).numpy()
    activation_gradients(*states, CODES[activation], written, sums.view(1, -1).numpy())
    return result, sums


@vec.kernel
def _multiply(
    crow: Any, column: Any, values: Any, dense: Any, bias: Any, activation: int, result: Any
) -> None:
    for model in range(dense.shape[1]):
        matrix, offset = (crow, column, values[model]), bias[model : model + 1]
        gather(matrix, dense[:, model], offset, activation, result[:, model])


@vec.kernel
def gather(matrix: Any, dense: Any, bias: Any, activation: int, result: Any) -> None:
    """Write activation(matrix @ dense + bias) to ``result``."""
    crow, column, values = matrix
    for start in range(0, result.shape[1], vec.LANES):
        for row in range(result.shape[0]):
            total = vec.load(bias, 0, start)
            for entry in range(np.uint64(crow[row]), np.uint64(crow[row + 1])):
                total = total + vec.load(dense, column[entry], start) * values[entry]
            vec.store(result, row, start, vec.activated(total, activation))


def linear_forward(
    weight: Tensor, x: "SparseMatrix", rate: float, keys: Tensor, needs_backward: bool
) -> tuple[Tensor, Saved]:
    """Return dropout(x)·W, ``[nodes, models, out]``, and the crow, columns and values that dropout keeps."""
    pattern, values = x.pattern, x.drop_entries(rate, keys).values
    models = len(values)
    crow = torch.empty(models, pattern.shape[0] + 1, dtype=torch.int32, device="cpu")
    # Memory for all entries; pages that nothing is written to cost nothing.
    columns, selected = torch.empty_like(values, dtype=torch.int32), torch.empty_like(values)
    entries = crow.numpy(), columns.numpy(), selected.numpy()
    _select(*pattern.arrays, values.numpy(), *entries)
    result, by_models = vec.empty_by_model(models, pattern.shape[0], weight.size(2))
    _linear_forward(*entries, vec.array(weight), by_models.numpy())
    return result, (crow, columns, selected)


def linear_backward(
    saved: Saved, inputs: Saved, settings: Saved, grads: Saved, needs_grad: Saved
) -> tuple[Tensor]:
    """Return the gradient of the weights."""
    result = vec.zeros(inputs[0].shape)
    _linear_backward(*(entry.numpy() for entry in saved), vec.by_model(grads[0]).numpy(), result.numpy())
    return (result,)


@vec.kernel
def _select(crow: Any, column: Any, values: Any, new_crow: Any, columns: Any, selected: Any) -> None:
    for model in range(values.shape[0]):
        count = 0
        new_crow[model, 0] = 0
        for row in range(len(crow) - 1):
            for entry in range(crow[row], crow[row + 1]):
                value = values[model, entry]
                columns[model, count], selected[model, count] = column[entry], value
                count += value != 0  # written in any case: a branch would be mispredicted half the time
            new_crow[model, row + 1] = count


@vec.kernel
def _linear_forward(crow: Any, columns: Any, values: Any, weight: Any, result: Any) -> None:
    zero = np.zeros((1, result.shape[2]), np.float32)
    for model in range(len(result)):
        gather((crow[model], columns[model], values[model]), weight[model], zero, 0, result[model])


@vec.kernel
def _linear_backward(crow: Any, columns: Any, values: Any, grad: Any, result: Any) -> None:
    for model in range(len(result)):
        target = result[model]
        for start in range(0, result.shape[2], vec.LANES):
            for row in range(grad.shape[1]):
                gradient = vec.load(grad[model], row, start)
                for entry in range(crow[model, row], crow[model, row + 1]):
                    column, value = columns[model, entry], values[model, entry]
                    vec.store(target, column, start, vec.load(target, column, start) + gradient * value)


@vec.kernel
def activation_gradients(grad: Any, y: Any, activation: int, result: Any, grad_bias: Any) -> None:
    """Write the gradient of what the bias was added to, and its sum over the nodes."""
    for start in range(0, y.shape[1], vec.LANES):
        total = vec.fill(np.float32(0))
        for row in range(len(y)):
            value = vec.activation_gradient(vec.load(grad, row, start), vec.load(y, row, start), activation)
            vec.store(result, row, start, value)
            total = total + value
        vec.store(grad_bias, 0, start, total)


def propagate(
    crow: Tensor, column: Tensor, weight: Tensor | None, roots: Tensor | None, x: Tensor, y: Tensor
) -> None:
    """Write D̃⁻¹ Ã x, or with ``roots`` D̃^(-1/2) Ã D̃^(-1/2) x, to ``y``; ``x`` is contiguous.

    ``crow`` is int64, ``column`` int32, ``weight`` float32, or None for ones.
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
        row_factor = factors[row] if symmetric else np.float32(1)
        degree = np.float32(last - first + 1)
        if weighted:
            degree = np.float32(1)
            for entry in range(first, last):
                degree += values[entry]
        factor = row_factor if symmetric else np.float32(1) / degree
        for first_lane in range(0, x.shape[1], vec.LANES):
            total = vec.load(x, row, first_lane) * row_factor
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
