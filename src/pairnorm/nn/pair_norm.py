"""PairNorm: center node representations, then rescale them to a constant total pairwise squared distance."""

import warnings
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pairnorm.base.errors import PairNormError, one_of, real_number, wrong_shape
from pairnorm.nn.ops.kernels import disable_dynamo
from pairnorm.nn.ops.pair_norm import (
    Groups,
    Moments,
    RankGroups,
    check_group,
    check_states,
    normalize,
    normalize_by,
    to_accumulation_dtype,
)

Mode = Literal["PN", "PN-SI", "PN-SCS"]
MODES: tuple[Mode, ...] = get_args(Mode)


def pair_norm(
    x: Tensor, scale: float = 1.0, mode: Mode = "PN", eps: float = 1e-6, batch: Tensor | None = None,
    batch_size: int | None = None, process_group: "dist.ProcessGroup | None" = None,
) -> Tensor:  # fmt: skip
    r"""Center node representations and rescale them, so that they cannot all become equal.

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
            middle axes (models) is normalized on its own.
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
        return _normalize_over_ranks(x, groups, scale, eps, mode, process_group)
    if batch is None and not torch.compiler.is_compiling() and dist.is_available() and dist.is_initialized():
        _warn_local_statistics()
    return normalize(x, groups, scale, eps, mode)


@disable_dynamo
def _normalize_over_ranks(
    x: Tensor, groups: Groups, scale: float, eps: float, mode: Mode, process_group: "dist.ProcessGroup"
) -> Tensor:
    over_ranks = RankGroups(groups.num_nodes, groups.batch, groups.size, process_group=process_group)
    return normalize(x, over_ranks, scale, eps, mode)


@cache
def _warn_local_statistics() -> None:
    """Warn once per process where several ranks normalize separately."""
    if dist.get_world_size() > 1:
        warnings.warn(
            "PairNorm without process_group: every rank normalizes its own rows as a graph of their own. "
            "Where ranks share the rows of one graph, pass process_group=torch.distributed.group.WORLD.",
            stacklevel=2,
        )


class RunningMoments(nn.Module):
    """The moments of all rows so far, in float64 even if the model is cast; empty at first."""

    count: Tensor
    mean: Tensor  # [..., features]
    mean_square: Tensor  # [..., 1]

    def __init__(self) -> None:
        super().__init__()
        for name in ("count", "mean", "mean_square"):
            self.register_buffer(name, torch.empty(0, dtype=torch.float64))

    def reset(self) -> None:
        """Reset to no rows."""
        for name, buffer in self.named_buffers():
            setattr(self, name, buffer.new_empty(0))

    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        """Add the rows of ``x`` ``[rows, ..., features]``, merged exactly with the earlier ones."""
        self.check(x, empty=True)
        if x.size(0) == 0:
            return
        moments, _ = Groups(x.size(0)).statistics(to_accumulation_dtype(x))
        if self.count.numel():
            count, squares = self.count.expand_as(moments.count), self.count * self.mean_square
            before = Moments(count, self.mean.unsqueeze(0), squares.unsqueeze(0))
            parts = zip(vars(before).values(), vars(moments).values(), strict=True)
            moments = Moments(*map(torch.cat, parts)).merge()
        self.count = moments.count.flatten()[:1]
        self.mean, self.mean_square = moments.mean[0], moments.mean_square[0]

    def check(self, x: Tensor, empty: bool = False) -> None:
        """Raise an error if there are no moments (unless ``empty``) or their width differs from x's."""
        if not self.count.numel() and not empty:
            problem = "PairNorm(track_running_stats=True) has no statistics to normalize by in eval"
            hint = "Call calibrate(model, loader), train it, or load a state_dict."
            raise PairNormError(problem, code="not-fitted", hint=hint)
        if self.count.numel() and self.mean.shape != x.shape[1:]:
            expected = f"[nodes, {', '.join(map(str, self.mean.shape))}], as the statistics have"
            raise wrong_shape("x", x.shape, expected, hint="Give every layer a PairNorm of its own.")

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        before = dict(self.named_buffers())
        super()._apply(fn, recurse)
        for name, buffer in self.named_buffers():  # half precision would ruin them: only the device changes
            setattr(self, name, before[name].to(buffer.device))
        return self

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        for name, buffer in self.named_buffers():
            if prefix + name in state_dict:
                setattr(self, name, buffer.new_empty(state_dict[prefix + name].shape))
        super()._load_from_state_dict(state_dict, prefix, *args)  # type: ignore[no-untyped-call]


class PairNorm(nn.Module):
    """The layer form of ``pair_norm``: no parameters, usable after any graph convolution.

    eps is added under the root in every mode. PyG's ``PairNorm(scale_individually=True)`` adds it to the norm
    of a row instead: at ``eps=1e-6``, a row with a norm of 1e-3 becomes 0.707 s long here (PyG: 0.999 s).
    From a norm of 0.1 on, they agree to four digits. Under the root, gradients stay below s / sqrt(eps).

    With ``process_group`` the rows of all its ranks are one graph: one collective forward, one backward, of a
    few numbers per feature in float64. All ranks must run both passes; one without rows gives ``[0, ...]``. A
    gradient is that of the sum of the ranks' losses. ``DistributedDataParallel`` divides it by the number of
    ranks: multiply each rank's part of the loss by that number.

    With ``track_running_stats``, for models that see a graph in batches, ``statistics`` holds count, mean and
    mean square of all rows since ``statistics.reset()``. In training, rows are normalized by the statistics
    of their batch, which are merged into the running ones. In eval, rows are normalized by the running
    statistics, in any batch. ``pairnorm.nn.calibrate`` makes them those of the whole graph. Every layer
    then needs a PairNorm of its own.

    ``torch.compile``, ``torch.export``, the ONNX exporter of dynamo and ``torch.func`` trace the layer.
    TorchScript, which torch has deprecated, does not.

    Args:
        scale: The paper's s, which sets the constant total pairwise squared distance 2 n² s².
        mode: ``"PN"``, ``"PN-SI"`` or ``"PN-SCS"``; see ``pair_norm``.
        eps: Added inside the root.
        process_group: The ranks whose rows are one graph, such as ``torch.distributed.group.WORLD``; None
            for the rows of this process.
        track_running_stats: Keep running statistics in buffers, and normalize by them in eval.
        scale_individually: PyG's spelling: True for ``mode="PN-SI"``, False for ``mode="PN"``.

    Example:
        >>> PairNorm(scale=10, mode="PN-SI")
        PairNorm(scale=10, mode='PN-SI', eps=1e-06)
    """

    def __init__(
        self, scale: float = 1.0, mode: Mode = "PN", eps: float = 1e-6,
        process_group: "dist.ProcessGroup | None" = None, track_running_stats: bool = False,
        scale_individually: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if scale_individually is not None:
            if mode not in ("PN", "PN-SI") or (mode == "PN-SI" and not scale_individually):
                problem = f"mode is {mode!r} and scale_individually is {scale_individually}"
                hint = "Pass mode alone."
                raise PairNormError(problem, code="conflicting-options", hint=hint)
            mode = "PN-SI" if scale_individually else "PN"
        _check_settings(scale, mode, eps, process_group)
        self.scale, self.mode, self.eps, self.process_group = scale, mode, eps, process_group
        self.statistics = RunningMoments() if track_running_stats else None

    @property
    def track_running_stats(self) -> bool:
        """Whether the layer keeps running statistics, and normalizes by them in eval."""
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
                known = self.statistics
                known.check(x)
                return normalize_by(x, known.mean, known.mean_square, self.scale, self.eps, self.mode)
            self.statistics.update(x)
        return _pair_norm(x, self.scale, self.mode, self.eps, batch, batch_size, self.process_group)

    if TYPE_CHECKING:

        def __call__(  # noqa: D102
            self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None
        ) -> Tensor: ...

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
