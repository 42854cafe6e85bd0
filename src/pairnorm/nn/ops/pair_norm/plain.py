"""PairNorm's centering and scaling, with gradients that keep one tensor of the input's size."""

from typing import Any, Protocol

import torch
from torch import Tensor

from pairnorm.nn.ops.kernels import choose, derives_itself, is_transformed
from pairnorm.nn.ops.moments import Groups, widen
from pairnorm.nn.ops.pair_norm import blocks


class Norm(Protocol):
    """A PairNorm, as the kernels see it that end in one."""

    @property
    def mode(self) -> str:
        """``"PN"``, ``"PN-SI"`` or ``"PN-SCS"``."""

    @property
    def scale(self) -> float:
        """The paper's s."""

    @property
    def eps(self) -> float:
        """What is added inside the root."""

    @property
    def process_group(self) -> object:
        """The ranks whose rows are one graph; None: those of this process are."""

    @property
    def track_running_stats(self) -> bool:
        """Whether it keeps statistics, and in eval goes by them."""

    def __call__(self, x: Tensor, /) -> Tensor:
        """Normalize."""


def fuses(norm: Norm, x: Tensor) -> bool:
    """Say whether the kernels that come before ``norm`` can do it at the same time."""
    alone = norm.process_group is None and not norm.track_running_stats and norm.mode != "PN-SCS"
    return alone and not blocks.serves(x) and not torch.compiler.is_compiling()


class Kernels(Protocol):
    """``_formula`` and ``formula_gradient`` for one graph, in as few passes over memory as they allow."""

    def serves(self, x: Tensor) -> bool:
        """Say whether this type and size is served."""

    def forward(self, x: Tensor, scale: float, eps: float, individually: bool) -> tuple[Tensor, Tensor]:
        """Return s·c/r and r."""

    def backward(self, grad: Tensor, y: Tensor, norm: Tensor, scale: float, individually: bool) -> Tensor:
        """Return dL/dx."""


def _load(device: str) -> Kernels:
    if device == "cpu":
        from pairnorm.nn.ops.pair_norm import cpu

        return cpu
    from pairnorm.nn.ops.pair_norm import cuda

    return cuda


def _load_large(device: str) -> Kernels:
    from pairnorm.nn.ops.pair_norm import large

    return large


def _choose(x: Tensor, groups: Groups) -> Kernels | None:
    if not groups.has_kernels or is_transformed():
        return None
    if not blocks.serves(x):
        return choose(_load, x)
    return choose(_load_large, x) or blocks


def center_and_scale(x: Tensor, groups: Groups, scale: float, eps: float, individually: bool) -> Tensor:
    """Return s·c/r, where c is centerd and r is the norm of every row, or of all rows together."""
    if derives_itself():
        return _formula(x, groups, scale, eps, individually)[0]
    return _CenterAndScale.apply(x, groups, scale, eps, individually)[0]


def scale_and_center(x: Tensor, groups: Groups, scale: float, eps: float) -> Tensor:
    """Return s·x/r, where r is the norm of every row, minus the mean of x."""
    if derives_itself():
        return _scale_and_center(x, groups, scale, eps)[0]
    return _ScaleAndCenter.apply(x, groups, scale, eps)


def _formula(
    x: Tensor, groups: Groups, scale: float, eps: float, individually: bool
) -> tuple[Tensor, Tensor]:
    """Return s·c/r and the norm r that rows, or whole graphs, are divided by."""
    centerd = groups.center(widen(x))
    square = centerd.square().sum(-1, keepdim=True)
    if not individually:
        square = groups.mean_of_each(square)
    norm = (square + eps).sqrt()
    return (centerd * (scale / norm)).to(x.dtype), norm


def formula_gradient(
    grad: Tensor,
    grad_norm: Tensor | None,
    y: Tensor,
    norm: Tensor,
    groups: Groups,
    scale: float,
    individually: bool,
) -> Tensor:
    """Return dL/dx from dL/dy, dL/dr, y and r.

    From y = s·c/r follow dL/dc = (s/r)·dL/dy + y/(s·m)·dL/dr with dL/dr = -Σ dL/dy·y / r, where Σ runs over
    what shares one r and m counts its rows; centering is its own adjoint. Only y and r are needed, so only
    they are saved.
    """
    grad, y_wide = grad.to(norm.dtype), y.to(norm.dtype)
    pull = -(grad * y_wide).sum(-1, keepdim=True) / norm
    if not individually:
        pull = groups.mean_of_each(pull)
    if grad_norm is not None:
        pull = pull + (grad_norm if individually else groups.mean_of_each(grad_norm))
    result = torch.addcmul(grad * (scale / norm), y_wide, pull / scale)
    return groups.center(result).to(y.dtype)


class _CenterAndScale(torch.autograd.Function):
    """``_formula``, by kernels where they serve.

    The norm is returned beside y because both are saved: as outputs they stay connected to x, which is what
    makes the gradient of the gradient right.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, groups: Groups, scale: float, eps: float, individually: bool
    ) -> tuple[Tensor, Tensor]:
        kernels = _choose(x, groups)
        if kernels is None:
            y, norm = _wide_enough(_formula, x, groups, scale, eps, individually)
        else:
            y, norm = kernels.forward(x, scale, eps, individually)
        ctx.groups, ctx.scale, ctx.individually = groups, scale, individually
        ctx.save_for_backward(y, norm)
        ctx.set_materialize_grads(False)
        return y, norm

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_norm: Tensor | None) -> tuple[Tensor | None, ...]:
        y, norm = ctx.saved_tensors
        if grad is None:
            if grad_norm is None:
                return (None,) * 5
            grad = torch.zeros_like(y)
        kernels = None
        if grad_norm is None and not torch.is_grad_enabled():
            kernels = _choose(y, ctx.groups)
        if kernels is None:
            result = formula_gradient(grad, grad_norm, y, norm, ctx.groups, ctx.scale, ctx.individually)
        else:
            result = kernels.backward(grad, y, norm, ctx.scale, ctx.individually)
        return result, None, None, None, None


def _wide_enough(
    formula: Any, x: Tensor, groups: Groups, scale: float, eps: float, *rest: bool
) -> tuple[Tensor, Tensor]:
    """Do it in double precision where squares leave single; on a CPU only, where a look costs little."""
    y, norm = formula(x, groups, scale, eps, *rest)
    if x.device.type == "cpu" and x.dtype != torch.float64 and not bool(norm.isfinite().all()):
        wide, wide_norm = formula(x.double(), groups, scale, eps, *rest)
        return wide.to(x.dtype), wide_norm.to(norm.dtype)
    return y, norm


def _scale_and_center(x: Tensor, groups: Groups, scale: float, eps: float) -> tuple[Tensor, Tensor]:
    wide = widen(x)
    norm = (wide.square().sum(-1, keepdim=True) + eps).sqrt()
    return torch.addcmul(-groups.mean_of_each(wide), wide, scale / norm).to(x.dtype), norm


class _ScaleAndCenter(torch.autograd.Function):
    """All in float32 until the end: half precision would round the rows before the mean is taken off."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, groups: Groups, scale: float, eps: float) -> Tensor:
        ctx.groups, ctx.scale, ctx.eps = groups, scale, eps
        ctx.save_for_backward(x)
        return _wide_enough(_scale_and_center, x, groups, scale, eps)[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (x,) = ctx.saved_tensors
        grad, wide = widen(grad), widen(x)
        norm = (wide.square().sum(-1, keepdim=True) + ctx.eps).sqrt()
        pull = (grad * (wide / norm)).sum(-1, keepdim=True) / norm
        result = torch.addcmul(grad, wide, pull, value=-1) * (ctx.scale / norm)
        return (result - ctx.groups.spread(ctx.groups.mean(grad))).to(x.dtype), None, None, None
