"""Dropout and linear map in Triton: the mask is made where the numbers are read, and never stored.

Layers are narrow and graphs long, so every product is a matter of reading and writing the states once:
the kernels do just that, also for the gradient of the weights, whose sum over all nodes is shared out
among programs and then added up. A row is read in two halves, because entry j of each shares a hash. The few
scores that attention needs are taken from what is at hand anyway.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pairnorm.nn.ops.double_backward import Saved
from pairnorm.nn.ops.dropout.cuda import keep_factors
from pairnorm.nn.ops.dropout.keys import dropped_levels
from pairnorm.nn.ops.kernels import STATES, on_device, shares

LARGEST = 64 * 64
MOST_ENDS = 16
ROWS = 64
# A program keeps its weight for several tiles of rows.
PROGRAMS = 1600
# Gradients hold more at once, so that small programs let more of them run beside one another.
ROWS_OF_SUMS = 32
PROGRAMS_OF_SUMS = 2112


def serves(x: Tensor, weight: Tensor, ends: Tensor | None = None) -> bool:
    """Say whether a trial's weight fits a program; wide ones are better off with the matrix library."""
    half, out = _padded(weight.size(1), weight.size(2))
    narrow = 2 * half * out <= LARGEST and (ends is None or ends.size(2) <= MOST_ENDS)
    return narrow and x.dtype in STATES and weight.dtype == torch.float32


@on_device
def forward(
    x: Tensor, weight: Tensor, ends: Tensor | None, rate: float, keys: Tensor | None, trains: bool
) -> tuple[tuple[Tensor, Tensor | None], tuple[Tensor, ...]]:
    """Return ``[nodes, trials, out]``, the scores, and what the backward pass needs."""
    dropped = 0 if keys is None or rate == 0 else dropped_levels(rate)
    x, weight = x.contiguous(), weight.contiguous()
    nodes, (trials, width, out) = x.size(0), weight.shape
    count = 0 if ends is None else ends.size(2)
    ends = weight if ends is None else ends.contiguous()
    result = x.new_empty(nodes, trials, out)
    scores = weight.new_empty(nodes, trials, count) if count else None
    programs, share = shares(nodes, trials, ROWS, PROGRAMS)
    _forward[(programs, trials)](
        x, weight, ends, x if keys is None else keys, result, result if scores is None else scores, share,
        nodes, trials, width, out, dropped, dropped > 0, count, _precision(x), ROWS, *_padded(width, out),
        num_warps=4, num_stages=1,
    )  # fmt: skip
    return (result, scores), (x, weight, ends, *([result] if count else []))


def backward(
    kept: Saved, inputs: Saved, settings: Saved, grads: Saved, needed: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """Return the gradients of x, of the weight and of the ends."""
    x, weight, ends, *rest = kept
    rate, keys = settings
    grad, grad_scores = grads
    return _gradients(x, weight, ends, rest[0] if rest else None, rate, keys, grad, grad_scores, needed)


@on_device
def _gradients(
    x: Tensor, weight: Tensor, ends: Tensor, result: Tensor | None, rate: float, keys: Tensor | None,
    grad: Tensor | None, grad_scores: Tensor | None, needed: tuple[bool, ...],
) -> tuple[Tensor | None, Tensor, Tensor | None]:  # fmt: skip
    nodes, (trials, width, out) = x.size(0), weight.shape
    dropped = 0 if keys is None or rate == 0 else dropped_levels(rate)
    keys = x if keys is None else keys
    count = 0 if grad_scores is None else grad_scores.size(2)
    grad = x.new_zeros(nodes, trials, out) if grad is None else grad.contiguous()
    grad_scores = grad if grad_scores is None else grad_scores.contiguous()
    grad_x = torch.empty_like(x) if needed[0] else None
    programs, share = shares(nodes, trials, ROWS_OF_SUMS, PROGRAMS_OF_SUMS)
    sums = weight.new_empty(programs, trials, width, out)
    _backward[(programs, trials)](
        x, grad, grad_scores, weight, ends, keys, x if grad_x is None else grad_x, sums, share, nodes,
        trials, width, out, dropped, needed[0], dropped > 0, count, _precision(x), ROWS_OF_SUMS,
        *_padded(width, out), num_warps=2, num_stages=1,
    )  # fmt: skip
    grad_weight, grad_ends = sums.sum(0), None
    if needed[2] and count:
        sums = weight.new_empty(programs, trials, out, count)
        _backward_ends[(programs, trials, count)](
            result, grad_scores, sums, share, nodes, trials, out, count, ROWS_OF_SUMS,
            _padded(width, out)[1], num_warps=4,
        )  # fmt: skip
        grad_ends = sums.sum(0)
    return grad_x, grad_weight, grad_ends


def _precision(x: Tensor) -> str:
    """As exact as float32; states that come in fewer digits do with the matrix units' own."""
    return "tf32x3" if x.dtype == torch.float32 else "tf32"


def _padded(width: int, out: int) -> tuple[int, int]:
    """Sizes that tensor cores take, of half a row that comes in and of a row that goes out."""
    return max(16, triton.next_power_of_2((width + 1) // 2)), max(16, triton.next_power_of_2(out))


@triton.jit
def _halves(width, HALF: tl.constexpr):  # type: ignore[no-untyped-def]
    """The entries of half a row, the length of the first half, and which entries both halves have."""
    entry = tl.arange(0, HALF)
    words = (width + 1) // 2
    return entry, words, entry < words, entry < width - words


@triton.jit
def _place(x, row, column, trials, width):  # type: ignore[no-untyped-def]
    return x + (row.to(tl.int64) * trials + tl.program_id(1))[:, None] * width + column[None, :]


@triton.jit
def _load_masked(x, keys, row, nodes, trials, width, dropped, DROPOUT: tl.constexpr, HALF: tl.constexpr):  # type: ignore[no-untyped-def]
    """Both halves of a tile of rows, after dropout, and the factors by which it multiplied them."""
    entry, words, here, there = _halves(width, HALF)
    place, known = _place(x, row, entry, trials, width), (row < nodes)[:, None]
    low = tl.load(place, known & here[None, :], other=0.0).to(tl.float32)
    high = tl.load(place + words, known & there[None, :], other=0.0).to(tl.float32)
    keep_low, keep_high = 1.0, 1.0
    if DROPOUT:
        key = tl.load(keys + tl.program_id(1))
        keep_low, keep_high = keep_factors(row[:, None] * words + entry[None, :], key, dropped)
    return low * keep_low, high * keep_high, keep_low, keep_high


@triton.jit
def _load_end(ends, number, outof, out, COUNT: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.load(ends + (tl.program_id(1) * out + outof) * COUNT + number, outof < out, other=0.0)


@triton.jit
def _load_score(scores, number, row, nodes, trials, COUNT: tl.constexpr):  # type: ignore[no-untyped-def]
    offset = (row.to(tl.int64) * trials + tl.program_id(1)) * COUNT + number
    return tl.load(scores + offset, row < nodes, other=0.0)


@triton.jit
def _load_gradient(grad, grad_scores, ends, row, outof, nodes, trials, out, COUNT: tl.constexpr):  # type: ignore[no-untyped-def]
    """The gradient of the product: what comes directly, and what comes by way of the scores."""
    known = (row < nodes)[:, None] & (outof < out)[None, :]
    gradient = tl.load(_place(grad, row, outof, trials, out), known, other=0.0).to(tl.float32)
    for number in tl.static_range(COUNT):
        score = _load_score(grad_scores, number, row, nodes, trials, COUNT)
        gradient += score[:, None] * _load_end(ends, number, outof, out, COUNT)[None, :]
    return gradient


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    x, weight, ends, keys, result, scores, share, nodes, trials, width, out, dropped,
    DROPOUT: tl.constexpr, COUNT: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr,
    HALF: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * share
    last = tl.minimum(first + share, nodes)
    outof = tl.arange(0, OUT)
    entry, words, here, there = _halves(width, HALF)
    place, known = weight + (tl.program_id(1) * width + entry[:, None]) * out + outof[None, :], outof < out
    low_weight = tl.load(place, here[:, None] & known[None, :], other=0.0)
    high_weight = tl.load(place + words * out, there[:, None] & known[None, :], other=0.0)
    for start in range(first, last, ROWS):
        row = start + tl.arange(0, ROWS)
        low, high, _, _ = _load_masked(x, keys, row, last, trials, width, dropped, DROPOUT, HALF)
        product = tl.dot(low, low_weight, input_precision=PRECISION)
        product = tl.dot(high, high_weight, product, input_precision=PRECISION)
        tl.store(_place(result, row, outof, trials, out), product, (row < last)[:, None] & known[None, :])
        for number in tl.static_range(COUNT):
            score = tl.sum(product * _load_end(ends, number, outof, out, COUNT)[None, :], 1)
            offset = (row.to(tl.int64) * trials + tl.program_id(1)) * COUNT + number
            tl.store(scores + offset, score, row < last)


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    x, grad, grad_scores, weight, ends, keys, result, sums, share, nodes, trials, width, out, dropped,
    WANTS_X: tl.constexpr, DROPOUT: tl.constexpr, COUNT: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, HALF: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    """The gradient of a program's rows, and its share of xᵀ grad, summed up as its transpose: both halves of
    a row take the same factor there.
    """
    first = tl.program_id(0) * share
    last = tl.minimum(first + share, nodes)
    outof = tl.arange(0, OUT)
    entry, words, here, there = _halves(width, HALF)
    known = outof < out
    place = weight + (tl.program_id(1) * width + entry[None, :]) * out + outof[:, None]
    low_weight = tl.load(place, here[None, :] & known[:, None], other=0.0)
    high_weight = tl.load(place + words * out, there[None, :] & known[:, None], other=0.0)
    low_sum = tl.zeros([OUT, HALF], tl.float32)
    high_sum = tl.zeros([OUT, HALF], tl.float32)
    for start in range(first, last, ROWS):
        row = start + tl.arange(0, ROWS)
        gradient = _load_gradient(grad, grad_scores, ends, row, outof, last, trials, out, COUNT)
        low, high, keep_low, keep_high = _load_masked(
            x, keys, row, last, trials, width, dropped, DROPOUT, HALF
        )
        if WANTS_X:
            inside = (row < last)[:, None]
            target = _place(result, row, entry, trials, width)
            to_low = tl.dot(gradient, low_weight, input_precision=PRECISION) * keep_low
            tl.store(target, to_low, inside & here[None, :])
            to_high = tl.dot(gradient, high_weight, input_precision=PRECISION) * keep_high
            tl.store(target + words, to_high, inside & there[None, :])
        turned = tl.trans(gradient)
        low_sum = tl.dot(turned, low, low_sum, input_precision=PRECISION)
        high_sum = tl.dot(turned, high, high_sum, input_precision=PRECISION)
    place = (tl.program_id(0) * trials + tl.program_id(1)).to(tl.int64) * width * out
    target = sums + place + entry[None, :] * out + outof[:, None]
    tl.store(target, low_sum, known[:, None] & here[None, :])
    tl.store(target + words * out, high_sum, known[:, None] & there[None, :])


@triton.jit
def _backward_ends(  # type: ignore[no-untyped-def]
    result, grad_scores, sums, share, nodes, trials, out, COUNT: tl.constexpr, ROWS: tl.constexpr,
    OUT: tl.constexpr,
):  # fmt: skip
    """A program's share of resultᵀ grad_scores, for one of the scores."""
    first = tl.program_id(0) * share
    last = tl.minimum(first + share, nodes)
    outof, number = tl.arange(0, OUT), tl.program_id(2)
    total = tl.zeros([ROWS, OUT], tl.float32)
    for start in range(first, last, ROWS):
        row = start + tl.arange(0, ROWS)
        known = (row < last)[:, None] & (outof < out)[None, :]
        value = tl.load(_place(result, row, outof, trials, out), known, other=0.0).to(tl.float32)
        total += value * _load_score(grad_scores, number, row, last, trials, COUNT)[:, None]
    place = (tl.program_id(0) * trials + tl.program_id(1)).to(tl.int64) * out
    tl.store(sums + (place + outof) * COUNT + number, tl.sum(total, 0), outof < out)
