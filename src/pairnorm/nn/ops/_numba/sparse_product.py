"""Sparse products in numba: every row gathers its columns into a sum that stays in registers.

Where there is much to do, threads share out the rows.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pairnorm.nn.ops._numba.vectors import CODES, LANES, activated, empty, load, store, zeros
from pairnorm.nn.ops.jit import MIN_WORK_FOR_THREADS, kernel, share_out
from pairnorm.nn.ops.pattern import Pattern

NUMBERS_PER_TASK = 2**19


def supports(dense: Tensor) -> bool:
    """Return whether the kernels take this dtype."""
    return dense.dtype == torch.float32


def forward(
    pattern: Pattern, values: Tensor, dense: Tensor, bias: Tensor | None = None, activation: str = "none"
) -> Tensor:
    """Return the product with ``dense`` ``[columns, ..., features]``, plus bias, activated.

    ``values`` are ``[entries]`` or ``[models, entries]``.
    """
    result = empty(pattern.shape[0], *dense.shape[1:])
    dense = dense.detach().contiguous()
    shape = (len(dense), len(values) if values.dim() == 2 else 1, -1)
    offset = zeros(dense[0].shape) if bias is None else bias.detach()
    crow, column = pattern.crow.numpy(), pattern.column.numpy()
    own, x = torch.atleast_2d(values.detach()).contiguous().numpy(), dense.view(shape).numpy()
    added, y = offset.reshape(shape[1:]).contiguous().numpy(), result.view(len(result), *shape[1:]).numpy()

    def work(start: int, stop: int) -> None:
        _multiply(crow[start : stop + 1], column, own, x, added, CODES[activation], y[start:stop])

    rows, width = pattern.shape[0], x[0].size
    large = pattern.num_entries * width > MIN_WORK_FOR_THREADS
    share_out(rows, max(1, NUMBERS_PER_TASK // width) if large else rows, work)
    return result


@kernel
def _multiply(
    crow: Any, column: Any, values: Any, dense: Any, bias: Any, activation: int, result: Any
) -> None:
    for model in range(dense.shape[1]):
        gather(
            crow, column, values[model], dense[:, model], bias[model : model + 1], activation,
            result[:, model],
        )  # fmt: skip


@kernel
def gather(crow: Any, column: Any, values: Any, dense: Any, bias: Any, activation: int, result: Any) -> None:
    """Write activation(matrix @ dense + bias) to ``result``."""
    for start in range(0, result.shape[1], LANES):
        for row in range(result.shape[0]):
            total = load(bias, 0, start)
            for entry in range(np.uint64(crow[row]), np.uint64(crow[row + 1])):
                total = total + load(dense, column[entry], start) * values[entry]
            store(result, row, start, activated(total, activation))
