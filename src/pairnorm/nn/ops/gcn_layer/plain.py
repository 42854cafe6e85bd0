"""A whole layer of GCN: dropout, linear map, average over neighbors, bias, activation and PairNorm."""

from torch import Tensor

from pairnorm.nn.ops.activation.plain import activate
from pairnorm.nn.ops.double_backward import Compiled, Kernels
from pairnorm.nn.ops.dropout.plain import dropout
from pairnorm.nn.ops.kernels import choose
from pairnorm.nn.ops.linear.plain import trial_linear
from pairnorm.nn.ops.pair_norm.plain import Norm, fuses
from pairnorm.nn.ops.sparse_product.plain import SparseMatrix, activated_product
from pairnorm.nn.ops.sparse_product.ranks import ShardedMatrix


def _load(device: str) -> Kernels:
    if device == "cpu":
        from pairnorm.nn.ops.gcn_layer import cpu

        return cpu
    from pairnorm.nn.ops.gcn_layer import cuda

    return cuda


def gcn_layer(
    matrix: SparseMatrix,
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
        matrix: with values for all trials, or for each.
        x: ``[nodes, trials, features]``.
        bias: ``[trials, out]``.
        activation: ``"relu"``, ``"elu"`` or ``"none"``.
        norm: the PairNorm that comes last, if any.
        weight: ``[trials, features, out]``; None for no linear map and no dropout.
        rate: at which entries of ``x`` are dropped.
        keys: of the dropout, ``[trials]``; None for none.
    """
    if isinstance(matrix, ShardedMatrix):
        if weight is not None:
            x = x.expand(-1, weight.size(0), -1)
            x = trial_linear(x if keys is None else dropout(x, rate, keys, matrix.rows.start), weight)
        y = activate(matrix @ x, bias, activation)
        return y if norm is None else norm(y)
    settings = (matrix, activation, norm, rate, keys)
    kernels = choose(_load, x, weight) if norm is None or fuses(norm, x) else None
    # The kernels have no gradient for values that are learned, and take one matrix for all trials.
    values = matrix.values
    if kernels is None or values.requires_grad or values.dtype != bias.dtype or values.dim() == 2:
        return _one_by_one(x, weight, bias, *settings)
    return Compiled.apply(kernels, _one_by_one, settings, x, weight, bias)


def _one_by_one(
    x: Tensor, weight: Tensor | None, bias: Tensor, matrix: SparseMatrix, activation: str,
    norm: Norm | None, rate: float, keys: Tensor | None,
) -> Tensor:  # fmt: skip
    z = x if weight is None else trial_linear(x, weight, rate, keys)
    y = activated_product(matrix, z, bias, activation)
    return y if norm is None else norm(y)
