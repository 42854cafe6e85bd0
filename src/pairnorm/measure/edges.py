"""The edges of a graph, whichever way the caller holds it."""

import torch
from torch import Tensor

from pairnorm.errors import PairNormError
from pairnorm.nn.sparse import SparseMatrix

Adjacency = Tensor | SparseMatrix


def edges(adjacency: Adjacency) -> tuple[Tensor, Tensor]:
    """Return the edges [2, edges] of a graph, without self-loops, and their weights [edges].

    Args:
        adjacency: a floating-point matrix [nodes, nodes], sparse or dense, whose non-zeros are edges, or an
            integer ``edge_index`` [2, edges], of which every edge weighs 1.
    """
    if isinstance(adjacency, SparseMatrix) and is_sparse_adjacency(adjacency):
        index = torch.stack([adjacency.pattern.row, adjacency.pattern.column]).long()
        weight = adjacency.values.detach()
    elif isinstance(adjacency, Tensor) and is_edge_index(adjacency):
        index, weight = adjacency.long(), torch.ones(adjacency.shape[1], device=adjacency.device)
        if index.numel() and int(index.min()) < 0:
            raise PairNormError(
                f"adjacency holds the node {int(index.min())}; expected nodes counted from 0."
            )
    elif isinstance(adjacency, Tensor) and _is_square(adjacency):
        sparse = adjacency.detach().to_sparse().coalesce()
        index, weight = sparse.indices(), sparse.values()
    else:
        given = (
            f"{list(adjacency.shape)} of {adjacency.dtype}" if isinstance(adjacency, Tensor) else adjacency
        )
        raise PairNormError(
            f"adjacency is {given!s}; expected a floating-point matrix [nodes, nodes], sparse or dense, or an"
            " integer edge_index [2, edges]."
        )
    kept = (index[0] != index[1]) & (weight != 0)
    return index[:, kept], weight[kept]


def is_edge_index(value: object) -> bool:
    """Return whether ``value`` is a dense integer tensor [2, edges].

    >>> is_edge_index(torch.tensor([[0, 1], [1, 2]])), is_edge_index(torch.eye(2))
    (True, False)
    """
    return (
        isinstance(value, Tensor)
        and value.layout == torch.strided
        and value.ndim == 2
        and value.shape[0] == 2
        and value.dtype in (torch.int64, torch.int32)
    )


def is_sparse_adjacency(value: object) -> bool:
    """Return whether ``value`` is a sparse matrix [nodes, nodes], the same for all trials."""
    if isinstance(value, SparseMatrix):
        return value.pattern.shape[0] == value.pattern.shape[1] and value.values.ndim == 1
    return isinstance(value, Tensor) and value.layout != torch.strided and _is_square(value)


def check_nodes(what: str, index: Tensor, num_nodes: int) -> None:
    """Raise an error if ``index`` names a node outside 0 .. ``num_nodes`` - 1."""
    if index.numel() and (int(index.min()) < 0 or int(index.max()) >= num_nodes):
        bad = int(index.min()) if int(index.min()) < 0 else int(index.max())
        raise PairNormError(f"{what} holds the node {bad}, but x has {num_nodes} nodes, counted from 0.")


def _is_square(value: Tensor) -> bool:
    return value.ndim == 2 and value.shape[0] == value.shape[1] and value.is_floating_point()
