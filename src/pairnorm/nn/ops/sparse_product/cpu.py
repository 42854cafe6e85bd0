"""Sparse products in numba: every row gathers its columns into a sum that stays in registers.

Where there is much to do, threads share out the rows.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pairnorm.nn.ops.jit import kernel
from pairnorm.nn.ops.pattern import Pattern
from pairnorm.nn.ops.simd import CODES, LANES, activated, empty, load, store, zeros
from pairnorm.nn.ops.threads import WORTH_A_THREAD, share_out

NUMBERS_PER_TASK = 2**19


def serves(dense: Tensor) -> bool:
    """Say whether this type is served."""
    return dense.dtype == torch.float32


def forward(
    pattern: Pattern, values: Tensor, dense: Tensor, bias: Tensor | None = None, activation: str = "none"
) -> Tensor:
    """Return the product with ``dense`` ``[columns, ..., features]``, plus bias, activated.

    ``values`` are ``[entries]`` or ``[trials, entries]``.
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
    large = pattern.num_entries * width > WORTH_A_THREAD
    share_out(rows, max(1, NUMBERS_PER_TASK // width) if large else rows, work)
    return result


@kernel
def _multiply(
    crow: Any, column: Any, values: Any, dense: Any, bias: Any, activation: int, result: Any
) -> None:
    for trial in range(dense.shape[1]):
        gather(
            crow, column, values[trial], dense[:, trial], bias[trial : trial + 1], activation,
            result[:, trial],
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
