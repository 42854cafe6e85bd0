"""Dropout and the linear map of sparse features, which stay sparse: only their entries are dropped."""

from typing import Any

import torch
from torch import Tensor

from pairnorm.nn.ops.kernels import find_kernels
from pairnorm.nn.ops.sparse_matrix import SparseMatrix


def sparse_linear(x: SparseMatrix, weight: Tensor, rate: float = 0.0, keys: Tensor | None = None) -> Tensor:
    """Return dropout(x)·W for every model, ``[nodes, models, out]``.

    Args:
        x: Features with values ``[entries]`` or ``[models, entries]``.
        weight: ``[models, in, out]``.
        rate: Rate at which entries of ``x`` are dropped.
        keys: Dropout keys ``[models]``; None for no dropout.
    """
    kernels = find_kernels("sparse_linear", weight) if x.values.dtype == weight.dtype else None
    if kernels is None or keys is None or rate == 0 or x.values.requires_grad:
        x = x if keys is None else x.drop_entries(rate, keys)
        return x @ weight.transpose(0, 1).contiguous()
    x.pattern.check_unchanged()
    return _SparseLinear.apply(kernels, x, weight, rate, keys)


class _SparseLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernels: Any, x: SparseMatrix, weight: Tensor, rate: float, keys: Tensor) -> Tensor:
        ctx.kernels, ctx.x, ctx.rate = kernels, x, rate
        ctx.save_for_backward(keys)
        ctx.entries = kernels.select(x.pattern, x.drop_entries(rate, keys).values)
        return kernels.forward(x.pattern, ctx.entries, weight)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, Tensor, None, None]:
        if torch.is_grad_enabled():
            product = ctx.x.drop_entries(ctx.rate, *ctx.saved_tensors).transposed @ grad
            return None, None, product.transpose(0, 1), None, None
        return None, None, ctx.kernels.backward(ctx.x.pattern, ctx.entries, grad), None, None
