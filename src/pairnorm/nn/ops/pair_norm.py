r"""PairNorm: center the rows of each graph, and divide each row, or all rows of a graph, by a norm r.

    c = x - mean(x)        y = s·c / r        r² = ‖c_i‖² + eps, or the mean over the graph of ‖c_i‖² + eps

PN-SCS divides x itself by the norms of its rows and subtracts the mean afterwards. ``_reference`` defines all
modes by torch operations. Graphs of a batch, ranks and degrees differ in ``Groups`` alone; running statistics
supply the moments. Kernels compute the same for one graph.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pairnorm.nn.ops.kernels import KernelFunction, find_kernels, needs_reference
from pairnorm.nn.ops.moments import (
    Groups,
    Moments,
    RankGroups,
    row_divisors,
    row_squares,
    to_accumulation_dtype,
)

if TYPE_CHECKING:
    from pairnorm.nn.pair_norm import PairNorm


MAX_NORM = 1e36
"""Rows with larger norms, infinite ones too, are computed in float64."""
MAX_FUSED_ELEMENTS = 2**20
"""On a CPU, larger states are normalized by several threads, after the operation before."""


def can_fuse(norm: "PairNorm", x: Tensor) -> bool:
    """Return whether the kernels of the operation before ``norm`` can normalize its result at once."""
    alone = norm.process_group is None and not norm.track_running_stats and norm.mode != "PN-SCS"
    small = x.device.type != "cpu" or x.numel() <= MAX_FUSED_ELEMENTS
    return alone and small and not needs_reference(x)


def normalize(x: Tensor, groups: Groups, scale: float, eps: float, mode: str) -> Tensor:
    """Return PairNorm of ``x`` ``[nodes, ..., features]`` for the graphs of ``groups``."""
    settings = (groups, scale, eps, mode)
    if needs_reference(x):
        return _reference(x, *settings)
    # Kernels take one graph in one process, centered by its mean.
    is_one_graph = type(groups) is Groups and groups.batch is None
    kernels = find_kernels("pair_norm", x) if is_one_graph and mode != "PN-SCS" else None
    if kernels is None:
        return KernelFunction.apply(_torch_forward, _torch_backward, _reference, settings, x)
    return KernelFunction.apply(kernels.forward, kernels.backward, _reference, settings, x)


def normalize_by(x: Tensor, mean: Tensor, mean_square: Tensor, scale: float, eps: float, mode: str) -> Tensor:
    """Return PairNorm of ``x`` as a part of one graph whose statistics are known."""
    wide, groups = to_accumulation_dtype(x), Groups(x.size(0))
    square = mean_square.double().unsqueeze(0)
    moments = Moments(torch.ones_like(square), mean.double().unsqueeze(0), square)
    centered = groups.subtract(wide, moments.mean)
    return _scaled(wide, centered, moments, groups, scale, eps, mode)[0].to(x.dtype)


def in_double(x: Tensor, settings: Any, grad: Tensor | None = None) -> Tensor:
    """Return PairNorm of ``x``, or its gradient, computed in float64: for numbers near the end of float32."""
    if grad is None:
        return _reference(x.double(), *settings).to(x.dtype)
    with torch.enable_grad():
        wide = x.detach().double().requires_grad_()
        y = _reference(wide, *settings)
    return torch.autograd.grad(y, wide, grad.double())[0].to(x.dtype)


def is_huge(norm: Tensor) -> bool:
    """Return whether norms may exceed float32; checked on a CPU only."""
    return norm.device.type == "cpu" and norm.numel() > 0 and not bool((norm < MAX_NORM).all())


def _without_autocast(device: str) -> AbstractContextManager[Any]:
    available = torch.amp.is_autocast_available(device)
    return torch.autocast(device, enabled=False) if available else nullcontext()


def _reference(x: Tensor, groups: Groups, scale: float, eps: float, mode: str) -> Tensor:
    return _forward(x, groups, scale, eps, mode)[0]


def _forward(
    x: Tensor, groups: Groups, scale: float, eps: float, mode: str
) -> tuple[Tensor, Tensor, Moments]:
    """Return y, the norms r and the moments."""
    with _without_autocast(x.device.type):
        wide = to_accumulation_dtype(x)
        moments, centered = groups.statistics(wide)
        y, norm = _scaled(wide, centered, moments, groups, scale, eps, mode)
        return y.to(x.dtype), norm, moments


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
    """Return dL/dx.

    With u = c/r, dL/dc = (s/r)·(dL/dy - u·Σ dL/dy·u), where Σ averages over what shares one r; centering
    is its own adjoint.
    """
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
        through_mean = grad if mode == "PN-SCS" else result
        if isinstance(groups, RankGroups):
            result = result - groups.expand(groups.gradient_means(through_mean, dots)[0])
        elif mode == "PN-SCS":
            result = result - groups.expand(groups.project(grad))
        else:
            result = groups.center(result)
        return (result.to(x.dtype),)
