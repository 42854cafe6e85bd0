"""PairNorm in numba, for tensors that fit the cache; ``pairnorm.nn.blocks`` serves larger ones."""

from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

DTYPES = (torch.float32,)
# Sums may be reordered and multiplications fused, but NaN must stay NaN.
FAST = {"reassoc", "contract", "arcp", "nsz"}


def forward(x: Tensor, scale: float, eps: float, individually: bool) -> tuple[Tensor, Tensor]:
    """Return s·c/r and r; see ``pairnorm.nn.pair_norm._formula``."""
    stacked = _stacked(x)
    y = torch.empty(stacked.shape)
    length = torch.empty(stacked.size(0) if individually else 1, stacked.size(1), 1)
    _forward(stacked.numpy(), scale, eps, individually, y.numpy(), length.numpy())
    return y.view(x.shape), length.view(-1, *x.shape[1:-1], 1)


def backward(grad: Tensor, y: Tensor, length: Tensor, scale: float, individually: bool) -> Tensor:
    """Return dL/dx; see ``pairnorm.nn.pair_norm._formula_gradient``."""
    stacked = _stacked(y)
    result = torch.empty(stacked.shape)
    lengths = length.detach().reshape(-1, stacked.size(1)).numpy()
    _backward(_stacked(grad).numpy(), stacked.numpy(), lengths, scale, individually, result.numpy())
    return result.view(y.shape)


def _stacked(x: Tensor) -> Tensor:
    """View as ``[nodes, trials, features]``."""
    return x.detach().contiguous().view(x.size(0), -1, x.size(-1))


@njit(cache=True, nogil=True, error_model="numpy", fastmath=False)  # not inherited from the caller
def _less(value: Any, high: Any, low: Any) -> Any:
    """(value - high) - low, in this order: compiled without FAST, which would add up high and low first."""
    return (value - high) - low


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def _forward(x: Any, scale: float, eps: float, individually: bool, y: Any, length: Any) -> None:
    nodes, trials, features = x.shape
    # The mean in float64 and subtracted in two steps: a large common offset leaves the small
    # differences alone.
    total = np.zeros((trials, features), np.float64)
    for node in range(nodes):
        for trial in range(trials):
            for feature in range(features):
                total[trial, feature] += x[node, trial, feature]
    high = np.empty((trials, features), np.float32)
    low = np.empty((trials, features), np.float32)
    for trial in range(trials):
        for feature in range(features):
            mean = total[trial, feature] / nodes
            high[trial, feature] = np.float32(mean)
            low[trial, feature] = np.float32(mean - np.float64(high[trial, feature]))
    squares = np.zeros(trials, np.float64)
    for node in range(nodes):
        for trial in range(trials):
            square = np.float32(0)
            for feature in range(features):
                value = _less(x[node, trial, feature], high[trial, feature], low[trial, feature])
                y[node, trial, feature] = value
                square += value * value
            if individually:
                root = np.float32(np.sqrt(square + np.float32(eps)))
                length[node, trial, 0] = root
                factor = np.float32(scale) / root
                for feature in range(features):
                    y[node, trial, feature] *= factor
            else:
                squares[trial] += square
    if individually:
        return
    factors = np.empty(trials, np.float32)
    for trial in range(trials):
        root = np.sqrt(squares[trial] / nodes + eps)
        length[0, trial, 0] = root
        factors[trial] = scale / root
    for node in range(nodes):
        for trial in range(trials):
            for feature in range(features):
                y[node, trial, feature] *= factors[trial]


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def _backward(grad: Any, y: Any, length: Any, scale: float, individually: bool, result: Any) -> None:
    nodes, trials, features = y.shape
    total = np.zeros((trials, features), np.float64)
    products = np.zeros(trials, np.float64)
    for node in range(nodes):
        for trial in range(trials):
            product = np.float32(0)
            for feature in range(features):
                product += grad[node, trial, feature] * y[node, trial, feature]
            if individually:
                root = length[node, trial]
                factor = np.float32(scale) / root
                pull = product / (root * np.float32(scale))
                for feature in range(features):
                    value = grad[node, trial, feature] * factor - y[node, trial, feature] * pull
                    result[node, trial, feature] = value
                    total[trial, feature] += value
            else:
                products[trial] += product
                for feature in range(features):
                    total[trial, feature] += grad[node, trial, feature]
    mean = np.empty((trials, features), np.float32)
    factors = np.ones(trials, np.float32)
    pulls = np.zeros(trials, np.float32)
    for trial in range(trials):
        if not individually:
            factors[trial] = scale / length[0, trial]
            pulls[trial] = products[trial] / (length[0, trial] * scale * nodes)
        for feature in range(features):
            mean[trial, feature] = total[trial, feature] / nodes * factors[trial]
    for node in range(nodes):
        for trial in range(trials):
            for feature in range(features):
                if individually:
                    result[node, trial, feature] -= mean[trial, feature]
                else:
                    result[node, trial, feature] = (
                        grad[node, trial, feature] * factors[trial]
                        - y[node, trial, feature] * pulls[trial]
                        - mean[trial, feature]
                    )
