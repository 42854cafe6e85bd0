"""Bias and activation in one step, because together they are one pass over memory."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pairnorm.nn.ops.kernels import find_kernels

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": torch.relu,
    "elu": functional.elu,
}


def activate(x: Tensor, bias: Tensor, activation: str = "none") -> Tensor:
    """Return ``activation(x + bias)`` for ``[nodes, models, features]`` and ``[models, features]``."""
    kernels = find_kernels("activation", x)
    if kernels is None:
        return ACTIVATIONS[activation](x + bias).to(x.dtype)
    return _Activate.apply(kernels, x, bias, activation)


class _Activate(torch.autograd.Function):
    """By kernels. The gradient of every activation follows from its output, so that is all it saves."""

    @staticmethod
    def forward(ctx: Any, kernels: Any, x: Tensor, bias: Tensor, activation: str) -> Tensor:
        y = kernels.forward(x.contiguous(), bias, activation)
        ctx.activation = activation
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, Tensor, None]:
        return None, *activation_gradient(grad, ctx.saved_tensors[0], ctx.activation), None


def activation_gradient(grad: Tensor, y: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """Return the gradients of what the activation was given, and of the bias, from the gradient of y."""
    kernels = None if torch.is_grad_enabled() else find_kernels("activation", y)
    if kernels is not None:
        return kernels.backward(grad.contiguous(), y, activation)
    if activation != "none":
        grad = grad * ((y > 0).to(y.dtype) if activation == "relu" else 1 + y.clamp(max=0))
    return grad, grad.sum(0)
