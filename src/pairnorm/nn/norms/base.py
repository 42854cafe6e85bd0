"""The protocol of norms, and base classes with a readable ``repr`` and checks of the input."""

import inspect
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from pairnorm.base.errors import PairNormError, real_number, whole_number
from pairnorm.nn.ops.moments import check_states, to_accumulation_dtype


@runtime_checkable
class Norm(Protocol):
    """A norm of node representations: those of this package, PyG's that take ``batch``, or your own."""

    def __call__(self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None) -> Tensor:
        """Return ``x`` normalized.

        Args:
            x: ``[nodes, features]``, or ``[nodes, models, features]``: every model is normalized on its own.
            batch: the graph of each node, in any order; None for one graph.
            batch_size: the number of graphs; given, it saves a device synchronization.
        """
        ...


class BaseNorm(nn.Module):
    """A norm whose ``repr`` is the call that makes it: each argument is an attribute."""

    def __init__(self) -> None:  # whose own takes anything, which would be shown
        super().__init__()

    def __repr__(self) -> str:
        settings = (f"{name}={getattr(self, name)!r}" for name in inspect.signature(type(self)).parameters)
        return f"{type(self).__name__}({', '.join(settings)})"

    def check(self, x: Tensor) -> None:
        """Raise an error unless ``x`` holds what this norm was made for."""
        check_states(x)

    def prepare(self, x: Tensor) -> Tensor:
        """Check ``x`` and return it in the dtype that statistics accumulate in."""
        self.check(x)
        return to_accumulation_dtype(x)


class ParametricNorm(BaseNorm):
    """A norm with parameters: of shape ``[features]``, or ``[models, features]`` where models have their own.

    Args:
        in_channels: The width of a node's representation.
        eps: Added to variances, inside the root.
        num_models: How many models are normalized side by side; None for the ordinary module.
        groups: Number of weights and biases for each feature; None for one, without an axis of its own.
    """

    def __init__(
        self, in_channels: int, eps: float, num_models: int | None, groups: int | None = None
    ) -> None:
        super().__init__()
        self.in_channels = whole_number("in_channels", in_channels, least=1)
        self.eps = real_number("eps", eps, above=0)
        self.num_models = None if num_models is None else whole_number("num_models", num_models, least=1)
        # What one node has: [features] or [models, features].
        self.shape = (in_channels,) if num_models is None else (num_models, in_channels)
        shape = self.shape if groups is None else (*self.shape[:-1], groups, in_channels)
        self.weight, self.bias = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.zeros(shape))

    def reset_parameters(self, seeds: Sequence[int] | None = None) -> None:
        """Set every ``bias`` to zero and every other parameter to one.

        Args:
            seeds: One for each model, for norms that draw their parameters; see ``DiffGroupNorm``.
        """
        for name, parameter in self.named_parameters():
            nn.init.constant_(parameter, 0.0 if name.endswith("bias") else 1.0)

    def check(self, x: Tensor) -> None:
        """Raise an error unless ``x`` holds what this norm was made for."""
        check_states(x)
        if x.shape[1:] != self.shape:
            raise PairNormError(
                f"x has shape {list(x.shape)}",
                code="wrong-shape",
                value=list(x.shape),
                expected=f"[nodes, {', '.join(map(str, self.shape))}]",
                hint="Make the norm with {in_channels} and {num_models} of the states it is given.",
                in_channels=x.shape[-1],
                num_models=x.shape[1] if x.dim() == 3 else None,
            )


class RunningNorm(ParametricNorm):
    """A norm by statistics over all nodes at hand in training, and by the running ones in evaluation."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(
        self, in_channels: int, eps: float, momentum: float, num_models: int | None, groups: int | None = None
    ) -> None:
        super().__init__(in_channels, eps, num_models, groups)
        self.momentum = real_number("momentum", momentum, least=0, most=1)
        self.register_buffer("running_mean", torch.zeros_like(self.weight))
        self.register_buffer("running_var", torch.ones_like(self.weight))

    def reset_parameters(self, seeds: Sequence[int] | None = None) -> None:
        """Set the scale to one, the offset to zero, and reset the running statistics."""
        super().reset_parameters()
        self.running_mean.zero_()
        self.running_var.fill_(1)

    def check(self, x: Tensor) -> None:
        """Raise an error unless ``x`` has the right shape and, in training, nodes enough for a variance."""
        super().check(x)
        if self.training and len(x) < 2:
            problem = f"x has {len(x)} nodes in training"
            expected = "at least 2, for a variance"
            hint = "Call .eval() to use the running statistics."
            raise PairNormError(problem, code="too-few-nodes", value=len(x), expected=expected, hint=hint)


def bound_to(known: Tensor | None, x: Tensor, what: str) -> Tensor:
    """Return what a norm knows of each node of the graph, on the device of ``x``, or raise an error."""
    if known is not None and len(known) == len(x):
        return known.to(x.device)
    nodes = "none" if known is None else f"those of {len(known)} nodes"
    problem = f"x has {len(x)} nodes, and the {what} known are {nodes}"
    hint = "Call .bind_graph(adjacency) with that of this graph."
    raise PairNormError(problem, code="not-fitted", value=len(x), hint=hint)
