"""Imputations of missing features, and the registry that ``impute`` selects from.

Every imputation has the signature ``(x, missing_mask, matrix)``: features, a mask that is True where a value
is missing (as in PyG), and the propagation matrix P, ``normalized_adjacency(adjacency)``. It returns known
entries unchanged, and zero where no known value is in reach. ``impute`` lists the shapes of ``x`` and mask.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pairnorm.base.errors import no_tensor, one_of, real_number, whole_number, wrong_shape
from pairnorm.nn import Normalization, SparseMatrix, normalized_adjacency

_BLOCK_ELEMENTS = 2**19  # two megabytes in single precision, which a cache holds


def broadcast_mask(x: Tensor, missing_mask: Tensor) -> Tensor:
    """Validate a mask and return it as [n, 1 or d] or [n, num_masks, 1 or d]."""
    for name, value in (("x", x), ("missing_mask", missing_mask)):
        if not isinstance(value, Tensor):
            raise no_tensor(name, value)
    if x.dim() != 2 or not x.is_floating_point():
        raise wrong_shape("x", x.shape, "floating-point numbers [nodes, features]", x.dtype)
    n, d = x.shape
    missing = missing_mask.unsqueeze(1) if missing_mask.dim() == 1 else missing_mask
    fits = missing.dim() in (2, 3) and missing.size(0) == n and missing.size(-1) in (1, d)
    if not fits or missing.dtype != torch.bool:
        expected = f"bool [{n}], [{n}, {d}], [{n}, num_masks, 1] or [{n}, num_masks, {d}]"
        raise wrong_shape("missing_mask", missing_mask.shape, expected, missing_mask.dtype)
    return missing


def known_values(x: Tensor, missing: Tensor) -> Tensor:
    """Return dense features that are zero where they are missing; missing entries may be NaN."""
    values = x.to_dense()
    return torch.where(missing, 0, values if missing.dim() == 2 else values.unsqueeze(1))


def divide_or_zero(values: Tensor, weight: Tensor) -> Tensor:
    """Return values / weight; values without weight must be zero, and stay zero."""
    return values / torch.where(weight > torch.finfo(weight.dtype).tiny, weight, 1)


def map_column_blocks(function: Callable[..., Tensor], values: Tensor, *others: Tensor) -> Tensor:
    """Apply a function to blocks of columns that fit a cache, and concatenate the results."""
    width = max(32, _BLOCK_ELEMENTS // max(values.shape[:-1].numel(), 1))
    blocks = [torch.split(tensor.expand_as(values), width, -1) for tensor in (values, *others)]
    return torch.cat([function(*block) for block in zip(*blocks, strict=True)], -1)


def diffuse(
    propagate: Callable[..., Tensor], values: Tensor, gate: Tensor, *others: Tensor, steps: int
) -> Tensor:
    """Iterate X ← X0 + gate · propagate(X), a block of columns at a time; X0 is ``values``."""

    def diffuse_block(values: Tensor, gate: Tensor, *others: Tensor) -> Tensor:
        state = values
        for _ in range(steps):
            state = torch.addcmul(values, gate, propagate(state, *others))
        return state

    return map_column_blocks(diffuse_block, values, gate, *others)


def apply_linear(imputation: Callable[[Tensor], Tensor], x: Tensor, missing: Tensor) -> Tensor:
    """Apply a linear imputation f to features, or, for K < d / 2 known vectors, as f(I_K) X_K."""
    x = x.to_dense()
    if missing.size(-1) == 1:
        rows = (~missing).flatten(1).any(1).nonzero().squeeze(1)
        if 2 * len(rows) < x.size(1):  # otherwise the last product costs more than propagation saves
            unit = x.new_zeros(len(x), len(rows))
            unit[rows, torch.arange(len(rows), device=rows.device)] = 1
            return imputation(known_values(unit, missing)) @ x[rows]
    return imputation(known_values(x, missing))


def zero(x: Tensor, missing_mask: Tensor, matrix: SparseMatrix) -> Tensor:
    """Impute zero, as the paper does."""
    return known_values(x, broadcast_mask(x, missing_mask))


def column_mean(x: Tensor, missing_mask: Tensor, matrix: SparseMatrix) -> Tensor:
    r"""Impute the mean of the known values of a column; zero where a column has none.

    $$\hat{x}_{ij} = \textstyle\sum_k m_{kj} x_{kj} \,/\, \sum_k m_{kj}$$
    """
    missing = broadcast_mask(x, missing_mask)
    values = known_values(x, missing)
    return torch.where(missing, divide_or_zero(values.sum(0), (~missing).sum(0).to(values.dtype)), values)


def known_neighbor_mean(x: Tensor, missing_mask: Tensor, matrix: SparseMatrix, *, steps: int = 10) -> Tensor:
    r"""Impute the mean of the known values within ``steps`` propagation steps.

    $$\hat{\mathbf{X}} = \mathbf{P}^k (\mathbf{M} \circ \mathbf{X}) \,/\, \mathbf{P}^k \mathbf{M}$$

    One step is the convolution of PaGNN (Jiang and Zhang, 2020) if the rows of P sum to one.

    Args:
        steps: number k of propagation steps.
    """
    whole_number("steps", steps)
    missing = broadcast_mask(x, missing_mask)
    mass = (~missing).to(x.dtype)
    for _ in range(steps):
        mass = matrix @ mass

    def impute_block(values: Tensor, missing: Tensor, mass: Tensor) -> Tensor:
        propagated = values
        for _ in range(steps):
            propagated = matrix @ propagated
        return torch.where(missing, divide_or_zero(propagated, mass), values)

    return apply_linear(lambda values: map_column_blocks(impute_block, values, missing, mass), x, missing)


def feature_propagation(x: Tensor, missing_mask: Tensor, matrix: SparseMatrix, *, steps: int = 40) -> Tensor:
    r"""Diffuse the known features and reset them after every step (FP; Rossi et al., 2021).

    $$\mathbf{X} \leftarrow \mathbf{M} \circ \mathbf{X}_0 + (1 - \mathbf{M}) \circ \mathbf{P} \mathbf{X}$$

    The limit solves $\mathbf{X} = \mathbf{P} \mathbf{X}$ at the missing entries.

    Args:
        matrix: P; ``normalized_adjacency(adjacency, "sym")`` as in the authors' code. PyG's transform leaves
            out the self-loops. With ``"rw"`` a constant feature stays constant.
        steps: number of propagation steps.
    """
    whole_number("steps", steps)
    missing = broadcast_mask(x, missing_mask)
    gate = missing.to(x.dtype)
    return apply_linear(lambda values: diffuse(matrix.__matmul__, values, gate, steps=steps), x, missing)


def pcfi(
    x: Tensor, missing_mask: Tensor, matrix: SparseMatrix, *, alpha: float = 0.9, beta: float = 1.0,
    steps: int = 100,
) -> Tensor:  # fmt: skip
    r"""Diffuse features weighted by pseudo-confidence, then between channels (PCFI; Um et al., 2023).

    The confidence C is $\alpha^h$ at h hops from the nearest known value:

    $$
    \mathbf{X} \leftarrow \mathbf{M} \circ \mathbf{X}_0 + (1 - \mathbf{M}) \circ
    \mathbf{P} (\mathbf{C} \circ \mathbf{X}) \,/\, \mathbf{P} \mathbf{C} \qquad
    \hat{\mathbf{X}} = \mathbf{X} + \beta (1 - \mathbf{C}) \circ
    (\mathbf{C} \circ (\mathbf{X} - \bar{\mathbf{x}})) \mathbf{R}
    $$

    R is the correlation of the columns over all nodes, with a zero diagonal. The published weight
    $\alpha^{h_j - h_i + 1}$ of node j for node i is divided by its sum over j. The factor that depends on i
    cancels, so all columns share one sparse product.

    The second part needs n d² operations and d² numbers. Where d is large, pass blocks of columns with
    ``beta=0``, which leaves it out.

    Args:
        alpha: confidence that one hop keeps, above 0 and at most 1.
        beta: weight of the other channels.
        steps: number of propagation steps.
    """
    smallest = torch.finfo(x.dtype).tiny ** 0.5
    alpha = max(real_number("alpha", alpha, above=0, most=1), smallest)  # a smaller one gives the same sums
    beta = real_number("beta", beta)
    whole_number("steps", steps)
    missing = broadcast_mask(x, missing_mask)
    hops = _hops_to_known(matrix, missing, x.dtype)
    # Confidence is kept relative to the first hop of its band, a range of hops within which alpha^h does not
    # underflow: 18 hops at alpha 0.1 in single precision, 414 at 0.9. No value comes further than ``steps``.
    width = int(math.log(smallest) / math.log(alpha)) if alpha < 1 else len(x) + 1
    in_reach = (hops >= 0) & (hops <= steps + 1)
    band = torch.where(in_reach, hops // width, 0)
    relative = torch.where(in_reach, alpha ** (hops - band * width).to(x.dtype), 0)
    bands = band.unique().tolist()

    def propagate(state: Tensor, band: Tensor) -> Tensor:
        """Propagate features weighted by confidence, P (C ∘ X), relative to the band of the receiver."""
        if len(bands) < 2:
            return matrix @ state
        total = torch.zeros_like(state)
        # Hops fall by at most one along an edge, so a receiver is at most one band later.
        for sender in bands:
            shift = alpha ** (width * (sender - band.clamp(max=sender + 1))).to(state.dtype)
            total += shift * (matrix @ torch.where(band == sender, state, 0))
        return total

    # The state is C ∘ X instead of X, so that a step is one product and one gate.
    gate = missing * divide_or_zero(relative, propagate(relative, band))

    def diffuse_values(values: Tensor) -> Tensor:
        return divide_or_zero(diffuse(propagate, values, gate, band, steps=steps), relative)

    imputed = apply_linear(diffuse_values, x, missing)
    confidence = torch.where(hops < 0, 0, alpha ** hops.to(x.dtype))
    if not beta:
        return imputed
    masks = [(imputed, confidence)]
    if imputed.dim() == 3:
        masks = list(zip(imputed.unbind(1), confidence.unbind(1), strict=True))
    correction = torch.stack([_correlated_channels(*mask) for mask in masks], 1).view(imputed.shape)
    return imputed + beta * (1 - confidence) * correction


def _hops_to_known(matrix: SparseMatrix, missing: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the hops to the nearest known value by breadth-first search; -1 where there is none."""
    reached, hop = ~missing, 0
    hops = torch.where(missing, -1, 0)
    arrived = reached
    while arrived.any():
        hop += 1
        arrived = (matrix @ reached.to(dtype) > 0) & ~reached
        hops, reached = hops.masked_fill(arrived, hop), reached | arrived
    return hops


def _correlated_channels(imputed: Tensor, confidence: Tensor) -> Tensor:
    """Return (C ∘ (X - mean)) R, the deviation of each column that correlated columns predict."""
    centered = imputed - imputed.mean(0)
    norm = centered.norm(dim=0)
    # A constant column differs from its mean by rounding errors only, whose correlation means nothing.
    varies = norm > 100 * torch.finfo(imputed.dtype).eps * imputed.norm(dim=0)
    unit = centered * torch.where(varies, 1 / norm, 0)
    correlation = (unit.T @ unit).fill_diagonal_(0)
    return (confidence * centered) @ correlation


def missing_indicator(
    x: Tensor, missing_mask: Tensor, matrix: SparseMatrix, *, imputation: Callable[..., Tensor] = zero
) -> Tensor:
    r"""Impute, and append columns that are one where a value is missing (GNNmim; Ferrini et al., 2026).

    $$[\hat{\mathbf{X}}, 1 - \mathbf{M}]$$

    The result is [n, 2 d] for single entries. For whole vectors, whose d indicators are equal, it is
    [n, d + 1].

    Args:
        imputation: imputes the values; ``zero`` as published.
    """
    missing = broadcast_mask(x, missing_mask)
    return torch.cat([imputation(x, missing_mask, matrix), missing.to(x.dtype)], -1)


class Imputation(NamedTuple):
    """An imputation with the normalization of the adjacency it was published with.

    Args:
        function: takes features, mask and propagation matrix.
        normalization: ``"rw"`` or ``"sym"``.
    """

    function: Callable[..., Tensor]
    normalization: Normalization


IMPUTATIONS = {
    "zero": Imputation(zero, "rw"),
    "mean": Imputation(column_mean, "rw"),
    "known_neighbor_mean": Imputation(known_neighbor_mean, "rw"),
    "fp": Imputation(feature_propagation, "sym"),
    "pcfi": Imputation(pcfi, "rw"),
    "mask": Imputation(missing_indicator, "rw"),
}
OLD_NAMES = {"mass": "known_neighbor_mean"}
"""Former names of imputations, which results and models keep in their files."""
STORED_IMPUTATIONS = ("zero", "mean", "mass", "fp", "pcfi", "mask")
"""The imputations by the names that they have in files."""


def impute(
    x: Tensor, missing_mask: Tensor, adjacency: Tensor | SparseMatrix, method: str = "fp", **settings: Any
) -> Tensor:
    """Impute missing features, [n, d] or [n, num_masks, d].

    >>> import torch
    >>> path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    >>> x, missing_mask = torch.tensor([[1.0], [0.0], [3.0]]), torch.tensor([False, True, False])
    >>> impute(x, missing_mask, path, method="known_neighbor_mean").round(decimals=3)
    tensor([[1.],
            [2.],
            [3.]])

    Args:
        x: features [n, d], dense or ``torch.sparse_csr``; missing entries may be NaN.
        missing_mask: bool, True where a value is missing. Whole vectors: [n], or [n, num_masks, 1] for
            several masks at once. Single entries: [n, d] or [n, num_masks, d].
        adjacency: as ``normalized_adjacency`` takes it.
        method: one of ``IMPUTATIONS``; ``"mass"`` is an old name of ``"known_neighbor_mean"``.
        **settings: keyword arguments of the imputation, such as ``steps``.
    """
    name = one_of("method", OLD_NAMES.get(method, method), tuple(IMPUTATIONS))
    function, normalization = IMPUTATIONS[name]
    matrix = normalized_adjacency(adjacency, normalization, num_nodes=len(x))
    return function(x, missing_mask, matrix, **settings)
