"""A whole layer of GCN: dropout, linear map, average over neighbors, bias, activation and PairNorm."""

from typing import TYPE_CHECKING

from torch import Tensor

from pairnorm.nn.ops.dropout import dropout
from pairnorm.nn.ops.kernels import KernelFunction, find_kernels
from pairnorm.nn.ops.linear import stacked_linear
from pairnorm.nn.ops.pair_norm import Norm, can_fuse
from pairnorm.nn.ops.sparse_product import accumulation_dtype, activate, activated_product

if TYPE_CHECKING:
    from pairnorm.nn.sparse import SparseMatrix


def gcn_layer(
    matrix: "SparseMatrix",
    x: Tensor,
    bias: Tensor,
    activation: str = "none",
    norm: Norm | None = None,
    weight: Tensor | None = None,
    rate: float = 0.0,
    keys: Tensor | None = None,
) -> Tensor:
    """Return ``norm(activation(matrix @ (dropout(x) @ weight) + bias))``.

    Args:
        matrix: with values for all models, or for each.
        x: ``[nodes, models, features]``.
        bias: ``[models, out]``.
        activation: ``"relu"``, ``"elu"`` or ``"none"``.
        norm: the PairNorm that comes last, if any.
        weight: ``[models, features, out]``; None for no linear map and no dropout.
        rate: at which entries of ``x`` are dropped.
        keys: of the dropout, ``[models]``; None for none.
    """
    if matrix.is_sharded:
        if weight is not None:
            x = x.expand(-1, weight.size(0), -1)
            x = stacked_linear(x if keys is None else dropout(x, rate, keys, matrix.first_row), weight)
        y = activate(matrix @ x, bias, activation)
        return y if norm is None else norm(y)
    matrix = matrix.cast(accumulation_dtype(bias))
    settings = (matrix, activation, norm, rate, keys)
    kernels = find_kernels("gcn_layer", x, weight) if norm is None or can_fuse(norm, x) else None
    # The kernels have no gradient for values that are learned, and take one matrix for all models.
    values = matrix.values
    if kernels is None or values.requires_grad or values.dtype != bias.dtype or values.dim() == 2:
        return _reference(x, weight, bias, *settings)
    matrix.pattern.check_unchanged()
    return KernelFunction.apply(kernels, _reference, settings, x, weight, bias)


def _reference(
    x: Tensor, weight: Tensor | None, bias: Tensor, matrix: "SparseMatrix", activation: str,
    norm: Norm | None, rate: float, keys: Tensor | None,
) -> Tensor:  # fmt: skip
    z = x if weight is None else stacked_linear(x, weight, rate, keys)
    y = activated_product(matrix, z, bias, activation)
    return y if norm is None else norm(y)
