"""A step of a walk on CUDA in Triton, for this benchmark alone; in half precision too: sums are in single."""

import triton
import triton.language as tl
from torch import Tensor

from pairnorm.nn.ops.kernels import on_device

UNROLL = 8
BLOCK = 128


@on_device
def hop(x: Tensor, crow: Tensor, column: Tensor, y: Tensor) -> None:
    """Write D̃⁻¹ Ã x to ``y``, for an adjacency without weights.

    Args:
        x: [n, columns], contiguous.
        crow: [n + 1]; int64 where there are 2³¹ entries or more.
        column: int32 [entries].
        y: like x.
    """
    nodes, width = x.shape
    block = min(BLOCK, triton.next_power_of_2(width))
    grid = (nodes, triton.cdiv(width, block))
    _hop[grid](x, crow, column, y, width, UNROLL, block, num_warps=1)


@triton.jit
def _hop(x, crow, column, y, width, UNROLL: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    across = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = across < width
    begin, end = tl.load(crow + row), tl.load(crow + row + 1)
    total = tl.load(x + row * width + across, inside, other=0.0).to(tl.float32)
    for first in range(begin, end, UNROLL):
        entry = first + tl.arange(0, UNROLL)
        here = entry < end
        source = tl.load(column + entry, here, other=0).to(tl.int64)
        both = here[:, None] & inside[None, :]
        total += tl.sum(
            tl.load(x + source[:, None] * width + across[None, :], both, other=0.0).to(tl.float32), 0
        )
    count = (end - begin + 1).to(tl.float32)
    tl.store(y + row * width + across, (total / count).to(y.dtype.element_ty), inside)
