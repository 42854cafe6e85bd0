"""The keyed dropout of ``pairnorm.nn.dropout`` as one Triton kernel, equal to it bit for bit."""

import torch
import triton
import triton.language as tl
from torch import Tensor

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
BLOCK = 1024


def apply(x: Tensor, dropped: int, keys: Tensor) -> Tensor:
    """Drop ``dropped`` of 2¹⁶ entries of ``x`` ``[nodes, trials, features]``."""
    result = torch.empty_like(x, memory_format=torch.contiguous_format)
    node, trial, feature = x.stride()
    grid = (triton.cdiv(x.numel(), BLOCK),)
    _dropout[grid](
        x, keys, result, x.numel(), x.size(1), x.size(2), node, trial, feature, dropped, BLOCK, num_warps=4
    )
    return result


@triton.jit
def keep_factor(position, key, half, dropped):  # type: ignore[no-untyped-def]
    """Return 0, or 1 / (1 - rate), for 16-bit word ``half`` of the hash of (key, position)."""
    first: tl.constexpr = 0x7FEB352D
    second: tl.constexpr = 0x846CA68B - 2**32
    bits = position.to(tl.int32) + 1
    bits = (bits ^ (bits >> 16)) * first
    bits = (bits ^ (bits >> 15)) * second
    bits = (bits ^ (bits >> 16)) ^ key
    bits = bits * first
    bits = (bits ^ (bits >> 15)) * second
    bits = bits ^ (bits >> 16)
    word = tl.where(half == 0, (bits << 16) >> 16, bits >> 16)
    return tl.where(word >= dropped - 32768, 65536.0 / (65536 - dropped), 0.0)


@triton.jit
def _dropout(  # type: ignore[no-untyped-def]
    x,
    keys,
    result,
    count,
    trials,
    features,
    node_stride,
    trial_stride,
    feature_stride,
    dropped,
    BLOCK: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    feature = place % features
    trial = (place // features) % trials
    node = place // (features * trials)
    key = tl.load(keys + trial, inside, other=0)
    words = (features + 1) // 2
    factor = keep_factor(node * words + feature % words, key, feature // words, dropped)
    value = tl.load(
        x + node * node_stride + trial * trial_stride + feature * feature_stride, inside, other=0.0
    )
    tl.store(result + place, (value.to(tl.float32) * factor).to(result.dtype.element_ty), inside)
