"""What must hold of every graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairnorm.data.features import stored_rows, stored_values
from pairnorm.data.split import Split
from pairnorm.errors import PairNormError

if TYPE_CHECKING:
    from pairnorm.data.graph import Graph

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
