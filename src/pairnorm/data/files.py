"""Read a graph from files: tables of nodes and edges, or one file that holds the whole graph."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from os import PathLike
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from pairnorm.base.errors import PairNormError, quoted
from pairnorm.base.memory import BYTES_PER_XML_BYTE, MemoryLimit
from pairnorm.data.adjacency import check_csr
from pairnorm.data.encoder import ColumnOptions, Encoder
from pairnorm.data.exchange import Parts, from_networkx, from_pyg, from_scipy, from_tables
from pairnorm.data.frames import existing
from pairnorm.data.labels import whole_labels
from pairnorm.data.readers import STDIN, TABLES, Given, kind_of, open_tables
from pairnorm.data.tables import readable


def read_files(
    nodes: Given,
    edges: Given | None,
    features: Given | None,
    database: str | None,
    options: ColumnOptions,
    encoder: Encoder | None,
    memory: MemoryLimit,
) -> Parts:
    """Return the parts of a graph in tables of nodes and of edges, or in one file that holds it whole."""
    for role, given in (("nodes", nodes), ("edges", edges), ("features", features)):
        if not isinstance(given, str | PathLike | Sequence | None):
            problem, kind = f"{role} is a {type(given).__name__}", type(given).__name__
            expected, hint = "the name of a file, or a list of them", "Graph.from_frames takes frames."
            raise PairNormError(problem, code="wrong-type", value=kind, expected=expected, hint=hint)
    if not isinstance(nodes, str | PathLike) and len(nodes) == 1:
        (nodes,) = nodes
    again = options.after(encoder)
    if database is not None or not _holds_all(nodes, edges, again.delimiter):
        if edges is None:
            problem = f"{place_name(nodes)}: a table of nodes needs a table of edges"
            raise PairNormError(problem, code="option-missing", hint="Pass {edges}", edges=...)
        if nodes == edges == STDIN:
            problem = "nodes and edges are both '-'"
            raise PairNormError(problem, code="conflicting-options", hint="Pipe one of them in only.")
        how: dict[str, Any] = {
            "encoding": again.encoding,
            "decimal": again.decimal,
            "database": database,
            "memory": memory,
        }
        signs = {"edges": again.edge_delimiter or again.delimiter}
        tables = [
            []
            if given is None
            else open_tables(role, given, delimiter=signs.get(role, again.delimiter), **how)
            for role, given in (("nodes", nodes), ("edges", edges), ("features", features))
        ]
        return from_tables(tables, again, encoder)
    path = Path(nodes)  # type: ignore[arg-type]
    for option, given in (("edges", edges), ("features", features)):
        if given is not None:
            raise PairNormError(
                f"{path.name}: {path.suffix!r} is no table, but {option} are given",
                code="unknown-file-type",
                value=path.suffix,
                expected=", ".join(TABLES),
                hint="For a text file with another ending pass {delimiter}.",
                delimiter=",",
            )
    kind = existing(path).suffix.lower()
    with readable(path.name):
        _check_applies(kind, options)
        if kind == ".graphml":
            import networkx

            xml = path.stat().st_size
            memory.check(path.name, xml * BYTES_PER_XML_BYTE, f"{xml:,} bytes of XML")
            graph = networkx.read_graphml(path)
            return from_networkx(graph, options, encoder, limit=partial(memory.check_cells, path.name))
        memory.check(path.name, _unpacked_size(path), "its arrays")
        return READERS[kind](path)


def _unpacked_size(path: Path) -> int:
    """Return the bytes of the arrays in a file, which may be an archive."""
    if not zipfile.is_zipfile(path):
        return path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        return sum(member.file_size for member in archive.infolist())


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


def _check_applies(kind: str, options: ColumnOptions) -> None:
    """Refuse a kind of file that is not known, and options that mean nothing in it."""
    if kind not in (".graphml", *READERS):
        problem = f"files of type {quoted(kind)} are not known"
        expected = "one of " + ", ".join((*TABLES, ".graphml", *READERS))
        raise PairNormError(problem, code="unknown-file-type", value=kind, expected=expected)
    about_attributes = (
        ("label", "split", "weight", "categorical", "ignore", "edge_columns") if kind == ".graphml" else ()
    )
    for option, value in asdict(options).items():
        if value and option not in about_attributes:
            raise PairNormError(
                f"{option} does not apply to {kind} files",
                code="option-does-not-apply",
                value=option,
                hint=f"Leave out {{{option}}}.",
                **{option: value},
            )


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
            members = ", ".join(archive.files[:10]) or "nothing"
            raise PairNormError(
                f"there is no 'edge_index', nor 'adj_data', 'adj_indices', 'adj_indptr', 'adj_shape'; "
                f"it holds {members}",
                code="edges-missing",
            )
        features = archive.get("attr_matrix")
        if "attr_data" in archive:
            features = _matrix(archive, "attr_")
        parts = from_scipy(_matrix(archive, "adj_"), features)
        if "labels" in archive:
            parts["labels"] = whole_labels("labels", torch.from_numpy(archive["labels"]))
        return parts


def _from_arrays(arrays: dict[str, Any]) -> Parts:
    """Return the parts of a graph in arrays that are called as PyG's; classes may be texts."""
    texts = {name: value for name, value in arrays.items() if value.dtype.kind in "US"}
    parts = from_pyg({name: torch.from_numpy(arrays[name]) for name in arrays.keys() - texts.keys()})
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
            problem = f"{name} claims {claimed:,.0f} bytes, more than are there"
            raise PairNormError(problem, code="file-damaged", value=name)


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
        contents = torch.load(path, weights_only=True, map_location="cpu")
    if isinstance(contents, tuple) and contents:
        contents = contents[0]
    if hasattr(contents, "to_dict"):
        contents = contents.to_dict()
    if not isinstance(contents, dict):
        problem = f"it holds a {type(contents).__name__}"
        raise PairNormError(
            problem, code="unknown-contents", expected="a PyG Data, or what its to_dict() gives"
        )
    for name, value in contents.items():
        if isinstance(value, Tensor) and value.layout == torch.strided:
            held = value.untyped_storage().nbytes()
            if value.numel() * value.element_size() > held:
                problem = f"{quoted(name)} has shape {tuple(value.shape)}, but {held:,} bytes"
                raise PairNormError(problem, code="file-damaged", value=name)
    return from_pyg(contents)


READERS = {".npz": _read_npz, ".safetensors": _read_safetensors, ".pt": _read_torch, ".pth": _read_torch}
