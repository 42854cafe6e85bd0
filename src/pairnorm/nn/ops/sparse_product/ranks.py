"""A sparse product whose operand is shared out among ranks by rows: between, they hold columns.

Every rank has the whole matrix and a block of the operand's columns, so a graph needs no partitioning: a rank
sends (P - 1)/P² of a state to get its columns, and as much to give them back.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from pairnorm.base.errors import PairNormError
from pairnorm.nn.ops.collectives import to_columns, to_rows
from pairnorm.nn.ops.pattern import Pattern
from pairnorm.nn.ops.sparse_product.plain import SparseMatrix

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup


@dataclass(frozen=True, eq=False)
class ShardedMatrix(SparseMatrix):
    """A square matrix that every rank has; ``matrix @ rows`` takes own rows and returns own rows.

    Args:
        rows: which rows are this rank's.
        process_group: of the ranks.
    """

    rows: slice
    process_group: "ProcessGroup"

    @property
    def num_rows(self) -> int:
        """The number of own rows."""
        return int(self.rows.stop - self.rows.start)

    def __matmul__(self, dense: Tensor) -> Tensor:
        if dense.size(0) != self.num_rows:
            problem = f"the features have shape {list(dense.shape)}"
            expected = f"[{self.num_rows}, ...], this rank's rows"
            raise PairNormError(problem, code="wrong-shape", value=list(dense.shape), expected=expected)
        nodes, width = self.pattern.shape[0], dense[0].numel() if len(dense) else dense.shape[1:].numel()
        columns = to_columns(dense.flatten(1), nodes, self.process_group)
        # A rank without columns still takes part in what follows, and in its gradient.
        product = SparseMatrix(self.pattern, self.values) @ columns if columns.size(1) else columns * 1
        return to_rows(product, width, self.process_group).view(dense.shape)


@dataclass(frozen=True, eq=False)
class SparseRows(SparseMatrix):
    """Some rows of a larger sparse matrix, whose dropout is that of the whole.

    Args:
        first_entry: how many entries come before.
        entries: how many the larger matrix has.
    """

    first_entry: int
    entries: int

    @classmethod
    def of(cls, matrix: SparseMatrix, rows: slice) -> "SparseRows":
        """Cut rows out of a matrix."""
        crow = matrix.pattern.crow[rows.start : rows.stop + 1]
        first, last = int(crow[0]), int(crow[-1])
        shape = (rows.stop - rows.start, matrix.pattern.shape[1])
        pattern = Pattern(crow - first, matrix.pattern.column[first:last], shape)
        return cls(pattern, matrix.values[..., first:last], first, matrix.pattern.num_entries)

    def to(self, device: "torch.device | str") -> "SparseRows":
        """Move to a device."""
        pattern, values = self.pattern.to(device), self.values.to(device)
        return SparseRows(pattern, values, self.first_entry, self.entries)
