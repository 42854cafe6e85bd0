"""Keyed dropout as one Triton kernel, equal to the reference bit for bit."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pairnorm.nn.ops.dropout import dropped_levels
from pairnorm.nn.ops.kernels import on_device

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
BLOCK = 1024


@on_device
def forward(x: Tensor, rate: float, keys: Tensor, first: int = 0) -> Tensor:
    """Drop entries of ``[nodes, models, features]``."""
    result = torch.empty_like(x, memory_format=torch.contiguous_format)
    nodes, models, features = x.shape
    columns = min(BLOCK, triton.next_power_of_2(features))
    rows = BLOCK // columns
    grid = (triton.cdiv(nodes * models, rows), triton.cdiv(features, columns))
    _dropout[grid](
        x, keys, result, nodes * models, models, features, *x.stride(), first, dropped_levels(rate), rows,
        columns, num_warps=4,
    )  # fmt: skip
    return result


@triton.jit
def keeps(position, key, dropped):  # type: ignore[no-untyped-def]
    """Return which entries stay, for both 16-bit words of the hash of (key, position)."""
    first: tl.constexpr = 0x7FEB352D
    second: tl.constexpr = 0x846CA68B
    bits = position.to(tl.uint32) + 1
    bits = (bits ^ (bits >> 16)) * first
    bits = (bits ^ (bits >> 15)) * second
    bits = (bits ^ (bits >> 16)) ^ key.to(tl.uint32)
    bits = bits * first
    bits = (bits ^ (bits >> 15)) * second
    bits = bits ^ (bits >> 16)
    least = (dropped + tl.zeros([], tl.int32)).to(tl.uint32) << 16
    return (bits << 16) >= least, bits >= least


@triton.jit
def factor_of(dropped):  # type: ignore[no-untyped-def]
    """Return the factor of entries that stay, 1 / (1 - rate)."""
    return 65536.0 / (65536 - dropped)


@triton.jit
def keep_factor(position, key, half, dropped):  # type: ignore[no-untyped-def]
    """Return 0, or 1 / (1 - rate), for word ``half`` alone."""
    low, high = keeps(position, key, dropped)
    return tl.where(tl.where(half == 0, low, high), factor_of(dropped), 0.0)


@triton.jit
def _dropout(  # type: ignore[no-untyped-def]
    x, keys, result, rows, models, features, node_stride, model_stride, feature_stride, first, dropped,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    feature = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (feature < features)[None, :]
    node, model = row // models, row % models
    words = (features + 1) // 2
    key = tl.load(keys + model, row < rows, other=0)
    position = ((first + node) * words)[:, None] + (feature % words)[None, :]
    factor = keep_factor(position, key[:, None], (feature // words)[None, :], dropped)
    start = node.to(tl.int64) * node_stride + model.to(tl.int64) * model_stride
    value = tl.load(x + start[:, None] + (feature * feature_stride)[None, :], inside, other=0.0)
    place = row.to(tl.int64)[:, None] * features + feature[None, :]
    tl.store(result + place, (value.to(tl.float32) * factor).to(result.dtype.element_ty), inside)
