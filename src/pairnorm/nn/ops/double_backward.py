"""Operations by their kernels, as torch differentiates them: once by kernels, again by the plain form."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

Outputs = Tensor | tuple[Tensor | None, ...]
Saved = tuple[Any, ...]


class Kernels(Protocol):
    """The kernels of an operation ``plain(*inputs, *settings)`` that ``Compiled`` runs."""

    def serves(self, *args: Any, **kwargs: Any) -> bool:
        """Say whether tensors of this type and size are served."""

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, Saved]:
        """Take inputs, settings and whether a backward pass may follow; return outputs and what is kept."""

    def backward(
        self, kept: Saved, inputs: Saved, settings: Saved, grads: Saved, needed: tuple[bool, ...]
    ) -> tuple[Tensor | None, ...]:
        """Return a gradient for every input; ``needed`` says which are asked for."""


class Compiled(torch.autograd.Function):
    """``plain(*inputs, *settings)``, done by kernels."""

    @staticmethod
    def forward(
        ctx: Any,
        kernels: Kernels,
        plain: Callable[..., Outputs],
        settings: tuple[Any, ...],
        *inputs: Tensor | None,
    ) -> Outputs:
        """Return one output or several."""
        outputs, kept = kernels.forward(*inputs, *settings, any(ctx.needs_input_grad))
        ctx.kernels, ctx.plain, ctx.settings, ctx.count = kernels, plain, settings, len(inputs)
        ctx.save_for_backward(*inputs, *kept)
        ctx.set_materialize_grads(False)
        return outputs  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients of the inputs."""
        inputs, kept = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        needed = ctx.needs_input_grad[3:]
        gradients: Sequence[Tensor | None]
        if all(grad is None for grad in grads):
            gradients = [None] * ctx.count
        elif torch.is_grad_enabled():
            gradients = double_backward(
                lambda *given: ctx.plain(*given, *ctx.settings), inputs, needed, *grads
            )
        else:
            gradients = ctx.kernels.backward(kept, inputs, ctx.settings, grads, needed)
        return None, None, None, *gradients


def double_backward(
    plain: Callable[..., Outputs],
    inputs: Sequence[Tensor | None],
    needed: Sequence[bool],
    *grads: Tensor | None,
) -> list[Tensor | None]:
    """Return the gradients of ``plain(*inputs)`` with a graph of their own.

    Args:
        plain: gives one output or several, by operations that torch can differentiate.
        inputs: what it is given.
        needed: which inputs a gradient is asked of.
        grads: of the outputs; None for an output that nothing depends on.
    """
    with torch.enable_grad():
        outputs = plain(*inputs)
    outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
    used = [(output, grad) for output, grad in zip(outputs, grads, strict=True) if grad is not None]
    wanted = [position for position, asked in enumerate(needed) if asked]
    gradients = torch.autograd.grad(
        [output for output, _ in used],  # type: ignore[arg-type]
        [inputs[position] for position in wanted],  # type: ignore[arg-type]
        [grad for _, grad in used],
        create_graph=True,
        allow_unused=True,
    )
    found = dict(zip(wanted, gradients, strict=True))
    return [found.get(position) for position in range(len(inputs))]
