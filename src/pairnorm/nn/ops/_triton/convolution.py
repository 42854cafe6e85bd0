"""Graph convolutions in Triton, by the kernels of their parts; backwards, PairNorm and activation are one.

Attention saves its weights ``[entries, models]``, never messages with features. The weights are made first,
so that averaging is a sparse product. Backwards, one sweep over the transpose gathers every gradient once,
for the gradient of z and for the products from which the gradients of the scores follow.
"""

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pairnorm.nn.ops._triton import linear, pair_norm, sparse_product
from pairnorm.nn.ops._triton.dropout import keep_factor
from pairnorm.nn.ops._triton.sparse_product import Schedule, groups, join, tile_of
from pairnorm.nn.ops.dropout import dropped_levels
from pairnorm.nn.ops.kernels import Saved, on_device
from pairnorm.nn.ops.sparse_product import Pattern

if TYPE_CHECKING:
    from pairnorm.nn.pair_norm import PairNorm

DTYPES, fits = linear.DTYPES, linear.fits
UNROLL = 2
# Kernels that touch no features take more entries at once, so that hubs do not delay them.
ENTRIES = 8
MODELS = 64


def gcn_forward(
    x: Tensor, weight: Tensor | None, bias: Tensor, matrix: Any, activation: str, norm: "PairNorm | None",
    rate: float, keys: Tensor | None, needs_backward: bool,
) -> tuple[Tensor, tuple[Tensor, ...]]:  # fmt: skip
    """Return ``[nodes, models, out]`` and the tensors for the backward pass: x and the input of PairNorm."""
    of_linear: tuple[Tensor, ...] = ()
    if weight is not None:
        x = x.expand(-1, len(weight), -1)
        (x, _), of_linear = linear.forward(x, weight, None, rate, keys, needs_backward)
    y = sparse_product.forward(matrix.pattern, matrix.values, x, bias, activation)
    h, of_norm = _normalize(y, norm, needs_backward)
    return h, (y, *of_norm, *of_linear)


def gcn_backward(
    saved: Saved, inputs: Saved, settings: Saved, grads: Saved, needs_grad: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of x, of the weight and of the bias."""
    matrix, activation, norm, rate, keys = settings
    count = 1 if norm is None else 3
    grad, grad_bias = _layer_end_backward(grads[0].contiguous(), saved[:count], norm, activation)
    transposed = matrix.transposed
    grad_x: Tensor | None = sparse_product.forward(transposed.pattern, transposed.values, grad)
    if len(saved) == count:
        return grad_x, None, grad_bias
    grad_x, grad_weight, _ = linear.backward(
        saved[count:], inputs, (rate, keys), (grad_x, None), (needs_grad[0], needs_grad[1], False)
    )
    return grad_x, grad_weight, grad_bias


@on_device
def attention_forward(
    scores: Tensor, z: Tensor, bias: Tensor | None, matrix: Any, activation: str, negative_slope: float,
    rate: float, keys: Tensor | None, norm: "PairNorm | None", needs_backward: bool,
) -> tuple[Tensor, tuple[Tensor, ...]]:  # fmt: skip
    """Return ``[nodes, models, features]`` and the tensors for the backward pass."""
    pattern, scores, z = matrix.pattern, scores.contiguous(), z.contiguous()
    dropped = 0 if keys is None or rate == 0 else dropped_levels(rate)
    weights = scores.new_empty(pattern.num_entries, z.size(1))
    masked = torch.empty_like(weights) if dropped else weights
    words = (pattern.num_entries + 1) // 2
    _weights[_grid(pattern, z)](
        pattern.crow, pattern.column, scores, scores if keys is None else keys, weights, masked,
        z.size(1), negative_slope, dropped, words, dropped > 0, ENTRIES, _block(z), num_warps=2,
    )  # fmt: skip
    y = sparse_product.forward(pattern, masked.t(), z, bias, activation)
    h, of_norm = _normalize(y, norm, needs_backward)
    return h, (scores, z, weights, masked, y, *of_norm)


@on_device
def attention_backward(
    saved: Saved, inputs: Saved, settings: Saved, grads: Saved, needs_grad: tuple[bool, ...]
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the gradients of the scores, of z and of the bias."""
    scores, z, weights, masked, *of_end = saved
    matrix, activation, negative_slope, _, _, norm = settings
    pattern, grad, grad_bias = matrix.pattern, grads[0].contiguous(), None
    if norm is not None or needs_grad[2] or activation != "none":
        grad, grad_bias = _layer_end_backward(grad, of_end, norm, activation)
    transposed = pattern.transposed
    schedule = Schedule.of(transposed)
    nodes, models, features = z.shape
    grad_scores, change = torch.empty_like(scores), torch.empty_like(weights)
    grad_z = z.new_empty(schedule.num_places, models * features)
    tile = tile_of(models, features)
    _gather_gradient[(schedule.start.numel(), triton.cdiv(models, tile[0]))](
        schedule.row, schedule.start, schedule.stop, schedule.place, transposed.column, pattern.order,
        z, masked, grad, grad_z, change, models, features, UNROLL, *tile, num_warps=1,
    )  # fmt: skip
    join(schedule, grad_z)
    _score_gradient[_grid(pattern, z)](
        pattern.crow, pattern.column, scores, weights, masked, change, grad_scores,
        models, negative_slope, ENTRIES, _block(z), num_warps=2,
    )  # fmt: skip
    _sum_rows[_grid(transposed, z)](
        transposed.crow, pattern.order, change, grad_scores, models, ENTRIES, _block(z), num_warps=2
    )
    return grad_scores, grad_z[:nodes].view_as(z), grad_bias if needs_grad[2] else None


def _normalize(y: Tensor, norm: "PairNorm | None", needs_backward: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return PairNorm of ``y``, if there is one, and the tensors for its backward pass."""
    if norm is None:
        return y, ()
    return pair_norm.forward(y, None, norm.scale, norm.eps, norm.mode, needs_backward)


def _layer_end_backward(
    grad: Tensor, saved: Saved | list[Tensor], norm: "PairNorm | None", activation: str
) -> tuple[Tensor, Tensor]:
    """Return the gradients of what the activation was given, and of the bias in it."""
    if norm is None:
        return sparse_product.activation_backward(grad, saved[0], activation)
    y, norms, center = saved
    return pair_norm.backward_activated(grad, y, norms, center, norm.scale, norm.mode == "PN-SI", activation)


def _block(z: Tensor) -> int:
    return min(MODELS, triton.next_power_of_2(z.size(1)))


def _grid(pattern: Pattern, z: Tensor) -> tuple[int, int]:
    return pattern.shape[0], triton.cdiv(z.size(1), _block(z))


@triton.jit
def _row_and_models(crow, scores, models, MODELS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return a program's row, models, which of them exist, their scores as a target, and the row's bounds."""
    row = tl.program_id(0).to(tl.int64)
    model = tl.program_id(1) * MODELS + tl.arange(0, MODELS)
    own = tl.load(scores + (row * models + model) * 2 + 1, model < models, other=0.0)
    return row, model, model < models, own, tl.load(crow + row), tl.load(crow + row + 1)


@triton.jit
def _score(scores, own, other, both, model, models):  # type: ignore[no-untyped-def]
    """Return each entry's score before LeakyReLU: the column's as a source, the row's own as a target."""
    return tl.load(scores + (other[:, None] * models + model[None, :]) * 2, both, other=0.0) + own[None, :]


@triton.jit
def _weights(  # type: ignore[no-untyped-def]
    crow, column, scores, keys, weights, masked, models, negative_slope, dropped, words,
    DROPOUT: tl.constexpr, UNROLL: tl.constexpr, MODELS: tl.constexpr,
):  # fmt: skip
    """Return the softmax of a row's scores, without and with dropout."""
    _, model, known, own, begin, end = _row_and_models(crow, scores, models, MODELS)
    largest = tl.full([MODELS], -float("inf"), tl.float32)
    total = tl.zeros([MODELS], tl.float32)
    for first in range(begin, end, UNROLL):
        entry = first + tl.arange(0, UNROLL)
        here = entry < end
        other = tl.load(column + entry, here, other=0).to(tl.int64)
        score = _score(scores, own, other, here[:, None] & known[None, :], model, models)
        score = tl.where(here[:, None], tl.where(score > 0, score, score * negative_slope), -float("inf"))
        larger = tl.maximum(largest, tl.max(score, 0))
        total = total * tl.exp(largest - larger) + tl.sum(tl.exp(score - larger[None, :]), 0)
        largest = larger
    if DROPOUT:
        key = tl.load(keys + model, known, other=0)
    for first in range(begin, end, UNROLL):
        entry = first + tl.arange(0, UNROLL)
        here = entry < end
        other = tl.load(column + entry, here, other=0).to(tl.int64)
        both = here[:, None] & known[None, :]
        score = _score(scores, own, other, both, model, models)
        score = tl.where(score > 0, score, score * negative_slope)
        weight = tl.exp(score - largest[None, :]) / total[None, :]
        position = entry.to(tl.int64)[:, None] * models + model[None, :]
        tl.store(weights + position, weight, both)
        if DROPOUT:
            half = (entry >= words).to(tl.int32)
            factor = keep_factor((entry - half * words)[:, None], key[None, :], half[:, None], dropped)
            tl.store(masked + position, weight * factor, both)


@triton.jit
def _gather_gradient(  # type: ignore[no-untyped-def]
    row, start, stop, position, column, order, z, masked, grad, grad_z, products, models, features,
    UNROLL: tl.constexpr, MODELS: tl.constexpr, FEATURES: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """For a node of z: the sum of the gradients it had a part in, and its product with each of them."""
    piece, width = tl.program_id(0), models * features
    model, across, inside = groups(models, features, MODELS, FEATURES, GROUP)
    each, latest = tl.program_id(1) * MODELS + tl.arange(0, MODELS), tl.arange(0, UNROLL)
    first, last = tl.load(start + piece), tl.load(stop + piece)
    value = tl.load(z + tl.load(row + piece).to(tl.int64) * width + across, inside, other=0.0).to(tl.float32)
    total = tl.zeros([MODELS * FEATURES // GROUP, GROUP], tl.float32)
    for step in range(0, last - first, UNROLL):
        parts = tl.zeros([MODELS * FEATURES // GROUP, UNROLL], tl.float32)
        for number in tl.static_range(UNROLL):
            entry = first + step + number
            other = tl.load(column + entry, entry < last, other=0).to(tl.int64)
            edge = tl.load(order + entry, entry < last, other=0).to(tl.int64)
            known = model < tl.where(entry < last, models, 0)
            weight = tl.load(masked + edge * models + model, known, other=0.0)
            selected = (weight != 0)[:, None] & inside  # what was dropped has no gradient
            gradients = tl.load(grad + other * width + across, selected, other=0.0).to(tl.float32)
            total += weight[:, None] * gradients
            parts = tl.where(latest[None, :] == number, tl.sum(gradients * value, 1)[:, None], parts)
        # Stored together, because no load can overtake a store.
        product = tl.sum(tl.reshape(parts, [MODELS, FEATURES // GROUP, UNROLL]), 1)
        entry = first + step + latest
        edge = tl.load(order + entry, entry < last, other=0).to(tl.int64)
        both = (each < models)[:, None] & (entry < last)[None, :]
        tl.store(products + edge[None, :] * models + each[:, None], product, both)
    target = tl.load(position + piece).to(tl.int64)
    tl.store(grad_z + target * width + across, total, inside)


@triton.jit
def _score_gradient(  # type: ignore[no-untyped-def]
    crow, column, scores, weights, masked, change, grad_scores, models, negative_slope,
    UNROLL: tl.constexpr, MODELS: tl.constexpr,
):  # fmt: skip
    """Turn products into gradients of scores in position, through dropout and softmax; sum them up by row."""
    row, model, known, own, begin, end = _row_and_models(crow, scores, models, MODELS)
    mean = tl.zeros([MODELS], tl.float32)
    for first in range(begin, end, UNROLL):
        entry = first + tl.arange(0, UNROLL)
        both = (entry < end)[:, None] & known[None, :]
        position = entry.to(tl.int64)[:, None] * models + model[None, :]
        weight = tl.load(masked + position, both, other=0.0)
        mean += tl.sum(weight * tl.load(change + position, both, other=0.0), 0)
    total = tl.zeros([MODELS], tl.float32)
    for first in range(begin, end, UNROLL):
        entry = first + tl.arange(0, UNROLL)
        here = entry < end
        other = tl.load(column + entry, here, other=0).to(tl.int64)
        both = here[:, None] & known[None, :]
        position = entry.to(tl.int64)[:, None] * models + model[None, :]
        value = tl.load(masked + position, both, other=0.0) * tl.load(change + position, both, other=0.0)
        value -= tl.load(weights + position, both, other=0.0) * mean[None, :]
        score = _score(scores, own, other, both, model, models)
        value = tl.where(score > 0, value, value * negative_slope)
        tl.store(change + position, value, both)
        total += tl.sum(value, 0)
    tl.store(grad_scores + (row * models + model) * 2 + 1, total, known)


@triton.jit
def _sum_rows(crow, order, x, result, width, UNROLL: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sum the gradients of a node's scores as a source."""
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
