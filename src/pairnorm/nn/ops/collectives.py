"""Differentiable collectives over the ranks of a process group."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pairnorm.base.errors import PairNormError

if dist.is_available():
    # Its functions bind the default group at import and would keep one alive, threads included, that existed
    # by then: Python would abort at exit.
    import torch.distributed.nn.functional


def check_group(group: Any) -> "dist.ProcessGroup":
    """Return a process group that this process is a member of, or raise an error."""
    if dist.is_available() and isinstance(group, dist.ProcessGroup):
        return group
    problem = f"process_group is {group!r}"
    expected = "a torch.distributed process group with this process in it"
    hint = "Call torch.distributed.init_process_group() first, then pass torch.distributed.group.WORLD."
    raise PairNormError(problem, code="wrong-type", value=group, expected=expected, hint=hint)


def gather(x: Tensor, group: "dist.ProcessGroup") -> Tensor:
    """Return the tensors of all ranks, ``[ranks, ...]``; shapes and dtypes must agree."""
    return _Gather.apply(x, group)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: "dist.ProcessGroup") -> Tensor:
        ctx.group, x = group, x.contiguous()
        parts = [torch.empty_like(x) for _ in range(group.size())]
        dist.all_gather(parts, x, group=group)
        return torch.stack(parts)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return all_sum(grad, ctx.group)[ctx.group.rank()], None


def all_sum(x: Tensor, group: "dist.ProcessGroup") -> Tensor:
    """Return the sum over all ranks; its gradient is the sum of the gradients of all ranks."""
    return _AllSum.apply(x, group)


class _AllSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: "dist.ProcessGroup") -> Tensor:
        ctx.group = group
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return all_sum(grad, ctx.group), None
