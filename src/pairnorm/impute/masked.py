"""Operations on features with missing entries that the imputations share."""

from collections.abc import Callable

import torch
from torch import Tensor

from pairnorm.base.errors import PairNormError
from pairnorm.nn.ops.moments import no_tensor

_BLOCK_ELEMENTS = 2**19  # two megabytes in single precision, which a cache holds


def broadcast_mask(x: Tensor, missing_mask: Tensor) -> Tensor:
    """Validate a mask and return it as [n, 1 or d] or [n, num_masks, 1 or d].

    Args:
        x: features [n, d], dense or ``torch.sparse_csr``.
        missing_mask: bool, True where a value is missing. Whole vectors: [n], or [n, num_masks, 1] for
            several masks at once. Single entries: [n, d] or [n, num_masks, d].
    """
    for name, value in (("x", x), ("missing_mask", missing_mask)):
        if not isinstance(value, Tensor):
            raise no_tensor(name, value)
    if x.dim() != 2 or not x.is_floating_point():
        problem = f"x has shape {list(x.shape)} and type {x.dtype}"
        expected = "floating-point numbers [nodes, features]"
        raise PairNormError(problem, code="wrong-shape", value=tuple(x.shape), expected=expected)
    n, d = x.shape
    missing = missing_mask.unsqueeze(1) if missing_mask.dim() == 1 else missing_mask
    fits = missing.dim() in (2, 3) and missing.size(0) == n and missing.size(-1) in (1, d)
    if not fits or missing.dtype != torch.bool:
        problem = f"missing_mask has shape {list(missing_mask.shape)} and type {missing_mask.dtype}"
        expected = f"bool [{n}], [{n}, {d}], [{n}, num_masks, 1] or [{n}, num_masks, {d}]"
        raise PairNormError(problem, code="wrong-shape", value=tuple(missing_mask.shape), expected=expected)
    return missing


def known_values(x: Tensor, missing: Tensor) -> Tensor:
    r"""Return dense features that are zero where they are missing; missing entries may be NaN.

    >>> known_values(torch.tensor([[1.0, 2.0], [torch.nan, 4.0]]), torch.tensor([[False], [True]]))
    tensor([[1., 2.],
            [0., 0.]])

    Args:
        x: features [n, d], dense or ``torch.sparse_csr``.
        missing: as ``broadcast_mask`` returns it.
    """
    values = x.to_dense()
    return torch.where(missing, 0, values if missing.dim() == 2 else values.unsqueeze(1))


def divide_or_zero(values: Tensor, weight: Tensor) -> Tensor:
    """Return values / weight; values without weight must be zero, and stay zero."""
    return values / torch.where(weight > torch.finfo(weight.dtype).tiny, weight, 1)


def map_column_blocks(function: Callable[..., Tensor], values: Tensor, *others: Tensor) -> Tensor:
    """Apply a function to blocks of columns that fit a cache, and concatenate the results.

    Args:
        function: takes a block of ``values`` and the same block of each of the ``others``.
        values: [n, d] or [n, num_masks, d].
        *others: tensors that broadcast to the values.
    """
    width = max(32, _BLOCK_ELEMENTS // max(values.shape[:-1].numel(), 1))
    blocks = [torch.split(tensor.expand_as(values), width, -1) for tensor in (values, *others)]
    return torch.cat([function(*block) for block in zip(*blocks, strict=True)], -1)


def diffuse(
    propagate: Callable[..., Tensor], values: Tensor, gate: Tensor, *others: Tensor, steps: int
) -> Tensor:
    r"""Propagate values and add the initial values again after every step.

    $$\mathbf{X} \leftarrow \mathbf{X}_0 + \mathbf{G} \circ \mathbf{P} \mathbf{X}$$

    Args:
        propagate: multiplies by P; takes a block of X and the same block of each of the ``others``.
        values: $\mathbf{X}_0$, zero where features are missing.
        gate: G, zero where features are known.
        *others: tensors that broadcast to the values.
        steps: number of propagation steps.
    """

    def diffuse_block(values: Tensor, gate: Tensor, *others: Tensor) -> Tensor:
        state = values
        for _ in range(steps):
            state = torch.addcmul(values, gate, propagate(state, *others))
        return state

    return map_column_blocks(diffuse_block, values, gate, *others)


def apply_linear(imputation: Callable[[Tensor], Tensor], x: Tensor, missing: Tensor) -> Tensor:
    r"""Apply an imputation that is linear in the known vectors.

    Where few whole vectors K are known, it propagates their K weights instead of d features:

    $$f(\mathbf{X}) = f(\mathbf{I}_K)\, \mathbf{X}_K$$

    Args:
        imputation: f, a function of features as ``known_values`` returns them.
        x: features [n, d], dense or ``torch.sparse_csr``.
        missing: as ``broadcast_mask`` returns it.
    """
    x = x.to_dense()
    if missing.size(-1) == 1:
        rows = (~missing).flatten(1).any(1).nonzero().squeeze(1)
        if 2 * len(rows) < x.size(1):  # otherwise the last product costs more than propagation saves
            unit = x.new_zeros(len(x), len(rows))
            unit[rows, torch.arange(len(rows), device=rows.device)] = 1
            return imputation(known_values(unit, missing)) @ x[rows]
    return imputation(known_values(x, missing))
