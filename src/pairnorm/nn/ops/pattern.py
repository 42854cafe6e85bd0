"""The sparsity pattern of a matrix: the positions of its entries in compressed rows (CSR)."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from pairnorm.base.errors import PairNormError

# Beyond this many entries, 32 bits do not hold their positions: kernels look a few entries ahead.
MAX_ENTRIES_IN_32_BITS = 2**31 - 2**16
ENTRIES_PER_BLOCK = 2**20


def index_dtype(entries: int) -> torch.dtype:
    """Return the integer type that holds the positions of this many entries."""
    return torch.int32 if entries <= MAX_ENTRIES_IN_32_BITS else torch.int64


def tensor_version(tensor: Tensor) -> int | None:
    """Return the counter of in-place changes of a tensor; None where torch does not count them."""
    return None if tensor.is_inference() else tensor._version


def row_starts(counts: Tensor) -> Tensor:
    """Return where rows with these numbers of entries start, and where the last one ends, ``[rows + 1]``."""
    ends = counts.cumsum(0, dtype=torch.int64)
    total = int(ends[-1]) if len(ends) else 0
    return torch.cat([ends.new_zeros(1), ends]).to(index_dtype(total))


@dataclass(frozen=True, eq=False)
class Pattern:
    """Positions of the entries of a sparse matrix, row by row, with what kernels derive from them.

    Args:
        crow: Where the entries of every row start, and where the last row ends, ``[rows + 1]``.
        column: Column of every entry.
        shape: Numbers of rows and columns.
    """

    crow: Tensor
    column: Tensor
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        if max(self.shape) >= 2**31:
            problem = f"the matrix has shape {list(self.shape)}"
            expected = "fewer than 2³¹ rows and columns"
            raise PairNormError(problem, code="too-large", value=self.shape, expected=expected)

    def validate(self) -> "Pattern":
        """Raise an error unless the rows are ordered and the columns in range; return the pattern.

        Kernels read memory by these numbers without a check.
        """
        if self.crow.device.type == "meta":
            return self
        rows, columns = self.shape
        crow, entries = self.crow, self.num_entries
        ends = len(crow) == rows + 1 and int(crow[0]) == 0 and int(crow[-1]) == entries
        if not ends or bool((crow[1:] < crow[:-1]).any()):
            problem = f"the row starts are not those of {rows} rows with {entries} entries"
            expected = f"{rows + 1} increasing numbers from 0 to {entries}"
            raise PairNormError(problem, code="out-of-range", value=len(crow), expected=expected)
        if entries:
            low, high = (int(bound) for bound in self.column.aminmax())
            if low < 0 or high >= columns:
                problem = f"the sparse matrix has column {low if low < 0 else high}, of {columns} columns"
                expected = f"columns from 0 to {columns - 1}"
                value = low if low < 0 else high
                raise PairNormError(problem, code="out-of-range", value=value, expected=expected)
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

    @cached_property
    def derived(self) -> dict[str, Any]:
        """What kernels derive from the pattern, by name."""
        return {}

    def to(self, device: torch.device | str) -> "Pattern":
        """Move to a device."""
        return Pattern(self.crow.to(device), self.column.to(device), self.shape)
