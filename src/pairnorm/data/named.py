"""Graphs by name: the four of the paper, and the generated one."""

from __future__ import annotations

import inspect
import io
import os
import pickle
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from os import PathLike
from pathlib import Path, PurePosixPath
from threading import Thread
from typing import Any
from urllib.request import urlopen

import numpy as np
import torch
from numpy.typing import NDArray

from pairnorm.data.adjacency import csr_tensor
from pairnorm.data.features import with_values
from pairnorm.data.generate import csbm
from pairnorm.data.graph import Graph
from pairnorm.data.io import read_npz
from pairnorm.data.split import Split, rest_is_test
from pairnorm.errors import PairNormError, one_of
from pairnorm.writing import whole_file

_PINNED = {
    "Planetoid/CiteSeer/raw": {
        "ind.citeseer.allx": "2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668",
        "ind.citeseer.ally": "f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95",
        "ind.citeseer.graph": "d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7",
        "ind.citeseer.test.index": "2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4",
        "ind.citeseer.tx": "539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21",
        "ind.citeseer.ty": "55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce",
        "ind.citeseer.x": "d20de19150741e555de0ed037195630fc194114ebc7fd72ced62810148aa22f6",
        "ind.citeseer.y": "8ba87e515d8e3ee3cf52f6d2c5b86aa73f11ecad825a808455209ec26cd54924",
    },
    "Planetoid/Cora/raw": {
        "ind.cora.allx": "9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543",
        "ind.cora.ally": "2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71",
        "ind.cora.graph": "58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d",
        "ind.cora.test.index": "297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875",
        "ind.cora.tx": "b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a",
        "ind.cora.ty": "41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad",
        "ind.cora.x": "23cfa55d91c6f624233f5eb7b6e3f141f1bd2b2ae39608a63cf5d084bb27baab",
        "ind.cora.y": "94465c14eb53e04ca262198dcbb2521ee8af60fb3f3d546cd6ca24a511b0e7d1",
    },
    "Planetoid/PubMed/raw": {
        "ind.pubmed.allx": "508e538e2abdccdd54c4d3e9f49d638b4af7107d85845f66ddea5a5152658b7e",
        "ind.pubmed.ally": "0c37bbe3b5014ec365e9d393cf4791925e5ed94fb194305d74f064a8d7b50f0e",
        "ind.pubmed.graph": "5b89f0036ca22909471f1e6558eb42fa06e0c730a577bde5b058b40638f81dc9",
        "ind.pubmed.test.index": "b101d421688bbaecbd82e8a18f1e282378d6830f3a37666f28ebc47f844341b5",
        "ind.pubmed.tx": "4eb5f5d0f30f26497eb0ac6ac9719d09c67e284f1ed0385c93f3ef27a671da3d",
        "ind.pubmed.ty": "ee2e0d4819d9fbcc403689c3bf2e49face401b605932f093bc58ab6461130fdd",
        "ind.pubmed.x": "fbe9cb5c47200d1b7769a26e579be3b7130b556831f9d850e77c4c74f2599b33",
        "ind.pubmed.y": "e6c807633307a07ed659249006536a147c7999c797f11a2560752990181b41b3",
    },
    "Coauthor/CS/raw": {
        "ms_academic_cs.npz": "68fa28e570b9abf8f0e890fbd446d03f052ba2a757e5e5853ec3b546eee9aef6",
    },
    ".": {
        "cora.npz": "acd293780a18aa83a179f547f321f69df37ff4fcf0ece1b66475d8438235c695",
    },
}
SHA256 = {
    str(PurePosixPath(folder, name)): digest
    for folder, files in _PINNED.items()
    for name, digest in files.items()
}


def verified_bytes(folder: Path, name: str) -> bytes:
    """Return the contents of a raw file, or raise an error if they are not the pinned ones.

    The bytes that were checked are the bytes that are returned: nobody can exchange the file in between.

    Args:
        folder: the root of the data.
        name: of the file, relative to it, as in ``SHA256``.
    """
    contents = (folder / name).read_bytes()
    found = sha256(contents).hexdigest()
    if found != SHA256[name]:
        raise PairNormError(
            f"{folder / name}: the file is damaged or another one: its SHA-256 is {found[:16]}…, "
            f"expected {SHA256[name][:16]}…. It was not read. Delete it and fetch it anew."
        )
    return contents


SECONDS = 5.0


def fetch(folder: Path, names: Sequence[str], address: str) -> None:
    """Fetch the files that are not there yet. A file appears only when it is whole and its checksum right.

    Args:
        folder: the root of the data.
        names: of the files, relative to it.
        address: the folder on the network that holds them.
    """
    absent = [name for name in names if not (folder / name).is_file()]
    for name in absent:
        try:
            contents = _download(f"{address}/{Path(name).name}")
            if sha256(contents).hexdigest() != SHA256[name]:
                raise OSError("what came is not the file that was checked for this package")
            with whole_file(folder / name) as draft:
                draft.write_bytes(contents)
        except (OSError, PairNormError) as error:
            still = [Path(name).name for name in absent if not (folder / name).is_file()]
            raise PairNormError(
                f"{(folder / name).parent}: wanted here, and not there: {', '.join(still)}.\n"
                f"Fetching from {address} failed: {error}.\n"
                "Copy the files there, or name the folder that has them (root=..., or PAIRNORM_DATA)."
            ) from error


def _download(url: str) -> bytes:
    """Return what is at an address. Looking up a host cannot be interrupted, so a thread does it."""
    outcome: list[Any] = []

    def attempt() -> None:
        try:
            outcome.append(urlopen(url, timeout=SECONDS))
        except Exception as error:
            outcome.append(error)

    thread = Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(2 * SECONDS)
    if not outcome:
        raise TimeoutError(f"no answer within {2 * SECONDS:g} seconds")
    if isinstance(outcome[0], Exception):
        raise OSError(str(outcome[0])) from outcome[0]
    with outcome[0] as response:
        contents: bytes = response.read()
    return contents


PIECES = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")


class _Unpickler(pickle.Unpickler):
    """Finds the few classes that occur in these files, by the names they had when the files were written."""

    def find_class(self, module: str, name: str) -> Any:
        if name == "csr_matrix":
            from scipy.sparse import csr_matrix

            return csr_matrix
        known = {
            "_reconstruct": np.zeros(0).__reduce__()[0],
            "ndarray": np.ndarray,
            "dtype": np.dtype,
            "defaultdict": defaultdict,
            "list": list,
        }
        if name not in known:
            raise pickle.UnpicklingError(f"{module}.{name} has no business in a Planetoid file")
        return known[name]


def read_planetoid(files: dict[str, bytes]) -> dict[str, Any]:
    """Return the ``edges`` [2, 2m], ``features`` (scipy CSR), ``labels`` and the number of ``train`` nodes.

    The test nodes of ``tx`` and ``ty`` come in the order of ``test.index``. Citeseer leaves out fifteen
    isolated nodes: as in every other reader, they get features of zero and, having no label, the first class.

    Args:
        files: the contents of each of the eight pieces.
    """
    from scipy.sparse import csr_matrix, vstack

    x, tx, allx, y, ty, ally, graph = (
        _Unpickler(io.BytesIO(files[piece]), encoding="latin1").load() for piece in PIECES[:-1]
    )
    test = np.array(files["test.index"].split(), dtype=np.int64)
    # Node i is row place[i] of all rows stacked; a node that no file has is the row of zeros at their end.
    place = np.full(test.max() + 1, allx.shape[0] + tx.shape[0])
    place[: allx.shape[0]] = np.arange(allx.shape[0])
    place[test] = allx.shape[0] + np.arange(tx.shape[0])
    source = np.repeat(np.array(list(graph)), [len(neighbours) for neighbours in graph.values()])
    target = np.array([node for neighbours in graph.values() for node in neighbours])
    return {
        "edges": np.stack([source, target]),
        "features": vstack([allx, tx, csr_matrix((1, x.shape[1]))], format="csr")[place],
        "labels": np.concatenate([ally, ty, np.zeros((1, y.shape[1]))])[place].argmax(1),
        "train": len(y),
    }


BUNDLED = Path(__file__).parent


@dataclass(frozen=True)
class Dataset:
    """What is known about a named graph without opening it, as in the paper's appendix.

    Args:
        name: to load it by.
        title: as the paper writes it.
        nodes: how many.
        listed_edges: as the paper counts them: every listed pair, repeats and self-loops included.
        edges: distinct undirected edges.
        features: how many.
        classes: how many.
        label_rate: the fraction of nodes in the training set of the usual split.
        files: the raw files, relative to the root of the data; none if it needs no files.
        address: where on the network they are.
    """

    name: str
    title: str
    nodes: int
    listed_edges: int
    edges: int
    features: int
    classes: int
    label_rate: float
    files: tuple[str, ...] = field(default=(), repr=False)
    address: str = field(default="", repr=False)

    def absent(self, root: str | PathLike[str] | None = None) -> tuple[Path, ...]:
        """Return the files that have yet to be fetched.

        Args:
            root: as for ``load``.
        """
        return tuple(path for name in self.files if not (path := data_folder(root) / name).is_file())


def _planetoid_files(name: str) -> tuple[str, ...]:
    return tuple(f"Planetoid/{name}/raw/ind.{name.lower()}.{piece}" for piece in PIECES)


_PLANETOID = "https://github.com/kimiyoung/planetoid/raw/master/data"
_COAUTHOR = "https://github.com/shchur/gnn-benchmark/raw/master/data/npz"
_DATASETS = (
    Dataset("cora", "Cora", 2708, 5429, 5278, 1433, 7, 0.052),
    Dataset(
        "citeseer", "Citeseer", 3327, 4732, 4552, 3703, 6, 0.036, _planetoid_files("CiteSeer"), _PLANETOID
    ),
    Dataset("pubmed", "Pubmed", 19717, 44338, 44324, 500, 3, 0.003, _planetoid_files("PubMed"), _PLANETOID),
    Dataset(
        "coauthor-cs",
        "Coauthor CS",
        18333,
        81894,
        81894,
        6805,
        15,
        0.030,
        ("Coauthor/CS/raw/ms_academic_cs.npz",),
        _COAUTHOR,
    ),
)


def datasets() -> tuple[Dataset, ...]:
    """Return what is known about the four graphs of the paper. ``csbm``, the fifth name, is made to order."""
    return _DATASETS


def data_folder(root: str | PathLike[str] | None = None) -> Path:
    """Return where raw files are looked for: ``root``, else ``$PAIRNORM_DATA``, else the user's cache folder.

    Args:
        root: a folder laid out as PyG's loaders do it, or None.
    """
    if root is None:
        root = os.environ.get("PAIRNORM_DATA")
    if root:
        return Path(root).expanduser()
    try:
        from platformdirs import user_cache_path
    except ImportError:  # a machine on which nothing could be installed
        return Path.home() / ".cache" / "pairnorm"
    return user_cache_path("pairnorm")


def load(
    name: str,
    root: str | PathLike[str] | None = None,
    *,
    split: str | Split | None = None,
    seed: int = 0,
    **options: Any,
) -> Graph:
    """Return a graph by name. Nothing is written but files that had to be fetched.

    >>> load("cora").num_edges
    5278

    Args:
        name: ``'cora'`` (in this package), ``'citeseer'``, ``'pubmed'``, ``'coauthor-cs'`` or ``'csbm'``.
        root: the folder of the raw files. Default: ``$PAIRNORM_DATA``, else the user's cache folder.
        split: ``'public'``, ``'random'``, ``'per-class-20'``, or masks. Default: public if there is one.
        seed: for what is drawn at random.
        **options: for ``'csbm'``: see ``pairnorm.csbm``.
    """
    name = one_of("name", str(name).lower().replace("_", "-"), [*_READERS, "csbm"])
    known = inspect.signature(csbm).parameters if name == "csbm" else {}
    for option in options:
        if option not in known:
            hint = f"it has {', '.join(known)}" if known else "it has none"
            raise PairNormError(f"{option!r} is no option of {name!r}; {hint}.")
    graph = csbm(seed=seed, **options) if name == "csbm" else _read(name, root)
    if split == "public" and (name == "csbm" or not graph.train.any()):
        raise PairNormError(f"{name!r} has no public split. Ask for split='random' or 'per-class-20'.")
    if split in (None, "public"):
        return graph if graph.train.any() else graph.with_split("random", seed)
    return graph.with_split(split, seed)


def _read(name: str, root: str | PathLike[str] | None) -> Graph:
    facts = next(dataset for dataset in _DATASETS if dataset.name == name)
    folder = data_folder(root)
    fetch(folder, facts.files, facts.address)
    graph = _READERS[name]([verified_bytes(folder, file) for file in facts.files])
    note = f"{facts.listed_edges:,} edges are listed, {facts.edges:,} of them distinct and undirected"
    return graph.replace(name=name, notes=(note,) if facts.listed_edges != facts.edges else ())


def _read_cora(_: list[bytes]) -> Graph:
    from scipy.sparse import csr_array

    with np.load(io.BytesIO(verified_bytes(BUNDLED, "cora.npz")), allow_pickle=False) as archive:
        found = {key: archive[key] for key in archive.files}
    ones, size = np.ones(len(found["x_indices"])), (len(found["y"]), int(found["num_features"]))
    words = csr_array((ones, found["x_indices"], found["x_indptr"]), shape=size)
    graph = Graph.from_edges(
        np.stack([found["edge_source"], found["edge_target"]]),
        csr_tensor(words),
        found["y"].astype(np.int64),
        node_names=found["paper_id"].astype(np.int64),
        class_names=tuple(found["class_names"].tolist()),
    )
    return _with_public_split(graph, found["train"], found["val"])


def _read_planetoid(files: list[bytes]) -> Graph:
    found = read_planetoid(dict(zip(PIECES, files, strict=True)))
    graph = Graph.from_edges(found["edges"], csr_tensor(found["features"]), found["labels"])
    train = np.arange(found["train"])
    return _with_public_split(graph, train, found["train"] + np.arange(500))


def _with_public_split(graph: Graph, train: NDArray[Any], validation: NDArray[Any]) -> Graph:
    numbers = np.arange(graph.num_nodes)
    masks = (torch.from_numpy(np.isin(numbers, chosen)) for chosen in (train, validation))
    return graph.with_split(rest_is_test(graph.labels, *masks))


def _read_coauthor(files: list[bytes]) -> Graph:
    graph = read_npz(io.BytesIO(files[0]))
    # The file counts how often a keyword occurs; every loader in use, PyG's among them, says whether it does.
    return graph.replace(features=with_values(graph.features, torch.ones_like(graph.features.values())))


_READERS: dict[str, Callable[[list[bytes]], Graph]] = {
    "cora": _read_cora,
    "citeseer": _read_planetoid,
    "pubmed": _read_planetoid,
    "coauthor-cs": _read_coauthor,
}
