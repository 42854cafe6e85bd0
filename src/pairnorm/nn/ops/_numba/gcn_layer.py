"""A whole layer of GCN in numba, one model after the other, so that a model's states stay in the cache."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pairnorm.nn.ops._numba import dropout, linear
from pairnorm.nn.ops._numba.pair_norm import layer_end, layer_end_backward, norm_settings
from pairnorm.nn.ops._numba.sparse_product import gather
from pairnorm.nn.ops._numba.vectors import CODES, array, by_model, empty, empty_by_model, kernel
from pairnorm.nn.ops.kernels import Saved
from pairnorm.nn.ops.pair_norm import Norm


def supports(x: Tensor, weight: Tensor | None) -> bool:
    """Return whether the kernels take this dtype and a weight of this size."""
    return x.dtype == torch.float32 if weight is None else linear.supports(x, weight)


def forward(
    x: Tensor, weight: Tensor | None, bias: Tensor, matrix: Any, activation: str,
    norm: Norm | None, rate: float, keys: Tensor | None, needs_backward: bool,
) -> tuple[Tensor, tuple[Tensor, ...]]:  # fmt: skip
    """Return ``[nodes, models, out]`` and the tensors for the backward pass."""
    models, features = bias.shape
    own = by_model(x.expand(-1, models, -1))
    drops = dropout.settings(own, rate, keys)
    x_dropped = own if drops is dropout.NONE else empty(own.shape)
    nodes = matrix.pattern.shape[0]
    result, y = empty_by_model(models, nodes, features)
    h = empty(y.shape) if norm is not None and needs_backward else y
    scale, eps, norms, means = norm_settings(norm, models, nodes, features)
    _forward(
        own.numpy(), *drops, _weights(weight), array(bias), *matrix.arrays, CODES[activation], scale, eps,
        empty(own.size(1), features).numpy(), x_dropped.numpy(), h.numpy(), y.numpy(), norms.numpy(),
        means.numpy(),
    )  # fmt: skip
    return result, (x_dropped, h, norms, means)


def backward(
    saved: Saved, inputs: Saved, settings: Saved, grads: Saved, needs_grad: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None, Tensor]:  # fmt: skip
    """Return the gradients of x, weight and bias."""
    (x_dropped, h, norms, means), (_, weight, bias) = saved, inputs
    matrix, activation, norm, rate, keys = settings
    models, nodes, width = x_dropped.shape
    (result, grad_x), grad_bias = empty_by_model(models, nodes, width), empty(bias.shape)
    grad_weight = None if weight is None else empty(weight.shape)
    _backward(
        by_model(grads[0]).numpy(), h.numpy(), norms.numpy(), means.numpy(),
        1.0 if norm is None else norm.scale, CODES[activation], *matrix.transposed.arrays, x_dropped.numpy(),
        *dropout.settings(x_dropped, rate, keys),
        _weights(None if weight is None else weight.transpose(1, 2)), needs_grad[0],
        empty(h.shape[1:]).numpy(), empty(nodes, h.size(2)).numpy(), grad_x.numpy(), _weights(grad_weight),
        grad_bias.numpy(),
    )  # fmt: skip
    return result if needs_grad[0] else None, grad_weight, grad_bias


def _weights(weight: Tensor | None) -> Any:
    """Return the array of a weight; an empty one stands for none."""
    return np.empty((0, 0, 0), np.float32) if weight is None else array(weight)


@kernel
def _forward(
    x: Any, positions: Any, keys: Any, dropped: Any, factor: Any, weight: Any, bias: Any, crow: Any,
    column: Any, values: Any, activation: int, scale: float, eps: float, z: Any, x_dropped: Any,
    h: Any, y: Any, norms: Any, means: Any,
) -> None:  # fmt: skip
    for model in range(len(h)):
        if dropped:
            dropout.drop(x[model], positions, keys[model], dropped, factor, x_dropped[model])
        if len(weight):
            linear.product(x_dropped[model], weight[model], z)
        own = z if len(weight) else x[model]
        gather(crow, column, values, own, bias[model : model + 1], activation, h[model])
        layer_end(h[model], scale, eps, y[model], norms[model], means[model])


@kernel
def _backward(
    grad: Any, h: Any, norms: Any, means: Any, scale: float, activation: int, crow: Any, column: Any,
    values: Any, x_dropped: Any, positions: Any, keys: Any, dropped: Any, factor: Any, weight: Any,
    needs_grad_x: bool, inner: Any, grad_z: Any, grad_x: Any, grad_weight: Any, grad_bias: Any,
) -> None:  # fmt: skip
    none = np.zeros((1, h.shape[2]), np.float32)
    for model in range(len(h)):
        layer_end_backward(
            grad[model], h[model], norms[model], means[model], scale, activation, inner,
            grad_bias[model : model + 1],
        )  # fmt: skip
        gather(crow, column, values, inner, none, 0, grad_z if len(weight) else grad_x[model])
        if len(weight):
            linear.transposed_product(x_dropped[model], grad_z, grad_weight[model])
        if len(weight) and needs_grad_x:
            linear.product(grad_z, weight[model], grad_x[model])
            if dropped:
                dropout.drop(grad_x[model], positions, keys[model], dropped, factor, grad_x[model])
