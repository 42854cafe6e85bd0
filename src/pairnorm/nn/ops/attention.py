"""Attention over the entries of a sparsity pattern, for many models and heads at once."""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pairnorm.nn.ops.dropout import dropout
from pairnorm.nn.ops.kernels import KernelFunction, find_kernels
from pairnorm.nn.ops.pair_norm import Norm, can_fuse
from pairnorm.nn.ops.pattern import Pattern
from pairnorm.nn.ops.sparse_product import activate

if TYPE_CHECKING:
    from pairnorm.nn.sparse import SparseMatrix

NEGATIVE_SLOPE = 0.2


def attend(
    matrix: "SparseMatrix",
    scores: Tensor,
    z: Tensor,
    bias: Tensor | None = None,
    activation: str = "none",
    rate: float = 0.0,
    keys: Tensor | None = None,
    norm: Norm | None = None,
) -> Tensor:
    r"""Let every row average over its columns by attention, with weights of its own for every model.

    $$
    \mathbf{y}_i = \sigma\Big(\sum_j \alpha_{ij} \mathbf{z}_j + \mathbf{b}\Big), \qquad
    \alpha_{ij} = \text{softmax}_j \, \text{LeakyReLU}_{0.2}(\text{source}_j + \text{target}_i)
    $$

    Args:
        matrix: Its pattern says which columns j a row i attends to.
        scores: Of every node as a source and as a target, ``[nodes, models, 2]``.
        z: What is averaged, ``[nodes, models, features]``.
        bias: Added to the average, ``[models, features]``; None for none.
        activation: What follows, ``"relu"``, ``"elu"`` or ``"none"``; needs a bias.
        rate: Rate at which attention weights are dropped, after the softmax.
        keys: Dropout keys ``[models]``; None for no dropout.
        norm: The PairNorm that comes last, if any.
    """
    matrix.pattern.check_unchanged()
    kernels = find_kernels("attention", z)
    inside = norm if kernels is not None and norm is not None and can_fuse(norm, z) else None
    settings = (matrix, activation, NEGATIVE_SLOPE, rate, keys, inside)
    y: Tensor
    if kernels is not None:
        y = KernelFunction.apply(kernels, _reference, settings, scores, z, bias)
    else:
        y = _reference(scores, z, bias, *settings)
    return y if norm is None or inside is not None else norm(y)


def _reference(
    scores: Tensor, z: Tensor, bias: Tensor | None, matrix: "SparseMatrix", activation: str,
    negative_slope: float, rate: float, keys: Tensor | None, norm: Norm | None,
) -> Tensor:  # fmt: skip
    pattern, (source, target) = matrix.pattern, scores.permute(2, 1, 0)
    weights = edge_softmax(pattern, source[:, pattern.column] + target[:, pattern.row])
    if keys is not None:
        weights = dropout(weights.unsqueeze(0), rate, keys).squeeze(0)
    y = replace(matrix, values=weights) @ z
    y = y if bias is None else activate(y, bias, activation)
    return y if norm is None else norm(y)


def edge_softmax(pattern: Pattern, scores: Tensor) -> Tensor:
    """Return the softmax of LeakyReLU(scores) ``[models, entries]`` within every row."""
    scores = torch.nn.functional.leaky_relu(scores, NEGATIVE_SLOPE)
    row = pattern.row.long().expand_as(scores)
    shape = (scores.size(0), pattern.shape[0])
    with torch.no_grad():  # a shift of every row that cancels out; it only keeps exp in range
        largest = scores.new_full(shape, -torch.inf).scatter_reduce(1, row, scores, "amax")
    weights = (scores - largest.gather(1, row)).exp()
    total = scores.new_zeros(shape).scatter_add(1, row, weights)
    return weights / total.gather(1, row)
