r"""PairNorm: center the rows of each graph, and divide each row, or all rows of a graph, by a norm r.

    c = x - mean(x)        y = s·c / r        r² = ‖c_i‖² + eps, or the mean over the graph of ‖c_i‖² + eps

PN-SCS divides x itself by the norms of its rows and subtracts the mean afterwards. ``_reference`` defines all
modes by torch operations. Graphs of a batch, ranks and degrees differ in ``Groups`` alone; running statistics
supply the moments. Kernels compute the same for one graph.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from pairnorm.base.errors import PairNormError, no_tensor, wrong_shape
from pairnorm.nn.ops.kernels import KernelFunction, find_kernels, needs_reference

if dist.is_available():
    # Its functions bind the default group at import and would keep one alive, threads included, that existed
    # by then: Python would abort at exit.
    import torch.distributed.nn.functional

if TYPE_CHECKING:
    from pairnorm.nn.pair_norm import PairNorm

MAX_NORM = 1e36
"""Rows with larger norms, infinite ones too, are computed in float64."""
MAX_FUSED_ELEMENTS = 2**20
"""On a CPU, larger states are normalized by several threads, after the operation before."""


def check_states(x: Tensor) -> None:
    """Raise an error unless ``x`` is a dense floating-point tensor ``[nodes, ..., features]``."""
    value: object = None
    what, expected, hint = "", "a tensor", ""
    if not isinstance(x, Tensor):
        what, value = "type", type(x).__name__
    elif x.layout != torch.strided:
        what, value, expected, hint = "layout", x.layout, "a dense tensor", "Call x.to_dense() first."
    elif not x.is_floating_point():
        what, value, expected = "dtype", x.dtype, "a floating-point tensor"
        hint = "Call x.float() first."
    elif x.dim() < 2:
        what, value = "shape", list(x.shape)
    if what:
        problem, expected = f"x has {what} {value}", f"{expected} [nodes, features] or [nodes, ..., features]"
        raise PairNormError(problem, code=f"wrong-{what}", value=value, expected=expected, hint=hint)


def to_accumulation_dtype(x: Tensor) -> Tensor:
    """Return ``x`` in the dtype that statistics accumulate in: float32, float64 for float64."""
    return x.to(torch.float64 if x.dtype == torch.float64 else torch.float32)


def row_squares(rows: Tensor) -> Tensor:
    """Return the squared norms of rows ``[..., features]`` in float64, ``[..., 1]``; no square overflows."""
    divisor = row_divisors(rows)
    return divisor.double().square() * (rows / divisor).square().sum(-1, keepdim=True).double()


def row_divisors(rows: Tensor) -> Tensor:
    """Return the largest absolute number of every row, at least one, ``[..., 1]``; a constant to autograd."""
    if rows.size(-1) == 0:
        return rows.new_ones(*rows.shape[:-1], 1)
    return rows.detach().abs().amax(-1, keepdim=True).clamp(min=1)


@dataclass(frozen=True)
class Moments:
    """Count, mean and sum of squares about it of the rows of each graph, or of its parts, in float64."""

    count: Tensor  # [parts, ..., 1], or what broadcasts to it
    mean: Tensor  # [parts, ..., features]
    squares: Tensor  # [parts, ..., 1]

    def merge(self) -> "Moments":
        """Merge the parts of one graph: blocks of a tensor, or what the ranks of a process group have."""
        # By the formula of Chan, Golub and LeVeque: Σx² - n·mean² would cancel on oversmoothed states.
        count = self.count.sum(0, keepdim=True)
        mean = (self.count * self.mean).sum(0, keepdim=True) / count.clamp(min=1)
        between = (self.count * (self.mean - mean).square()).sum(0, keepdim=True).sum(-1, keepdim=True)
        return Moments(count, mean, self.squares.sum(0, keepdim=True) + between)

    @property
    def mean_square(self) -> Tensor:
        """The mean squared distance from the mean; zero where there are no rows."""
        return self.squares / self.count.clamp(min=1)


def _without_transforms(x: Tensor) -> Tensor:
    """Return the values in a tensor that torch.func has wrapped; those of all samples under vmap."""
    # torch.compile cannot trace these two functions, and needs neither.
    while not torch.compiler.is_compiling() and torch._C._functorch.is_functorch_wrapped_tensor(x):
        x = torch._C._functorch.get_unwrapped(x)
    return x


@dataclass(frozen=True)
class Groups:
    """Which graph each node belongs to; without ``batch`` all nodes are one graph."""

    num_nodes: int
    batch: Tensor | None = None
    size: int = 1

    @classmethod
    def of(cls, x: Tensor, batch: Tensor | None, batch_size: int | None) -> "Groups":
        """Read the graphs of the nodes of ``x`` from a PyG-style ``batch`` vector, checked."""
        if batch is None:
            return cls(x.size(0))
        if not isinstance(batch, Tensor):
            raise no_tensor("batch", batch, f"a tensor [{x.size(0)}]")
        if batch.dim() != 1 or batch.size(0) != x.size(0):
            expected = f"[{x.size(0)}], the graph of each of the {x.size(0)} nodes"
            raise wrong_shape("batch", batch.shape, expected)
        if batch.dtype not in (torch.int64, torch.int32):
            problem, expected, hint = f"batch has dtype {batch.dtype}", "torch.int64", "Call batch.long()."
            raise PairNormError(problem, code="wrong-type", value=batch.dtype, expected=expected, hint=hint)
        # Reading the numbers is a device sync on CUDA and a graph break under torch.compile; batch_size
        # avoids both.
        is_checked = batch_size is None or (batch.device.type == "cpu" and not needs_reference(batch))
        if is_checked and batch.numel():
            low, high = (int(bound) for bound in _without_transforms(batch).aminmax())
            if low < 0 or (batch_size is not None and high >= batch_size):
                problem, graph = f"batch names graph {low if low < 0 else high}", low if low < 0 else high
                expected = "numbers from 0" + (
                    f" to below batch_size, {batch_size}" if batch_size is not None else ""
                )
                raise PairNormError(problem, code="out-of-range", value=graph, expected=expected)
            batch_size = high + 1 if batch_size is None else batch_size
        return cls(x.size(0), batch, batch_size or 0)

    def sum(self, x: Tensor) -> Tensor:
        """Sum ``[nodes, ...]`` over the nodes of each graph: ``[graphs, ...]``."""
        if self.batch is None:
            return x.sum(0, keepdim=True)
        flat = x.flatten(1)
        graph = self.batch.long().unsqueeze(1).expand_as(flat)
        # scatter_add, because for its gradient index_add would keep x.
        return x.new_zeros(self.size, flat.size(1)).scatter_add(0, graph, flat).view(self.size, *x.shape[1:])

    def count(self, device: torch.device) -> Tensor:
        """Count the nodes of each graph, in integers: exact beyond 2²⁴ nodes."""
        if self.batch is None:
            return torch.full((1,), self.num_nodes, device=device)  # can be captured, unlike a copy
        return self.sum(torch.ones_like(self.batch).unsqueeze(1)).squeeze(1)

    def counts(self, statistic: Tensor) -> Tensor:
        """Count the nodes of each graph in float64, in the shape of ``statistic``: ``[graphs, ..., 1]``."""
        count = self.count(statistic.device).double()
        return count.view(-1, *[1] * (statistic.dim() - 1)).expand(*statistic.shape[:-1], 1)

    def mean(self, x: Tensor) -> Tensor:
        """Average over the nodes of each graph; a graph without nodes has mean zero."""
        if self.batch is None:
            return self.sum(x) / max(self.num_nodes, 1)
        return self.sum(x) / self.count(x.device).clamp(min=1).view(-1, *[1] * (x.dim() - 1))

    def mean_of_each(self, x: Tensor) -> Tensor:
        """Return the mean over each node's graph, which broadcasts to ``[nodes, ...]``."""
        return self.to_nodes(self.mean(x))

    def to_nodes(self, statistic: Tensor) -> Tensor:
        """Return each node's statistic of its graph, which broadcasts to ``[nodes, ...]``."""
        return statistic if self.batch is None else statistic.index_select(0, self.batch)

    def project(self, x: Tensor) -> Tensor:
        """Return what centering removes, ``[graphs, ..., features]``: the mean."""
        return self.mean(x)

    def expand(self, projection: Tensor) -> Tensor:
        """Return for each node what centering subtracts from it."""
        return self.to_nodes(projection)

    def subtract(self, x: Tensor, projection: Tensor) -> Tensor:
        """Subtract a float64 projection in two parts, so that none of its digits is lost."""
        high = projection.to(x.dtype)
        low = (projection - high).to(x.dtype)
        return (x - self.expand(high)) - self.expand(low)

    def center(self, x: Tensor) -> Tensor:
        """Subtract from every node the mean of its graph; this is its own adjoint."""
        # Twice: the second mean is the rounding error of the first, which a large common offset makes large.
        x = x - self.expand(self.project(x))
        return x - self.expand(self.project(x))

    def statistics(self, x: Tensor) -> tuple[Moments, Tensor]:
        """Return the moments of every graph, and the centered rows; ``x`` is float32 or float64."""
        shift = self.project(x)
        centered = x - self.expand(shift)
        residual = self.project(centered)  # the rounding error of the mean
        centered = centered - self.expand(residual)
        mean = shift.double() + residual.double()
        return Moments(self.counts(mean), mean, self.sum(row_squares(centered))), centered

    def gradient_means(self, grad: Tensor, dots: Tensor) -> tuple[Tensor, Tensor]:
        """Return the projection of ``grad`` and the mean of ``dots`` over the nodes of each graph."""
        return self.project(grad), self.mean(dots)


def check_group(group: Any) -> "dist.ProcessGroup":
    """Return a process group that this process is a member of, or raise an error."""
    if dist.is_available() and isinstance(group, dist.ProcessGroup):
        return group
    problem = f"process_group is {group!r}"
    expected = "a torch.distributed process group with this process in it"
    hint = "Call torch.distributed.init_process_group() first, then pass torch.distributed.group.WORLD."
    raise PairNormError(problem, code="wrong-type", value=group, expected=expected, hint=hint)


def all_sum(x: Tensor, group: "dist.ProcessGroup") -> Tensor:
    """Return the sum over all ranks; its gradient is the sum of the gradients of all ranks."""
    return _AllSum.apply(x, group)


class _AllSum(torch.autograd.Function):  # torch has deprecated its own
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: "dist.ProcessGroup") -> Tensor:
        ctx.group = group
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return all_sum(grad, ctx.group), None


@dataclass(frozen=True)
class RankGroups(Groups):
    """Graphs whose nodes are distributed over the ranks of a process group; all ranks take part."""

    process_group: "dist.ProcessGroup" = field(kw_only=True)

    def statistics(self, x: Tensor) -> tuple[Moments, Tensor]:
        """Return the moments of every graph over all ranks, and the centered local rows."""
        local, _ = super().statistics(x)
        mine = torch.cat([local.count, local.mean, local.squares], -1)
        group, none = self.process_group, torch.zeros_like(mine)
        rows = [mine if rank == group.rank() else none for rank in range(group.size())]
        parts = all_sum(torch.stack(rows), group)  # a sum with zeros gathers what each rank has
        count, mean, squares = parts.tensor_split([1, 1 + x.size(-1)], -1)
        merged = Moments(count, mean, squares).merge()
        moments = Moments(merged.count[0], merged.mean[0], merged.squares[0])
        return moments, self.subtract(x, moments.mean)

    def gradient_means(self, grad: Tensor, dots: Tensor) -> tuple[Tensor, Tensor]:
        """Return the means over the nodes of all ranks."""
        totals = self.sum(torch.cat([grad, dots], -1)).double()
        totals = all_sum(torch.cat([totals, self.counts(totals)], -1), self.process_group)
        grad_total, dot_total, count = totals.tensor_split([grad.size(-1), grad.size(-1) + 1], -1)
        count = count.clamp(min=1)
        return (grad_total / count).to(grad.dtype), (dot_total / count).to(grad.dtype)


def can_fuse(norm: "PairNorm", x: Tensor) -> bool:
    """Return whether the kernels of the operation before ``norm`` can normalize its result at once."""
    alone = norm.process_group is None and not norm.track_running_stats and norm.mode != "PN-SCS"
    return alone and (x.device.type != "cpu" or x.numel() <= MAX_FUSED_ELEMENTS)


def normalize(x: Tensor, groups: Groups, scale: float, eps: float, mode: str) -> Tensor:
    """Return PairNorm of ``x`` ``[nodes, ..., features]`` for the graphs of ``groups``."""
    settings = (groups, scale, eps, mode)
    if needs_reference(x):
        return _reference(x, *settings)
    # Kernels take one graph in one process, centered by its mean.
    is_one_graph = type(groups) is Groups and groups.batch is None
    kernels = find_kernels("pair_norm", x) if is_one_graph and mode != "PN-SCS" else None
    passes = (_torch_forward, _torch_backward) if kernels is None else (kernels.forward, kernels.backward)
    return KernelFunction.apply(*passes, _reference, settings, x)


def normalize_by(x: Tensor, mean: Tensor, mean_square: Tensor, scale: float, eps: float, mode: str) -> Tensor:
    """Return PairNorm of ``x`` as a part of one graph whose statistics are known."""
    wide, groups = to_accumulation_dtype(x), Groups(x.size(0))
    square = mean_square.double().unsqueeze(0)
    moments = Moments(torch.ones_like(square), mean.double().unsqueeze(0), square)
    centered = groups.subtract(wide, moments.mean)
    return _scaled(wide, centered, moments, groups, scale, eps, mode)[0].to(x.dtype)


def normalize_and_measure(
    x: Tensor, scale: float, eps: float, mode: str
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return PairNorm of one graph, ``[nodes, features]``, without gradients, its mean and mean square."""
    # Torch takes a millisecond for small inputs, and compiling the kernel for them many seconds.
    is_small = x.device.type == "cpu" and x.numel() <= MAX_FUSED_ELEMENTS
    kernels = None if mode == "PN-SCS" or is_small else find_kernels("pair_norm", x)
    forward = _torch_forward if kernels is None else kernels.forward
    y, (norm, mean) = forward(x, Groups(x.size(0)), scale, eps, mode, False)
    # Kernels may save the mean in parts.
    mean = mean.view(-1, x.size(1)).sum(0) if x.size(1) else mean.new_zeros(0)
    mean_square = (norm.double().square().mean() - eps).clamp(min=0)
    return y, (mean.to(x.dtype), mean_square.reshape(1).to(x.dtype))


def in_double(x: Tensor, settings: Any, grad: Tensor | None = None) -> Tensor:
    """Return PairNorm of ``x``, or its gradient, in float64: for numbers near the limit of float32."""
    if grad is None:
        return _reference(x.double(), *settings).to(x.dtype)
    with torch.enable_grad():
        wide = x.detach().double().requires_grad_()
        y = _reference(wide, *settings)
    return torch.autograd.grad(y, wide, grad.double())[0].to(x.dtype)


def is_huge(norm: Tensor) -> bool:
    """Return whether norms may exceed float32; checked on a CPU only."""
    return norm.device.type == "cpu" and norm.numel() > 0 and not norm.max().item() < MAX_NORM


def _without_autocast(device: str) -> AbstractContextManager[Any]:
    available = torch.amp.is_autocast_available(device)
    return torch.autocast(device, enabled=False) if available else nullcontext()


def _forward(
    x: Tensor, groups: Groups, scale: float, eps: float, mode: str
) -> tuple[Tensor, Tensor, Moments]:
    """Return y, the norms r and the moments; this defines the operation."""
    with _without_autocast(x.device.type):
        wide = to_accumulation_dtype(x)
        moments, centered = groups.statistics(wide)
        y, norm = _scaled(wide, centered, moments, groups, scale, eps, mode)
        return y.to(x.dtype), norm, moments


def _reference(x: Tensor, groups: Groups, scale: float, eps: float, mode: str) -> Tensor:
    return _forward(x, groups, scale, eps, mode)[0]


def _scaled(
    x: Tensor, centered: Tensor, moments: Moments, groups: Groups, scale: float, eps: float, mode: str
) -> tuple[Tensor, Tensor]:
    """Normalize by the moments; return y and the norms."""
    rows = x if mode == "PN-SCS" else centered
    square = groups.to_nodes(moments.mean_square) if mode == "PN" else row_squares(rows)
    norm = (square + eps).sqrt()
    # A factor of s / r would be subnormal for the largest numbers.
    divisor = row_divisors(rows)
    y = (rows / divisor) * (scale * divisor.double() / norm).to(rows.dtype)
    if mode == "PN-SCS":
        y = groups.subtract(y, moments.mean)
    return y, norm.to(rows.dtype)


def _torch_forward(
    x: Tensor, groups: Groups, scale: float, eps: float, mode: str, needs_backward: bool
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Run the reference as kernels are run: of tensors of the input's size, only the input is saved."""
    y, norm, moments = _forward(x, groups, scale, eps, mode)
    # The ranks of a process group must all do the same.
    if is_huge(norm) and x.dtype != torch.float64 and not isinstance(groups, RankGroups):
        y = in_double(x, (groups, scale, eps, mode))
    return y, (norm, moments.mean)


def _torch_backward(saved: Any, inputs: Any, settings: Any, grads: Any, needs_grad: Any) -> tuple[Tensor]:
    """Return dL/dx: with u = c/r, dL/dc = (s/r)·(dL/dy - u·Σ dL/dy·u), Σ averages over what shares one r."""
    (norm, mean), (x,), (groups, scale, _, mode), (grad, *_) = saved, inputs, settings, grads
    if is_huge(norm) and x.dtype != torch.float64 and not isinstance(groups, RankGroups):
        return (in_double(x, settings, grad),)
    with _without_autocast(x.device.type):
        grad, wide = grad.to(norm.dtype), to_accumulation_dtype(x)
        unit = (wide if mode == "PN-SCS" else groups.subtract(wide, mean)) / norm
        dots, factor = (grad * unit).sum(-1, keepdim=True), scale / norm
        if mode == "PN":
            scaled = grad * factor
            shift, dots = groups.gradient_means(scaled, dots)
            result = torch.addcmul(scaled, unit, groups.to_nodes(dots) * factor, value=-1)
            return ((result - groups.expand(shift)).to(x.dtype),)
        result = torch.addcmul(grad, unit, dots, value=-1) * factor
        if mode == "PN-SCS" or isinstance(groups, RankGroups):
            through_mean = grad if mode == "PN-SCS" else result
            return ((result - groups.expand(groups.gradient_means(through_mean, dots)[0])).to(x.dtype),)
        return (groups.center(result).to(x.dtype),)
