"""PairNorm for tensors larger than a CPU's cache, without numba: the plain formula, in blocks that fit it.

``forward`` reads the input twice and writes once; ``backward`` reads gradient and output twice, writes once.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from pairnorm.nn.ops.moments import Moments

BLOCK_ELEMENTS = 2**20


def serves(x: Tensor) -> bool:
    """Say whether blocks pay off: single precision on a CPU, and larger than one block."""
    return x.device.type == "cpu" and x.dtype == torch.float32 and x.numel() > BLOCK_ELEMENTS


def forward(x: Tensor, scale: float, eps: float, individually: bool) -> tuple[Tensor, Tensor]:
    """Return s·c/r and r; see ``_formula`` in ``plain``."""
    moments = _moments(x)
    if x.dtype == torch.float32 and not bool(moments.squares.isfinite().all()):
        # Squares beyond the range of single precision, or what is no number from the start.
        y, norm = forward(x.double(), scale, eps, individually)
        return y.float(), norm.float()
    # float64 keeps what float32 would round off a large common offset; high + low is subtracted in two steps.
    high = moments.mean.to(x.dtype)
    low = (moments.mean - high).to(x.dtype)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if individually:
        norm = x.new_empty(*x.shape[:-1], 1)
        for block, buffer in _blocks(x):
            centerd = torch.sub(x[block], high, out=buffer).sub_(low)
            torch.linalg.vector_norm(centerd, dim=-1, keepdim=True, out=norm[block])
            norm[block].square_().add_(eps).sqrt_()
            torch.mul(centerd, scale / norm[block], out=y[block])
        return y, norm
    norm = (moments.mean_square + eps).sqrt().to(x.dtype)
    factor = scale / norm
    low = -low * factor
    for block, buffer in _blocks(x):
        torch.addcmul(low, torch.sub(x[block], high, out=buffer), factor, out=y[block])
    return y, norm


def backward(grad: Tensor, y: Tensor, norm: Tensor, scale: float, individually: bool) -> Tensor:
    """Return dL/dx; see ``formula_gradient`` in ``plain``."""
    result = torch.empty_like(y)
    column_sum = torch.zeros_like(y[:1], dtype=torch.float64)
    if individually:
        for block, buffer in _blocks(y):
            pull = torch.mul(grad[block], y[block], out=buffer).sum(-1, keepdim=True)
            pull.div_(norm[block]).div_(-scale)
            torch.addcmul(
                torch.mul(grad[block], scale / norm[block], out=buffer), y[block], pull, out=result[block]
            )
            column_sum += result[block].sum(0, keepdim=True)
        return result.sub_((column_sum / y.size(0)).float())
    product = torch.zeros_like(norm, dtype=torch.float64)
    for block, buffer in _blocks(y):
        product += torch.mul(grad[block], y[block], out=buffer).sum((0, -1), keepdim=True)
        column_sum += grad[block].sum(0, keepdim=True)
    factor = scale / norm
    offset = (column_sum / -y.size(0)).float() * factor
    pull = (product / (-scale * y.size(0) * norm)).float()
    for block, buffer in _blocks(y):
        torch.addcmul(
            torch.addcmul(offset, grad[block], factor, out=buffer), y[block], pull, out=result[block]
        )
    return result


def _moments(x: Tensor) -> Moments:
    """Return the moments of all rows, in float64 and in one pass: each block is summed about its own mean."""
    counts, means, squares = [], [], []
    for block, buffer in _blocks(x):
        rows = x[block]
        shift = rows.mean(0, keepdim=True)
        centerd = torch.sub(rows, shift, out=buffer)
        rest = centerd.mean(0, keepdim=True).double()
        counts.append(rows.size(0))
        means.append(shift.double() + rest)
        # Row by row, then in float64: in one float32 sum a few long rows would swallow the others.
        norms = torch.linalg.vector_norm(centerd, dim=-1, keepdim=True).double()
        square = norms.square_().sum(0, keepdim=True)
        squares.append(square - rows.size(0) * rest.square().sum(-1, keepdim=True))
    count = torch.tensor(counts, dtype=torch.float64).view(-1, *[1] * (x.dim() - 1))
    return Moments(count, torch.cat(means), torch.cat(squares)).merge()


def _blocks(x: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of rows, each with a scratch buffer of its shape."""
    rows = max(1, BLOCK_ELEMENTS // x[0].numel())
    buffer = x.new_empty(min(rows, x.size(0)), *x.shape[1:])
    for start in range(0, x.size(0), rows):
        stop = min(start + rows, x.size(0))
        yield slice(start, stop), buffer[: stop - start]
