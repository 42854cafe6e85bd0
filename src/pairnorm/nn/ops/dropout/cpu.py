"""The keyed dropout of ``plain`` in numba: one pass, equal to the plain form bit for bit."""

from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from pairnorm.nn.ops.dropout.keys import LEVELS, dropped_levels, position_hash
from pairnorm.nn.ops.jit import kernel
from pairnorm.nn.ops.simd import LANES, array, by_trial, empty, fill, load, store, where_less

FIRST, SECOND, HALF = np.uint32(0x7FEB352D), np.uint32(0x846CA68B), np.uint32(0xFFFF)
CPU = torch.device("cpu")

NONE = np.zeros((1, 1), np.uint32), np.zeros(1, np.uint32), np.uint32(0), np.float32(1)


def serves(x: Tensor) -> bool:
    """Say whether this type is served."""
    return x.dtype == torch.float32


def forward(x: Tensor, rate: float, keys: Tensor, first: int = 0) -> Tensor:
    """Drop entries of ``[nodes, trials, features]``."""
    own = by_trial(x)
    result = empty(own.shape)
    _apply(own.numpy(), *settings(own, rate, keys, first), result.numpy())
    return result.transpose(0, 1)


def settings(x: Tensor, rate: float, keys: Tensor | None, first: int = 0) -> tuple[Any, ...]:
    """Return what ``drop`` needs for ``x`` ``[trials, nodes, features]``; ``dropped`` is 0 for no dropout."""
    if keys is None or rate == 0:
        return NONE
    _, nodes, features = x.shape
    words, dropped = (features + 1) // 2, dropped_levels(rate)
    hashes = position_hash((first + nodes) * words, CPU)[first * words :]
    positions = hashes.view(nodes, words).numpy().view(np.uint32)
    scale = np.float32(LEVELS / (LEVELS - dropped))
    return positions, array(keys).view(np.uint32), np.uint32(dropped), scale


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


@kernel
def _apply(x: Any, positions: Any, keys: Any, dropped: Any, scale: Any, result: Any) -> None:
    for trial in range(len(x)):
        drop(x[trial], positions, keys[trial], dropped, scale, result[trial])


@kernel
def drop(x: Any, positions: Any, key: Any, dropped: Any, scale: Any, result: Any) -> None:
    """Drop entries of a trial; ``result`` may be ``x`` itself."""
    words = positions.shape[1]
    # The low halves of the words serve the first features, the high halves the others: no strides.
    first, second = x[:, :words], x[:, words:]
    to_first, to_second = result[:, :words], result[:, words:]
    for row in range(len(x)):
        for start in range(0, words, LANES):
            low, high = factors(positions, row, start, key, dropped, scale)
            store(to_first, row, start, load(first, row, start) * low)
            store(to_second, row, start, load(second, row, start) * high)
