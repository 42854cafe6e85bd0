"""Dropout and linear map of many models in numba: narrow products, done where the numbers lie in the cache.

States are ``[models, nodes, features]`` in memory, so that a kernel finishes one model before the next.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pairnorm.nn.ops._numba import vectors as vec
from pairnorm.nn.ops._numba.dropout import drop, dropped_memory, drops_of
from pairnorm.nn.ops.kernels import Saved

DTYPES = (torch.float32,)
MAX_WEIGHT_ELEMENTS = 2**13
BLOCK = 64
ZERO = np.float32(0)


def fits(weight: Tensor | None, att_vectors: Tensor | None = None) -> bool:
    """Return whether a model's weight, if any, fits the first cache; a library is faster for larger ones."""
    return weight is None or weight.size(1) * weight.size(2) <= MAX_WEIGHT_ELEMENTS


def forward(
    x: Tensor, weight: Tensor, att_vectors: Tensor | None, rate: float, keys: Tensor | None,
    needs_backward: bool,
) -> tuple[tuple[Tensor, Tensor | None], tuple[Tensor, ...]]:  # fmt: skip
    """Return ``[nodes, models, out]``, the scores, and the tensors for the backward pass."""
    states = vec.by_model(x)
    models, nodes, _ = states.shape
    drops = drops_of(states, rate, keys)
    x_dropped = dropped_memory(states, drops)
    result, z = vec.empty_by_model(models, nodes, weight.size(2))
    scores = vec.empty(models, nodes, 0 if att_vectors is None else att_vectors.size(2))
    rows = vec.array(weight[:, :0] if att_vectors is None else att_vectors.transpose(1, 2))
    _forward(states.numpy(), drops, x_dropped.numpy(), vec.array(weight), z.numpy(), rows, scores.numpy())
    return (result, None if att_vectors is None else scores.transpose(0, 1)), (x_dropped, z)


def backward(
    saved: Saved, inputs: Saved, settings: Saved, grads: Saved, needs_grad: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of x, of the weight and of the att_vectors."""
    (x_dropped, z), (_, weight, att_vectors), (grad, grad_scores) = saved, inputs, grads
    grad = vec.zeros(z.shape) if grad is None else vec.by_model(grad)
    by_score = vec.zeros(*z.shape[:2], 0) if grad_scores is None else vec.by_model(grad_scores)
    rows = vec.array(weight[:, :0] if grad_scores is None else att_vectors.transpose(1, 2))
    grad_x = vec.empty(x_dropped.shape if needs_grad[0] else (len(z), 0, x_dropped.size(2)))
    grad_weight, grad_rows = vec.empty(weight.shape), vec.empty(rows.shape)
    _backward(
        x_dropped.numpy(), drops_of(x_dropped, *settings), vec.array(weight.transpose(1, 2)), rows, z.numpy(),
        grad.numpy(), by_score.numpy(), vec.empty(z.shape[1:]).numpy(), grad_x.numpy(), grad_weight.numpy(),
        grad_rows.numpy(),
    )  # fmt: skip
    to_x = grad_x.transpose(0, 1) if needs_grad[0] else None
    return to_x, grad_weight, None if grad_scores is None else grad_rows.transpose(1, 2)


@vec.kernel
def _forward(x: Any, drops: Any, x_dropped: Any, weight: Any, z: Any, att_vectors: Any, scores: Any) -> None:
    for model in range(len(x)):
        drop(x[model], drops, model, x_dropped[model])
        states, vectors = z[model], att_vectors[model]
        product(x_dropped[model], weight[model], states)
        for end in range(scores.shape[2]):
            for row in range(scores.shape[1]):
                score = ZERO
                for start in range(0, z.shape[2], vec.LANES):
                    score += vec.total(vec.load(states, row, start) * vec.load(vectors, end, start))
                scores[model, row, end] = score


@vec.kernel
def _backward(
    x_dropped: Any, drops: Any, weight: Any, att_vectors: Any, z: Any, grad: Any, by_score: Any,
    complete: Any, grad_x: Any, grad_weight: Any, grad_vectors: Any,
) -> None:  # fmt: skip
    for model in range(len(x_dropped)):
        grad_z, vectors = grad[model], att_vectors[model]
        if by_score.shape[2]:
            transposed_product(by_score[model], z[model], grad_vectors[model])
            for start in range(0, z.shape[2], vec.LANES):
                for row in range(z.shape[1]):
                    gradient = vec.load(grad_z, row, start)
                    for end in range(by_score.shape[2]):
                        gradient = gradient + vec.load(vectors, end, start) * by_score[model, row, end]
                    vec.store(complete, row, start, gradient)
            grad_z = complete
        transposed_product(x_dropped[model], grad_z, grad_weight[model])
        if grad_x.shape[1]:
            product(grad_z, weight[model], grad_x[model])
            drop(grad_x[model], drops, model, grad_x[model])


@vec.kernel
def product(x: Any, weight: Any, z: Any) -> None:
    """Write x·weight to ``z``, four rows at a time, for which a row of the weight is loaded once."""
    last = len(x) - 1
    for start in range(0, z.shape[1], vec.LANES):
        for row in range(0, len(x), 4):
            # Beyond the last row it is the last one again, which does no harm.
            a, b, c, d = row, min(row + 1, last), min(row + 2, last), min(row + 3, last)
            first = second = third = fourth = vec.fill(ZERO)
            for column in range(x.shape[1]):
                weights = vec.load(weight, column, start)
                first = first + weights * x[a, column]
                second = second + weights * x[b, column]
                third = third + weights * x[c, column]
                fourth = fourth + weights * x[d, column]
            vec.store(z, a, start, first)
            vec.store(z, b, start, second)
            vec.store(z, c, start, third)
            vec.store(z, d, start, fourth)


@vec.kernel
def transposed_product(x: Any, y: Any, result: Any) -> None:
    """Write xᵀ·y to ``result``, four of its rows at a time, from blocks that the first cache holds."""
    last = x.shape[1] - 1
    result[:] = 0
    for begin in range(0, len(x), BLOCK):
        end = min(begin + BLOCK, len(x))
        for start in range(0, y.shape[1], vec.LANES):
            for column in range(0, x.shape[1], 4):
                a, b, c, d = column, min(column + 1, last), min(column + 2, last), min(column + 3, last)
                first, second = vec.load(result, a, start), vec.load(result, b, start)
                third, fourth = vec.load(result, c, start), vec.load(result, d, start)
                for row in range(begin, end):
                    values = vec.load(y, row, start)
                    first = first + values * x[row, a]
                    second = second + values * x[row, b]
                    third = third + values * x[row, c]
                    fourth = fourth + values * x[row, d]
                vec.store(result, a, start, first)
                vec.store(result, b, start, second)
                vec.store(result, c, start, third)
                vec.store(result, d, start, fourth)
