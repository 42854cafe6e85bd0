"""Dropout whose mask is a function of a key: the same on every device, and cheaper than random numbers.

A mask is made of 16-bit words hashed from (key, position). A trial's masks depend on its own keys only, so a
trial gives the same result alone and in company; and the backward pass makes the mask anew instead of keeping
it.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from pairnorm.nn.backends import kernels

# Odd multipliers of the "lowbias32" integer hash (Wellons), as signed 32-bit numbers.
FIRST, SECOND = 0x7FEB352D, 0x846CA68B - 2**32
LEVELS = 2**16


def dropout(x: Tensor, rate: float, keys: Tensor) -> Tensor:
    """Zero each entry of ``x`` with probability ``rate`` and divide the others by ``1 - rate``.

    Args:
        x: ``[nodes, trials, features]``.
        rate: In steps of 2⁻¹⁶.
        keys: int32 ``[trials]``; equal keys give equal masks.
    """
    if rate == 0:
        return x
    result: Tensor = _Dropout.apply(x, rate, keys)
    return result


def draw_keys(*shape: int, device: torch.device | None = None) -> Tensor:
    """Draw keys from torch's own generator, so that ``torch.manual_seed`` governs them."""
    return torch.randint(-(2**31), 2**31, shape, dtype=torch.int32).to(device)


def keys_from_seeds(seeds: Sequence[int], device: torch.device | None = None) -> Tensor:
    """Return a key for each seed."""
    # What lies beyond 31 bits is multiplied in, so that large seeds do not meet small ones.
    folded = [(seed ^ (seed >> 31) * 0x9E3779B9) & 0x7FFFFFFF for seed in seeds]
    return _mix(torch.tensor(folded, dtype=torch.int32) + 0x2545F491).to(device)


def step_keys(keys: Tensor, step: Tensor, count: int) -> Tensor:
    """Return fresh keys ``[count, trials]`` for a training step, from the trials' ``keys`` and its number."""
    numbers = step * count + torch.arange(count, dtype=torch.int32, device=keys.device)
    return _mix(_mix(numbers).unsqueeze(1) ^ keys)


def keep_mask(keys: Tensor, nodes: int, features: int, rate: float) -> Tensor:
    """Return the mask ``[nodes, trials, features]`` in float32: 1 to keep, 0 to drop."""
    words = (features + 1) // 2
    bits = position_hash(nodes * words, keys.device).view(nodes, 1, words) ^ keys.view(1, -1, 1)
    bits = _finish(bits.mul_(FIRST))
    halves = torch.cat([bits & 0xFFFF, _shift(bits, 16)], -1)[..., :features]
    # clamp, for torch compares into booleans, which its CPU kernels handle an order of magnitude slower.
    last = dropped_levels(rate) - 1
    return halves.clamp_(last, last + 1).float().sub_(last)


def dropped_levels(rate: float) -> int:
    """How many of the 2¹⁶ words drop their entry."""
    return min(max(round(rate * LEVELS), 1), LEVELS - 1)


@lru_cache(maxsize=64)
def position_hash(count: int, device: torch.device) -> Tensor:
    """Hash the numbers 1 .. count."""
    return _mix(torch.arange(1, count + 1, dtype=torch.int32, device=device))


def _mix(x: Tensor) -> Tensor:
    return _finish((x ^ _shift(x, 16)) * FIRST)


def _finish(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 15)) * SECOND
    return x ^ _shift(x, 16)


def _shift(x: Tensor, count: int) -> Tensor:
    """Shift right, zeros coming in: torch's own shift of a negative number brings ones."""
    return (x >> count).bitwise_and_((1 << (32 - count)) - 1)


def _apply_mask(x: Tensor, rate: float, keys: Tensor) -> Tensor:
    compiled = kernels("dropout", x)
    if compiled is not None:
        result: Tensor = compiled.apply(x, dropped_levels(rate), keys)
        return result
    mask = keep_mask(keys, x.size(0), x.size(-1), rate)
    return mask.mul_(LEVELS / (LEVELS - dropped_levels(rate))).to(x.dtype).mul(x)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float, keys: Tensor) -> Tensor:
        ctx.rate = rate
        ctx.save_for_backward(keys)
        return _apply_mask(x, rate, keys)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return dropout(grad, ctx.rate, *ctx.saved_tensors), None, None
