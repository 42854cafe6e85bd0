"""Dropout whose mask is a function of a key: the same on every device, and cheaper than random numbers.

A mask consists of 16-bit words hashed from (key, position). The masks of a model depend on its own keys only,
so a model gives the same result alone and stacked with others. The backward pass computes the mask again
instead of saving it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pairnorm.nn.ops.kernels import find_kernels, in_transform_or_compile

# Odd multipliers of the "lowbias32" integer hash (Wellons), as signed 32-bit numbers.
FIRST, SECOND = 0x7FEB352D, 0x846CA68B - 2**32
LEVELS = 2**16
# Of more hashes none are cached: 256 MiB on each device.
MAX_CACHED_HASHES = 2**26

_hashes: dict[torch.device, Tensor] = {}


def draw_keys(*shape: int, device: torch.device | None = None) -> Tensor:
    """Draw keys from torch's own generator, so that ``torch.manual_seed`` governs them."""
    return torch.randint(-(2**31), 2**31, shape, dtype=torch.int32).to(device)


def keys_from_seeds(seeds: Sequence[int], device: torch.device | None = None) -> Tensor:
    """Return a key for each seed."""
    # What lies beyond 31 bits is multiplied in, so that large seeds do not meet small ones.
    folded = [(seed ^ (seed >> 31) * 0x9E3779B9) & 0x7FFFFFFF for seed in seeds]
    return mix(torch.tensor(folded, dtype=torch.int32) + 0x2545F491).to(device)


def step_keys(keys: Tensor, step: Tensor, count: int) -> Tensor:
    """Return fresh keys ``[count, models]`` for a training step, from the models' ``keys`` and its number."""
    numbers = step * count + torch.arange(count, dtype=torch.int32, device=keys.device)
    return mix(mix(numbers).unsqueeze(1) ^ keys)


def dropped_levels(rate: float) -> int:
    """Return how many of the 2¹⁶ words drop their entry."""
    return min(max(round(rate * LEVELS), 1), LEVELS - 1)


def position_hash(count: int, device: torch.device) -> Tensor:
    """Hash the numbers 1 .. count; the longest tensor of hashes is cached on each device."""
    hashes = _hashes.get(device)
    if hashes is None or len(hashes) < count:
        with torch.inference_mode(False):  # else training could not use them later
            hashes = mix(torch.arange(1, count + 1, dtype=torch.int32, device=device))
        if count <= MAX_CACHED_HASHES:
            _hashes[device] = hashes
    return hashes[:count]


def mix(x: Tensor) -> Tensor:
    """Hash every number."""
    return last_rounds((x ^ shift(x, 16)) * FIRST)


def last_rounds(x: Tensor) -> Tensor:
    """Finish the hash after its first multiplication."""
    x = (x ^ shift(x, 15)) * SECOND
    return x ^ shift(x, 16)


def shift(x: Tensor, count: int) -> Tensor:
    """Shift right and fill with zeros; torch's own shift fills negative numbers with ones."""
    return (x >> count).bitwise_and_((1 << (32 - count)) - 1)


def dropout(x: Tensor, rate: float, keys: Tensor, first: int = 0) -> Tensor:
    """Zero each entry of ``x`` with probability ``rate`` and divide the others by ``1 - rate``.

    ``x`` is ``[nodes, models, features]``, from node ``first`` on; equal keys ``[models]`` give equal masks.
    """
    if rate == 0:
        return x
    if in_transform_or_compile():
        return _reference(x, rate, keys, first)
    return _Dropout.apply(x, rate, keys, first)


def _reference(x: Tensor, rate: float, keys: Tensor, first: int) -> Tensor:
    mask = keep_mask(keys, x.size(0), x.size(-1), rate, first)
    return mask.mul_(factor(rate)).to(x.dtype).mul(x)


def keep_mask(keys: Tensor, nodes: int, features: int, rate: float, first: int = 0) -> Tensor:
    """Return the mask ``[nodes, models, features]`` in float32: 1 to keep, 0 to drop."""
    words = (features + 1) // 2
    positions = position_hash((first + nodes) * words, keys.device)[first * words :].view(nodes, 1, words)
    bits = last_rounds((positions ^ keys.view(1, -1, 1)).mul_(FIRST))
    halves = torch.cat([bits & 0xFFFF, shift(bits, 16)], -1)[..., :features]
    # 0 where dropped, 1 where kept. No comparison: torch's CPU kernels handle booleans far slower than clamp.
    last = dropped_levels(rate) - 1
    return halves.clamp_(last, last + 1).float().sub_(last)


def factor(rate: float) -> float:
    """Return the factor of entries that are not dropped."""
    return LEVELS / (LEVELS - dropped_levels(rate))


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float, keys: Tensor, first: int) -> Tensor:
        ctx.rate, ctx.first = rate, first
        ctx.save_for_backward(keys)
        kernels = find_kernels("dropout", x)
        if kernels is None:
            return _reference(x, rate, keys, first)
        return kernels.forward(x, rate, keys, first)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (keys,) = ctx.saved_tensors
        return dropout(grad, ctx.rate, keys, ctx.first), None, None, None
