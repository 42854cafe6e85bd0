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

from pairnorm.nn.ops._triton.dropout import factor_of, keeps
from pairnorm.nn.ops.dropout import dropped_levels
from pairnorm.nn.ops.kernels import Saved, on_device, partition_nodes

DTYPES = (torch.float32, torch.bfloat16)
MAX_WEIGHT_ELEMENTS = 64 * 64
MAX_SCORES = 16
ROWS = 64
# A program keeps its weight for several tiles of rows.
PROGRAMS = 1600
# Gradients need more registers, so that smaller programs let more of them run at once.
ROWS_OF_SUMS = 32
PROGRAMS_OF_SUMS = 1056


def fits(weight: Tensor | None, att_vectors: Tensor | None = None) -> bool:
    """Return whether a model's weight, if any, fits a program; the matrix library is faster for wide ones."""
    if weight is None:
        return True
    half, out = _padded(weight.size(1), weight.size(2))
    is_narrow = 2 * half * out <= MAX_WEIGHT_ELEMENTS and weight.dtype == torch.float32
    return is_narrow and (att_vectors is None or att_vectors.size(2) <= MAX_SCORES)


@on_device
def forward(
    x: Tensor, weight: Tensor, att_vectors: Tensor | None, rate: float, keys: Tensor | None,
    needs_backward: bool,
) -> tuple[tuple[Tensor, Tensor | None], tuple[Tensor, ...]]:  # fmt: skip
    """Return ``[nodes, models, out]``, the scores, and what the backward pass needs."""
    dropped = 0 if keys is None or rate == 0 else dropped_levels(rate)
    x, weight = x.contiguous(), weight.contiguous()
    nodes, (models, width, out) = x.size(0), weight.shape
    count = 0 if att_vectors is None else att_vectors.size(2)
    att_vectors = weight if att_vectors is None else att_vectors.contiguous()
    result = x.new_empty(nodes, models, out)
    scores = weight.new_empty(nodes, models, count) if count else None
    programs, share = partition_nodes(nodes, models, ROWS, PROGRAMS)
    _forward[(models, programs)](
        x, weight, att_vectors, x if keys is None else keys, result, result if scores is None else scores,
        share, nodes, models, dropped, dropped > 0, count, _precision(x), ROWS, width, out,
        *_padded(width, out), num_warps=4,
    )  # fmt: skip
    return (result, scores), (x, weight, att_vectors, *([result] if count else []))


@on_device
def backward(
    saved: Saved, inputs: Saved, settings: Saved, grads: Saved, needs_grad: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of x, of the weight and of the attention vectors."""
    (x, weight, att_vectors, *results), (rate, keys), (grad, grad_scores) = saved, settings, grads
    nodes, (models, width, out) = x.size(0), weight.shape
    dropped = 0 if keys is None or rate == 0 else dropped_levels(rate)
    keys = x if keys is None else keys
    count = 0 if grad_scores is None else grad_scores.size(2)
    grad = x.new_zeros(nodes, models, out) if grad is None else grad.contiguous()
    grad_scores = grad if grad_scores is None else grad_scores.contiguous()
    grad_x = torch.empty_like(x) if needs_grad[0] else None
    programs, share = partition_nodes(nodes, models, ROWS_OF_SUMS, PROGRAMS_OF_SUMS)
    sums = weight.new_empty(programs, models, width, out)
    _backward[(models, programs)](
        x, grad, grad_scores, weight, att_vectors, keys, x if grad_x is None else grad_x, sums, share, nodes,
        models, dropped, needs_grad[0], dropped > 0, count, _precision(x), ROWS_OF_SUMS, width, out,
        *_padded(width, out), num_warps=2, num_stages=1,
    )  # fmt: skip
    grad_weight, grad_vectors = sums.sum(0), None
    if needs_grad[2] and count:
        sums = weight.new_empty(programs, models, out, count)
        _backward_att_vectors[(models, programs)](
            *results, grad_scores, sums, share, nodes, models, count, _precision(x), ROWS_OF_SUMS, out,
            _padded(width, out)[1], MAX_SCORES, num_warps=4, num_stages=1,
        )  # fmt: skip
        grad_vectors = sums.sum(0)
    return grad_x, grad_weight, grad_vectors


def _precision(x: Tensor) -> str:
    """Return the precision of Triton's products: nearly float32 for float32, TF32 for half precision."""
    return "tf32x3" if x.dtype == torch.float32 else "tf32"


def _padded(width: int, out: int) -> tuple[int, int]:
    """Pad half the input width and the output width to sizes that tensor cores support."""
    return max(16, triton.next_power_of_2((width + 1) // 2)), max(16, triton.next_power_of_2(out))


@triton.jit
def _inside(known, entry, HAVE: tl.constexpr, PADDED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return which entries of the rows exist. Widths are constants, so that loads are vectorized."""
    if HAVE != PADDED:
        known = known & (entry < HAVE)[None, :]
    return known


@triton.jit
def _load_weight(weight, entry, channel, WIDTH: tl.constexpr, OUT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load both halves of a model's weight, at ``entry`` along one axis and ``channel`` along the other."""
    WORDS: tl.constexpr = (WIDTH + 1) // 2
    place = weight + (tl.program_id(0) * WIDTH + entry) * OUT + channel
    low = tl.load(place, (entry < WORDS) & (channel < OUT), other=0.0)
    return low, tl.load(place + WORDS * OUT, (entry < WIDTH - WORDS) & (channel < OUT), other=0.0)


@triton.jit
def _row(start, models):  # type: ignore[no-untyped-def]
    """Return where a tile of rows begins, counted in rows of one model."""
    return (start + tl.zeros([], tl.int64)) * models + tl.program_id(0)


@triton.jit
def _places(line, entry, models, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the positions of the entries of a tile of rows, relative to its start."""
    return (line * (models * WIDTH))[:, None] + entry[None, :]


@triton.jit
def _load_halves(place, known, WIDTH: tl.constexpr, HALF: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load both halves of a tile of rows."""
    WORDS: tl.constexpr = (WIDTH + 1) // 2
    entry = tl.arange(0, HALF)
    low = tl.load(place, _inside(known, entry, WORDS, HALF), other=0.0)
    high = tl.load(place + WORDS, _inside(known, entry, WIDTH - WORDS, HALF), other=0.0)
    return low.to(tl.float32), high.to(tl.float32)


@triton.jit
def _load_att_vector(att_vectors, number, channel, COUNT: tl.constexpr, OUT: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.load(
        att_vectors + (tl.program_id(0) * OUT + channel) * COUNT + number, channel < OUT, other=0.0
    )


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    x, weight, att_vectors, keys, result, scores, share, nodes, models, dropped,
    DROPOUT: tl.constexpr, COUNT: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr,
    WIDTH: tl.constexpr, OUT: tl.constexpr, HALF: tl.constexpr, OUT_PADDED: tl.constexpr,
):  # fmt: skip
    WORDS: tl.constexpr = (WIDTH + 1) // 2
    first = tl.program_id(1) * share
    last = tl.minimum(first + share, nodes)
    line, entry, channel = tl.arange(0, ROWS), tl.arange(0, HALF), tl.arange(0, OUT_PADDED)
    low_weight, high_weight = _load_weight(weight, entry[:, None], channel[None, :], WIDTH, OUT)
    if DROPOUT:  # the scale of dropout is applied here, once
        key, factor = tl.load(keys + tl.program_id(0)), factor_of(dropped)
        low_weight, high_weight = low_weight * factor, high_weight * factor
    across, out_across = _places(line, entry, models, WIDTH), _places(line, channel, models, OUT)
    for start in tl.range(first, last, ROWS, num_stages=3):  # the next tiles are loaded meanwhile
        row, known = _row(start, models), (start + line < last)[:, None]
        low, high = _load_halves(x + row * WIDTH + across, known, WIDTH, HALF)
        if DROPOUT:
            keep_low, keep_high = keeps((start + line)[:, None] * WORDS + entry[None, :], key, dropped)
            low, high = tl.where(keep_low, low, 0.0), tl.where(keep_high, high, 0.0)
        product = tl.dot(low, low_weight, input_precision=PRECISION)
        product = tl.dot(high, high_weight, product, input_precision=PRECISION)
        tl.store(result + row * OUT + out_across, product, _inside(known, channel, OUT, OUT_PADDED))
        for number in tl.static_range(COUNT):
            score = tl.sum(product * _load_att_vector(att_vectors, number, channel, COUNT, OUT)[None, :], 1)
            tl.store(scores + (row + line * models) * COUNT + number, score, start + line < last)


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    x, grad, grad_scores, weight, att_vectors, keys, result, sums, share, nodes, models, dropped,
    NEEDS_X: tl.constexpr, DROPOUT: tl.constexpr, COUNT: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, OUT: tl.constexpr, HALF: tl.constexpr, OUT_PADDED: tl.constexpr,
):  # fmt: skip
    """The gradient of a program's rows, and its share of xᵀ grad, summed up as its transpose: both halves of
    a row take the same factor there.
    """
    WORDS: tl.constexpr = (WIDTH + 1) // 2
    first = tl.program_id(1) * share
    last = tl.minimum(first + share, nodes)
    line, entry, channel = tl.arange(0, ROWS), tl.arange(0, HALF), tl.arange(0, OUT_PADDED)
    low_weight, high_weight = _load_weight(weight, entry[None, :], channel[:, None], WIDTH, OUT)
    factor = 1.0
    if DROPOUT:
        key, factor = tl.load(keys + tl.program_id(0)), factor_of(dropped)
        low_weight, high_weight = low_weight * factor, high_weight * factor
    across, out_across = _places(line, entry, models, WIDTH), _places(line, channel, models, OUT)
    low_sum = tl.zeros([OUT_PADDED, HALF], tl.float32)
    high_sum = tl.zeros([OUT_PADDED, HALF], tl.float32)
    for start in range(first, last, ROWS):
        row, known = _row(start, models), (start + line < last)[:, None]
        inside = _inside(known, channel, OUT, OUT_PADDED)
        gradient = tl.load(grad + row * OUT + out_across, inside, other=0.0).to(tl.float32)
        for number in tl.static_range(COUNT):  # what comes by way of the scores
            place = grad_scores + (row + line * models) * COUNT + number
            score = tl.load(place, start + line < last, other=0.0)
            gradient += score[:, None] * _load_att_vector(att_vectors, number, channel, COUNT, OUT)[None, :]
        low, high = _load_halves(x + row * WIDTH + across, known, WIDTH, HALF)
        to_low = tl.dot(gradient, low_weight, input_precision=PRECISION)
        to_high = tl.dot(gradient, high_weight, input_precision=PRECISION)
        if DROPOUT:
            keep_low, keep_high = keeps((start + line)[:, None] * WORDS + entry[None, :], key, dropped)
            low, high = tl.where(keep_low, low, 0.0), tl.where(keep_high, high, 0.0)
            to_low, to_high = tl.where(keep_low, to_low, 0.0), tl.where(keep_high, to_high, 0.0)
        if NEEDS_X:
            target = result + row * WIDTH + across
            tl.store(target, to_low, _inside(known, entry, WORDS, HALF))
            tl.store(target + WORDS, to_high, _inside(known, entry, WIDTH - WORDS, HALF))
        transposed = tl.trans(gradient)
        low_sum = tl.dot(transposed, low, low_sum, input_precision=PRECISION)
        high_sum = tl.dot(transposed, high, high_sum, input_precision=PRECISION)
    place = (tl.program_id(1) * models + tl.program_id(0)).to(tl.int64) * WIDTH * OUT
    target = sums + place + entry[None, :] * OUT + channel[:, None]
    known = (channel < OUT)[:, None]
    tl.store(target, low_sum * factor, _inside(known, entry, WORDS, HALF))
    tl.store(target + WORDS * OUT, high_sum * factor, _inside(known, entry, WIDTH - WORDS, HALF))


@triton.jit
def _backward_att_vectors(  # type: ignore[no-untyped-def]
    result, grad_scores, sums, share, nodes, models, COUNT: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, OUT: tl.constexpr, OUT_PADDED: tl.constexpr, COUNT_PADDED: tl.constexpr,
):  # fmt: skip
    """A program's share of resultᵀ grad_scores."""
    first = tl.program_id(1) * share
    last = tl.minimum(first + share, nodes)
    line, channel, number = tl.arange(0, ROWS), tl.arange(0, OUT_PADDED), tl.arange(0, COUNT_PADDED)
    across, score_across = _places(line, channel, models, OUT), _places(line, number, models, COUNT)
    total = tl.zeros([OUT_PADDED, COUNT_PADDED], tl.float32)
    for start in range(first, last, ROWS):
        row, known = _row(start, models), (start + line < last)[:, None]
        value = tl.load(result + row * OUT + across, _inside(known, channel, OUT, OUT_PADDED), other=0.0)
        inside = _inside(known, number, COUNT, COUNT_PADDED)
        score = tl.load(grad_scores + row * COUNT + score_across, inside, other=0.0)
        total = tl.dot(tl.trans(value.to(tl.float32)), score, total, input_precision=PRECISION)
    place = (tl.program_id(1) * models + tl.program_id(0)).to(tl.int64) * OUT
    inside = _inside((channel < OUT)[:, None], number, COUNT, COUNT_PADDED)
    tl.store(sums + (place + channel[:, None]) * COUNT + number[None, :], total, inside)
