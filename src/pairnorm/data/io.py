"""A user's own graph from files and other libraries, as the parts that ``Graph.from_edges`` takes."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence, Sized
from dataclasses import asdict, replace
from os import PathLike
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pairnorm.data.adjacency import check_csr, csr_tensor
from pairnorm.data.encoder import Encoder, Options
from pairnorm.data.names import Ends, find_ends, read_edges
from pairnorm.data.nodes import read_nodes
from pairnorm.data.readers import (
    STDIN,
    TABLES,
    Given,
    arrow_frame,
    columns_of,
    existing,
    kind_of,
    open_tables,
)
from pairnorm.data.tables import Source, readable, shown
from pairnorm.errors import PairNormError, quoted, whole_number
from pairnorm.sparse import quieten

if TYPE_CHECKING:
    import networkx


Parts = dict[str, Any]
PYG_MASKS = {"train": "train_mask", "validation": "val_mask", "test": "test_mask"}
_NODE, _SOURCE, _TARGET = "(node)", "(source)", "(target)"


def read_files(
    nodes: Given,
    edges: Given | None,
    features: Given | None,
    database: str | None,
    told: Options,
    encoder: Encoder | None,
) -> Parts:
    """Return the parts of a graph in tables of nodes and of edges, or in one file that holds it whole."""
    if not isinstance(nodes, str | PathLike) and len(nodes) == 1:
        (nodes,) = nodes
    again = told.after(encoder)
    if database is not None or not _holds_all(nodes, edges, again.delimiter):
        if edges is None:
            problem = f"{place_name(nodes)}: a table of nodes needs a table of edges beside it"
            raise PairNormError(problem, code="option-missing", remedy="Pass {edges}", edges=...)
        if nodes == edges == STDIN:
            raise PairNormError(
                "nodes and edges are both '-'", code="conflicting-options", remedy="Pipe one of them in only."
            )
        how = {name: getattr(again, name) for name in ("delimiter", "encoding", "decimal")}
        tables = [
            [] if given is None else open_tables(role, given, database=database, **how)
            for role, given in (("nodes", nodes), ("edges", edges), ("features", features))
        ]
        return _from_tables(tables, again, encoder)
    path = Path(nodes)  # type: ignore[arg-type]
    for option, given in (("edges", edges), ("features", features)):
        if given is not None:
            raise PairNormError(
                f"{path.name}: {path.suffix!r} is no table, but {option} are given",
                code="unknown-file-type",
                value=path.suffix,
                expected=", ".join(TABLES),
                remedy="For a text file with another ending pass {delimiter}.",
                delimiter=",",
            )
    kind = existing(path).suffix.lower()
    with readable(path.name):
        _check_applies(kind, told)
        if kind == ".graphml":
            import networkx

            return from_networkx(networkx.read_graphml(path), told, encoder)
        return READERS[kind](path)


def _holds_all(nodes: Given, edges: Given | None, delimiter: str | None) -> bool:
    """Say whether a file holds the whole graph: by its ending, unless edges and a delimiter come with it."""
    if (
        not isinstance(nodes, str | PathLike)
        or nodes == STDIN
        or (edges is not None and delimiter is not None)
    ):
        return False
    path = Path(nodes)
    if any(sign in path.name for sign in "*?[") or path.is_dir():
        return False
    return kind_of(path) not in TABLES


def place_name(given: Given) -> str:
    """Return what to call a graph, or its nodes, by where they are."""
    first = given if isinstance(given, str | PathLike) else next(iter(given), "")
    return Path(first).name


def _check_applies(kind: str, told: Options) -> None:
    """Refuse a kind of file that is not known, and options that mean nothing in it."""
    if kind not in (".graphml", *READERS):
        problem = f"files of type {quoted(kind)} are not known"
        expected = "one of " + ", ".join((*TABLES, ".graphml", *READERS))
        raise PairNormError(problem, code="unknown-file-type", value=kind, expected=expected)
    about_attributes = ("label", "split", "weight", "categorical", "ignore") if kind == ".graphml" else ()
    for option, value in asdict(told).items():
        if value and option not in about_attributes:
            raise PairNormError(
                f"{option} does not apply to {kind} files",
                code="option-does-not-apply",
                value=option,
                remedy=f"Leave out {{{option}}}.",
                **{option: value},
            )


def from_frames(nodes: Any, edges: Any, features: Any, told: Options, encoder: Encoder | None) -> Parts:
    """Return the parts of a graph in frames of pandas, or of any library that hands its columns over."""
    tables = [
        [] if frame is None else [_frame_source(f"the frame of {role}", frame)]
        for role, frame in (("nodes", nodes), ("edges", edges), ("features", features))
    ]
    return _from_tables(tables, told.after(encoder), encoder)


def _frame_source(name: str, found: Any) -> Source:
    import pandas

    if isinstance(found, Mapping):
        found = pandas.DataFrame(found)
    if not isinstance(found, pandas.DataFrame):
        import pyarrow

        if hasattr(found, "__arrow_c_stream__"):
            found = arrow_frame(pyarrow.table(found))
        elif hasattr(found, "__dataframe__"):
            from pyarrow.interchange import from_dataframe

            found = arrow_frame(from_dataframe(found))
        else:
            problem = f"{name} is a {type(found).__name__}"
            expected = "a pandas.DataFrame, or one that has __arrow_c_stream__ or __dataframe__"
            raise PairNormError(problem, code="wrong-type", value=type(found).__name__, expected=expected)
    if any(found.index.names):  # an index with a name is a column
        found = found.reset_index()
    return Source(
        name, columns_of(name, list(found.columns)), found.set_axis(map(str, found.columns), axis=1)
    )


def _from_tables(tables: Sequence[Sequence[Source]], told: Options, encoder: Encoder | None) -> Parts:
    """Return the parts of a graph in tables of nodes, of edges, and of features."""
    nodes, edges, features = tables
    weight = told.weight
    ends = [find_ends(table, told.source, told.target) for table in edges]
    for table, two in zip(edges, ends, strict=True):
        if weight is not None:
            table.column("weight", weight)
        if unused := [name for name in table.columns if name not in (*two[:2], weight)]:
            columns = f"{'column' if len(unused) == 1 else 'columns'} {shown(unused)}"
            more = "" if weight else "; --weight (weight=) weighs edges by one of numbers"
            table.notes.append(f"{columns} of {table.name}: not used{more}")
    return _parts(nodes, edges, ends, weight, told, encoder, features)


def _parts(
    nodes: Sequence[Source],
    edges: Sequence[Source],
    ends: Sequence[Ends],
    weight: str | None,
    told: Options,
    encoder: Encoder | None,
    features: Sequence[Source] = (),
) -> Parts:
    parts = read_nodes(nodes, told, encoder, features)
    found = [
        read_edges(table, two, parts["node_names"], weight, told.unknown_edges == "drop")
        for table, two in zip(edges, ends, strict=True)
    ]
    parts["edge_index"] = np.concatenate([one.edge_index for one in found], 1)
    parts["weights"] = None if weight is None else np.concatenate([one.weights for one in found])
    parts["notes"] += tuple(remark for table in edges for remark in table.remarks())
    return parts | {"num_nodes": len(parts["node_names"])}


def from_networkx(
    graph: networkx.Graph, told: Options, encoder: Encoder | None, features: str = "x"
) -> Parts:
    """Return the parts of a networkx graph; attributes of nodes are read as the columns of a file are."""
    import pandas

    nodes = _attributes([attributes for _, attributes in graph.nodes(data=True)])
    edges = _edges(graph)
    told = told.after(encoder)
    if encoder is None:
        wanted = nodes.keys() - set(told.ignore)
        found = {name: name for name in ("label", "split") if name in wanted and not getattr(told, name)}
        told = replace(told, **found)
    else:
        wanted = nodes.keys() - {*told.ignore, *encoder.features}
        told = replace(told, id=_NODE)
    vectors = nodes[features] if features in wanted and any(map(_is_vector, nodes[features])) else None
    if vectors is not None:
        nodes = {name: nodes[name] for name in nodes if name in (told.label, told.split, *told.ignore)}
    weight = told.weight
    if weight is None and "weight" in edges:
        weight = "weight"
        edges[weight] = [1.0 if value is None else value for value in edges[weight]]
    node_table, edge_table = (
        Source(f"the {what} of the networkx graph", tuple(columns), pandas.DataFrame(columns))
        for what, columns in (("nodes", {_NODE: list(graph.nodes)} | nodes), ("edges", edges))
    )
    weight = weight and edge_table.column("weight", weight)
    parts = _parts([node_table], [edge_table], [Ends(_SOURCE, _TARGET)], weight, told, encoder)
    parts["name"] = graph.name or "graph"
    return parts if vectors is None else parts | _vectors(vectors, features)


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


def from_pyg(found: Mapping[str, Any]) -> Parts:
    """Return the parts of a PyG ``Data``, given as the dictionary that its ``to_dict`` makes."""
    if not isinstance(found.get("edge_index"), Tensor):
        raise PairNormError(
            f"the PyG data has no edge_index; it has {', '.join(map(repr, found)) or 'nothing'}",
            code="edges-missing",
        )
    parts = {"edge_index": found["edge_index"], "weights": found.get("edge_weight")}
    for ours, theirs in PYG_MASKS.items():
        if (mask := found.get(theirs)) is not None:
            if mask.dim() != 1:
                problem = f"{theirs} has shape {tuple(mask.shape)}: several splits"
                raise PairNormError(
                    problem, code="wrong-shape", value=theirs, remedy="Take one column of each."
                )
            parts[ours] = mask
    if found.get("missing") is not None:
        parts["missing"] = found["missing"]
    if (labels := found.get("y")) is not None:
        parts["labels"] = _whole_labels("y", labels)
    if (x := found.get("x")) is not None:
        parts["features"] = _plain_or_csr("x", x).float()
    if found.get("num_nodes") is not None:
        parts["num_nodes"] = whole_number("num_nodes", found["num_nodes"])
    return parts


def _plain_or_csr(what: str, matrix: Tensor) -> Tensor:
    """Return a sparse tensor as CSR once its indices are known to be within it; a dense one as it is."""
    if matrix.layout == torch.strided:
        return matrix
    if matrix.dim() != 2:
        raise PairNormError(f"{what} has shape {tuple(matrix.shape)}", code="wrong-shape", expected="[n, d]")
    rows, columns = matrix.shape
    if matrix.layout == torch.sparse_csr:
        check_csr(what, matrix.crow_indices(), matrix.col_indices(), matrix.values().numel(), (rows, columns))
        return matrix
    if matrix.layout == torch.sparse_csc:
        check_csr(what, matrix.ccol_indices(), matrix.row_indices(), matrix.values().numel(), (columns, rows))
    elif matrix.layout == torch.sparse_coo:
        entries = matrix._values().numel()
        for ends, size in zip(matrix._indices(), (rows, columns), strict=True):
            check_csr(what, [0, entries], ends, entries, (1, size))
    else:
        raise PairNormError(
            f"{what} is a {matrix.layout} tensor", code="wrong-shape", expected="a dense, CSR, CSC or COO one"
        )
    quieten()
    return matrix.to_sparse_csr()


def _whole_labels(what: str, labels: Tensor) -> Tensor:
    if labels.dim() == 0 or labels.numel() != len(labels):
        raise PairNormError(
            f"{what} has shape {tuple(labels.shape)}", code="wrong-shape", expected="one class per node, [n]"
        )
    labels = labels.reshape(-1)
    if not labels.is_floating_point():
        return labels.long()
    whole, known = labels.nan_to_num(-1).long(), ~labels.isnan()
    if not torch.equal(whole[known].to(labels.dtype), labels[known]):
        problem = f"{what} holds fractions"
        raise PairNormError(
            problem, code="not-a-whole-number", expected="the number of a class for each node"
        )
    return whole


def from_scipy(adjacency: Any, features: Any = None) -> Parts:
    """Return the parts of a graph whose adjacency, and maybe whose features, are scipy matrices."""
    import scipy.sparse

    if adjacency.ndim != 2 or adjacency.shape[0] != adjacency.shape[1]:
        raise PairNormError(
            f"adjacency has shape {adjacency.shape}", code="wrong-shape", expected="a square matrix"
        )
    if scipy.sparse.issparse(features):
        matrix = scipy.sparse.csr_array(features, copy=True)
        matrix.sum_duplicates()
        features = csr_tensor(matrix)
    edges = scipy.sparse.coo_array(adjacency)
    edges.sum_duplicates()
    edges.eliminate_zeros()
    return {
        "edge_index": np.stack(edges.coords),
        "weights": edges.data,
        "num_nodes": adjacency.shape[0],
        "features": features,
    }


def read_npz(file: IO[bytes]) -> Parts:
    """Read an ``.npz``: ``edge_index``, ``x``, ``y`` and others as PyG calls them; CSR pieces ``adj_*``,
    ``attr_*`` and ``labels``; or what scipy's ``save_npz`` writes.
    """
    with np.load(file, allow_pickle=False) as archive:
        _check_sizes(archive)
        if "edge_index" in archive:
            return _from_arrays({name: archive[name] for name in archive.files})
        if "adj_data" not in archive and "format" in archive:
            return from_scipy(_matrix(archive, "", str(archive["format"].astype(str))))
        if "adj_data" not in archive:
            found = ", ".join(archive.files[:10]) or "nothing"
            raise PairNormError(
                f"there is no 'edge_index', nor 'adj_data', 'adj_indices', 'adj_indptr', 'adj_shape'; "
                f"it holds {found}",
                code="edges-missing",
            )
        features = archive.get("attr_matrix")
        if "attr_data" in archive:
            features = _matrix(archive, "attr_")
        parts = from_scipy(_matrix(archive, "adj_"), features)
        if "labels" in archive:
            parts["labels"] = _whole_labels("labels", torch.from_numpy(archive["labels"]))
        return parts


def _from_arrays(found: dict[str, Any]) -> Parts:
    """Return the parts of a graph in arrays that are called as PyG's; classes may be texts."""
    texts = {name: value for name, value in found.items() if value.dtype.kind in "US"}
    parts = from_pyg({name: torch.from_numpy(found[name]) for name in found.keys() - texts.keys()})
    return parts | {"labels": texts["y"].astype(str)} if "y" in texts else parts


def _check_sizes(archive: Any) -> None:
    """Raise an error if the header of an array claims more than the archive holds."""
    for name in archive.zip.namelist():
        with archive.zip.open(name) as member:
            if not name.endswith(".npy"):
                continue
            version = np.lib.format.read_magic(member)
            read = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else np.lib.format.read_array_header_2_0
            )
            shape, _, dtype = read(member)
        claimed = float(np.prod(shape, dtype=float)) * dtype.itemsize
        if claimed > archive.zip.getinfo(name).file_size:
            raise PairNormError(
                f"{name} claims {claimed:,.0f} bytes, more than are there", code="file-damaged", value=name
            )


def _matrix(archive: Any, prefix: str, kind: str = "csr") -> Any:
    """Return a sparse matrix of an archive once its pieces are known to fit together."""
    import scipy.sparse

    data, shape = archive[f"{prefix}data"], tuple(archive[f"{prefix}shape"].tolist())
    if len(shape) != 2 or data.dtype.kind not in "biuf":
        raise PairNormError(f"{prefix}data is {data.dtype} of shape {shape}", code="wrong-shape", value=shape)
    names = {"coo": ("row", "col"), "dia": ("offsets",)}.get(kind, ("indices", "indptr"))
    pieces = tuple(archive[prefix + name] for name in names)
    if kind in ("csr", "csc", "bsr"):
        height, width = data.shape[1:] or (1, 1)
        rows, columns = shape[0] // max(height, 1), shape[1] // max(width, 1)
        size = (columns, rows) if kind == "csc" else (rows, columns)
        check_csr(f"{prefix}indices", pieces[1], pieces[0], len(data), size)
    elif kind == "coo":
        for piece, size in zip(pieces, shape, strict=True):
            check_csr(f"{prefix}coordinates", [0, len(data)], piece, len(data), (1, size))
        pieces = (pieces,)
    return getattr(scipy.sparse, f"{kind}_array")((data, *pieces), shape=shape)


def _read_npz(path: Path) -> Parts:
    with path.open("rb") as file:  # numpy leaves a broken one open
        return read_npz(file)


def _read_safetensors(path: Path) -> Parts:
    from safetensors.torch import load_file

    return from_pyg(load_file(path))


def _read_torch(path: Path) -> Parts:
    allowed: list[Any] = []
    if zipfile.is_zipfile(path):  # what else torch can read has no such records
        try:
            from torch_geometric.data import Data
            from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
            from torch_geometric.data.storage import GlobalStorage
        except ImportError:
            pass  # a dictionary of tensors needs no PyG
        else:
            # PyG lists Data itself as harmless, but not the plain records that it refers to.
            allowed = [Data, DataEdgeAttr, DataTensorAttr, GlobalStorage]
    with torch.serialization.safe_globals(allowed):
        found = torch.load(path, weights_only=True, map_location="cpu")
    if isinstance(found, tuple) and found:
        found = found[0]
    if hasattr(found, "to_dict"):
        found = found.to_dict()
    if not isinstance(found, dict):
        problem = f"it holds a {type(found).__name__}"
        raise PairNormError(
            problem, code="unknown-contents", expected="a PyG Data, or what its to_dict() gives"
        )
    for name, value in found.items():
        if isinstance(value, Tensor) and value.layout == torch.strided:
            held = value.untyped_storage().nbytes()
            if value.numel() * value.element_size() > held:
                problem = f"{quoted(name)} has shape {tuple(value.shape)}, but {held:,} bytes"
                raise PairNormError(problem, code="file-damaged", value=name)
    return from_pyg(found)


READERS = {".npz": _read_npz, ".safetensors": _read_safetensors, ".pt": _read_torch, ".pth": _read_torch}
