"""Attention over a sparsity pattern on CUDA in Triton: softmax, dropout and average in one sweep over each
row's entries.

Nothing of size ``[entries, trials, features]`` is ever made. The backward pass makes the weights anew from
the scores and the
rows' normalisers, as flash attention does.
"""

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pairnorm.nn.cuda.dropout import keep_factor
from pairnorm.nn.dropout import dropped_levels

if TYPE_CHECKING:
    from pairnorm.nn.sparse import Pattern

DTYPES = (torch.float32,)
UNROLL = 4
TILE = 256
WARPS = 2


class Attend(torch.autograd.Function):
    """``pairnorm.nn.attention.attend`` for the scores and features of one layer; differentiable once."""

    @staticmethod
    def forward(
        ctx: Any,
        pattern: "Pattern",
        source: Tensor,
        target: Tensor,
        z: Tensor,
        slope: float,
        rate: float,
        keys: Tensor | None,
    ) -> Tensor:
        """Return ``[nodes, trials, features]``."""
        source, target, z = source.contiguous(), target.contiguous(), z.contiguous()
        y = torch.empty_like(z)
        normaliser = torch.empty_like(target)
        dropped = 0 if keys is None else dropped_levels(rate)
        keys = source if keys is None else keys
        trials, features, tile = _tiling(z)
        grid = (pattern.shape[0], triton.cdiv(trials, tile[0]))
        _attend[grid](
            pattern.crow, pattern.column, source, target, z, keys, y, normaliser, trials, features, slope, dropped,
            (pattern.num_entries + 1) // 2, dropped > 0, UNROLL, *tile, num_warps=WARPS,
        )  # fmt: skip
        ctx.pattern, ctx.slope, ctx.dropped = pattern, slope, dropped
        ctx.save_for_backward(source, target, z, y, normaliser, keys)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the scores and of z."""
        source, target, z, y, normaliser, keys = ctx.saved_tensors
        pattern, grad = ctx.pattern, grad.contiguous()
        mean = torch.empty_like(target)
        rows = mean.numel()
        _row_products[(triton.cdiv(rows, 32),)](grad, y, mean, rows, z.size(-1), 32, triton.next_power_of_2(z.size(-1)))
        grad_z, grad_source, grad_target = (
            torch.empty_like(z),
            torch.empty_like(source),
            torch.empty_like(target),
        )
        trials, features, tile = _tiling(z)
        grad_score = source.new_empty(pattern.num_entries, trials)
        transposed = pattern.transposed
        grid = (transposed.shape[0], triton.cdiv(trials, tile[0]))
        _attend_gradient[grid](
            transposed.crow, transposed.column, pattern.order, source, target, z, keys, normaliser, mean, grad,
            grad_z, grad_source, grad_score, trials, features, ctx.slope, ctx.dropped,
            (pattern.num_entries + 1) // 2, ctx.dropped > 0, UNROLL, *tile, num_warps=WARPS,
        )  # fmt: skip
        block = triton.next_power_of_2(min(trials, 64))
        _sum_rows[(pattern.shape[0], triton.cdiv(trials, block))](
            pattern.crow, grad_score, grad_target, trials, UNROLL, block, num_warps=1
        )
        return None, grad_source, grad_target, grad_z, None, None, None


def _tiling(z: Tensor) -> tuple[int, int, tuple[int, int]]:
    """Return trials, features, and the shape of a tile: trials x features, both powers of two."""
    _, trials, features = z.shape
    columns = triton.next_power_of_2(features)
    return trials, features, (max(1, min(TILE // columns, triton.next_power_of_2(trials))), columns)


@triton.jit
def _attend(  # type: ignore[no-untyped-def]
    crow, column, source, target, z, keys, y, normaliser, trials, features, slope, dropped, words,
    DROPOUT: tl.constexpr, UNROLL: tl.constexpr, TRIALS: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    trial = tl.program_id(1) * TRIALS + tl.arange(0, TRIALS)
    feature = tl.arange(0, FEATURES)
    known, width = trial < trials, feature < features
    own = tl.load(target + row * trials + trial, known, other=0.0)
    if DROPOUT:
        key = tl.load(keys + trial, known, other=0)
    largest = tl.full([TRIALS], -float("inf"), tl.float32)
    total = tl.zeros([TRIALS], tl.float32)
    result = tl.zeros([TRIALS, FEATURES], tl.float32)
    last = tl.load(crow + row + 1)
    for first in range(tl.load(crow + row), last, UNROLL):
        entry = first + tl.arange(0, UNROLL)
        here = entry < last
        other = tl.load(column + entry, here, other=0).to(tl.int64)
        both = here[:, None] & known[None, :]
        offset = (other[:, None] * trials + trial[None, :])[:, :, None] * features + feature[None, None, :]
        value = tl.load(z + offset, both[:, :, None] & width[None, None, :], other=0.0)
        score = tl.load(source + other[:, None] * trials + trial[None, :], both, other=0.0) + own[None, :]
        score = tl.where(score > 0, score, score * slope)
        score = tl.where(here[:, None], score, -float("inf"))
        larger = tl.maximum(largest, tl.max(score, 0))
        shrink = tl.exp(largest - larger)
        weight = tl.exp(score - larger[None, :])
        total = total * shrink + tl.sum(weight, 0)
        if DROPOUT:
            weight = weight * keep_factor(
                (entry % words)[:, None], key[None, :], (entry // words)[:, None], dropped
            )
        result = result * shrink[:, None] + tl.sum(weight[:, :, None] * value, 0)
        largest = larger
    tl.store(normaliser + row * trials + trial, largest + tl.log(total), known)
    offset = (row * trials + trial)[:, None] * features + feature[None, :]
    tl.store(y + offset, result / total[:, None], known[:, None] & width[None, :])


@triton.jit
def _attend_gradient(  # type: ignore[no-untyped-def]
    crow, column, order, source, target, z, keys, normaliser, mean, grad, grad_z, grad_source, grad_score,
    trials, features, slope, dropped, words,
    DROPOUT: tl.constexpr, UNROLL: tl.constexpr, TRIALS: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    trial = tl.program_id(1) * TRIALS + tl.arange(0, TRIALS)
    feature = tl.arange(0, FEATURES)
    known, width = trial < trials, feature < features
    place = row * trials + trial
    offset = place[:, None] * features + feature[None, :]
    own = tl.load(source + place, known, other=0.0)
    value = tl.load(z + offset, known[:, None] & width[None, :], other=0.0)
    if DROPOUT:
        key = tl.load(keys + trial, known, other=0)
    result = tl.zeros([TRIALS, FEATURES], tl.float32)
    total = tl.zeros([TRIALS], tl.float32)
    last = tl.load(crow + row + 1)
    for first in range(tl.load(crow + row), last, UNROLL):
        entry = first + tl.arange(0, UNROLL)
        here = entry < last
        other = tl.load(column + entry, here, other=0).to(tl.int64)
        number = tl.load(order + entry, here, other=0)
        both = here[:, None] & known[None, :]
        there = other[:, None] * trials + trial[None, :]
        slopes = tl.load(
            grad + there[:, :, None] * features + feature[None, None, :],
            both[:, :, None] & width[None, None, :],
            other=0.0,
        )
        score = tl.load(target + there, both, other=0.0) + own[None, :]
        leak = tl.where(score > 0, 1.0, slope)
        weight = tl.exp(score * leak - tl.load(normaliser + there, both, other=float("inf")))
        kept = weight
        inner = tl.sum(slopes * value[None, :, :], 2)
        if DROPOUT:
            factor = keep_factor((number % words)[:, None], key[None, :], (number // words)[:, None], dropped)
            kept = weight * factor
            inner = inner * factor
        change = weight * (inner - tl.load(mean + there, both, other=0.0)) * leak
        result += tl.sum(kept[:, :, None] * slopes, 0)
        total += tl.sum(change, 0)
        tl.store(grad_score + number.to(tl.int64)[:, None] * trials + trial[None, :], change, both)
    tl.store(grad_z + offset, result, known[:, None] & width[None, :])
    tl.store(grad_source + place, total, known)


@triton.jit
def _row_products(left, right, result, rows, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    offset = row[:, None] * width + column[None, :]
    product = tl.load(left + offset, inside, other=0.0) * tl.load(right + offset, inside, other=0.0)
    tl.store(result + row, tl.sum(product, 1), row < rows)


@triton.jit
def _sum_rows(crow, x, result, width, UNROLL: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    across = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    last = tl.load(crow + row + 1)
    for first in range(tl.load(crow + row), last, UNROLL):
        entry = first + tl.arange(0, UNROLL)
        both = (entry < last)[:, None] & (across < width)[None, :]
        total += tl.sum(
            tl.load(x + entry.to(tl.int64)[:, None] * width + across[None, :], both, other=0.0), 0
        )
    tl.store(result + row * width + across, total, across < width)
