"""Graph convolutions as one operation: a whole layer of GCN, and attention over a sparsity pattern."""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pairnorm.nn.ops.dropout import dropout
from pairnorm.nn.ops.kernels import KernelFunction, find_kernels
from pairnorm.nn.ops.linear import stacked_linear
from pairnorm.nn.ops.pair_norm import can_fuse
from pairnorm.nn.ops.sparse_product import Pattern, accumulation_dtype, activate, activated_product

if TYPE_CHECKING:
    from pairnorm.nn.pair_norm import PairNorm
    from pairnorm.nn.sparse import SparseMatrix

NEGATIVE_SLOPE = 0.2


def gcn_layer(
    matrix: "SparseMatrix", x: Tensor, bias: Tensor, activation: str = "none",
    norm: "PairNorm | None" = None, weight: Tensor | None = None, rate: float = 0.0,
    keys: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return ``norm(activation(matrix @ (dropout(x) @ weight) + bias))``."""
    if matrix.is_sharded:
        if weight is not None:
            x = x.expand(-1, weight.size(0), -1)
            x = stacked_linear(x if keys is None else dropout(x, rate, keys, matrix.first_row), weight)
        y = activate(matrix @ x, bias, activation)
        return y if norm is None else norm(y)
    matrix = matrix.cast(accumulation_dtype(bias))
    settings = (matrix, activation, norm, rate, keys)
    kernels = find_kernels("convolution", x, weight) if norm is None or can_fuse(norm, x) else None
    # The kernels have no gradient for values that are learned, and take one matrix for all models.
    values = matrix.values
    if kernels is None or values.requires_grad or values.dtype != bias.dtype or values.dim() == 2:
        return gcn_reference(x, weight, bias, *settings)
    matrix.pattern.check_unchanged()
    functions = (kernels.gcn_forward, kernels.gcn_backward, gcn_reference)
    return KernelFunction.apply(*functions, settings, x, weight, bias)


def gcn_reference(
    x: Tensor, weight: Tensor | None, bias: Tensor, matrix: "SparseMatrix", activation: str,
    norm: "PairNorm | None", rate: float, keys: Tensor | None,
) -> Tensor:  # fmt: skip
    """Compute a layer of GCN by operations that torch can differentiate."""
    z = x if weight is None else stacked_linear(x, weight, rate, keys)
    y = activated_product(matrix, z, bias, activation)
    return y if norm is None else norm(y)


def attend(
    matrix: "SparseMatrix", scores: Tensor, z: Tensor, bias: Tensor | None = None, activation: str = "none",
    rate: float = 0.0, keys: Tensor | None = None, norm: "PairNorm | None" = None,
) -> Tensor:  # fmt: skip
    """Return σ(Σ_j α_ij z_j + b), α_ij = softmax_j LeakyReLU(source_j + target_i), over the entries of a row.

    ``scores`` ``[nodes, models, 2]`` are those of a node as a source and as a target. Dropout falls on the
    attention weights. An activation needs a bias.
    """
    matrix.pattern.check_unchanged()
    kernels = find_kernels("convolution", z)
    inside = norm if kernels is not None and norm is not None and can_fuse(norm, z) else None
    settings = (matrix, activation, NEGATIVE_SLOPE, rate, keys)
    if kernels is None:
        return attention_reference(scores, z, bias, *settings, norm)
    functions = (kernels.attention_forward, kernels.attention_backward, attention_reference)
    y: Tensor = KernelFunction.apply(*functions, (*settings, inside), scores, z, bias)
    return y if norm is inside else norm(y)  # type: ignore[misc]


def attention_reference(
    scores: Tensor, z: Tensor, bias: Tensor | None, matrix: "SparseMatrix", activation: str,
    negative_slope: float, rate: float, keys: Tensor | None, norm: "PairNorm | None",
) -> Tensor:  # fmt: skip
    """Compute attention by operations that torch can differentiate."""
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
