"""The normalised adjacency of a graph, which moves every node's representation to its neighbours."""

import torch
from torch import Tensor

from pairnorm.errors import PairNormError, one_of
from pairnorm.nn.sparse import Pattern, SparseMatrix

KINDS = ("rw", "sym")


def propagation(
    adjacency: Tensor | SparseMatrix, kind: str = "rw", num_nodes: int | None = None
) -> SparseMatrix:
    r"""Normalise an adjacency matrix with self-loops, $\tilde{\mathbf{A}} = \mathbf{A} + \mathbf{I}$.

    $$
    \tilde{\mathbf{A}}_{rw} = \tilde{\mathbf{D}}^{-1} \tilde{\mathbf{A}} \qquad
    \tilde{\mathbf{A}}_{sym} = \tilde{\mathbf{D}}^{-1/2} \tilde{\mathbf{A}} \tilde{\mathbf{D}}^{-1/2}
    $$

    Args:
        adjacency: A torch sparse tensor ``[nodes, nodes]`` whose row i holds what node i receives from, or an
            ``edge_index`` ``[2, edges]`` of (source, target) pairs as in PyG. Weights count; a self-loop that
            is there keeps its weight. Of a directed graph every node averages over the nodes that point at
            it.
        kind: ``"rw"`` (what the paper's experiments used) or ``"sym"``.
        num_nodes: Needed with an ``edge_index`` when the last nodes are isolated.

    Example:
        >>> matrix = propagation(torch.tensor([[0, 1], [1, 0]]))
        >>> matrix @ torch.tensor([[1.0], [3.0]])
        tensor([[2.],
                [2.]])
    """
    one_of("kind", kind, KINDS)
    nodes, row, column, weight = _entries(adjacency, num_nodes)
    looped = torch.zeros(nodes, dtype=torch.bool, device=row.device).index_fill_(0, row[row == column], True)
    missing = (~looped).nonzero().squeeze(1)
    row, column = torch.cat([row, missing]), torch.cat([column, missing])
    weight = torch.cat([weight, weight.new_ones(missing.numel())])

    entry, inverse = torch.unique(row * nodes + column, return_inverse=True)  # parallel edges add up
    weight = weight.new_zeros(entry.numel()).index_add_(0, inverse, weight)
    row, column = entry // nodes, entry % nodes
    degree = weight.new_zeros(nodes).index_add_(0, row, weight)
    for node in (~((degree > 0) & degree.isfinite())).nonzero()[:1, 0].tolist():
        raise PairNormError(
            f"the weights of node {node} add up to {degree[node]:g}; expected a positive finite sum"
        )
    if kind == "rw":
        weight = weight / degree[row]
    else:
        weight = weight * degree[row].rsqrt() * degree[column].rsqrt()
    crow = torch.zeros(nodes + 1, dtype=torch.int32, device=row.device)
    crow[1:] = torch.bincount(row, minlength=nodes).cumsum(0)
    return SparseMatrix(Pattern(crow, column.int(), (nodes, nodes)), weight)


def _entries(adjacency: Tensor | SparseMatrix, num_nodes: int | None) -> tuple[int, Tensor, Tensor, Tensor]:
    """Return the number of nodes and row, column and weight of every entry."""
    if isinstance(adjacency, SparseMatrix) or adjacency.layout != torch.strided:
        matrix = adjacency if isinstance(adjacency, SparseMatrix) else SparseMatrix.from_torch(adjacency)
        nodes, columns = matrix.pattern.shape
        if nodes != columns:
            raise PairNormError(f"adjacency has shape [{nodes}, {columns}]; expected a square matrix")
        return nodes, matrix.pattern.row.long(), matrix.pattern.column.long(), matrix.values.float()
    if adjacency.dim() != 2 or adjacency.size(0) != 2 or adjacency.is_floating_point():
        raise PairNormError(
            f"adjacency has shape {list(adjacency.shape)} and dtype {adjacency.dtype}; "
            "expected an integer edge_index [2, edges] or a sparse tensor [nodes, nodes]"
        )
    needed = int(adjacency.max()) + 1 if adjacency.numel() else 0
    nodes = needed if num_nodes is None else num_nodes
    if nodes < needed:
        raise PairNormError(f"edge_index names node {needed - 1}, but there are only {nodes} nodes")
    if adjacency.numel() and adjacency.min() < 0:
        raise PairNormError(f"edge_index names node {int(adjacency.min())}; expected numbers from 0")
    source, target = adjacency.long()
    return nodes, target, source, torch.ones(source.numel(), device=adjacency.device)
