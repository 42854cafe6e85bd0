"""The edges of a graph, whichever way the caller holds it."""

import torch
from torch import Tensor

from pairnorm.errors import PairNormError


def edges(adjacency: Tensor) -> tuple[Tensor, Tensor]:
    """Return the edges [2, edges] of a graph, without self-loops, and their weights [edges].

    Args:
        adjacency: a sparse or dense floating-point matrix [nodes, nodes], of which the non-zeros are edges,
            or an integer ``edge_index`` [2, edges], of which every edge weighs 1.
    """
    if not isinstance(adjacency, Tensor):
        raise PairNormError(
            f"adjacency is a {type(adjacency).__name__}; expected a tensor: a matrix [nodes, nodes] or an"
            " edge_index [2, edges]."
        )
    if is_edge_index(adjacency):
        index, weight = adjacency.long(), torch.ones(adjacency.shape[1], device=adjacency.device)
        if index.numel() and int(index.min()) < 0:
            raise PairNormError(
                f"adjacency holds the node {int(index.min())}; expected nodes counted from 0."
            )
    elif _is_square(adjacency):
        sparse = adjacency.detach().to_sparse().coalesce()
        index, weight = sparse.indices(), sparse.values()
    else:
        raise PairNormError(
            f"adjacency has shape {list(adjacency.shape)} and dtype {adjacency.dtype}; expected a"
            " floating-point matrix [nodes, nodes], sparse or dense, or an integer edge_index [2, edges]."
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
    """Return whether ``value`` is a sparse floating-point matrix [nodes, nodes]."""
    return _is_square(value) and isinstance(value, Tensor) and value.layout != torch.strided


def check_nodes(what: str, index: Tensor, num_nodes: int) -> None:
    """Raise an error if ``index`` names a node outside 0 .. ``num_nodes`` - 1."""
    if index.numel() and (int(index.min()) < 0 or int(index.max()) >= num_nodes):
        bad = int(index.min()) if int(index.min()) < 0 else int(index.max())
        raise PairNormError(f"{what} holds the node {bad}, but x has {num_nodes} nodes, counted from 0.")


def _is_square(value: object) -> bool:
    return (
        isinstance(value, Tensor)
        and value.ndim == 2
        and value.shape[0] == value.shape[1]
        and value.is_floating_point()
    )
