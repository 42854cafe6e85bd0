"""PairNorm: center node representations, then rescale them to a constant total pairwise squared distance."""

import warnings
from copy import deepcopy
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pairnorm.base.errors import PairNormError, one_of, real_number
from pairnorm.nn.ops.collectives import check_group
from pairnorm.nn.ops.moments import Groups, RunningMoments, check_states, widen
from pairnorm.nn.ops.pair_norm import ranks
from pairnorm.nn.ops.pair_norm.plain import center_and_scale, scale_and_center

Mode = Literal["PN", "PN-SI", "PN-SCS"]
MODES: tuple[Mode, ...] = get_args(Mode)


def pair_norm(
    x: Tensor,
    scale: float = 1.0,
    mode: Mode = "PN",
    eps: float = 1e-6,
    batch: Tensor | None = None,
    batch_size: int | None = None,
    process_group: "dist.ProcessGroup | None" = None,
) -> Tensor:
    r"""Normalize node representations so that they cannot all become alike.

    With $\mathbf{x}^c_i = \mathbf{x}_i - \frac{1}{n} \sum_j \mathbf{x}_j$:

    $$
    \begin{aligned}
    \text{PN:} \quad
        & s \, \mathbf{x}^c_i
        \Big/ \sqrt{\tfrac{1}{n} \textstyle\sum_j \|\mathbf{x}^c_j\|_2^2 + \epsilon} \\
    \text{PN-SI:} \quad & s \, \mathbf{x}^c_i \Big/ \sqrt{\|\mathbf{x}^c_i\|_2^2 + \epsilon} \\
    \text{PN-SCS:} \quad
        & s \, \mathbf{x}_i \Big/ \sqrt{\|\mathbf{x}_i\|_2^2 + \epsilon}
        - \tfrac{1}{n} \textstyle\sum_j \mathbf{x}_j
    \end{aligned}
    $$

    Statistics accumulate in float32 for half precision (float64 for float64); the output has the dtype of
    the input.

    Args:
        x: Node representations ``[nodes, features]``, or ``[nodes, ..., features]``: every index of the
            middle axes (trials) is normalized on its own.
        scale: The paper's $s$. After ``PN`` the total pairwise squared distance is $2 n^2 s^2$.
        mode: ``"PN"``, ``"PN-SI"`` (every row scaled individually) or ``"PN-SCS"`` (rows scaled, less the
            mean of what they were before, as in the authors' code).
        eps: Added inside the root, so that the gradient at a zero row is at most ``scale / sqrt(eps)``.
        batch: The graph of each node, in any order; every graph is normalized on its own.
        batch_size: The number of graphs in ``batch``, without which it has no effect. It saves a device
            synchronization and a graph break under ``torch.compile``.
        process_group: The ranks of ``torch.distributed`` that hold one graph's rows between them; see
            ``PairNorm``.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [3.0, 0.0]])
        >>> pair_norm(x)
        tensor([[-1.0000,  0.0000],
                [ 1.0000,  0.0000]])
    """
    _check_settings(scale, mode, eps, process_group)
    return _pair_norm(x, scale, mode, eps, batch, batch_size, process_group)


def _pair_norm(
    x: Tensor, scale: float, mode: Mode, eps: float, batch: Tensor | None, batch_size: int | None,
    process_group: "dist.ProcessGroup | None",
) -> Tensor:  # fmt: skip
    check_states(x)
    groups = Groups.of(x, batch, batch_size)
    if process_group is not None:
        if batch is not None and batch_size is None:
            problem = (
                "batch without batch_size: the ranks of a process group may see different numbers of graphs"
            )
            hint = "Pass {batch_size}, the same on all ranks."
            raise PairNormError(problem, code="no-batch-size", hint=hint, batch_size=...)
        if mode == "PN-SCS":
            return ranks.scale_and_center(x, groups, scale, eps, process_group)
        return ranks.center_and_scale(x, groups, scale, eps, mode == "PN-SI", process_group)
    if batch is None and not torch.compiler.is_compiling() and dist.is_available() and dist.is_initialized():
        _say_that_statistics_are_local()
    if mode == "PN-SCS":
        return scale_and_center(x, groups, scale, eps)
    return center_and_scale(x, groups, scale, eps, individually=mode == "PN-SI")


@cache
def _say_that_statistics_are_local() -> None:
    """Warn where several ranks normalize, each by itself: once in a process."""
    if dist.get_world_size() > 1:
        warnings.warn(
            "PairNorm without process_group: every rank normalizes its own rows as a graph of their own. "
            "Where ranks share the rows of one graph, pass process_group=torch.distributed.group.WORLD.",
            stacklevel=2,
        )


class PairNorm(nn.Module):
    """The layer form of ``pair_norm``: no parameters, usable after any graph convolution.

    With ``process_group`` the rows of all its ranks are one graph: one collective forward, one backward, of a
    few numbers per feature in float64. All ranks must run both passes; one without rows gives ``[0, ...]``. A
    gradient is that of the sum of the ranks' losses. ``DistributedDataParallel`` divides it by the number of
    ranks: let each rank's loss be its share of the whole, times that number.

    With ``track_running_stats``, for models that see a graph in batches, ``statistics`` holds count, mean and
    mean square of all rows since ``statistics.reset()``. In training, rows are normalized by those of their
    batch and taken in; in eval they are normalized by the statistics, whatever the batch. These are the whole
    graph's after ``pairnorm.nn.calibrate``. Every layer then needs a PairNorm of its own.

    Args:
        scale: The paper's s, which sets the constant total pairwise squared distance 2 n² s².
        mode: ``"PN"``, ``"PN-SI"`` or ``"PN-SCS"``; see ``pair_norm``.
        eps: Added inside the root.
        process_group: The ranks whose rows are one graph, such as ``torch.distributed.group.WORLD``; None:
            those of this process are.
        track_running_stats: Keep the statistics, in buffers, and go by them in eval.

    Example:
        >>> PairNorm(scale=10, mode="PN-SI")
        PairNorm(scale=10, mode='PN-SI', eps=1e-06)
    """

    def __init__(
        self,
        scale: float = 1.0,
        mode: Mode = "PN",
        eps: float = 1e-6,
        process_group: "dist.ProcessGroup | None" = None,
        track_running_stats: bool = False,
    ) -> None:
        super().__init__()
        _check_settings(scale, mode, eps, process_group)
        self.scale, self.mode, self.eps, self.process_group = scale, mode, eps, process_group
        self.statistics = RunningMoments() if track_running_stats else None

    @property
    def track_running_stats(self) -> bool:
        """Whether statistics are kept, and gone by in eval."""
        return self.statistics is not None

    def forward(self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None) -> Tensor:
        """Normalize ``x``; see ``pair_norm`` for the arguments."""
        if self.statistics is not None:
            check_states(x)
            if batch is not None or self.process_group is not None:
                problem = "track_running_stats is for one graph in one process"
                hint = "Drop track_running_stats, or pass neither {batch} nor a process_group."
                raise PairNormError(problem, code="conflicting-options", hint=hint, batch=...)
            if not self.training:
                return self._by_statistics(x, self.statistics)
            self.statistics.update(x)
        return _pair_norm(x, self.scale, self.mode, self.eps, batch, batch_size, self.process_group)

    if TYPE_CHECKING:

        def __call__(  # noqa: D102
            self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None
        ) -> Tensor: ...

    def _by_statistics(self, x: Tensor, statistics: RunningMoments) -> Tensor:
        statistics.check(x)
        wide = widen(x)
        high = statistics.mean.to(wide.dtype)
        low = (statistics.mean - high).to(wide.dtype)
        centerd = (wide - high) - low
        if self.mode == "PN":
            norm = (statistics.mean_square + self.eps).sqrt().to(wide.dtype)
        else:
            rows = centerd if self.mode == "PN-SI" else wide
            norm = (rows.square().sum(-1, keepdim=True) + self.eps).sqrt()
        factor = self.scale / norm
        return (wide * factor - high if self.mode == "PN-SCS" else centerd * factor).to(x.dtype)

    def __repr__(self) -> str:
        group = "" if self.process_group is None else f", process_group=<{self.process_group.size()} ranks>"
        tracks = ", track_running_stats=True" if self.track_running_stats else ""
        return f"PairNorm(scale={self.scale}, mode={self.mode!r}, eps={self.eps}{group}{tracks})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # A group belongs to this process and has no copies.
        result = memo[id(self)] = type(self).__new__(type(self))
        memo[id(self.process_group)] = self.process_group
        result.__dict__.update(deepcopy(self.__dict__, memo))
        return result


def _check_settings(scale: Any, mode: Any, eps: Any, process_group: Any) -> None:
    if process_group is not None:
        check_group(process_group)
    one_of("mode", mode, MODES)
    for name, value in (("scale", scale), ("eps", eps)):
        if isinstance(value, Tensor):
            problem = f"{name} is a tensor of shape {list(value.shape)}"
            hint = "Call its item(); to learn a scale, multiply the result by it."
            raise PairNormError(problem, code="not-a-number", value=value, expected="a number", hint=hint)
    real_number("scale", scale, above=0, most=1e18)  # beyond it squares are infinite in single precision
    # In single precision, where the statistics are, a smaller one is zero and a zero row is divided by it.
    real_number("eps", eps, least=torch.finfo(torch.float32).tiny)
