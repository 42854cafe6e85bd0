"""Bias and activation in numba, and the end of a layer for one model: activation, then PairNorm."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pairnorm.nn.ops._numba.pair_norm import gradient_block, normalize_block
from pairnorm.nn.ops._numba.vectors import (
    CODES,
    LANES,
    activated,
    activation_gradient,
    array,
    empty,
    fill,
    load,
    store,
)
from pairnorm.nn.ops.jit import kernel
from pairnorm.nn.ops.pair_norm import Norm

NO_NORM = np.empty(0, np.float32), np.empty(0, np.float64)


def supports(x: Tensor) -> bool:
    """Return whether the kernels take this dtype."""
    return x.dtype == torch.float32


def forward(x: Tensor, bias: Tensor, activation: str) -> Tensor:
    """Return ``activation(x + bias)``."""
    y = empty(x.shape)
    _forward(array(x.flatten(1)), array(bias.reshape(1, -1)), CODES[activation], y.flatten(1).numpy())
    return y


def backward(grad: Tensor, y: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and of the bias."""
    result, sums = empty(y.shape), empty(y.shape[1:])
    layer_end_backward(
        array(grad.flatten(1)), array(y.flatten(1)), *NO_NORM, 1.0, CODES[activation],
        result.flatten(1).numpy(), sums.view(1, -1).numpy(),
    )  # fmt: skip
    return result, sums


def norm_settings(norm: Norm | None, models: int, nodes: int, features: int) -> Any:
    """Return scale, eps, and memory for norms and means; memory for none where there is no PairNorm."""
    if norm is None:
        return 1.0, 1.0, empty(models, 0), torch.empty(models, 0, dtype=torch.float64)
    norms = empty(models, nodes if norm.mode == "PN-SI" else 1)
    return norm.scale, norm.eps, norms, torch.empty(models, features, dtype=torch.float64)


@kernel
def _forward(x: Any, bias: Any, activation: int, y: Any) -> None:
    for start in range(0, y.shape[1], LANES):
        offset = load(bias, 0, start)
        for row in range(len(y)):
            store(y, row, start, activated(load(x, row, start) + offset, activation))


@kernel
def layer_end(h: Any, scale: float, eps: float, y: Any, norm: Any, mean: Any) -> None:
    """Write PairNorm of ``h`` to ``y``; without memory for norms there is none, and ``y`` is ``h`` itself."""
    if len(norm):
        normalize_block(h, scale, eps, y, norm, mean)


@kernel
def layer_end_backward(
    grad: Any, h: Any, norm: Any, mean: Any, scale: float, activation: int, result: Any, grad_bias: Any
) -> None:
    """Write the gradient of what the bias was added to, and its sum over the nodes."""
    if len(norm):
        gradient_block(grad, h, mean, norm, scale, result)
        grad = result
    for start in range(0, h.shape[1], LANES):
        total = fill(np.float32(0))
        for row in range(len(h)):
            value = activation_gradient(load(grad, row, start), load(h, row, start), activation)
            store(result, row, start, value)
            total = total + value
        store(grad_bias, 0, start, total)
