"""PairNorm in Triton.

``forward`` reads the input twice and writes once; ``backward`` reads gradient and input twice and writes
once. Tensors are viewed as ``[nodes, models, features]``; a program takes a range of the nodes of one model.
After an activation, ``backward_activated`` differentiates both in those passes.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pairnorm.nn.ops._triton.sparse_product import gradient_of
from pairnorm.nn.ops.kernels import on_device, partition_nodes
from pairnorm.nn.ops.sparse_product import CODES

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
NOTHING_BEFORE = -1
"""Instead of the code of an activation: no activation and no bias come before."""
SHRINK, MIN_EPS_TO_SHRINK = 2.0**-32, 1e-16
"""Numbers are multiplied by the first before they are squared: float32 then holds squares of 1e28. Where
that would lose the square of a tiny number, eps is larger, unless it is smaller than the second."""
# Numbers in a tile, and programs per processor where each takes several. Small tiles let many programs run
# at once; for moments the mean of a tile should be near that of all rows.
TILE, PROGRAMS = 2048, 8
MOMENTS_TILE, MOMENTS_PROGRAMS = 8192, 4


@on_device
def forward(
    x: Tensor, groups: Any, scale: float, eps: float, mode: str, needs_backward: bool
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return y, and for the backward pass the norms and the mean, ``[2, models, features]``: two parts."""
    x, individually = x.contiguous(), mode == "PN-SI"
    shrink = SHRINK if eps >= MIN_EPS_TO_SHRINK else 1.0
    nodes, models, features = _shape(x)
    plan = _Plan(x, nodes, models, features, MOMENTS_TILE, MOMENTS_PROGRAMS)
    means, squares = plan.partial(features), plan.partial(1)
    center = x.new_empty(2, models, features, dtype=torch.float32)
    shift, mean = center
    norm = x.new_empty(nodes if individually else 1, models, dtype=torch.float32)
    y = torch.empty_like(x)
    _moments[plan.grid](
        x, shift, means, squares, nodes, plan.rows, models, features, shrink, *plan.tile, num_warps=4
    )
    _merge[(models,)](
        means, squares, mean, norm, nodes, plan.rows, plan.programs, models, features, eps, shrink,
        individually, *plan.tile, num_warps=4,
    )  # fmt: skip
    plan = _Plan(x, nodes, models, features)
    _center_and_scale[plan.cover](
        x, shift, mean, norm, y, nodes, models, features, scale, eps, shrink, individually, *plan.tile,
        num_warps=plan.warps,
    )  # fmt: skip
    return y, (norm, center)


def backward(saved: Any, inputs: Any, settings: Any, grads: Any, needs_grad: Any) -> tuple[Tensor]:
    """Return dL/dx."""
    (norm, center), (x,), (_, scale, _, mode) = saved, inputs, settings
    return (_backward(grads[0], x.contiguous(), norm, center, scale, mode == "PN-SI", NOTHING_BEFORE)[0],)


def backward_activated(
    grad: Tensor, x: Tensor, norm: Tensor, center: Tensor, scale: float, individually: bool, activation: str
) -> tuple[Tensor, Tensor]:
    """Return the gradients of h and of a bias in it, from x = activation(h) that went into PairNorm."""
    result, sums = _backward(grad, x, norm, center, scale, individually, CODES[activation])
    return result, sums.sum(0)


@on_device
def _backward(
    grad: Tensor, x: Tensor, norm: Tensor, center: Tensor, scale: float, individually: bool, code: int
) -> tuple[Tensor, Tensor]:
    grad = grad.contiguous()
    nodes, models, features = _shape(x)
    plan = _Plan(x, nodes, models, features)
    sums, products = plan.partial(features), plan.partial(1)
    result = torch.empty_like(x)
    before = (
        sums if code == NOTHING_BEFORE else x.new_empty(plan.tiles, models, features, dtype=torch.float32)
    )
    arguments = (nodes, models, features, scale, individually, code, *plan.tile)
    _gradient_sums[plan.grid](
        grad, x, norm, center, sums, products, plan.rows, *arguments, num_warps=plan.warps
    )
    total = sums.sum(0)
    product = total if individually else products.sum(0)
    _gradient[plan.cover](
        grad, x, norm, center, total, product, result, before, *arguments, num_warps=plan.warps
    )
    return result, before


def _shape(x: Tensor) -> tuple[int, int, int]:
    return x.size(0), x[0, ..., 0].numel(), x.size(-1)


class _Plan:
    """The division of nodes among programs: ``grid`` for reductions, ``cover`` with a program per tile."""

    def __init__(
        self, x: Tensor, nodes: int, models: int, features: int, elements: int = TILE, most: int = PROGRAMS
    ) -> None:
        columns = triton.next_power_of_2(features)
        # Of wide rows a few too, for every tile leaves a row of sums.
        rows = max(elements // columns, min(32, MOMENTS_TILE // columns), 1)
        self.tile = (min(rows, triton.next_power_of_2(nodes)), columns)
        self.warps = 4 if rows * columns <= 2 * TILE else 8
        processors = torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 1
        self.programs, self.rows = partition_nodes(nodes, models, self.tile[0], most * processors)
        self.tiles = triton.cdiv(nodes, self.tile[0])
        self.grid, self.cover = (models * self.programs,), (models * self.tiles,)
        self._like, self._models = x, models

    def partial(self, width: int) -> Tensor:
        """A result per program: ``[programs, models, width]``."""
        return self._like.new_empty(self.programs, self._models, width, dtype=torch.float32)


@triton.jit
def _program(models):  # type: ignore[no-untyped-def]
    """Return the number of this program's share of the nodes, and its model."""
    return tl.program_id(0) // models, tl.program_id(0) % models


@triton.jit
def _tile(start, nodes, model, models, features, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    rows = start + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    offset = (rows.to(tl.int64) * models + model)[:, None] * features + columns[None, :]
    return rows, columns, offset, (rows < nodes)[:, None] & (columns < features)[None, :]


@triton.jit
def _moments(  # type: ignore[no-untyped-def]
    x, shift, means, squares, nodes, share, models, features, shrink,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Compute the mean of a program's rows and the sum of squares about it, merged as ``Moments`` are.

    All are about a shift near the mean, so that no large numbers cancel. The shift is the mean of a tile of
    rows at equal distances over all nodes, the same for every program; a mean of neighboring rows could be
    far off where nodes are sorted.
    """
    step = tl.maximum(nodes // ROWS, 1)
    columns = tl.arange(0, COLUMNS)
    sampled = tl.arange(0, ROWS) * step
    program, model = _program(models)
    inside = (sampled < nodes)[:, None] & (columns < features)[None, :]
    offset = (sampled.to(tl.int64) * models + model)[:, None] * features + columns[None, :]
    about = tl.sum(tl.load(x + offset, inside, other=0.0).to(tl.float32), 0) / tl.minimum(ROWS, nodes)
    first = program * share
    last = tl.minimum(first + share, nodes)
    mean = tl.zeros([COLUMNS], tl.float32)
    square = tl.zeros([COLUMNS], tl.float32)
    for start in range(first, last, ROWS):
        _, columns, offset, inside = _tile(start, last, model, models, features, ROWS, COLUMNS)
        value = tl.load(x + offset, inside, other=0.0).to(tl.float32)
        value = tl.where(inside, value - about[None, :], 0.0)
        count = tl.minimum(last - start, ROWS).to(tl.float32)
        seen = (start - first).to(tl.float32)
        here = tl.sum(value, 0) / count
        rest = tl.where(inside, (value - here[None, :]) * shrink, 0.0)
        step_to, weight = here - mean, count / (seen + count)
        mean += step_to * weight
        square += tl.sum(rest * rest, 0) + (step_to * shrink) * (step_to * shrink) * (seen * weight)
    place = program * models + model
    tl.store(means + place * features + columns, mean, columns < features)
    tl.store(squares + place, tl.sum(square, 0))
    tl.store(shift + model * features + columns, about, columns < features)  # the same from every program


@triton.jit
def _load_moments(  # type: ignore[no-untyped-def]
    means, start, nodes, share, programs, models, features, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Load counts and means of some programs, and which of them exist."""
    row, columns = start + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    inside = (row < programs)[:, None] & (columns < features)[None, :]
    offset = (row * models + tl.program_id(0))[:, None] * features + columns[None, :]
    count = tl.where(row < programs, tl.minimum(nodes - row * share, share), 0).to(tl.float32)
    return count[:, None], tl.load(means + offset, inside, other=0.0), inside


@triton.jit
def _merge(  # type: ignore[no-untyped-def]
    means, squares, mean, norm, nodes, share, programs, models, features, eps, shrink,
    INDIVIDUALLY: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Merge the programs' moments: the mean about the shift, and the norm that PN divides by."""
    model, columns = tl.program_id(0), tl.arange(0, COLUMNS)
    total = tl.zeros([COLUMNS], tl.float32)
    for start in range(0, programs, ROWS):
        count, part, _ = _load_moments(means, start, nodes, share, programs, models, features, ROWS, COLUMNS)
        total += tl.sum(count * part, 0)
    center = total / nodes
    tl.store(mean + model * features + columns, center, columns < features)
    if not INDIVIDUALLY:
        between = tl.zeros([COLUMNS], tl.float32)
        within = tl.zeros([ROWS], tl.float32)
        for start in range(0, programs, ROWS):
            count, part, inside = _load_moments(
                means, start, nodes, share, programs, models, features, ROWS, COLUMNS
            )
            rest = tl.where(inside, (part - center[None, :]) * shrink, 0.0)
            between += tl.sum(count * rest * rest, 0)
            row = start + tl.arange(0, ROWS)
            within += tl.load(squares + row * models + model, row < programs, other=0.0)
        square = ((tl.sum(within, 0) + tl.sum(between, 0)) / nodes).to(tl.float64)
        tl.store(norm + model, tl.sqrt(square / shrink / shrink + eps).to(tl.float32))


@triton.jit
def _center_and_scale(  # type: ignore[no-untyped-def]
    x, shift, mean, norm, y, nodes, models, features, scale, eps, shrink,
    INDIVIDUALLY: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    # Last tiles first: the sums read them last, so they may still be in the cache.
    program, model = _program(models)
    start = ((nodes - 1) // ROWS - program) * ROWS
    rows, columns, offset, inside = _tile(start, nodes, model, models, features, ROWS, COLUMNS)
    about = tl.load(shift + model * features + columns, columns < features, other=0.0)
    rest = tl.load(mean + model * features + columns, columns < features, other=0.0)
    value = tl.load(x + offset, inside, other=0.0).to(tl.float32)
    value = tl.where(inside, (value - about[None, :]) - rest[None, :], 0.0)
    if INDIVIDUALLY:
        small = value * shrink
        # eps must be shrunk twice, too: the root of float32 is faster than that of float64.
        divisor = tl.sqrt(tl.sum(small * small, 1) + eps * shrink * shrink) / shrink
        tl.store(norm + rows.to(tl.int64) * models + model, divisor, rows < nodes)
        value = value * (scale / divisor)[:, None]
    else:
        value = value * (scale / tl.load(norm + model))
    tl.store(y + offset, value.to(y.dtype.element_ty), inside)


@triton.jit
def _load_output(  # type: ignore[no-untyped-def]
    x, center, divisor, columns, offset, inside, model, models, features, scale
):
    """Load PairNorm's input; return it and the output."""
    value = tl.load(x + offset, inside, other=0.0).to(tl.float32)
    place = center + model * features + columns
    about = tl.load(place, columns < features, other=0.0)
    rest = tl.load(place + models * features, columns < features, other=0.0)
    return value, tl.where(inside, ((value - about[None, :]) - rest[None, :]) * (scale / divisor), 0.0)


@triton.jit
def _load_norm(norm, rows, nodes, model, models, INDIVIDUALLY: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load the norms by which each row, or all rows, were divided."""
    if INDIVIDUALLY:
        place = rows.to(tl.int64) * models + model
        divisor = tl.load(norm + place, rows < nodes, other=1.0)[:, None]
    else:
        divisor = tl.load(norm + model)
    return divisor


@triton.jit
def _gradient_sums(  # type: ignore[no-untyped-def]
    grad, x, norm, center, sums, products, share, nodes, models, features, scale,
    INDIVIDUALLY: tl.constexpr, CODE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    # One model after the other: with all at once, as elsewhere, it took a quarter longer.
    programs = tl.num_programs(0) // models
    program, model = tl.program_id(0) % programs, tl.program_id(0) // programs
    first = program * share
    last = tl.minimum(first + share, nodes)
    columns = tl.arange(0, COLUMNS)
    total = tl.zeros([COLUMNS], tl.float32)
    product = tl.zeros([COLUMNS], tl.float32)
    for start in range(first, last, ROWS):
        rows, columns, offset, inside = _tile(start, last, model, models, features, ROWS, COLUMNS)
        divisor = _load_norm(norm, rows, last, model, models, INDIVIDUALLY)
        gradient = tl.load(grad + offset, inside, other=0.0).to(tl.float32)
        _, value = _load_output(x, center, divisor, columns, offset, inside, model, models, features, scale)
        if INDIVIDUALLY:
            grad_dot = tl.sum(gradient * value, 1)[:, None] / (divisor * scale)
            total += tl.sum(gradient * (scale / divisor) - value * grad_dot, 0)
        else:
            total += tl.sum(gradient, 0)
            product += tl.sum(gradient * value, 0)
    place = program * models + model
    tl.store(sums + place * features + columns, total, columns < features)
    tl.store(products + place, tl.sum(product, 0))


@triton.jit
def _gradient(  # type: ignore[no-untyped-def]
    grad, x, norm, center, total, product, result, before, nodes, models, features, scale,
    INDIVIDUALLY: tl.constexpr, CODE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    program, model = _program(models)
    start = ((nodes - 1) // ROWS - program) * ROWS
    rows, columns, offset, inside = _tile(start, nodes, model, models, features, ROWS, COLUMNS)
    middle = tl.load(total + model * features + columns, columns < features, other=0.0) / nodes
    divisor = _load_norm(norm, rows, nodes, model, models, INDIVIDUALLY)
    gradient = tl.load(grad + offset, inside, other=0.0).to(tl.float32)
    loaded, value = _load_output(x, center, divisor, columns, offset, inside, model, models, features, scale)
    if INDIVIDUALLY:
        grad_dot = tl.sum(gradient * value, 1)[:, None] / (divisor * scale)
    else:
        grad_dot = tl.load(product + model) / (nodes * divisor * scale)
        middle = middle * (scale / divisor)
    gradient = gradient * (scale / divisor) - value * grad_dot - middle[None, :]
    if CODE != -1:
        gradient = tl.where(inside, gradient_of(gradient, loaded, CODE), 0.0)
        place = (program * models + model).to(tl.int64) * features
        tl.store(before + place + columns, tl.sum(gradient, 0), columns < features)
    tl.store(result + offset, gradient.to(result.dtype.element_ty), inside)
