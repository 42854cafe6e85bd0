"""The keyed dropout of ``pairnorm.nn.dropout`` in numba: one pass, equal to the plain form bit for bit."""

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from pairnorm.nn.cpu.arrays import array, by_trial, empty
from pairnorm.nn.cpu.simd import LANES, fill, load, store, where_less
from pairnorm.nn.dropout import LEVELS, dropped_levels, position_hash

DTYPES = (torch.float32,)
FIRST, SECOND, HALF = np.uint32(0x7FEB352D), np.uint32(0x846CA68B), np.uint32(0xFFFF)

NONE = np.zeros((1, 1), np.uint32), np.zeros(1, np.uint32), np.uint32(0), np.float32(1)


def apply(x: Tensor, dropped: int, keys: Tensor) -> Tensor:
    """Drop ``dropped`` of 2¹⁶ entries of ``x`` ``[nodes, trials, features]``."""
    own = by_trial(x)
    result = empty(own.shape)
    _apply(own.numpy(), *_settings(own, dropped, keys), result.numpy())
    return result.transpose(0, 1)


def settings(x: Tensor, rate: float, keys: Tensor | None) -> tuple[Any, ...]:
    """Return what ``drop`` needs for ``x`` ``[trials, nodes, features]``; ``dropped`` is 0 for no dropout."""
    if keys is None or rate == 0:
        return NONE
    return _settings(x, dropped_levels(rate), keys)


def _settings(x: Tensor, dropped: int, keys: Tensor) -> tuple[Any, ...]:
    _, nodes, features = x.shape
    scale = np.float32(LEVELS / (LEVELS - dropped))
    return _positions(nodes, (features + 1) // 2), array(keys).view(np.uint32), np.uint32(dropped), scale


@lru_cache(maxsize=64)
def _positions(nodes: int, words: int) -> Any:
    return position_hash(nodes * words, torch.device("cpu")).numpy().view(np.uint32).reshape(nodes, words)


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
    for trial in range(len(x)):
        drop(x[trial], positions, keys[trial], dropped, scale, result[trial])


@njit(cache=True, nogil=True, error_model="numpy")
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
