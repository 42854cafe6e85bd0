"""A user's own graph, read from files."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence, Sized
from os import PathLike
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pairnorm.data.adjacency import csr_tensor, symmetric_adjacency
from pairnorm.data.encoder import read_features, read_labels, read_split
from pairnorm.data.graph import UNKNOWN, Graph
from pairnorm.data.tables import (
    EMPTY,
    TABLES,
    Ends,
    Source,
    is_table,
    node_names,
    open_table,
    read_blocks,
    read_edges,
    readable,
)
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
        **columns: as for ``pairnorm.data.io.from_files``.
    """
    import pandas

    from pairnorm.data.tables import Ends, Source

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


def read_whole(path: Path, name: str, columns: dict[str, Any], tables: dict[str, Any]) -> Graph:
    """Read a whole graph from one file, by the file's ending.

    Args:
        path: the file.
        name: what to call the graph.
        columns: what ``from_files`` was told of columns. Attributes in GraphML; other files have none.
        tables: what it was told that means something in tables only.
    """
    if not path.is_file():
        raise PairNormError(f"{path}: there is no such file. Check the name and the folder.")
    kind = path.suffix.lower()
    if kind not in (".graphml", *READERS):
        expected = ", ".join((*TABLES, ".graphml", *READERS))
        raise PairNormError(f"{path.name}: files of type {kind!r} are not known; expected one of {expected}.")
    with readable(path.name):
        refused = tables if kind == ".graphml" else columns | tables
        if given := [f"{option}={value!r}" for option, value in refused.items() if value]:
            raise PairNormError(f"{given[0]} does not apply to {kind} files. Leave it out.")
        if kind == ".graphml":
            import networkx

            return from_networkx(networkx.read_graphml(path), **columns).replace(name=name)
        graph = READERS[kind](path).replace(name=name)
        _check_classes(graph)
    return graph


def read_npz(file: str | Path | IO[bytes]) -> Graph:
    """Read an ``.npz``: CSR pieces ``adj_*``, ``attr_*`` and ``labels``, or what scipy's ``save_npz`` writes.

    Args:
        file: the file, or its name.
    """
    from scipy.sparse import csr_array, load_npz

    def matrix(prefix: str) -> csr_array:
        pieces = tuple(archive[f"{prefix}_{piece}"] for piece in ("data", "indices", "indptr"))
        result = csr_array(pieces, shape=tuple(archive[f"{prefix}_shape"].tolist()))
        result.check_format(full_check=True)
        return result

    with np.load(file, allow_pickle=False) as archive:
        if "adj_data" not in archive:
            if "format" in archive:
                return from_scipy(load_npz(file))
            found = ", ".join(archive.files[:10]) or "nothing"
            raise PairNormError(
                f"there is no 'adj_data', 'adj_indices', 'adj_indptr', 'adj_shape'; it holds {found}."
            )
        parts: dict[str, Any] = {}
        if "attr_data" in archive:
            parts["features"] = matrix("attr")
        elif "attr_matrix" in archive:
            parts["features"] = archive["attr_matrix"]
        if "labels" in archive:
            parts["labels"] = archive["labels"].astype(np.int64)
        return from_scipy(matrix("adj"), **parts)


def _read_safetensors(path: Path) -> Graph:
    from safetensors.torch import load_file
    from torch_geometric.data import Data

    return from_pyg(Data.from_dict(load_file(path)))


def _read_torch(path: Path) -> Graph:
    from torch_geometric.data import Data
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import GlobalStorage

    # PyG lists Data itself as harmless, but not the three plain records that every saved Data refers to.
    with torch.serialization.safe_globals([Data, DataEdgeAttr, DataTensorAttr, GlobalStorage]):
        found = torch.load(path, weights_only=True, map_location="cpu")
    if isinstance(found, tuple) and found:
        found = found[0]
    if not isinstance(found, Data | dict):
        raise PairNormError(
            f"it holds a {type(found).__name__}; expected a PyG Data, or what its to_dict() gives."
        )
    return from_pyg(found if isinstance(found, Data) else Data.from_dict(found))


READERS: dict[str, Callable[[Path], Graph]] = {
    ".npz": read_npz,
    ".safetensors": _read_safetensors,
    ".pt": _read_torch,
    ".pth": _read_torch,
}


def _check_classes(graph: Graph) -> None:
    """Refuse labels that nothing can be learnt from. A graph without any is one to predict for."""
    if graph.num_classes == 0:
        return
    if graph.num_classes == 1:
        raise PairNormError("the labels hold one class only. Label nodes of a second class.")
    counts = torch.bincount(graph.labels[graph.train], minlength=graph.num_classes)
    if graph.train.any() and (counts == 0).any():
        name = graph.class_names[int((counts == 0).nonzero()[0])]
        raise PairNormError(f"class {name!r} has no training node. Put one of its nodes in the training set.")


class GraphWarning(UserWarning):
    """Something odd in a user's files that was handled. The graph's ``notes`` say the same."""


def from_files(
    nodes: str | PathLike[str],
    edges: str | PathLike[str] | None = None,
    *,
    id: str | None = None,
    label: str | None = None,
    source: str | None = None,
    target: str | None = None,
    weight: str | None = None,
    split: str | None = None,
    categorical: Sequence[str] = (),
    ignore: Sequence[str] = (),
    delimiter: str | None = None,
    name: str | None = None,
) -> Graph:
    """Read a graph from a table of nodes and a table of edges, or from one file that holds both.

    Tables are CSV, TSV or Parquet. Every column of the node table that is not named below is a feature:
    numbers as they are, text one-hot. An empty cell is missing; among numbers, so is ``NA`` and its like.
    Whole graphs are ``.npz`` (CSR pieces ``adj_*`` and ``attr_*``, and ``labels``), a PyG ``Data`` as
    ``.safetensors`` or ``.pt``, or ``.graphml``.
    What is odd is handled, noted in ``graph.notes``, and warned of once.

    Args:
        nodes: the table of nodes, or the file that holds the whole graph.
        edges: the table of edges.
        id: the column of ``nodes`` with their names. Default: the first.
        label: the column of ``nodes`` with their classes; an empty cell is unknown. Default: no labels.
        source: the column of ``edges`` with one end. Default: ``'source'`` if there is one, else the first.
        target: the column with the other end. Default: ``'target'`` if there is one, else the second.
        weight: the column of ``edges`` with their weights. Default: all weigh 1.
        split: the column of ``nodes`` that says train, validation or test. Default: no split.
        categorical: columns of ``nodes`` that are categories though they look like numbers.
        ignore: columns of ``nodes`` to leave out.
        delimiter: what separates the cells of text files, or ``'tab'``. Default: a comma, in ``.tsv`` a tab.
        name: what to call the graph. Default: the name of the node file.
    """
    path = Path(nodes)
    columns: dict[str, Any] = {
        "label": label, "split": split, "weight": weight, "categorical": categorical, "ignore": ignore,
    }  # fmt: skip
    name = name or path.stem
    if is_table(path, edges, delimiter):
        if edges is None:
            raise PairNormError(
                f"{path.name}: a table of nodes needs a table of edges beside it. Pass edges=..."
            )
        node_source, edge_source = open_table(path, delimiter), open_table(Path(edges), delimiter)
        ends = _ends(edge_source, source, target)
        graph = from_sources(node_source, edge_source, ends, id=id, name=name, **columns)
    else:
        if edges is not None:
            raise PairNormError(
                f"{path.name}: {path.suffix!r} is no table, but edges are given. "
                f"Expected {', '.join(TABLES)}. For a text file with another ending pass delimiter=','."
            )
        tables = {"id": id, "source": source, "target": target, "delimiter": delimiter}
        graph = read_whole(path, name, columns, tables)
    if graph.notes:
        warnings.warn(f"{name}: {'; '.join(graph.notes)}.", GraphWarning, stacklevel=3)
    return graph


def _ends(edges: Source, source: str | None, target: str | None) -> Ends:
    if len(edges.columns) < 2:
        raise PairNormError(
            f"{edges.name}: it has one column only, {edges.columns[0]!r}; an edge needs two ends."
        )
    titled = {"source", "target"} <= set(edges.columns)
    defaults = ("source", "target") if titled else edges.columns[:2]
    first = defaults[0] if source is None else edges.column("source", source)
    second = defaults[1] if target is None else edges.column("target", target)
    if first == second:
        raise PairNormError(f"{edges.name}: column {first!r} is both source and target. Name the two ends.")
    return Ends(first, second, guessed=not titled and source is None and target is None)


def from_sources(
    nodes: Source,
    edges: Source,
    ends: Ends,
    *,
    id: str | None = None,
    label: str | None = None,
    weight: str | None = None,
    split: str | None = None,
    categorical: Sequence[str] = (),
    ignore: Sequence[str] = (),
    name: str = "graph",
) -> Graph:
    """Make a graph of a table of nodes and a table of edges, wherever they are from.

    Args:
        nodes: the nodes.
        edges: the edges.
        ends: the two columns of ``edges`` that name nodes.
        id: as for ``from_files``, like all that follow.
        label: the column of the nodes' classes.
        weight: the column of the edges' weights.
        split: the column that says train, validation or test.
        categorical: columns that are categories though they look like numbers.
        ignore: columns to leave out.
        name: what to call the graph.
    """
    identity = nodes.columns[0] if id is None else nodes.column("id", id)
    _check_columns(nodes, label=[label], split=[split], categorical=categorical, ignore=ignore)
    _check_columns(edges, weight=[weight])
    if split is not None and label is None:
        raise PairNormError(f"split is {split!r} but label is not given. Name the column of the classes too.")

    text = [column for column in (identity, label, split, *categorical) if column is not None]
    (frame,) = read_blocks(nodes, text, rows=None)
    if len(frame) == 0:
        raise PairNormError(f"{nodes.name}: there are no rows under the header. Expected a row per node.")
    names = node_names(nodes, identity, frame[identity])
    parts: dict[str, Any] = {}
    if label is not None:
        parts["labels"], parts["class_names"] = read_labels(nodes, label, frame[label])
    if split is not None:
        parts |= read_split(nodes, split, frame[split], parts["labels"], parts["class_names"])
    chosen = [column for column in nodes.columns if column not in {identity, label, split, *ignore}]
    features = read_features(nodes, frame, chosen, categorical)
    del frame

    source, target, weights = read_edges(edges, ends, names, weight)
    adjacency, counts = symmetric_adjacency(source, target, len(names), weights)
    return Graph(
        adjacency,
        features.values,
        missing=features.missing,
        feature_names=features.names,
        node_names=names,
        name=name,
        notes=counts.notes() + _doubts(chosen, parts.get("class_names", ()), features.names),
        **parts,
    )


def _doubts(chosen: Sequence[str], classes: Sequence[str], features: Sequence[str]) -> tuple[str, ...]:
    """Return notes on what may not be meant: no features, and words that others write for an empty cell."""
    notes = [] if chosen else ["there are no feature columns"]
    notes += [
        f"{name!r} is read as a class; empty the cells if it means unknown"
        for name in classes
        if name in EMPTY
    ]
    categories = [feature.partition("=") for feature in features if "=" in feature]
    notes += [
        f"{word!r} in column {column!r} is read as a category; empty the cells if it means missing"
        for column, _, word in categories
        if word in EMPTY
    ]
    return tuple(notes)


def _check_columns(table: Source, **options: Sequence[str | None]) -> None:
    for option, columns in options.items():
        for column in columns:
            if column is not None:
                table.column(option, column)
