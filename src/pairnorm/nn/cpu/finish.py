"""How a layer ends in numba, for one trial: PairNorm forward; PairNorm, activation and bias backward."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit

from pairnorm.nn.cpu.activations import through
from pairnorm.nn.cpu.pair_norm import column_sums, normalise, slope
from pairnorm.nn.cpu.simd import LANES, fill, load, store

if TYPE_CHECKING:
    from pairnorm.nn.pair_norm import PairNorm


def settings(norm: "PairNorm | None", trials: int, nodes: int) -> tuple[float, float, Any]:
    """Return scale, eps, and room for the lengths: one for every node, for every trial, or none at all."""
    if norm is None:
        return 1.0, 1.0, np.empty((trials, 0), np.float32)
    return norm.scale, norm.eps, np.empty((trials, nodes if norm.mode == "PN-SI" else 1), np.float32)


@njit(cache=True, nogil=True, error_model="numpy")
def finish(h: Any, scale: float, eps: float, y: Any, length: Any) -> None:
    """Write the norm of ``h`` to ``y``; without lengths there is no norm, and ``y`` is ``h`` itself."""
    if len(length):
        sums = np.empty((1, h.shape[1]), np.float64)
        column_sums(h, sums)
        normalise(h, sums, scale, eps, y, length)


@njit(cache=True, nogil=True, error_model="numpy")
def start_back(
    grad: Any, y: Any, h: Any, length: Any, scale: float, activation: int, result: Any, grad_bias: Any
) -> None:
    """Write the gradient of what the bias was added to, and its sum over the nodes."""
    mean = np.zeros((1, y.shape[1]), np.float32)
    if len(length):
        mean = slope(grad, y, length, scale, result)
        grad = result
    for start in range(0, y.shape[1], LANES):
        total, shift = fill(np.float32(0)), load(mean, 0, start)
        for row in range(len(y)):
            value = through(load(grad, row, start) - shift, load(h, row, start), activation)
            store(result, row, start, value)
            total = total + value
        store(grad_bias, 0, start, total)
