"""The product of sparse features with weights in numba, over the entries alone that dropout left."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pairnorm.nn.ops._numba.sparse_product import gather
from pairnorm.nn.ops._numba.vectors import LANES, array, by_model, empty_by_model, load, store, zeros
from pairnorm.nn.ops.jit import kernel
from pairnorm.nn.ops.pattern import Pattern

Selection = tuple[Any, Any, Any]


def supports(weight: Tensor) -> bool:
    """Return whether the kernels take this dtype."""
    return weight.dtype == torch.float32


def select(pattern: Pattern, values: Tensor) -> Selection:
    """Return crow, columns and values, ``[models, ...]``, of the entries whose values are not zero."""
    models, count = values.shape
    crow = np.empty((models, pattern.shape[0] + 1), np.int32)
    # Memory for all entries; pages that nothing is written to cost nothing.
    columns, selected = np.empty((models, count), np.int32), np.empty((models, count), np.float32)
    _select(pattern.crow.numpy(), pattern.column.numpy(), values.numpy(), crow, columns, selected)
    return crow, columns, selected


def forward(pattern: Pattern, entries: Selection, weight: Tensor) -> Tensor:
    """Return ``[nodes, models, out]`` for weights ``[models, in, out]``."""
    result, by_models = empty_by_model(len(weight), pattern.shape[0], weight.size(2))
    _forward(*entries, array(weight), by_models.numpy())
    return result


def backward(pattern: Pattern, entries: Selection, grad: Tensor) -> Tensor:
    """Return the gradient of the weights."""
    result = zeros(grad.size(1), pattern.shape[1], grad.size(2))
    _backward(*entries, by_model(grad).numpy(), result.numpy())
    return result


@kernel
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


@kernel
def _forward(crow: Any, columns: Any, values: Any, weight: Any, result: Any) -> None:
    zero = np.zeros((1, result.shape[2]), np.float32)
    for model in range(len(result)):
        gather(crow[model], columns[model], values[model], weight[model], zero, 0, result[model])


@kernel
def _backward(crow: Any, columns: Any, values: Any, grad: Any, result: Any) -> None:
    for model in range(len(result)):
        own = result[model]
        for start in range(0, result.shape[2], LANES):
            for row in range(grad.shape[1]):
                gradient = load(grad[model], row, start)
                for entry in range(crow[model, row], crow[model, row + 1]):
                    column = columns[model, entry]
                    store(own, column, start, load(own, column, start) + gradient * values[model, entry])
