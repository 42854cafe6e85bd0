"""Gradients of gradients for compiled operations: those of the plain form, which torch can differentiate."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def plain_gradients(
    plain: Callable[..., Tensor | tuple[Tensor | None, ...]],
    inputs: Sequence[Tensor | None],
    needed: Sequence[bool],
    *grads: Tensor | None,
) -> list[Tensor | None]:
    """Return the gradients of ``plain(*inputs)`` with a graph of their own.

    Args:
        plain: gives one output or several.
        inputs: what it is given.
        needed: which inputs a gradient is asked of.
        grads: of the outputs; None for an output that nothing depends on.
    """
    with torch.enable_grad():
        outputs = plain(*inputs)
    outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
    used = [(output, grad) for output, grad in zip(outputs, grads, strict=True) if grad is not None]
    wanted = [position for position, asked in enumerate(needed) if asked]
    slopes = torch.autograd.grad(
        [output for output, _ in used],  # type: ignore[arg-type]
        [inputs[position] for position in wanted],  # type: ignore[arg-type]
        [grad for _, grad in used],
        create_graph=True,
        allow_unused=True,
    )
    found = dict(zip(wanted, slopes, strict=True))
    return [found.get(position) for position in range(len(inputs))]
