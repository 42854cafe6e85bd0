"""Files that hold a whole graph: npz, safetensors, torch and GraphML. None of them is ever unpickled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from pairnorm.data.convert import from_networkx, from_pyg, from_scipy
from pairnorm.data.graph import Graph
from pairnorm.data.tables import TABLES, readable
from pairnorm.errors import PairNormError


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
