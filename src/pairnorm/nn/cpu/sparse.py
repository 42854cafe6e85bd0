"""Sparse products in numba: every row gathers its columns into a sum that stays in the cache."""

from typing import TYPE_CHECKING, Any

import torch
from numba import njit
from torch import Tensor

if TYPE_CHECKING:
    from pairnorm.nn.sparse import Pattern

DTYPES = (torch.float32,)


def multiply(pattern: "Pattern", values: Tensor, dense: Tensor) -> Tensor:
    """Return the product with ``dense`` ``[columns, ..., features]``; ``values`` are ``[entries]`` or
    ``[trials, entries]``.
    """
    result = torch.empty(pattern.shape[0], *dense.shape[1:])
    crow, column = pattern.crow.numpy(), pattern.column.numpy()
    dense = dense.detach().contiguous()
    if values.dim() == 1:
        flat = dense.view(dense.size(0), -1)
        _shared(crow, column, values.detach().numpy(), flat.numpy(), result.view(result.size(0), -1).numpy())
    else:
        _per_trial(crow, column, values.detach().contiguous().numpy(), dense.numpy(), result.numpy())
    return result


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def _shared(crow: Any, column: Any, values: Any, dense: Any, result: Any) -> None:
    for row in range(result.shape[0]):
        result[row] = 0
        for entry in range(crow[row], crow[row + 1]):
            value = values[entry]
            source = column[entry]
            for feature in range(dense.shape[1]):
                result[row, feature] += value * dense[source, feature]


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def _per_trial(crow: Any, column: Any, values: Any, dense: Any, result: Any) -> None:
    for row in range(result.shape[0]):
        result[row] = 0
        for entry in range(crow[row], crow[row + 1]):
            source = column[entry]
            for trial in range(dense.shape[1]):
                value = values[trial, entry]
                if value != 0:
                    for feature in range(dense.shape[2]):
                        result[row, trial, feature] += value * dense[source, trial, feature]
