"""Bias and activation in one step, because together they are one pass over memory."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from pairnorm.nn.ops.kernels import choose

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": torch.relu,
    "elu": functional.elu,
}


class Kernels(Protocol):
    """Bias and activation in one pass; the backward pass sums the gradient of the bias as it goes."""

    def serves(self, x: Tensor) -> bool:
        """Say whether this type is served."""

    def forward(self, x: Tensor, bias: Tensor, activation: str) -> Tensor:
        """Return ``activation(x + bias)``."""

    def backward(self, grad: Tensor, y: Tensor, activation: str) -> tuple[Tensor, Tensor]:
        """Return the gradients of x and of the bias."""


def _load(device: str) -> Kernels:
    if device == "cpu":
        from pairnorm.nn.ops.activation import cpu

        return cpu
    from pairnorm.nn.ops.activation import cuda

    return cuda


def activate(x: Tensor, bias: Tensor, activation: str = "none") -> Tensor:
    """Return ``activation(x + bias)`` for ``[nodes, trials, features]`` and ``[trials, features]``."""
    kernels = choose(_load, x)
    if kernels is None:
        return ACTIVATIONS[activation](x + bias).to(x.dtype)
    return _Activate.apply(kernels, x, bias, activation)


class _Activate(torch.autograd.Function):
    """By kernels. The gradient of every activation follows from its output, so that is all it saves."""

    @staticmethod
    def forward(ctx: Any, kernels: Kernels, x: Tensor, bias: Tensor, activation: str) -> Tensor:
        y = kernels.forward(x.contiguous(), bias, activation)
        ctx.activation = activation
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, Tensor, None]:
        return None, *activation_gradient(grad, ctx.saved_tensors[0], ctx.activation), None


def activation_gradient(grad: Tensor, y: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """Return the gradients of what the activation was given, and of the bias, from the gradient of y."""
    kernels = None if torch.is_grad_enabled() else choose(_load, y)
    if kernels is not None:
        return kernels.backward(grad.contiguous(), y, activation)
    if activation != "none":
        grad = grad * ((y > 0).to(y.dtype) if activation == "relu" else 1 + y.clamp(max=0))
    return grad, grad.sum(0)
