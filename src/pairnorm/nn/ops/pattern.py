"""Where the entries of a sparse matrix stand."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from pairnorm.base.errors import PairNormError

# Of more entries, 32 bits do not hold the places: kernels look a few entries ahead.
MOST_IN_32_BITS = 2**31 - 2**16
ENTRIES_PER_BLOCK = 2**20


def place_type(entries: int) -> torch.dtype:
    """Return the type that holds the places of so many entries: int32 as long as it does."""
    return torch.int32 if entries <= MOST_IN_32_BITS else torch.int64


def row_starts(counts: Tensor) -> Tensor:
    """Return where rows of so many entries start, and where the last ends, ``[rows + 1]``."""
    ends = counts.cumsum(0, dtype=torch.int64)
    total = int(ends[-1]) if len(ends) else 0
    return torch.cat([ends.new_zeros(1), ends]).to(place_type(total))


@dataclass(frozen=True, eq=False)
class Pattern:
    """Where the entries of a sparse matrix stand, row by row (CSR), and what follows from that."""

    crow: Tensor
    column: Tensor
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        if max(self.shape) >= 2**31:
            problem = f"the matrix has shape {list(self.shape)}"
            expected = "fewer than 2³¹ rows and columns"
            raise PairNormError(problem, code="too-large", value=self.shape, expected=expected)

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
        crow = row_starts(torch.bincount(self.column, minlength=self.shape[1]))
        return Pattern(crow, self.row[self.order], (self.shape[1], self.shape[0]))

    def blocks(self) -> Iterator[tuple[slice, slice, Tensor]]:
        """Yield whole rows, their entries, and the row of each of those, a few million entries at a time."""
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
        """What kernels derive from the pattern, kept with it."""
        return {}

    def to(self, device: torch.device | str) -> "Pattern":
        """Move to a device."""
        return Pattern(self.crow.to(device), self.column.to(device), self.shape)
