"""Sparsity patterns (CSR), and products with sparse matrices, bias, activation and dropout included."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pairnorm.base.errors import PairNormError
from pairnorm.nn.ops.kernels import KernelFunction, find_kernels, needs_reference

if TYPE_CHECKING:
    from pairnorm.nn.sparse import SparseMatrix

# Beyond this many entries, 32 bits do not hold their positions: kernels look a few entries ahead.
MAX_ENTRIES_IN_32_BITS = 2**31 - 2**16
ENTRIES_PER_BLOCK = 2**20


def index_dtype(entries: int) -> torch.dtype:
    """Return the integer type that holds the positions of this many entries."""
    return torch.int32 if entries <= MAX_ENTRIES_IN_32_BITS else torch.int64


def tensor_version(tensor: Tensor) -> int | None:
    """Return the counter of in-place changes of a tensor; None where torch does not count them."""
    return None if tensor.is_inference() else tensor._version


def check_range(what: str, indices: Tensor, size: int, kind: str = "indices") -> None:
    """Raise an error if one of the indices is negative or not below ``size``."""
    low, high = (int(bound) for bound in indices.aminmax()) if indices.numel() else (0, -1)
    if low < 0 or high >= size:
        value = low if low < 0 else high
        problem, expected = f"{what} holds {value}", f"{kind} from 0 to {size - 1}"
        raise PairNormError(problem, code="out-of-range", value=value, expected=expected)


def row_starts(counts: Tensor) -> Tensor:
    """Return where rows with these numbers of entries start, and where the last one ends, ``[rows + 1]``."""
    ends = counts.cumsum(0, dtype=torch.int64)
    total = int(ends[-1]) if len(ends) else 0
    return torch.cat([ends.new_zeros(1), ends]).to(index_dtype(total))


@dataclass(frozen=True, eq=False)
class Pattern:
    """The positions of the entries of a sparse matrix: row starts ``[rows + 1]``, columns and shape."""

    crow: Tensor
    column: Tensor
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        if max(self.shape) >= 2**31:
            problem = f"the matrix has shape {list(self.shape)}"
            expected = "fewer than 2³¹ rows and columns"
            raise PairNormError(problem, code="too-large", value=self.shape, expected=expected)

    def validate(self) -> "Pattern":
        """Return the pattern, or raise an error: kernels read memory by its numbers without a check."""
        if self.crow.device.type == "meta":
            return self
        rows, columns = self.shape
        crow, entries = self.crow, self.num_entries
        ends = len(crow) == rows + 1 and int(crow[0]) == 0 and int(crow[-1]) == entries
        if not ends or bool((crow[1:] < crow[:-1]).any()):
            problem = f"the row starts are not those of {rows} rows with {entries} entries"
            expected = f"{rows + 1} increasing numbers from 0 to {entries}"
            raise PairNormError(problem, code="out-of-range", value=len(crow), expected=expected)
        check_range("the sparse matrix", self.column, columns, "columns")
        self.__dict__["_versions"] = self._current_versions()
        return self

    def check_unchanged(self) -> None:
        """Raise an error where the pattern is not valid, which is checked once, or was changed in place.

        After a change, what was derived from it is wrong, and kernels might read beyond the memory.
        """
        known = self.__dict__.get("_versions")
        if known is None:
            self.validate()
        elif self._current_versions() != known:
            problem = "the pattern of a sparse matrix was changed in place"
            hint = "Build a new matrix from the changed tensors, with SparseMatrix.from_torch."
            raise PairNormError(problem, code="changed-in-place", hint=hint)

    def _current_versions(self) -> tuple[int | None, int | None]:
        return tensor_version(self.crow), tensor_version(self.column)

    def __reduce__(self) -> Any:
        return Pattern, (self.crow, self.column, self.shape)  # copies count their changes from zero

    @property
    def num_entries(self) -> int:
        """The number of stored entries."""
        return self.column.numel()

    @cached_property
    def row(self) -> Tensor:
        """The row of each entry."""
        with torch.inference_mode(False):  # else training could not use it later
            counts = self.crow.diff()
            rows = torch.arange(self.shape[0], dtype=torch.int32, device=self.crow.device)
            return rows.repeat_interleave(counts, output_size=self.num_entries)

    @cached_property
    def order(self) -> Tensor:
        """The entries of the transpose, as positions among the entries of this matrix."""
        with torch.inference_mode(False):
            return torch.sort(self.column, stable=True).indices

    @cached_property
    def transposed(self) -> "Pattern":
        """The pattern of the transpose, its entries in the order of ``order``."""
        with torch.inference_mode(False):
            crow = row_starts(torch.bincount(self.column, minlength=self.shape[1]))
            return Pattern(crow, self.row[self.order], (self.shape[1], self.shape[0]))

    def blocks(self) -> Iterator[tuple[slice, slice, Tensor]]:
        """Yield complete rows, their entries, and the row of each entry, a few million entries at a time."""
        goals = torch.arange(0, self.num_entries, ENTRIES_PER_BLOCK, device=self.crow.device)
        first = torch.searchsorted(self.crow, goals, right=True)[1:] - 1
        bounds = sorted({0, *first.tolist(), self.shape[0]})
        for (start, begin), (stop, end) in pairwise(zip(bounds, self.crow[bounds].tolist(), strict=True)):
            rows = torch.arange(start, stop, device=self.crow.device)
            counts = self.crow[start : stop + 1].diff()
            row = rows.repeat_interleave(counts, output_size=end - begin)
            yield slice(start, stop), slice(begin, end), row

    @property
    def arrays(self) -> tuple[Any, Any]:
        """Row starts and columns as numpy arrays, on a CPU."""
        return self.crow.numpy(), self.column.numpy()

    @cached_property
    def derived(self) -> dict[str, Any]:
        """What kernels derive from the pattern, by name."""
        return {}

    def to(self, device: torch.device | str) -> "Pattern":
        """Move to a device."""
        return Pattern(self.crow.to(device), self.column.to(device), self.shape)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": torch.relu,
    "elu": torch.nn.functional.elu,
}
CODES = {name: code for code, name in enumerate(ACTIVATIONS)}
"""The numbers by which kernels know activations."""


def activate(x: Tensor, bias: Tensor, activation: str = "none") -> Tensor:
    """Return ``activation(x + bias)`` for ``[nodes, models, features]`` and ``[models, features]``."""
    return ACTIVATIONS[activation](x + bias).to(x.dtype)


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
    """Return left[row]·right[column] for every entry: ``[models, entries]``, or summed over models."""
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
        (y,) = ctx.saved_tensors
        kernels = None if torch.is_grad_enabled() else find_kernels("sparse_product", y)
        if kernels is not None:
            grad, grad_bias = kernels.activation_backward(grad.contiguous(), y, ctx.activation)
        else:
            if ctx.activation != "none":
                grad = grad * ((y > 0).to(y.dtype) if ctx.activation == "relu" else 1 + y.clamp(max=0))
            grad_bias = grad.sum(0)
        return None, None, ctx.matrix.transposed @ grad, grad_bias, None


def sparse_linear(x: "SparseMatrix", weight: Tensor, rate: float = 0.0, keys: Tensor | None = None) -> Tensor:
    """Return dropout(x)·W for every model, ``[nodes, models, out]``."""
    on_cpu = weight.device.type == "cpu"  # the only device with kernels for it
    kernels = find_kernels("sparse_product", weight) if on_cpu and x.values.dtype == weight.dtype else None
    if kernels is None or keys is None or rate == 0 or x.values.requires_grad:
        return _sparse_linear_reference(weight, x, rate, keys)
    x.pattern.check_unchanged()
    functions = (kernels.linear_forward, kernels.linear_backward, _sparse_linear_reference)
    return KernelFunction.apply(*functions, (x, rate, keys), weight)


def _sparse_linear_reference(weight: Tensor, x: "SparseMatrix", rate: float, keys: Tensor | None) -> Tensor:
    x = x if keys is None else x.drop_entries(rate, keys)
    return x @ weight.transpose(0, 1).contiguous()
