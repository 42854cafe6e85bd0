"""Convert graphs from and to frames, networkx, PyG and scipy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pairnorm.base.errors import PairNormError, quoted, whole_number
from pairnorm.data.adjacency import csr_matrix
from pairnorm.data.edges import (
    Ends,
    add_edge_features,
    choose_edge_columns,
    find_ends,
    note_unused_columns,
    read_edges,
)
from pairnorm.data.encoder import ColumnOptions, Encoder
from pairnorm.data.features import plain_or_csr
from pairnorm.data.frames import arrow_frame, columns_of
from pairnorm.data.labels import UNKNOWN, whole_labels
from pairnorm.data.nodes import read_nodes
from pairnorm.data.tables import Source

if TYPE_CHECKING:
    import networkx
    import scipy.sparse
    from torch_geometric.data import Data

    from pairnorm.data.graph import Graph


Parts = dict[str, Any]
PYG_MASKS = {"train": "train_mask", "validation": "val_mask", "test": "test_mask"}
_NODE, _SOURCE, _TARGET = "(node)", "(source)", "(target)"


def from_frames(
    nodes: Any, edges: Any, features: Any, options: ColumnOptions, encoder: Encoder | None
) -> Parts:
    """Return the parts of a graph in frames of pandas, or of any library that hands its columns over."""
    tables = [
        [] if role == "features" and frame is None else [_frame_source(f"the frame of {role}", frame)]
        for role, frame in (("nodes", nodes), ("edges", edges), ("features", features))
    ]
    try:
        return from_tables(tables, options.after(encoder), encoder)
    except PairNormError as error:
        if error.code == "unknown-node" and str(error.value) in _unread_index(nodes):
            error.hint += " It is in the index of the nodes; only one with a name, such as 'id', is read."
        raise


def _unread_index(frame: Any) -> set[str]:
    import pandas

    if not isinstance(frame, pandas.DataFrame) or isinstance(frame.index, pandas.RangeIndex):
        return set()
    return set() if any(frame.index.names) else set(map(str, frame.index))


def _frame_source(name: str, frame: Any) -> Source:
    import pandas

    if isinstance(frame, Mapping):
        frame = pandas.DataFrame(frame)
    if not isinstance(frame, pandas.DataFrame):
        import pyarrow

        if hasattr(frame, "__arrow_c_stream__"):
            frame = arrow_frame(pyarrow.table(frame))
        elif hasattr(frame, "__dataframe__"):
            from pyarrow.interchange import from_dataframe

            frame = arrow_frame(from_dataframe(frame))
        else:
            problem = f"{name} is a {type(frame).__name__}"
            expected = "a pandas.DataFrame, or one that has __arrow_c_stream__ or __dataframe__"
            raise PairNormError(problem, code="wrong-type", value=type(frame).__name__, expected=expected)
    if any(frame.index.names):  # an index with a name is a column
        frame = frame.reset_index()
    return Source(
        name, columns_of(name, list(frame.columns)), frame.set_axis(map(str, frame.columns), axis=1)
    )


def from_tables(tables: Sequence[Sequence[Source]], options: ColumnOptions, encoder: Encoder | None) -> Parts:
    """Return the parts of a graph in tables of nodes, of edges, and of features."""
    nodes, edges, features = tables
    ends = [find_ends(table, options.source, options.target) for table in edges]
    for table, two in zip(edges, ends, strict=True):
        columns = choose_edge_columns(table, two, options.weight, options, encoder)
        note_unused_columns(table, two, options.weight, columns)
    return _parts(nodes, edges, ends, options.weight, options, encoder, features)


def _parts(
    nodes: Sequence[Source],
    edges: Sequence[Source],
    ends: Sequence[Ends],
    weight: str | None,
    options: ColumnOptions,
    encoder: Encoder | None,
    features: Sequence[Source] = (),
) -> Parts:
    parts = read_nodes(nodes, options, encoder, features)
    columns = choose_edge_columns(edges[0], ends[0], weight, options, encoder)
    text = [] if encoder is None else [one.name for one in encoder.edge_columns if one.kind == "category"]
    read = []
    for table, two in zip(edges, ends, strict=True):
        drop = options.unknown_edges == "drop"
        read.append(read_edges(table, two, parts["node_names"], weight, drop, columns, text))
    parts["edge_index"] = np.concatenate([one.edge_index for one in read], 1)
    parts["weights"] = None if weight is None else np.concatenate([one.weights for one in read])
    parts["notes"] += tuple(remark for table in edges for remark in table.all_notes())
    if columns:
        import pandas

        frame = pandas.concat([one.columns for one in read], ignore_index=True)
        bare = replace(edges[0], notes=[], _column_notes={})
        parts = add_edge_features(parts, bare, frame, options, encoder)
    return parts | {"num_nodes": len(parts["node_names"])}


def from_networkx(
    graph: networkx.Graph,
    options: ColumnOptions,
    encoder: Encoder | None,
    features: str = "x",
    limit: Callable[[int, int], None] = lambda rows, columns: None,
) -> Parts:
    """Return the parts of a networkx graph; attributes of nodes are read as the columns of a file are.

    ``limit`` raises an error where a table has too many rows and columns.
    """
    import pandas

    for items in (graph.nodes(data=True), graph.edges(data=True)):
        limit(len(items), len({key for *_, attributes in items for key in attributes}))

    nodes = _attributes([attributes for _, attributes in graph.nodes(data=True)])
    edges = _edges(graph)
    options = options.after(encoder)
    if encoder is None:
        candidates = nodes.keys() - set(options.ignore)
        defaults: dict[str, Any] = {
            name: name for name in ("label", "split") if name in candidates and not getattr(options, name)
        }
        options = replace(options, **defaults)
    else:
        candidates = nodes.keys() - {*options.ignore, *encoder.features}
        options = replace(options, id=_NODE)
    vectors = nodes[features] if features in candidates and any(map(_is_vector, nodes[features])) else None
    if vectors is not None:
        nodes = {
            name: nodes[name] for name in nodes if name in (options.label, options.split, *options.ignore)
        }
    weight = options.weight
    if weight is None and "weight" in edges:
        weight = "weight"
        edges[weight] = [1.0 if value is None else value for value in edges[weight]]
    node_table, edge_table = (
        Source(f"the {what} of the networkx graph", tuple(columns), pandas.DataFrame(columns))
        for what, columns in (("nodes", {_NODE: list(graph.nodes)} | nodes), ("edges", edges))
    )
    weight = weight and edge_table.column("weight", weight)
    parts = _parts([node_table], [edge_table], [Ends(_SOURCE, _TARGET)], weight, options, encoder)
    parts["name"] = graph.name or "graph"
    return parts if vectors is None else parts | _vectors(vectors, features)


def _edges(graph: networkx.Graph) -> dict[str, list[Any]]:
    """Return the two ends and the attributes of every edge, in both directions where it has none."""
    edges = list(graph.edges(data=True))
    if not graph.is_directed():
        edges += [(target, source, attributes) for source, target, attributes in edges if source != target]
    ends = {_SOURCE: [edge[0] for edge in edges], _TARGET: [edge[1] for edge in edges]}
    return ends | _attributes([edge[2] for edge in edges])


def _attributes(items: list[dict[Any, Any]]) -> dict[str, list[Any]]:
    """Return a column for each attribute that some node or edge has; None for those that have it not."""
    known = dict.fromkeys(key for attributes in items for key in attributes)
    return {str(key): [attributes.get(key) for attributes in items] for key in known}


def _is_vector(value: object) -> bool:
    return isinstance(value, Sized) and not isinstance(value, str)


def _vectors(vectors: list[Any], attribute: str) -> Parts:
    """Return features that come as whole vectors, some of which may be None: those are missing."""
    width = len(next(filter(_is_vector, vectors)))
    try:
        values = torch.tensor([[torch.nan] * width if one is None else list(one) for one in vectors])
    except (TypeError, ValueError) as error:
        problem = f"attribute {quoted(attribute)} is not {width} numbers on every node: {error}"
        raise PairNormError(problem, code="wrong-shape", value=attribute) from error
    missing = torch.zeros(len(vectors), dtype=torch.bool)
    return {"features": values, "missing": missing, "encoder": None, "notes": ()}


def from_pyg(data: Mapping[str, Any]) -> Parts:
    """Return the parts of a PyG ``Data``, given as the dictionary that its ``to_dict`` makes."""
    if "_global_store" in data:
        problem, expected = "the PyG data has types of nodes and edges", "a homogeneous Data"
        hint = "data.to_homogeneous() makes one."
        raise PairNormError(problem, code="wrong-type", value="HeteroData", expected=expected, hint=hint)
    if not isinstance(data.get("edge_index"), Tensor):
        problem = f"the PyG data has no edge_index; it has {', '.join(map(repr, data)) or 'nothing'}"
        raise PairNormError(problem, code="edges-missing")
    parts = {"edge_index": data["edge_index"], "weights": data.get("edge_weight")}
    if data.get("edge_attr") is not None:
        parts["notes"] = ("edge_attr of the PyG data: not used; only its edge_weight weighs edges",)
    for ours, theirs in PYG_MASKS.items():
        if (mask := data.get(theirs)) is not None:
            if mask.dim() != 1:
                problem = f"{theirs} has shape {tuple(mask.shape)}: several splits"
                raise PairNormError(
                    problem, code="wrong-shape", value=theirs, hint="Take one column of each."
                )
            parts[ours] = mask
    if data.get("missing") is not None:
        parts["missing"] = data["missing"]
    if (labels := data.get("y")) is not None:
        parts["labels"] = whole_labels("y", labels)
    if (x := data.get("x")) is not None:
        parts["features"] = plain_or_csr("x", x).float()
    if data.get("num_nodes") is not None:
        parts["num_nodes"] = whole_number("num_nodes", data["num_nodes"])
    return parts


def from_scipy(adjacency: Any, features: Any = None) -> Parts:
    """Return the parts of a graph whose adjacency, and maybe whose features, are scipy matrices."""
    import scipy.sparse

    if adjacency.ndim != 2 or adjacency.shape[0] != adjacency.shape[1]:
        problem = f"adjacency has shape {adjacency.shape}"
        raise PairNormError(problem, code="wrong-shape", expected="a square matrix")
    edges = scipy.sparse.coo_array(adjacency)
    edges.sum_duplicates()
    edges.eliminate_zeros()
    return {
        "edge_index": np.stack(edges.coords),
        "weights": edges.data,
        "num_nodes": adjacency.shape[0],
        "features": features,
    }


def to_pyg(graph: Graph) -> Data:
    """Return a PyG ``Data``: x, edge_index, edge_weight, y, three masks, and missing if any is."""
    from torch_geometric.data import Data

    masks = {theirs: getattr(graph, ours) for ours, theirs in PYG_MASKS.items()}
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


def to_scipy(graph: Graph) -> tuple[scipy.sparse.csr_array, Any]:
    """Return the adjacency matrix as a scipy ``csr_array``, and features as one or as a numpy array."""
    sparse = graph.features.layout == torch.sparse_csr
    features = csr_matrix(graph.features) if sparse else graph.features.cpu().numpy()
    return csr_matrix(graph.adjacency), features


def to_networkx(graph: Graph) -> networkx.Graph:
    """Return a networkx graph: ``x``, ``label`` and ``split`` on its nodes, ``weight`` on its edges."""
    import networkx

    features, missing = graph.features.to_dense().tolist(), graph.missing_vectors.tolist()
    classes, names = graph.labels.tolist(), graph.node_names.tolist()
    split = {part: mask.tolist() for part, mask in graph.split._asdict().items()}
    result = networkx.Graph(name=graph.name)
    for number, node in enumerate(names):
        attributes = {} if missing[number] else {"x": features[number]}
        if classes[number] != UNKNOWN:
            attributes["label"] = graph.class_names[classes[number]]
        for part in (part for part, mask in split.items() if mask[number]):
            attributes["split"] = part
        result.add_node(node, **attributes)
    (source, target), weights = graph.edge_index.tolist(), graph.adjacency.values().tolist()
    result.add_weighted_edges_from(
        (names[a], names[b], weight) for a, b, weight in zip(source, target, weights, strict=True) if a < b
    )
    return result
