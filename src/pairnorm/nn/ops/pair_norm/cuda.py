"""PairNorm on CUDA in Triton: the plain formula in as few passes over memory as it allows.

``forward`` reads the input twice and writes once; ``backward`` reads gradient and output twice and writes
once. Tensors are viewed as ``[nodes, trials, features]``; a program takes a share of the nodes of one trial.
After an activation, ``backward_activated`` goes through both in those passes.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pairnorm.nn.ops.kernels import on_device, shares
from pairnorm.nn.ops.tiles import CODES, gradient_of

OUTPUT = -1
"""Instead of the code of an activation: what is at hand is PairNorm's output, and nothing comes before it."""
# Numbers in a tile, and programs per processor where each takes several. Small tiles let many programs run
# beside one another; for moments the mean of a tile should be near that of all rows.
TILE, PROGRAMS = 2048, 8
MOMENTS_TILE, MOMENTS_PROGRAMS = 8192, 4


def serves(x: Tensor) -> bool:
    """Say whether this type is served."""
    return x.dtype in (torch.float32, torch.float16, torch.bfloat16)


def forward(x: Tensor, scale: float, eps: float, individually: bool) -> tuple[Tensor, Tensor]:
    """Return s·c/r and r; see ``_formula`` in ``plain``."""
    return forward_with_center(x, scale, eps, individually)[:2]


@on_device
def forward_with_center(
    x: Tensor, scale: float, eps: float, individually: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return also the mean of the rows, ``[2, trials, features]``: two parts, for their sum is less exact."""
    x = x.contiguous()
    nodes, trials, features = _shape(x)
    plan = _Plan(x, nodes, trials, features, MOMENTS_TILE, MOMENTS_PROGRAMS)
    means, squares = plan.partial(features), plan.partial(1)
    center = x.new_empty(2, trials, features, dtype=torch.float32)
    shift, mean = center
    norm = x.new_empty(nodes if individually else 1, trials, dtype=torch.float32)
    y = torch.empty_like(x)
    _moments[plan.grid](x, shift, means, squares, nodes, plan.rows, trials, features, *plan.tile, num_warps=4)
    _merge[(trials,)](
        means, squares, mean, norm, nodes, plan.rows, plan.programs, trials, features, eps, individually,
        *plan.tile, num_warps=4,
    )  # fmt: skip
    plan = _Plan(x, nodes, trials, features)
    _center_and_scale[plan.cover](
        x, shift, mean, norm, y, nodes, trials, features, scale, eps, individually, *plan.tile,
        num_warps=plan.warps,
    )  # fmt: skip
    shape = x.shape[:-1] if individually else (1, *x.shape[1:-1])
    return y, norm.view(*shape, 1), center


def backward(grad: Tensor, y: Tensor, norm: Tensor, scale: float, individually: bool) -> Tensor:
    """Return dL/dx from y = PairNorm(x); see ``formula_gradient`` in ``plain``."""
    return _backward(grad, y, norm, y, scale, individually, OUTPUT)[0]


def backward_activated(
    grad: Tensor, x: Tensor, norm: Tensor, center: Tensor, scale: float, individually: bool, activation: str
) -> tuple[Tensor, Tensor]:
    """Return the gradients of h and of a bias in it, from x = activation(h) that went into PairNorm."""
    result, sums = _backward(grad, x, norm, center, scale, individually, CODES[activation])
    return result, sums.sum(0)


@on_device
def _backward(
    grad: Tensor, y: Tensor, norm: Tensor, center: Tensor, scale: float, individually: bool, code: int
) -> tuple[Tensor, Tensor]:
    grad = grad.contiguous()
    nodes, trials, features = _shape(y)
    plan = _Plan(y, nodes, trials, features)
    sums, products = plan.partial(features), plan.partial(1)
    result = torch.empty_like(y)
    before = sums if code == OUTPUT else y.new_empty(plan.tiles, trials, features, dtype=torch.float32)
    arguments = (nodes, trials, features, scale, individually, code, *plan.tile)
    _gradient_sums[plan.grid](
        grad, y, norm, center, sums, products, plan.rows, *arguments, num_warps=plan.warps
    )
    total = sums.sum(0)
    product = total if individually else products.sum(0)
    _gradient[plan.cover](
        grad, y, norm, center, total, product, result, before, *arguments, num_warps=plan.warps
    )
    return result, before


def _shape(x: Tensor) -> tuple[int, int, int]:
    return x.size(0), x[0, ..., 0].numel(), x.size(-1)


class _Plan:
    """How nodes are shared out: ``grid`` for reductions (a few programs per processor), ``cover`` by tile.

    Programs that start together have the same rows of all trials, which lie next to one another.
    """

    def __init__(
        self, x: Tensor, nodes: int, trials: int, features: int, elements: int = TILE, most: int = PROGRAMS
    ) -> None:
        columns = triton.next_power_of_2(features)
        # Of wide rows a few too, for every tile leaves a row of sums.
        rows = max(elements // columns, min(32, MOMENTS_TILE // columns), 1)
        self.tile = (min(rows, triton.next_power_of_2(nodes)), columns)
        self.warps = 4 if rows * columns <= 2 * TILE else 8
        processors = torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 1
        self.programs, self.rows = shares(nodes, trials, self.tile[0], most * processors)
        self.tiles = triton.cdiv(nodes, self.tile[0])
        self.grid, self.cover = (trials * self.programs,), (trials * self.tiles,)
        self._like, self._trials = x, trials

    def partial(self, width: int) -> Tensor:
        """A result per program: ``[programs, trials, width]``."""
        return self._like.new_empty(self.programs, self._trials, width, dtype=torch.float32)


@triton.jit
def _program(trials):  # type: ignore[no-untyped-def]
    """Which share of the nodes this program has, and of which trial."""
    return tl.program_id(0) // trials, tl.program_id(0) % trials


@triton.jit
def _tile(start, nodes, trial, trials, features, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    rows = start + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    offset = (rows.to(tl.int64) * trials + trial)[:, None] * features + columns[None, :]
    return rows, columns, offset, (rows < nodes)[:, None] & (columns < features)[None, :]


@triton.jit
def _moments(  # type: ignore[no-untyped-def]
    x, shift, means, squares, nodes, share, trials, features, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Mean of a program's rows, and squares about it, merged tile by tile as ``Moments`` are.

    All are about a shift near the mean, so that no large numbers cancel. The shift is the mean of a tile of
    rows spread evenly over all nodes, the same for every program; a mean of neighboring rows could be far
    off where nodes come in some order.
    """
    step = tl.maximum(nodes // ROWS, 1)
    columns = tl.arange(0, COLUMNS)
    spread = tl.arange(0, ROWS) * step
    program, trial = _program(trials)
    inside = (spread < nodes)[:, None] & (columns < features)[None, :]
    offset = (spread.to(tl.int64) * trials + trial)[:, None] * features + columns[None, :]
    about = tl.sum(tl.load(x + offset, inside, other=0.0).to(tl.float32), 0) / tl.minimum(ROWS, nodes)
    first = program * share
    last = tl.minimum(first + share, nodes)
    mean = tl.zeros([COLUMNS], tl.float32)
    square = tl.zeros([COLUMNS], tl.float32)
    for start in range(first, last, ROWS):
        _, columns, offset, inside = _tile(start, last, trial, trials, features, ROWS, COLUMNS)
        value = tl.load(x + offset, inside, other=0.0).to(tl.float32)
        value = tl.where(inside, value - about[None, :], 0.0)
        count = tl.minimum(last - start, ROWS).to(tl.float32)
        seen = (start - first).to(tl.float32)
        here = tl.sum(value, 0) / count
        rest = tl.where(inside, value - here[None, :], 0.0)
        step_to, weight = here - mean, count / (seen + count)
        mean += step_to * weight
        square += tl.sum(rest * rest, 0) + step_to * step_to * (seen * weight)
    place = program * trials + trial
    tl.store(means + place * features + columns, mean, columns < features)
    tl.store(squares + place, tl.sum(square, 0))
    tl.store(shift + trial * features + columns, about, columns < features)  # the same from every program


@triton.jit
def _load_moments(  # type: ignore[no-untyped-def]
    means, start, nodes, share, programs, trials, features, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Counts and means of some programs, and which there are."""
    row, columns = start + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    inside = (row < programs)[:, None] & (columns < features)[None, :]
    offset = (row * trials + tl.program_id(0))[:, None] * features + columns[None, :]
    count = tl.where(row < programs, tl.minimum(nodes - row * share, share), 0).to(tl.float32)
    return count[:, None], tl.load(means + offset, inside, other=0.0), inside


@triton.jit
def _merge(  # type: ignore[no-untyped-def]
    means, squares, mean, norm, nodes, share, programs, trials, features, eps,
    INDIVIDUALLY: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Merge the programs' moments: the mean about the shift, and the norm that PN divides by."""
    trial, columns = tl.program_id(0), tl.arange(0, COLUMNS)
    total = tl.zeros([COLUMNS], tl.float32)
    for start in range(0, programs, ROWS):
        count, part, _ = _load_moments(means, start, nodes, share, programs, trials, features, ROWS, COLUMNS)
        total += tl.sum(count * part, 0)
    center = total / nodes
    tl.store(mean + trial * features + columns, center, columns < features)
    if not INDIVIDUALLY:
        between = tl.zeros([COLUMNS], tl.float32)
        within = tl.zeros([ROWS], tl.float32)
        for start in range(0, programs, ROWS):
            count, part, inside = _load_moments(
                means, start, nodes, share, programs, trials, features, ROWS, COLUMNS
            )
            rest = tl.where(inside, part - center[None, :], 0.0)
            between += tl.sum(count * rest * rest, 0)
            row = start + tl.arange(0, ROWS)
            within += tl.load(squares + row * trials + trial, row < programs, other=0.0)
        tl.store(norm + trial, tl.sqrt((tl.sum(within, 0) + tl.sum(between, 0)) / nodes + eps))


@triton.jit
def _center_and_scale(  # type: ignore[no-untyped-def]
    x, shift, mean, norm, y, nodes, trials, features, scale, eps,
    INDIVIDUALLY: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    # Last tiles first: the sums read them last, so they may still be in the cache.
    program, trial = _program(trials)
    start = ((nodes - 1) // ROWS - program) * ROWS
    rows, columns, offset, inside = _tile(start, nodes, trial, trials, features, ROWS, COLUMNS)
    about = tl.load(shift + trial * features + columns, columns < features, other=0.0)
    rest = tl.load(mean + trial * features + columns, columns < features, other=0.0)
    value = tl.load(x + offset, inside, other=0.0).to(tl.float32)
    value = tl.where(inside, (value - about[None, :]) - rest[None, :], 0.0)
    if INDIVIDUALLY:
        divisor = tl.sqrt(tl.sum(value * value, 1) + eps)
        tl.store(norm + rows.to(tl.int64) * trials + trial, divisor, rows < nodes)
        value = value * (scale / divisor)[:, None]
    else:
        value = value * (scale / tl.load(norm + trial))
    tl.store(y + offset, value.to(y.dtype.element_ty), inside)


@triton.jit
def _load_output(  # type: ignore[no-untyped-def]
    y, center, divisor, columns, offset, inside, trial, trials, features, scale, CODE: tl.constexpr
):
    """What was loaded, and PairNorm's output: the same, or what follows from its input."""
    value = tl.load(y + offset, inside, other=0.0).to(tl.float32)
    output = value
    if CODE != -1:
        place = center + trial * features + columns
        about = tl.load(place, columns < features, other=0.0)
        rest = tl.load(place + trials * features, columns < features, other=0.0)
        output = tl.where(inside, ((value - about[None, :]) - rest[None, :]) * (scale / divisor), 0.0)
    return value, output


@triton.jit
def _load_norm(norm, rows, nodes, trial, trials, INDIVIDUALLY: tl.constexpr):  # type: ignore[no-untyped-def]
    """What every row was divided by, or all of them."""
    if INDIVIDUALLY:
        place = rows.to(tl.int64) * trials + trial
        divisor = tl.load(norm + place, rows < nodes, other=1.0)[:, None]
    else:
        divisor = tl.load(norm + trial)
    return divisor


@triton.jit
def _gradient_sums(  # type: ignore[no-untyped-def]
    grad, y, norm, center, sums, products, share, nodes, trials, features, scale,
    INDIVIDUALLY: tl.constexpr, CODE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    # One trial after the other: with all at once, as elsewhere, it took a quarter longer.
    programs = tl.num_programs(0) // trials
    program, trial = tl.program_id(0) % programs, tl.program_id(0) // programs
    first = program * share
    last = tl.minimum(first + share, nodes)
    columns = tl.arange(0, COLUMNS)
    total = tl.zeros([COLUMNS], tl.float32)
    product = tl.zeros([COLUMNS], tl.float32)
    for start in range(first, last, ROWS):
        rows, columns, offset, inside = _tile(start, last, trial, trials, features, ROWS, COLUMNS)
        divisor = _load_norm(norm, rows, last, trial, trials, INDIVIDUALLY)
        gradient = tl.load(grad + offset, inside, other=0.0).to(tl.float32)
        _, value = _load_output(
            y, center, divisor, columns, offset, inside, trial, trials, features, scale, CODE
        )
        if INDIVIDUALLY:
            pull = tl.sum(gradient * value, 1)[:, None] / (divisor * scale)
            total += tl.sum(gradient * (scale / divisor) - value * pull, 0)
        else:
            total += tl.sum(gradient, 0)
            product += tl.sum(gradient * value, 0)
    place = program * trials + trial
    tl.store(sums + place * features + columns, total, columns < features)
    tl.store(products + place, tl.sum(product, 0))


@triton.jit
def _gradient(  # type: ignore[no-untyped-def]
    grad, y, norm, center, total, product, result, before, nodes, trials, features, scale,
    INDIVIDUALLY: tl.constexpr, CODE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    program, trial = _program(trials)
    start = ((nodes - 1) // ROWS - program) * ROWS
    rows, columns, offset, inside = _tile(start, nodes, trial, trials, features, ROWS, COLUMNS)
    middle = tl.load(total + trial * features + columns, columns < features, other=0.0) / nodes
    divisor = _load_norm(norm, rows, nodes, trial, trials, INDIVIDUALLY)
    gradient = tl.load(grad + offset, inside, other=0.0).to(tl.float32)
    loaded, value = _load_output(
        y, center, divisor, columns, offset, inside, trial, trials, features, scale, CODE
    )
    if INDIVIDUALLY:
        pull = tl.sum(gradient * value, 1)[:, None] / (divisor * scale)
    else:
        pull = tl.load(product + trial) / (nodes * divisor * scale)
        middle = middle * (scale / divisor)
    gradient = gradient * (scale / divisor) - value * pull - middle[None, :]
    if CODE != -1:
        gradient = tl.where(inside, gradient_of(gradient, loaded, CODE), 0.0)
        place = (program * trials + trial).to(tl.int64) * features
        tl.store(before + place + columns, tl.sum(gradient, 0), columns < features)
    tl.store(result + offset, gradient.to(result.dtype.element_ty), inside)
