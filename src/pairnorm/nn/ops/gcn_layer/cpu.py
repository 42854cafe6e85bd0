"""A whole layer of GCN in numba, one trial after the other, so that a trial's states stay in the cache."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pairnorm.nn.ops import epilogue
from pairnorm.nn.ops.double_backward import Saved
from pairnorm.nn.ops.dropout import cpu as dropout
from pairnorm.nn.ops.jit import kernel
from pairnorm.nn.ops.linear import cpu as linear
from pairnorm.nn.ops.pair_norm.plain import Norm
from pairnorm.nn.ops.simd import CODES, array, by_trial, empty
from pairnorm.nn.ops.sparse_product.cpu import gather
from pairnorm.nn.ops.sparse_product.plain import SparseMatrix


def serves(x: Tensor, weight: Tensor | None) -> bool:
    """Say whether this type, and a weight of this size, is served."""
    return x.dtype == torch.float32 if weight is None else linear.serves(x, weight)


def forward(
    x: Tensor, weight: Tensor | None, bias: Tensor, matrix: SparseMatrix, activation: str,
    norm: Norm | None, rate: float, keys: Tensor | None, trains: bool,
) -> tuple[Tensor, tuple[Tensor, ...]]:  # fmt: skip
    """Return ``[nodes, trials, out]`` and what the backward pass needs."""
    trials, features = bias.shape
    own = by_trial(x.expand(-1, trials, -1))
    drops = dropout.settings(own, rate, keys)
    left = own if drops is dropout.NONE else empty(own.shape)
    h = empty(trials, matrix.pattern.shape[0], features)
    y = empty(h.shape) if norm is not None and trains else h
    scale, eps, norms = epilogue.settings(norm, trials, h.size(1))
    _forward(
        own.numpy(), *drops, _weights(weight), array(bias), *matrix.arrays, CODES[activation], scale, eps,
        empty(own.size(1), features).numpy(), left.numpy(), h.numpy(), y.numpy(), norms.numpy(),
    )  # fmt: skip
    return y.transpose(0, 1), (left, h, y, norms)


def backward(
    kept: Saved, inputs: Saved, settings: Saved, grads: Saved, needed: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None, Tensor]:  # fmt: skip
    """Return the gradients of x, weight and bias."""
    (left, h, y, norms), (_, weight, bias) = kept, inputs
    matrix, activation, norm, rate, keys = settings
    grad_x, grad_bias = empty(left.shape), empty(bias.shape)
    grad_weight = None if weight is None else empty(weight.shape)
    _backward(
        by_trial(grads[0]).numpy(), y.numpy(), h.numpy(), norms.numpy(), 1.0 if norm is None else norm.scale,
        CODES[activation], *matrix.transposed.arrays, left.numpy(), *dropout.settings(left, rate, keys),
        _weights(None if weight is None else weight.transpose(1, 2)), needed[0],
        empty(y.shape[1:]).numpy(), empty(left.size(1), y.size(2)).numpy(), grad_x.numpy(),
        _weights(grad_weight), grad_bias.numpy(),
    )  # fmt: skip
    return grad_x.transpose(0, 1) if needed[0] else None, grad_weight, grad_bias


def _weights(weight: Tensor | None) -> Any:
    """Return the array of a weight; an empty one stands for none."""
    return np.empty((0, 0, 0), np.float32) if weight is None else array(weight)


@kernel
def _forward(
    x: Any, positions: Any, keys: Any, dropped: Any, factor: Any, weight: Any, bias: Any, crow: Any,
    column: Any, values: Any, activation: int, scale: float, eps: float, z: Any, left: Any, h: Any,
    y: Any, norms: Any,
) -> None:  # fmt: skip
    for trial in range(len(h)):
        if dropped:
            dropout.drop(x[trial], positions, keys[trial], dropped, factor, left[trial])
        if len(weight):
            linear.product(left[trial], weight[trial], z)
        own = z if len(weight) else x[trial]
        gather(crow, column, values, own, bias[trial : trial + 1], activation, h[trial])
        epilogue.epilogue(h[trial], scale, eps, y[trial], norms[trial])


@kernel
def _backward(
    grad: Any, y: Any, h: Any, norms: Any, scale: float, activation: int, crow: Any, column: Any,
    values: Any, left: Any, positions: Any, keys: Any, dropped: Any, factor: Any, weight: Any, further: bool,
    inner: Any, grad_z: Any, grad_x: Any, grad_weight: Any, grad_bias: Any,
) -> None:  # fmt: skip
    none = np.zeros((1, y.shape[2]), np.float32)
    for trial in range(len(y)):
        epilogue.epilogue_backward(
            grad[trial], y[trial], h[trial], norms[trial], scale, activation, inner,
            grad_bias[trial : trial + 1],
        )  # fmt: skip
        gather(crow, column, values, inner, none, 0, grad_z if len(weight) else grad_x[trial])
        if len(weight):
            linear.transposed_product(left[trial], grad_z, grad_weight[trial])
        if len(weight) and further:
            linear.product(grad_z, weight[trial], grad_x[trial])
            if dropped:
                dropout.drop(grad_x[trial], positions, keys[trial], dropped, factor, grad_x[trial])
