"""Bias and activation in numba; the backward pass sums the bias gradient as it goes."""

from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor
from torch.nn import functional

DTYPES = (torch.float32,)
CODES = {"none": 0, "relu": 1, "elu": 2}


def forward(x: Tensor, bias: Tensor, activation: str) -> Tensor:
    """Return ``activation(x + bias)``."""
    if activation == "elu":  # torch has a vectorised exp, numba does not
        return functional.elu_(x + bias)
    y = torch.empty_like(x)
    _forward(_flat(x), bias.detach().reshape(-1).numpy(), CODES[activation], _flat(y))
    return y


def backward(grad: Tensor, y: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and of the bias."""
    result = torch.empty_like(y)
    sums = torch.zeros(y.shape[1:])
    _backward(_flat(grad), _flat(y), CODES[activation], _flat(result), sums.view(-1).numpy())
    return result, sums


def _flat(x: Tensor) -> Any:
    return x.detach().view(x.size(0), -1).numpy()


@njit(cache=True, nogil=True, error_model="numpy")
def _forward(x: Any, bias: Any, code: int, y: Any) -> None:
    zero = np.float32(0)
    for node in range(x.shape[0]):
        if code == 1:
            for column in range(x.shape[1]):
                value = x[node, column] + bias[column]
                y[node, column] = zero if value < zero else value  # NaN stays NaN
        else:
            for column in range(x.shape[1]):
                y[node, column] = x[node, column] + bias[column]


@njit(cache=True, nogil=True, error_model="numpy")
def _backward(grad: Any, y: Any, code: int, result: Any, sums: Any) -> None:
    zero, one = np.float32(0), np.float32(1)
    for node in range(y.shape[0]):
        if code == 1:
            for column in range(y.shape[1]):
                result[node, column] = grad[node, column] if y[node, column] > zero else zero
        elif code == 2:
            for column in range(y.shape[1]):
                value = y[node, column]
                result[node, column] = grad[node, column] * (one if value > zero else value + one)
        else:
            for column in range(y.shape[1]):
                result[node, column] = grad[node, column]
        for column in range(y.shape[1]):
            sums[column] += result[node, column]
