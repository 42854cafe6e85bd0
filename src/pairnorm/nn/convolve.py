"""A whole layer of GCN: dropout, linear map, average over neighbours, bias, activation and PairNorm."""

from typing import Any

import torch
from torch import Tensor

from pairnorm.nn.activate import ACTIVATIONS, slope
from pairnorm.nn.backends import kernels
from pairnorm.nn.linear import trial_linear
from pairnorm.nn.pair_norm import PairNorm
from pairnorm.nn.sparse import SparseMatrix


def convolve(
    matrix: SparseMatrix,
    x: Tensor,
    bias: Tensor,
    activation: str = "none",
    norm: PairNorm | None = None,
    weight: Tensor | None = None,
    rate: float = 0.0,
    keys: Tensor | None = None,
) -> Tensor:
    """Return ``norm(activation(matrix @ (dropout(x) @ weight) + bias))``.

    Args:
        matrix: with the same values for all trials.
        x: ``[nodes, trials, features]``.
        bias: ``[trials, out]``.
        activation: ``"relu"``, ``"elu"`` or ``"none"``.
        norm: the PairNorm that comes last, if any.
        weight: ``[trials, features, out]``; None for no linear map and no dropout.
        rate: at which entries of ``x`` are dropped.
        keys: of the dropout, ``[trials]``; None for none.
    """
    learned = matrix.values.requires_grad  # the kernels have no gradient for them
    compiled = kernels("convolve", x) if not learned and matrix.values.dtype == x.dtype else None
    if compiled is not None and compiled.supports(x, weight, norm):
        result: Tensor = compiled.Convolve.apply(x, weight, bias, matrix, activation, norm, rate, keys)
        return result
    return one_by_one(x, weight, bias, matrix, activation, norm, rate, keys)


def one_by_one(
    x: Tensor, weight: Tensor | None, bias: Tensor, matrix: SparseMatrix, activation: str,
    norm: PairNorm | None, rate: float, keys: Tensor | None,
) -> Tensor:  # fmt: skip
    """Do what ``convolve`` does in one operation after the other."""
    z = x if weight is None else trial_linear(x, weight, rate, keys)
    learned = matrix.values.requires_grad
    if kernels("activate", z) is not None and not learned and matrix.values.dtype == z.dtype:
        y: Tensor = _Convolve.apply(matrix, z, bias, activation)
    else:
        y = ACTIVATIONS[activation](matrix @ z + bias)
    return y if norm is None else norm(y)


class _Convolve(torch.autograd.Function):
    """The product and the activation as one kernel."""

    @staticmethod
    def forward(ctx: Any, matrix: SparseMatrix, x: Tensor, bias: Tensor, activation: str) -> Tensor:
        y: Tensor = kernels("sparse", x).multiply(matrix.pattern, matrix.values, x, bias, activation)  # type: ignore[union-attr]
        ctx.matrix, ctx.activation = matrix, activation
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, Tensor, None]:
        grad_product, grad_bias = slope(grad, ctx.saved_tensors[0], ctx.activation)
        return None, ctx.matrix.transposed @ grad_product, grad_bias, None
