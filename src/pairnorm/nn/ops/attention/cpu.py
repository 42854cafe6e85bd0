"""Attention over a pattern in numba, one trial after the other; weights are kept, never messages."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pairnorm.nn.ops import epilogue
from pairnorm.nn.ops.double_backward import Saved
from pairnorm.nn.ops.dropout import cpu as dropout
from pairnorm.nn.ops.jit import kernel
from pairnorm.nn.ops.pair_norm.plain import Norm
from pairnorm.nn.ops.pattern import Pattern
from pairnorm.nn.ops.simd import CODES, LANES, array, by_trial, empty, exp, fill, load, store, total, zeros
from pairnorm.nn.ops.sparse_product.cpu import gather

ZERO = np.float32(0)


def serves(z: Tensor) -> bool:
    """Say whether this type is served."""
    return z.dtype == torch.float32


def forward(
    scores: Tensor, z: Tensor, bias: Tensor | None, pattern: Pattern, activation: str, negative_slope: float,
    rate: float, keys: Tensor | None, norm: Norm | None, trains: bool,
) -> tuple[Tensor, tuple[Tensor, ...]]:  # fmt: skip
    """Return ``[nodes, trials, features]`` and what the backward pass needs."""
    own, ends = by_trial(z), by_trial(scores)
    trials, nodes, features = own.shape
    offset = np.zeros((trials, features), np.float32) if bias is None else array(bias)
    weights = empty(trials, 1, pattern.num_entries)
    drops = dropout.settings(weights, rate, keys)
    kept = weights if drops is dropout.NONE else empty(weights.shape)
    h = empty(trials, pattern.shape[0], features)
    y = empty(h.shape) if norm is not None and trains else h
    scale, eps, norms = epilogue.settings(norm, trials, nodes)
    _forward(
        pattern.crow.numpy(), pattern.column.numpy(), ends.numpy(), own.numpy(), offset,
        np.float32(negative_slope), *drops, CODES[activation], scale, eps, weights.numpy(), kept.numpy(),
        h.numpy(), y.numpy(), norms.numpy(),
    )  # fmt: skip
    return y.transpose(0, 1), (ends, own, weights, kept, h, y, norms)


def backward(
    kept: Saved, inputs: Saved, settings: Saved, grads: Saved, needed: tuple[bool, ...]
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Return the gradients of the scores, of z and of the bias."""
    ends, z, weights, left, h, y, norms = kept
    pattern, activation, negative_slope, _, _, norm = settings
    grad_ends, grad_z, grad_bias = zeros(ends.shape), zeros(z.shape), empty(len(z), z.size(2))
    _backward(
        pattern.crow.numpy(), pattern.column.numpy(), ends.numpy(), z.numpy(), weights.numpy(), left.numpy(),
        np.float32(negative_slope), by_trial(grads[0]).numpy(), y.numpy(), h.numpy(), norms.numpy(),
        1.0 if norm is None else norm.scale, CODES[activation], empty(y.shape[1:]).numpy(),
        grad_ends.numpy(), grad_z.numpy(), grad_bias.numpy(),
    )  # fmt: skip
    return grad_ends.transpose(0, 1), grad_z.transpose(0, 1), grad_bias if needed[2] else None


@kernel
def _forward(
    crow: Any, column: Any, ends: Any, z: Any, bias: Any, negative_slope: Any, positions: Any, keys: Any,
    dropped: Any, factor: Any, activation: int, scale: float, eps: float, weights: Any, kept: Any, h: Any,
    y: Any, norms: Any,
) -> None:  # fmt: skip
    for trial in range(len(z)):
        _softmax(crow, column, ends[trial], negative_slope, weights[trial])
        if dropped:
            dropout.drop(weights[trial], positions, keys[trial], dropped, factor, kept[trial])
        gather(crow, column, kept[trial, 0], z[trial], bias[trial : trial + 1], activation, h[trial])
        epilogue.epilogue(h[trial], scale, eps, y[trial], norms[trial])


@kernel
def _softmax(crow: Any, column: Any, ends: Any, negative_slope: Any, weights: Any) -> None:
    """Write the softmax of the scores within every row to ``weights`` ``[1, entries]``."""
    for row in range(len(crow) - 1):
        largest = np.float32(-np.inf)
        for entry in range(crow[row], crow[row + 1]):
            score = ends[column[entry], 0] + ends[row, 1]
            score = score if score > 0 else score * negative_slope
            weights[0, entry] = score
            largest = score if score > largest else largest
        for entry in range(crow[row], crow[row + 1]):
            weights[0, entry] -= largest
    for start in range(0, weights.shape[1], LANES):
        store(weights, 0, start, exp(load(weights, 0, start)))
    for row in range(len(crow) - 1):
        whole = ZERO
        for entry in range(crow[row], crow[row + 1]):
            whole += weights[0, entry]
        share = np.float32(1) / whole
        for entry in range(crow[row], crow[row + 1]):
            weights[0, entry] *= share


@kernel
def _backward(
    crow: Any, column: Any, ends: Any, z: Any, weights: Any, kept: Any, negative_slope: Any, grad: Any,
    y: Any, h: Any, norms: Any, scale: float, activation: int, inner: Any, grad_ends: Any, grad_z: Any,
    grad_bias: Any,
) -> None:  # fmt: skip
    pulls = np.empty((1, len(column)), np.float32)
    for trial in range(len(z)):
        epilogue.epilogue_backward(
            grad[trial], y[trial], h[trial], norms[trial], scale, activation, inner,
            grad_bias[trial : trial + 1],
        )  # fmt: skip
        _through_average(crow, column, kept[trial, 0], z[trial], inner, pulls[0], grad_z[trial])
        _through_softmax(
            crow, column, ends[trial], weights[trial, 0], negative_slope, pulls[0], grad_ends[trial]
        )


@kernel
def _through_average(
    crow: Any, column: Any, kept: Any, z: Any, grad: Any, pulls: Any, grad_z: Any
) -> None:  # fmt: skip
    """Add to the gradient of z; write dL/dweight times the weight itself, dropout included, to ``pulls``."""
    for row in range(len(grad)):
        for entry in range(crow[row], crow[row + 1]):
            value, other = kept[entry], column[entry]
            pulls[entry] = ZERO
            if value != 0:
                product = fill(ZERO)
                for start in range(0, grad.shape[1], LANES):
                    gradient = load(grad, row, start)
                    product = product + gradient * load(z, other, start)
                    store(grad_z, other, start, load(grad_z, other, start) + gradient * value)
                pulls[entry] = total(product) * value


@kernel
def _through_softmax(
    crow: Any, column: Any, ends: Any, weights: Any, negative_slope: Any, pulls: Any, grad_ends: Any
) -> None:
    """Add to the gradients of the scores."""
    for row in range(len(crow) - 1):
        mean = ZERO
        for entry in range(crow[row], crow[row + 1]):
            mean += pulls[entry]
        whole = ZERO
        for entry in range(crow[row], crow[row + 1]):
            other = column[entry]
            change = pulls[entry] - weights[entry] * mean
            change = change if ends[other, 0] + ends[row, 1] > 0 else change * negative_slope
            grad_ends[other, 0] += change
            whole += change
        grad_ends[row, 1] += whole
