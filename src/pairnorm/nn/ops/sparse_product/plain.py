"""Sparse matrices whose values may differ by trial, for graph convolution, sparse features and attention."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from pairnorm.base.csr import sparse_csr, suppress_csr_warning
from pairnorm.base.errors import PairNormError
from pairnorm.nn.ops.activation.plain import ACTIVATIONS, activation_gradient
from pairnorm.nn.ops.kernels import choose
from pairnorm.nn.ops.pattern import Pattern, place_type


class Kernels(Protocol):
    """The product, and with it bias and activation, in one pass."""

    def serves(self, dense: Tensor) -> bool:
        """Say whether this type is served."""

    def forward(
        self, pattern: Pattern, values: Tensor, dense: Tensor, bias: Tensor | None = None,
        activation: str = "none",
    ) -> Tensor:  # fmt: skip
        """Return ``activation(matrix @ dense + bias)``, for values ``[entries]`` or ``[trials, entries]``."""


def _load(device: str) -> Kernels:
    if device == "cpu":
        from pairnorm.nn.ops.sparse_product import cpu

        return cpu
    from pairnorm.nn.ops.sparse_product import cuda

    return cuda


@dataclass(frozen=True, eq=False)
class SparseMatrix:
    """A sparse matrix, or one for every model. See ``normalized_adjacency``, ``SparseMatrix.from_torch``.

    ``matrix @ dense`` takes ``[columns, features]``, or ``[columns, trials, features]`` where every trial is
    multiplied by its own values, or by the shared ones; both operands are differentiable.

    Args:
        pattern: where its entries are, row by row.
        values: of the entries, ``[entries]``, or ``[trials, entries]`` for a matrix per trial.
    """

    pattern: Pattern
    values: Tensor

    @classmethod
    def from_torch(cls, tensor: Tensor) -> "SparseMatrix":
        """Take over a torch sparse tensor of any layout, or a dense one."""
        if tensor.dim() != 2:
            problem = f"the sparse tensor has shape {list(tensor.shape)}"
            expected = "two dimensions"
            raise PairNormError(problem, code="wrong-shape", value=list(tensor.shape), expected=expected)
        suppress_csr_warning()
        if tensor.layout not in (torch.strided, torch.sparse_csr):
            tensor = tensor.to_sparse_coo().coalesce()
        csr = tensor if tensor.layout == torch.sparse_csr else tensor.to_sparse_csr()
        crow = csr.crow_indices().to(place_type(csr.values().numel()))
        return cls(Pattern(crow, csr.col_indices().int(), (csr.size(0), csr.size(1))), csr.values())

    @property
    def num_rows(self) -> int:
        """The number of rows of a product with it."""
        return self.pattern.shape[0]

    @property
    def transposed(self) -> "SparseMatrix":
        """The transpose of every trial's matrix."""
        # Values that learn change in place and carry a graph: of those, nothing derived may be kept.
        return self._transpose() if self.values.requires_grad else self._kept_transpose

    @cached_property
    def _kept_transpose(self) -> "SparseMatrix":
        return self._transpose()

    def _transpose(self) -> "SparseMatrix":
        return SparseMatrix(self.pattern.transposed, self.values[..., self.pattern.order])

    def to(self, device: torch.device | str) -> "SparseMatrix":
        """Move to a device."""
        return SparseMatrix(self.pattern.to(device), self.values.to(device))

    def to_dense(self) -> Tensor:
        """Return ``[rows, columns]``, or ``[trials, rows, columns]``."""
        dense = self.values.new_zeros(*self.values.shape[:-1], *self.pattern.shape)
        dense[..., self.pattern.row.long(), self.pattern.column.long()] = self.values
        return dense

    def __matmul__(self, dense: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            problem = "torch.compile cannot see into the product with a SparseMatrix"
            hint = "Let a function under torch.compiler.disable do it."
            raise PairNormError(problem, code="not-compilable", hint=hint)
        rows, trials = self.pattern.shape[1], self.values.size(0) if self.values.dim() == 2 else None
        fits = dense.dim() in (2, 3) and dense.size(0) == rows and dense.is_floating_point()
        if not fits or (trials is not None and dense.shape[1:-1] != (trials,)):
            shape = f"[{rows}, {'trials' if trials is None else trials}, features]"
            problem = f"the features have shape {list(dense.shape)} and dtype {dense.dtype}"
            expected = f"floating-point {shape}" + (f" or [{rows}, features]" if trials is None else "")
            raise PairNormError(problem, code="wrong-shape", value=list(dense.shape), expected=expected)
        wide = _wide(dense)
        matrix = self if self.values.dtype == wide else SparseMatrix(self.pattern, self.values.to(wide))
        by_kernels = not self.values.requires_grad and choose(_load, dense) is not None
        result: Tensor = _Multiply.apply(matrix, matrix.values, dense if by_kernels else dense.to(wide))
        return result.to(dense.dtype)

    def __repr__(self) -> str:
        rows, columns = self.pattern.shape
        trials = f", trials={self.values.size(0)}" if self.values.dim() == 2 else ""
        return f"SparseMatrix({rows} x {columns}, entries={self.pattern.num_entries}{trials})"

    @cached_property
    def arrays(self) -> tuple[Any, Any, Any]:
        """Crow, columns and values on a CPU, as the numpy arrays that kernels take."""
        return self.pattern.crow.numpy(), self.pattern.column.numpy(), self.values.detach().numpy()

    @cached_property
    def _csr(self) -> list[Tensor]:
        """The torch form, one tensor per trial, or a single one shared by all."""
        with torch.no_grad():
            return [
                sparse_csr(self.pattern.crow, self.pattern.column, values, self.pattern.shape)
                for values in torch.atleast_2d(self.values.detach())
            ]


class _Multiply(torch.autograd.Function):
    """matrix @ dense; the gradients are again such products, so that they can be differentiated in turn."""

    @staticmethod
    def forward(ctx: Any, matrix: SparseMatrix, values: Tensor, dense: Tensor) -> Tensor:
        ctx.matrix = matrix
        ctx.save_for_backward(values, dense)
        return _product(matrix, dense)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor | None, Tensor | None]:
        values, dense = ctx.saved_tensors
        grad_values = grad_dense = None
        if ctx.needs_input_grad[1]:
            grad_values = _entrywise(ctx.matrix.pattern, grad, dense, per_trial=values.dim() == 2)
        if ctx.needs_input_grad[2]:
            grad_dense = ctx.matrix.transposed @ grad
        return None, grad_values, grad_dense


def _wide(dense: Tensor) -> torch.dtype:
    """The type that products are summed in: half precision is in single."""
    return torch.promote_types(dense.dtype, torch.float32)


def _product(matrix: SparseMatrix, dense: Tensor) -> Tensor:
    kernels = choose(_load, dense) if matrix.pattern.num_entries else None
    if kernels is not None:
        return kernels.forward(matrix.pattern, matrix.values, dense)
    rows = matrix.pattern.shape[0]
    if matrix.values.dim() == 1:
        return (matrix._csr[0] @ dense.flatten(1)).view(rows, *dense.shape[1:])
    result = dense.new_empty(rows, *dense.shape[1:])
    for trial, csr in enumerate(matrix._csr):
        result[:, trial] = csr @ dense[:, trial]
    return result


def _entrywise(pattern: Pattern, left: Tensor, right: Tensor, per_trial: bool) -> Tensor:
    """Return left[row]·right[column] for every entry: ``[trials, entries]``, or summed over trials.

    Trial by trial, so that ``[entries, trials, features]`` never stands in memory at once.
    """
    row, column = pattern.row, pattern.column
    trials = range(left.size(1)) if left.dim() == 3 else [...]
    products = [(left[:, t][row] * right[:, t][column]).sum(-1) for t in trials]
    return torch.stack(products) if per_trial else torch.stack(products).sum(0)


def activated_product(matrix: SparseMatrix, dense: Tensor, bias: Tensor, activation: str) -> Tensor:
    """Return ``activation(matrix @ dense + bias)`` for ``[nodes, trials, features]``."""
    kernels = choose(_load, dense)
    # The kernels have no gradient for values that are learned.
    if kernels is None or matrix.values.requires_grad or matrix.values.dtype != _wide(dense):
        return ACTIVATIONS[activation](matrix @ dense + bias).to(dense.dtype)
    return _ActivatedProduct.apply(kernels, matrix, dense, bias, activation)


class _ActivatedProduct(torch.autograd.Function):
    """By kernels; as of every activation, the output is all that is kept."""

    @staticmethod
    def forward(
        ctx: Any, kernels: Kernels, matrix: SparseMatrix, dense: Tensor, bias: Tensor, activation: str
    ) -> Tensor:
        y = kernels.forward(matrix.pattern, matrix.values, dense, bias, activation)
        ctx.matrix, ctx.activation = matrix, activation
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, Tensor, Tensor, None]:
        grad_product, grad_bias = activation_gradient(grad, ctx.saved_tensors[0], ctx.activation)
        return None, None, ctx.matrix.transposed @ grad_product, grad_bias, None
