"""The protocol of norms, and base classes with a readable ``repr`` and checks of the input."""

import inspect
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from pairnorm.base.errors import PairNormError, real_number, whole_number
from pairnorm.nn.ops.moments import check_states


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


class ParametricNorm(BaseNorm):
    """A norm with parameters: of shape ``[features]``, or ``[models, features]`` where models have their own.

    Args:
        in_channels: The width of a node's representation.
        eps: added to variances, inside the root.
        num_models: how many models are normalized side by side; None for the ordinary module.
    """

    def __init__(self, in_channels: int, eps: float, num_models: int | None) -> None:
        super().__init__()
        self.in_channels = whole_number("in_channels", in_channels, least=1)
        self.eps = real_number("eps", eps, above=0)
        self.num_models = None if num_models is None else whole_number("num_models", num_models, least=1)

    @property
    def shape(self) -> tuple[int, ...]:
        """What one node has: ``[features]`` or ``[models, features]``."""
        return (self.in_channels,) if self.num_models is None else (self.num_models, self.in_channels)

    def reset_parameters(self, seeds: Sequence[int] | None = None) -> None:
        """Set every ``bias`` to zero and every other parameter to one.

        Args:
            seeds: one for each model, for norms that draw their parameters; see ``DiffGroupNorm``.
        """
        for name, parameter in self.named_parameters():
            nn.init.constant_(parameter, 0.0 if name.endswith("bias") else 1.0)

    def check(self, x: Tensor) -> None:
        """Raise an error unless ``x`` holds what this norm was made for."""
        check_states(x)
        if x.shape[1:] != self.shape:
            shape = ", ".join(map(str, self.shape))
            raise PairNormError(
                f"x has shape {list(x.shape)}",
                code="wrong-shape",
                value=list(x.shape),
                expected=f"[nodes, {shape}]",
                hint="Make the norm with {in_channels} and {num_models} of the states it is given.",
                in_channels=x.shape[-1],
                num_models=x.shape[1] if x.dim() == 3 else None,
            )
