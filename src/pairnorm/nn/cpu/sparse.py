"""Sparse products in numba: every row gathers its columns into a sum that stays in the cache."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numba import njit
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from pairnorm.nn.sparse import Pattern

DTYPES = (torch.float32,)


def multiply(
    pattern: "Pattern", values: Tensor, dense: Tensor, bias: Tensor | None = None, activation: str = "none"
) -> Tensor:
    """Return the product with ``dense`` ``[columns, ..., features]``, plus bias, activated.

    ``values`` are ``[entries]`` or ``[trials, entries]``.
    """
    result = torch.empty(pattern.shape[0], *dense.shape[1:])
    crow, column = pattern.crow.numpy(), pattern.column.numpy()
    dense = dense.detach().contiguous()
    if values.dim() == 2:
        _per_trial(crow, column, values.detach().contiguous().numpy(), dense.numpy(), result.numpy())
        return result if bias is None else _finish(result.add_(bias.detach()), activation)
    offset = torch.zeros(dense[0].numel()) if bias is None else bias.detach().reshape(-1)
    flat = dense.view(dense.size(0), -1)
    _shared(
        crow, column, values.detach().numpy(), flat.numpy(), offset.numpy(), activation == "relu",
        result.view(result.size(0), -1).numpy(),
    )  # fmt: skip
    return _finish(result, activation) if activation == "elu" else result


def _finish(x: Tensor, activation: str) -> Tensor:
    """Activate in place; torch has a vectorised exp, numba does not."""
    return {"none": lambda x: x, "relu": torch.relu_, "elu": functional.elu_}[activation](x)


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def _shared(crow: Any, column: Any, values: Any, dense: Any, bias: Any, relu: bool, result: Any) -> None:
    for row in range(result.shape[0]):
        result[row] = 0
        for entry in range(crow[row], crow[row + 1]):
            value = values[entry]
            source = column[entry]
            for feature in range(dense.shape[1]):
                result[row, feature] += value * dense[source, feature]
        if relu:
            for feature in range(dense.shape[1]):
                value = result[row, feature] + bias[feature]
                result[row, feature] = np.float32(0) if value < 0 else value  # NaN stays NaN
        else:
            for feature in range(dense.shape[1]):
                result[row, feature] += bias[feature]


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
