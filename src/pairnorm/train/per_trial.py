"""A plain module over [nodes, features], or a plain model over those and edges, once for every trial."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pairnorm.base.errors import PairNormError
from pairnorm.nn.find_convolutions import graph_convolutions
from pairnorm.nn.layers import Features
from pairnorm.nn.ops.sparse_product import Pattern
from pairnorm.nn.propagate import Normalization, normalized_adjacency
from pairnorm.nn.sparse import SparseMatrix

# Jobs may run in several threads, and torch's generator is one for all.
GENERATOR = threading.Lock()


class PerTrial(nn.Module):
    """Copies of a module side by side: trial t of ``[nodes, models, features]`` is given to copy t.

    Parameters and buffers are stacked along a leading trial axis, as those of every model here.

    Args:
        make: makes the module.
        num_models: how many copies.
    """

    def __init__(self, make: Callable[[], nn.Module], num_models: int) -> None:
        super().__init__()
        self._make, self._modules_of = make, [make()]  # in a list, so that its own parameters are not ours
        copies = [make() for _ in range(num_models)]
        self._names = [name for name, _ in copies[0].named_parameters()]
        self._buffer_names = [name for name, _ in copies[0].named_buffers()]
        self.stacked = nn.ParameterList(
            torch.stack([copy.get_parameter(name).detach() for copy in copies]) for name in self._names
        )
        for number, name in enumerate(self._buffer_names):
            self.register_buffer(f"buffer_{number}", torch.stack([copy.get_buffer(name) for copy in copies]))
        self.num_models = num_models

    def reset_parameters(self, seeds: Sequence[int] | None = None) -> None:
        """Make every copy anew.

        Args:
            seeds: one for each trial, which its parameters then depend on alone.
        """
        for trial in range(self.num_models):
            forked = torch.random.fork_rng(devices=[], enabled=seeds is not None)
            with GENERATOR, forked, torch.no_grad():
                if seeds is not None:
                    torch.default_generator.manual_seed(seeds[trial])
                copy = self._make()
                for ours, name in zip(self.stacked, self._names, strict=True):
                    ours[trial] = copy.get_parameter(name)
                for number, name in enumerate(self._buffer_names):
                    self.get_buffer(f"buffer_{number}")[trial] = copy.get_buffer(name)

    @property
    def module(self) -> nn.Module:
        """One of them, with parameters that are none of these."""
        return self._modules_of[0].train(self.training)

    def call(self, trial: int, *given: Any) -> Any:
        """Return what copy ``trial`` makes of what it is given."""
        buffers = (self.get_buffer(f"buffer_{number}") for number in range(len(self._buffer_names)))
        state = {name: ours[trial] for name, ours in zip(self._names, self.stacked, strict=True)}
        state |= {name: ours[trial] for name, ours in zip(self._buffer_names, buffers, strict=True)}
        return functional_call(self.module, state, given)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the copies make of ``[nodes, models, features]``."""
        return torch.stack([self.call(trial, x[:, trial]) for trial in range(self.num_models)], 1)

    def extra_repr(self) -> str:
        """The module, for ``repr``."""
        return f"{self._modules_of[0]!r}, num_models={self.num_models}"


class ModelPerTrial(nn.Module):
    """Copies of a model of anybody's side by side, which trains as those of ``pairnorm.nn`` do.

    On a CPU what a copy draws (its dropout) depends on the keys of its own trial. On CUDA it comes from
    torch's generator: to read a key there would be a synchronization.

    Args:
        make: makes the model; ``model(x, edge_index)`` takes features ``[nodes, features]``, dense, and the
            edges without self-loops, and returns logits ``[nodes, classes]``.
        num_models: how many copies.
        dropout: what the model was made with.
        adjacency: has no effect: the model is given the edges alone.
    """

    num_keys, drop_edge = 1, 0.0

    def __init__(
        self,
        make: Callable[[], nn.Module],
        num_models: int,
        dropout: float = 0.0,
        adjacency: Normalization = "rw",
    ) -> None:
        super().__init__()
        self.copies = PerTrial(make, num_models)
        self.num_models, self.dropout, self.adjacency = num_models, dropout, adjacency

    def normalized_adjacency(self, adjacency: Tensor, num_nodes: int | None = None) -> SparseMatrix:
        """Normalize an adjacency, as the other models do; the edges are read off it again."""
        return normalized_adjacency(adjacency, self.adjacency, num_nodes)

    def reset_parameters(self, seeds: Sequence[int] | None = None) -> None:
        """Make every copy anew, from its seed where there are any."""
        self.copies.reset_parameters(seeds)

    def convolutions(self) -> list[nn.Module]:
        """Return the graph convolutions that all copies share, for hooks; none where none is recognized."""
        try:
            return [*graph_convolutions(self.copies.module).values()]
        except PairNormError:
            return []

    def forward(self, x: Features, adjacency: Tensor | SparseMatrix, keys: Tensor | None = None) -> Tensor:
        """Return logits ``[nodes, models, classes]``; as for ``GCN``, with ``keys`` ``[1, 2, models]``."""
        if not isinstance(adjacency, SparseMatrix):
            adjacency = self.normalized_adjacency(
                adjacency, x.shape[0] if isinstance(x, Tensor) else x.num_rows
            )
        edges, logits = _edge_index(adjacency.pattern), []
        shared = _dense(x, 0) if _is_shared(x) else None
        for trial in range(self.num_models):
            with _drawn_from(None if keys is None or not self.training else keys[0, 0, trial]):
                logits.append(self.copies.call(trial, _dense(x, trial) if shared is None else shared, edges))
        return torch.stack(logits, 1)

    def hidden_and_logits(
        self, x: Features, adjacency: Tensor | SparseMatrix, keys: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return what the last graph convolution takes in, ``[nodes, models, ...]``, and the logits.

        Where no convolution is recognized, the logits stand for both.
        """
        taken: list[Tensor] = []

        def keep(module: nn.Module, given: tuple[Any, ...]) -> None:
            taken.extend(given[:1])

        handles = [last.register_forward_pre_hook(keep) for last in self.convolutions()[-1:]]
        try:
            logits = self(x, adjacency, keys)
        finally:
            for handle in handles:
                handle.remove()
        calls = len(taken) // self.num_models  # of a convolution that supports several layers
        return torch.stack(taken[calls - 1 :: calls], 1) if calls else logits, logits


def _edge_index(pattern: Pattern) -> Tensor:
    """The edges ``[2, edges]`` as PyG has them, from source to target, without self-loops."""
    if "edge_index" not in pattern.derived:
        edges = torch.stack([pattern.column, pattern.row]).long()
        pattern.derived["edge_index"] = edges[:, edges[0] != edges[1]]
    found: Tensor = pattern.derived["edge_index"]
    return found


def _is_shared(x: Features) -> bool:
    if isinstance(x, SparseMatrix):
        return x.values.dim() == 1
    return x.dim() == 2 or x.size(1) == 1


def _dense(x: Features, trial: int) -> Tensor:
    """The features of a trial, ``[nodes, features]``."""
    if isinstance(x, SparseMatrix):
        return SparseMatrix(x.pattern, torch.atleast_2d(x.values)[trial]).to_dense()
    if x.layout != torch.strided:
        return x.to_dense()
    return x if x.dim() == 2 else x[:, trial]


@contextmanager
def _drawn_from(key: Tensor | None) -> Iterator[None]:
    """Let torch draw as this key of a trial says."""
    if key is None or key.is_cuda:
        yield
        return
    with GENERATOR, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(key))
        yield
