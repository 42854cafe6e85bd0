"""A whole layer of GCN in numba, one trial after the other, so that a trial's states stay in the cache."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from pairnorm.nn import convolve
from pairnorm.nn.again import plain_gradients
from pairnorm.nn.cpu import dropout, finish, linear
from pairnorm.nn.cpu.activations import CODES
from pairnorm.nn.cpu.arrays import array, by_trial, empty
from pairnorm.nn.cpu.sparse import gather
from pairnorm.nn.pair_norm import joins_kernels

if TYPE_CHECKING:
    from pairnorm.nn.pair_norm import PairNorm
    from pairnorm.nn.sparse import SparseMatrix

DTYPES = (torch.float32,)


def supports(x: Tensor, weight: Tensor | None, norm: "PairNorm | None") -> bool:
    """Say whether the kernels do this, and sooner than one operation after the other."""
    return (norm is None or joins_kernels(norm, x)) and (weight is None or linear.supports(weight))


class Convolve(torch.autograd.Function):
    """``pairnorm.nn.convolve.convolve``."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor, matrix: "SparseMatrix", activation: str,
        norm: "PairNorm | None", rate: float, keys: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """Return ``[nodes, trials, out]``."""
        trials, features = bias.shape
        own = by_trial(x.expand(-1, trials, -1))
        drops = dropout.settings(own, rate, keys)
        left = own if drops is dropout.NONE else empty(own.shape)
        h = empty(trials, matrix.pattern.shape[0], features)
        y = empty(h.shape) if norm is not None and any(ctx.needs_input_grad) else h
        scale, eps, lengths = finish.settings(norm, *h.shape[:2])
        _forward(
            own.numpy(), *drops, _weights(weight), array(bias), *matrix.arrays, CODES[activation], scale, eps,
            empty(own.size(1), features).numpy(), left.numpy(), h.numpy(), y.numpy(), lengths,
        )  # fmt: skip
        ctx.others = matrix, activation, norm, rate, keys
        ctx.drops, ctx.lengths = drops, lengths
        ctx.save_for_backward(x, weight, bias, left, h, y)
        return y.transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, weight and bias."""
        x, weight, bias, left, h, y = ctx.saved_tensors
        matrix, activation, norm, *_ = ctx.others
        needed = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():
            gradients = plain_gradients(
                lambda *inputs: convolve.one_by_one(*inputs, *ctx.others), (x, weight, bias), needed, grad
            )
            return *gradients, *[None] * 5
        grad_x = empty(left.shape)
        grad_weight = None if weight is None else empty(weight.shape)
        grad_bias = empty(bias.shape)
        _backward(
            by_trial(grad).numpy(), y.numpy(), h.numpy(), ctx.lengths, 1.0 if norm is None else norm.scale,
            CODES[activation], *matrix.transposed.arrays, left.numpy(), *ctx.drops,
            _weights(None if weight is None else weight.transpose(1, 2)), needed[0],
            empty(y.shape[1:]).numpy(), empty(left.size(1), y.size(2)).numpy(), grad_x.numpy(),
            _weights(grad_weight), grad_bias.numpy(),
        )  # fmt: skip
        return grad_x.transpose(0, 1) if needed[0] else None, grad_weight, grad_bias, *[None] * 5


def _weights(weight: Tensor | None) -> Any:
    """Return the array of a weight; an empty one stands for none."""
    return np.empty((0, 0, 0), np.float32) if weight is None else array(weight)


@njit(cache=True, nogil=True, error_model="numpy")
def _forward(
    x: Any, positions: Any, keys: Any, dropped: Any, factor: Any, weight: Any, bias: Any, crow: Any,
    column: Any, values: Any, activation: int, scale: float, eps: float, z: Any, left: Any, h: Any,
    y: Any, lengths: Any,
) -> None:  # fmt: skip
    for trial in range(len(h)):
        if dropped:
            dropout.drop(x[trial], positions, keys[trial], dropped, factor, left[trial])
        if len(weight):
            linear.product(left[trial], weight[trial], z)
        own = z if len(weight) else x[trial]
        gather(crow, column, values, own, bias[trial : trial + 1], activation, h[trial])
        finish.finish(h[trial], scale, eps, y[trial], lengths[trial])


@njit(cache=True, nogil=True, error_model="numpy")
def _backward(
    grad: Any, y: Any, h: Any, lengths: Any, scale: float, activation: int, crow: Any, column: Any,
    values: Any, left: Any, positions: Any, keys: Any, dropped: Any, factor: Any, weight: Any, further: bool,
    inner: Any, grad_z: Any, grad_x: Any, grad_weight: Any, grad_bias: Any,
) -> None:  # fmt: skip
    none = np.zeros((1, y.shape[2]), np.float32)
    for trial in range(len(y)):
        finish.start_back(
            grad[trial], y[trial], h[trial], lengths[trial], scale, activation, inner,
            grad_bias[trial : trial + 1],
        )  # fmt: skip
        gather(crow, column, values, inner, none, 0, grad_z if len(weight) else grad_x[trial])
        if len(weight):
            linear.transposed_product(left[trial], grad_z, grad_weight[trial])
        if len(weight) and further:
            linear.product(grad_z, weight[trial], grad_x[trial])
            if dropped:
                dropout.drop(grad_x[trial], positions, keys[trial], dropped, factor, grad_x[trial])
