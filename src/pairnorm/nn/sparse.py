"""Sparse matrices whose values may differ by trial, for graph convolution, sparse features and attention."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pairnorm.errors import PairNormError
from pairnorm.nn.backends import kernels


@dataclass(frozen=True, eq=False)
class Pattern:
    """Where the entries of a sparse matrix stand, row by row (CSR), and what follows from that."""

    crow: Tensor
    column: Tensor
    shape: tuple[int, int]

    @property
    def num_entries(self) -> int:
        """The number of stored entries."""
        return self.column.numel()

    @cached_property
    def row(self) -> Tensor:
        """The row of each entry."""
        counts = self.crow.diff()
        rows = torch.arange(self.shape[0], dtype=torch.int32, device=self.crow.device)
        return rows.repeat_interleave(counts, output_size=self.num_entries)

    @cached_property
    def order(self) -> Tensor:
        """The entries of the transpose, as positions among the entries of this matrix."""
        return torch.sort(self.column, stable=True).indices

    @cached_property
    def transposed(self) -> "Pattern":
        """The pattern of the transpose, its entries in the order of ``order``."""
        counts = torch.bincount(self.column, minlength=self.shape[1])
        crow = torch.zeros(self.shape[1] + 1, dtype=torch.int32, device=self.crow.device)
        crow[1:] = counts.cumsum(0)
        return Pattern(crow, self.row[self.order], (self.shape[1], self.shape[0]))

    @cached_property
    def derived(self) -> dict[str, Any]:
        """What kernels derive from the pattern, kept with it."""
        return {}

    def to(self, device: torch.device | str) -> "Pattern":
        """Move to a device."""
        return Pattern(self.crow.to(device), self.column.to(device), self.shape)


@dataclass(frozen=True, eq=False)
class SparseMatrix:
    """A ``Pattern`` with values ``[entries]``, or ``[trials, entries]`` for a matrix per trial.

    ``matrix @ dense`` takes ``[columns, features]``, or ``[columns, trials, features]`` where every trial is
    multiplied by its own values, or by the shared ones; both operands are differentiable.
    """

    pattern: Pattern
    values: Tensor

    @classmethod
    def from_torch(cls, tensor: Tensor) -> "SparseMatrix":
        """Take over a torch sparse tensor of any layout, or a dense one."""
        if tensor.dim() != 2:
            raise PairNormError(f"sparse tensor has shape {list(tensor.shape)}; expected two dimensions")
        if tensor.layout not in (torch.strided, torch.sparse_csr):
            tensor = tensor.to_sparse_coo().coalesce()
        csr = tensor if tensor.layout == torch.sparse_csr else tensor.to_sparse_csr()
        pattern = Pattern(csr.crow_indices().int(), csr.col_indices().int(), (csr.size(0), csr.size(1)))
        return cls(pattern, csr.values())

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
        if dense.dim() not in (2, 3) or not dense.is_floating_point():
            raise PairNormError(
                f"the features have shape {list(dense.shape)} and dtype {dense.dtype}; "
                "expected floating-point [columns, features] or [columns, trials, features]"
            )
        if dense.size(0) != self.pattern.shape[1]:
            raise PairNormError(
                f"cannot multiply a {self.pattern.shape[0]} x {self.pattern.shape[1]} matrix "
                f"with {dense.size(0)} rows of features"
            )
        if self.values.dim() == 2 and (dense.dim() != 3 or dense.size(1) != self.values.size(0)):
            raise PairNormError(
                f"the matrix has values for {self.values.size(0)} trials, the features have shape "
                f"{list(dense.shape)}; expected [{dense.size(0)}, {self.values.size(0)}, features]"
            )
        wide = torch.promote_types(dense.dtype, torch.float32)  # half precision is summed in single
        matrix = self if self.values.dtype == wide else SparseMatrix(self.pattern, self.values.to(wide))
        result: Tensor = _Multiply.apply(matrix, matrix.values, dense.to(wide))
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
                torch.sparse_csr_tensor(
                    self.pattern.crow, self.pattern.column, values, self.pattern.shape, check_invariants=False
                )
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


def _product(matrix: SparseMatrix, dense: Tensor) -> Tensor:
    compiled = kernels("sparse", dense) if matrix.pattern.num_entries else None
    if compiled is not None:
        result: Tensor = compiled.multiply(matrix.pattern, matrix.values, dense)
        return result
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
