"""Dropout whose mask is a function of a key: the same on every device, and cheaper than random numbers."""

from typing import Any, Protocol

import torch
from torch import Tensor

from pairnorm.nn.ops.dropout.keys import FIRST, LEVELS, dropped_levels, last_rounds, position_hash, shift
from pairnorm.nn.ops.kernels import choose


class Kernels(Protocol):
    """Dropout in one pass, equal to the plain form bit for bit."""

    def serves(self, x: Tensor) -> bool:
        """Say whether this type is served."""

    def forward(self, x: Tensor, rate: float, keys: Tensor, first: int) -> Tensor:
        """Drop entries of ``[nodes, trials, features]``."""


def _load(device: str) -> Kernels:
    if device == "cpu":
        from pairnorm.nn.ops.dropout import cpu

        return cpu
    from pairnorm.nn.ops.dropout import cuda

    return cuda


def dropout(x: Tensor, rate: float, keys: Tensor, first: int = 0) -> Tensor:
    """Zero each entry of ``x`` with probability ``rate`` and divide the others by ``1 - rate``.

    Args:
        x: ``[nodes, trials, features]``.
        rate: In steps of 2⁻¹⁶.
        keys: int32 ``[trials]``; equal keys give equal masks. See ``pairnorm.nn.ops.dropout.keys``.
        first: the number of the first node, where ``x`` has some nodes of a larger graph.
    """
    if rate == 0:
        return x
    return _Dropout.apply(x, rate, keys, first)


def keep_mask(keys: Tensor, nodes: int, features: int, rate: float, first: int = 0) -> Tensor:
    """Return the mask ``[nodes, trials, features]`` in float32: 1 to keep, 0 to drop."""
    words = (features + 1) // 2
    positions = position_hash((first + nodes) * words, keys.device)[first * words :].view(nodes, 1, words)
    bits = last_rounds((positions ^ keys.view(1, -1, 1)).mul_(FIRST))
    halves = torch.cat([bits & 0xFFFF, shift(bits, 16)], -1)[..., :features]
    return _kept(halves, rate)


def keep_entries(keys: Tensor, first: int, count: int, entries: int, rate: float) -> Tensor:
    """Return what ``keep_mask`` says of some entries of one node with very many, ``[trials, count]``."""
    words = (entries + 1) // 2
    entry = torch.arange(first, first + count, device=keys.device)
    positions = position_hash(words, keys.device)[entry % words] if words else entry.int()
    bits = last_rounds((positions ^ keys.view(-1, 1)).mul_(FIRST))
    return _kept(torch.where(entry < words, bits & 0xFFFF, shift(bits, 16)), rate)


def _kept(halves: Tensor, rate: float) -> Tensor:
    # clamp, for torch compares into booleans, which its CPU kernels handle an order of magnitude slower.
    last = dropped_levels(rate) - 1
    return halves.clamp_(last, last + 1).float().sub_(last)


def factor(rate: float) -> float:
    """Return what kept entries are multiplied by."""
    return LEVELS / (LEVELS - dropped_levels(rate))


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float, keys: Tensor, first: int) -> Tensor:
        ctx.rate, ctx.first = rate, first
        ctx.save_for_backward(keys)
        kernels = choose(_load, x)
        if kernels is not None:
            return kernels.forward(x, rate, keys, first)
        mask = keep_mask(keys, x.size(0), x.size(-1), rate, first)
        return mask.mul_(factor(rate)).to(x.dtype).mul(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (keys,) = ctx.saved_tensors
        return dropout(grad, ctx.rate, keys, ctx.first), None, None, None
