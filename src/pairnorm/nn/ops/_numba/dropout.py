"""Keyed dropout in numba: one pass, equal to the reference bit for bit."""

from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from pairnorm.nn.ops._numba import vectors as vec
from pairnorm.nn.ops.dropout import dropped_levels, factor, position_hash

FIRST, SECOND, HALF = np.uint32(0x7FEB352D), np.uint32(0x846CA68B), np.uint32(0xFFFF)
CPU = torch.device("cpu")
DTYPES = (torch.float32,)

NONE = np.zeros((1, 1), np.uint32), np.zeros(1, np.uint32), np.uint32(0), np.float32(1)


def forward(x: Tensor, rate: float, keys: Tensor, first: int = 0) -> Tensor:
    """Drop entries of ``[nodes, models, features]``."""
    states = vec.by_model(x)
    result, by_models = vec.empty_by_model(*states.shape)
    _apply(states.numpy(), *settings(states, rate, keys, first), by_models.numpy())
    return result


def settings(x: Tensor, rate: float, keys: Tensor | None, first: int = 0) -> tuple[Any, ...]:
    """Return arguments of ``drop`` for ``x`` ``[models, nodes, features]``."""
    if keys is None or rate == 0:
        return NONE
    _, nodes, features = x.shape
    words, dropped = (features + 1) // 2, dropped_levels(rate)
    hashes = position_hash((first + nodes) * words, CPU)[first * words :]
    positions = hashes.view(nodes, words).numpy().view(np.uint32)
    scale = np.float32(factor(rate))
    return positions, vec.array(keys).view(np.uint32), np.uint32(dropped), scale


@njit(inline="always")
def factors(positions: Any, row: Any, start: Any, key: Any, limit: Any, scale: Any) -> Any:
    """Return the factors of the first and of the second half of a row: ``scale`` or 0."""
    bits = (vec.load(positions, row, start) ^ key) * FIRST
    bits = (bits ^ (bits >> np.uint32(15))) * SECOND
    bits = bits ^ (bits >> np.uint32(16))
    zero, scale, limit = vec.fill(np.float32(0)), vec.fill(scale), vec.fill(limit)
    return (
        vec.where_less(bits & HALF, limit, zero, scale),
        vec.where_less(bits >> np.uint32(16), limit, zero, scale),
    )


@vec.kernel
def _apply(x: Any, positions: Any, keys: Any, dropped: Any, scale: Any, result: Any) -> None:
    for model in range(len(x)):
        drop(x[model], positions, keys[model], dropped, scale, result[model])


@vec.kernel
def drop(x: Any, positions: Any, key: Any, dropped: Any, scale: Any, result: Any) -> None:
    """Drop entries of a model; ``result`` may be ``x`` itself."""
    words = positions.shape[1]
    # The low halves of the words are for the first features, the high halves for the others: no strides.
    first, second = x[:, :words], x[:, words:]
    to_first, to_second = result[:, :words], result[:, words:]
    for row in range(len(x)):
        for start in range(0, words, vec.LANES):
            low, high = factors(positions, row, start, key, dropped, scale)
            vec.store(to_first, row, start, vec.load(first, row, start) * low)
            vec.store(to_second, row, start, vec.load(second, row, start) * high)
