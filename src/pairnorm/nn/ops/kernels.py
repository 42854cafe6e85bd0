"""The registry of compiled kernels: which back end runs an operation, and how autograd calls it.

A function in ``pairnorm.nn.ops`` defines an operation in torch (the reference). A back end is a module with
the name of the operation in ``ops/_numba`` (CPU) or ``ops/_triton`` (CUDA). It has the functions that its
operation calls and ``DTYPES``, the types of the states it takes; where sizes matter also ``fits(*tensors)``.
"""

from collections.abc import Callable, Sequence
from functools import cache, wraps
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo  # torch.compiler.disable takes 1.5 s to import the compiler

BACKENDS = {"cpu": ("numba", "_numba"), "cuda": ("triton", "_triton")}
"""The library and the folder of kernels of each type of device."""

P = ParamSpec("P")
R = TypeVar("R")
Outputs = Tensor | tuple[Tensor | None, ...]
Saved = tuple[Any, ...]


def find_kernels(operation: str, x: Tensor, *others: Any) -> Any:
    """Return the module of kernels that runs an operation on ``x``; None where the reference must run."""
    # No kernel takes float64: importing a compiler only to find that out would take half a second.
    if x.numel() == 0 or x.dtype == torch.float64 or needs_reference(x) or not is_installed(x.device.type):
        return None
    kernels = _load(operation, x.device.type)
    if kernels is None or x.dtype not in kernels.DTYPES:
        return None
    return kernels if not others or kernels.fits(*others) else None


@cache
def _load(operation: str, device: str) -> Any:
    package = f"{__package__}.{BACKENDS[device][1]}"
    return import_module(f"{package}.{operation}") if find_spec(f"{package}.{operation}") else None


@cache
def is_installed(device: str) -> bool:
    """Return whether the compiler of the kernels for a type of device is installed."""
    return device in BACKENDS and find_spec(BACKENDS[device][0]) is not None


def in_transform() -> bool:
    """Return whether torch.func or forward-mode differentiation is active."""
    return bool(torch._C._are_functorch_transforms_active()) or torch.autograd.forward_ad._current_level >= 0


def in_transform_or_compile() -> bool:
    """Return whether torch.compile, torch.export, torch.func or forward mode traces the operations."""
    return torch.compiler.is_compiling() or in_transform()


def needs_reference(x: Tensor) -> bool:
    """Return whether only the reference can run: under a tracer, or on a subclass of Tensor.

    Kernels read memory. FakeTensor and DTensor have none of their own; dispatch modes must see every call.
    """
    if in_transform_or_compile() or torch._C._len_torch_dispatch_stack() > 0:
        return True
    return type(x) is not Tensor and type(x) is not nn.Parameter


def disable_dynamo(function: Callable[P, R]) -> Callable[P, R]:
    """Make torch.compile call a function as it is, with its kernels, and continue after it."""
    disabled = _disable_dynamo(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        # Calling `disabled` always would import the compiler for users who never compile.
        return disabled(*args, **kwargs) if torch.compiler.is_compiling() else function(*args, **kwargs)

    return call


def on_device(launch: Callable[P, R]) -> Callable[P, R]:
    """Make a function launch Triton kernels on the device of the first tensor in its arguments."""

    @wraps(launch)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        values = (value for group in args for value in (group if isinstance(group, tuple) else (group,)))
        with torch.cuda.device_of(next(value for value in values if isinstance(value, Tensor))):
            return launch(*args, **kwargs)

    return guarded


def partition_nodes(nodes: int, columns: int, rows: int, max_programs: int) -> tuple[int, int]:
    """Return how many programs partition the nodes, and how many nodes each program takes."""
    tiles = -(-nodes // rows)
    share = -(-tiles // max(1, min(tiles, max_programs // columns))) * rows
    return -(-nodes // share), share


class KernelFunction(torch.autograd.Function):
    """Run ``reference(*inputs, *settings)`` with kernels; a second derivative uses the reference.

    Of the kernels, ``run_forward(*inputs, *settings, needs_backward)`` returns outputs and saved tensors, and
    ``run_backward(saved, inputs, settings, grads, needs_grad)`` returns a gradient for every input.
    """

    @staticmethod
    def forward(
        ctx: Any, run_forward: Any, run_backward: Any, reference: Any, settings: Saved, *inputs: Tensor | None
    ) -> Outputs:
        """Return one output or several."""
        outputs, saved = run_forward(*inputs, *settings, any(ctx.needs_input_grad))
        ctx.run_backward, ctx.reference, ctx.settings = run_backward, reference, settings
        ctx.count = len(inputs)
        ctx.save_for_backward(*inputs, *saved)
        ctx.set_materialize_grads(False)
        return outputs  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients of the inputs."""
        tensors = ctx.saved_tensors  # activation checkpointing allows one access
        inputs, saved = tensors[: ctx.count], tensors[ctx.count :]
        needs_grad = ctx.needs_input_grad[4:]
        gradients: Sequence[Tensor | None]
        if all(grad is None for grad in grads):
            gradients = [None] * ctx.count
        elif torch.is_grad_enabled():
            gradients = _reference_gradients(ctx.reference, inputs, ctx.settings, needs_grad, grads)
        else:
            gradients = ctx.run_backward(saved, inputs, ctx.settings, grads, needs_grad)
        return None, None, None, None, *gradients


def _reference_gradients(
    reference: Callable[..., Any], inputs: Saved, settings: Saved, needs_grad: Saved, grads: Saved
) -> list[Tensor | None]:
    """Return the gradients of ``reference(*inputs, *settings)``, which can be differentiated again."""
    with torch.enable_grad():
        outputs = reference(*inputs, *settings)
    outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
    used = [(output, grad) for output, grad in zip(outputs, grads, strict=True) if grad is not None]
    outputs, grads = zip(*used, strict=True)
    needed = [x for x, is_needed in zip(inputs, needs_grad, strict=True) if is_needed]
    gradients = iter(torch.autograd.grad(outputs, needed, grads, create_graph=True, allow_unused=True))
    return [next(gradients) if is_needed else None for is_needed in needs_grad]
