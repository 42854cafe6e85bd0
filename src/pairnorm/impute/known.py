"""What fills share: the mask of what is known, the values it leaves, and the walk that keeps them."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from pairnorm.base.errors import PairNormError
from pairnorm.nn import SparseMatrix
from pairnorm.nn.ops.moments import no_tensor

_BLOCK = 2**19  # numbers: two megabytes in single precision


class Fill(Protocol):
    """What every fill is: a function of a propagation matrix, features and what is known of them.

    Known entries come back as they are; where nothing known arrives, zero stands. Columns do not meet (but in
    the second part of ``pcfi``), so that a large matrix can be filled a block of columns at a time.
    """

    def __call__(self, matrix: SparseMatrix, features: Tensor, known: Tensor, /) -> Tensor:
        """Return features without gaps, [n, d] or [n, trials, d]."""
        ...


def mask_of(features: Tensor, known: Tensor) -> Tensor:
    """Return what is known in a shape that broadcasts to the result: [n, 1 or d] or [n, trials, 1 or d].

    Args:
        features: [n, d], dense or ``torch.sparse_csr``.
        known: bool. Whole vectors: [n], or [n, trials, 1] with a mask for each trial. Single entries: [n, d],
            or [n, trials, d].
    """
    for name, value in (("features", features), ("known", known)):
        if not isinstance(value, Tensor):
            raise no_tensor(name, value)
    if features.dim() != 2 or not features.is_floating_point():
        problem = f"features have shape {list(features.shape)} and type {features.dtype}"
        expected = "floating-point numbers [nodes, features]"
        raise PairNormError(problem, code="wrong-shape", value=tuple(features.shape), expected=expected)
    n, d = features.shape
    mask = known.unsqueeze(1) if known.dim() == 1 else known
    fits = mask.dim() in (2, 3) and mask.size(0) == n and mask.size(-1) in (1, d)
    if not fits or mask.dtype != torch.bool:
        problem = f"known has shape {list(known.shape)} and type {known.dtype}"
        expected = f"bool [{n}], [{n}, {d}], [{n}, trials, 1] or [{n}, trials, {d}]"
        raise PairNormError(problem, code="wrong-shape", value=tuple(known.shape), expected=expected)
    return mask


def observed(features: Tensor, mask: Tensor) -> Tensor:
    r"""Return $\mathbf{M} \circ \mathbf{X}$, dense; what stands at missing places, NaN too, is not read.

    >>> observed(torch.tensor([[1.0, 2.0], [torch.nan, 4.0]]), torch.tensor([[True], [False]]))
    tensor([[1., 2.],
            [0., 0.]])

    Args:
        features: [n, d], dense or ``torch.sparse_csr``.
        mask: as ``mask_of`` returns it.
    """
    values = features.to_dense()
    return torch.where(mask, values if mask.dim() == 2 else values.unsqueeze(1), 0)


def divided(values: Tensor, weight: Tensor) -> Tensor:
    """Return values / weight, a weighted mean; what has no weight is zero already, and stays it."""
    return values / torch.where(weight > torch.finfo(weight.dtype).tiny, weight, 1)


def in_blocks(walk: Callable[..., Tensor], values: Tensor, *others: Tensor) -> Tensor:
    """Take a walk over the graph a block of columns at a time, one that a cache can hold for all its steps.

    Args:
        walk: what to do with a block of ``values``, and of each of the ``others``.
        values: [n, d] or [n, trials, d].
        *others: tensors that broadcast to the values.
    """
    width = max(32, _BLOCK // max(values.shape[:-1].numel(), 1))
    blocks = [torch.split(tensor.expand_as(values), width, -1) for tensor in (values, *others)]
    return torch.cat([walk(*block) for block in zip(*blocks, strict=True)], -1)


def diffuse(matrix: SparseMatrix, values: Tensor, gate: Tensor, steps: int) -> Tensor:
    r"""Walk over the graph and come back to the values after every step.

    $$\mathbf{X} \leftarrow \mathbf{X}_0 + \mathbf{G} \circ \mathbf{P} \mathbf{X}$$

    Args:
        matrix: P.
        values: $\mathbf{X}_0$, zero where nothing is known.
        gate: G, zero where something is known.
        steps: how many steps.
    """

    def walk(values: Tensor, gate: Tensor) -> Tensor:
        filled = values
        for _ in range(steps):
            filled = torch.addcmul(values, gate, matrix @ filled)
        return filled

    return in_blocks(walk, values, gate)


def through_weights(fill: Callable[[Tensor], Tensor], features: Tensor, mask: Tensor) -> Tensor:
    r"""Apply a fill that is linear in the known vectors, by the weights it gives them where they are few.

    $$f(\mathbf{X}) = f(\mathbf{I}_K)\, \mathbf{X}_K$$

    K columns are walked over the graph instead of d.

    Args:
        fill: f, of values as ``observed`` returns them.
        features: [n, d], dense or ``torch.sparse_csr``.
        mask: as ``mask_of`` returns it.
    """
    features = features.to_dense()
    if mask.size(-1) == 1:  # whole vectors
        rows = mask.flatten(1).any(1).nonzero().squeeze(1)
        if 2 * len(rows) < features.size(1):  # else the last product costs what is saved
            unit = features.new_zeros(len(features), len(rows))
            unit[rows, torch.arange(len(rows), device=rows.device)] = 1
            return fill(observed(unit, mask)) @ features[rows]
    return fill(observed(features, mask))
