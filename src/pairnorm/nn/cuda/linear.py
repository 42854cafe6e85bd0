"""Dropout and linear map in Triton: the mask is made where the numbers are read, and never stored.

Layers are narrow and graphs long, so every product is a matter of reading and writing the states once. One
kernel goes forward, one backward; the latter shares the nodes out among programs, whose sums over their
nodes, the gradients of the weights, are then added up. Rows are taken in halves: one hash serves two columns.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pairnorm.nn.cuda.dropout import keep_factors
from pairnorm.nn.dropout import dropped_levels

DTYPES = (torch.float32,)
LARGEST = 64 * 64
ENDS = 16
ROWS = 64
FORWARD_WARPS = 4
BACKWARD_WARPS = 8
PROGRAMS = 528


def supports(weight: Tensor, ends: Tensor | None = None) -> bool:
    """Say whether a trial's weight fits a program; wide ones are better off with the matrix library."""
    half, out = _padded(*weight.shape[1:])
    return 2 * half * out <= LARGEST and (ends is None or ends.size(2) <= ENDS)


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
            nodes, trials, width, out, count, dropped, dropped > 0, count > 0,
            ROWS, *_padded(width, out), ENDS, num_warps=FORWARD_WARPS,
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
        tiles = triton.cdiv(nodes, ROWS)
        share = triton.cdiv(tiles, max(1, min(tiles, PROGRAMS // trials))) * ROWS
        programs = triton.cdiv(nodes, share)
        grad_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        sums = x.new_empty(programs, trials, width, out + count)
        _backward[(programs, trials)](
            x, weight, ends, keys, grad, grad if grad_scores is None else grad_scores.contiguous(),
            x if grad_x is None else grad_x, sums, share,
            nodes, trials, width, out, count, ctx.dropped, ctx.dropped > 0, count > 0, grad_x is not None,
            ROWS, *_padded(width, out), ENDS, num_warps=BACKWARD_WARPS,
        )  # fmt: skip
        total = sums.sum(0)
        # The scores are (x W) ends, so the gradient of the ends is Wᵀ (xᵀ grad_scores).
        grad_ends = weight.transpose(1, 2) @ total[..., out:] if count else None
        return grad_x, total[..., :out], grad_ends, None, None


def _padded(width: int, out: int) -> tuple[int, int]:
    """Half the width, and the width that comes out, as sizes that tensor cores take."""
    return max(16, triton.next_power_of_2((width + 1) // 2)), max(16, triton.next_power_of_2(out))


@triton.jit
def _offsets(row, column, trials, width):  # type: ignore[no-untyped-def]
    return (row.to(tl.int64) * trials + tl.program_id(1))[:, None] * width + column[None, :]


@triton.jit
def _load(x, row, column, last, trials, width):  # type: ignore[no-untyped-def]
    inside = (row < last)[:, None] & (column < width)[None, :]
    return tl.load(x + _offsets(row, column, trials, width), inside, other=0.0)


@triton.jit
def _load_matrix(matrix, into, outof, begin, end, width, out):  # type: ignore[no-untyped-def]
    """Rows ``begin + into``, up to ``end``, of this trial's matrix ``[width, out]``."""
    offset = (tl.program_id(1) * width + begin + into)[:, None] * out + outof[None, :]
    return tl.load(matrix + offset, (begin + into < end)[:, None] & (outof < out)[None, :], other=0.0)


@triton.jit
def _load_halves(x, row, half, words, last, trials, width):  # type: ignore[no-untyped-def]
    """Columns up to ``words``, and those from there on."""
    known = (row < last)[:, None]
    offset = _offsets(row, half, trials, width)
    left = tl.load(x + offset, known & (half < words)[None, :], other=0.0)
    return left, tl.load(x + offset + words, known & (words + half < width)[None, :], other=0.0)


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    x, weight, ends, keys, result, scores, nodes, trials, width, out, count, dropped,
    DROPOUT: tl.constexpr, SCORES: tl.constexpr,
    ROWS: tl.constexpr, HALF: tl.constexpr, OUT: tl.constexpr, ENDS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    half, outof = tl.arange(0, HALF), tl.arange(0, OUT)
    words = (width + 1) // 2
    left, right = _load_halves(x, row, half, words, nodes, trials, width)
    if DROPOUT:
        key = tl.load(keys + tl.program_id(1))
        first, second = keep_factors(row[:, None] * words + half[None, :], key, dropped)
        left, right = left * first, right * second
    product = tl.dot(left, _load_matrix(weight, half, outof, 0, words, width, out), input_precision="tf32x3")
    product = tl.dot(
        right, _load_matrix(weight, half, outof, words, width, width, out), product, input_precision="tf32x3"
    )
    inside = (row < nodes)[:, None]
    tl.store(result + _offsets(row, outof, trials, out), product, inside & (outof < out)[None, :])
    if SCORES:
        end = tl.arange(0, ENDS)
        score = tl.dot(product, _load_matrix(ends, outof, end, 0, out, out, count), input_precision="tf32x3")
        tl.store(scores + _offsets(row, end, trials, count), score, inside & (end < count)[None, :])


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    x, weight, ends, keys, grad, grad_scores, grad_x, sums, share,
    nodes, trials, width, out, count, dropped,
    DROPOUT: tl.constexpr, SCORES: tl.constexpr, WANTED: tl.constexpr,
    ROWS: tl.constexpr, HALF: tl.constexpr, OUT: tl.constexpr, ENDS: tl.constexpr,
):  # fmt: skip
    """The gradient of x where it is ``WANTED``, and a program's share of those of weight and ends."""
    first_row = tl.program_id(0) * share
    last = tl.minimum(first_row + share, nodes)
    half, outof, end = tl.arange(0, HALF), tl.arange(0, OUT), tl.arange(0, ENDS)
    words = (width + 1) // 2
    if DROPOUT:
        key = tl.load(keys + tl.program_id(1))
    left_sum = tl.zeros([HALF, OUT], tl.float32)
    right_sum = tl.zeros([HALF, OUT], tl.float32)
    if SCORES:
        left_ends = tl.zeros([HALF, ENDS], tl.float32)
        right_ends = tl.zeros([HALF, ENDS], tl.float32)
        back = tl.trans(_load_matrix(ends, outof, end, 0, out, out, count))
    if WANTED:
        to_left = tl.trans(_load_matrix(weight, half, outof, 0, words, width, out))
        to_right = tl.trans(_load_matrix(weight, half, outof, words, width, width, out))
    for start in range(first_row, last, ROWS):
        row = start + tl.arange(0, ROWS)
        left, right = _load_halves(x, row, half, words, last, trials, width)
        slope = _load(grad, row, outof, last, trials, out)
        if DROPOUT:
            first, second = keep_factors(row[:, None] * words + half[None, :], key, dropped)
            left, right = left * first, right * second
        if SCORES:
            score = _load(grad_scores, row, end, last, trials, count)
            slope = tl.dot(score, back, slope, input_precision="tf32x3")
            left_ends = tl.dot(tl.trans(left), score, left_ends, input_precision="tf32x3")
            right_ends = tl.dot(tl.trans(right), score, right_ends, input_precision="tf32x3")
        left_sum = tl.dot(tl.trans(left), slope, left_sum, input_precision="tf32x3")
        right_sum = tl.dot(tl.trans(right), slope, right_sum, input_precision="tf32x3")
        if WANTED:
            left = tl.dot(slope, to_left, input_precision="tf32x3")
            right = tl.dot(slope, to_right, input_precision="tf32x3")
            if DROPOUT:
                left, right = left * first, right * second
            known = (row < last)[:, None]
            offset = _offsets(row, half, trials, width)
            tl.store(grad_x + offset, left, known & (half < words)[None, :])
            tl.store(grad_x + offset + words, right, known & (words + half < width)[None, :])
    columns = out + count
    into = (tl.program_id(0) * trials + tl.program_id(1)).to(tl.int64) * width + half
    lower, upper = (half < words)[:, None], (words + half < width)[:, None]
    place = sums + into[:, None] * columns + outof[None, :]
    tl.store(place, left_sum, lower & (outof < out)[None, :])
    tl.store(place + words * columns, right_sum, upper & (outof < out)[None, :])
    if SCORES:
        place = sums + into[:, None] * columns + out + end[None, :]
        tl.store(place, left_ends, lower & (end < count)[None, :])
        tl.store(place + words * columns, right_ends, upper & (end < count)[None, :])
