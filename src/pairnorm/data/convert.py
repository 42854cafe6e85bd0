"""Graphs of other libraries, taken over and given back: PyG, scipy, networkx."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pairnorm.data.adjacency import csr_tensor
from pairnorm.data.check import UNKNOWN
from pairnorm.data.graph import Graph
from pairnorm.errors import PairNormError

if TYPE_CHECKING:
    import networkx
    import scipy.sparse
    from torch_geometric.data import Data

_NODE, _SOURCE, _TARGET = "(node)", "(source)", "(target)"
_PYG_MASKS = {"train": "train_mask", "validation": "val_mask", "test": "test_mask"}


def to_pyg(graph: Graph) -> Data:
    """Return a graph as a PyG ``Data``: x, edge_index, edge_weight, y, three masks, and missing if any is."""
    from torch_geometric.data import Data

    masks = {theirs: getattr(graph, ours) for ours, theirs in _PYG_MASKS.items()}
    if graph.missing.any():
        masks["missing"] = graph.missing
    return Data(
        x=graph.features,
        edge_index=graph.edge_index,
        edge_weight=graph.adjacency.values(),
        y=graph.labels,
        num_nodes=graph.num_nodes,
        **masks,
    )


def from_pyg(data: Data, **parts: Any) -> Graph:
    """Take over a PyG ``Data``.

    Args:
        data: with edge_index, and maybe x, edge_weight, y, train_mask, val_mask, test_mask, missing.
        **parts: any part of a graph, e.g. ``name``; it goes before what ``data`` says.
    """
    found = data.to_dict()
    if not isinstance(found.get("edge_index"), Tensor):
        raise PairNormError(
            f"the PyG data has no edge_index; it has {', '.join(map(repr, found)) or 'nothing'}."
        )
    taken = {ours: found[theirs] for ours, theirs in _PYG_MASKS.items() if theirs in found}
    for ours, mask in taken.items():
        if mask.dim() != 1:
            raise PairNormError(
                f"{_PYG_MASKS[ours]} has shape {tuple(mask.shape)}: several splits. Take one column of each."
            )
    if "missing" in found:
        taken["missing"] = found["missing"]
    if "y" in found:
        labels = found["y"]
        if labels.numel() != len(labels):
            raise PairNormError(f"y has shape {tuple(labels.shape)}; expected one class per node, [n].")
        taken["labels"] = _whole(labels.reshape(-1))
    if "x" in found:
        x = found["x"]
        taken["features"] = (x.to_sparse_csr() if x.layout != torch.strided else x).float()
    if "num_nodes" in found or "x" not in found:
        taken["num_nodes"] = int(data.num_nodes)
    if isinstance(weights := found.get("edge_weight"), Tensor):
        taken["weights"] = weights
    return Graph.from_edges(found["edge_index"], **(taken | parts))


def _whole(labels: Tensor) -> Tensor:
    whole = labels.nan_to_num(UNKNOWN).long() if labels.is_floating_point() else labels.long()
    if labels.is_floating_point() and not torch.equal(
        whole[labels == labels].to(labels.dtype), labels[labels == labels]
    ):
        raise PairNormError("y holds fractions; expected the number of a class for each node.")
    return whole


def to_scipy(graph: Graph) -> tuple[scipy.sparse.csr_array, Any]:
    """Return the adjacency matrix as a scipy ``csr_array``, and features as one or as a numpy array."""
    from scipy.sparse import csr_array

    def array(tensor: Tensor) -> Any:
        tensor = tensor.cpu()
        if tensor.layout != torch.sparse_csr:
            return tensor.numpy()
        pieces = (tensor.values(), tensor.col_indices(), tensor.crow_indices())
        return csr_array(tuple(piece.numpy() for piece in pieces), shape=tuple(tensor.shape))

    return array(graph.adjacency), array(graph.features)


def from_scipy(adjacency: scipy.sparse.sparray, features: Any = None, **parts: Any) -> Graph:
    """Take over a scipy adjacency matrix and features.

    Args:
        adjacency: [n, n]; self-loops are dropped, and an edge in one direction is taken as undirected.
        features: [n, d], a scipy matrix or a numpy array.
        **parts: any other part of a graph, e.g. ``labels``.
    """
    import scipy.sparse

    if adjacency.ndim != 2 or adjacency.shape[0] != adjacency.shape[1]:
        raise PairNormError(f"adjacency has shape {adjacency.shape}; expected a square matrix.")
    if scipy.sparse.issparse(features):
        matrix = scipy.sparse.csr_array(features, copy=True)
        matrix.sum_duplicates()
        features = csr_tensor(matrix)
    edges = scipy.sparse.coo_array(adjacency)
    edges.sum_duplicates()
    edges.eliminate_zeros()
    return Graph.from_edges(
        np.stack(edges.coords), features, num_nodes=adjacency.shape[0], weights=edges.data, **parts
    )


def to_networkx(graph: Graph) -> networkx.Graph:
    """Return a networkx graph whose nodes carry ``x`` (a list), ``label`` and ``split`` where known."""
    import networkx

    features = graph.features.to_dense().tolist()
    classes, names = graph.labels.tolist(), graph.node_names.tolist()
    missing = graph.missing_vectors.tolist()
    split = {part: mask.tolist() for part, mask in graph.split._asdict().items()}
    result = networkx.Graph(name=graph.name)
    for number, node in enumerate(names):
        attributes = {} if missing[number] else {"x": features[number]}
        if classes[number] != UNKNOWN:
            attributes["label"] = graph.class_names[classes[number]]
        for part, mask in split.items():
            if mask[number]:
                attributes["split"] = part
        result.add_node(node, **attributes)
    source, target = graph.edge_index.tolist()
    weights = graph.adjacency.values().tolist()
    result.add_weighted_edges_from(
        (names[a], names[b], weight) for a, b, weight in zip(source, target, weights, strict=True) if a < b
    )
    return result


def from_networkx(
    graph: networkx.Graph,
    *,
    label: str | None = None,
    split: str | None = None,
    weight: str | None = None,
    features: str = "x",
    ignore: Sequence[str] = (),
    **columns: Any,
) -> Graph:
    """Take over a networkx graph. Its nodes' attributes become features as the columns of a file do.

    Args:
        graph: directed or not.
        label: the attribute that holds the class. Default: ``'label'`` where some node has it.
        split: the attribute that says train, validation or test. Default: ``'split'`` where some node has it.
        weight: the attribute of its edges that holds their weights. Default: ``'weight'``, or 1 without.
        features: an attribute that holds whole vectors; if none does, all others are features.
        ignore: attributes of nodes to leave out.
        **columns: as for ``pairnorm.data.files.from_files``.
    """
    import pandas

    from pairnorm.data.files import from_sources
    from pairnorm.data.names import Ends
    from pairnorm.data.tables import Source

    def source(name: str, columns: dict[str, list[Any]]) -> Source:
        return Source(f"the {name} of the networkx graph", tuple(columns), frame=pandas.DataFrame(columns))

    nodes = _attributes([attributes for _, attributes in graph.nodes(data=True)])
    wanted = nodes.keys() - set(ignore)
    label = "label" if label is None and "label" in wanted else label
    split = "split" if split is None and "split" in wanted else split
    vectors = None
    if features in wanted and any(map(_is_vector, nodes[features])):
        vectors = nodes[features]
        nodes = {name: values for name, values in nodes.items() if name in (label, split, *ignore)}

    edges = _edges(graph)
    if weight is None and "weight" in edges:
        weight = "weight"
        edges[weight] = [1.0 if value is None else value for value in edges[weight]]
    result = from_sources(
        source("nodes", {_NODE: list(graph.nodes)} | nodes),
        source("edges", edges),
        Ends(_SOURCE, _TARGET),
        label=label,
        split=split,
        weight=weight,
        ignore=ignore,
        name=graph.name or "graph",
        **columns,
    )
    return result if vectors is None else _with_vectors(result, vectors, features)


def _edges(graph: networkx.Graph) -> dict[str, list[Any]]:
    """Return the two ends and the attributes of every edge, in both directions where it has none."""
    found = list(graph.edges(data=True))
    if not graph.is_directed():
        found += [(target, source, attributes) for source, target, attributes in found if source != target]
    ends = {_SOURCE: [edge[0] for edge in found], _TARGET: [edge[1] for edge in found]}
    return ends | _attributes([edge[2] for edge in found])


def _attributes(found: list[dict[Any, Any]]) -> dict[str, list[Any]]:
    """Return a column for each attribute that some node or edge has; None for those that have it not."""
    known = dict.fromkeys(key for attributes in found for key in attributes)
    return {str(key): [attributes.get(key) for attributes in found] for key in known}


def _is_vector(value: object) -> bool:
    return isinstance(value, Sized) and not isinstance(value, str)


def _with_vectors(graph: Graph, vectors: list[Any], attribute: str) -> Graph:
    """Add whole vectors, some of which may be None: those are missing."""
    width = len(next(filter(_is_vector, vectors)))
    missing = torch.tensor([vector is None for vector in vectors])
    try:
        values = torch.tensor([[0.0] * width if vector is None else list(vector) for vector in vectors])
    except (TypeError, ValueError) as error:
        raise PairNormError(
            f"attribute {attribute!r} is not {width} numbers on every node: {error}"
        ) from error
    notes = tuple(note for note in graph.notes if "feature columns" not in note)
    return graph.replace(features=values, missing=missing, feature_names=None, notes=notes)
