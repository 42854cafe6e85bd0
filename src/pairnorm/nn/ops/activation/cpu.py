"""Bias and activation in numba; the backward pass sums the bias gradient as it goes."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pairnorm.nn.ops.epilogue import epilogue_backward
from pairnorm.nn.ops.jit import kernel
from pairnorm.nn.ops.simd import CODES, LANES, activated, array, empty, load, store

NO_NORMS = np.empty(0, np.float32)


def serves(x: Tensor) -> bool:
    """Say whether this type is served."""
    return x.dtype == torch.float32


def forward(x: Tensor, bias: Tensor, activation: str) -> Tensor:
    """Return ``activation(x + bias)``."""
    y = empty(x.shape)
    _forward(array(x.flatten(1)), array(bias.reshape(1, -1)), CODES[activation], y.flatten(1).numpy())
    return y


def backward(grad: Tensor, y: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and of the bias."""
    result, sums = empty(y.shape), empty(y.shape[1:])
    flat = array(y.flatten(1))
    epilogue_backward(
        array(grad.flatten(1)), flat, flat, NO_NORMS, 1.0, CODES[activation], result.flatten(1).numpy(),
        sums.view(1, -1).numpy(),
    )  # fmt: skip
    return result, sums


@kernel
def _forward(x: Any, bias: Any, activation: int, y: Any) -> None:
    for start in range(0, y.shape[1], LANES):
        offset = load(bias, 0, start)
        for row in range(len(y)):
            store(y, row, start, activated(load(x, row, start) + offset, activation))
