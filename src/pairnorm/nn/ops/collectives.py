"""What the ranks of a process group tell one another, as torch differentiates it; a dead rank is named."""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pairnorm.base.errors import PairNormError

if dist.is_available():
    # Its functions have the group of the moment they are imported in as a default, and would keep one alive,
    # threads and all, that torch's compiler met by then: Python would abort as it ends.
    import torch.distributed.nn.functional

ANSWER_SECONDS = 3.0
"""How long a rank that lost another waits for those that are left."""
FAILED = "pairnorm/failed"
"""Where in the store of torch.distributed they say so."""


def check_group(group: Any) -> "dist.ProcessGroup":
    """Return a process group that this process is a member of, or raise an error."""
    if dist.is_available() and isinstance(group, dist.ProcessGroup):
        return group
    problem = f"process_group is {group!r}"
    expected = "a torch.distributed process group with this process in it"
    hint = "Call torch.distributed.init_process_group() first, then pass torch.distributed.group.WORLD."
    raise PairNormError(problem, code="wrong-type", value=group, expected=expected, hint=hint)


def gather(x: Tensor, group: "dist.ProcessGroup") -> Tensor:
    """Return what every rank has, ``[ranks, ...]``; shapes and dtypes must agree."""
    x = x.contiguous()
    parts = [torch.empty_like(x) for _ in range(group.size())]
    _together(lambda: dist.all_gather(parts, x, group=group, async_op=True), group)
    return torch.stack(parts)


def all_sum(x: Tensor, group: "dist.ProcessGroup") -> Tensor:
    """Return the sum over all ranks; so is its gradient: that of the sum of what the ranks make of it."""
    return _AllSum.apply(x, group)


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


def blocks(count: int, ranks: int) -> list[int]:
    """Share things out among ranks, as even as can be."""
    return [count // ranks + (rank < count % ranks) for rank in range(ranks)]


def to_columns(rows: Tensor, nodes: int, group: "dist.ProcessGroup", unit: int = 1) -> Tensor:
    """Give away own rows ``[own, columns]`` and get own columns of all ``[nodes, own]``.

    Args:
        rows: of this rank.
        nodes: the rows of all ranks.
        group: of the ranks.
        unit: so many columns stay together.
    """
    return _ToColumns.apply(rows, nodes, group, unit)


def to_rows(columns: Tensor, width: int, group: "dist.ProcessGroup", unit: int = 1) -> Tensor:
    """Give away own columns ``[nodes, own]`` and get own rows of all ``[own, width]``."""
    return _ToRows.apply(columns, width, group, unit)


def all_rows(rows: Tensor, nodes: int, group: "dist.ProcessGroup") -> Tensor:
    """Return the rows of all ranks, ``[nodes, ...]``; its gradient is the sum over what they make of it."""
    return _AllRows.apply(rows, nodes, group)


class _AllRows(torch.autograd.Function):
    """Own rows go to every rank; every rank's gradient of them comes back, and is added up."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, nodes: int, group: "dist.ProcessGroup") -> Tensor:
        ctx.nodes, ctx.group, ranks = nodes, group, group.size()
        width = rows.shape[1:].numel()
        given = [count * width for count in blocks(nodes, ranks)]
        copies = rows.flatten().repeat(ranks)
        return _exchange(copies, [rows.numel()] * ranks, given, group).view(nodes, *rows.shape[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        group, width = ctx.group, grad.shape[1:].numel()
        counts = blocks(ctx.nodes, group.size())
        own = counts[group.rank()]
        sizes = [count * width for count in counts]
        parts = _exchange(grad.flatten(), sizes, [own * width] * group.size(), group)
        return parts.view(group.size(), own, *grad.shape[1:]).sum(0), None, None


class _ToColumns(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, nodes: int, group: "dist.ProcessGroup", unit: int) -> Tensor:
        ctx.width, ctx.group, ctx.unit = rows.size(1), group, unit
        widths, counts = _units(ctx.width, unit, group), blocks(nodes, group.size())
        own = widths[group.rank()]
        parts = torch.cat([part.flatten() for part in rows.split(widths, 1)])
        sizes = [count * own for count in counts]
        return _exchange(parts, [len(rows) * width for width in widths], sizes, group).view(nodes, own)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return to_rows(grad, ctx.width, ctx.group, ctx.unit), None, None, None


class _ToRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, columns: Tensor, width: int, group: "dist.ProcessGroup", unit: int) -> Tensor:
        ctx.nodes, ctx.group, ctx.unit = columns.size(0), group, unit
        widths, counts = _units(width, unit, group), blocks(ctx.nodes, group.size())
        own = counts[group.rank()]
        sizes = [count * columns.size(1) for count in counts]
        parts = _exchange(columns.flatten(), sizes, [own * width for width in widths], group)
        pieces = parts.split([own * width for width in widths])
        return torch.cat([part.view(own, width) for part, width in zip(pieces, widths, strict=True)], 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return to_columns(grad, ctx.nodes, ctx.group, ctx.unit), None, None, None


def _units(width: int, unit: int, group: "dist.ProcessGroup") -> list[int]:
    return [unit * count for count in blocks(width // unit, group.size())]


def _exchange(parts: Tensor, sizes: list[int], given: list[int], group: "dist.ProcessGroup") -> Tensor:
    """Send every rank its part, and return what all have sent."""
    result = parts.new_empty(sum(given))
    _together(
        lambda: dist.all_to_all_single(result, parts.contiguous(), given, sizes, group=group, async_op=True),
        group,
    )
    return result


def _together(begin: Callable[[], Any], group: "dist.ProcessGroup") -> None:
    """Do what all ranks do; where it fails because one has died, say which."""
    try:
        work = begin()
        # A rank hears of a death from its neighbors alone; those further off look into the store.
        while dist.get_backend(group) == "gloo" and not _arrives(work):
            if _store().check([FAILED]):
                raise RuntimeError("another rank has failed")
        work.wait()
    except RuntimeError as error:
        silent = _silent_ranks(group)
        if not silent:
            raise
        problem = f"rank {', '.join(map(str, silent))} of {dist.get_world_size()} no longer answers"
        hint = "Its own messages say why; torchrun --max-restarts starts all ranks again."
        raise PairNormError(problem, code="rank-died", value=silent, hint=hint) from error


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
