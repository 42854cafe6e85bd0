"""Scaled features of a graph, and a cache of what candidates compute from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairnorm.base.csr import sparse_csr
from pairnorm.base.errors import PairNormError, one_of
from pairnorm.classify.holdout import fingerprints, mask_features, zero_masked
from pairnorm.classify.regression import MAX_AXES, leading_axes, span
from pairnorm.data import Graph, row_normalize
from pairnorm.data.features import stored_rows, stored_values
from pairnorm.impute import impute
from pairnorm.nn import Normalization, SparseMatrix, normalized_adjacency

KINDS = ("rows", "columns", "none")
# A bag of words has many columns, and most nodes have none of a given word.
MIN_WORDS = 20
MAX_WORD_SHARE = 0.5
MAX_DENSE_BYTES = 8 * 2**30
MANY_NODES = 100_000
MAX_CACHE_BYTES = 2 * 2**30
# Trees and residual GCNs take at most the first number of principal axes. An SGC takes ``MAX_AXES`` of more
# than twice as many columns where a state would have more numbers than the second: its losses on bags of
# words are the same, and a step is cheaper by the ratio. Axes are computed from so many nodes at most.
MAX_PRINCIPAL_AXES, MAX_STATE_SIZE, MAX_AXES_NODES = 128, 2**24, 2**13
# Smaller values stay in the cache.
SMALL_BYTES = 2**20

Value = TypeVar("Value")


@dataclass(frozen=True, eq=False)
class Scaling:
    """How features are scaled, with the statistics of the graph that a model was fitted on.

    Args:
        kind: ``"rows"`` (x_ij / sum_k |x_ik|), ``"columns"`` ((x_ij - mean_j) / deviation_j) or ``"none"``.
        mean: float32 [d], of the known entries; for ``"columns"`` only, like the next two.
        deviation: float32 [d]; 1 for a constant column, which becomes zero.
        words: bool [d], the columns that are divided by their sum in a row first. They share one deviation
            and have the mean 0.
    """

    kind: str
    mean: Tensor | None = None
    deviation: Tensor | None = None
    words: Tensor | None = None

    @classmethod
    def of(cls, graph: Graph, kind: str = "auto") -> Scaling:
        """Choose a scaling and compute its statistics from the known features.

        Args:
            graph: whose features.
            kind: one of the three, or ``"auto"``, which decides column by column: at least 20 columns of
                counts that most nodes lack are words, scaled by row; all others are standardized.
        """
        one_of("scaling", kind, ("auto", *KINDS))
        words = None
        if kind == "auto":
            words = word_columns(graph)
            kind = "rows" if bool(words.all()) and len(words) else "columns"
            words = words if kind == "columns" and words.any() else None
        return cls(kind) if kind != "columns" else cls.standardize(graph, words)

    @classmethod
    def standardize(cls, graph: Graph, words: Tensor | None = None) -> Scaling:
        """Compute means and deviations of the known features; ``words`` as in ``Scaling``."""
        check_size(graph)
        features, known = _by_row(graph.features.to_dense().double(), words), _known_mask(graph)
        count = known.sum(0).clamp(min=1)
        mean = (features * known).sum(0) / count
        variance = ((features - mean) * known).square().sum(0) / count
        if words is not None:
            variance = torch.where(words, variance[words].mean(), variance)
            mean = mean.where(~words, 0)
        deviation = variance.sqrt()
        deviation = deviation.where(deviation > 1e-6 * mean.abs() + 1e-12, 1)
        return cls("columns", mean.float(), deviation.float(), words)

    def fitted_to(self, graph: Graph) -> Scaling:
        """Return the same kind of scaling with the statistics of another graph."""
        return self if self.kind != "columns" else self.standardize(graph, self.words)

    def __call__(self, graph: Graph) -> Tensor:
        """Return the scaled features of a graph; missing ones are zero, the mean of a standardized column."""
        if self.kind == "rows":
            return row_normalize(graph.features)
        if self.mean is None or self.deviation is None:
            return graph.features
        mean, deviation = self.mean.to(graph.device), self.deviation.to(graph.device)
        words = None if self.words is None else self.words.to(graph.device)
        return (_by_row(graph.features.to_dense(), words) - mean) / deviation * _known_mask(graph)

    @property
    def sentence(self) -> str:
        """How features are scaled, as a sentence for reports."""
        if self.words is not None:
            return (
                f"{int(self.words.sum()):,} columns of counts are divided by their sum in each node; the "
                "others are standardized"
            )
        return {
            "rows": "each node's features are divided by their sum (they look like counts or words)",
            "columns": "each column is standardized; a missing value takes its column's mean",
            "none": "features are taken as they are",
        }[self.kind]


def _known_mask(graph: Graph) -> Tensor:
    known = ~graph.missing
    return known if known.dim() == 2 else known[:, None].expand(-1, graph.num_features)


def _by_row(features: Tensor, words: Tensor | None) -> Tensor:
    """Divide the columns of words by their sum in each row."""
    if words is None:
        return features
    counts = row_normalize(features * words)
    return torch.where(words, counts, features)


def word_columns(graph: Graph) -> Tensor:
    """Return bool [d]: the columns of word counts; all False where there are fewer than ``MIN_WORDS``.

    Counts are not negative, and most nodes whose count is known have none. Columns that encode a category
    or come from a date are no counts.
    """
    features, missing = graph.features, graph.missing
    stored = stored_values(features)
    if features.layout == torch.sparse_csr:
        columns, rows = features.col_indices(), stored_rows(features)
        there = stored != 0
        there &= ~(missing[rows] if missing.dim() == 1 else missing[rows, columns])
        used = torch.bincount(columns[there], minlength=graph.num_features)
        negative = torch.bincount(columns[stored < 0], minlength=graph.num_features) > 0
    else:
        used, negative = ((features != 0) & _known_mask(graph)).sum(0), (features < 0).any(0)
    filled = (~missing).sum(0) if missing.dim() == 2 else (~missing).sum()
    words = ~negative & (used <= MAX_WORD_SHARE * filled)
    if graph.encoder is not None:
        counts = [
            column.kind in ("number", "sparse")
            for column in graph.encoder.features.values()
            for _ in range(column.width)
        ]
        if len(counts) == len(words):
            words &= torch.tensor(counts, device=words.device)
    return words if int(words.sum()) >= MIN_WORDS else torch.zeros_like(words)


def check_features(graph: Graph) -> None:
    """Raise an error if all features of a graph are missing or zero."""
    if graph.num_features == 0:
        problem = f"graph {graph.name!r} has no features"
        hint = "Give its nodes a feature column; some cells may be empty."
        raise PairNormError(problem, code="no-features", value=graph.name, hint=hint)
    if not stored_values(graph.features).any():
        problem = f"graph {graph.name!r}: every feature of every node is missing or zero"
        hint = "Fill in those you know, or leave the columns out: structure then stands in."
        raise PairNormError(problem, code="no-features", value=graph.name, hint=hint)


def is_large(graph: Graph) -> bool:
    """Return whether a graph's features, as a dense matrix, take more than ``MAX_DENSE_BYTES``."""
    return _dense_bytes(graph) > MAX_DENSE_BYTES


def _dense_bytes(graph: Graph) -> int:
    return 4 * graph.num_nodes * graph.num_features


def check_size(graph: Graph) -> None:
    """Raise an error if features are too large for a dense matrix, which propagation needs."""
    if is_large(graph):
        raise PairNormError(
            f"{graph.num_features:,} features of {graph.num_nodes:,} nodes, propagated or standardized, take "
            f"{_dense_bytes(graph) / 2**30:.0f} GiB at a time",
            code="too-large",
            value=_dense_bytes(graph),
            expected=f"at most {MAX_DENSE_BYTES / 2**30:.0f} GiB",
            hint="Keep fewer columns, or pass {model} and {scaling}.",
            model="GCN",
            scaling="rows",
        )


def has_many_nodes(graph: Graph) -> bool:
    """Return whether a graph has enough nodes that ``fit`` evaluates fewer candidates."""
    return graph.num_nodes >= MANY_NODES


def _num_bytes(value: Any) -> int:
    if isinstance(value, Tensor | np.ndarray):
        return value.nbytes
    return sum(map(_num_bytes, value)) if isinstance(value, tuple | list) else 0


def _same_edges(graph: Graph, other: PreparedGraph) -> bool:
    names, others = graph.node_names, other.graph.node_names
    same_names = names is others or np.array_equal(names, others)
    return graph.adjacency is other.graph.adjacency and same_names


class PreparedGraph:
    """A graph with its scaled features on a device, and a cache of what candidates compute from them.

    Each call to fit or predict makes its own. The cache is never pickled or copied. The split and the labels
    of the graph are not used.

    Args:
        graph: with edges, names, and missing features.
        features: [n, d], scaled, dense or ``torch.sparse_csr``; zero where missing.
        other: a graph whose cache it shares, if that has the same nodes, edges and device.
    """

    def __init__(
        self, graph: Graph, features: Tensor, device: torch.device, other: PreparedGraph | None = None
    ) -> None:
        self.graph, self.features, self.device = graph, features, device
        shared = other if other is not None and other.device == device and _same_edges(graph, other) else None
        # Parts of cache keys: objects, because an id could be used again.
        self._own: object = object()
        self._edges: object = object() if shared is None else shared._edges
        # Values and their sizes in bytes by key, the least recently used first.
        self._cache: dict[Any, tuple[Any, int]] = {} if shared is None else shared._cache

    def __getstate__(self) -> dict[str, Any]:
        return {"graph": self.graph, "features": self.features, "device": self.device}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __deepcopy__(self, memo: object) -> PreparedGraph:
        return self.without_cache()  # a graph never changes, and torch cannot copy sparse tensors

    def without_cache(self) -> PreparedGraph:
        """Return the same graph and features; of the cache only what depends on the edges alone."""
        prepared = PreparedGraph(self.graph, self.features, self.device, self)
        prepared._cache = {key: value for key, value in self._cache.items() if key[0] is self._edges}
        return prepared

    def masked(self, mask: Tensor) -> PreparedGraph:
        """Return the graph with the features in a mask, bool [n] or [n, d], missing."""
        features = zero_masked(self.features, mask)
        return PreparedGraph(mask_features(self.graph, mask), features, self.device, self)

    def projected(self, axes: Tensor | None) -> PreparedGraph:
        """Return the graph with its features projected on axes, [d, r]; whole vectors are missing.

        Without axes, it is the graph itself.
        """
        if axes is None:
            return self
        key = "projected", hash(axes.numpy().tobytes())
        features = self.cached(key, lambda: self.features.to(self.device) @ axes.to(self.device))
        missing = self.graph.missing_vectors
        graph = self.graph.replace(features=features, missing=missing, feature_names=None)
        projected = PreparedGraph(graph, features, self.device, self)
        projected._own = self._own, key  # another projection on these axes shares cached values
        return projected

    def cached(self, key: Any, compute: Callable[[], Value], edges_only: bool = False) -> Value:
        """Return the cached value of a key, or compute and cache it.

        With ``edges_only``, graphs with the same edges share the value. The least recently used values are
        removed once all take more than ``MAX_CACHE_BYTES``.
        """
        key = self._edges if edges_only else self._own, key
        if key in self._cache:
            self._cache[key] = self._cache.pop(key)
            return self._cache[key][0]  # type: ignore[no-any-return]
        value = compute()
        self._cache[key] = value, _num_bytes(value)
        sizes = {key: size for key, (_, size) in self._cache.items() if size > SMALL_BYTES}
        excess = sum(sizes.values()) - MAX_CACHE_BYTES
        for oldest, size in sizes.items():
            if excess <= 0 or oldest == key:
                break
            excess -= size
            del self._cache[oldest]
        return value

    def peek(self, key: Any) -> Any:
        """Return the cached value of a key, or None."""
        return self._cache.get((self._own, key), (None,))[0]

    @property
    def dense(self) -> Tensor:
        """The features as a dense tensor on the device."""
        if self.features.layout == torch.strided and self.features.device == self.device:
            return self.features
        return self.cached("dense", lambda: self.features.to_dense().to(self.device))

    @property
    def reduced(self) -> tuple[Tensor | None, Tensor]:
        """A basis of the features (see ``span``) and the features in it; no basis if entries are missing."""
        if self.graph.missing.dim() == 2:
            return None, self.dense
        return self.cached("span", lambda: span(self.dense))

    @property
    def is_wide(self) -> bool:
        """Whether an SGC works on leading principal axes: its states would be large, and of many columns."""
        known = int((~self.graph.missing_vectors).sum())
        rank = min(self.graph.num_features, known) if self.graph.missing.dim() == 1 else 0
        return rank > 2 * MAX_AXES and rank * self.graph.num_nodes > MAX_STATE_SIZE

    def principal_axes(self, max_axes: int) -> Tensor:
        """Return the leading principal axes of the known vectors, [d, at most ``max_axes``], on the CPU."""

        def compute() -> Tensor:
            nodes = (~self.graph.missing_vectors).nonzero().squeeze(1)
            if len(nodes) > MAX_AXES_NODES:
                nodes = nodes[torch.linspace(0, len(nodes) - 1, MAX_AXES_NODES).long().to(nodes.device)]
            features = self.features
            if features.layout == torch.sparse_csr:
                features = features.to_sparse_coo()
            rows = features.index_select(0, nodes.to(features.device)).to(self.device)
            return leading_axes(rows, MAX_AXES if self.is_wide else MAX_PRINCIPAL_AXES).cpu()

        return self.cached("axes", compute)[:, :max_axes].contiguous()

    @property
    def node_fingerprints(self) -> NDArray[np.int64]:
        """The ``fingerprints`` of the nodes, int64 [n], which identify them in any graph."""
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
        """Impute missing values by a method of ``IMPUTATIONS``, by default of the ``reduced`` features."""
        if features is None:
            return self.cached(("imputed", method), lambda: self.imputed(method, self.reduced[1]))
        if method == "zero" or not self.graph.missing.any():
            return features
        missing, adjacency = (tensor.to(self.device) for tensor in (self.graph.missing, self.graph.adjacency))
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
