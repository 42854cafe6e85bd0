"""A propagation step over a block of columns on CUDA, in Triton: states may be in half precision.

Each program sums the neighbors of one row in float32. Row starts have 64 bits: there may be 2³¹ entries.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pairnorm.nn.ops.kernels import on_device

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
UNROLL = 8
BLOCK = 128


@on_device
def propagate(
    crow: Tensor, column: Tensor, weight: Tensor | None, roots: Tensor | None, x: Tensor, y: Tensor
) -> None:
    """Write D̃⁻¹ Ã x, or with ``roots`` D̃^(-1/2) Ã D̃^(-1/2) x, to ``y``; arguments as in ``_numba``."""
    nodes, width = x.shape
    block = min(BLOCK, triton.next_power_of_2(width))
    grid = (nodes, triton.cdiv(width, block))
    unused = x  # a pointer that is not read
    _propagate[grid](
        x, crow, column, unused if weight is None else weight, unused if roots is None else roots, y, width,
        weight is not None, roots is not None, UNROLL, block, num_warps=1,
    )  # fmt: skip


@triton.jit
def _propagate(  # type: ignore[no-untyped-def]
    x, crow, column, weight, roots, y, width,
    WEIGHTED: tl.constexpr, SYMMETRIC: tl.constexpr, UNROLL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    across = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = across < width
    begin, end = tl.load(crow + row), tl.load(crow + row + 1)
    total = tl.load(x + row * width + across, inside, other=0.0).to(tl.float32)
    degree = (end - begin + 1).to(tl.float32)
    if WEIGHTED:
        degree = tl.full((), 1.0, tl.float32)
    if SYMMETRIC:
        own = tl.load(roots + row)
        total *= own
    for first in range(begin, end, UNROLL):
        entry = first + tl.arange(0, UNROLL)
        here = entry < end
        source = tl.load(column + entry, here, other=0).to(tl.int64)
        both = here[:, None] & inside[None, :]
        values = tl.load(x + source[:, None] * width + across[None, :], both, other=0.0).to(tl.float32)
        if WEIGHTED:
            weights = tl.load(weight + entry, here, other=0.0)
            values *= weights[:, None]
            degree += tl.sum(weights, 0)
        if SYMMETRIC:
            values *= tl.load(roots + source, here, other=0.0)[:, None]
        total += tl.sum(values, 0)
    if SYMMETRIC:
        total *= own
    else:
        total /= degree
    tl.store(y + row * width + across, total.to(y.dtype.element_ty), inside)
