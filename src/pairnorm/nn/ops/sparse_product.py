"""Products with sparse matrices, with bias, activation and dropout, and their gradients."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pairnorm.nn.ops.kernels import find_kernels, needs_reference
from pairnorm.nn.ops.pattern import Pattern

if TYPE_CHECKING:
    from pairnorm.nn.sparse import SparseMatrix

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": torch.relu,
    "elu": torch.nn.functional.elu,
}


def activate(x: Tensor, bias: Tensor, activation: str = "none") -> Tensor:
    """Return ``activation(x + bias)`` for ``[nodes, models, features]`` and ``[models, features]``."""
    return ACTIVATIONS[activation](x + bias).to(x.dtype)


def activation_gradient(grad: Tensor, y: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """Return the gradients of an activation's input and of the bias in it, from its output ``y``."""
    kernels = None if torch.is_grad_enabled() else find_kernels("sparse_product", y)
    if kernels is not None:
        return kernels.activation_backward(grad.contiguous(), y, activation)  # type: ignore[no-any-return]
    if activation != "none":
        grad = grad * ((y > 0).to(y.dtype) if activation == "relu" else 1 + y.clamp(max=0))
    return grad, grad.sum(0)


def multiply(matrix: "SparseMatrix", dense: Tensor) -> Tensor:
    """Return ``matrix @ dense`` for ``[columns, features]`` or ``[columns, models, features]``."""
    matrix.pattern.check_unchanged()
    wide = accumulation_dtype(dense)
    matrix = matrix.cast(wide)
    if needs_reference(dense) or needs_reference(matrix.values):
        return reference(matrix.pattern, matrix.values, dense.to(wide)).to(dense.dtype)
    has_kernels = not matrix.values.requires_grad and find_kernels("sparse_product", dense) is not None
    result: Tensor = _Multiply.apply(matrix, matrix.values, dense if has_kernels else dense.to(wide))
    return result.to(dense.dtype)


def accumulation_dtype(dense: Tensor) -> torch.dtype:
    """Return the dtype that products accumulate in: float32 for half precision."""
    return torch.promote_types(dense.dtype, torch.float32)


def reference(pattern: Pattern, values: Tensor, dense: Tensor) -> Tensor:
    """Compute the product with operations that torch.func can transform."""
    row, column = pattern.row.long(), pattern.column.long()
    if values.dim() == 1:
        values = values.view(-1, *[1] * (dense.dim() - 1))
    else:
        values = values.t().unsqueeze(-1)
    products = values * dense.index_select(0, column)
    zeros = torch.zeros_like(products[:1]).expand(pattern.shape[0], *products.shape[1:])
    return zeros.index_add(0, row, products)


class _Multiply(torch.autograd.Function):
    """matrix @ dense; the gradients are again such products, so that they can be differentiated in turn."""

    @staticmethod
    def forward(ctx: Any, matrix: "SparseMatrix", values: Tensor, dense: Tensor) -> Tensor:
        ctx.matrix = matrix
        ctx.save_for_backward(values, dense)
        return _product(matrix, dense)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor | None, Tensor | None]:
        values, dense = ctx.saved_tensors
        grad_values = grad_dense = None
        if ctx.needs_input_grad[1]:
            grad_values = _entrywise(ctx.matrix.pattern, grad, dense, per_model=values.dim() == 2)
        if ctx.needs_input_grad[2]:
            grad_dense = ctx.matrix.transposed @ grad
        return None, grad_values, grad_dense


def _product(matrix: "SparseMatrix", dense: Tensor) -> Tensor:
    kernels = find_kernels("sparse_product", dense) if matrix.pattern.num_entries else None
    if kernels is not None:
        return kernels.forward(matrix.pattern, matrix.values, dense)  # type: ignore[no-any-return]
    rows = matrix.pattern.shape[0]
    if matrix.values.dim() == 1:
        return (matrix.torch_csr[0] @ dense.flatten(1)).view(rows, *dense.shape[1:])
    result = dense.new_empty(rows, *dense.shape[1:])
    for model, csr in enumerate(matrix.torch_csr):
        result[:, model] = csr @ dense[:, model]
    return result


def _entrywise(pattern: Pattern, left: Tensor, right: Tensor, per_model: bool) -> Tensor:
    """Return left[row]·right[column] for every entry: ``[models, entries]``, or summed over models.

    One model at a time, so that ``[entries, models, features]`` is never in memory at once.
    """
    row, column = pattern.row, pattern.column
    models = range(left.size(1)) if left.dim() == 3 else [...]
    products = [(left[:, model][row] * right[:, model][column]).sum(-1) for model in models]
    return torch.stack(products) if per_model else torch.stack(products).sum(0)


def activated_product(matrix: "SparseMatrix", dense: Tensor, bias: Tensor, activation: str) -> Tensor:
    """Return ``activation(matrix @ dense + bias)`` for ``[nodes, models, features]``."""
    matrix = matrix.cast(accumulation_dtype(dense))
    kernels = find_kernels("sparse_product", dense)
    # The kernels have no gradient for values that are learned.
    if kernels is None or matrix.values.requires_grad:
        return ACTIVATIONS[activation](matrix @ dense + bias).to(dense.dtype)
    matrix.pattern.check_unchanged()
    return _ActivatedProduct.apply(kernels, matrix, dense, bias, activation)


class _ActivatedProduct(torch.autograd.Function):
    """Run the kernels, and save the output only: every activation's gradient follows from it."""

    @staticmethod
    def forward(
        ctx: Any, kernels: Any, matrix: "SparseMatrix", dense: Tensor, bias: Tensor, activation: str
    ) -> Tensor:
        y = kernels.forward(matrix.pattern, matrix.values, dense, bias, activation)
        ctx.matrix, ctx.activation = matrix, activation
        ctx.save_for_backward(y)
        return y  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, Tensor, Tensor, None]:
        grad_product, grad_bias = activation_gradient(grad, ctx.saved_tensors[0], ctx.activation)
        return None, None, ctx.matrix.transposed @ grad_product, grad_bias, None


def sparse_linear(x: "SparseMatrix", weight: Tensor, rate: float = 0.0, keys: Tensor | None = None) -> Tensor:
    """Return dropout(x)·W for every model, ``[nodes, models, out]``.

    Args:
        x: Features with values ``[entries]`` or ``[models, entries]``.
        weight: ``[models, in, out]``.
        rate: Rate at which entries of ``x`` are dropped.
        keys: Dropout keys ``[models]``; None for no dropout.
    """
    on_cpu = weight.device.type == "cpu"  # the only device with kernels for it
    kernels = find_kernels("sparse_product", weight) if on_cpu and x.values.dtype == weight.dtype else None
    if kernels is None or keys is None or rate == 0 or x.values.requires_grad:
        x = x if keys is None else x.drop_entries(rate, keys)
        return x @ weight.transpose(0, 1).contiguous()
    x.pattern.check_unchanged()
    return _SparseLinear.apply(kernels, x, weight, rate, keys)


class _SparseLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, kernels: Any, x: "SparseMatrix", weight: Tensor, rate: float, keys: Tensor
    ) -> Tensor:
        ctx.kernels, ctx.x, ctx.rate = kernels, x, rate
        ctx.save_for_backward(keys)
        ctx.entries = kernels.select(x.pattern, x.drop_entries(rate, keys).values)
        return kernels.linear_forward(x.pattern, ctx.entries, weight)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, Tensor, None, None]:
        if torch.is_grad_enabled():
            product = ctx.x.drop_entries(ctx.rate, *ctx.saved_tensors).transposed @ grad
            return None, None, product.transpose(0, 1), None, None
        return None, None, ctx.kernels.linear_backward(ctx.x.pattern, ctx.entries, grad), None, None
