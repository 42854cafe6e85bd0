"""Which kernels serve an operation, chosen by device, type and size; and what launches of Triton share."""

from collections.abc import Callable
from functools import cache, wraps
from importlib.util import find_spec
from typing import Any, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor
from torch._compile import _disable_dynamo  # torch.compiler.disable takes 1.5 s to import the compiler


class Kernels(Protocol):
    """What every module of kernels has; the ``Kernels`` of an operation add its functions and their types."""

    def serves(self, *args: Any, **kwargs: Any) -> bool:
        """Say whether the kernels take tensors of this type and size, and sooner than the plain form."""


STATES = (torch.float32, torch.bfloat16)
"""Types in which the CUDA kernels of networks take and leave states; whatever they sum is float32."""

K = TypeVar("K", bound=Kernels)
P = ParamSpec("P")
R = TypeVar("R")


def choose(load: Callable[[str], K | None], x: Tensor, *others: Any) -> K | None:
    """Return the kernels that serve ``x``, or None: then the plain form does.

    Args:
        load: gives an operation's kernels for a type of device.
        x: the tensor that the operation is about.
        others: what else ``serves`` of these kernels looks at.
    """
    # None serves float64: to load their compiler in order to learn so would take half a second.
    if derives_itself() or x.numel() == 0 or x.dtype == torch.float64 or not installed(x.device.type):
        return None
    kernels: K | None = _loaded(load, x.device.type)
    return kernels if kernels is not None and kernels.serves(x, *others) else None


@cache
def _loaded(load: Callable[[str], Any], device: str) -> Any:
    """Import kernels once, for every call of an operation asks for them."""
    return load(device)


@cache
def installed(device: str) -> bool:
    """Say whether the compiler of a device's kernels is there."""
    library = {"cpu": "numba", "cuda": "triton"}.get(device)
    return library is not None and find_spec(library) is not None


def is_transformed() -> bool:
    """Say whether torch.func or forward-mode differentiation is at work: kernels are opaque to them."""
    return bool(torch._C._are_functorch_transforms_active()) or torch.autograd.forward_ad._current_level >= 0


def derives_itself() -> bool:
    """Say whether whoever calls wants the formula alone: torch.compile, torch.func or forward mode."""
    return torch.compiler.is_compiling() or is_transformed()


def opaque(function: Callable[P, R]) -> Callable[P, R]:
    """Make torch.compile call a function as it is, kernels and all, and go on behind it."""
    aside = _disable_dynamo(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        # The other way, by itself, would import the compiler for those who do without.
        return aside(*args, **kwargs) if torch.compiler.is_compiling() else function(*args, **kwargs)

    return call


def on_device(launch: Callable[P, R]) -> Callable[P, R]:
    """Make a function that launches Triton's kernels do so on the device of its tensors.

    Triton takes the current device, whatever its arguments are on.
    """

    @wraps(launch)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        tensor = next(value for value in args if isinstance(value, Tensor))
        with torch.cuda.device_of(tensor):
            return launch(*args, **kwargs)

    return guarded


def shares(nodes: int, across: int, rows: int, most: int) -> tuple[int, int]:
    """How many programs share out the nodes, in tiles of ``rows``, and how many nodes each takes.

    There are as many again for each of ``across`` trials or blocks, ``most`` in all.
    """
    tiles = -(-nodes // rows)
    share = -(-tiles // max(1, min(tiles, most // across))) * rows
    return -(-nodes // share), share
