"""Dropout and the linear map of sparse features, which stay sparse: only their non-zeros are drawn for."""

from typing import Any, Protocol

import torch
from torch import Tensor

from pairnorm.nn.ops.dropout.plain import dropout, factor, keep_entries
from pairnorm.nn.ops.kernels import choose
from pairnorm.nn.ops.pattern import Pattern
from pairnorm.nn.ops.sparse_product.plain import SparseMatrix
from pairnorm.nn.ops.sparse_product.ranks import SparseRows

Selection = tuple[Any, Any, Any]


class Kernels(Protocol):
    """Products that gather what dropout left and go over that alone, in both directions."""

    def serves(self, weight: Tensor) -> bool:
        """Say whether this type is served."""

    def select(self, pattern: Pattern, values: Tensor) -> Selection:
        """Return crow, columns and values, ``[trials, ...]``, of the entries whose values are not zero."""

    def forward(self, pattern: Pattern, left: Selection, weight: Tensor) -> Tensor:
        """Return ``[nodes, trials, out]`` for weights ``[trials, in, out]``."""

    def backward(self, pattern: Pattern, left: Selection, grad: Tensor) -> Tensor:
        """Return the gradient of the weights."""


def _load(device: str) -> Kernels | None:
    if device == "cpu":
        from pairnorm.nn.ops.sparse_linear import cpu

        return cpu
    return None


def sparse_linear(x: SparseMatrix, weight: Tensor, rate: float = 0.0, keys: Tensor | None = None) -> Tensor:
    """Return dropout(x)·W for every trial, ``[nodes, trials, out]``.

    Args:
        x: with values ``[entries]`` or ``[trials, entries]``.
        weight: ``[trials, in, out]``.
        rate: at which entries of ``x`` are dropped.
        keys: of the dropout, ``[trials]``; None for none.
    """
    kernels = choose(_load, weight) if x.values.dtype == weight.dtype else None
    if kernels is None or keys is None or rate == 0 or x.values.requires_grad:
        return dropped(x, rate, keys) @ weight.transpose(0, 1).contiguous()
    return _SparseLinear.apply(kernels, x, weight, rate, keys)


def dropped(x: SparseMatrix, rate: float, keys: Tensor | None) -> SparseMatrix:
    """Drop entries of every trial."""
    if keys is None:
        return x
    if isinstance(x, SparseRows):
        kept = keep_entries(keys, x.first_entry, x.pattern.num_entries, x.entries, rate)
        return SparseMatrix(x.pattern, kept.mul_(factor(rate)).to(x.values.dtype) * x.values)
    values = x.values.expand(len(keys), -1).unsqueeze(0)
    return SparseMatrix(x.pattern, dropout(values, rate, keys).squeeze(0))


class _SparseLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, kernels: Kernels, x: SparseMatrix, weight: Tensor, rate: float, keys: Tensor
    ) -> Tensor:
        ctx.kernels, ctx.x, ctx.rate = kernels, x, rate
        ctx.save_for_backward(keys)
        ctx.left = kernels.select(x.pattern, dropped(x, rate, keys).values)
        return kernels.forward(x.pattern, ctx.left, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, Tensor, None, None]:
        if torch.is_grad_enabled():
            product = dropped(ctx.x, ctx.rate, *ctx.saved_tensors).transposed @ grad
            return None, None, product.transpose(0, 1), None, None
        return None, None, ctx.kernels.backward(ctx.x.pattern, ctx.left, grad), None, None
