"""How a layer ends in numba, for one trial: PairNorm forward; PairNorm, activation and bias backward."""

from typing import Any

import numpy as np
from torch import Tensor

from pairnorm.nn.ops.jit import kernel
from pairnorm.nn.ops.pair_norm.cpu import column_sums, gradient, normalize
from pairnorm.nn.ops.pair_norm.plain import Norm
from pairnorm.nn.ops.simd import LANES, activation_gradient, empty, fill, load, store


def settings(norm: Norm | None, trials: int, nodes: int) -> tuple[float, float, Tensor]:
    """Return scale, eps, and room for the norms: one for every node, for every trial, or none at all."""
    if norm is None:
        return 1.0, 1.0, empty(trials, 0)
    return norm.scale, norm.eps, empty(trials, nodes if norm.mode == "PN-SI" else 1)


@kernel
def epilogue(h: Any, scale: float, eps: float, y: Any, norm: Any) -> None:
    """Write PairNorm of ``h`` to ``y``; without room for norms there is none, and ``y`` is ``h`` itself."""
    if len(norm):
        sums = np.empty((1, h.shape[1]), np.float64)
        column_sums(h, sums)
        normalize(h, sums, scale, eps, y, norm)


@kernel
def epilogue_backward(
    grad: Any, y: Any, h: Any, norm: Any, scale: float, activation: int, result: Any, grad_bias: Any
) -> None:
    """Write the gradient of what the bias was added to, and its sum over the nodes."""
    mean = np.zeros((1, y.shape[1]), np.float32)
    if len(norm):
        mean = gradient(grad, y, norm, scale, result)
        grad = result
    for start in range(0, y.shape[1], LANES):
        total, shift = fill(np.float32(0)), load(mean, 0, start)
        for row in range(len(y)):
            value = activation_gradient(load(grad, row, start) - shift, load(h, row, start), activation)
            store(result, row, start, value)
            total = total + value
        store(grad_bias, 0, start, total)
