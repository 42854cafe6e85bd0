"""PairNorm for tensors larger than a CPU's cache: the plain formula, in blocks that stay inside the cache.

``forward`` reads the input twice and writes once; ``backward`` reads gradient and output twice, writes once.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

BLOCK_ELEMENTS = 2**20


def supports(x: Tensor) -> bool:
    """Say whether blocks pay off: single precision on a CPU, and larger than one block."""
    return x.device.type == "cpu" and x.dtype == torch.float32 and x.numel() > BLOCK_ELEMENTS


def forward(x: Tensor, scale: float, eps: float, individually: bool) -> tuple[Tensor, Tensor]:
    """Return s·c/r and r; see ``pairnorm.nn.pair_norm._formula``."""
    mean, square = _statistics(x, squares=not individually)
    # float64 keeps what float32 would round off a large common offset; high + low is subtracted in two steps.
    high = mean.float()
    low = (mean - high).float()
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if individually:
        length = x.new_empty(*x.shape[:-1], 1)
        for block, buffer in _blocks(x):
            centred = torch.sub(x[block], high, out=buffer).sub_(low)
            torch.linalg.vector_norm(centred, dim=-1, keepdim=True, out=length[block])
            length[block].square_().add_(eps).sqrt_()
            torch.mul(centred, scale / length[block], out=y[block])
        return y, length
    length = (square / x.size(0) + eps).sqrt().float()
    factor = scale / length
    low = -low * factor
    for block, buffer in _blocks(x):
        torch.addcmul(low, torch.sub(x[block], high, out=buffer), factor, out=y[block])
    return y, length


def backward(grad: Tensor, y: Tensor, length: Tensor, scale: float, individually: bool) -> Tensor:
    """Return dL/dx; see ``pairnorm.nn.pair_norm.formula_gradient``."""
    result = torch.empty_like(y)
    column_sum = torch.zeros_like(y[:1], dtype=torch.float64)
    if individually:
        for block, buffer in _blocks(y):
            pull = torch.mul(grad[block], y[block], out=buffer).sum(-1, keepdim=True)
            pull.div_(length[block]).div_(-scale)
            torch.addcmul(
                torch.mul(grad[block], scale / length[block], out=buffer), y[block], pull, out=result[block]
            )
            column_sum += result[block].sum(0, keepdim=True)
        return result.sub_((column_sum / y.size(0)).float())
    product = torch.zeros_like(length, dtype=torch.float64)
    for block, buffer in _blocks(y):
        product += torch.mul(grad[block], y[block], out=buffer).sum((0, -1), keepdim=True)
        column_sum += grad[block].sum(0, keepdim=True)
    factor = scale / length
    offset = (column_sum / -y.size(0)).float() * factor
    pull = (product / (-scale * y.size(0) * length)).float()
    for block, buffer in _blocks(y):
        torch.addcmul(
            torch.addcmul(offset, grad[block], factor, out=buffer), y[block], pull, out=result[block]
        )
    return result


def _statistics(x: Tensor, squares: bool) -> tuple[Tensor, Tensor]:
    """Return the column mean ``[1, ..., features]`` and the summed squares about it ``[1, ..., 1]``.

    In float64 and in one pass: each block is summed about its own mean, and the blocks are merged by Chan's
    formula, so that no large numbers cancel.
    """
    counts, means, inner = [], [], []
    for block, buffer in _blocks(x):
        rows = x[block]
        shift = rows.mean(0, keepdim=True)
        centred = torch.sub(rows, shift, out=buffer)
        rest = centred.mean(0, keepdim=True).double()
        counts.append(rows.size(0))
        means.append(shift.double() + rest)
        if squares:
            # Row by row, then in float64: in one float32 sum a few long rows would swallow the others.
            lengths = torch.linalg.vector_norm(centred, dim=-1, keepdim=True).double()
            square = lengths.square_().sum(0, keepdim=True)
            inner.append(square - rows.size(0) * rest.square().sum(-1, keepdim=True))
    count = torch.tensor(counts, dtype=torch.float64).view(-1, *[1] * (x.dim() - 1))
    stacked = torch.cat(means)
    mean = (stacked * count).sum(0, keepdim=True) / x.size(0)
    if not squares:
        return mean, torch.empty(0)
    between = ((stacked - mean).square() * count).sum((0, -1), keepdim=True)
    return mean, torch.cat(inner).sum(0, keepdim=True) + between


def _blocks(x: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of rows, each with a scratch buffer of its shape."""
    rows = max(1, BLOCK_ELEMENTS // x[0].numel())
    buffer = x.new_empty(min(rows, x.size(0)), *x.shape[1:])
    for start in range(0, x.size(0), rows):
        stop = min(start + rows, x.size(0))
        yield slice(start, stop), buffer[: stop - start]
