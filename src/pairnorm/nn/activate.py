"""Bias and activation in one step, because together they are one pass over memory."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pairnorm.nn.backends import kernels

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": torch.relu,
    "elu": functional.elu,
}


def activate(x: Tensor, bias: Tensor, activation: str = "none") -> Tensor:
    """Return ``activation(x + bias)`` for ``[nodes, trials, features]`` and ``[trials, features]``."""
    if kernels("activate", x) is None:
        return ACTIVATIONS[activation](x + bias)
    result: Tensor = _Activate.apply(x, bias, activation)
    return result


class _Activate(torch.autograd.Function):
    """The compiled form. The slope of every activation follows from its output, so that is all it saves."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, activation: str) -> Tensor:
        y: Tensor = _compiled(x).forward(x.contiguous(), bias, activation)
        ctx.activation = activation
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        return *slope(grad, ctx.saved_tensors[0], ctx.activation), None


def slope(grad: Tensor, y: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """Return the gradients of what the activation was given, and of the bias, from the gradient of y."""
    if not torch.is_grad_enabled():
        result: tuple[Tensor, Tensor] = _compiled(y).backward(grad.contiguous(), y, activation)
        return result
    if activation != "none":
        grad = grad * ((y > 0).to(y.dtype) if activation == "relu" else 1 + y.clamp(max=0))
    return grad, grad.sum(0)


def _compiled(x: Tensor) -> Any:
    return kernels("activate", x)
