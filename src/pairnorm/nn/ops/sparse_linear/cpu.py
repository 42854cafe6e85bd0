"""The product of sparse features with weights in numba, over the entries alone that dropout left."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pairnorm.nn.ops.jit import kernel
from pairnorm.nn.ops.pattern import Pattern
from pairnorm.nn.ops.simd import LANES, array, by_trial, empty, load, store, zeros
from pairnorm.nn.ops.sparse_product.cpu import gather

Selection = tuple[Any, Any, Any]


def serves(weight: Tensor) -> bool:
    """Say whether this type is served."""
    return weight.dtype == torch.float32


def select(pattern: Pattern, values: Tensor) -> Selection:
    """Return crow, columns and values, ``[trials, ...]``, of the entries whose values are not zero."""
    trials, entries = values.shape
    crow = np.empty((trials, pattern.shape[0] + 1), np.int32)
    # Room for all; pages that nothing is written to cost nothing.
    columns, left = np.empty((trials, entries), np.int32), np.empty((trials, entries), np.float32)
    _select(pattern.crow.numpy(), pattern.column.numpy(), values.numpy(), crow, columns, left)
    return crow, columns, left


def forward(pattern: Pattern, left: Selection, weight: Tensor) -> Tensor:
    """Return ``[nodes, trials, out]`` for weights ``[trials, in, out]``."""
    result = empty(len(weight), pattern.shape[0], weight.size(2))
    _forward(*left, array(weight), result.numpy())
    return result.transpose(0, 1)


def backward(pattern: Pattern, left: Selection, grad: Tensor) -> Tensor:
    """Return the gradient of the weights."""
    result = zeros(grad.size(1), pattern.shape[1], grad.size(2))
    _backward(*left, by_trial(grad).numpy(), result.numpy())
    return result


@kernel
def _select(crow: Any, column: Any, values: Any, new_crow: Any, columns: Any, left: Any) -> None:
    for trial in range(values.shape[0]):
        count = 0
        new_crow[trial, 0] = 0
        for row in range(len(crow) - 1):
            for entry in range(crow[row], crow[row + 1]):
                value = values[trial, entry]
                columns[trial, count], left[trial, count] = column[entry], value
                count += value != 0  # written in any case: a branch would be mispredicted half the time
            new_crow[trial, row + 1] = count


@kernel
def _forward(crow: Any, columns: Any, values: Any, weight: Any, result: Any) -> None:
    zero = np.zeros((1, result.shape[2]), np.float32)
    for trial in range(len(result)):
        gather(crow[trial], columns[trial], values[trial], weight[trial], zero, 0, result[trial])


@kernel
def _backward(crow: Any, columns: Any, values: Any, grad: Any, result: Any) -> None:
    for trial in range(len(result)):
        own = result[trial]
        for start in range(0, result.shape[2], LANES):
            for row in range(grad.shape[1]):
                gradient = load(grad[trial], row, start)
                for entry in range(crow[trial, row], crow[trial, row + 1]):
                    column = columns[trial, entry]
                    store(own, column, start, load(own, column, start) + gradient * values[trial, entry])
