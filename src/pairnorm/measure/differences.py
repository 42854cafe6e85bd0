"""The paper's measures of oversmoothing: row-diff (Eq. 2), col-diff (Eq. 3) and TPSD (Eq. 8)."""

import math
from typing import NamedTuple, overload

import torch
from torch import Tensor

from pairnorm.errors import PairNormError
from pairnorm.measure.pairs import random_pairs, squared_distances
from pairnorm.measure.states import block_length, centred, check_states, over_trials, result_dtype


class Estimate(NamedTuple):
    """A measure estimated from random pairs: its value and the standard error of that value, per trial."""

    value: Tensor
    standard_error: Tensor


@overload
def row_diff(x: Tensor, sample: None = None, seed: int | torch.Generator = 0) -> Tensor: ...
@overload
def row_diff(x: Tensor, sample: int, seed: int | torch.Generator = 0) -> Estimate: ...
@torch.no_grad()
def row_diff(x: Tensor, sample: int | None = None, seed: int | torch.Generator = 0) -> Tensor | Estimate:
    """Return the mean distance between nodes, (1/n²) Σ_{i,j ∈ [n]} ‖x_i − x_j‖₂ (Eq. 2): 0 if all are equal.

    The mean is over all n² ordered pairs, those with i = j included, as the paper writes it. Exact in O(n² d)
    time and in memory linear in ``x``. Not differentiable: a measure keeps no graph.

    Args:
        x: states [nodes, features] or [nodes, trials..., features].
        sample: estimate from so many random pairs instead, at least 2; returns an ``Estimate``.
        seed: the seed or generator of these pairs.

    >>> row_diff(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))
    tensor(2.5000)
    """
    if sample is None:
        return over_trials(x, _mean_distance)
    check_states(x)
    return _estimate(x, sample, seed, result_dtype(x))


@overload
def col_diff(x: Tensor, sample: None = None, seed: int | torch.Generator = 0) -> Tensor: ...
@overload
def col_diff(x: Tensor, sample: int, seed: int | torch.Generator = 0) -> Estimate: ...
@torch.no_grad()
def col_diff(x: Tensor, sample: int | None = None, seed: int | torch.Generator = 0) -> Tensor | Estimate:
    """Return the mean distance between normalised columns, (1/d²) Σ_{i,j ∈ [d]} ‖c_i − c_j‖₂ (Eq. 3).

    Here c_i = x_{·i} / ‖x_{·i}‖₁; a zero column stays zero. The mean is over all d² ordered pairs, those with
    i = j included. Columns that are multiples of each other count as equal, unless their signs differ: the
    paper's normalisation keeps the sign. Exact in O(n d²) time and in memory linear in ``x``.

    Args:
        x: states [nodes, features] or [nodes, trials..., features].
        sample: estimate from so many random pairs of columns instead, at least 2; returns an ``Estimate``.
        seed: the seed or generator of these pairs.

    >>> col_diff(torch.tensor([[1.0, 0.0], [0.0, 7.0]]))
    tensor(0.7071)
    """
    if sample is None:
        return over_trials(x, lambda trial: _mean_distance(_unit_columns(trial).T))
    check_states(x)
    columns = _unit_columns(x.double()).transpose(0, -1).contiguous()
    return _estimate(columns, sample, seed, result_dtype(x))


@torch.no_grad()
def tpsd(x: Tensor) -> Tensor:
    """Return the total pairwise squared distance, Σ_{i,j ∈ [n]} ‖x_i − x_j‖₂² = 2n ‖X^c‖²_F (Eqs. 8, 9).

    The sum is over all n² ordered pairs; X^c has its column means subtracted. Linear time.

    Args:
        x: states [nodes, features] or [nodes, trials..., features].

    >>> tpsd(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))
    tensor(50.)
    """
    return over_trials(x, lambda trial: 2 * len(trial) * centred(trial).square().sum())


def _mean_distance(rows: Tensor) -> Tensor:
    """Return the mean distance over all ordered pairs of the float64 ``rows``, a strip of rows at a time.

    The product form |a|² + |b|² − 2ab is off by up to √u (|a| + |b|) per pair, u the unit roundoff. About the
    mean, Σ_j ‖a_i − a_j‖ ≥ n ‖a_i‖: however the rows lie, the mean distance is off by a few √u, which is 1e-8
    in float64 (in float32 it would be 1e-3, for rows in tight clusters).
    """
    rows = centred(rows)
    lengths = rows.square().sum(1)
    total = rows.new_zeros(())
    step = block_length(len(rows), rows.device)
    for start in range(0, len(rows), step):
        strip, rest = slice(start, start + step), slice(start, None)
        squared = torch.addmm(lengths[rest], rows[strip], rows[rest].T, alpha=-2)
        distances = squared.add_(lengths[strip, None]).clamp_(min=0).sqrt_()
        # By symmetry a strip meets only itself and later rows; pairs with the latter count twice.
        total += 2 * distances.sum() - distances[:, :step].sum()
    return total / max(1, len(rows) ** 2)


def _unit_columns(x: Tensor) -> Tensor:
    length = x.abs().sum(0)
    return x / length.where(length > 0, 1)


def _estimate(rows: Tensor, sample: int, seed: int | torch.Generator, dtype: torch.dtype) -> Estimate:
    if isinstance(sample, bool) or not isinstance(sample, int) or sample < 2:
        raise PairNormError(f"sample is {sample!r}; expected a number of pairs, at least 2, or None for all.")
    if not rows.numel():
        zeros = rows.new_zeros(rows.shape[1:-1], dtype=dtype)
        return Estimate(zeros, zeros)
    pairs = random_pairs(len(rows), sample, seed)
    distances = squared_distances(rows, pairs).sqrt()
    error = distances.std(0) / math.sqrt(sample)
    return Estimate(distances.mean(0).to(dtype), error.to(dtype))
