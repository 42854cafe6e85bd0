"""The keys of dropout, and the hash that turns a key and a position into a mask.

A mask is made of 16-bit words hashed from (key, position). A trial's masks depend on its own keys only, so a
trial gives the same result alone and in company; and the backward pass makes the mask anew instead of keeping
it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

# Odd multipliers of the "lowbias32" integer hash (Wellons), as signed 32-bit numbers.
FIRST, SECOND = 0x7FEB352D, 0x846CA68B - 2**32
LEVELS = 2**16
# The most hashes that are kept, 256 MiB of them on each device; more are made anew each time.
MOST_KEPT = 2**26

_kept: dict[torch.device, Tensor] = {}


def draw_keys(*shape: int, device: torch.device | None = None) -> Tensor:
    """Draw keys from torch's own generator, so that ``torch.manual_seed`` governs them."""
    return torch.randint(-(2**31), 2**31, shape, dtype=torch.int32).to(device)


def keys_from_seeds(seeds: Sequence[int], device: torch.device | None = None) -> Tensor:
    """Return a key for each seed."""
    # What lies beyond 31 bits is multiplied in, so that large seeds do not meet small ones.
    folded = [(seed ^ (seed >> 31) * 0x9E3779B9) & 0x7FFFFFFF for seed in seeds]
    return mix(torch.tensor(folded, dtype=torch.int32) + 0x2545F491).to(device)


def step_keys(keys: Tensor, step: Tensor, count: int) -> Tensor:
    """Return fresh keys ``[count, trials]`` for a training step, from the trials' ``keys`` and its number."""
    numbers = step * count + torch.arange(count, dtype=torch.int32, device=keys.device)
    return mix(mix(numbers).unsqueeze(1) ^ keys)


def dropped_levels(rate: float) -> int:
    """How many of the 2¹⁶ words drop their entry."""
    return min(max(round(rate * LEVELS), 1), LEVELS - 1)


def position_hash(count: int, device: torch.device) -> Tensor:
    """Hash the numbers 1 .. count. One tensor is kept for each device, of which shorter ones are a part."""
    kept = _kept.get(device)
    if kept is None or len(kept) < count:
        kept = mix(torch.arange(1, count + 1, dtype=torch.int32, device=device))
        if count <= MOST_KEPT:
            _kept[device] = kept
    return kept[:count]


def mix(x: Tensor) -> Tensor:
    """Hash every number."""
    return last_rounds((x ^ shift(x, 16)) * FIRST)


def last_rounds(x: Tensor) -> Tensor:
    """Do what is left of the hash after its first multiplication."""
    x = (x ^ shift(x, 15)) * SECOND
    return x ^ shift(x, 16)


def shift(x: Tensor, count: int) -> Tensor:
    """Shift right, zeros coming in: torch's own shift of a negative number brings ones."""
    return (x >> count).bitwise_and_((1 << (32 - count)) - 1)
