"""Attention over a pattern in numba, one trial after the other; weights are kept, never messages."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from pairnorm.nn.cpu import dropout, finish
from pairnorm.nn.cpu.activations import CODES, exp
from pairnorm.nn.cpu.arrays import array, by_trial, empty, zeros
from pairnorm.nn.cpu.simd import LANES, fill, load, store, total
from pairnorm.nn.cpu.sparse import gather

if TYPE_CHECKING:
    from pairnorm.nn.pair_norm import PairNorm
    from pairnorm.nn.sparse import Pattern

DTYPES = (torch.float32,)
ZERO = np.float32(0)


class Attend(torch.autograd.Function):
    """``pairnorm.nn.attention.attend`` for the scores and features of one layer; differentiable once."""

    @staticmethod
    def forward(
        ctx: Any, pattern: "Pattern", scores: Tensor, z: Tensor, bias: Tensor | None, activation: str,
        leak: float, rate: float, keys: Tensor | None, norm: "PairNorm | None" = None,
    ) -> Tensor:  # fmt: skip
        """Return ``[nodes, trials, features]``."""
        own, ends = by_trial(z), by_trial(scores)
        trials, nodes, features = own.shape
        offset = np.zeros((trials, features), np.float32) if bias is None else array(bias)
        weights = empty(trials, 1, pattern.num_entries)
        drops = dropout.settings(weights, rate, keys)
        kept = weights if drops is dropout.NONE else empty(weights.shape)
        h = empty(trials, pattern.shape[0], features)
        y = empty(h.shape) if norm is not None and any(ctx.needs_input_grad) else h
        scale, eps, lengths = finish.settings(norm, trials, nodes)
        _forward(
            pattern.crow.numpy(), pattern.column.numpy(), ends.numpy(), own.numpy(), offset, np.float32(leak),
            *drops, CODES[activation], scale, eps, weights.numpy(), kept.numpy(), h.numpy(), y.numpy(),
            lengths,
        )  # fmt: skip
        ctx.pattern, ctx.leak, ctx.activation = pattern, leak, activation
        ctx.scale, ctx.lengths = scale, lengths
        ctx.save_for_backward(ends, own, weights, kept, h, y)
        return y.transpose(0, 1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the scores, of z and of the bias."""
        ends, z, weights, kept, h, y = ctx.saved_tensors
        grad_ends, grad_z, grad_bias = (
            zeros(ends.shape), zeros(z.shape), empty(len(z), z.size(2)),
        )  # fmt: skip
        _backward(
            ctx.pattern.crow.numpy(), ctx.pattern.column.numpy(), ends.numpy(), z.numpy(), weights.numpy(),
            kept.numpy(), np.float32(ctx.leak), by_trial(grad).numpy(), y.numpy(), h.numpy(), ctx.lengths,
            ctx.scale, CODES[ctx.activation], empty(y.shape[1:]).numpy(), grad_ends.numpy(),
            grad_z.numpy(), grad_bias.numpy(),
        )  # fmt: skip
        grad_scores, grad_z = grad_ends.transpose(0, 1), grad_z.transpose(0, 1)
        return None, grad_scores, grad_z, grad_bias if ctx.needs_input_grad[3] else None, *[None] * 5


@njit(cache=True, nogil=True, error_model="numpy")
def _forward(
    crow: Any, column: Any, ends: Any, z: Any, bias: Any, leak: Any, positions: Any, keys: Any, dropped: Any,
    factor: Any, activation: int, scale: float, eps: float, weights: Any, kept: Any, h: Any, y: Any,
    lengths: Any,
) -> None:  # fmt: skip
    for trial in range(len(z)):
        _softmax(crow, column, ends[trial], leak, weights[trial])
        if dropped:
            dropout.drop(weights[trial], positions, keys[trial], dropped, factor, kept[trial])
        gather(crow, column, kept[trial, 0], z[trial], bias[trial : trial + 1], activation, h[trial])
        finish.finish(h[trial], scale, eps, y[trial], lengths[trial])


@njit(cache=True, nogil=True, error_model="numpy")
def _softmax(crow: Any, column: Any, ends: Any, leak: Any, weights: Any) -> None:
    """Write the softmax of the scores within every row to ``weights`` ``[1, entries]``."""
    for row in range(len(crow) - 1):
        largest = np.float32(-np.inf)
        for entry in range(crow[row], crow[row + 1]):
            score = ends[column[entry], 0] + ends[row, 1]
            score = score if score > 0 else score * leak
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


@njit(cache=True, nogil=True, error_model="numpy")
def _backward(
    crow: Any, column: Any, ends: Any, z: Any, weights: Any, kept: Any, leak: Any, grad: Any, y: Any, h: Any,
    lengths: Any, scale: float, activation: int, inner: Any, grad_ends: Any, grad_z: Any, grad_bias: Any,
) -> None:  # fmt: skip
    pulls = np.empty((1, len(column)), np.float32)
    for trial in range(len(z)):
        finish.start_back(
            grad[trial], y[trial], h[trial], lengths[trial], scale, activation, inner,
            grad_bias[trial : trial + 1],
        )  # fmt: skip
        _through_average(crow, column, kept[trial, 0], z[trial], inner, pulls[0], grad_z[trial])
        _through_softmax(crow, column, ends[trial], weights[trial, 0], leak, pulls[0], grad_ends[trial])


@njit(cache=True, nogil=True, error_model="numpy")
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
                    slope = load(grad, row, start)
                    product = product + slope * load(z, other, start)
                    store(grad_z, other, start, load(grad_z, other, start) + slope * value)
                pulls[entry] = total(product) * value


@njit(cache=True, nogil=True, error_model="numpy")
def _through_softmax(
    crow: Any, column: Any, ends: Any, weights: Any, leak: Any, pulls: Any, grad_ends: Any
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
            change = change if ends[other, 0] + ends[row, 1] > 0 else change * leak
            grad_ends[other, 0] += change
            whole += change
        grad_ends[row, 1] += whole
