"""PairNorm over the rows of all ranks of a process group: one collective forward, one backward.

In plain torch on every device; what crosses between ranks is in float64. All ranks take part in both passes,
those without rows too. A gradient is that of the sum of all ranks' losses.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pairnorm.nn.ops.collectives import all_sum, gather
from pairnorm.nn.ops.kernels import opaque
from pairnorm.nn.ops.moments import Groups, Moments, widen

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@opaque
def center_and_scale(
    x: Tensor, groups: Groups, scale: float, eps: float, individually: bool, group: "ProcessGroup"
) -> Tensor:
    """Return s·c/r, where c is centerd and r is the norm of every row, or of all rows of all ranks."""
    return _CenterAndScale.apply(x, groups, scale, eps, individually, group)[0]


@opaque
def scale_and_center(x: Tensor, groups: Groups, scale: float, eps: float, group: "ProcessGroup") -> Tensor:
    """Return s·x/r, where r is the norm of every row, minus the mean of x over all ranks."""
    wide = widen(x)
    norm = (wide.square().sum(-1, keepdim=True) + eps).sqrt()
    total = groups.sum(wide).double()
    total, count = all_sum(_pack(total, groups.counts(total)), group).tensor_split([x.size(-1)], -1)
    return (wide * (scale / norm) - groups.spread((total / count.clamp(min=1)).to(wide.dtype))).to(x.dtype)


class _CenterAndScale(torch.autograd.Function):
    """The norm is an output, for what is saved must stay connected to x: see ``plain``."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, groups: Groups, scale: float, eps: float, individually: bool,
        group: "ProcessGroup",
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        wide = widen(x)
        moments = _moments(wide, groups, group)
        # All ranks see the same moments, and so agree on going again where squares leave single precision.
        if x.device.type == "cpu" and not bool(moments.squares.isfinite().all()):
            wide = x.double()
            moments = _moments(wide, groups, group)
        high = moments.mean.to(wide.dtype)
        low = (moments.mean - high).to(wide.dtype)
        centerd = (wide - groups.spread(high)) - groups.spread(low)
        if individually:
            norm = (centerd.square().sum(-1, keepdim=True) + eps).sqrt()
        else:
            norm = groups.spread((moments.mean_square + eps).sqrt().to(wide.dtype))
        y = (centerd * (scale / norm)).to(x.dtype)
        ctx.groups, ctx.scale, ctx.individually, ctx.group = groups, scale, individually, group
        ctx.save_for_backward(y, norm, moments.count)
        ctx.set_materialize_grads(False)
        return y, norm

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_norm: Tensor | None) -> tuple[Tensor | None, ...]:
        """As ``formula_gradient`` in ``plain``, with all sums over ranks in one."""
        y, norm, count = ctx.saved_tensors
        groups, scale = ctx.groups, ctx.scale
        wide = y.to(norm.dtype)
        grad = torch.zeros_like(wide) if grad is None else grad.to(norm.dtype)
        result = grad * (scale / norm)
        pull = -(grad * wide).sum(-1, keepdim=True) / norm
        if ctx.individually:
            pull = pull if grad_norm is None else pull + grad_norm
            result = result + wide * (pull / scale)
            total = all_sum(groups.sum(result).double(), ctx.group)
        else:
            pull = groups.sum(pull) if grad_norm is None else groups.sum(pull) + groups.sum(grad_norm)
            sums = all_sum(_pack(groups.sum(result), pull).double(), ctx.group)
            total, pull = sums.tensor_split([y.size(-1)], -1)
            result = result + wide * groups.spread((pull / (count * scale)).to(wide.dtype))
        result = result - groups.spread((total / count).to(wide.dtype))
        return result.to(y.dtype), None, None, None, None, None


def _moments(x: Tensor, groups: Groups, group: "ProcessGroup") -> Moments:
    """Return the moments of every graph over all ranks, ``[graphs, ..., features]``, in float64."""
    own = Moments.of(x, groups)
    parts = gather(_pack(own.count, own.mean, own.squares), group)
    features = x.size(-1)
    count, mean, squares = parts.tensor_split([1, 1 + features], -1)
    merged = Moments(count, mean, squares).merge()
    return Moments(merged.count[0].clamp(min=1), merged.mean[0], merged.squares[0])


def _pack(*statistics: Tensor) -> Tensor:
    return torch.cat(statistics, -1)
