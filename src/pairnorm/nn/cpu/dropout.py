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
        positions.numpy(),
        keys.numpy(),
        dropped - 32768,
        65536 / (65536 - dropped),
        result.numpy(),
    )
    return result


@njit(cache=True, nogil=True, error_model="numpy")
def _apply(x: Any, positions: Any, keys: Any, threshold: int, factor: float, result: Any) -> None:
    nodes, trials, features = x.shape
    words = (features + 1) // 2
    scale = np.float32(factor)
    zero = np.float32(0)
    first, second = np.int32(0x7FEB352D), np.int32(0x846CA68B - 2**32)
    limit = np.int32(threshold)
    fifteen, sixteen = np.int32(15), np.int32(16)
    for node in range(nodes):
        for trial in range(trials):
            key = keys[trial]
            # The low halves of the words serve the first features and the high halves the
            # others: loops without strides.
            for word in range(words):
                bits = np.int32(np.int32(positions[node * words + word] ^ key) * first)
                bits = np.int32(np.int32(bits ^ (bits >> fifteen)) * second)
                low = np.int32(np.int32(np.int32(bits ^ (bits >> sixteen)) << sixteen) >> sixteen)
                result[node, trial, word] = x[node, trial, word] * (scale if low >= limit else zero)
            for word in range(features - words):
                bits = np.int32(np.int32(positions[node * words + word] ^ key) * first)
                bits = np.int32(np.int32(bits ^ (bits >> fifteen)) * second)
                high = np.int32(np.int32(bits ^ (bits >> sixteen)) >> sixteen)
                result[node, trial, words + word] = x[node, trial, words + word] * (
                    scale if high >= limit else zero
                )
