"""The keyed dropout of ``pairnorm.nn.dropout`` in numba: one pass, equal to the plain form bit for bit."""

from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from pairnorm.nn.cpu.simd import LANES, fill, load, store, where_less

DTYPES = (torch.float32,)
FIRST, SECOND, HALF = np.uint32(0x7FEB352D), np.uint32(0x846CA68B), np.uint32(0xFFFF)


def apply(x: Tensor, dropped: int, keys: Tensor, out: Tensor | None = None) -> Tensor:
    """Drop ``dropped`` of 2¹⁶ entries of ``x`` ``[nodes, trials, features]``; ``out`` may be ``x`` itself."""
    from pairnorm.nn.dropout import position_hash

    x = x.detach() if x.stride(-1) == 1 else x.detach().contiguous()
    result = torch.empty(x.shape) if out is None else out
    nodes, _, features = x.shape
    positions = position_hash(nodes * ((features + 1) // 2), x.device)
    _apply(
        x.numpy(),
        positions.numpy().view(np.uint32).reshape(nodes, -1),
        keys.numpy().view(np.uint32),
        np.uint32(dropped),
        np.float32(65536 / (65536 - dropped)),
        result.numpy(),
    )
    return result


@njit(inline="always")
def factors(positions: Any, row: Any, start: Any, key: Any, limit: Any, scale: Any) -> Any:
    """Return what the first and what the second half of a row are multiplied by: ``scale`` or 0."""
    bits = (load(positions, row, start) ^ key) * FIRST
    bits = (bits ^ (bits >> np.uint32(15))) * SECOND
    bits = bits ^ (bits >> np.uint32(16))
    zero, scale, limit = fill(np.float32(0)), fill(scale), fill(limit)
    return (
        where_less(bits & HALF, limit, zero, scale),
        where_less(bits >> np.uint32(16), limit, zero, scale),
    )


@njit(cache=True, nogil=True, error_model="numpy")
def _apply(x: Any, positions: Any, keys: Any, dropped: Any, scale: Any, result: Any) -> None:
    words = positions.shape[1]
    for trial in range(len(keys)):
        # The low halves of the words serve the first features, the high halves the others: no strides.
        first, second = x[:, trial, :words], x[:, trial, words:]
        to_first, to_second = result[:, trial, :words], result[:, trial, words:]
        for row in range(x.shape[0]):
            for start in range(0, words, LANES):
                low, high = factors(positions, row, start, keys[trial], dropped, scale)
                store(to_first, row, start, load(first, row, start) * low)
                store(to_second, row, start, load(second, row, start) * high)
