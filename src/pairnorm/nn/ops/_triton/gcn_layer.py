"""A layer of GCN by the kernels of its parts on CUDA; backwards, PairNorm and activation are one.

For the backward pass, a layer saves its own input and the input of PairNorm.
"""

from typing import Any

from torch import Tensor

from pairnorm.nn.ops._triton import linear, pair_norm, sparse_product
from pairnorm.nn.ops.kernels import Saved
from pairnorm.nn.ops.pair_norm import Norm


def supports(x: Tensor, weight: Tensor | None) -> bool:
    """Return whether all parts support these tensors."""
    return sparse_product.supports(x) and (weight is None or linear.supports(x, weight))


def forward(
    x: Tensor, weight: Tensor | None, bias: Tensor, matrix: Any, activation: str, norm: Norm | None,
    rate: float, keys: Tensor | None, needs_backward: bool,
) -> tuple[Tensor, tuple[Tensor, ...]]:  # fmt: skip
    """Return ``[nodes, models, out]`` and what the backward pass needs."""
    of_linear: tuple[Tensor, ...] = ()
    if weight is not None:
        x = x.expand(-1, len(weight), -1)
        (x, _), of_linear = linear.forward(x, weight, None, rate, keys, needs_backward)
    y = sparse_product.forward(matrix.pattern, matrix.values, x, bias, activation)
    if norm is None:
        return y, (y, *of_linear)
    h, (norms, center) = pair_norm.forward(y, None, norm.scale, norm.eps, norm.mode, needs_backward)
    return h, (y, *of_linear, norms, center)


def backward(
    saved: Saved, inputs: Saved, settings: Saved, grads: Saved, needs_grad: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of x, of the weight and of the bias."""
    y, *rest = saved
    matrix, activation, norm, rate, keys = settings
    grad = grads[0].contiguous()
    if norm is None:
        grad, grad_bias = sparse_product.activation_backward(grad, y, activation)
    else:
        *rest, norms, center = rest
        grad, grad_bias = pair_norm.backward_activated(
            grad, y, norms, center, norm.scale, norm.mode == "PN-SI", activation
        )
    transposed = matrix.transposed
    grad_x: Tensor | None = sparse_product.forward(transposed.pattern, transposed.values, grad)
    if not rest:
        return grad_x, None, grad_bias
    grad_x, grad_weight, _ = linear.backward(
        tuple(rest), inputs, (rate, keys), (grad_x, None), (needs_grad[0], needs_grad[1], False)
    )
    return grad_x, grad_weight, grad_bias
