"""Keyed dropout in numba: one pass, equal to the reference bit for bit."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pairnorm.nn.ops._numba import vectors as vec
from pairnorm.nn.ops.dropout import dropped_levels, factor, position_hash

FIRST, SECOND, HALF = np.uint32(0x7FEB352D), np.uint32(0x846CA68B), np.uint32(0xFFFF)
CPU = torch.device("cpu")
DTYPES = (torch.float32,)

NO_DROPS = np.zeros((1, 1), np.uint32), np.zeros(1, np.uint32), np.uint32(0), np.float32(1)


def forward(x: Tensor, rate: float, keys: Tensor, first: int = 0) -> Tensor:
    """Drop entries of ``[nodes, models, features]``."""
    states = vec.by_model(x)
    result, by_models = vec.empty_by_model(*states.shape)
    _apply(states.numpy(), drops_of(states, rate, keys, first), by_models.numpy())
    return result


def drops_of(x: Tensor, rate: float, keys: Tensor | None, first: int = 0) -> tuple[Any, ...]:
    """Return hashed positions, keys, dropped levels and the factor of ``x`` ``[models, nodes, features]``."""
    if keys is None or rate == 0:
        return NO_DROPS
    _, nodes, features = x.shape
    words, dropped = (features + 1) // 2, dropped_levels(rate)
    hashes = position_hash((first + nodes) * words, CPU)[first * words :]
    positions = hashes.view(nodes, words).numpy().view(np.uint32)
    return positions, vec.array(keys).view(np.uint32), np.uint32(dropped), np.float32(factor(rate))


def dropped_memory(x: Tensor, drops: tuple[Any, ...]) -> Tensor:
    """Return memory for what dropout keeps of ``x``: ``x`` itself where nothing is dropped."""
    return x if drops is NO_DROPS else vec.empty(x.shape)


@vec.kernel
def _apply(x: Any, drops: Any, result: Any) -> None:
    for model in range(len(x)):
        drop(x[model], drops, model, result[model])


@vec.kernel
def drop(x: Any, drops: Any, model: int, result: Any) -> None:
    """Drop entries of a model, if there are any to drop; ``result`` may be ``x`` itself."""
    positions, keys, dropped, factor = drops
    if dropped:
        zero, scale, limit = vec.fill(np.float32(0)), vec.fill(factor), vec.fill(dropped)
        words = positions.shape[1]
        # The low halves of the words are for the first features, the high halves for the others: no strides.
        first, second = x[:, :words], x[:, words:]
        to_first, to_second = result[:, :words], result[:, words:]
        for row in range(len(x)):
            for start in range(0, words, vec.LANES):
                bits = (vec.load(positions, row, start) ^ keys[model]) * FIRST
                bits = (bits ^ (bits >> np.uint32(15))) * SECOND
                bits = bits ^ (bits >> np.uint32(16))
                low = vec.where_less(bits & HALF, limit, zero, scale)
                high = vec.where_less(bits >> np.uint32(16), limit, zero, scale)
                vec.store(to_first, row, start, vec.load(first, row, start) * low)
                vec.store(to_second, row, start, vec.load(second, row, start) * high)
