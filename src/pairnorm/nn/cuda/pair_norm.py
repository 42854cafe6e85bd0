"""PairNorm on CUDA in Triton: the plain formula in as few passes over memory as it allows.

``forward`` reads the input twice and writes once; ``backward`` reads gradient and output twice and writes
once. Tensors are viewed as ``[nodes, trials, features]``; a program takes a share of the nodes of one trial.
After an activation, ``backward_activated`` goes through both in those passes.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pairnorm.nn.cuda.activate import CODES, shares, slope_of

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
OUTPUT = -1
"""Instead of the code of an activation: what is at hand is PairNorm's output, and nothing comes before it."""
TILE_ELEMENTS = 16384
PROGRAMS_PER_PROCESSOR = 2


def forward(x: Tensor, scale: float, eps: float, individually: bool) -> tuple[Tensor, Tensor]:
    """Return s·c/r and r; see ``pairnorm.nn.pair_norm._formula``."""
    return forward_with_centre(x, scale, eps, individually)[:2]


def forward_with_centre(
    x: Tensor, scale: float, eps: float, individually: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return also the mean of the rows, ``[2, trials, features]``: two parts, for their sum is less exact."""
    x = x.contiguous()
    nodes, trials, features = _shape(x)
    plan = _Plan(x, nodes, trials, features)
    sums, squares = plan.partial(features), plan.partial(1)
    centre = x.new_empty(2, trials, features, dtype=torch.float32)
    shift, mean = centre
    length = x.new_empty(nodes if individually else 1, trials, dtype=torch.float32)
    y = torch.empty_like(x)
    _column_sums[plan.grid](
        x, shift, sums, squares, nodes, plan.rows, trials, features, *plan.tile, num_warps=8
    )
    _merge_columns[(trials,)](
        sums, squares, mean, length, nodes, plan.programs, trials, features, eps, individually, *plan.tile,
        num_warps=8,
    )  # fmt: skip
    _centre_and_scale[plan.cover](
        x, shift, mean, length, y, nodes, trials, features, scale, eps, individually, *plan.tile, num_warps=4
    )
    shape = x.shape[:-1] if individually else (1, *x.shape[1:-1])
    return y, length.view(*shape, 1), centre


def backward(grad: Tensor, y: Tensor, length: Tensor, scale: float, individually: bool) -> Tensor:
    """Return dL/dx from y = PairNorm(x); see ``pairnorm.nn.pair_norm.formula_gradient``."""
    return _backward(grad, y, length, y, scale, individually, OUTPUT)[0]


def backward_activated(
    grad: Tensor,
    x: Tensor,
    length: Tensor,
    centre: Tensor,
    scale: float,
    individually: bool,
    activation: str,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of h and of a bias in it, from x = activation(h) that went into PairNorm."""
    result, sums = _backward(grad, x, length, centre, scale, individually, CODES[activation])
    return result, sums.sum(0)


def _backward(
    grad: Tensor, y: Tensor, length: Tensor, centre: Tensor, scale: float, individually: bool, code: int
) -> tuple[Tensor, Tensor]:
    grad = grad.contiguous()
    nodes, trials, features = _shape(y)
    plan = _Plan(y, nodes, trials, features)
    sums, products = plan.partial(features), plan.partial(1)
    result = torch.empty_like(y)
    before = sums if code == OUTPUT else y.new_empty(plan.cover[0], trials, features)
    arguments = (nodes, trials, features, scale, individually, code, *plan.tile)
    _gradient_sums[plan.grid](grad, y, length, centre, sums, products, plan.rows, *arguments, num_warps=8)
    mean = sums.sum(0) / nodes
    product = products.sum(0) / nodes
    _gradient[plan.cover](grad, y, length, centre, mean, product, result, before, *arguments, num_warps=8)
    return result, before


def _shape(x: Tensor) -> tuple[int, int, int]:
    return x.size(0), x[0, ..., 0].numel(), x.size(-1)


class _Plan:
    """How nodes are shared out: ``grid`` for reductions (a few programs per processor), ``cover`` by tile."""

    def __init__(self, x: Tensor, nodes: int, trials: int, features: int) -> None:
        columns = triton.next_power_of_2(features)
        self.tile = (max(1, min(TILE_ELEMENTS // columns, triton.next_power_of_2(nodes))), columns)
        processors = torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 1
        self.programs, self.rows = shares(nodes, trials, self.tile[0], PROGRAMS_PER_PROCESSOR * processors)
        self.grid = (self.programs, trials)
        self.cover = (triton.cdiv(nodes, self.tile[0]), trials)
        self._like, self._trials = x, trials

    def partial(self, width: int) -> Tensor:
        """A result per program: ``[programs, trials, width]``."""
        return self._like.new_empty(self.programs, self._trials, width, dtype=torch.float32)


@triton.jit
def _tile(start, nodes, trials, features, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    rows = start + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    offset = (rows.to(tl.int64) * trials + tl.program_id(1))[:, None] * features + columns[None, :]
    return rows, columns, offset, (rows < nodes)[:, None] & (columns < features)[None, :]


@triton.jit
def _column_sums(  # type: ignore[no-untyped-def]
    x, shift, sums, squares, nodes, share, trials, features, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Sum a program's rows, and their squares, about a shift near the mean, so that no large numbers cancel.

    The shift is the mean of a tile of rows spread evenly over all nodes, the same for every program; a mean
    of neighbouring rows could be far off where nodes come in some order.
    """
    step = tl.maximum(nodes // ROWS, 1)
    columns = tl.arange(0, COLUMNS)
    spread = tl.arange(0, ROWS) * step
    trial = tl.program_id(1)
    inside = (spread < nodes)[:, None] & (columns < features)[None, :]
    offset = (spread.to(tl.int64) * trials + trial)[:, None] * features + columns[None, :]
    about = tl.sum(tl.load(x + offset, inside, other=0.0).to(tl.float32), 0) / tl.minimum(ROWS, nodes)
    first = tl.program_id(0) * share
    last = tl.minimum(first + share, nodes)
    total = tl.zeros([COLUMNS], tl.float32)
    square = tl.zeros([COLUMNS], tl.float32)
    for start in range(first, last, ROWS):
        _, columns, offset, inside = _tile(start, last, trials, features, ROWS, COLUMNS)
        value = tl.load(x + offset, inside, other=0.0).to(tl.float32)
        value = tl.where(inside, value - about[None, :], 0.0)
        total += tl.sum(value, 0)
        square += tl.sum(value * value, 0)
    place = tl.program_id(0) * trials + trial
    tl.store(sums + place * features + columns, total, columns < features)
    tl.store(squares + place, tl.sum(square, 0))
    tl.store(shift + trial * features + columns, about, columns < features)  # the same from every program


@triton.jit
def _merge_columns(  # type: ignore[no-untyped-def]
    sums, squares, mean, length, nodes, programs, trials, features, eps,
    INDIVIDUALLY: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Add up the programs' sums: the mean about the shift, and the length that PN divides by."""
    trial = tl.program_id(0)
    columns = tl.arange(0, COLUMNS)
    total = tl.zeros([COLUMNS], tl.float32)
    square = tl.zeros([ROWS], tl.float32)
    for start in range(0, programs, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row < programs)[:, None] & (columns < features)[None, :]
        offset = (row * trials + trial)[:, None] * features + columns[None, :]
        total += tl.sum(tl.load(sums + offset, inside, other=0.0), 0)
        square += tl.load(squares + row * trials + trial, row < programs, other=0.0)
    centre = total / nodes
    tl.store(mean + trial * features + columns, centre, columns < features)
    if not INDIVIDUALLY:
        mean_square = tl.sum(square, 0) / nodes - tl.sum(centre * centre, 0)
        tl.store(length + trial, tl.sqrt(tl.maximum(mean_square, 0.0) + eps))


@triton.jit
def _centre_and_scale(  # type: ignore[no-untyped-def]
    x, shift, mean, length, y, nodes, trials, features, scale, eps,
    INDIVIDUALLY: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    # Last tiles first: the sums read them last, so they may still be in the cache.
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * ROWS
    rows, columns, offset, inside = _tile(start, nodes, trials, features, ROWS, COLUMNS)
    trial = tl.program_id(1)
    about = tl.load(shift + trial * features + columns, columns < features, other=0.0)
    rest = tl.load(mean + trial * features + columns, columns < features, other=0.0)
    value = tl.load(x + offset, inside, other=0.0).to(tl.float32)
    value = tl.where(inside, (value - about[None, :]) - rest[None, :], 0.0)
    if INDIVIDUALLY:
        divisor = tl.sqrt(tl.sum(value * value, 1) + eps)
        tl.store(length + rows.to(tl.int64) * trials + trial, divisor, rows < nodes)
        value = value * (scale / divisor)[:, None]
    else:
        value = value * (scale / tl.load(length + trial))
    tl.store(y + offset, value.to(y.dtype.element_ty), inside)


@triton.jit
def _load_output(  # type: ignore[no-untyped-def]
    y, centre, divisor, columns, offset, inside, trials, features, scale, CODE: tl.constexpr
):
    """What was loaded, and PairNorm's output: the same, or what follows from its input."""
    value = tl.load(y + offset, inside, other=0.0).to(tl.float32)
    output = value
    if CODE != -1:
        place = centre + tl.program_id(1) * features + columns
        about = tl.load(place, columns < features, other=0.0)
        rest = tl.load(place + trials * features, columns < features, other=0.0)
        output = tl.where(inside, ((value - about[None, :]) - rest[None, :]) * (scale / divisor), 0.0)
    return value, output


@triton.jit
def _load_length(length, rows, nodes, trials, INDIVIDUALLY: tl.constexpr):  # type: ignore[no-untyped-def]
    """What every row was divided by, or all of them."""
    if INDIVIDUALLY:
        place = rows.to(tl.int64) * trials + tl.program_id(1)
        divisor = tl.load(length + place, rows < nodes, other=1.0)[:, None]
    else:
        divisor = tl.load(length + tl.program_id(1))
    return divisor


@triton.jit
def _gradient_sums(  # type: ignore[no-untyped-def]
    grad, y, length, centre, sums, products, share, nodes, trials, features, scale,
    INDIVIDUALLY: tl.constexpr, CODE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * share
    last = tl.minimum(first + share, nodes)
    columns = tl.arange(0, COLUMNS)
    total = tl.zeros([COLUMNS], tl.float32)
    product = tl.zeros([COLUMNS], tl.float32)
    for start in range(first, last, ROWS):
        rows, columns, offset, inside = _tile(start, last, trials, features, ROWS, COLUMNS)
        divisor = _load_length(length, rows, last, trials, INDIVIDUALLY)
        slope = tl.load(grad + offset, inside, other=0.0).to(tl.float32)
        _, value = _load_output(y, centre, divisor, columns, offset, inside, trials, features, scale, CODE)
        if INDIVIDUALLY:
            pull = tl.sum(slope * value, 1)[:, None] / (divisor * scale)
            total += tl.sum(slope * (scale / divisor) - value * pull, 0)
        else:
            total += tl.sum(slope, 0)
            product += tl.sum(slope * value, 0)
    place = tl.program_id(0) * trials + tl.program_id(1)
    tl.store(sums + place * features + columns, total, columns < features)
    tl.store(products + place, tl.sum(product, 0))


@triton.jit
def _gradient(  # type: ignore[no-untyped-def]
    grad, y, length, centre, mean, product, result, before, nodes, trials, features, scale,
    INDIVIDUALLY: tl.constexpr, CODE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    start = (tl.num_programs(0) - 1 - tl.program_id(0)) * ROWS
    rows, columns, offset, inside = _tile(start, nodes, trials, features, ROWS, COLUMNS)
    trial = tl.program_id(1)
    middle = tl.load(mean + trial * features + columns, columns < features, other=0.0)
    divisor = _load_length(length, rows, nodes, trials, INDIVIDUALLY)
    slope = tl.load(grad + offset, inside, other=0.0).to(tl.float32)
    loaded, value = _load_output(y, centre, divisor, columns, offset, inside, trials, features, scale, CODE)
    if INDIVIDUALLY:
        pull = tl.sum(slope * value, 1)[:, None] / (divisor * scale)
    else:
        pull = tl.load(product + trial) / (divisor * scale)
        middle = middle * (scale / divisor)
    slope = slope * (scale / divisor) - value * pull - middle[None, :]
    if CODE != -1:
        slope = tl.where(inside, slope_of(slope, loaded, CODE), 0.0)
        place = (tl.program_id(0) * trials + trial) * features
        tl.store(before + place + columns, tl.sum(slope, 0), columns < features)
    tl.store(result + offset, slope.to(result.dtype.element_ty), inside)
