"""What the ranks of a process group tell one another, as torch differentiates it; a dead rank is named."""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pairnorm.errors import PairNormError

ANSWER_SECONDS = 3.0
"""How long a rank that lost another waits for those that are left."""
FAILED = "pairnorm/failed"
"""Where in the store of torch.distributed they say so."""


def check_group(group: Any) -> "dist.ProcessGroup":
    """Return a process group that this process is a member of, or raise an error."""
    if dist.is_available() and isinstance(group, dist.ProcessGroup):
        return group
    raise PairNormError(
        f"process_group is {group!r}",
        code="wrong-type",
        value=group,
        expected="a torch.distributed process group with this process in it",
        remedy="Call torch.distributed.init_process_group() first, then pass torch.distributed.group.WORLD.",
    )


def gather(x: Tensor, group: "dist.ProcessGroup") -> Tensor:
    """Return what every rank has, ``[ranks, ...]``; shapes and dtypes must agree."""
    x = x.contiguous()
    parts = [torch.empty_like(x) for _ in range(group.size())]
    _together(lambda: dist.all_gather(parts, x, group=group, async_op=True), group)
    return torch.stack(parts)


def all_sum(x: Tensor, group: "dist.ProcessGroup") -> Tensor:
    """Return the sum over all ranks; so is its gradient: that of the sum of what the ranks make of it."""
    result: Tensor = _AllSum.apply(x, group)
    return result


class _AllSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: "dist.ProcessGroup") -> Tensor:
        ctx.group = group
        total = x.clone(memory_format=torch.contiguous_format)
        _together(lambda: dist.all_reduce(total, group=group, async_op=True), group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return all_sum(grad, ctx.group), None


def _together(begin: Callable[[], Any], group: "dist.ProcessGroup") -> None:
    """Do what all ranks do; where it fails because one has died, say which."""
    try:
        work = begin()
        # A rank hears of a death from its neighbours alone; those further off look into the store.
        while dist.get_backend(group) == "gloo" and not _arrives(work):
            if _store().check([FAILED]):
                raise RuntimeError("another rank has failed")
        work.wait()
    except RuntimeError as error:
        silent = _silent_ranks(group)
        if not silent:
            raise
        raise PairNormError(
            f"rank {', '.join(map(str, silent))} of {dist.get_world_size()} no longer answers",
            code="rank-died",
            value=silent,
            remedy="Its own messages say why; torchrun --max-restarts starts all ranks again.",
        ) from error


def _arrives(work: Any) -> bool:
    """Wait a second for what is under way."""
    try:
        work.wait(timedelta(seconds=1))
    except RuntimeError:
        if work.is_completed():
            raise
        return False
    return True


def _silent_ranks(group: "dist.ProcessGroup") -> list[int]:
    """Return the ranks of a group that do not answer; where the store is gone too, the one that kept it."""
    ranks, end = dist.get_process_group_ranks(group), time.monotonic() + ANSWER_SECONDS
    try:
        for key in (FAILED, f"{FAILED}/{dist.get_rank()}"):
            _store().set(key, "")
        while True:
            silent = [rank for rank in ranks if not _store().check([f"{FAILED}/{rank}"])]
            if not silent or time.monotonic() > end:
                return silent
            time.sleep(0.05)
    except RuntimeError:
        return [0]


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()
