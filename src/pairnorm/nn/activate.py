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
    """Return ``activation(x + bias)`` for ``[nodes, trials, features]`` and a bias ``[trials, features]`` per
    trial.
    """
    if kernels("activate", x) is None:
        return ACTIVATIONS[activation](x + bias)
    result: Tensor = _Activate.apply(x, bias, activation)
    return result


class _Activate(torch.autograd.Function):
    """The compiled form. Both activations have a slope that follows from their output, so that is all it
    saves.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, activation: str) -> Tensor:
        y: Tensor = _kernels(x).forward(x.contiguous(), bias, activation)
        ctx.activation = activation
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        (y,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            slope = {"none": torch.ones_like(y), "relu": (y > 0).to(y.dtype), "elu": 1 + y.clamp(max=0)}[
                ctx.activation
            ]
            return grad * slope, (grad * slope).sum(0), None
        result = _kernels(y).backward(grad.contiguous(), y, ctx.activation)
        return result[0], result[1], None


def _kernels(x: Tensor) -> Any:
    return kernels("activate", x)
