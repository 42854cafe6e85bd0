"""Sparse products and attention whose operand is distributed over ranks by rows, and by columns in between.

Every rank has the whole matrix and a block of the operand's columns, so the graph is not partitioned: a rank
sends (P - 1)/P² of a state to get its columns, and as much to give them back.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from pairnorm.base.errors import PairNormError
from pairnorm.nn.ops.convolution import attend
from pairnorm.nn.ops.dropout import factor, keep_entries
from pairnorm.nn.ops.pair_norm import Norm
from pairnorm.nn.ops.sparse_product import Pattern, activate
from pairnorm.nn.sparse import SparseMatrix

if TYPE_CHECKING:
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

    is_sharded: ClassVar[bool] = True

    @property
    def first_row(self) -> int:
        """The number of the first own row."""
        return int(self.rows.start)

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

    def attend(
        self, scores: Tensor, z: Tensor, bias: Tensor | None = None, activation: str = "none",
        rate: float = 0.0, keys: Tensor | None = None, norm: Norm | None = None,
    ) -> Tensor:  # fmt: skip
        """Return own rows of ``pairnorm.nn.ops.convolution.attend``, of own rows.

        In addition to what a product sends, a rank sends its scores to all others: 2 (P - 1)/P numbers per
        node and model, and as many backward.
        """
        nodes, models, width = self.pattern.shape[0], z.size(1), z.size(2)
        group = self.process_group
        scores = all_rows(scores, nodes, group)
        rows = z.transpose(1, 2).flatten(1)  # features first: a rank has some features of every model
        columns = to_columns(rows, nodes, group, models).view(nodes, -1, models).transpose(1, 2)
        if columns.size(2):
            columns = attend(
                SparseMatrix(self.pattern, self.values), scores, columns.contiguous(), rate=rate, keys=keys
            )
        else:  # a rank without columns takes part in the gradient of the scores all the same
            columns = columns + 0 * scores.sum()
        rows = to_rows(columns.transpose(1, 2).flatten(1), width * models, group, models)
        y = rows.view(-1, width, models).transpose(1, 2).contiguous()
        y = y if bias is None else activate(y, bias, activation)
        return y if norm is None else norm(y)


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

    def drop_entries(self, rate: float, keys: Tensor) -> SparseMatrix:
        """Drop the entries that dropout of the larger matrix drops."""
        kept = keep_entries(keys, self.first_entry, self.pattern.num_entries, self.entries, rate)
        return SparseMatrix(self.pattern, kept.mul_(factor(rate)).to(self.values.dtype) * self.values)

    def to(self, device: "torch.device | str") -> "SparseRows":
        """Move to a device."""
        pattern, values = self.pattern.to(device), self.values.to(device)
        return SparseRows(pattern, values, self.first_entry, self.entries)


def blocks(count: int, ranks: int) -> list[int]:
    """Share things out among ranks, as even as can be."""
    return [count // ranks + (rank < count % ranks) for rank in range(ranks)]


def to_columns(rows: Tensor, nodes: int, group: "dist.ProcessGroup", unit: int = 1) -> Tensor:
    """Give away own rows ``[own, columns]`` and get own columns of all ``[nodes, own]``.

    Args:
        rows: of this rank.
        nodes: the rows of all ranks.
        group: of the ranks.
        unit: so many columns stay together.
    """
    result: Tensor = _ToColumns.apply(rows, nodes, group, unit)
    return result


def to_rows(columns: Tensor, width: int, group: "dist.ProcessGroup", unit: int = 1) -> Tensor:
    """Give away own columns ``[nodes, own]`` and get own rows of all ``[own, width]``."""
    result: Tensor = _ToRows.apply(columns, width, group, unit)
    return result


def all_rows(rows: Tensor, nodes: int, group: "dist.ProcessGroup") -> Tensor:
    """Return the rows of all ranks, ``[nodes, ...]``; its gradient is the sum over what they make of it."""
    result: Tensor = _AllRows.apply(rows, nodes, group)
    return result


class _AllRows(torch.autograd.Function):
    """Own rows go to every rank; every rank's gradient of them comes back, and is added up."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, nodes: int, group: "dist.ProcessGroup") -> Tensor:
        ctx.nodes, ctx.group, ranks = nodes, group, group.size()
        width = rows.shape[1:].numel()
        given = [count * width for count in blocks(nodes, ranks)]
        copies = rows.flatten().repeat(ranks)
        return _exchange(copies, [rows.numel()] * ranks, given, group).view(nodes, *rows.shape[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        group, width = ctx.group, grad.shape[1:].numel()
        counts = blocks(ctx.nodes, group.size())
        own = counts[group.rank()]
        sizes = [count * width for count in counts]
        parts = _exchange(grad.flatten(), sizes, [own * width] * group.size(), group)
        return parts.view(group.size(), own, *grad.shape[1:]).sum(0), None, None


class _ToColumns(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, nodes: int, group: "dist.ProcessGroup", unit: int) -> Tensor:
        ctx.width, ctx.group, ctx.unit = rows.size(1), group, unit
        widths, counts = _units(ctx.width, unit, group), blocks(nodes, group.size())
        own = widths[group.rank()]
        parts = torch.cat([part.flatten() for part in rows.split(widths, 1)])
        sizes = [count * own for count in counts]
        return _exchange(parts, [len(rows) * width for width in widths], sizes, group).view(nodes, own)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return to_rows(grad, ctx.width, ctx.group, ctx.unit), None, None, None


class _ToRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, columns: Tensor, width: int, group: "dist.ProcessGroup", unit: int) -> Tensor:
        ctx.nodes, ctx.group, ctx.unit = columns.size(0), group, unit
        widths, counts = _units(width, unit, group), blocks(ctx.nodes, group.size())
        own = counts[group.rank()]
        sizes = [count * columns.size(1) for count in counts]
        parts = _exchange(columns.flatten(), sizes, [own * width for width in widths], group)
        pieces = parts.split([own * width for width in widths])
        return torch.cat([part.view(own, width) for part, width in zip(pieces, widths, strict=True)], 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return to_columns(grad, ctx.nodes, ctx.group, ctx.unit), None, None, None


def _units(width: int, unit: int, group: "dist.ProcessGroup") -> list[int]:
    return [unit * count for count in blocks(width // unit, group.size())]


def _exchange(parts: Tensor, sizes: list[int], given: list[int], group: "dist.ProcessGroup") -> Tensor:
    """Send every rank its part, and return what all have sent."""
    result = parts.new_empty(sum(given))
    dist.all_to_all_single(result, parts.contiguous(), given, sizes, group=group)
    return result
