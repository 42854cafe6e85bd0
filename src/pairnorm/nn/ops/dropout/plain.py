"""Dropout whose mask is a function of a key: the same on every device, and cheaper than random numbers."""

from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor

from pairnorm.nn.ops.dropout.keys import FIRST, LEVELS, dropped_levels, last_rounds, position_hash, shift
from pairnorm.nn.ops.kernels import choose


class Kernels(Protocol):
    """Dropout in one pass, equal to the plain form bit for bit."""

    def serves(self, x: Tensor) -> bool:
        """Say whether this type is served."""

    def forward(self, x: Tensor, rate: float, keys: Tensor) -> Tensor:
        """Drop entries of ``[nodes, trials, features]``."""


@cache
def _load(device: str) -> Kernels:
    if device == "cpu":
        from pairnorm.nn.ops.dropout import cpu

        return cpu
    from pairnorm.nn.ops.dropout import cuda

    return cuda


def dropout(x: Tensor, rate: float, keys: Tensor) -> Tensor:
    """Zero each entry of ``x`` with probability ``rate`` and divide the others by ``1 - rate``.

    Args:
        x: ``[nodes, trials, features]``.
        rate: In steps of 2⁻¹⁶.
        keys: int32 ``[trials]``; equal keys give equal masks. See ``pairnorm.nn.ops.dropout.keys``.
    """
    if rate == 0:
        return x
    result: Tensor = _Dropout.apply(x, rate, keys)
    return result


def keep_mask(keys: Tensor, nodes: int, features: int, rate: float) -> Tensor:
    """Return the mask ``[nodes, trials, features]`` in float32: 1 to keep, 0 to drop."""
    words = (features + 1) // 2
    bits = position_hash(nodes * words, keys.device).view(nodes, 1, words) ^ keys.view(1, -1, 1)
    bits = last_rounds(bits.mul_(FIRST))
    halves = torch.cat([bits & 0xFFFF, shift(bits, 16)], -1)[..., :features]
    # clamp, for torch compares into booleans, which its CPU kernels handle an order of magnitude slower.
    last = dropped_levels(rate) - 1
    return halves.clamp_(last, last + 1).float().sub_(last)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float, keys: Tensor) -> Tensor:
        ctx.rate = rate
        ctx.save_for_backward(keys)
        kernels = choose(_load, x)
        if kernels is not None:
            return kernels.forward(x, rate, keys)
        mask = keep_mask(keys, x.size(0), x.size(-1), rate)
        return mask.mul_(LEVELS / (LEVELS - dropped_levels(rate))).to(x.dtype).mul(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return dropout(grad, ctx.rate, *ctx.saved_tensors), None, None
