"""Dropout and the linear map of many trials at once, each with a weight and a mask of its own."""

from typing import Any

import torch
from torch import Tensor

from pairnorm.nn.ops.double_backward import Compiled, Kernels
from pairnorm.nn.ops.dropout.plain import dropout
from pairnorm.nn.ops.kernels import choose, derives_itself

Two = tuple[Tensor, Tensor | None]


def _load(device: str) -> Kernels:
    if device == "cpu":
        from pairnorm.nn.ops.linear import cpu

        return cpu
    from pairnorm.nn.ops.linear import cuda

    return cuda


def trial_linear(x: Tensor, weight: Tensor, rate: float = 0.0, keys: Tensor | None = None) -> Tensor:
    """Return dropout(x)·W for every trial.

    Args:
        x: ``[nodes, trials or 1, in]``.
        weight: ``[trials, in, out]``.
        rate: at which entries of ``x`` are dropped.
        keys: of the dropout, ``[trials]``; None for none. See ``pairnorm.nn.ops.dropout``.
    """
    x = x.expand(-1, weight.size(0), -1)
    kernels = choose(_load, x, weight)
    result: Tensor
    if kernels is not None:
        result = Compiled.apply(kernels, _formula, (rate, keys), x, weight, None)[0]
    elif derives_itself():
        result = _formula(x, weight, None, rate, keys)[0]
    else:
        wide = x.to(torch.promote_types(x.dtype, weight.dtype))
        wide = wide if keys is None else dropout(wide, rate, keys)
        result = _TrialLinear.apply(wide, weight.to(wide.dtype)).to(x.dtype)
    return result


def trial_linear_with_scores(
    x: Tensor, weight: Tensor, ends: Tensor, rate: float = 0.0, keys: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return z = dropout(x)·W and the scores z·E that attention needs.

    Args:
        x: ``[nodes, trials or 1, in]``.
        weight: W of every trial, ``[trials, in, out]``.
        ends: E of every trial, ``[trials, out, scores]``.
        rate: at which entries of ``x`` are dropped.
        keys: of the dropout, ``[trials]``; None for none.
    """
    kernels = choose(_load, x, weight, ends)
    if kernels is not None:
        x = x.expand(-1, weight.size(0), -1)
        return Compiled.apply(kernels, _formula, (rate, keys), x, weight, ends)
    z = trial_linear(x, weight, rate, keys)
    return z, trial_linear(z.to(torch.promote_types(z.dtype, ends.dtype)), ends)


def _formula(x: Tensor, weight: Tensor, ends: Tensor | None, rate: float, keys: Tensor | None) -> Two:
    wide = x.to(torch.promote_types(x.dtype, weight.dtype))
    z = torch.einsum("nti,tio->nto", wide if keys is None else dropout(wide, rate, keys), weight)
    return z.to(x.dtype), None if ends is None else torch.einsum("nto,toe->nte", z, ends)


class _TrialLinear(torch.autograd.Function):
    """Batched products that read and write ``[nodes, trials, features]`` as it lies, without a copy."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            differentiable = torch.is_grad_enabled()
            grad_x = (trial_linear if differentiable else _product)(grad, weight.transpose(1, 2))
        if ctx.needs_input_grad[1]:
            grad_weight = torch.bmm(x.permute(1, 2, 0), grad.transpose(0, 1))
        return grad_x, grad_weight


def _product(x: Tensor, weight: Tensor) -> Tensor:
    result = x.new_empty(x.size(0), weight.size(0), weight.size(2))
    torch.bmm(x.transpose(0, 1), weight, out=result.transpose(0, 1))
    return result
