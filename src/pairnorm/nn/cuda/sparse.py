"""Sparse products on CUDA in Triton: every row gathers its columns, in a fixed order and without atomics.

Rows longer than ``PIECE`` entries are cut into pieces that are summed separately and then together, so that
no program holds up the others: frequent words have thousands of entries, hubs hundreds.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from pairnorm.nn.cuda.activate import CODES, activated

if TYPE_CHECKING:
    from pairnorm.nn.sparse import Pattern

DTYPES = (torch.float32,)
PIECE = 64
UNROLL = 4
BLOCK = 256
TILE = 128


@dataclass(frozen=True)
class Schedule:
    """Pieces of rows: entries ``start`` to ``stop`` are summed into row ``place`` of a buffer.

    The first rows of the buffer are the result. ``split`` names the rows whose pieces have places of their
    own beyond it, at ``split_crow``.
    """

    start: Tensor
    stop: Tensor
    place: Tensor
    split: Tensor
    split_crow: Tensor
    num_places: int

    @classmethod
    def of(cls, pattern: "Pattern") -> "Schedule":
        """Cut the rows of a pattern into pieces."""
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
        return cls(
            start.int(), stop.int(), place.int(), split.int(), split_crow.int(), rows + int(beyond.sum())
        )


def multiply(
    pattern: "Pattern", values: Tensor, dense: Tensor, bias: Tensor | None = None, activation: str = "none"
) -> Tensor:
    """Return the product with ``dense`` ``[columns, ..., features]``, plus bias, activated.

    ``values`` are ``[entries]`` or ``[trials, entries]``.
    """
    dense = dense.contiguous()
    if "schedule" not in pattern.derived:
        pattern.derived["schedule"] = Schedule.of(pattern)
    schedule = pattern.derived["schedule"]
    rows, width = pattern.shape[0], dense[0].numel()
    buffer = dense.new_empty(schedule.num_places, width)
    blocks = triton.cdiv(width, BLOCK)
    finish = (
        dense if bias is None else bias,
        rows,
        width,
        bias is not None,
        CODES[activation],
        UNROLL,
        BLOCK,
    )
    pieces = (schedule.start, schedule.stop, schedule.place, pattern.column, values, dense, buffer)
    if values.dim() == 1:
        _multiply[(schedule.start.numel(), blocks)](*pieces, *finish, num_warps=1)
    else:
        _, trials, features = dense.shape
        columns = triton.next_power_of_2(features)
        tile = (max(1, min(TILE // columns, triton.next_power_of_2(trials))), columns)
        _multiply_trials[(schedule.start.numel(), triton.cdiv(trials, tile[0]))](
            *pieces, trials, features, *values.stride(), *finish[:-1], *tile, num_warps=1
        )
    if schedule.split.numel():
        _join[(schedule.split.numel(), blocks)](
            schedule.split, schedule.split_crow, buffer, *finish, num_warps=1
        )
    return buffer[:rows].view(rows, *dense.shape[1:])


@triton.jit
def _finish(total, bias, across, inside, BIAS: tl.constexpr, CODE: tl.constexpr):  # type: ignore[no-untyped-def]
    if BIAS:
        total += tl.load(bias + across, inside, other=0.0)
    return activated(total, CODE)


@triton.jit
def _multiply(  # type: ignore[no-untyped-def]
    start, stop, place, column, values, dense, result,
    bias, rows, width, BIAS: tl.constexpr, CODE: tl.constexpr, UNROLL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A piece of a row, for a block of all trials' features."""
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
        total += tl.sum(
            value * tl.load(dense + source[:, None] * width + across[None, :], both, other=0.0), 0
        )
    target = tl.load(place + piece).to(tl.int64)
    if target < rows:  # a whole row; pieces of a row are finished when they are joined
        total = _finish(total, bias, across, inside, BIAS, CODE)
    tl.store(result + target * width + across, total, inside)


@triton.jit
def _multiply_trials(  # type: ignore[no-untyped-def]
    start, stop, place, column, values, dense, result, trials, features, trial_stride, entry_stride,
    bias, rows, width, BIAS: tl.constexpr, CODE: tl.constexpr, UNROLL: tl.constexpr,
    TRIALS: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    """A piece of a row, for a few trials, each with values of its own."""
    piece = tl.program_id(0)
    trial = tl.program_id(1) * TRIALS + tl.arange(0, TRIALS)
    feature = tl.arange(0, FEATURES)
    known = trial < trials
    across = trial[:, None] * features + feature[None, :]
    inside = known[:, None] & (feature < features)[None, :]
    last = tl.load(stop + piece)
    total = tl.zeros([TRIALS, FEATURES], tl.float32)
    for first in range(tl.load(start + piece), last, UNROLL):
        entry = first + tl.arange(0, UNROLL)
        here = entry < last
        source = tl.load(column + entry, here, other=0).to(tl.int64)
        offset = trial.to(tl.int64)[None, :] * trial_stride + entry.to(tl.int64)[:, None] * entry_stride
        value = tl.load(values + offset, here[:, None] & known[None, :], other=0.0)
        both = (value != 0)[:, :, None] & inside[None, :, :]  # nothing is read for what was dropped
        tile = tl.load(dense + source[:, None, None] * width + across[None, :, :], both, other=0.0)
        total += tl.sum(value[:, :, None] * tile, 0)
    target = tl.load(place + piece).to(tl.int64)
    if target < rows:
        total = _finish(total, bias, across, inside, BIAS, CODE)
    tl.store(result + target * width + across, total, inside)


@triton.jit
def _join(  # type: ignore[no-untyped-def]
    split, crow, buffer, bias, rows, width,
    BIAS: tl.constexpr, CODE: tl.constexpr, UNROLL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    across = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = across < width
    last = tl.load(crow + tl.program_id(0) + 1)
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(tl.load(crow + tl.program_id(0)), last, UNROLL):
        part = first + tl.arange(0, UNROLL)
        both = (part < last)[:, None] & inside[None, :]
        total += tl.sum(
            tl.load(buffer + part.to(tl.int64)[:, None] * width + across[None, :], both, other=0.0), 0
        )
    total = _finish(total, bias, across, inside, BIAS, CODE)
    tl.store(buffer + tl.load(split + tl.program_id(0)).to(tl.int64) * width + across, total, inside)
