"""A graph with its scaled features, and a cache of what candidates compute from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairnorm.base.csr import sparse_csr
from pairnorm.classify.holdout import fingerprints, hide, hide_features
from pairnorm.classify.regression import leading_axes, span
from pairnorm.data import Graph
from pairnorm.data.features import stored_rows
from pairnorm.impute import impute
from pairnorm.nn import Normalization, SparseMatrix, normalized_adjacency

MANY_NODES = 100_000
MAX_CACHE_BYTES = 2 * 2**30
# Smaller values stay in the cache.
SMALL_BYTES = 2**20

Value = TypeVar("Value")


def has_many_nodes(graph: Graph) -> bool:
    """Return whether a graph has enough nodes that ``fit`` evaluates fewer candidates."""
    return graph.num_nodes >= MANY_NODES


def _num_bytes(value: Any) -> int:
    if isinstance(value, Tensor | np.ndarray):
        return value.nbytes
    return sum(map(_num_bytes, value)) if isinstance(value, tuple | list) else 0


class PreparedGraph:
    """A graph with its scaled features on a device, and a cache of what candidates compute from them.

    Each call to fit or predict makes its own. The cache is never pickled or copied. The split and the labels
    of the graph are not used.

    Args:
        graph: with edges, names, and missing features.
        features: [n, d], scaled, dense or ``torch.sparse_csr``; zero where missing.
        device: where to compute.
        same_edges: another graph with the same nodes and edges, whose cache it shares.
    """

    def __init__(
        self, graph: Graph, features: Tensor, device: torch.device, same_edges: PreparedGraph | None = None
    ) -> None:
        self.graph, self.features, self.device = graph, features, device
        # Parts of cache keys: objects, because an id could be used again.
        self._own: object = object()
        self._edges: object = object() if same_edges is None else same_edges._edges
        # Values by key, the least recently used first.
        self._cache: dict[Any, Any] = {} if same_edges is None else same_edges._cache

    def __getstate__(self) -> dict[str, Any]:
        return {"graph": self.graph, "features": self.features, "device": self.device}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __deepcopy__(self, memo: object) -> PreparedGraph:
        return self.without_cache()  # a graph never changes, and torch cannot copy sparse tensors

    def without_cache(self) -> PreparedGraph:
        """Return the same graph and features with an empty cache."""
        return PreparedGraph(self.graph, self.features, self.device)

    def masked(self, mask: Tensor) -> PreparedGraph:
        """Return the graph without the features in a mask, bool [n] or [n, d]."""
        features = hide_features(self.features, mask)
        return PreparedGraph(hide(self.graph, mask), features, self.device, self)

    def projected(self, axes: Tensor) -> PreparedGraph:
        """Return the graph with its features projected on some axes, [d, r]; whole vectors are missing."""
        key = "projected", hash(axes.numpy().tobytes())
        features = self.cached(key, lambda: self.dense @ axes.to(self.device))
        missing = self.graph.missing_vectors
        graph = self.graph.replace(features=features, missing=missing, feature_names=None)
        projected = PreparedGraph(graph, features, self.device, self)
        projected._own = self._own, key  # another projection on these axes shares cached values
        return projected

    def cached(self, key: Any, compute: Callable[[], Value], edges_only: bool = False) -> Value:
        """Return a value that depends on graph and features, or on the edges only; compute it once.

        The least recently used values go once all take more than ``MAX_CACHE_BYTES``.
        """
        key = self._edges if edges_only else self._own, key
        value: Value = self._cache.pop(key) if key in self._cache else compute()
        self._cache[key] = value
        sizes = {key: size for key, one in self._cache.items() if (size := _num_bytes(one)) > SMALL_BYTES}
        excess = sum(sizes.values()) - MAX_CACHE_BYTES
        for oldest, size in sizes.items():
            if excess <= 0 or oldest == key:
                break
            excess -= size
            del self._cache[oldest]
        return value

    def peek(self, key: Any) -> Any:
        """Return a cached value of graph and features, or None."""
        return self._cache.get((self._own, key))

    @property
    def dense(self) -> Tensor:
        """The features as a dense tensor on the device."""
        if self.features.layout == torch.strided and self.features.device == self.device:
            return self.features
        return self.cached("dense", lambda: self.features.to_dense().to(self.device))

    @property
    def reduced(self) -> tuple[Tensor | None, Tensor]:
        """A basis and the features in it, as of ``span``, where only whole vectors are missing."""
        if self.graph.missing.dim() == 2:
            return None, self.dense
        return self.cached("span", lambda: span(self.dense))

    def principal_axes(self, most: int) -> Tensor:
        """Return the leading principal axes of the known vectors, [d, at most this many], on the CPU."""

        def compute() -> Tensor:
            known = ~self.graph.missing_vectors.to(self.device)
            return leading_axes(self.dense[known], most).cpu()

        return self.cached(("axes", most), compute)

    @property
    def node_fingerprints(self) -> NDArray[np.int64]:
        """int64 [n], which identify nodes in any graph."""
        return self.cached("fingerprints", lambda: fingerprints(self.graph), edges_only=True)

    def adjacency(self, normalization: Normalization) -> SparseMatrix:
        """Return the normalized adjacency with self-loops."""

        def compute() -> SparseMatrix:
            return normalized_adjacency(self.graph.adjacency, normalization).to(self.device)

        return self.cached(normalization, compute, edges_only=True)

    @property
    def random_walk(self) -> tuple[SparseMatrix, Tensor]:
        """D⁻¹A without self-loops, and the degrees."""
        return self.cached(
            "random walk", lambda: random_walk(self.graph.adjacency, self.device), edges_only=True
        )

    def imputed(self, method: str, features: Tensor | None = None) -> Tensor:
        """Return features whose missing values are imputed.

        Args:
            method: one of ``IMPUTATIONS``; ``"zero"`` returns scaled features as they are.
            features: [n, r], the features in other coordinates; default: the reduced ones.
        """
        if features is None:
            return self.cached(("imputed", method), lambda: self.imputed(method, self.reduced[1]))
        if method == "zero" or not self.graph.missing.any():
            return features
        missing, adjacency = (one.to(self.device) for one in (self.graph.missing, self.graph.adjacency))
        return impute(features, missing, adjacency, method=method)


def random_walk(adjacency: Tensor, device: torch.device) -> tuple[SparseMatrix, Tensor]:
    """Return D⁻¹A, without self-loops, and the degrees; both are zero for a node without edges."""
    adjacency = adjacency.to(device)
    row, weight = stored_rows(adjacency), adjacency.values()
    degree = weight.new_zeros(len(adjacency)).index_add_(0, row, weight)
    shares = sparse_csr(
        adjacency.crow_indices(), adjacency.col_indices(), weight / degree[row], adjacency.shape
    )
    return SparseMatrix.from_torch(shares), degree
