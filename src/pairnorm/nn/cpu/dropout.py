"""The keyed dropout of ``pairnorm.nn.dropout`` in numba: one pass, equal to the plain form bit for bit."""

from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

DTYPES = (torch.float32,)


def apply(x: Tensor, dropped: int, keys: Tensor) -> Tensor:
    """Drop ``dropped`` of 2¹⁶ entries of ``x`` ``[nodes, trials, features]``."""
    from pairnorm.nn.dropout import position_hash

    result = torch.empty(x.shape)
    words = (x.size(2) + 1) // 2
    positions = position_hash(x.size(0) * words, x.device)
    _apply(
        x.detach().numpy(),
        positions.numpy().view(np.uint32),
        keys.numpy().view(np.uint32),
        dropped,
        65536 / (65536 - dropped),
        result.numpy(),
    )
    return result


@njit(inline="always")
def _hash(position: Any, key: Any) -> Any:
    bits = np.uint32(np.uint32(position ^ key) * np.uint32(0x7FEB352D))
    bits = np.uint32(np.uint32(bits ^ (bits >> np.uint32(15))) * np.uint32(0x846CA68B))
    return np.uint32(bits ^ (bits >> np.uint32(16)))


@njit(cache=True, nogil=True, error_model="numpy")
def _apply(x: Any, positions: Any, keys: Any, dropped: int, factor: float, result: Any) -> None:
    nodes, trials, features = x.shape
    words = (features + 1) // 2
    scale = np.float32(factor)
    zero = np.float32(0)
    limit = np.uint32(dropped)
    for node in range(nodes):
        for trial in range(trials):
            key = keys[trial]
            # The low halves of the words serve the first features, the high halves the others: no strides.
            for word in range(words):
                low = np.uint32(_hash(positions[node * words + word], key) & np.uint32(0xFFFF))
                result[node, trial, word] = x[node, trial, word] * (scale if low >= limit else zero)
            for word in range(features - words):
                high = np.uint32(_hash(positions[node * words + word], key) >> np.uint32(16))
                place = words + word
                result[node, trial, place] = x[node, trial, place] * (scale if high >= limit else zero)
