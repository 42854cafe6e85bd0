"""Attention over a pattern in numba, one model after the other; weights are saved, never messages."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pairnorm.nn.ops._numba import dropout
from pairnorm.nn.ops._numba.pair_norm import layer_end, layer_end_backward, norm_settings
from pairnorm.nn.ops._numba.sparse_product import gather
from pairnorm.nn.ops._numba.vectors import (
    CODES,
    LANES,
    array,
    by_model,
    empty,
    empty_by_model,
    exp,
    fill,
    kernel,
    load,
    store,
    total,
)
from pairnorm.nn.ops.kernels import Saved
from pairnorm.nn.ops.pair_norm import Norm

ZERO = np.float32(0)


def supports(z: Tensor) -> bool:
    """Return whether the kernels take this dtype."""
    return z.dtype == torch.float32


def forward(
    scores: Tensor, z: Tensor, bias: Tensor | None, matrix: Any, activation: str, negative_slope: float,
    rate: float, keys: Tensor | None, norm: Norm | None, needs_backward: bool,
) -> tuple[Tensor, tuple[Tensor, ...]]:  # fmt: skip
    """Return ``[nodes, models, features]`` and what the backward pass needs."""
    pattern, own, att_scores = matrix.pattern, by_model(z), by_model(scores)
    models, nodes, features = own.shape
    offset = np.zeros((models, features), np.float32) if bias is None else array(bias)
    weights = empty(models, 1, pattern.num_entries)
    drops = dropout.settings(weights, rate, keys)
    masked = weights if drops is dropout.NONE else empty(weights.shape)
    result, y = empty_by_model(models, pattern.shape[0], features)
    h = empty(y.shape) if norm is not None and needs_backward else y
    scale, eps, norms, means = norm_settings(norm, models, nodes, features)
    _forward(
        pattern.crow.numpy(), pattern.column.numpy(), att_scores.numpy(), own.numpy(), offset,
        np.float32(negative_slope), *drops, CODES[activation], scale, eps, weights.numpy(), masked.numpy(),
        h.numpy(), y.numpy(), norms.numpy(), means.numpy(),
    )  # fmt: skip
    return result, (att_scores, own, weights, masked, h, norms, means)


def backward(
    saved: Saved, inputs: Saved, settings: Saved, grads: Saved, needs_grad: tuple[bool, ...]
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Return the gradients of the scores, of z and of the bias."""
    att_scores, z, weights, masked, h, norms, means = saved
    matrix, activation, negative_slope, _, _, norm = settings
    pattern = matrix.pattern
    grad_bias = empty(len(z), z.size(2))
    (to_scores, grad_scores), (to_z, grad_z) = empty_by_model(*att_scores.shape), empty_by_model(*z.shape)
    to_scores.zero_()
    to_z.zero_()
    _backward(
        pattern.crow.numpy(), pattern.column.numpy(), att_scores.numpy(), z.numpy(), weights.numpy(),
        masked.numpy(), np.float32(negative_slope), by_model(grads[0]).numpy(), h.numpy(), norms.numpy(),
        means.numpy(), 1.0 if norm is None else norm.scale, CODES[activation], empty(h.shape[1:]).numpy(),
        grad_scores.numpy(), grad_z.numpy(), grad_bias.numpy(),
    )  # fmt: skip
    return to_scores, to_z, grad_bias if needs_grad[2] else None


@kernel
def _forward(
    crow: Any, column: Any, att_scores: Any, z: Any, bias: Any, negative_slope: Any, positions: Any,
    keys: Any, dropped: Any, factor: Any, activation: int, scale: float, eps: float, weights: Any,
    masked: Any, h: Any, y: Any, norms: Any, means: Any,
) -> None:  # fmt: skip
    for model in range(len(z)):
        _softmax(crow, column, att_scores[model], negative_slope, weights[model])
        if dropped:
            dropout.drop(weights[model], positions, keys[model], dropped, factor, masked[model])
        gather(crow, column, masked[model, 0], z[model], bias[model : model + 1], activation, h[model])
        layer_end(h[model], scale, eps, y[model], norms[model], means[model])


@kernel
def _softmax(crow: Any, column: Any, att_scores: Any, negative_slope: Any, weights: Any) -> None:
    """Write the softmax of the scores within every row to ``weights`` ``[1, entries]``."""
    for row in range(len(crow) - 1):
        largest = np.float32(-np.inf)
        for entry in range(crow[row], crow[row + 1]):
            score = att_scores[column[entry], 0] + att_scores[row, 1]
            score = score if score > 0 else score * negative_slope
            weights[0, entry] = score
            largest = score if score > largest else largest
        for entry in range(crow[row], crow[row + 1]):
            weights[0, entry] -= largest
    for start in range(0, weights.shape[1], LANES):
        store(weights, 0, start, exp(load(weights, 0, start)))
    for row in range(len(crow) - 1):
        total_weight = ZERO
        for entry in range(crow[row], crow[row + 1]):
            total_weight += weights[0, entry]
        share = np.float32(1) / total_weight
        for entry in range(crow[row], crow[row + 1]):
            weights[0, entry] *= share


@kernel
def _backward(
    crow: Any, column: Any, att_scores: Any, z: Any, weights: Any, masked: Any, negative_slope: Any,
    grad: Any, h: Any, norms: Any, means: Any, scale: float, activation: int, inner: Any, grad_scores: Any,
    grad_z: Any, grad_bias: Any,
) -> None:  # fmt: skip
    grad_dots = np.empty((1, len(column)), np.float32)
    for model in range(len(z)):
        layer_end_backward(
            grad[model], h[model], norms[model], means[model], scale, activation, inner,
            grad_bias[model : model + 1],
        )  # fmt: skip
        _through_average(crow, column, masked[model, 0], z[model], inner, grad_dots[0], grad_z[model])
        _through_softmax(
            crow,
            column,
            att_scores[model],
            weights[model, 0],
            negative_slope,
            grad_dots[0],
            grad_scores[model],
        )


@kernel
def _through_average(
    crow: Any, column: Any, masked: Any, z: Any, grad: Any, grad_dots: Any, grad_z: Any
) -> None:  # fmt: skip
    """Add to the gradient of z; write dL/dweight times the weight, after dropout, to ``grad_dots``."""
    for row in range(len(grad)):
        for entry in range(crow[row], crow[row + 1]):
            value, other = masked[entry], column[entry]
            grad_dots[entry] = ZERO
            if value != 0:
                product = fill(ZERO)
                for start in range(0, grad.shape[1], LANES):
                    gradient = load(grad, row, start)
                    product = product + gradient * load(z, other, start)
                    store(grad_z, other, start, load(grad_z, other, start) + gradient * value)
                grad_dots[entry] = total(product) * value


@kernel
def _through_softmax(
    crow: Any,
    column: Any,
    att_scores: Any,
    weights: Any,
    negative_slope: Any,
    grad_dots: Any,
    grad_scores: Any,
) -> None:
    """Add to the gradients of the scores."""
    for row in range(len(crow) - 1):
        mean = ZERO
        for entry in range(crow[row], crow[row + 1]):
            mean += grad_dots[entry]
        total_weight = ZERO
        for entry in range(crow[row], crow[row + 1]):
            other = column[entry]
            change = grad_dots[entry] - weights[entry] * mean
            change = change if att_scores[other, 0] + att_scores[row, 1] > 0 else change * negative_slope
            grad_scores[other, 0] += change
            total_weight += change
        grad_scores[row, 1] += total_weight
