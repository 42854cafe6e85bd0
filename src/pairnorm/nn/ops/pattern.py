"""Where the entries of a sparse matrix stand."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor


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
