"""Convert graphs from and to PyG, scipy and networkx, and read the files that hold whole graphs."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Mapping, Sequence, Sized
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pairnorm.base.errors import PairNormError, load_library, quoted, whole_number
from pairnorm.base.memory import MemoryLimit
from pairnorm.data.adjacency import check_csr, csr_matrix
from pairnorm.data.encoder import ColumnOptions, Encoder
from pairnorm.data.features import UNKNOWN, is_null, to_class_numbers, to_dense_or_csr
from pairnorm.data.files import COMPRESSED, check_is_file, explain_read_errors, file_type, open_plain

if TYPE_CHECKING:
    import networkx
    import pandas
    import scipy.sparse
    from torch_geometric.data import Data

    from pairnorm.data.graph import Graph
    from pairnorm.data.tables import Table

Parts = dict[str, Any]
ATTRIBUTE_OPTIONS = ("label", "split", "weight", "categorical", "ignore", "edge_columns")
_NODE, _SOURCE, _TARGET = "(node)", "(source)", "(target)"
NPZ_NAMES = {"edges": "edge_index", "node_features": "x", "node_labels": "y"}
PYG_MASKS = {"train": "train_mask", "validation": "val_mask", "test": "test_mask"}


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
    parts["missing"] = data.get("missing")
    if data.get("edge_attr") is not None:
        parts["notes"] = ("edge_attr of the PyG data: not used; only its edge_weight weighs edges",)
    for ours, theirs in PYG_MASKS.items():
        if (mask := data.get(theirs)) is not None and mask.dim() != 1:
            problem = f"{theirs} has shape {tuple(mask.shape)}: several splits"
            raise PairNormError(problem, code="wrong-shape", value=theirs, hint="Take one column of each.")
        parts[ours] = mask
    if (labels := data.get("y")) is not None:
        parts["labels"] = to_class_numbers("y", labels)
    if (x := data.get("x")) is not None:
        parts["features"] = to_dense_or_csr("x", x).float()
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


def read_npz(place: Path | IO[bytes]) -> Parts:
    """Read an ``.npz``: ``edge_index``, ``x``, ``y`` and others as PyG calls them, or ``edges``,
    ``node_features`` and ``node_labels``; CSR pieces ``adj_*``, ``attr_*``, and ``labels``, ``class_names``
    and ``node_names``; or what scipy's ``save_npz`` writes.
    """
    with ExitStack() as stack:
        file = stack.enter_context(place.open("rb")) if isinstance(place, Path) else place
        archive = stack.enter_context(np.load(file, allow_pickle=False))
        _check_array_sizes(archive.zip)
        if "edge_index" in archive or "edges" in archive:
            return _from_arrays({NPZ_NAMES.get(name, name): archive[name] for name in archive.files})
        if "adj_data" not in archive and "format" in archive:
            return from_scipy(_matrix(archive, "", str(archive["format"].astype(str))))
        if "adj_data" not in archive:
            problem = "there is no 'edge_index' or 'edges', nor 'adj_data', 'adj_indices', 'adj_indptr', "
            problem += f"'adj_shape'; it holds {', '.join(archive.files[:10]) or 'nothing'}"
            raise PairNormError(problem, code="edges-missing")
        features = archive.get("attr_matrix")
        if "attr_data" in archive:
            features = _matrix(archive, "attr_")
        parts = from_scipy(_matrix(archive, "adj_"), features)
        if "labels" in archive:
            parts["labels"] = to_class_numbers("labels", torch.from_numpy(archive["labels"]))
        texts = {name: archive[name] for name in ("class_names", "node_names") if name in archive}
        return parts | {name: value.astype(str).tolist() for name, value in texts.items()}


def _check_array_sizes(archive: zipfile.ZipFile) -> None:
    """Raise an error about an array whose header claims another size than it has; numpy would allocate it."""
    for member in archive.infolist():
        with archive.open(member) as file:
            version, _ = np.lib.format.read_magic(file)
            shape, _, dtype = getattr(np.lib.format, f"read_array_header_{min(version, 2)}_0")(file)
            claimed, held = prod(shape) * dtype.itemsize, member.file_size - file.tell()
        if claimed != held and not dtype.hasobject:  # numpy refuses objects
            problem = f"{quoted(member.filename)} has shape {shape} and type {dtype}, but {held:,} bytes"
            raise PairNormError(problem, code="file-damaged", value=member.filename)


def _from_arrays(arrays: dict[str, Any]) -> Parts:
    """Return the parts of a graph in arrays that are called as PyG's; classes may be texts."""
    ends = arrays["edge_index"]
    if ends.ndim == 2 and ends.shape[1] == 2 != len(ends):  # a row per edge
        arrays = arrays | {"edge_index": ends.T}
    texts = {name: value for name, value in arrays.items() if value.dtype.kind in "US"}
    parts = from_pyg({name: torch.from_numpy(arrays[name]) for name in arrays.keys() - texts.keys()})
    return parts | {"labels": texts["y"].astype(str)} if "y" in texts else parts


def _matrix(archive: Any, prefix: str, kind: str = "csr") -> Any:
    """Read a sparse matrix from an archive, and validate its arrays."""
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


def _read_torch(path: Path) -> Parts:
    """Read a PyG ``Data`` or its dictionary; only tensors, and the records of a ``Data``, are unpickled."""
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
        contents = torch.load(path, weights_only=True, map_location="cpu")
    if isinstance(contents, tuple) and contents:
        contents = contents[0]
    if hasattr(contents, "to_dict"):
        contents = contents.to_dict()
    if not isinstance(contents, dict):
        problem, expected = f"it holds a {type(contents).__name__}", "a PyG Data, or what its to_dict() gives"
        raise PairNormError(problem, code="unknown-contents", expected=expected)
    for name, value in contents.items():
        if isinstance(value, Tensor) and value.layout == torch.strided:
            held = value.untyped_storage().nbytes()
            if value.numel() * value.element_size() > held:
                problem = f"{quoted(name)} has shape {tuple(value.shape)}, but {held:,} bytes"
                raise PairNormError(problem, code="file-damaged", value=name)
    return from_pyg(contents)


READERS: dict[str, Callable[[Path], Parts]] = {
    ".npz": read_npz,
    ".safetensors": lambda path: from_pyg(load_library("safetensors.torch", "safetensors").load_file(path)),
    ".pt": _read_torch,
    ".pth": _read_torch,
}


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

    from pairnorm.data.tables import Table
    from pairnorm.data.tabular import EndpointColumns, add_edges, read_nodes

    nodes = _attributes(graph.nodes(data=True), graph.graph.get("node_default"), limit)
    edges = _attributes(graph.edges(data=True), graph.graph.get("edge_default"), limit)
    sources, targets = (pandas.Series([edge[end] for edge in graph.edges], dtype=object) for end in (0, 1))
    edges = edges.assign(**{_SOURCE: sources, _TARGET: targets})
    if not graph.is_directed():
        back = edges[sources.to_numpy() != targets.to_numpy()]
        edges = pandas.concat(
            [edges, back.rename(columns={_SOURCE: _TARGET, _TARGET: _SOURCE})], ignore_index=True
        )
    options = options.after(encoder)
    if encoder is None:
        candidates = set(nodes) - {*options.ignore}
        defaults: dict[str, Any] = {
            name: name for name in ("label", "split") if name in candidates and not getattr(options, name)
        }
        options = replace(options, **defaults)
    else:
        candidates = set(nodes) - {*options.ignore, *encoder.features}
        options = replace(options, id=_NODE)
    vectors = nodes[features] if features in candidates and any(map(_is_vector, nodes[features])) else None
    if vectors is not None:
        used = (options.label, options.split, *options.ignore)
        nodes = nodes.filter([name for name in used if name is not None], axis=1)
    weight = options.weight
    if weight is None and "weight" in edges:
        weight = "weight"
        edges[weight] = edges[weight].fillna(1.0)
    nodes.insert(0, _NODE, pandas.Series([*graph.nodes], dtype=object))
    node_table, edge_table = (
        Table(f"the {what} of the graph", tuple(frame.columns), frame.infer_objects())
        for what, frame in (("nodes", nodes), ("edges", edges))
    )
    weight = weight and edge_table.column("weight", weight)
    parts = read_nodes([node_table], options, encoder)
    parts = add_edges(parts, [edge_table], [EndpointColumns(_SOURCE, _TARGET)], weight, options, encoder)
    parts["name"] = graph.name or "graph"
    return parts if vectors is None else parts | _vectors(vectors.tolist(), features)


def _attributes(items: Any, defaults: Any, limit: Callable[[int, int], None]) -> pandas.DataFrame:
    """Return a column per attribute of nodes or edges, with the defaults that GraphML may declare."""
    import pandas

    defaults = defaults if isinstance(defaults, dict) else {}
    rows = [{str(key): cell for key, cell in (defaults | row).items()} for *_, row in items]
    limit(len(rows), len({key for row in rows for key in row}))
    return pandas.DataFrame(rows, range(len(rows)), dtype=object)


def _is_vector(value: object) -> bool:
    """Return whether an attribute is a list of numbers or the like."""
    return isinstance(value, Sized) and not isinstance(value, str)


def _vectors(vectors: list[Any], attribute: str) -> Parts:
    """Stack the feature vectors of nodes; the features of nodes with None are missing."""
    width = len(next(filter(_is_vector, vectors)))
    try:
        rows = [[torch.nan] * width if is_null(vector) else list(vector) for vector in vectors]
        values = torch.tensor(rows)
    except (TypeError, ValueError) as error:
        problem = f"attribute {quoted(attribute)} is not {width} numbers on every node: {error}"
        raise PairNormError(problem, code="wrong-shape", value=attribute) from error
    missing = torch.zeros(len(vectors), dtype=torch.bool)
    return {"features": values, "missing": missing, "encoder": None, "notes": ()}


def read_graph_file(
    path: Path, inputs: dict[str, Any], options: ColumnOptions, encoder: Encoder | None, memory: MemoryLimit
) -> Parts:
    """Return the parts of a graph in one file, whose attributes are read by ``options``.

    Raises an error about tables in ``inputs`` next to it, and about options that mean nothing in it.
    """
    from pairnorm.data.formats import TABLES

    kind = file_type(check_is_file(path))
    for option in ("edges", "features"):
        if inputs[option] is not None:
            problem = f"{path.name}: {path.suffix!r} is no table, but {option} are given"
            raise _unknown_type(problem, path.suffix, TABLES)
    kind = kind if kind in NETWORKX_READERS else path.suffix.lower()
    with explain_read_errors(path.name):
        if kind not in (*NETWORKX_READERS, *READERS):
            problem = f"files of type {quoted(kind)} are not known"
            raise _unknown_type(problem, kind, (*TABLES, *NETWORKX_READERS, *READERS))
        for option, value in asdict(options).items():
            if value and not (kind in NETWORKX_READERS and option in ATTRIBUTE_OPTIONS):
                problem, more = f"{option} does not apply to {kind} files", {option: value}
                hint = f"Leave out {{{option}}}."
                raise PairNormError(problem, code="option-does-not-apply", value=option, hint=hint, **more)
        if kind in NETWORKX_READERS:
            with memory.stream(path.name, COMPRESSED.get(path.suffix.lower(), open_plain)(path)) as file:
                graph = NETWORKX_READERS[kind](file)
            return from_networkx(graph, options, encoder, limit=partial(memory.check_cells, path.name))
        count = path.stat().st_size
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                count = sum(member.file_size for member in archive.infolist())
        memory.check(path.name, count, "its arrays")
        return READERS[kind](path)


def _unknown_type(problem: str, kind: str, known: Sequence[str]) -> PairNormError:
    hint = "Convert it to one of these; or, if it is a text, pass {delimiter}."
    expected = f"one of {', '.join(known)}"
    return PairNormError(
        problem, code="unknown-file-type", value=kind, expected=expected, hint=hint, delimiter=","
    )


def _read_gml(file: IO[bytes]) -> networkx.Graph:
    """Read GML: nodes without labels are called by their ids, and an edge may be listed several times."""
    text = file.read().decode()
    if not re.search(r"\bmultigraph\b", text):
        text = re.sub(r"\bgraph\s*\[", "graph [\n multigraph 1\n", text, count=1)
    label = "label" if re.search(r"\blabel\b", text) else "id"
    return load_library("networkx", "reading GML").parse_gml(text, label=label)


def _read_gexf(file: IO[bytes]) -> networkx.Graph:
    """Read GEXF: nodes are called by their labels where these differ; colors and positions are dropped."""
    networkx = load_library("networkx", "reading GEXF")
    graph = networkx.read_gexf(file)
    labels = {node: cells.pop("label", node) for node, cells in graph.nodes(data=True)}
    for *_, cells in (*graph.nodes(data=True), *graph.edges(data=True)):
        cells.pop("viz", None)
    return networkx.relabel_nodes(graph, labels) if len({*labels.values()}) == len(labels) else graph


NETWORKX_READERS: dict[str, Callable[[IO[bytes]], networkx.Graph]] = {
    ".graphml": lambda file: load_library("networkx", "reading GraphML").read_graphml(file),
    ".gml": _read_gml,
    ".gexf": _read_gexf,
}


def from_frames(
    nodes: Any, edges: Any, features: Any, options: ColumnOptions, encoder: Encoder | None
) -> dict[str, Any]:
    """Return the parts of a graph in frames of pandas, or of any library that hands its columns over."""
    from pairnorm.data.tabular import read_tables

    tables = [
        [] if role == "features" and frame is None else [_frame_source(f"the frame of {role}", frame)]
        for role, frame in (("nodes", nodes), ("edges", edges), ("features", features))
    ]
    try:
        return read_tables(tables, options.after(encoder), encoder)
    except PairNormError as error:
        index = getattr(nodes, "index", ())  # of pandas
        if error.code == "unknown-node" and not callable(index) and str(error.value) in set(map(str, index)):
            error.hint += " It is in the index of the nodes; only one with a name, such as 'id', is read."
        raise


def _frame_source(name: str, frame: Any) -> Table:
    """Return a frame of any library, or a dictionary of columns, as a table."""
    import pandas

    from pairnorm.data.formats import arrow_frame, check_column_names
    from pairnorm.data.tables import Table

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
    columns = check_column_names(name, list(frame.columns))
    return Table(name, columns, frame.set_axis(columns, axis=1))
