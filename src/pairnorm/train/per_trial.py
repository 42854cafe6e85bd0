"""A user's module without a trial axis, once per trial."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

from pairnorm.base.errors import PairNormError
from pairnorm.nn.find_convolutions import graph_convolutions
from pairnorm.nn.layers import Features
from pairnorm.nn.ops.sparse_product import Pattern
from pairnorm.nn.propagate import Normalization, normalized_adjacency
from pairnorm.nn.sparse import SparseMatrix

# Jobs may run in several threads, which share torch's generator.
GENERATOR = threading.Lock()


class PerTrial(nn.Module):
    """Copies of a module: trial t of ``[nodes, models, features]`` is the input of copy t.

    Parameters and buffers are stacked along a leading trial axis, as those of every model here.

    Args:
        make: makes the module.
        num_models: number of copies.
    """

    def __init__(self, make: Callable[[], nn.Module], num_models: int) -> None:
        super().__init__()
        self._make, self._template = make, [make()]  # in a list, so that its parameters are not registered
        parameters, buffers = stack_module_state([make() for _ in range(num_models)])
        self._names, self._buffer_names = list(parameters), list(buffers)
        self.stacked = nn.ParameterList(value.detach() for value in parameters.values())
        for number, value in enumerate(buffers.values()):
            self.register_buffer(f"buffer_{number}", value)
        self.num_models = num_models

    def _state(self) -> dict[str, Tensor]:
        buffers = (self.get_buffer(f"buffer_{number}") for number in range(len(self._buffer_names)))
        return dict(zip([*self._names, *self._buffer_names], [*self.stacked, *buffers], strict=True))

    def reset_parameters(self, seeds: Sequence[int] | None = None) -> None:
        """Initialize every copy again; with seeds, the weights of a copy depend on its seed alone."""
        for trial in range(self.num_models):
            forked = torch.random.fork_rng(devices=[], enabled=seeds is not None)
            with GENERATOR, forked, torch.no_grad():
                if seeds is not None:
                    torch.default_generator.manual_seed(seeds[trial])
                copy = self._make()
                values = {**dict(copy.named_parameters()), **dict(copy.named_buffers())}
                for name, stacked in self._state().items():
                    stacked[trial] = values[name]

    @property
    def module(self) -> nn.Module:
        """The module that all copies share, with parameters of its own."""
        return self._template[0].train(self.training)

    def call(self, trial: int, *inputs: Any) -> Any:
        """Return the output of one copy."""
        state = {name: stacked[trial] for name, stacked in self._state().items()}
        return functional_call(self.module, state, inputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of all copies for ``[nodes, models, features]``."""
        return torch.stack([self.call(trial, x[:, trial]) for trial in range(self.num_models)], 1)

    def extra_repr(self) -> str:
        """The module, for ``repr``."""
        return f"{self._template[0]!r}, num_models={self.num_models}"


class ModelPerTrial(nn.Module):
    """Copies of a user's model, which train like the models of ``pairnorm.nn``.

    On a CPU the random numbers of a copy (its dropout) depend on the keys of its own trial. On CUDA they come
    from torch's generator, since reading a key there would be a synchronization.

    Args:
        make: makes the model; ``model(x, edge_index)`` takes dense features ``[nodes, features]`` and the
            edges without self-loops, and returns logits ``[nodes, classes]``.
        num_models: number of copies.
        dropout: of the model.
        adjacency: has no effect: the model gets the edges alone.
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
        """Normalize an adjacency, as the other models do; ``forward`` uses its edges only."""
        return normalized_adjacency(adjacency, self.adjacency, num_nodes)

    def reset_parameters(self, seeds: Sequence[int] | None = None) -> None:
        """Initialize every copy again, from its seed if there are any."""
        self.copies.reset_parameters(seeds)

    def convolutions(self) -> list[nn.Module]:
        """Return the graph convolutions that all copies share, for hooks; none if none is recognized."""
        try:
            return [*graph_convolutions(self.copies.module).values()]
        except PairNormError:
            return []

    def forward(self, x: Features, adjacency: Tensor | SparseMatrix, keys: Tensor | None = None) -> Tensor:
        """Return logits ``[nodes, models, classes]``, as ``GCN`` does, with ``keys`` ``[1, 2, models]``."""
        if not isinstance(adjacency, SparseMatrix):
            nodes = x.shape[0] if isinstance(x, Tensor) else x.num_rows
            adjacency = self.normalized_adjacency(adjacency, nodes)
        edges, logits = _edge_index(adjacency.pattern), []
        shared = _dense(x, 0) if _is_shared(x) else None
        for trial in range(self.num_models):
            with _drawn_from(None if keys is None or not self.training else keys[0, 0, trial]):
                logits.append(self.copies.call(trial, _dense(x, trial) if shared is None else shared, edges))
        return torch.stack(logits, 1)

    def hidden_and_logits(
        self, x: Features, adjacency: Tensor | SparseMatrix, keys: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the input of the last graph convolution, ``[nodes, models, ...]``, and the logits.

        If no convolution is recognized, the logits are returned for both.
        """
        inputs: list[Tensor] = []
        handles = [
            last.register_forward_pre_hook(lambda module, args: inputs.extend(args[:1]))
            for last in self.convolutions()[-1:]
        ]
        try:
            logits = self(x, adjacency, keys)
        finally:
            for handle in handles:
                handle.remove()
        calls = len(inputs) // self.num_models  # a convolution may be called for several layers
        return torch.stack(inputs[calls - 1 :: calls], 1) if calls else logits, logits


def _edge_index(pattern: Pattern) -> Tensor:
    """Return the edges ``[2, edges]`` as in PyG, from source to target, without self-loops."""
    if "edge_index" not in pattern.derived:
        edges = torch.stack([pattern.column, pattern.row]).long()
        pattern.derived["edge_index"] = edges[:, edges[0] != edges[1]]
    edge_index: Tensor = pattern.derived["edge_index"]
    return edge_index


def _is_shared(x: Features) -> bool:
    if isinstance(x, SparseMatrix):
        return x.values.dim() == 1
    return x.dim() == 2 or x.size(1) == 1


def _dense(x: Features, trial: int) -> Tensor:
    """Return the features of a trial, ``[nodes, features]``."""
    if isinstance(x, SparseMatrix):
        return SparseMatrix(x.pattern, torch.atleast_2d(x.values)[trial]).to_dense()
    if x.layout != torch.strided:
        return x.to_dense()
    return x if x.dim() == 2 else x[:, trial]


@contextmanager
def _drawn_from(key: Tensor | None) -> Iterator[None]:
    """Seed torch's generator with the key of a trial."""
    if key is None or key.is_cuda:
        yield
        return
    with GENERATOR, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(key))
        yield
