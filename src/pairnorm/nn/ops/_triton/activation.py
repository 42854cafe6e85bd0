"""Bias and activation in Triton; the backward pass sums the bias gradient as it goes."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pairnorm.nn.ops._triton.tiles import CODES, activated, gradient_of
from pairnorm.nn.ops.kernels import STATE_DTYPES, on_device, partition_nodes

ROWS, COLUMNS = 32, 64
PROGRAMS = 1024


def supports(x: Tensor) -> bool:
    """Return whether the kernels take this dtype."""
    return x.dtype in STATE_DTYPES


@on_device
def forward(x: Tensor, bias: Tensor, activation: str) -> Tensor:
    """Return ``activation(x + bias)``."""
    y = torch.empty_like(x)
    nodes, width = x.size(0), x[0].numel()
    grid = (triton.cdiv(nodes, ROWS), triton.cdiv(width, COLUMNS))
    _forward[grid](x, bias, y, nodes, width, CODES[activation], ROWS, COLUMNS, num_warps=4)
    return y


@on_device
def backward(grad: Tensor, y: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and of the bias."""
    result = torch.empty_like(y)
    nodes, width = y.size(0), y[0].numel()
    columns = triton.cdiv(width, COLUMNS)
    programs, share = partition_nodes(nodes, columns, ROWS, PROGRAMS)
    sums = y.new_empty(programs, *y.shape[1:], dtype=torch.float32)
    _backward[(programs, columns)](
        grad, y, result, sums, nodes, share, width, CODES[activation], ROWS, COLUMNS, num_warps=4
    )
    return result, sums.sum(0)


@triton.jit
def _forward(x, bias, y, nodes, width, CODE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < nodes)[:, None] & (column < width)[None, :]
    offset = row.to(tl.int64)[:, None] * width + column[None, :]
    value = tl.load(x + offset, inside, other=0.0).to(tl.float32)
    value += tl.load(bias + column, column < width, other=0.0)[None, :]
    tl.store(y + offset, activated(value, CODE), inside)


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    grad, y, result, sums, nodes, share, width, CODE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    first = tl.program_id(0) * share
    last = tl.minimum(first + share, nodes)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([COLUMNS], tl.float32)
    for start in range(first, last, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row < last)[:, None] & (column < width)[None, :]
        offset = row.to(tl.int64)[:, None] * width + column[None, :]
        gradient = tl.load(grad + offset, inside, other=0.0).to(tl.float32)
        if CODE != 0:
            gradient = gradient_of(gradient, tl.load(y + offset, inside, other=0.0).to(tl.float32), CODE)
        tl.store(result + offset, gradient, inside)
        total += tl.sum(gradient, 0)
    tl.store(sums + tl.program_id(0).to(tl.int64) * width + column, total, column < width)
