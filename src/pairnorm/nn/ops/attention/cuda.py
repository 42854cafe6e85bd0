"""Attention over a pattern in Triton: weights ``[entries, trials]`` are kept, never messages with features.

The weights are made first, so that averaging is a sparse product. Backwards, one sweep over the transpose
gathers every gradient once, for the gradient of z and for the products from which the gradients of the scores
follow.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pairnorm.nn.ops.activation import cuda as activation_kernels
from pairnorm.nn.ops.double_backward import Saved
from pairnorm.nn.ops.dropout.cuda import keep_factor
from pairnorm.nn.ops.dropout.keys import dropped_levels
from pairnorm.nn.ops.kernels import STATES, on_device
from pairnorm.nn.ops.pair_norm import cuda as pair_norm
from pairnorm.nn.ops.pair_norm.plain import Norm
from pairnorm.nn.ops.pattern import Pattern
from pairnorm.nn.ops.sparse_product import cuda as sparse_product
from pairnorm.nn.ops.sparse_product.cuda import Schedule, groups, join, tile_of

UNROLL = 2
# Kernels that touch no features take more entries at once, so that hubs do not hold them up.
ENTRIES = 8
TRIALS = 64


def serves(z: Tensor) -> bool:
    """Say whether this type is served."""
    return z.dtype in STATES


@on_device
def forward(
    scores: Tensor, z: Tensor, bias: Tensor | None, pattern: Pattern, activation: str, negative_slope: float,
    rate: float, keys: Tensor | None, norm: Norm | None, trains: bool,
) -> tuple[Tensor, tuple[Tensor, ...]]:  # fmt: skip
    """Return ``[nodes, trials, features]`` and what the backward pass needs."""
    scores, z = scores.contiguous(), z.contiguous()
    dropped = 0 if keys is None or rate == 0 else dropped_levels(rate)
    weights = scores.new_empty(pattern.num_entries, z.size(1))
    kept = torch.empty_like(weights) if dropped else weights
    words = (pattern.num_entries + 1) // 2
    _weights[_grid(pattern, z)](
        pattern.crow, pattern.column, scores, scores if keys is None else keys, weights, kept,
        z.size(1), negative_slope, dropped, words, dropped > 0, ENTRIES, _block(z), num_warps=2,
    )  # fmt: skip
    y = sparse_product.forward(pattern, kept.t(), z, bias, activation)
    if norm is None:
        return y, (scores, z, weights, kept, y)
    h, norms, center = pair_norm.forward_with_center(y, norm.scale, norm.eps, norm.mode == "PN-SI")
    return h, (scores, z, weights, kept, y, norms, center)


def backward(
    kept: Saved, inputs: Saved, settings: Saved, grads: Saved, needed: tuple[bool, ...]
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Return the gradients of the scores, of z and of the bias."""
    return _backward(kept, settings, grads[0].contiguous(), needed[2])


@on_device
def _backward(
    saved: Saved, settings: Saved, grad: Tensor, learns_bias: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    scores, z, weights, kept, y, *of_norm = saved
    pattern, activation, negative_slope, _, _, norm = settings
    grad_bias = None
    if norm is not None:
        norms, center = of_norm
        grad, grad_bias = pair_norm.backward_activated(
            grad, y, norms, center, norm.scale, norm.mode == "PN-SI", activation
        )
    elif learns_bias or activation != "none":
        grad, grad_bias = activation_kernels.backward(grad, y, activation)
    transposed = pattern.transposed
    schedule = Schedule.of(transposed)
    nodes, trials, features = z.shape
    grad_scores, change = torch.empty_like(scores), torch.empty_like(weights)
    grad_z = z.new_empty(schedule.num_places, trials * features)
    tile = tile_of(trials, features)
    _gather_gradient[(schedule.start.numel(), triton.cdiv(trials, tile[0]))](
        schedule.row, schedule.start, schedule.stop, schedule.place, transposed.column, pattern.order,
        z, kept, grad, grad_z, change, trials, features, UNROLL, *tile, num_warps=1,
    )  # fmt: skip
    join(schedule, grad_z)
    _score_gradient[_grid(pattern, z)](
        pattern.crow, pattern.column, scores, weights, kept, change, grad_scores,
        trials, negative_slope, ENTRIES, _block(z), num_warps=2,
    )  # fmt: skip
    _sum_rows[_grid(transposed, z)](
        transposed.crow, pattern.order, change, grad_scores, trials, ENTRIES, _block(z), num_warps=2
    )
    return grad_scores, grad_z[:nodes].view_as(z), grad_bias if learns_bias else None


def _block(z: Tensor) -> int:
    return min(TRIALS, triton.next_power_of_2(z.size(1)))


def _grid(pattern: Pattern, z: Tensor) -> tuple[int, int]:
    return pattern.shape[0], triton.cdiv(z.size(1), _block(z))


@triton.jit
def _own_score(scores, row, trial, trials):  # type: ignore[no-untyped-def]
    return tl.load(scores + (row * trials + trial) * 2 + 1, trial < trials, other=0.0)


@triton.jit
def _score(scores, own, other, both, trial, trials):  # type: ignore[no-untyped-def]
    """The score of each entry, before LeakyReLU: the column's as a source, the row's own as a target."""
    return tl.load(scores + (other[:, None] * trials + trial[None, :]) * 2, both, other=0.0) + own[None, :]


@triton.jit
def _weights(  # type: ignore[no-untyped-def]
    crow, column, scores, keys, weights, kept, trials, negative_slope, dropped, words,
    DROPOUT: tl.constexpr, UNROLL: tl.constexpr, TRIALS: tl.constexpr,
):  # fmt: skip
    """The softmax of a row's scores, and what dropout keeps of it."""
    row = tl.program_id(0).to(tl.int64)
    trial = tl.program_id(1) * TRIALS + tl.arange(0, TRIALS)
    known = trial < trials
    own = _own_score(scores, row, trial, trials)
    begin, end = tl.load(crow + row), tl.load(crow + row + 1)
    largest = tl.full([TRIALS], -float("inf"), tl.float32)
    total = tl.zeros([TRIALS], tl.float32)
    for first in range(begin, end, UNROLL):
        entry = first + tl.arange(0, UNROLL)
        here = entry < end
        other = tl.load(column + entry, here, other=0).to(tl.int64)
        score = _score(scores, own, other, here[:, None] & known[None, :], trial, trials)
        score = tl.where(here[:, None], tl.where(score > 0, score, score * negative_slope), -float("inf"))
        larger = tl.maximum(largest, tl.max(score, 0))
        total = total * tl.exp(largest - larger) + tl.sum(tl.exp(score - larger[None, :]), 0)
        largest = larger
    if DROPOUT:
        key = tl.load(keys + trial, known, other=0)
    for first in range(begin, end, UNROLL):
        entry = first + tl.arange(0, UNROLL)
        here = entry < end
        other = tl.load(column + entry, here, other=0).to(tl.int64)
        both = here[:, None] & known[None, :]
        score = _score(scores, own, other, both, trial, trials)
        score = tl.where(score > 0, score, score * negative_slope)
        weight = tl.exp(score - largest[None, :]) / total[None, :]
        place = entry.to(tl.int64)[:, None] * trials + trial[None, :]
        tl.store(weights + place, weight, both)
        if DROPOUT:
            half = (entry >= words).to(tl.int32)
            factor = keep_factor((entry - half * words)[:, None], key[None, :], half[:, None], dropped)
            tl.store(kept + place, weight * factor, both)


@triton.jit
def _gather_gradient(  # type: ignore[no-untyped-def]
    row, start, stop, place, column, order, z, kept, grad, grad_z, products, trials, features,
    UNROLL: tl.constexpr, TRIALS: tl.constexpr, FEATURES: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """For a node of z: the sum of the gradients it had a part in, and its product with each of them."""
    piece, width = tl.program_id(0), trials * features
    trial, across, inside = groups(trials, features, TRIALS, FEATURES, GROUP)
    each, latest = tl.program_id(1) * TRIALS + tl.arange(0, TRIALS), tl.arange(0, UNROLL)
    first, last = tl.load(start + piece), tl.load(stop + piece)
    value = tl.load(z + tl.load(row + piece).to(tl.int64) * width + across, inside, other=0.0).to(tl.float32)
    total = tl.zeros([TRIALS * FEATURES // GROUP, GROUP], tl.float32)
    for step in range(0, last - first, UNROLL):
        parts = tl.zeros([TRIALS * FEATURES // GROUP, UNROLL], tl.float32)
        for number in tl.static_range(UNROLL):
            entry = first + step + number
            other = tl.load(column + entry, entry < last, other=0).to(tl.int64)
            edge = tl.load(order + entry, entry < last, other=0).to(tl.int64)
            known = trial < tl.where(entry < last, trials, 0)
            weight = tl.load(kept + edge * trials + trial, known, other=0.0)
            wanted = (weight != 0)[:, None] & inside  # what was dropped has no gradient
            gradients = tl.load(grad + other * width + across, wanted, other=0.0).to(tl.float32)
            total += weight[:, None] * gradients
            parts = tl.where(latest[None, :] == number, tl.sum(gradients * value, 1)[:, None], parts)
        # Stored together, for no load can overtake a store.
        product = tl.sum(tl.reshape(parts, [TRIALS, FEATURES // GROUP, UNROLL]), 1)
        entry = first + step + latest
        edge = tl.load(order + entry, entry < last, other=0).to(tl.int64)
        both = (each < trials)[:, None] & (entry < last)[None, :]
        tl.store(products + edge[None, :] * trials + each[:, None], product, both)
    target = tl.load(place + piece).to(tl.int64)
    tl.store(grad_z + target * width + across, total, inside)


@triton.jit
def _score_gradient(  # type: ignore[no-untyped-def]
    crow, column, scores, weights, kept, change, grad_scores, trials, negative_slope,
    UNROLL: tl.constexpr, TRIALS: tl.constexpr,
):  # fmt: skip
    """Turn products into gradients of scores in place, through dropout and softmax; sum them up by row."""
    row = tl.program_id(0).to(tl.int64)
    trial = tl.program_id(1) * TRIALS + tl.arange(0, TRIALS)
    known = trial < trials
    own = _own_score(scores, row, trial, trials)
    begin, end = tl.load(crow + row), tl.load(crow + row + 1)
    mean = tl.zeros([TRIALS], tl.float32)
    for first in range(begin, end, UNROLL):
        entry = first + tl.arange(0, UNROLL)
        both = (entry < end)[:, None] & known[None, :]
        place = entry.to(tl.int64)[:, None] * trials + trial[None, :]
        mean += tl.sum(tl.load(kept + place, both, other=0.0) * tl.load(change + place, both, other=0.0), 0)
    total = tl.zeros([TRIALS], tl.float32)
    for first in range(begin, end, UNROLL):
        entry = first + tl.arange(0, UNROLL)
        here = entry < end
        other = tl.load(column + entry, here, other=0).to(tl.int64)
        both = here[:, None] & known[None, :]
        place = entry.to(tl.int64)[:, None] * trials + trial[None, :]
        value = tl.load(kept + place, both, other=0.0) * tl.load(change + place, both, other=0.0)
        value -= tl.load(weights + place, both, other=0.0) * mean[None, :]
        score = _score(scores, own, other, both, trial, trials)
        value = tl.where(score > 0, value, value * negative_slope)
        tl.store(change + place, value, both)
        total += tl.sum(value, 0)
    tl.store(grad_scores + (row * trials + trial) * 2 + 1, total, known)


@triton.jit
def _sum_rows(crow, order, x, result, width, UNROLL: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The gradients of a node's scores as a source, added up."""
    row = tl.program_id(0).to(tl.int64)
    across = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    end = tl.load(crow + row + 1)
    for first in range(tl.load(crow + row), end, UNROLL):
        entry = first + tl.arange(0, UNROLL)
        number = tl.load(order + entry, entry < end, other=0).to(tl.int64)
        both = (entry < end)[:, None] & (across < width)[None, :]
        total += tl.sum(tl.load(x + number[:, None] * width + across[None, :], both, other=0.0), 0)
    tl.store(result + (row * width + across) * 2, total, across < width)
