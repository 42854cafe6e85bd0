"""PairNorm: centre node representations, then rescale them to a constant total pairwise squared distance."""

import inspect
import math
from typing import Any

import torch
from torch import Tensor, nn

from pairnorm.errors import PairNormError, one_of
from pairnorm.nn import blocks
from pairnorm.nn.backends import kernels
from pairnorm.nn.statistics import Groups

MODES = ("PN", "PN-SI", "PN-SCS")


def pair_norm(
    x: Tensor,
    scale: float = 1.0,
    mode: str = "PN",
    eps: float = 1e-6,
    batch: Tensor | None = None,
    batch_size: int | None = None,
) -> Tensor:
    r"""Normalise node representations so that they cannot all become alike.

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
            middle axes (trials) is normalised on its own.
        scale: The paper's $s$. After ``PN`` the total pairwise squared distance is $2 n^2 s^2$.
        mode: ``"PN"``, ``"PN-SI"`` (every row scaled individually) or ``"PN-SCS"`` (rows scaled, then
            centred).
        eps: Added inside the root, so that the gradient at a zero row is at most ``scale / sqrt(eps)``.
        batch: The graph of each node, in any order; every graph is normalised on its own.
        batch_size: The number of graphs. Given, it saves a device synchronisation and a graph break under
            ``torch.compile``.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [3.0, 0.0]])
        >>> pair_norm(x)
        tensor([[-1.0000,  0.0000],
                [ 1.0000,  0.0000]])
    """
    _check_settings(scale, mode, eps)
    if not x.is_floating_point():
        raise PairNormError(f"x has dtype {x.dtype}; expected a floating-point tensor: call x.float() first")
    if x.dim() < 2:
        raise PairNormError(
            f"x has shape {list(x.shape)}; expected [nodes, features] or [nodes, ..., features]"
        )
    groups = Groups.of(x, batch, batch_size)
    if mode == "PN-SCS":
        wide = x.to(_accumulator(x))
        rows = _normalise(x, groups, scale, eps, individually=True, centre=False)
        return (rows - groups.spread(groups.mean(wide))).to(x.dtype)
    return _normalise(x, groups, scale, eps, individually=mode == "PN-SI", centre=True)


class PairNorm(nn.Module):
    """The layer form of ``pair_norm``: no parameters, no buffers, usable after any graph convolution.

    Args:
        scale: The paper's s, which sets the constant total pairwise squared distance 2 n² s².
        mode: ``"PN"``, ``"PN-SI"`` or ``"PN-SCS"``; see ``pair_norm``.
        eps: Added inside the root.

    Example:
        >>> PairNorm(scale=10, mode="PN-SI")
        PairNorm(scale=10, mode='PN-SI', eps=1e-06)
    """

    def __init__(self, scale: float = 1.0, mode: str = "PN", eps: float = 1e-6) -> None:
        super().__init__()
        _check_settings(scale, mode, eps)
        self.scale, self.mode, self.eps = scale, mode, eps

    def forward(self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None) -> Tensor:
        """Normalise ``x``; see ``pair_norm`` for the arguments."""
        return pair_norm(x, self.scale, self.mode, self.eps, batch, batch_size)

    def __repr__(self) -> str:
        return f"PairNorm(scale={self.scale}, mode={self.mode!r}, eps={self.eps})"


def joins_kernels(norm: PairNorm, x: Tensor) -> bool:
    """Say whether the kernels that come before ``norm`` can do it at the same time."""
    return norm.mode != "PN-SCS" and not blocks.supports(x) and not torch.compiler.is_compiling()


def _check_settings(scale: float, mode: str, eps: float) -> None:
    one_of("mode", mode, MODES)
    for name, value in (("scale", scale), ("eps", eps)):
        if not 0 < value < math.inf:  # false for NaN too; torch.compile cannot trace math.isfinite
            raise PairNormError(f"{name} is {value}; expected a positive finite number")


def _accumulator(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _normalise(
    x: Tensor, groups: Groups, scale: float, eps: float, individually: bool, centre: bool
) -> Tensor:
    if torch.compiler.is_compiling():  # the compiler fuses the formula and derives its gradient itself
        return _formula(x, groups, scale, eps, individually, centre)[0]
    y: Tensor = _Normalise.apply(x, groups, scale, eps, individually, centre)[0]
    return y


def _formula(
    x: Tensor, groups: Groups, scale: float, eps: float, individually: bool, centre: bool
) -> tuple[Tensor, Tensor]:
    """Return s·c/r and the length r that rows, or whole graphs, are divided by."""
    centred = x.to(_accumulator(x))
    if centre:
        centred = groups.centre(centred)
    square = centred.square().sum(-1, keepdim=True)
    if not individually:
        square = groups.spread(groups.mean(square))
    length = (square + eps).sqrt()
    return (centred * (scale / length)).to(x.dtype), length


def formula_gradient(
    grad: Tensor,
    grad_length: Tensor | None,
    y: Tensor,
    length: Tensor,
    groups: Groups,
    scale: float,
    individually: bool,
    centre: bool,
) -> Tensor:
    """Return dL/dx from dL/dy, dL/dr, y and r.

    From y = s·c/r follow dL/dc = (s/r)·dL/dy + y/(s·m)·dL/dr with dL/dr = -Σ dL/dy·y / r, where Σ runs over
    what shares one r and m counts its rows; centring is its own adjoint. Only y and r are needed, so only
    they are saved.
    """
    grad, y_wide = grad.to(length.dtype), y.to(length.dtype)
    pull = -(grad * y_wide).sum(-1, keepdim=True) / length
    if not individually:
        pull = groups.spread(groups.mean(pull))
    if grad_length is not None:
        pull = pull + (grad_length if individually else groups.spread(groups.mean(grad_length)))
    result = grad * (scale / length) + y_wide * (pull / scale)
    if centre:
        result = groups.centre(result)
    return result.to(y.dtype)


class _Normalise(torch.autograd.Function):
    """``_formula`` with a gradient that saves one tensor of the input's size.

    The length is returned beside y because both are saved: as outputs they stay connected to x, which is what
    makes the gradient of the gradient right.
    """

    @staticmethod
    def forward(
        x: Tensor, groups: Groups, scale: float, eps: float, individually: bool, centre: bool
    ) -> tuple[Tensor, Tensor]:
        backend = _backend(x, groups, centre)
        if backend is None:
            return _formula(x, groups, scale, eps, individually, centre)
        result: tuple[Tensor, Tensor] = backend.forward(x, scale, eps, individually)
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        _, ctx.groups, ctx.scale, _, ctx.individually, ctx.centre = inputs
        ctx.save_for_backward(*output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, *settings: Any
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        """What ``torch.vmap`` runs over is one more trial axis."""
        return _Normalise.apply(x.movedim(in_dims[0] or 0, 1), *settings), (1, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_length: Tensor | None) -> tuple[Tensor | None, ...]:
        y, length = ctx.saved_tensors
        if grad is None:
            if grad_length is None:
                return (None,) * 6
            grad = torch.zeros_like(y)
        backend = None
        if grad_length is None and not torch.is_grad_enabled():
            backend = _backend(y, ctx.groups, ctx.centre)
        if backend is None:
            result = formula_gradient(
                grad, grad_length, y, length, ctx.groups, ctx.scale, ctx.individually, ctx.centre
            )
        else:
            result = backend.backward(grad, y, length, ctx.scale, ctx.individually)
        return result, None, None, None, None, None


# torch binds the arguments of every call to this signature; without it here, it would be derived anew each
# time.
_Normalise.forward.__signature__ = inspect.signature(_Normalise.forward)  # type: ignore[attr-defined]


def _backend(x: Tensor, groups: Groups, centre: bool) -> Any:
    """Return the module with a fused version for this input, or None for the plain formula."""
    if groups.batch is not None or not centre:
        return None
    if blocks.supports(x):
        return blocks
    return kernels("pair_norm", x)
