"""The one graph of this package: what is known about its nodes, and what is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairnorm.data.adjacency import symmetric_adjacency
from pairnorm.data.features import all_finite, nan_as_missing, stored_rows, stored_values
from pairnorm.data.split import Split, split_by_name
from pairnorm.errors import PairNormError

if TYPE_CHECKING:
    import networkx
    import scipy.sparse
    from torch_geometric.data import Data


UNKNOWN = -1


def check(graph: Graph) -> None:
    """Raise an error that names the first thing about a graph that does not fit."""
    _check_shapes(graph)
    _check_labels(graph)
    _check_split(graph)


def _check_shapes(graph: Graph) -> None:
    adjacency, features, nodes = graph.adjacency, graph.features, graph.num_nodes
    if adjacency.layout != torch.sparse_csr or adjacency.shape != (nodes, nodes):
        raise PairNormError(
            f"adjacency is a {adjacency.layout} tensor of shape {tuple(adjacency.shape)}; expected a square "
            "torch.sparse_csr tensor. Graph.from_edges makes one from a list of edges."
        )
    if features.dim() != 2 or not features.is_floating_point():
        raise PairNormError(f"features are {_kind(features)}; expected floats of shape [n, d].")
    for what in ("features", "labels", *Split._fields, "missing", "node_names"):
        found = getattr(graph, what).shape
        if len(found) == 0 or found[0] != nodes:
            raise PairNormError(f"{what} has shape {tuple(found)}, but the graph has {nodes} nodes.")
    if tuple(graph.missing.shape) not in {(nodes,), tuple(features.shape)}:
        raise PairNormError(
            f"missing has shape {tuple(graph.missing.shape)}; expected [{nodes}] for whole vectors or "
            f"{list(features.shape)} for single entries."
        )
    if graph.feature_names is not None and len(graph.feature_names) != graph.num_features:
        raise PairNormError(f"{len(graph.feature_names)} feature names for {graph.num_features} features.")


def check_infinite(graph: Graph) -> None:
    """Raise an error that names the first feature that is infinite."""
    features = graph.features
    if not (infinite := stored_values(features).isinf()).any():
        return
    place = infinite.nonzero()[0].tolist()
    if features.layout == torch.sparse_csr:
        node, column = int(stored_rows(features)[place[0]]), int(features.col_indices()[place[0]])
    else:
        node, column = place
    feature = column if graph.feature_names is None else repr(graph.feature_names[column])
    raise PairNormError(
        f"feature {feature} of node {graph.node_names.tolist()[node]!r} is infinite. "
        "Correct it, or make it NaN if it is missing."
    )


def check_weights(weights: NDArray[np.float32], edges: int) -> None:
    """Raise an error unless there is a positive, finite weight for each edge."""
    if weights.shape != (edges,):
        raise PairNormError(f"weights have shape {weights.shape}; expected one for each of {edges} edges.")
    wrong = ~((weights > 0) & np.isfinite(weights))
    if wrong.any():
        edge = int(wrong.argmax())
        raise PairNormError(f"weights[{edge}] is {weights[edge]}; expected a positive, finite number.")


def _check_labels(graph: Graph) -> None:
    labels = graph.labels
    if labels.dtype != torch.int64 or labels.dim() != 1:
        raise PairNormError(f"labels are {_kind(labels)}; expected int64 of shape [n].")
    wrong = (labels < UNKNOWN) | (labels >= graph.num_classes)
    if wrong.any():
        node = int(wrong.nonzero()[0])
        raise PairNormError(
            f"labels[{node}] is {int(labels[node])}; expected a class from 0 to {graph.num_classes - 1}, "
            "or -1 where it is unknown."
        )


def _check_split(graph: Graph) -> None:
    seen = torch.zeros_like(graph.train)
    for part, mask in graph.split._asdict().items():
        if mask.dtype != torch.bool or mask.dim() != 1:
            raise PairNormError(f"{part} is {_kind(mask)}; expected bool of shape [n].")
        if (twice := mask & seen).any():
            raise PairNormError(
                f"train, validation and test overlap: {int(twice.sum())} nodes of {part} are in another too, "
                f"{_first(graph, twice)}. Put each node in one part only."
            )
        seen = seen | mask
    if (blank := seen & (graph.labels == UNKNOWN)).any():
        raise PairNormError(
            f"{int(blank.sum())} nodes of the split have no label, {_first(graph, blank)}. "
            "Leave them out of train, validation and test."
        )


def _kind(tensor: Tensor) -> str:
    return f"{tensor.dtype} of shape {tuple(tensor.shape)}"


def _first(graph: Graph, mask: Tensor) -> str:
    return f"first {graph.node_names.tolist()[int(mask.nonzero()[0])]!r}"


def describe(graph: Graph) -> str:
    """Return the lines that tell what is inside a graph."""
    per_node = 2 * graph.num_edges / max(graph.num_nodes, 1)
    lines = {
        "nodes": f"{graph.num_nodes:,}",
        "edges": f"{graph.num_edges:,} undirected, {per_node:.1f} per node",
        "features": _features(graph),
        "classes": _classes(graph),
        "labelled": _share(int(graph.labelled.sum()), graph.num_nodes),
        "split": ", ".join(f"{part} {int(mask.sum()):,}" for part, mask in graph.split._asdict().items()),
        "missing": _missing(graph),
        "homophily": homophily(graph),
    }
    text = [f"Graph {graph.name!r}", *(f"  {what:<10} {found}" for what, found in lines.items())]
    text += [f"  note       {note}" for note in graph.notes]
    return "\n".join(text)


def _share(part: int, whole: int) -> str:
    """Say how many, and what share of the whole that is.

    >>> _share(140, 2708)
    '140 (5.17%)'
    """
    return f"{part:,} ({100 * part / max(whole, 1):.3g}%)"


def _features(graph: Graph) -> str:
    kind = "sparse" if graph.features.layout == torch.sparse_csr else "dense"
    return f"{graph.num_features:,} {kind}, {100 * graph.density:.3g}% non-zero"


def _classes(graph: Graph, shown: int = 7) -> str:
    more = ", …" if graph.num_classes > shown else ""
    names = ", ".join(graph.class_names[:shown]) + more
    return f"{graph.num_classes} ({names})" if graph.num_classes else "none"


def _missing(graph: Graph) -> str:
    vectors = int(graph.missing_vectors.sum())
    text = f"{_share(vectors, graph.num_nodes)} vectors" if vectors else "no vector"
    if graph.missing.dim() == 2:
        single = int(graph.missing.sum()) - vectors * graph.num_features
        text += f", {single:,} single entries"
    return text


def homophily(graph: Graph) -> str:
    """Say what share of edges joins nodes of one class, and of how many edges that is known.

    Args:
        graph: with labels.
    """
    same, known = graph.edges_within_classes
    if known == 0:
        return "unknown: no edge joins two labelled nodes"
    return f"{graph.homophily:.3f}: {same:,} of {known:,} edges between labelled nodes join one class"


_UNSET: Any = None


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """An undirected graph with features and labels on its nodes. It never changes; ``replace`` gives another.

    >>> graph = Graph.from_edges([[0, 1, 2], [1, 2, 3]], labels=[0, 0, 1, 1])
    >>> graph.num_nodes, graph.num_edges, graph.num_classes
    (4, 3, 2)

    Args:
        adjacency: ``torch.sparse_csr`` [n, n] of float32 weights, symmetric, without self-loops.
        features: float32 [n, d], dense or ``torch.sparse_csr``; NaN where missing, kept as 0.
        labels: int64 [n]; -1 where the class is unknown. Default: all unknown.
        train: bool [n], the nodes to learn from. Default: none, as for the next two.
        validation: bool [n], the nodes to choose a model by.
        test: bool [n], the nodes to report on.
        missing: what the data lacks: bool [n] (whole vectors) or [n, d] (single entries). Default: nothing.
        node_names: the n names of the nodes, strings or integers. Default: 0 .. n - 1.
        class_names: a name for each class. Default: '0', '1', ...
        feature_names: a name for each of the d features, where they have names.
        name: what to call the graph.
        notes: what was odd about the data and how it was handled, a sentence each.
    """

    adjacency: Tensor
    features: Tensor
    labels: Tensor = _UNSET
    train: Tensor = _UNSET
    validation: Tensor = _UNSET
    test: Tensor = _UNSET
    missing: Tensor = _UNSET
    node_names: NDArray[Any] = _UNSET
    class_names: tuple[str, ...] = _UNSET
    feature_names: tuple[str, ...] | None = None
    name: str = "graph"
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        nodes, device = self.adjacency.shape[0], self.adjacency.device
        none = torch.zeros(nodes, dtype=torch.bool, device=device)
        if self.labels is None:
            self._set("labels", torch.full((nodes,), UNKNOWN, device=device))
        for part in (*Split._fields, "missing"):
            if getattr(self, part) is None:
                self._set(part, none)
        names = np.arange(nodes) if self.node_names is None else np.array(self.node_names)
        names.flags.writeable = False
        self._set("node_names", names)
        if self.class_names is None:
            largest = int(self.labels.max()) if self.labels.numel() else UNKNOWN
            self._set("class_names", tuple(map(str, range(largest + 1))))
        check(self)
        if not all_finite(self.features):
            check_infinite(self)
            features, missing = nan_as_missing(self.features, self.missing)
            self._set("features", features)
            self._set("missing", missing)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def num_nodes(self) -> int:
        """How many nodes there are."""
        return self.adjacency.shape[0]

    @property
    def num_edges(self) -> int:
        """How many distinct undirected edges there are."""
        return self.adjacency.values().numel() // 2

    @property
    def num_features(self) -> int:
        """How many features a node has."""
        return self.features.shape[1]

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.adjacency.device

    @property
    def labelled(self) -> Tensor:
        """bool [n]: the nodes whose class is known."""
        return self.labels != UNKNOWN

    @property
    def missing_vectors(self) -> Tensor:
        """bool [n]: the nodes all of whose features are missing in the data."""
        if self.missing.dim() == 1:
            return self.missing
        return self.missing.all(1) & (self.num_features > 0)

    @property
    def edge_index(self) -> Tensor:
        """int64 [2, 2m]: both directions of every edge, sorted by the first row."""
        crow, column = self.adjacency.crow_indices(), self.adjacency.col_indices()
        row = torch.repeat_interleave(torch.arange(self.num_nodes, device=self.device), crow.diff())
        return torch.stack([row, column])

    @property
    def density(self) -> float:
        """The fraction of features that are not zero."""
        return int(torch.count_nonzero(stored_values(self.features))) / max(self.features.shape.numel(), 1)

    @property
    def edges_within_classes(self) -> tuple[int, int]:
        """How many edges join two nodes of one class, and how many two labelled nodes."""
        ends = self.labels[self.edge_index]
        known = (ends != UNKNOWN).all(0)
        return int((ends[0] == ends[1])[known].sum()) // 2, int(known.sum()) // 2

    @property
    def homophily(self) -> float:
        """The fraction of edges that join two nodes of one class, among those whose two ends are labelled."""
        same, known = self.edges_within_classes
        return same / known if known else float("nan")

    @property
    def split(self) -> Split:
        """The train, validation and test masks together."""
        return Split(self.train, self.validation, self.test)

    def replace(self, **changes: Any) -> Graph:
        """Return the graph with some of its parts exchanged."""
        return replace(self, **changes)

    def with_split(self, split: Split | str, seed: int = 0) -> Graph:
        """Return the graph with another split.

        Args:
            split: three masks, or ``'random'`` (3% / 10% / 87% of the labelled nodes), or ``'per-class-20'``
                (20 training nodes of each class; any other number likewise).
            seed: for a split drawn at random.
        """
        if isinstance(split, str):
            split = split_by_name(split, self.labels, seed)
        return self.replace(**split._asdict())

    def to(self, device: torch.device | str) -> Graph:
        """Return the graph with every tensor on ``device``."""
        tensors = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return self.replace(**tensors)

    @classmethod
    def from_edges(
        cls,
        edge_index: Tensor | Sequence[Sequence[int]] | NDArray[Any],
        features: Tensor | Sequence[Sequence[float]] | NDArray[Any] | None = None,
        labels: Tensor | Sequence[int] | NDArray[Any] | None = None,
        *,
        num_nodes: int | None = None,
        weights: Tensor | Sequence[float] | NDArray[Any] | None = None,
        **parts: Any,
    ) -> Graph:
        """Make a graph from a list of edges, in one or both directions.

        Args:
            edge_index: whole numbers of shape [2, edges]: the two ends of each edge.
            features: [n, d]; NaN where missing. Default: none, d = 0.
            labels: [n]; -1 where unknown.
            num_nodes: n. Default: the length of ``features`` or ``labels``, else the largest end + 1.
            weights: [edges], positive. Default: 1.
            **parts: any other part of a graph, e.g. ``train``.
        """
        tensors = (part for part in (edge_index, features) if isinstance(part, Tensor))
        device = next((part.device for part in tensors), torch.device("cpu"))
        ends = np.asarray(edge_index.cpu() if isinstance(edge_index, Tensor) else edge_index)
        if (
            ends.ndim != 2
            or ends.shape[0] != 2
            or not (np.issubdtype(ends.dtype, np.integer) or ends.size == 0)
        ):
            raise PairNormError(
                f"edge_index is {ends.dtype} of shape {ends.shape}; expected whole numbers, [2, edges]."
            )
        if labels is not None:
            labels = torch.as_tensor(labels, device=device)
        if features is not None:
            features = torch.as_tensor(features, dtype=torch.float32, device=device)
        if num_nodes is None:
            known = next((len(part) for part in (features, labels) if part is not None), None)
            num_nodes = known if known is not None else int(ends.max(initial=-1)) + 1
        if ends.size and (ends.min() < 0 or ends.max() >= num_nodes):
            wrong = ends.min() if ends.min() < 0 else ends.max()
            raise PairNormError(
                f"edge_index names node {wrong}, but the graph has nodes 0 to {num_nodes - 1}."
            )
        strengths = None if weights is None else torch.as_tensor(weights).cpu().float().numpy()
        if strengths is not None:
            check_weights(strengths, ends.shape[1])
        adjacency, counts = symmetric_adjacency(ends[0], ends[1], num_nodes, strengths)
        if features is None:
            features = torch.zeros(num_nodes, 0, device=device)
        notes = parts.pop("notes", ()) + counts.notes()
        return cls(adjacency.to(device), features, cast(Tensor, labels), notes=notes, **parts)

    @classmethod
    def from_files(
        cls, nodes: str | PathLike[str], edges: str | PathLike[str] | None = None, **columns: Any
    ) -> Graph:
        """Read a graph from files: see ``pairnorm.data.io.from_files`` for the arguments."""
        from pairnorm.data.io import from_files

        return from_files(nodes, edges, **columns)

    @classmethod
    def from_pyg(cls, data: Data, **parts: Any) -> Graph:
        """Take over a PyG ``Data``: x, edge_index, edge_weight, y and the masks; ``parts`` add to them."""
        from pairnorm.data.io import from_pyg

        return from_pyg(data, **parts)

    def to_pyg(self) -> Data:
        """Return the graph as a PyG ``Data``."""
        from pairnorm.data.io import to_pyg

        return to_pyg(self)

    @classmethod
    def from_scipy(cls, adjacency: scipy.sparse.sparray, features: Any = None, **parts: Any) -> Graph:
        """Take over a scipy adjacency matrix, and features that are a scipy matrix or a numpy array."""
        from pairnorm.data.io import from_scipy

        return from_scipy(adjacency, features, **parts)

    def to_scipy(self) -> tuple[scipy.sparse.csr_array, Any]:
        """Return the adjacency matrix as a scipy ``csr_array``, and features as one or as a numpy array."""
        from pairnorm.data.io import to_scipy

        return to_scipy(self)

    @classmethod
    def from_networkx(cls, graph: networkx.Graph, **columns: Any) -> Graph:
        """Take over a networkx graph: see ``pairnorm.data.io.from_networkx``."""
        from pairnorm.data.io import from_networkx

        return from_networkx(graph, **columns)

    def to_networkx(self) -> networkx.Graph:
        """Return a networkx graph: ``x``, ``label`` and ``split`` on its nodes, ``weight`` on its edges."""
        from pairnorm.data.io import to_networkx

        return to_networkx(self)

    def __repr__(self) -> str:

        return describe(self)
