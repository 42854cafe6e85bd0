r"""Full-graph training of GCN, GAT and SGC by the ranks of a process group, under ``torchrun`` for instance.

A state is shared out by rows for linear maps, activations and PairNorm, by columns for the sparse product:
each of P ranks holds 1/P of every state and the whole adjacency, so the graph is not partitioned. Loss,
gradients and masks of dropout are those of one process. Of a layer's output a rank sends 2(P - 1)/P² forward,
and as much backward; GAT's scores go to all ranks beside it.
"""

import gc
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pairnorm.base.errors import PairNormError, whole_number
from pairnorm.nn.models import GAT, GCN, SGC, DeepModel
from pairnorm.nn.ops.moments import all_sum, check_group
from pairnorm.nn.pair_norm import PairNorm
from pairnorm.nn.sparse import SparseMatrix
from pairnorm.train.sharding import ShardedMatrix, SparseRows, blocks

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

M = TypeVar("M", bound=nn.Module)
T = TypeVar("T")


class Shards:
    """How ranks share out the nodes of one graph, and what they do together.

    All methods are for all ranks to call, in the same order.

    Args:
        num_nodes: of the graph.
        process_group: of the ranks; default: all of them.

    Example:
        >>> import tempfile
        >>> from pairnorm.nn import GCN, normalized_adjacency
        >>> store = dist.FileStore(tempfile.mktemp(), 1)
        >>> dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        >>> shards = Shards(num_nodes=3)
        >>> model = shards.join(GCN(in_channels=4, out_channels=2, num_layers=3, norm="PN-SI"))
        >>> adjacency = shards.adjacency(normalized_adjacency(torch.tensor([[0, 1, 2], [1, 2, 0]])))
        >>> x, labels = shards.own(torch.rand(3, 4)), shards.own(torch.tensor([0, 1, 1]))
        >>> loss = shards.cross_entropy(model(x, adjacency), labels)
        >>> loss.backward()
        >>> shards.sum_gradients(model)
        >>> dist.destroy_process_group()
    """

    def __init__(self, num_nodes: int, process_group: "ProcessGroup | None" = None) -> None:
        self.num_nodes = whole_number("num_nodes", num_nodes)
        self.process_group = check_group(dist.group.WORLD if process_group is None else process_group)
        self.rows = self._share(num_nodes)

    def own(self, x: Tensor | SparseMatrix) -> Tensor | SparseMatrix:
        """Return this rank's rows of what is about all nodes: features, labels, masks."""
        count = x.pattern.shape[0] if isinstance(x, SparseMatrix) else x.size(0)
        if count != self.num_nodes:
            expected = f"{self.num_nodes}, one a node"
            raise PairNormError(f"there are {count} rows", code="wrong-shape", value=count, expected=expected)
        if isinstance(x, Tensor) and x.layout != torch.strided:
            x = SparseMatrix.from_torch(x)
        return SparseRows.of(x, self.rows) if isinstance(x, SparseMatrix) else x[self.rows]

    def adjacency(self, matrix: SparseMatrix) -> ShardedMatrix:
        """Return a normalized adjacency, which every rank has, as models take it that have own rows."""
        return ShardedMatrix(matrix.pattern, matrix.values, self.rows, self.process_group)

    def join(self, model: M) -> M:
        """Give a model the weights of the first rank, torch's generator its state, and PairNorm the ranks."""
        for module in model.modules():
            if _is_local(module):
                problem = f"the model has {type(module).__name__}"
                expected = "GCN, GAT or SGC, with PairNorm and skips, and no other method"
                raise PairNormError(
                    problem, code="unknown-choice", value=type(module).__name__, expected=expected
                )
            if isinstance(module, PairNorm):
                module.process_group = self.process_group
        source = dist.get_global_rank(self.process_group, 0)
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor.detach(), source, group=self.process_group)
        torch.set_rng_state(self.of_first(torch.get_rng_state()))
        return model

    def of_first(self, value: T) -> T:
        """Return what the first rank gives."""
        values = [value]
        dist.broadcast_object_list(values, dist.get_global_rank(self.process_group, 0), self.process_group)
        return values[0]

    def of_all(self, value: T) -> list[T]:
        """Return what every rank gives."""
        values: list[T] = [value] * self.process_group.size()
        dist.all_gather_object(values, value, self.process_group)
        return values

    def among(self, things: Sequence[T]) -> Sequence[T]:
        """Return this rank's share of what ranks share out among themselves, in order."""
        return things[self._share(len(things))]

    def _share(self, count: int) -> slice:
        """Which of so many are this rank's."""
        sizes, rank = blocks(count, self.process_group.size()), self.process_group.rank()
        return slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))

    def leave(self, model: M) -> M:
        """Make a model one that a process uses by itself, on whole graphs."""
        for module in model.modules():
            if isinstance(module, PairNorm):
                module.process_group = None
        return model

    def cross_entropy(self, logits: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the mean loss over the nodes of all ranks; the gradient is of this rank's part of it.

        Args:
            logits: of own nodes, ``[nodes, classes]``, or ``[nodes, trials, classes]``: losses are summed.
            labels: of own nodes.
            mask: which own nodes count; default: all.
        """
        if mask is not None:
            logits, labels = logits[mask], labels[mask]
        classes, *middle = (logits.size(-1), *logits.shape[1:-1])
        labels = labels.view(-1, *[1] * len(middle)).expand(-1, *middle)
        losses = cross_entropy(logits.reshape(-1, classes), labels.flatten(), reduction="none")
        return self.mean(losses.view(labels.shape)).sum()

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean over the nodes of all ranks; the gradient is of this rank's part of it.

        Args:
            values: of some own nodes, perhaps none, ``[nodes, ...]``.
        """
        part = values.sum(0)
        with torch.no_grad():
            count = part.new_full((1,), len(values), dtype=torch.float64)
            sums = all_sum(torch.cat([part.double().flatten(), count]), self.process_group)
            total, count = sums[:-1].view_as(part), sums[-1]
        part = part / count.to(part.dtype)
        mean: Tensor = part + ((total / count).to(part.dtype) - part).detach()
        return mean

    def any(self, here: bool) -> bool:
        """Say whether something is so on any rank, where all ask: then they go on alike."""
        on_gpu = dist.get_backend(self.process_group) == "nccl"
        flag = torch.tensor(float(here), device="cuda" if on_gpu else "cpu")
        return bool(all_sum(flag, self.process_group))

    def sum_gradients(self, model: nn.Module) -> None:
        """Add up the gradients of all ranks, in one collective; call it after ``backward``."""
        gradients = [
            torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            for parameter in model.parameters()
            if parameter.requires_grad
        ]
        total = all_sum(torch.cat([gradient.flatten() for gradient in gradients]), self.process_group)
        parts = total.split([gradient.numel() for gradient in gradients])
        for parameter, part in zip(
            (one for one in model.parameters() if one.requires_grad), parts, strict=True
        ):
            parameter.grad = part.view_as(parameter)


def launched_ranks() -> int:
    """Return how many processes ``torchrun`` has started; 1 where it did not."""
    return int(os.environ.get("WORLD_SIZE", 1))


@contextmanager
def ranks() -> Iterator[int]:
    """Join the processes that ``torchrun`` has started, if it did; give this one's rank, 0 if it is alone.

    A GPU for each process of this machine, where there are as many: NCCL knows no other way.
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
            # torchrun's store outlives a restart, and with it the addresses of the dead: pytorch#135712.
            # Launchers of several machines do not agree on the number of a restart.
            store = PrefixStore(os.environ["TORCHELASTIC_RESTART_COUNT"], store)
        dist.init_process_group("nccl" if on_gpu else "gloo", store=store, rank=rank, world_size=size)
    except RuntimeError as error:
        raise PairNormError(
            f"the ranks did not find one another ({str(error).splitlines()[0]})",
            code="rank-died",
            hint="Start all of them again; after restarts of several machines, with "
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1.",
        ) from error
    try:
        with warnings.catch_warnings():  # a PairNorm of no group has whole graphs here
            warnings.filterwarnings("ignore", "PairNorm without process_group")
            yield dist.get_rank()
    finally:
        # The threads of a group end with the last that knows it. One that lets a tensor go after
        # Python has ended aborts the process.
        gc.collect()
        dist.destroy_process_group()


def shards_of(num_nodes: int) -> Shards | None:
    """Return how the ranks share the nodes of a graph; None where there is one process."""
    together = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    return Shards(num_nodes) if together else None


def _is_local(module: nn.Module) -> bool:
    """Say whether a module of ours would, on own rows, not do what it does on all."""
    if isinstance(module, DeepModel):
        other = isinstance(module, GCN | GAT) and (module.drop_edge or module.residuals is not None)
        return bool(other) or not isinstance(module, GCN | GAT | SGC)
    return type(module).__module__.startswith("pairnorm.nn.norms.")
