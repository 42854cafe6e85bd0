"""Sparse matrices, one or one per model, for graph convolution, sparse features and attention."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from pairnorm.base.csr import sparse_csr, suppress_csr_warning
from pairnorm.base.errors import PairNormError, wrong_shape
from pairnorm.nn.ops.dropout import dropout
from pairnorm.nn.ops.sparse_product import Pattern, check_range, index_dtype, multiply, tensor_version


@dataclass(frozen=True, eq=False)
class SparseMatrix:
    """A sparse matrix, or one per model. See ``normalized_adjacency`` and ``SparseMatrix.from_torch``.

    ``matrix @ dense`` takes ``[columns, features]`` or ``[columns, models, features]``. Every model is
    multiplied by its own values, or by the shared ones. Both operands are differentiable. ``values`` may be
    changed in place; ``pattern`` may not, and a product then raises an error.

    Args:
        pattern: Positions of the entries, row by row.
        values: Values of the entries, ``[entries]``, or ``[models, entries]`` for a matrix per model.
    """

    pattern: Pattern
    values: Tensor

    is_sharded: ClassVar[bool] = False
    """Whether the rows of the operand are distributed over the ranks of a process group."""

    @classmethod
    def from_torch(cls, tensor: Tensor) -> "SparseMatrix":
        """Convert a torch tensor of any sparse layout, or a dense one, with two dimensions.

        Raises:
            PairNormError: where the tensor has another number of dimensions, or indices out of range.
        """
        if tensor.dim() != 2:
            raise wrong_shape("the sparse tensor", tensor.shape, "two dimensions")
        suppress_csr_warning()
        if tensor.layout not in (torch.strided, torch.sparse_csr):
            tensor = tensor.to_sparse_coo()
            for indices, size in zip(tensor._indices(), tensor.shape, strict=True):
                check_range("the sparse tensor", indices, size)  # coalescing would read beyond the memory
            tensor = tensor.coalesce()
        csr = tensor if tensor.layout == torch.sparse_csr else tensor.to_sparse_csr()
        # Copies: the matrix must not change when the tensor does.
        crow = csr.crow_indices().to(index_dtype(csr.values().numel()), copy=True)
        column = csr.col_indices()
        shape = (csr.size(0), csr.size(1))
        if column.dtype != torch.int32:
            check_range("the sparse tensor", column, shape[1])  # 32 bits would wrap around
        pattern = Pattern(crow, column.to(torch.int32, copy=True), shape).validate()
        return cls(pattern, csr.values())

    @property
    def num_rows(self) -> int:
        """The number of rows of a product with it."""
        return self.pattern.shape[0]

    @property
    def stacked_shape(self) -> tuple[int, ...]:
        """The shape of the dense matrix with the models in the middle, ``[rows, (models,) columns]``."""
        return (self.pattern.shape[0], *self.values.shape[:-1], self.pattern.shape[1])

    @property
    def first_row(self) -> int:
        """The number of the first row of a product among all nodes."""
        return 0

    @property
    def transposed(self) -> "SparseMatrix":
        """The transpose, of every model."""
        if self.values.requires_grad or torch._C._are_functorch_transforms_active():
            return self._transpose()  # it carries an autograd graph and must not be cached
        return self._cached("transposed", self._transpose)

    def _transpose(self) -> "SparseMatrix":
        return SparseMatrix(self.pattern.transposed, self.values[..., self.pattern.order])

    def cast(self, dtype: torch.dtype) -> "SparseMatrix":
        """Return the matrix with values of a dtype."""
        if self.values.dtype == dtype:
            return self

        def convert() -> "SparseMatrix":
            return SparseMatrix(self.pattern, self.values.to(dtype))

        return convert() if self.values.requires_grad else self._cached(dtype, convert)

    def _cached(self, name: object, make: Any) -> "SparseMatrix":
        """Cache what ``make`` derives from the values; it is derived again after they change in place."""
        version = tensor_version(self.values)
        known = self._derived.get(name)
        if known is None or known[0] != version or version is None:
            with torch.inference_mode(False):  # else training could not use it later
                known = self._derived[name] = (version, make())
        matrix: SparseMatrix = known[1]
        return matrix

    @cached_property
    def _derived(self) -> dict[object, tuple[Any, "SparseMatrix"]]:
        return {}

    def to(self, device: torch.device | str) -> "SparseMatrix":
        """Move to a device."""
        return SparseMatrix(self.pattern.to(device), self.values.to(device))

    def to_dense(self) -> Tensor:
        """Return ``[rows, columns]``, or ``[models, rows, columns]``."""
        self.pattern.check_unchanged()
        dense = self.values.new_zeros(*self.values.shape[:-1], *self.pattern.shape)
        dense[..., self.pattern.row.long(), self.pattern.column.long()] = self.values
        return dense

    def drop_entries(self, rate: float, keys: Tensor) -> "SparseMatrix":
        """Drop entries of every model; see ``pairnorm.nn.ops.dropout``."""
        values = self.values.expand(len(keys), -1).unsqueeze(0)
        return SparseMatrix(self.pattern, dropout(values, rate, keys).squeeze(0))

    def __matmul__(self, dense: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            problem = "torch.compile cannot trace the product with a SparseMatrix"
            hint = "Call it in a function under torch.compiler.disable."
            raise PairNormError(problem, code="not-compilable", hint=hint)
        columns, models = self.pattern.shape[1], self.values.size(0) if self.values.dim() == 2 else None
        fits = dense.dim() in (2, 3) and dense.size(0) == columns and dense.is_floating_point()
        if not fits or (models is not None and dense.shape[1:-1] != (models,)):
            shape = f"[{columns}, {'models' if models is None else models}, features]"
            expected = f"floating-point {shape}" + (f" or [{columns}, features]" if models is None else "")
            raise wrong_shape("the right operand", dense.shape, expected, dense.dtype)
        return multiply(self, dense)

    def __repr__(self) -> str:
        rows, columns = self.pattern.shape
        models = f", num_models={self.values.size(0)}" if self.values.dim() == 2 else ""
        return f"SparseMatrix({rows} x {columns}, entries={self.pattern.num_entries}{models})"

    @property
    def arrays(self) -> tuple[Any, Any, Any]:
        """Row starts, columns and values as numpy arrays, on a CPU."""
        return *self.pattern.arrays, self.values.detach().numpy()

    @cached_property
    def torch_csr(self) -> list[Tensor]:
        """The matrix of each model as a ``torch.sparse_csr`` tensor, or the shared one; without a copy."""
        with torch.inference_mode(False), torch.no_grad():
            return [
                sparse_csr(self.pattern.crow, self.pattern.column, values, self.pattern.shape)
                for values in torch.atleast_2d(self.values.detach())
            ]
