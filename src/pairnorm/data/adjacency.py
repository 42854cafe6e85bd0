"""From a list of edges to a symmetric adjacency matrix, and what was odd about the list."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class EdgeCounts:
    """What a list of edges held: ``distinct`` undirected edges, and the oddities met on the way to them."""

    distinct: int
    self_loops: int
    duplicates: int
    one_way: int
    isolated: int

    def notes(self) -> tuple[str, ...]:
        """Return a sentence for each oddity."""
        return tuple(
            _plural(count, one, many)
            for count, one, many in (
                (self.self_loops, "self-loop was dropped", "self-loops were dropped"),
                (self.duplicates, "repeated edge was merged", "repeated edges were merged"),
                (
                    self.one_way,
                    "edge was listed in one direction only and is taken as undirected",
                    "edges were listed in one direction only and are taken as undirected",
                ),
                (self.isolated, "node has no edge", "nodes have no edge"),
            )
            if count
        )


def _plural(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def symmetric_adjacency(
    source: NDArray[Any], target: NDArray[Any], nodes: int, weights: NDArray[Any] | None = None
) -> tuple[Tensor, EdgeCounts]:
    """Return the adjacency matrix, A = A^T without self-loops, as a CSR tensor, and what was odd.

    An edge that is listed more than once, in either direction, keeps its largest weight, so that listing it
    both ways changes nothing.

    Args:
        source: one end of each edge, as a node's number.
        target: the other end.
        nodes: how many nodes there are.
        weights: a weight for each edge; 1 by default.
    """
    source, target = np.asarray(source, dtype=np.int64), np.asarray(target, dtype=np.int64)
    between = source != target
    self_loops = int(np.count_nonzero(~between))
    if self_loops:
        source, target = source[between], target[between]
        weights = None if weights is None else weights[between]

    # One sorted key tells the undirected edge (all but its last bit) and the direction it was listed in.
    keys = np.minimum(source, target) * nodes + np.maximum(source, target)
    keys = keys * 2 + (source > target)
    del source, target
    if weights is None:
        keys.sort()
        values = None
    else:
        order = np.argsort(keys, kind="stable")
        keys, values = keys[order], np.asarray(weights, dtype=np.float32)[order]
    directed = int(np.count_nonzero(first_of_run(keys)))
    pairs = keys >> 1
    del keys
    first = np.flatnonzero(first_of_run(pairs))
    duplicates = len(pairs) - directed
    pairs = pairs[first]
    if values is not None and len(values):
        values = np.maximum.reduceat(values, first)

    low, high = np.divmod(pairs, max(nodes, 1))
    adjacency = _mirror(low, high, nodes, values)
    counts = EdgeCounts(
        distinct=len(pairs),
        self_loops=self_loops,
        duplicates=duplicates,
        one_way=2 * len(pairs) - directed,
        isolated=int((adjacency.crow_indices().diff() == 0).sum()),
    )
    return adjacency, counts


def first_of_run(values: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mark each element of a sorted array that differs from the one before it.

    Args:
        values: sorted.
    """
    first = np.ones(len(values), dtype=bool)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return first


def _mirror(
    low: NDArray[np.int64], high: NDArray[np.int64], nodes: int, values: NDArray[np.float32] | None
) -> Tensor:
    """Return the CSR matrix that holds every sorted pair low < high in both places, its columns in order."""
    from scipy.sparse import coo_array

    # Entries below the diagonal go first: scipy keeps their order within a row, so no row needs sorting.
    rows, columns = np.concatenate([high, low]), np.concatenate([low, high])
    ones = np.ones(len(low), dtype=np.float32) if values is None else values
    matrix = coo_array((np.concatenate([ones, ones]), (rows, columns)), shape=(nodes, nodes)).tocsr()
    return csr_tensor(matrix)


def csr_tensor(matrix: Any) -> Tensor:
    """Return a scipy CSR matrix as a float32 ``torch.sparse_csr`` tensor."""
    return torch.sparse_csr_tensor(
        torch.from_numpy(matrix.indptr.astype(np.int64)),
        torch.from_numpy(matrix.indices.astype(np.int64)),
        torch.from_numpy(matrix.data.astype(np.float32)),
        size=matrix.shape,
        check_invariants=False,
    )
