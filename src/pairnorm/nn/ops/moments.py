"""The one reduction that PairNorm is made of: count, mean and squares about it, of the nodes of a graph."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from pairnorm.base.errors import PairNormError
from pairnorm.nn.ops.kernels import is_transformed


def check_states(x: Tensor) -> None:
    """Raise an error unless ``x`` is a dense floating-point tensor ``[nodes, ..., features]``."""
    if not isinstance(x, Tensor):
        raise _wrong("type", type(x).__name__, "a tensor")
    if x.layout != torch.strided:
        raise _wrong("layout", x.layout, "a dense tensor", "Call x.to_dense() first.")
    if not x.is_floating_point():
        raise _wrong("dtype", x.dtype, "a floating-point tensor", "Call x.float() first.")
    if x.dim() < 2:
        raise _wrong("shape", list(x.shape), "a tensor")


def no_tensor(name: str, value: object, expected: str = "a tensor") -> PairNormError:
    """Return the error of an argument of that name that is no tensor."""
    problem, hint = f"{name} is of type {type(value).__name__}", f"Call torch.tensor({name})."
    return PairNormError(problem, code="wrong-type", value=value, expected=expected, hint=hint)


def widen(x: Tensor) -> Tensor:
    """Return ``x`` in the dtype that statistics accumulate in: float32, float64 for float64."""
    return x.to(torch.float64 if x.dtype == torch.float64 else torch.float32)


def _wrong(what: str, found: object, expected: str, hint: str = "") -> PairNormError:
    expected = f"{expected} [nodes, features] or [nodes, ..., features]"
    return PairNormError(
        f"x has {what} {found}", code=f"wrong-{what}", value=found, expected=expected, hint=hint
    )


@dataclass(frozen=True)
class Moments:
    """What is known of the rows of each graph, or of each part of one.

    Args:
        count: how many rows, ``[parts, ..., 1]`` or what broadcasts to it.
        mean: of the rows, ``[parts, ..., features]``.
        squares: distances from the mean, squared and summed, ``[parts, ..., 1]``.
    """

    count: Tensor
    mean: Tensor
    squares: Tensor

    @classmethod
    def of(cls, x: Tensor, groups: "Groups") -> "Moments":
        """Sum up the rows of every graph, in float64; ``x`` is float32 or float64."""
        shift = groups.mean(x)
        centerd = x - groups.spread(shift)
        rest = groups.mean(centerd)  # what rounding left of the mean
        centerd = centerd - groups.spread(rest)
        mean = shift.double() + rest.double()
        squares = groups.sum(centerd.square().sum(-1, keepdim=True).double())
        return cls(groups.counts(mean), mean, squares)

    def merge(self) -> "Moments":
        """Merge the parts of one graph: blocks of a tensor, or what several machines have gathered.

        As Chan, Golub and LeVeque do, about the mean of all: Σx² - n·mean² would cancel to nothing on
        oversmoothed states.
        """
        count = self.count.sum(0, keepdim=True)
        mean = (self.count * self.mean).sum(0, keepdim=True) / count.clamp(min=1)
        between = (self.count * (self.mean - mean).square()).sum(0, keepdim=True).sum(-1, keepdim=True)
        return Moments(count, mean, self.squares.sum(0, keepdim=True) + between)

    @property
    def mean_square(self) -> Tensor:
        """The mean squared distance from the mean; zero where there are no rows."""
        return self.squares / self.count


@dataclass(frozen=True)
class Groups:
    """Which graph each node belongs to; without ``batch`` all nodes are one graph.

    ``mean`` reduces ``[nodes, ...]`` to ``[graphs, ...]`` and ``spread`` hands every node its graph's value
    back, so a formula written with the two serves one graph and a batch of graphs alike.
    """

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
            problem = f"batch has shape {list(batch.shape)}"
            expected = f"[{x.size(0)}], the graph of each of the {x.size(0)} nodes"
            raise PairNormError(problem, code="wrong-shape", value=list(batch.shape), expected=expected)
        if batch.dtype not in (torch.int64, torch.int32):
            problem, expected, hint = f"batch has dtype {batch.dtype}", "torch.int64", "Call batch.long()."
            raise PairNormError(problem, code="wrong-type", value=batch.dtype, expected=expected, hint=hint)
        # To look at the numbers is a device sync on CUDA and a graph break under torch.compile: with
        # batch_size, neither happens.
        looked = batch_size is None or (batch.device.type == "cpu" and not torch.compiler.is_compiling())
        if looked and batch.numel() and not is_transformed():
            least, most = (int(end) for end in batch.aminmax())
            limit = most + 1 if batch_size is None else batch_size
            if least < 0 or most >= limit:
                graph = least if least < 0 else most
                problem, below = f"batch names graph {graph}", f" to below batch_size, {limit}"
                expected = "numbers from 0" + ("" if batch_size is None else below)
                raise PairNormError(problem, code="out-of-range", value=graph, expected=expected)
            batch_size = limit
        return cls(x.size(0), batch, batch_size or 0)

    @property
    def has_kernels(self) -> bool:
        """Whether it is what kernels do: all nodes are one graph, centerd by their mean."""
        return self.batch is None

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
            return torch.tensor([self.num_nodes], device=device)
        return self.sum(torch.ones_like(self.batch).unsqueeze(1)).squeeze(1)

    def counts(self, statistic: Tensor) -> Tensor:
        """Count them in float64: ``[graphs, ..., 1]``, as ``statistic`` ``[graphs, ..., features]`` is."""
        count = self.count(statistic.device).double()
        return count.view(-1, *[1] * (statistic.dim() - 1)).expand(*statistic.shape[:-1], 1)

    def mean(self, x: Tensor) -> Tensor:
        """Average over the nodes of each graph; a graph without nodes has mean zero."""
        if self.batch is None:
            return self.sum(x) / max(self.num_nodes, 1)
        return self.sum(x) / self.count(x.device).clamp(min=1).view(-1, *[1] * (x.dim() - 1))

    def mean_of_each(self, x: Tensor) -> Tensor:
        """Hand each node the mean over its graph, in what fits ``[nodes, ...]``."""
        return self.spread(self.mean(x))

    def spread(self, statistic: Tensor) -> Tensor:
        """Hand each node its graph's statistic: ``[graphs, ...]`` to what fits ``[nodes, ...]``."""
        return statistic if self.batch is None else statistic.index_select(0, self.batch)

    def center(self, x: Tensor) -> Tensor:
        """Subtract from every node the mean of its graph.

        Done twice: the second mean is what rounding left of the first, which matters when a large common
        offset hides small differences, the very state of an oversmoothed representation.
        """
        x = x - self.mean_of_each(x)
        return x - self.mean_of_each(x)


class RunningMoments(nn.Module):
    """The moments of all rows that it has been shown, in float64 whatever a model is cast to.

    Its buffers are ``count``, ``mean`` ``[..., features]`` and ``mean_square`` ``[..., 1]``; they are empty
    until rows, or a ``state_dict``, tell how wide they are.
    """

    count: Tensor
    mean: Tensor
    mean_square: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("count", "mean", "mean_square"):
            self.register_buffer(name, torch.empty(0, dtype=torch.float64))

    def reset(self) -> None:
        """Forget all rows."""
        for name, buffer in self.named_buffers():
            setattr(self, name, buffer.new_empty(0))

    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        """Take in the rows of ``x`` ``[rows, ..., features]``, merged exactly with those before."""
        self.check(x, empty=True)
        found = Moments.of(widen(x), Groups(x.size(0)))
        if self.count.numel():
            before = Moments(
                self.count.expand_as(found.count),
                self.mean.unsqueeze(0),
                (self.count * self.mean_square).unsqueeze(0),
            )
            pairs = zip(vars(before).values(), vars(found).values(), strict=True)
            found = Moments(*(torch.cat(pair) for pair in pairs)).merge()
        self.count = found.count.flatten()[:1]
        self.mean, self.mean_square = found.mean[0], (found.squares / found.count.clamp(min=1))[0]

    def check(self, x: Tensor, empty: bool = False) -> None:
        """Raise an error where there are no moments, or those of something else than ``x``.

        Args:
            x: rows ``[rows, ..., features]``.
            empty: whether there may be none yet.
        """
        if not self.count.numel():
            if not empty:
                problem = "PairNorm(track_running_stats=True) has no statistics to go by in eval"
                hint = "Call calibrate(model, loader), train it, or load a state_dict."
                raise PairNormError(problem, code="not-fitted", hint=hint)
        elif self.mean.shape != x.shape[1:]:
            problem = f"x has shape {list(x.shape)}, but the statistics are of rows {list(self.mean.shape)}"
            expected = f"[nodes, {', '.join(map(str, self.mean.shape))}]"
            hint = "Give every layer a PairNorm of its own."
            raise PairNormError(
                problem, code="wrong-shape", value=list(x.shape), expected=expected, hint=hint
            )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        before = dict(self.named_buffers())
        super()._apply(fn, recurse)
        for name, buffer in self.named_buffers():  # half precision would ruin them: only the device changes
            setattr(self, name, before[name].to(buffer.device))
        return self

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        for name, buffer in self.named_buffers():
            if prefix + name in state_dict:
                setattr(self, name, buffer.new_empty(state_dict[prefix + name].shape))
        super()._load_from_state_dict(state_dict, prefix, *rest)  # type: ignore[no-untyped-call]
