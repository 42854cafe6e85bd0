"""Build and check sparse adjacency matrices, and search them: components, hops, reachable nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from pairnorm.base.csr import sparse_csr
from pairnorm.base.errors import PairNormError


@dataclass(frozen=True)
class EdgeCounts:
    """Counts of the changes that made a list of edges undirected and distinct, such as merged repetitions."""

    self_loops: int
    duplicates: int
    one_way: int
    isolated: int

    def notes(self, weighted: bool = False) -> tuple[str, ...]:
        """Return a sentence for each count above zero."""
        weights = ", adding up the weights" if weighted else ""
        sentences = (
            ("self-loop was dropped", "self-loops were dropped"),
            (f"repeated edge was merged{weights}", f"repeated edges were merged{weights}"),
            (
                "edge was listed in one direction only and is taken as undirected",
                "edges were listed in one direction only and are taken as undirected",
            ),
            ("node has no edge", "nodes have no edge"),
        )
        counted = zip(astuple(self), sentences, strict=True)
        return tuple(f"{count:,} {one if count == 1 else many}" for count, (one, many) in counted if count)


def symmetric_adjacency(
    source: NDArray[Any], target: NDArray[Any], nodes: int, weights: NDArray[Any] | None = None
) -> tuple[Tensor, EdgeCounts]:
    """Return the adjacency matrix, A = A^T without self-loops, as a CSR tensor, and counts of changes.

    The weights of an edge that is listed several times in one direction are added up. Of the two directions
    the larger weight counts, so that listing every edge both ways changes nothing.
    """
    source, target = np.asarray(source, dtype=np.int64), np.asarray(target, dtype=np.int64)
    between = source != target
    self_loops = int(np.count_nonzero(~between))
    if self_loops:
        source, target = source[between], target[between]
        weights = None if weights is None else np.asarray(weights)[between]
    listed = sum_repeated_entries(source, target, weights, (nodes, nodes))
    matrix = listed.maximum(listed.T.tocsr())
    isolated = int(np.count_nonzero(np.diff(matrix.indptr) == 0))
    counts = EdgeCounts(self_loops, len(source) - listed.nnz, matrix.nnz - listed.nnz, isolated)
    return csr_tensor(matrix), counts


def sum_repeated_entries(
    rows: NDArray[Any], columns: NDArray[Any], weights: NDArray[Any] | None, shape: tuple[int, int]
) -> Any:
    """Return a scipy CSR matrix of distinct entries, each with the sum of its weights; without weights, 1."""
    from scipy.sparse import coo_array

    values = np.ones(len(rows), np.float32) if weights is None else np.asarray(weights, np.float64)
    matrix = coo_array((values, (rows, columns)), shape=shape).tocsr()  # adds up repeated entries
    matrix.sort_indices()
    matrix.data = np.minimum(matrix.data, 1 if weights is None else np.finfo(np.float32).max)
    return matrix.astype(np.float32)


def listed_directions(adjacency: Tensor, source: NDArray[Any], target: NDArray[Any]) -> Tensor:
    """Return for each entry of a symmetric adjacency whether it was listed from its row to its column."""
    between, matrix = source != target, csr_matrix(adjacency)
    listed = sum_repeated_entries(source[between], target[between], None, matrix.shape)
    matrix.data = np.ones_like(matrix.data)
    return torch.from_numpy((matrix + listed).data == 2)


def along_and_against(adjacency: Tensor, directed: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the weights of the edges from each row's node, and of those to it, [n, n] both."""
    if directed is None:
        return adjacency, adjacency
    matrix = csr_matrix(adjacency).copy()
    matrix.data *= directed.cpu().numpy()
    matrix.eliminate_zeros()
    return csr_tensor(matrix), csr_tensor(matrix.T.tocsr())


def check_edges(ends: NDArray[Any], nodes: int, weights: NDArray[np.float32] | None) -> None:
    """Raise an error unless endpoints are existing nodes, and weights are positive and finite."""
    if ends.size and (ends.min() < 0 or ends.max() >= nodes):
        wrong = int(ends.min() if ends.min() < 0 else ends.max())
        problem = f"edge_index names node {wrong}, but the graph has nodes 0 to {nodes - 1}"
        raise PairNormError(problem, code="unknown-node", value=wrong)
    if weights is None:
        return
    if weights.shape != ends.shape[1:]:
        problem = f"weights have shape {weights.shape}"
        raise PairNormError(problem, code="wrong-shape", expected=f"one for each of {ends.shape[1]} edges")
    if (bad := ~((weights > 0) & np.isfinite(weights))).any():
        edge = int(bad.argmax())
        problem = f"weights[{edge}] is {weights[edge]}"
        raise PairNormError(
            problem, code="bad-weight", value=float(weights[edge]), expected="a positive, finite number"
        )


class ExternalSort:
    """An external sort of a matrix's entries: write them to files by range of rows, then sort each file.

    An entry is its row within the range and its column j; the entry of an edge that was listed from j to the
    row has -1 - j instead.
    """

    def __init__(self, folder: Path, rows: int, nodes: int, weighted: bool) -> None:
        self.rows, self.nodes, self.weighted = rows, nodes, weighted
        self.paths = [folder / f"range-{number:05d}" for number in range(-(-nodes // rows))]
        self.dtype = np.dtype([("row", "<i4"), ("column", "<i4"), *([("weight", "<f4")] if weighted else [])])

    def __enter__(self) -> ExternalSort:
        self.files = [open(path, "wb") for path in self.paths]  # noqa: SIM115
        return self

    def __exit__(self, *_: object) -> None:
        for file in self.files:
            file.close()

    def add(self, source: NDArray[np.int64], target: NDArray[np.int64], weights: NDArray[Any] | None) -> None:
        """Append the two entries of each edge to the files of their rows."""
        for row, column in ((source, target), (target, -1 - source)):
            entries = np.empty(len(row), self.dtype)
            number, entries["row"] = np.divmod(row, self.rows)
            entries["column"] = column
            if weights is not None:
                entries["weight"] = weights
            order = np.argsort(number.astype(np.int32), kind="stable")
            bounds = np.searchsorted(number[order], np.arange(len(self.files) + 1))
            entries = entries[order]
            for start, end, file in zip(bounds, bounds[1:], self.files, strict=False):
                file.write(entries[start:end].data)  # numpy's tofile ignores a disk that is full at the end

    def sorted(self) -> Iterator[tuple[Any, int]]:
        """Yield each range of rows as a CSR matrix, and how many distinct entries were listed."""
        for number, path in enumerate(self.paths):
            entries = np.fromfile(path, self.dtype)
            path.unlink()
            shape = (min(self.rows, self.nodes - number * self.rows), self.nodes)
            is_reverse = entries["column"] < 0
            entries["column"] = np.where(is_reverse, -1 - entries["column"], entries["column"])
            listed, reverse = (
                sum_repeated_entries(
                    part["row"], part["column"], part["weight"] if self.weighted else None, shape
                )
                for part in (entries[~is_reverse], entries[is_reverse])
            )
            yield listed.maximum(reverse), listed.nnz + reverse.nnz


def csr_tensor(matrix: Any) -> Tensor:
    """Return a scipy CSR matrix as a float32 ``torch.sparse_csr`` tensor."""
    crow, column = (torch.from_numpy(part.astype(np.int64)) for part in (matrix.indptr, matrix.indices))
    return sparse_csr(crow, column, torch.from_numpy(matrix.data.astype(np.float32)), matrix.shape)


def csr_matrix(tensor: Tensor) -> Any:
    """Return a ``torch.sparse_csr`` tensor as a scipy ``csr_array`` that shares its memory where it can."""
    from scipy.sparse import csr_array

    pieces = (tensor.values(), tensor.col_indices(), tensor.crow_indices())
    return csr_array(tuple(piece.cpu().numpy() for piece in pieces), shape=tuple(tensor.shape))


# Cached for every adjacency in memory, with its version.
_COMPONENTS: Any = WeakTensorKeyDictionary()


def components(adjacency: Tensor) -> Tensor:
    """Return the number of the connected component of every node, int64 [n], on the CPU."""
    from scipy.sparse.csgraph import connected_components

    version, members = _COMPONENTS.get(adjacency, (None, None))
    if members is None or version is None or version != _version(adjacency):
        numbers = connected_components(csr_matrix(adjacency), directed=False)[1]
        members = torch.from_numpy(numbers).long()
        _COMPONENTS[adjacency] = _version(adjacency), members
    result: Tensor = members
    return result


def reachable(adjacency: Tensor, sources: Tensor) -> Tensor:
    """Return bool [n], on the CPU: the source nodes, and the nodes that a path connects with one."""
    members = components(adjacency)
    is_reachable = torch.zeros(len(members), dtype=torch.bool)
    is_reachable[members[sources.cpu()]] = True
    return is_reachable[members]


def hops(adjacency: Tensor, sources: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return how many edges lie between every node and the nearest source; -1 where no path leads to one."""
    from scipy.sparse.csgraph import dijkstra

    if not sources.any():
        return np.full(len(sources), -1)
    distances = dijkstra(
        csr_matrix(adjacency), indices=np.flatnonzero(sources), unweighted=True, min_only=True
    )
    return np.where(np.isfinite(distances), distances, -1).astype(np.int64)


def max_claimed_size(held: int) -> int:
    """Return the largest number of nodes or features that a file with ``held`` entries may declare."""
    return 10_000_000 + 1000 * held


def check_csr(what: str, starts: Any, indices: Any, entries: int, shape: tuple[int, int]) -> None:
    """Raise an error unless arrays form a valid CSR or CSC matrix; kernels would crash on others."""
    rows, columns = shape
    pieces = [np.asarray(piece.cpu() if isinstance(piece, Tensor) else piece) for piece in (starts, indices)]
    if any(piece.dtype.kind not in "iu" or piece.ndim != 1 for piece in pieces):
        problem = "its indices are no lists of whole numbers"
    elif len(pieces[0]) != rows + 1:
        problem = f"{len(pieces[0]):,} row starts for {rows:,} rows"
    elif len(pieces[1]) != entries:
        problem = f"{len(pieces[1]):,} indices for {entries:,} values"
    elif columns > max_claimed_size(entries + rows):
        problem = f"it claims {columns:,} columns for {entries:,} entries"
    else:
        first, second = (piece.astype(np.int64, copy=False) for piece in pieces)
        low, high = (int(second.min()), int(second.max())) if entries else (0, -1)
        if first[0] != 0 or first[-1] != entries:
            problem = f"rows from entry {int(first[0])} to {int(first[-1])} of {entries:,}"
        elif (first[1:] < first[:-1]).any():  # a difference could overflow and look positive
            problem = "a row ends before it starts"
        elif low < 0 or high >= columns:
            problem = f"indices from {low} to {high} among {columns:,} columns"
        else:
            return
    problem = f"{what} is no sparse matrix: {problem}"
    expected = "row starts from 0 up to the number of entries, and indices within the matrix"
    raise PairNormError(problem, code="broken-matrix", value=shape, expected=expected)


# The version of each adjacency in memory that was checked or built here: one changed in place has another.
_VALIDATED: Any = WeakTensorKeyDictionary()


def mark_validated(adjacency: Tensor) -> Tensor:
    """Mark an adjacency as valid, so that ``check_adjacency`` skips it, and return it."""
    _VALIDATED[adjacency] = _version(adjacency)
    return adjacency


def _version(matrix: Tensor) -> int | None:
    """Return a number that grows with each change in place; None where torch does not count."""
    return None if matrix.is_inference() else matrix._version


def check_adjacency(adjacency: Tensor) -> None:
    """Raise an error unless A is square, A = A^T, and has neither self-loops nor repeated entries."""
    if adjacency.layout != torch.sparse_csr or adjacency.dim() != 2 or len(set(adjacency.shape)) != 1:
        problem = f"adjacency is a {adjacency.layout} tensor of shape {tuple(adjacency.shape)}"
        expected = "a square torch.sparse_csr tensor"
        hint = "Graph.from_edges makes one from a list of edges."
        raise PairNormError(problem, code="wrong-shape", expected=expected, hint=hint)
    if (version := _version(adjacency)) is not None and _VALIDATED.get(adjacency) == version:
        return
    crow, column, nodes = adjacency.crow_indices(), adjacency.col_indices(), adjacency.shape[0]
    check_csr("adjacency", crow, column, adjacency.values().numel(), (nodes, nodes))
    transposed = csr_matrix(adjacency).T.tocsr()
    ordered = transposed.T.tocsr()  # the matrix itself, the columns of every row in order
    row = np.repeat(np.arange(nodes), np.diff(ordered.indptr))
    if (row == ordered.indices).any():
        problem, code = "has self-loops", "self-loop"
    elif ((ordered.indices[1:] == ordered.indices[:-1]) & (row[1:] == row[:-1])).any():
        problem, code = "holds an entry twice", "repeated-edge"
    elif not all(
        map(np.array_equal, *((part.indptr, part.indices, part.data) for part in (ordered, transposed)))
    ):
        problem, code = "is not symmetric", "not-symmetric"
    else:
        mark_validated(adjacency)
        return
    problem = f"adjacency {problem}"
    expected = "every edge once in both directions, with one weight, and no self-loops"
    hint = "Graph.from_edges and Graph.from_scipy see to that."
    raise PairNormError(problem, code=code, expected=expected, hint=hint)
