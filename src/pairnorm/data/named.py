"""Graphs by name: the four of the paper, and generated ones."""

from __future__ import annotations

import inspect
import io
import math
import os
import pickle
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from os import PathLike
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.request import urlopen

import numpy as np
import torch
from numpy.typing import NDArray

from pairnorm.base.csr import sparse_csr
from pairnorm.base.errors import PairNormError, one_of
from pairnorm.base.files import atomic_file
from pairnorm.data.adjacency import csr_tensor, mark_validated, symmetric_adjacency
from pairnorm.data.exchange import read_npz
from pairnorm.data.features import with_values
from pairnorm.data.graph import Graph
from pairnorm.data.masks import Split, Stream, per_class, rest_is_test

BUNDLED = Path(__file__).parent
SHA256 = dict(
    line.split() for line in (BUNDLED / "registry.txt").read_text().splitlines() if not line.startswith("#")
)
PLANETOID_PIECES = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
SECONDS_PER_REPLY, MAX_SECONDS, MAX_BYTES = 5.0, 120.0, 200_000_000


def verified_bytes(folder: Path, name: str) -> bytes:
    """Return the contents of a raw file, or raise an error if they are not the pinned ones.

    The bytes that were checked are the bytes that are returned: nobody can exchange the file in between.
    """
    return _check_digest((folder / name).read_bytes(), name, str(folder / name))


def _check_digest(contents: bytes, name: str, place: str) -> bytes:
    """Return the contents of a file, or raise an error if their SHA-256 is another one."""
    digest, expected = sha256(contents).hexdigest(), f"{SHA256[name][:16]}…"
    if digest != SHA256[name]:
        problem = f"{place}: the file is damaged or another one: its SHA-256 is {digest[:16]}…"
        hint = "It was not read. Delete it and fetch it again."
        raise PairNormError(problem, code="file-damaged", value=digest, expected=expected, hint=hint)
    return contents


def fetch(folder: Path, names: Sequence[str], address: str) -> None:
    """Download the files that are absent. Each appears only once it is complete and its checksum is right."""
    absent = [name for name in names if not (folder / name).is_file()]
    for name in absent:
        url = f"{address}/{Path(name).name}"
        try:
            contents = _check_digest(_download(url), name, url)
            with atomic_file(folder / name) as draft:
                draft.write_bytes(contents)
        except Exception as error:
            still = [Path(name).name for name in absent if not (folder / name).is_file()]
            problem = (
                f"{(folder / name).parent}: missing files: {', '.join(still)}.\n"
                f"Fetching from {address} failed: {str(error).splitlines()[0]}.\n"
            )
            hint = "Copy the files there, or name their folder ({root}, or PAIRNORM_DATA)."
            raise PairNormError(problem, code="file-missing", value=still, hint=hint, root=...) from error


def _download(url: str) -> bytes:
    """Return a file, within limits of time and size."""
    chunks, total, end = list[bytes](), 0, monotonic() + MAX_SECONDS
    with urlopen(url, timeout=SECONDS_PER_REPLY) as reply:
        while chunk := reply.read1(2**20):  # what has come, so that a slow reply cannot hold us up
            chunks.append(chunk)
            total += len(chunk)
            if total > MAX_BYTES:
                raise OSError(f"it is larger than {MAX_BYTES:,} bytes")
            if monotonic() > end:
                raise TimeoutError(f"not done within {MAX_SECONDS:g} seconds")
    return b"".join(chunks)


class PlanetoidUnpickler(pickle.Unpickler):
    """Finds the few classes that occur in these files, by the names they had when the files were written."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class that is allowed, as ``pickle`` asks."""
        from scipy.sparse import csr_matrix

        allowed = {kind.__name__: kind for kind in (csr_matrix, np.ndarray, np.dtype, defaultdict, list)}
        allowed["_reconstruct"] = np.zeros(0).__reduce__()[0]
        if name not in allowed:
            raise pickle.UnpicklingError(f"{module}.{name} does not belong in a Planetoid file")
        return allowed[name]


def read_planetoid(files: dict[str, bytes]) -> dict[str, Any]:
    """Return the ``edges`` [2, 2m], ``features`` (scipy CSR), ``labels`` and the number of ``train`` nodes.

    The test nodes of ``tx`` and ``ty`` come in the order of ``test.index``. Citeseer leaves out fifteen
    isolated nodes: as in every other reader, they get features of zero and, having no label, the first class.
    """
    from scipy.sparse import csr_matrix, vstack

    x, tx, allx, y, ty, ally, graph = (
        PlanetoidUnpickler(io.BytesIO(files[piece]), encoding="latin1").load()
        for piece in PLANETOID_PIECES[:-1]
    )
    test = np.array(files["test.index"].split(), dtype=np.int64)
    # Node i is row place[i] of all rows stacked; a node that no file has is the row of zeros at their end.
    place = np.full(test.max() + 1, allx.shape[0] + tx.shape[0])
    place[: allx.shape[0]] = np.arange(allx.shape[0])
    place[test] = allx.shape[0] + np.arange(tx.shape[0])
    source = np.repeat(np.array(list(graph)), [len(neighbors) for neighbors in graph.values()])
    target = np.array([node for neighbors in graph.values() for node in neighbors])
    return {
        "edges": np.stack([source, target]),
        "features": vstack([allx, tx, csr_matrix((1, x.shape[1]))], format="csr")[place],
        "labels": np.concatenate([ally, ty, np.zeros((1, y.shape[1]))])[place].argmax(1),
        "train": len(y),
    }


@dataclass(frozen=True)
class Dataset:
    """Facts about a named graph, known without opening it, as in the paper's appendix.

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
        """Return the files that have yet to be fetched."""
        return tuple(path for name in self.files if not (path := data_folder(root) / name).is_file())


def _planetoid(name: str) -> tuple[str, ...]:
    """Return the names of the files of a Planetoid graph."""
    return tuple(f"Planetoid/{name}/raw/ind.{name.lower()}.{piece}" for piece in PLANETOID_PIECES)


_PLANETOID = "https://github.com/kimiyoung/planetoid/raw/master/data"
_COAUTHOR = "https://github.com/shchur/gnn-benchmark/raw/master/data/npz"
_CS_FILES = ("Coauthor/CS/raw/ms_academic_cs.npz",)
_DATASETS = (
    Dataset("cora", "Cora", 2708, 5429, 5278, 1433, 7, 0.052),
    Dataset("citeseer", "Citeseer", 3327, 4732, 4552, 3703, 6, 0.036, _planetoid("CiteSeer"), _PLANETOID),
    Dataset("pubmed", "Pubmed", 19717, 44338, 44324, 500, 3, 0.003, _planetoid("PubMed"), _PLANETOID),
    Dataset("coauthor-cs", "Coauthor CS", 18333, 81894, 81894, 6805, 15, 0.030, _CS_FILES, _COAUTHOR),
)


def datasets() -> tuple[Dataset, ...]:
    """Return the facts about the four graphs of the paper. The fifth name, ``csbm``, is a generated graph."""
    return _DATASETS


def data_folder(root: str | PathLike[str] | None = None) -> Path:
    """Return where raw files are: ``root``, else ``$PAIRNORM_DATA``, else the user's cache folder."""
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
        seed: of the random generator.
        **options: for ``'csbm'``: see ``pairnorm.data.csbm``.
    """
    name = one_of("name", str(name).lower().replace("_", "-"), [*_READERS, "csbm"])
    known = inspect.signature(csbm).parameters if name == "csbm" else {}
    for option in options:
        if option not in known:
            problem = f"{option!r} is no option of {name!r}; it has {', '.join(known) or 'none'}"
            raise PairNormError(problem, code="unknown-option", value=option)
    graph = csbm(seed=seed, **options) if name == "csbm" else _read(name, root)
    if split == "public" and (name == "csbm" or not graph.train.any()):
        problem, hint = f"{name!r} has no public split", "Ask for split='random' or 'per-class-20'."
        raise PairNormError(problem, code="no-public-split", value=name, hint=hint)
    if split in (None, "public"):
        return graph if graph.train.any() else graph.with_split("random", seed)
    return graph.with_split(split, seed)


def _read(name: str, root: str | PathLike[str] | None) -> Graph:
    """Read a graph of the paper from its files, which are fetched if they are absent."""
    facts = next(dataset for dataset in _DATASETS if dataset.name == name)
    folder = data_folder(root)
    fetch(folder, facts.files, facts.address)
    graph = _READERS[name]([verified_bytes(folder, file) for file in facts.files])
    note = f"{facts.listed_edges:,} edges are listed, {facts.edges:,} of them distinct and undirected"
    notes = (note,) if facts.listed_edges != facts.edges else ()
    return graph.replace(name=name, notes=notes, directed=None)  # the paper's graphs are undirected


def _read_cora(_: list[bytes]) -> Graph:
    """Read the graph that comes with the package."""
    from scipy.sparse import csr_array

    with np.load(io.BytesIO(verified_bytes(BUNDLED, "cora.npz")), allow_pickle=False) as archive:
        arrays = {key: archive[key] for key in archive.files}
    ones, size = np.ones(len(arrays["x_indices"])), (len(arrays["y"]), int(arrays["num_features"]))
    words = csr_array((ones, arrays["x_indices"], arrays["x_indptr"]), shape=size)
    graph = Graph.from_edges(
        np.stack([arrays["edge_source"], arrays["edge_target"]]),
        csr_tensor(words),
        arrays["y"].astype(np.int64),
        node_names=arrays["paper_id"].astype(np.int64),
        class_names=tuple(arrays["class_names"].tolist()),
    )
    return _with_public_split(graph, arrays["train"], arrays["val"])


def _read_planetoid(files: list[bytes]) -> Graph:
    """Make a graph of the files of Citeseer or Pubmed."""
    contents = read_planetoid(dict(zip(PLANETOID_PIECES, files, strict=True)))
    graph = Graph.from_edges(contents["edges"], csr_tensor(contents["features"]), contents["labels"])
    train = np.arange(contents["train"])
    return _with_public_split(graph, train, contents["train"] + np.arange(500))


def _with_public_split(graph: Graph, train: NDArray[Any], validation: NDArray[Any]) -> Graph:
    """Return the graph with a split given by the numbers of nodes; the rest is the test set."""
    numbers = np.arange(graph.num_nodes)
    masks = (torch.from_numpy(np.isin(numbers, chosen)) for chosen in (train, validation))
    return graph.with_split(rest_is_test(graph.labels, *masks))


def _read_coauthor(files: list[bytes]) -> Graph:
    """Make a graph of the file of Coauthor CS."""
    graph = Graph.from_edges(**read_npz(io.BytesIO(files[0])))
    # The file counts how often a keyword occurs; every loader in use, PyG's among them, says whether it does.
    return graph.replace(features=with_values(graph.features, torch.ones_like(graph.features.values())))


_READERS: dict[str, Callable[[list[bytes]], Graph]] = {
    "cora": _read_cora,
    "citeseer": _read_planetoid,
    "pubmed": _read_planetoid,
    "coauthor-cs": _read_coauthor,
}


def csbm(
    nodes: int = 1000,
    *,
    classes: int = 5,
    degree: float = 10.0,
    homophily: float = 0.8,
    features: int = 500,
    words: int | None = None,
    signal: float = 0.5,
    exponent: float = 3.0,
    seed: int = 0,
) -> Graph:
    """Generate a graph in memory linear in its nodes and edges.

    Classes are equally large. Nodes have weights that follow a power law. An edge joins a node drawn by
    weight to one of its own class, or of another, drawn by weight too, until there are exactly n * degree / 2
    distinct edges. Exactly the fraction ``homophily`` of them joins equal classes. Each word of a node is
    one of its class's own words with probability ``signal``, else any word.

    >>> csbm(200, degree=6, homophily=0.75).homophily
    0.75

    Args:
        nodes: n, from 100 to 10 million.
        classes: how many classes.
        degree: the average number of neighbors.
        homophily: the fraction of edges that join nodes of one class.
        features: d, the size of the vocabulary.
        words: how many words a node draws; those drawn twice count once. Default: 16, or the whole
            vocabulary if that is smaller.
        signal: from 0 (features tell nothing about the class) to 1.
        exponent: of the power law of the degrees, above 2; ``math.inf`` gives all nodes the same weight.
        seed: for everything that is drawn.
    """
    words = min(16, features) if words is None else words
    peers = nodes / max(classes, 1)
    max_degree = min((peers - 1) / 2 / max(homophily, 1e-9), (nodes - peers) / 2 / max(1 - homophily, 1e-9))
    for name, value, fine, expected in (
        ("nodes", nodes, 100 <= nodes <= 10_000_000, "from 100 to 10,000,000"),
        ("classes", classes, 2 <= classes <= nodes // 10, "at least 2, and at most one for every ten nodes"),
        ("homophily", homophily, 0 <= homophily <= 1, "from 0 to 1"),
        ("degree", degree, 0 <= degree <= max_degree, f"from 0 to {max_degree:.4g}, half of all pairs"),
        ("features", features, classes <= features, "at least one word for each class"),
        ("words", words, 1 <= words <= features, "from 1 to the number of features"),
        ("signal", signal, 0 <= signal <= 1, "from 0 to 1"),
        ("exponent", exponent, exponent > 2, "above 2"),
    ):
        if not fine:
            raise PairNormError(f"{name} is {value}", code="out-of-range", value=value, expected=expected)
    stream = Stream(seed, "csbm")
    labels = np.empty(nodes, dtype=np.int64)
    members = stream.order(nodes)
    labels[members] = np.arange(nodes) % classes
    members = np.argsort(labels, kind="stable")

    draw = _WeightedDraw(stream, members, np.bincount(labels), exponent)
    edges = round(nodes * degree / 2)
    inside = round(homophily * edges)
    counts = {True: inside, False: edges - inside}
    keys = np.concatenate([_distinct(draw, nodes, count, within=is_) for is_, count in counts.items()])
    adjacency, _ = symmetric_adjacency(*np.divmod(keys, nodes), nodes)
    del keys
    known = torch.from_numpy(labels)
    split = per_class(known, count=max(1, min(20, nodes // (10 * classes))), seed=seed)
    return Graph(
        mark_validated(adjacency),
        _bag_of_words(stream, labels, classes, features, words, signal),
        known,
        *split,
        name="csbm",
    )


class _WeightedDraw:
    """Draws nodes by weight, by binary search in the cumulative weights."""

    def __init__(
        self, stream: Stream, members: NDArray[np.int64], sizes: NDArray[np.int64], exponent: float
    ) -> None:
        count = len(members)
        self.uniform = stream.uniform
        self.members, self.classes = members, np.repeat(np.arange(len(sizes)), sizes)
        weights = np.power(1 - self.uniform(count), -1 / (exponent - 1) if math.isfinite(exponent) else 0.0)
        # A hub that wants more neighbors than there are would make the search for new edges endless.
        np.minimum(weights, math.sqrt(count), out=weights)
        weights /= np.bincount(self.classes, weights)[self.classes]
        self.ends = np.cumsum(weights)
        self.last = np.cumsum(sizes) - 1
        self.first = self.last - sizes + 1

    def any(self, count: int) -> NDArray[np.int64]:
        """Draw positions in ``members`` of nodes of any class (each class weighs the same)."""
        return self._at(self.uniform(count) * len(self.last))

    def of(self, classes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Draw a position in ``members`` for each of the given classes."""
        place = self._at(classes + self.uniform(len(classes)))
        # Rounding in the cumulative weights must not lead into a neighboring class.
        return np.clip(place, self.first[classes], self.last[classes])

    def _at(self, levels: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the first position whose cumulative weight exceeds each level."""
        return np.searchsorted(self.ends, levels, side="right").clip(max=len(self.ends) - 1)


def _distinct(draw: _WeightedDraw, nodes: int, count: int, *, within: bool) -> NDArray[np.int64]:
    """Draw distinct edges, all within classes or all between them, as sorted keys low * n + high."""
    keys = np.empty(0, dtype=np.int64)
    while len(keys) < count:
        missing = count - len(keys)
        first = draw.any(missing)
        classes = draw.classes[first]
        if not within:
            others = len(draw.last) - 1
            classes = (classes + 1 + (draw.uniform(missing) * others).astype(np.int64)) % (others + 1)
        a, b = draw.members[first], draw.members[draw.of(classes)]
        low, high = np.minimum(a, b), np.maximum(a, b)
        # Exactly as many as are missing are drawn, so that none has to be thrown away but repeats and loops.
        keys = np.concatenate([keys, (low * nodes + high)[low != high]])
        keys.sort()
        keys = keys[np.diff(keys, prepend=-1) != 0]  # several times faster than numpy.unique
    return keys


def _bag_of_words(
    stream: Stream, labels: NDArray[np.int64], classes: int, features: int, words: int, signal: float
) -> torch.Tensor:
    """Return 0/1 features [n, d] as a CSR tensor; word w is a word of class w mod classes."""
    rows = max(1, 4_000_000 // words)
    blocks, counts = [], [np.zeros(1, np.int64)]
    for start in range(0, len(labels), rows):
        class_ = labels[start : start + rows, None]
        shape = (len(class_), words)
        drawn, chance = (stream.uniform(len(class_) * words).reshape(shape) for _ in range(2))
        in_class = (features - class_ + classes - 1) // classes
        own_words = class_ + classes * (drawn * in_class).astype(np.int64)
        word = np.where(chance < signal, own_words, (drawn * features).astype(np.int64))
        word.sort(axis=1)
        is_new = np.diff(word, axis=1, prepend=-1) != 0
        blocks.append(word[is_new])
        counts.append(is_new.sum(1))
    columns = torch.from_numpy(np.concatenate(blocks))
    crow = torch.from_numpy(np.concatenate(counts).cumsum())
    return sparse_csr(crow, columns, torch.ones(len(columns)), (len(labels), features))
