"""The linear map of many trials at once, each with a weight of its own."""

from typing import Any

import torch
from torch import Tensor


def trial_linear(x: Tensor, weight: Tensor) -> Tensor:
    """Return x·W for every trial: ``[nodes, trials or 1, in]`` by ``[trials, in, out]`` to ``[nodes, trials,
    out]``.
    """
    result: Tensor = _TrialLinear.apply(x.expand(-1, weight.size(0), -1), weight)
    return result


class _TrialLinear(torch.autograd.Function):
    """Batched products that read and write ``[nodes, trials, features]`` as it lies, without a copy to put
    trials first.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            if torch.is_grad_enabled():
                grad_x = trial_linear(grad, weight.transpose(1, 2))
            else:
                grad_x = _product(grad, weight.transpose(1, 2))
        if ctx.needs_input_grad[1]:
            grad_weight = torch.bmm(x.permute(1, 2, 0), grad.transpose(0, 1))
        return grad_x, grad_weight


def _product(x: Tensor, weight: Tensor) -> Tensor:
    result = x.new_empty(x.size(0), weight.size(0), weight.size(2))
    torch.bmm(x.transpose(0, 1), weight, out=result.transpose(0, 1))
    return result
