"""Dropout and linear map in Triton: the mask is made where the numbers are read, and never stored.

Layers are narrow and graphs long, so every product is a matter of reading and writing the states once:
``DropoutLinear`` does just that, also for the gradient of the weights, whose sum over all nodes is shared out
among programs and then added up. The few scores that attention needs are taken from what is at hand anyway.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pairnorm.nn.cuda.dropout import keep_factor
from pairnorm.nn.dropout import dropped_levels

DTYPES = (torch.float32,)
LARGEST = 64 * 64
MOST_ENDS = 16
ROWS = 64
PROGRAMS = 1024


def supports(weight: Tensor, ends: Tensor | None = None) -> bool:
    """Say whether a trial's weight fits a program; wide ones are better off with the matrix library."""
    width, out = _padded(*weight.shape[1:])
    return width * out <= LARGEST and (ends is None or ends.size(2) <= MOST_ENDS)


class DropoutLinear(torch.autograd.Function):
    """``pairnorm.nn.linear.trial_linear_with_scores``; without ends, no scores. Differentiable once."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, ends: Tensor | None, rate: float, keys: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return ``[nodes, trials, out]`` and the scores."""
        dropped = 0 if keys is None or rate == 0 else dropped_levels(rate)
        keys = x if keys is None else keys
        x, weight = x.contiguous(), weight.contiguous()
        nodes, (trials, width, out) = x.size(0), weight.shape
        count = 0 if ends is None else ends.size(2)
        ends = weight if ends is None else ends.contiguous()
        ctx.dropped, ctx.count = dropped, count
        ctx.save_for_backward(x, weight, ends, keys)
        ctx.set_materialize_grads(False)
        result = x.new_empty(nodes, trials, out)
        scores = x.new_empty(nodes, trials, count) if count else None
        _forward[(triton.cdiv(nodes, ROWS), trials)](
            x, weight, ends, keys, result, scores if count else result,
            nodes, trials, width, out, dropped, dropped > 0, count, ROWS, *_padded(width, out), num_warps=4,
        )  # fmt: skip
        return result, scores

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor | None, grad_scores: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, of the weight and of the ends."""
        x, weight, ends, keys = ctx.saved_tensors
        nodes, (trials, width, out) = x.size(0), weight.shape
        grad = x.new_zeros(nodes, trials, out) if grad is None else grad.contiguous()
        count = 0 if grad_scores is None else ctx.count
        slopes = (grad, grad if grad_scores is None else grad_scores.contiguous())
        sizes = (nodes, trials, width, out, ctx.dropped, ctx.dropped > 0, count, ROWS, *_padded(width, out))
        grad_x = grad_weight = grad_ends = None
        tiles = triton.cdiv(nodes, ROWS)
        if ctx.needs_input_grad[0]:
            grad_x = torch.empty_like(x)
            _backward_x[(tiles, trials)](*slopes, weight, ends, keys, grad_x, *sizes, num_warps=4)
        if ctx.needs_input_grad[1]:
            share = triton.cdiv(tiles, max(1, min(tiles, PROGRAMS // trials))) * ROWS
            programs = triton.cdiv(nodes, share)
            sums = x.new_empty(programs, trials, width, out + count)
            _backward_weight[(programs, trials)](x, *slopes, ends, keys, sums, share, *sizes, num_warps=4)
            total = sums.sum(0)
            grad_weight = total[..., :out]
            # The scores are (x W) ends, so the gradient of the ends is Wᵀ (xᵀ grad_scores).
            grad_ends = weight.transpose(1, 2) @ total[..., out:] if count else None
        return grad_x, grad_weight, grad_ends, None, None


def _padded(width: int, out: int) -> tuple[int, int]:
    """Sizes that tensor cores take."""
    return max(16, triton.next_power_of_2(width)), max(16, triton.next_power_of_2(out))


@triton.jit
def _masked(tile, keys, row, column, width, dropped):  # type: ignore[no-untyped-def]
    words = (width + 1) // 2
    position = row[:, None] * words + (column % words)[None, :]
    key = tl.load(keys + tl.program_id(1))
    return tile * keep_factor(position, key, (column // words)[None, :], dropped)


@triton.jit
def _load(x, row, column, nodes, trials, width):  # type: ignore[no-untyped-def]
    offset = (row.to(tl.int64) * trials + tl.program_id(1))[:, None] * width + column[None, :]
    return tl.load(x + offset, (row < nodes)[:, None] & (column < width)[None, :], other=0.0)


@triton.jit
def _store(x, value, row, column, nodes, trials, width):  # type: ignore[no-untyped-def]
    offset = (row.to(tl.int64) * trials + tl.program_id(1))[:, None] * width + column[None, :]
    tl.store(x + offset, value, (row < nodes)[:, None] & (column < width)[None, :])


@triton.jit
def _load_weight(weight, into, outof, width, out):  # type: ignore[no-untyped-def]
    offset = tl.program_id(1) * width * out + into[:, None] * out + outof[None, :]
    return tl.load(weight + offset, (into < width)[:, None] & (outof < out)[None, :], other=0.0)


@triton.jit
def _load_end(ends, number, outof, out, COUNT: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.load(ends + (tl.program_id(1) * out + outof) * COUNT + number, outof < out, other=0.0)


@triton.jit
def _load_score(scores, number, row, nodes, trials, COUNT: tl.constexpr):  # type: ignore[no-untyped-def]
    offset = (row.to(tl.int64) * trials + tl.program_id(1)) * COUNT + number
    return tl.load(scores + offset, row < nodes, other=0.0)


@triton.jit
def _load_slope(grad, grad_scores, ends, row, outof, nodes, trials, out, COUNT: tl.constexpr):  # type: ignore[no-untyped-def]
    """The gradient of the product: what comes directly, and what comes by way of the scores."""
    slope = _load(grad, row, outof, nodes, trials, out)
    for number in tl.static_range(COUNT):
        score = _load_score(grad_scores, number, row, nodes, trials, COUNT)
        slope += score[:, None] * _load_end(ends, number, outof, out, COUNT)[None, :]
    return slope


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    x, weight, ends, keys, result, scores, nodes, trials, width, out, dropped,
    DROPOUT: tl.constexpr, COUNT: tl.constexpr, ROWS: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    into, outof = tl.arange(0, IN), tl.arange(0, OUT)
    tile = _load(x, row, into, nodes, trials, width)
    if DROPOUT:
        tile = _masked(tile, keys, row, into, width, dropped)
    product = tl.dot(tile, _load_weight(weight, into, outof, width, out), input_precision="tf32x3")
    _store(result, product, row, outof, nodes, trials, out)
    for number in tl.static_range(COUNT):
        score = tl.sum(product * _load_end(ends, number, outof, out, COUNT)[None, :], 1)
        offset = (row.to(tl.int64) * trials + tl.program_id(1)) * COUNT + number
        tl.store(scores + offset, score, row < nodes)


@triton.jit
def _backward_x(  # type: ignore[no-untyped-def]
    grad, grad_scores, weight, ends, keys, result, nodes, trials, width, out, dropped,
    DROPOUT: tl.constexpr, COUNT: tl.constexpr, ROWS: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    into, outof = tl.arange(0, IN), tl.arange(0, OUT)
    slope = _load_slope(grad, grad_scores, ends, row, outof, nodes, trials, out, COUNT)
    across = tl.trans(_load_weight(weight, into, outof, width, out))
    product = tl.dot(slope, across, input_precision="tf32x3")
    if DROPOUT:
        product = _masked(product, keys, row, into, width, dropped)
    _store(result, product, row, into, nodes, trials, width)


@triton.jit
def _backward_weight(  # type: ignore[no-untyped-def]
    x, grad, grad_scores, ends, keys, sums, share, nodes, trials, width, out, dropped,
    DROPOUT: tl.constexpr, COUNT: tl.constexpr, ROWS: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    """A program's share of xᵀ grad, and beside it of xᵀ grad_scores."""
    first = tl.program_id(0) * share
    last = tl.minimum(first + share, nodes)
    into, outof, number = tl.arange(0, IN), tl.arange(0, OUT), tl.arange(0, 16)
    total = tl.zeros([IN, OUT], tl.float32)
    by_score = tl.zeros([IN, 16], tl.float32)
    for start in range(first, last, ROWS):
        row = start + tl.arange(0, ROWS)
        tile = _load(x, row, into, last, trials, width)
        if DROPOUT:
            tile = _masked(tile, keys, row, into, width, dropped)
        slope = _load_slope(grad, grad_scores, ends, row, outof, last, trials, out, COUNT)
        total = tl.dot(tl.trans(tile), slope, total, input_precision="tf32x3")
        if COUNT > 0:
            score = _load(grad_scores, row, number, last, trials, COUNT)
            by_score = tl.dot(tl.trans(tile), score, by_score, input_precision="tf32x3")
    place = (tl.program_id(0) * trials + tl.program_id(1)).to(tl.int64) * width * (out + COUNT)
    offset = sums + place + into[:, None] * (out + COUNT)
    known = (into < width)[:, None]
    tl.store(offset + outof[None, :], total, known & (outof < out)[None, :])
    if COUNT > 0:
        tl.store(offset + out + number[None, :], by_score, known & (number < COUNT)[None, :])
