"""Dropout and the linear map of sparse features, which stay sparse: only their non-zeros are drawn for."""

from typing import Any

import torch
from torch import Tensor

from pairnorm.nn.backends import kernels
from pairnorm.nn.dropout import dropout
from pairnorm.nn.sparse import SparseMatrix


def sparse_linear(x: SparseMatrix, weight: Tensor, rate: float = 0.0, keys: Tensor | None = None) -> Tensor:
    """Return dropout(x)·W for every trial, ``[nodes, trials, out]``.

    Args:
        x: with values ``[entries]`` or ``[trials, entries]``.
        weight: ``[trials, in, out]``.
        rate: at which entries of ``x`` are dropped.
        keys: of the dropout, ``[trials]``; None for none.
    """
    served = kernels("features", weight) is not None and x.values.dtype == weight.dtype
    if keys is None or rate == 0 or not served or x.values.requires_grad:
        return dropped(x, rate, keys) @ weight.transpose(0, 1).contiguous()
    result: Tensor = _DropoutProduct.apply(x, weight, rate, keys)
    return result


def dropped(x: SparseMatrix, rate: float, keys: Tensor | None) -> SparseMatrix:
    """Drop entries of every trial."""
    if keys is None:
        return x
    values = x.values.expand(len(keys), -1).unsqueeze(0)
    return SparseMatrix(x.pattern, dropout(values, rate, keys).squeeze(0))


class _DropoutProduct(torch.autograd.Function):
    """The compiled form, which gathers what dropout left and goes over that alone, in both directions."""

    @staticmethod
    def forward(ctx: Any, x: SparseMatrix, weight: Tensor, rate: float, keys: Tensor) -> Tensor:
        compiled: Any = kernels("features", weight)
        ctx.x, ctx.rate, ctx.compiled = x, rate, compiled
        ctx.save_for_backward(keys)
        ctx.left = compiled.select(x.pattern, dropped(x, rate, keys).values)
        result: Tensor = compiled.forward(x.pattern, ctx.left, weight)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, None, None]:
        if torch.is_grad_enabled():
            product = dropped(ctx.x, ctx.rate, *ctx.saved_tensors).transposed @ grad
            return None, product.transpose(0, 1), None, None
        return None, ctx.compiled.backward(ctx.x.pattern, ctx.left, grad), None, None
