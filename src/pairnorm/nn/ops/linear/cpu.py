"""Dropout and linear map of many trials in numba: narrow products, done where the numbers lie in the cache.

States are ``[trials, nodes, features]`` in memory, so that a kernel finishes one trial before the next.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pairnorm.nn.ops.double_backward import Saved
from pairnorm.nn.ops.dropout.cpu import NONE, drop
from pairnorm.nn.ops.dropout.cpu import settings as drop_settings
from pairnorm.nn.ops.jit import kernel
from pairnorm.nn.ops.simd import LANES, array, by_trial, empty, fill, load, store, total, zeros

LARGEST = 2**13
BLOCK = 64
ZERO = np.float32(0)


def serves(x: Tensor, weight: Tensor, ends: Tensor | None = None) -> bool:
    """Say whether a trial's weight stays in the first cache; wide ones are better off with a library."""
    return x.dtype == torch.float32 and weight.size(1) * weight.size(2) <= LARGEST


def forward(
    x: Tensor, weight: Tensor, ends: Tensor | None, rate: float, keys: Tensor | None, trains: bool
) -> tuple[tuple[Tensor, Tensor | None], tuple[Tensor, ...]]:
    """Return ``[nodes, trials, out]``, the scores, and what the backward pass needs."""
    own = by_trial(x)
    trials, nodes, _ = own.shape
    drops = drop_settings(own, rate, keys)
    left = own if drops is NONE else empty(own.shape)
    z = empty(trials, nodes, weight.size(2))
    scores = empty(trials, nodes, 0 if ends is None else ends.size(2))
    rows = array(weight[:, :0] if ends is None else ends.transpose(1, 2))
    _forward(own.numpy(), *drops, array(weight), rows, left.numpy(), z.numpy(), scores.numpy())
    return (z.transpose(0, 1), None if ends is None else scores.transpose(0, 1)), (left, z)


def backward(
    kept: Saved, inputs: Saved, settings: Saved, grads: Saved, needed: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """Return the gradients of x, of the weight and of the ends."""
    (left, z), (_, weight, ends), (grad, grad_scores) = kept, inputs, grads
    grad = zeros(z.shape) if grad is None else by_trial(grad)
    by_score = zeros(*z.shape[:2], 0) if grad_scores is None else by_trial(grad_scores)
    rows = array(weight[:, :0] if grad_scores is None else ends.transpose(1, 2))
    grad_x = empty(left.shape if needed[0] else (len(z), 0, left.size(2)))
    grad_weight, grad_rows = empty(weight.shape), empty(rows.shape)
    _backward(
        left.numpy(), *drop_settings(left, *settings), array(weight.transpose(1, 2)), rows, z.numpy(),
        grad.numpy(), by_score.numpy(), empty(z.shape[1:]).numpy(), grad_x.numpy(), grad_weight.numpy(),
        grad_rows.numpy(),
    )  # fmt: skip
    return (
        grad_x.transpose(0, 1) if needed[0] else None,
        grad_weight,
        None if grad_scores is None else grad_rows.transpose(1, 2),
    )


@kernel
def _forward(
    x: Any, positions: Any, keys: Any, dropped: Any, scale: Any, weight: Any, ends: Any, left: Any, z: Any,
    scores: Any,
) -> None:  # fmt: skip
    for trial in range(len(x)):
        if dropped:
            drop(x[trial], positions, keys[trial], dropped, scale, left[trial])
        product(left[trial], weight[trial], z[trial])
        for end in range(scores.shape[2]):
            for row in range(scores.shape[1]):
                score = ZERO
                for start in range(0, z.shape[2], LANES):
                    score += total(load(z[trial], row, start) * load(ends[trial], end, start))
                scores[trial, row, end] = score


@kernel
def _backward(
    left: Any, positions: Any, keys: Any, dropped: Any, scale: Any, weight: Any, ends: Any, z: Any, grad: Any,
    by_score: Any, complete: Any, grad_x: Any, grad_weight: Any, grad_ends: Any,
) -> None:  # fmt: skip
    for trial in range(len(left)):
        own = grad[trial]
        if by_score.shape[2]:
            transposed_product(by_score[trial], z[trial], grad_ends[trial])
            for start in range(0, z.shape[2], LANES):
                for row in range(z.shape[1]):
                    gradient = load(own, row, start)
                    for end in range(by_score.shape[2]):
                        gradient = gradient + load(ends[trial], end, start) * by_score[trial, row, end]
                    store(complete, row, start, gradient)
            own = complete
        transposed_product(left[trial], own, grad_weight[trial])
        if grad_x.shape[1]:
            product(own, weight[trial], grad_x[trial])
            if dropped:
                drop(grad_x[trial], positions, keys[trial], dropped, scale, grad_x[trial])


@kernel
def product(x: Any, weight: Any, z: Any) -> None:
    """Write x·weight to ``z``, four rows at a time, for which a row of the weight is loaded once."""
    last = len(x) - 1
    for start in range(0, z.shape[1], LANES):
        for row in range(0, len(x), 4):
            # Beyond the last row it is the last one again, which does no harm.
            a, b, c, d = row, min(row + 1, last), min(row + 2, last), min(row + 3, last)
            first = second = third = fourth = fill(ZERO)
            for column in range(x.shape[1]):
                weights = load(weight, column, start)
                first = first + weights * x[a, column]
                second = second + weights * x[b, column]
                third = third + weights * x[c, column]
                fourth = fourth + weights * x[d, column]
            store(z, a, start, first)
            store(z, b, start, second)
            store(z, c, start, third)
            store(z, d, start, fourth)


@kernel
def transposed_product(x: Any, y: Any, result: Any) -> None:
    """Write xᵀ·y to ``result``, four of its rows at a time, from blocks that the first cache holds."""
    last = x.shape[1] - 1
    result[:] = 0
    for begin in range(0, len(x), BLOCK):
        end = min(begin + BLOCK, len(x))
        for start in range(0, y.shape[1], LANES):
            for column in range(0, x.shape[1], 4):
                a, b, c, d = column, min(column + 1, last), min(column + 2, last), min(column + 3, last)
                first, second = load(result, a, start), load(result, b, start)
                third, fourth = load(result, c, start), load(result, d, start)
                for row in range(begin, end):
                    values = load(y, row, start)
                    first = first + values * x[row, a]
                    second = second + values * x[row, b]
                    third = third + values * x[row, c]
                    fourth = fourth + values * x[row, d]
                store(result, a, start, first)
                store(result, b, start, second)
                store(result, c, start, third)
                store(result, d, start, fourth)
