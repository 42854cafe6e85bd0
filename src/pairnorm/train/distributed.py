r"""Full-graph training of GCN, GAT and SGC by the ranks of a process group, under ``torchrun`` for instance.

Ranks share a state by rows for linear maps, activations and PairNorm, and by columns for the sparse product.
Each of P ranks has 1/P of every state and the whole adjacency, so the graph is not partitioned. Loss,
gradients and dropout masks equal those of one process. Per layer, a rank sends 2(P - 1)/P² of the output
forward, and as much backward; GAT sends its scores to all ranks in addition.
"""

import gc
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pairnorm.base.errors import PairNormError, whole_number
from pairnorm.nn.models import GAT, GCN, SGC, DeepModel
from pairnorm.nn.ops.convolution import attend
from pairnorm.nn.ops.dropout import factor, keep_mask
from pairnorm.nn.ops.pair_norm import all_sum, check_group
from pairnorm.nn.ops.sparse_product import Pattern, activate
from pairnorm.nn.pair_norm import PairNorm
from pairnorm.nn.sparse import SparseMatrix

M = TypeVar("M", bound=nn.Module)
T = TypeVar("T")


class Shards:
    """The division of a graph's nodes among ranks, and the collectives of training.

    Every rank must call every method, in the same order; docs/scale.md has an example.

    Args:
        num_nodes: of the graph.
        process_group: of the ranks; default: all of them.
    """

    def __init__(self, num_nodes: int, process_group: "dist.ProcessGroup | None" = None) -> None:
        self.num_nodes = whole_number("num_nodes", num_nodes)
        self.process_group = check_group(dist.group.WORLD if process_group is None else process_group)
        self.num_ranks = self.process_group.size()
        self.rows = self._share(num_nodes)

    def local_rows(self, x: Tensor | SparseMatrix) -> Tensor | SparseMatrix:
        """Return this rank's rows of a tensor over all nodes, such as features, labels or masks."""
        count = x.pattern.shape[0] if isinstance(x, SparseMatrix) else x.size(0)
        if count != self.num_nodes:
            expected = f"{self.num_nodes}, one per node"
            raise PairNormError(f"there are {count} rows", code="wrong-shape", value=count, expected=expected)
        if isinstance(x, Tensor) and x.layout != torch.strided:
            x = SparseMatrix.from_torch(x)
        return SparseRows.of(x, self.rows) if isinstance(x, SparseMatrix) else x[self.rows]

    def adjacency(self, matrix: SparseMatrix) -> "ShardedMatrix":
        """Return a normalized adjacency, which every rank has, for models whose input is this rank's rows."""
        return ShardedMatrix(matrix.pattern, matrix.values, self.rows, self.process_group)

    def join(self, model: M) -> M:
        """Copy the weights and generator state of the first rank to all, and connect PairNorm to them."""
        for module in model.modules():
            if _is_local(module):
                name, expected = (
                    type(module).__name__,
                    "GCN, GAT or SGC, with PairNorm and skips, and no other method",
                )
                raise PairNormError(
                    f"the model has {name}", code="unknown-choice", value=name, expected=expected
                )
            if isinstance(module, PairNorm):
                module.process_group = self.process_group
        source = dist.get_global_rank(self.process_group, 0)
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor.detach(), source, group=self.process_group)
        torch.set_rng_state(self.of_first(torch.get_rng_state()))
        return model

    def leave(self, model: M) -> M:
        """Remove the group from a model, so that one process can use it on whole graphs."""
        for module in model.modules():
            if isinstance(module, PairNorm):
                module.process_group = None
        return model

    def of_first(self, value: T) -> T:
        """Return the value of the first rank."""
        return self.of_all(value)[0]

    def of_all(self, value: T) -> list[T]:
        """Return the values of all ranks."""
        values: list[T] = [value] * self.num_ranks
        dist.all_gather_object(values, value, self.process_group)
        return values

    def local_items(self, items: Sequence[T]) -> Sequence[T]:
        """Return this rank's share of a sequence that every rank has, in order."""
        return items[self._share(len(items))]

    def _share(self, count: int) -> slice:
        """Return the slice of this rank of N items."""
        sizes, rank = blocks(count, self.num_ranks), self.process_group.rank()
        return slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))

    def cross_entropy(self, logits: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the mean loss over the nodes of all ranks; the gradient is of this rank's part of it.

        Args:
            logits: of local nodes, ``[nodes, classes]``, or ``[nodes, trials, classes]``: losses are summed.
            labels: of local nodes.
            mask: local nodes that count; default: all.
        """
        if mask is not None:
            logits, labels = logits[mask], labels[mask]
        labels = labels.view(-1, *[1] * (logits.dim() - 2)).expand(logits.shape[:-1])
        return self.mean(cross_entropy(logits.movedim(-1, 1), labels, reduction="none")).sum()

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean of ``[nodes, ...]`` over all ranks; the gradient is of this rank's part of it."""
        part = values.sum(0)
        with torch.no_grad():
            count = part.new_full((1,), len(values), dtype=torch.float64)
            sums = all_sum(torch.cat([part.double().flatten(), count]), self.process_group)
            total, count = sums[:-1].view_as(part), sums[-1]
        part = part / count.to(part.dtype)
        mean: Tensor = part + ((total / count).to(part.dtype) - part).detach()
        return mean

    def any(self, here: bool) -> bool:
        """Return whether the condition is true on any rank."""
        return any(self.of_all(here))

    def sum_gradients(self, model: nn.Module) -> None:
        """Sum the gradients of all ranks in one collective; call it after ``backward``."""
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        total = all_sum(torch.cat([gradient.flatten() for gradient in gradients]), self.process_group)
        parts = total.split([gradient.numel() for gradient in gradients])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter)


def launched_ranks() -> int:
    """Return the number of processes that ``torchrun`` has started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", 1))


@contextmanager
def ranks() -> Iterator[int]:
    """Join the processes that ``torchrun`` has started, if any, and yield the rank of this one.

    Ranks use NCCL if this machine has a GPU for each of its processes, else gloo.
    """
    if launched_ranks() == 1:
        yield 0
        return
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    on_gpu = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    try:
        store, rank, size = next(rendezvous("env://"))
        if os.environ.get("GROUP_WORLD_SIZE") == "1":
            # torchrun's store outlives a restart, with the addresses of dead processes: pytorch#135712.
            # Launchers of several machines do not agree on the number of a restart.
            store = PrefixStore(os.environ["TORCHELASTIC_RESTART_COUNT"], store)
        dist.init_process_group("nccl" if on_gpu else "gloo", store=store, rank=rank, world_size=size)
    except RuntimeError as error:
        problem = f"the ranks did not find one another ({str(error).splitlines()[0]})"
        hint = "Start all of them again; after restarts of several machines, with "
        hint += "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1."
        raise PairNormError(problem, code="rank-died", hint=hint) from error
    try:
        with warnings.catch_warnings():  # a PairNorm without a group has whole graphs here
            warnings.filterwarnings("ignore", "PairNorm without process_group")
            yield dist.get_rank()
    finally:
        # The threads of a group end with its last reference. One that frees a tensor after Python has ended
        # aborts the process.
        gc.collect()
        dist.destroy_process_group()


def shards_of(num_nodes: int) -> Shards | None:
    """Return the division of a graph's nodes among the ranks; None if there is one process."""
    together = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    return Shards(num_nodes) if together else None


def _is_local(module: nn.Module) -> bool:
    """Return whether a module of this package would compute something else on local rows than on all."""
    if isinstance(module, DeepModel):
        other = isinstance(module, GCN | GAT) and (module.drop_edge or module.residuals is not None)
        return bool(other) or not isinstance(module, GCN | GAT | SGC)
    return type(module).__module__.startswith("pairnorm.nn.norms.")


@dataclass(frozen=True, eq=False)
class ShardedMatrix(SparseMatrix):
    """A square matrix that every rank has; ``matrix @ rows`` maps local rows to local rows.

    Args:
        rows: this rank's rows.
        process_group: of the ranks.
    """

    rows: slice
    process_group: "dist.ProcessGroup"

    is_sharded: ClassVar[bool] = True

    @property
    def first_row(self) -> int:
        """The number of the first local row."""
        return int(self.rows.start)

    @property
    def num_rows(self) -> int:
        """The number of local rows."""
        return int(self.rows.stop - self.rows.start)

    def __matmul__(self, dense: Tensor) -> Tensor:
        if dense.size(0) != self.num_rows:
            problem = f"the features have shape {list(dense.shape)}"
            expected = f"[{self.num_rows}, ...], this rank's rows"
            raise PairNormError(problem, code="wrong-shape", value=list(dense.shape), expected=expected)
        matrix = SparseMatrix(self.pattern, self.values)
        return self._by_columns(dense.flatten(1), matrix.__matmul__).view(dense.shape)

    def _by_columns(
        self, rows: Tensor, function: Callable[[Tensor], Tensor], unit: int = 1, unused: Tensor | float = 0.0
    ) -> Tensor:
        """Return local rows of a function of all rows, which computes each rank's columns.

        Columns are divided in multiples of ``unit``. A rank without columns still takes part in the
        collectives, and in the gradients of the rows and of ``unused``.
        """
        columns = _to_columns(rows, self.pattern.shape[0], self.process_group, unit)
        columns = function(columns) if columns.size(1) else columns + 0 * unused
        return _to_rows(columns, rows.size(1), self.process_group, unit)

    def attend(
        self, scores: Tensor, z: Tensor, bias: Tensor | None = None, activation: str = "none",
        rate: float = 0.0, keys: Tensor | None = None, norm: PairNorm | None = None,
    ) -> Tensor:  # fmt: skip
        """Return the local rows of ``pairnorm.nn.ops.convolution.attend``, from local rows.

        In addition to the traffic of a product, a rank sends its scores to all others: 2 (P - 1)/P numbers
        per node and model, and as many backward.
        """
        nodes, models, matrix = self.pattern.shape[0], z.size(1), SparseMatrix(self.pattern, self.values)
        scores = all_rows(scores, nodes, self.process_group)

        def attend_columns(columns: Tensor) -> Tensor:
            part = columns.view(nodes, -1, models).transpose(1, 2).contiguous()
            return attend(matrix, scores, part, rate=rate, keys=keys).transpose(1, 2).flatten(1)

        rows = z.transpose(1, 2).flatten(1)  # features first: a rank has some features of every model
        y = self._by_columns(rows, attend_columns, models, scores.sum())
        y = y.view(len(z), -1, models).transpose(1, 2).contiguous()
        y = y if bias is None else activate(y, bias, activation)
        return y if norm is None else norm(y)


@dataclass(frozen=True, eq=False)
class SparseRows(SparseMatrix):
    """Rows of a larger sparse matrix, with the dropout mask of the larger matrix.

    Args:
        first_entry: number of entries before these rows.
        entries: number of entries of the larger matrix.
    """

    first_entry: int
    entries: int

    @classmethod
    def of(cls, matrix: SparseMatrix, rows: slice) -> "SparseRows":
        """Return the rows of a matrix in a slice."""
        crow = matrix.pattern.crow[rows.start : rows.stop + 1]
        first, last = int(crow[0]), int(crow[-1])
        shape = (rows.stop - rows.start, matrix.pattern.shape[1])
        pattern = Pattern(crow - first, matrix.pattern.column[first:last], shape)
        return cls(pattern, matrix.values[..., first:last], first, matrix.pattern.num_entries)

    def drop_entries(self, rate: float, keys: Tensor) -> SparseMatrix:
        """Drop the same entries as dropout of the larger matrix."""
        last = self.first_entry + self.pattern.num_entries
        mask = keep_mask(keys, 1, self.entries, rate)[0, :, self.first_entry : last]
        return SparseMatrix(self.pattern, (mask * factor(rate)).to(self.values.dtype) * self.values)

    def to(self, device: "torch.device | str") -> "SparseRows":
        """Move to a device."""
        return replace(self, pattern=self.pattern.to(device), values=self.values.to(device))


def blocks(count: int, ranks: int) -> list[int]:
    """Divide a count among ranks as evenly as possible."""
    return [count // ranks + (rank < count % ranks) for rank in range(ranks)]


def all_rows(rows: Tensor, nodes: int, group: "dist.ProcessGroup") -> Tensor:
    """Return the rows of all ranks, ``[nodes, ...]``; the gradient is summed over the ranks."""
    ranks, width = group.size(), rows.shape[1:].numel()
    received = [count * width for count in blocks(nodes, ranks)]
    copies = rows.flatten().repeat(ranks)
    return _exchange(copies, [rows.numel()] * ranks, received, group).view(nodes, *rows.shape[1:])


def _to_columns(rows: Tensor, nodes: int, group: "dist.ProcessGroup", unit: int = 1) -> Tensor:
    """Send local rows ``[rows, columns]``, receive local columns of all rows, ``[nodes, width]``.

    Columns are divided among ranks in multiples of ``unit``.
    """
    widths, counts = _units(rows.size(1), unit, group), blocks(nodes, group.size())
    width = widths[group.rank()]
    parts = torch.cat([part.flatten() for part in rows.split(widths, 1)])
    received = [count * width for count in counts]
    return _exchange(parts, [len(rows) * other for other in widths], received, group).view(nodes, width)


def _to_rows(columns: Tensor, width: int, group: "dist.ProcessGroup", unit: int = 1) -> Tensor:
    """Invert ``_to_columns``: send local columns, receive all columns of local rows, ``[rows, width]``."""
    widths, counts = _units(width, unit, group), blocks(len(columns), group.size())
    num_rows = counts[group.rank()]
    received = [num_rows * width for width in widths]
    parts = _exchange(columns.flatten(), [count * columns.size(1) for count in counts], received, group)
    pairs = zip(parts.split(received), widths, strict=True)
    return torch.cat([part.view(num_rows, width) for part, width in pairs], 1)


def _units(width: int, unit: int, group: "dist.ProcessGroup") -> list[int]:
    """Divide columns among ranks in multiples of ``unit``."""
    return [unit * count for count in blocks(width // unit, group.size())]


def _exchange(parts: Tensor, sent: list[int], received: list[int], group: "dist.ProcessGroup") -> Tensor:
    """Send every rank its part and return the parts that all ranks sent, both of the given sizes."""
    result: Tensor = _Exchange.apply(parts, sent, received, group)
    return result


class _Exchange(torch.autograd.Function):
    """An all-to-all, whose gradient goes the other way; the one of ``torch.distributed.nn`` is deprecated."""

    @staticmethod
    def forward(
        ctx: Any, parts: Tensor, sent: list[int], received: list[int], group: "dist.ProcessGroup"
    ) -> Tensor:
        """Send and receive the parts."""
        ctx.sizes = received, sent, group
        result = parts.new_empty(sum(received))
        dist.all_to_all_single(result, parts.contiguous(), received, sent, group=group)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        """Return the gradients to the ranks that sent the parts."""
        return _exchange(grad, *ctx.sizes), None, None, None
