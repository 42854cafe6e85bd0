"""Sparse products on CUDA in Triton: every row gathers its columns, in a fixed order and without atomics.

Rows longer than ``PIECE`` entries are cut into pieces that are summed separately and then together, so that
no program holds up the others: frequent words have thousands of entries, hubs hundreds. Long pieces come
first, and programs that run at the same time have as much to do.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from pairnorm.nn.ops.kernels import on_device, partition_nodes
from pairnorm.nn.ops.sparse_product import CODES, Pattern, index_dtype

DTYPES = (torch.float32, torch.float16, torch.bfloat16)  # of hidden states; sums are in float32
PIECE = 64
UNROLL = 4
BLOCK = 256
PROPAGATION_UNROLL, PROPAGATION_BLOCK = 8, 128
# Features of a few models; fewer would take more programs, and just to start those takes time.
TILE = 256
GRADIENT_ROWS, GRADIENT_COLUMNS, GRADIENT_PROGRAMS = 32, 64, 1024


@dataclass(frozen=True)
class Schedule:
    """Pieces of rows: entries ``start`` to ``stop`` of ``row`` are summed into row ``place`` of a buffer."""

    row: Tensor
    start: Tensor
    stop: Tensor
    place: Tensor
    split: Tensor  # rows whose pieces have places of their own, beyond the first rows, which are the result
    split_crow: Tensor  # where these places are
    num_places: int

    @classmethod
    def of(cls, pattern: Pattern) -> "Schedule":
        """Cut the rows of a pattern into pieces, once."""
        if "schedule" not in pattern.derived:
            pattern.derived["schedule"] = cls._cut(pattern)
        return pattern.derived["schedule"]

    @classmethod
    def _cut(cls, pattern: Pattern) -> "Schedule":
        """Cut rows of more than ``PIECE`` entries into pieces, and order all pieces from long to short."""
        crow = pattern.crow.long()
        rows = pattern.shape[0]
        pieces = ((crow.diff() + PIECE - 1) // PIECE).clamp(min=1)
        row = torch.arange(rows, device=crow.device).repeat_interleave(pieces)
        first = pieces.cumsum(0) - pieces
        number = torch.arange(row.numel(), device=crow.device) - first[row]
        start = crow[row] + number * PIECE
        stop = torch.minimum(start + PIECE, crow[row + 1])
        many = pieces > 1
        split = many.nonzero().squeeze(1)
        split_crow = torch.cat([split.new_zeros(1), pieces[split].cumsum(0)]) + rows
        place = row.clone()
        beyond = many[row]
        place[beyond] = torch.arange(int(beyond.sum()), device=crow.device) + rows
        order = (stop - start).argsort(descending=True, stable=True)
        row, place = row[order].int(), place[order].int()
        start, stop = (bound[order].to(index_dtype(pattern.num_entries)) for bound in (start, stop))
        return cls(row, start, stop, place, split.int(), split_crow.int(), rows + int(beyond.sum()))


@on_device
def forward(
    pattern: Pattern, values: Tensor, dense: Tensor, bias: Tensor | None = None, activation: str = "none"
) -> Tensor:
    """Return the product with ``dense`` ``[columns, ..., features]``, plus bias, activated.

    ``values`` are ``[entries]`` or ``[models, entries]``.
    """
    dense = dense.contiguous()
    schedule = Schedule.of(pattern)
    rows, width = pattern.shape[0], dense[0].numel()
    buffer = dense.new_empty(schedule.num_places, width)
    pieces = (schedule.start, schedule.stop, schedule.place, pattern.column, values, dense, buffer)
    epilogue = (dense if bias is None else bias, rows, width, bias is not None, CODES[activation], UNROLL)
    if values.dim() == 1:
        grid = (schedule.start.numel(), triton.cdiv(width, BLOCK))
        _multiply[grid](*pieces, *epilogue, BLOCK, num_warps=1)
    else:
        _, models, features = dense.shape
        tile = tile_of(models, features)
        _multiply_models[(schedule.start.numel(), triton.cdiv(models, tile[0]))](
            *pieces, models, features, *values.stride(), *epilogue, *tile, num_warps=1
        )
    join(schedule, buffer, bias, activation)
    return buffer[:rows].view(rows, *dense.shape[1:])


def join(schedule: Schedule, buffer: Tensor, bias: Tensor | None = None, activation: str = "none") -> None:
    """Add up the pieces of rows that were split; bias and activation come after that."""
    if schedule.split.numel():
        width = buffer.size(1)
        _join[(schedule.split.numel(), triton.cdiv(width, BLOCK))](
            schedule.split, schedule.split_crow, buffer, buffer if bias is None else bias, width,
            bias is not None, CODES[activation], UNROLL, BLOCK, num_warps=1,
        )  # fmt: skip


def tile_of(models: int, features: int) -> tuple[int, int, int]:
    """Choose how many models and features a program takes, and how many neighboring features it loads."""
    columns = triton.next_power_of_2(features)
    return max(1, min(TILE // columns, triton.next_power_of_2(models))), columns, min(4, columns)


@triton.jit
def groups(models, features, MODELS: tl.constexpr, FEATURES: tl.constexpr, GROUP: tl.constexpr):  # type: ignore[no-untyped-def]
    """Groups of neighboring features: the model of each, its places in a node's row, and which there are.

    What belongs to a model is loaded for each of its groups again, by the thread that needs it: to pass it on
    to other threads would take longer.
    """
    group = tl.arange(0, MODELS * FEATURES // GROUP)
    model = tl.program_id(1) * MODELS + group // (FEATURES // GROUP)
    feature = ((group % (FEATURES // GROUP)) * GROUP)[:, None] + tl.arange(0, GROUP)[None, :]
    return model, model[:, None] * features + feature, (model < models)[:, None] & (feature < features)


@triton.jit
def _epilogue(total, bias, across, inside, BIAS: tl.constexpr, CODE: tl.constexpr):  # type: ignore[no-untyped-def]
    if BIAS:
        total += tl.load(bias + across, inside, other=0.0)
    return activated(total, CODE)


@triton.jit
def _multiply(  # type: ignore[no-untyped-def]
    start, stop, place, column, values, dense, result,
    bias, rows, width, BIAS: tl.constexpr, CODE: tl.constexpr, UNROLL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Multiply a piece of a row for a block of the features of all models."""
    piece = tl.program_id(0)
    across = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = across < width
    last = tl.load(stop + piece)
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(tl.load(start + piece), last, UNROLL):
        entry = first + tl.arange(0, UNROLL)
        here = entry < last
        source = tl.load(column + entry, here, other=0).to(tl.int64)
        value = tl.load(values + entry, here, other=0.0)[:, None]
        both = here[:, None] & inside[None, :]
        states = tl.load(dense + source[:, None] * width + across[None, :], both, other=0.0)
        total += tl.sum(value * states.to(tl.float32), 0)
    target = tl.load(place + piece).to(tl.int64)
    if target < rows:  # a whole row; pieces of a row are finished when they are joined
        total = _epilogue(total, bias, across, inside, BIAS, CODE)
    tl.store(result + target * width + across, total, inside)


@triton.jit
def _multiply_models(  # type: ignore[no-untyped-def]
    start, stop, place, column, values, dense, result, models, features, model_stride, entry_stride,
    bias, rows, width, BIAS: tl.constexpr, CODE: tl.constexpr, UNROLL: tl.constexpr,
    MODELS: tl.constexpr, FEATURES: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Multiply a piece of a row for several models, which have different values."""
    piece = tl.program_id(0)
    model, across, inside = groups(models, features, MODELS, FEATURES, GROUP)
    own = values + model.to(tl.int64) * model_stride
    first, last = tl.load(start + piece), tl.load(stop + piece)
    total = tl.zeros([MODELS * FEATURES // GROUP, GROUP], tl.float32)
    for step in range(0, last - first, UNROLL):
        for number in tl.static_range(UNROLL):
            entry = first + step + number
            source = tl.load(column + entry, entry < last, other=0).to(tl.int64)
            known = model < tl.where(entry < last, models, 0)
            value = tl.load(own + entry.to(tl.int64) * entry_stride, known, other=0.0)
            selected = (value != 0)[:, None] & inside  # nothing is read for what was dropped
            states = tl.load(dense + source * width + across, selected, other=0.0)
            total += value[:, None] * states.to(tl.float32)
    target = tl.load(place + piece).to(tl.int64)
    if target < rows:
        total = _epilogue(total, bias, across, inside, BIAS, CODE)
    tl.store(result + target * width + across, total, inside)


@triton.jit
def _join(  # type: ignore[no-untyped-def]
    split, crow, buffer, bias, width,
    BIAS: tl.constexpr, CODE: tl.constexpr, UNROLL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    across = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = across < width
    last = tl.load(crow + tl.program_id(0) + 1)
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(tl.load(crow + tl.program_id(0)), last, UNROLL):
        part = first + tl.arange(0, UNROLL)
        both = (part < last)[:, None] & inside[None, :]
        sums = tl.load(buffer + part.to(tl.int64)[:, None] * width + across[None, :], both, other=0.0)
        total += tl.sum(sums.to(tl.float32), 0)
    total = _epilogue(total, bias, across, inside, BIAS, CODE)
    tl.store(buffer + tl.load(split + tl.program_id(0)).to(tl.int64) * width + across, total, inside)


@on_device
def activation_backward(grad: Tensor, y: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """Return the gradients of an activation's input and of the bias in it, from its output ``y``."""
    result = torch.empty_like(y)
    nodes, width = y.size(0), y[0].numel()
    columns = triton.cdiv(width, GRADIENT_COLUMNS)
    programs, share = partition_nodes(nodes, columns, GRADIENT_ROWS, GRADIENT_PROGRAMS)
    sums = y.new_empty(programs, *y.shape[1:], dtype=torch.float32)
    _activation_backward[(programs, columns)](
        grad, y, result, sums, nodes, share, width, CODES[activation], GRADIENT_ROWS, GRADIENT_COLUMNS,
        num_warps=4,
    )  # fmt: skip
    return result, sums.sum(0)


@triton.jit
def _activation_backward(  # type: ignore[no-untyped-def]
    grad, y, result, sums, nodes, share, width, CODE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    first = tl.program_id(0) * share
    last = tl.minimum(first + share, nodes)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([COLUMNS], tl.float32)
    for start in range(first, last, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row < last)[:, None] & (column < width)[None, :]
        offset = row.to(tl.int64)[:, None] * width + column[None, :]
        gradient = tl.load(grad + offset, inside, other=0.0).to(tl.float32)
        if CODE != 0:
            gradient = gradient_of(gradient, tl.load(y + offset, inside, other=0.0).to(tl.float32), CODE)
        tl.store(result + offset, gradient, inside)
        total += tl.sum(gradient, 0)
    tl.store(sums + tl.program_id(0).to(tl.int64) * width + column, total, column < width)


@triton.jit
def activated(value, CODE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Apply the activation of ``CODES``; NaN stays NaN."""
    if CODE == 1:
        value = tl.where(value < 0, 0.0, value)
    if CODE == 2:
        value = tl.where(value < 0, tl.exp(value) - 1, value)
    return value


@triton.jit
def gradient_of(gradient, value, CODE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the gradient of an activation's input, from its output ``value``."""
    if CODE == 1:
        gradient = tl.where(value > 0, gradient, 0.0)
    if CODE == 2:
        gradient = tl.where(value > 0, gradient, gradient * (value + 1))
    return gradient


@on_device
def propagate(
    crow: Tensor, column: Tensor, weight: Tensor | None, roots: Tensor | None, x: Tensor, y: Tensor
) -> None:
    """Write D̃⁻¹ Ã x, or with ``roots`` D̃^(-1/2) Ã D̃^(-1/2) x, to ``y``; arguments as in ``_numba``."""
    nodes, width = x.shape
    block = min(PROPAGATION_BLOCK, triton.next_power_of_2(width))
    grid = (nodes, triton.cdiv(width, block))
    unused = x  # a pointer that is not read
    _propagate[grid](
        x, crow, column, unused if weight is None else weight, unused if roots is None else roots, y, width,
        weight is not None, roots is not None, PROPAGATION_UNROLL, block, num_warps=1,
    )  # fmt: skip


@triton.jit
def _propagate(  # type: ignore[no-untyped-def]
    x, crow, column, weight, roots, y, width,
    WEIGHTED: tl.constexpr, SYMMETRIC: tl.constexpr, UNROLL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    across = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = across < width
    begin, end = tl.load(crow + row), tl.load(crow + row + 1)
    total = tl.load(x + row * width + across, inside, other=0.0).to(tl.float32)
    degree = (end - begin + 1).to(tl.float32)
    if WEIGHTED:
        degree = tl.full((), 1.0, tl.float32)
    if SYMMETRIC:
        own = tl.load(roots + row)
        total *= own
    for first in range(begin, end, UNROLL):
        entry = first + tl.arange(0, UNROLL)
        here = entry < end
        source = tl.load(column + entry, here, other=0).to(tl.int64)
        both = here[:, None] & inside[None, :]
        values = tl.load(x + source[:, None] * width + across[None, :], both, other=0.0).to(tl.float32)
        if WEIGHTED:
            weights = tl.load(weight + entry, here, other=0.0)
            values *= weights[:, None]
            degree += tl.sum(weights, 0)
        if SYMMETRIC:
            values *= tl.load(roots + source, here, other=0.0)[:, None]
        total += tl.sum(values, 0)
    if SYMMETRIC:
        total *= own
    else:
        total /= degree
    tl.store(y + row * width + across, total.to(y.dtype.element_ty), inside)
