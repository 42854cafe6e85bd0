"""Dropout and linear map in Triton: the mask is made where the numbers are read, and never stored.

Layers are narrow and graphs long, so every product is a matter of reading and writing the states once:
``DropoutLinear`` does just that, also for the gradient of the weights, whose sum over all nodes is shared out
among programs and then added up.
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
ROWS = 64
PROGRAMS = 1024


def supports(weight: Tensor) -> bool:
    """Say whether a trial's weight fits a program; wide ones are better off with the matrix library."""
    width, out = _padded(*weight.shape[1:])
    return width * out <= LARGEST


class DropoutLinear(torch.autograd.Function):
    """``pairnorm.nn.linear.trial_linear``; differentiable once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, rate: float, keys: Tensor | None) -> Tensor:
        """Return ``[nodes, trials, out]``."""
        dropped = 0 if keys is None or rate == 0 else dropped_levels(rate)
        keys = x if keys is None else keys
        x, weight = x.contiguous(), weight.contiguous()
        ctx.dropped = dropped
        ctx.save_for_backward(x, weight, keys)
        nodes, (trials, width, out) = x.size(0), weight.shape
        result = x.new_empty(nodes, trials, out)
        _forward[(triton.cdiv(nodes, ROWS), trials)](
            x,
            weight,
            keys,
            result,
            nodes,
            trials,
            width,
            out,
            dropped,
            dropped > 0,
            ROWS,
            *_padded(width, out),
            num_warps=4,
        )
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        """Return the gradients of x and of the weight."""
        x, weight, keys = ctx.saved_tensors
        grad = grad.contiguous()
        nodes, (trials, width, out) = x.size(0), weight.shape
        sizes = (nodes, trials, width, out, ctx.dropped, ctx.dropped > 0, ROWS, *_padded(width, out))
        grad_x = grad_weight = None
        tiles = triton.cdiv(nodes, ROWS)
        if ctx.needs_input_grad[0]:
            grad_x = torch.empty_like(x)
            _backward_x[(tiles, trials)](grad, weight, keys, grad_x, *sizes, num_warps=4)
        if ctx.needs_input_grad[1]:
            share = triton.cdiv(tiles, max(1, min(tiles, PROGRAMS // trials))) * ROWS
            programs = triton.cdiv(nodes, share)
            sums = x.new_empty(programs, trials, width, out)
            _backward_weight[(programs, trials)](x, grad, keys, sums, share, *sizes, num_warps=4)
            grad_weight = sums.sum(0)
        return grad_x, grad_weight, None, None


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
def _forward(  # type: ignore[no-untyped-def]
    x, weight, keys, result, nodes, trials, width, out, dropped,
    DROPOUT: tl.constexpr, ROWS: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    into, outof = tl.arange(0, IN), tl.arange(0, OUT)
    tile = _load(x, row, into, nodes, trials, width)
    if DROPOUT:
        tile = _masked(tile, keys, row, into, width, dropped)
    product = tl.dot(tile, _load_weight(weight, into, outof, width, out), input_precision="tf32x3")
    _store(result, product, row, outof, nodes, trials, out)


@triton.jit
def _backward_x(  # type: ignore[no-untyped-def]
    grad, weight, keys, result, nodes, trials, width, out, dropped,
    DROPOUT: tl.constexpr, ROWS: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    into, outof = tl.arange(0, IN), tl.arange(0, OUT)
    tile = _load(grad, row, outof, nodes, trials, out)
    across = tl.trans(_load_weight(weight, into, outof, width, out))
    product = tl.dot(tile, across, input_precision="tf32x3")
    if DROPOUT:
        product = _masked(product, keys, row, into, width, dropped)
    _store(result, product, row, into, nodes, trials, width)


@triton.jit
def _backward_weight(  # type: ignore[no-untyped-def]
    x, grad, keys, sums, share, nodes, trials, width, out, dropped,
    DROPOUT: tl.constexpr, ROWS: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * share
    last = tl.minimum(first + share, nodes)
    into, outof = tl.arange(0, IN), tl.arange(0, OUT)
    total = tl.zeros([IN, OUT], tl.float32)
    for start in range(first, last, ROWS):
        row = start + tl.arange(0, ROWS)
        tile = _load(x, row, into, last, trials, width)
        if DROPOUT:
            tile = _masked(tile, keys, row, into, width, dropped)
        slope = _load(grad, row, outof, last, trials, out)
        total = tl.dot(tl.trans(tile), slope, total, input_precision="tf32x3")
    place = (tl.program_id(0) * trials + tl.program_id(1)).to(tl.int64) * width * out
    offset = into[:, None] * out + outof[None, :]
    tl.store(sums + place + offset, total, (into < width)[:, None] & (outof < out)[None, :])
