"""A layer of GCN by the kernels of its parts on CUDA; backwards, PairNorm and activation are one.

What a layer leaves in memory for the backward pass is what went into PairNorm, besides its own input.
"""

from typing import Any

from torch import Tensor

from pairnorm.nn.ops.activation import cuda as activation_kernels
from pairnorm.nn.ops.double_backward import Saved
from pairnorm.nn.ops.linear import cuda as linear
from pairnorm.nn.ops.pair_norm import cuda as pair_norm
from pairnorm.nn.ops.pair_norm.plain import Norm
from pairnorm.nn.ops.sparse_product import cuda as sparse_product


def serves(x: Tensor, weight: Tensor | None) -> bool:
    """Say whether all the parts serve these tensors."""
    return sparse_product.serves(x) and (weight is None or linear.serves(x, weight))


def forward(
    x: Tensor, weight: Tensor | None, bias: Tensor, matrix: Any, activation: str, norm: Norm | None,
    rate: float, keys: Tensor | None, trains: bool,
) -> tuple[Tensor, tuple[Tensor, ...]]:  # fmt: skip
    """Return ``[nodes, trials, out]`` and what the backward pass needs."""
    of_linear: tuple[Tensor, ...] = ()
    if weight is not None:
        x = x.expand(-1, len(weight), -1)
        (x, _), of_linear = linear.forward(x, weight, None, rate, keys, trains)
    y = sparse_product.forward(matrix.pattern, matrix.values, x, bias, activation)
    if norm is None:
        return y, (y, *of_linear)
    h, norms, center = pair_norm.forward_with_center(y, norm.scale, norm.eps, norm.mode == "PN-SI")
    return h, (y, *of_linear, norms, center)


def backward(
    kept: Saved, inputs: Saved, settings: Saved, grads: Saved, needed: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of x, of the weight and of the bias."""
    y, *rest = kept
    matrix, activation, norm, rate, keys = settings
    grad = grads[0].contiguous()
    if norm is None:
        grad, grad_bias = activation_kernels.backward(grad, y, activation)
    else:
        *rest, norms, center = rest
        grad, grad_bias = pair_norm.backward_activated(
            grad, y, norms, center, norm.scale, norm.mode == "PN-SI", activation
        )
    turned = matrix.transposed
    grad_x: Tensor | None = sparse_product.forward(turned.pattern, turned.values, grad)
    if not rest:
        return grad_x, None, grad_bias
    grad_x, grad_weight, _ = linear.backward(
        tuple(rest), inputs, (rate, keys), (grad_x, None), (needed[0], needed[1], False)
    )
    return grad_x, grad_weight, grad_bias
