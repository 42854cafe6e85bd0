"""The graph: features, labels, split and missing values on the nodes of an undirected graph."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from pairnorm.base.csr import csr_components
from pairnorm.base.errors import PairNormError, quoted
from pairnorm.data import exchange
from pairnorm.data import features as matrices
from pairnorm.data.adjacency import check_adjacency, mark_validated
from pairnorm.data.constructors import GraphConstructors, GraphWarning
from pairnorm.data.encoder import Column, Encoder, align_features
from pairnorm.data.features import UNKNOWN, as_tensor, stored_rows, stored_values, to_labels
from pairnorm.data.files import quote_names
from pairnorm.data.ids import NodeNames
from pairnorm.data.masks import Split, check_split, split_by_name

_UNSET: Any = None


@dataclass(frozen=True, eq=False, repr=False)
class Graph(GraphConstructors):
    """An undirected graph with features and labels on its nodes. It never changes; ``replace`` gives another.

    >>> graph = Graph.from_edges([[0, 1, 2], [1, 2, 3]], labels=[0, 0, 1, 1])
    >>> graph.num_nodes, graph.num_edges, graph.num_classes
    (4, 3, 2)

    Features, labels and masks may also be lists, or arrays of numpy, pandas or scipy: they become tensors.

    Args:
        adjacency: ``torch.sparse_csr`` [n, n] of float32 weights, symmetric, without self-loops.
        features: float32 [n, d], dense or ``torch.sparse_csr``; NaN where missing, stored as 0.
        labels: int64 [n]; -1 where the class is unknown. Default: all unknown.
        train: bool [n], the nodes to learn from. Default: none, as for the next two.
        validation: bool [n], the nodes to choose a model by.
        test: bool [n], the nodes to report on.
        missing: what the data lacks: bool [n] (whole vectors) or [n, d] (single entries). Default: nothing.
        node_names: the n names of the nodes, strings or integers, all different. Default: 0 .. n - 1.
        class_names: a name for each class. Default: '0', '1', ...
        feature_names: a name for each of the d features, where they have names.
        encoder: how a user's columns became features. Default: each named feature is a column of numbers.
        name: what to call the graph.
        notes: what was odd about the data and how it was handled, a sentence each.
        directed: bool, for each entry of ``adjacency`` whether there is an edge from its row to its column;
            None where every edge goes both ways.
        numbered: whether classes were not given as texts, so that ``classes`` are integers or booleans where
            their names are; None, the default: where they have no names.
        named: whether nodes have names of their own, by which another graph may know them again; None, the
            default: where ``node_names`` are given.
    """

    adjacency: Tensor
    features: Tensor
    labels: Tensor = _UNSET
    train: Tensor = _UNSET
    validation: Tensor = _UNSET
    test: Tensor = _UNSET
    missing: Tensor = _UNSET
    node_names: NDArray[Any] = _UNSET
    class_names: tuple[str, ...] = _UNSET
    feature_names: tuple[str, ...] | None = None
    encoder: Encoder | None = None
    name: str = "graph"
    notes: tuple[str, ...] = ()
    directed: Tensor | None = None
    numbered: bool | None = None
    named: bool | None = None

    def __post_init__(self) -> None:
        check_adjacency(self.adjacency)
        nodes, device = self.adjacency.shape[0], self.adjacency.device
        none = torch.zeros(nodes, dtype=torch.bool, device=device)
        self._set("features", as_tensor("features", self.features, np.float32, device))
        labels = torch.full((nodes,), UNKNOWN, device=device) if self.labels is None else self.labels
        labels, class_names, numbered = to_labels(labels, self.class_names, device)
        self._set("labels", labels)
        self._set("numbered", numbered if self.numbered is None else self.numbered)
        self._set("class_names", matrices.numbered_classes(labels) if class_names is None else class_names)
        for part in (*Split._fields, "missing"):
            value = getattr(self, part)
            self._set(part, none if value is None else as_tensor(part, value, device=device))
        self._set("named", self.node_names is not None if self.named is None else self.named)
        names = np.arange(nodes) if self.node_names is None else NodeNames.of(self.node_names).values
        names.flags.writeable = False
        self._set("node_names", names)
        if self.encoder is not None:
            self._set("feature_names", self.encoder.feature_names)
        elif self.feature_names is not None:
            self._set("encoder", Encoder(tuple(Column(name, "number") for name in self.feature_names)))
        _check_shapes(self)
        matrices.check_labels(self.labels, self.num_classes)
        check_split(self.split, self.labeled, names)
        if not matrices.all_finite(self.features):
            matrices.check_infinite(self.features, self.node_names, self.feature_names)
            features, missing = matrices.nan_as_missing(self.features, self.missing)
            self._set("features", features)
            self._set("missing", missing)

    def _set(self, name: str, value: object) -> None:
        """Set a field of the frozen object."""
        object.__setattr__(self, name, value)

    @property
    def num_nodes(self) -> int:
        """The number of nodes."""
        return self.adjacency.shape[0]

    @property
    def num_edges(self) -> int:
        """The number of distinct undirected edges."""
        return self.adjacency.values().numel() // 2

    @property
    def num_features(self) -> int:
        """The number of features of a node."""
        return self.features.shape[1]

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    @property
    def classes(self) -> NDArray[Any]:
        """The classes in order as they were given: integers or booleans where all are, else their names."""
        return matrices.restore_class_types(self.class_names, bool(self.numbered))

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return self.adjacency.device

    @property
    def labeled(self) -> Tensor:
        """bool [n]: the nodes whose class is known."""
        return self.labels != UNKNOWN

    @property
    def missing_vectors(self) -> Tensor:
        """bool [n]: the nodes all of whose features are missing in the data."""
        if self.missing.dim() == 1:
            return self.missing
        return self.missing.all(1) & (self.num_features > 0)

    @property
    def edge_index(self) -> Tensor:
        """int64 [2, 2m]: both directions of every edge, sorted by the first row."""
        return torch.stack([stored_rows(self.adjacency), self.adjacency.col_indices()])

    @property
    def density(self) -> float:
        """The fraction of features that are not zero."""
        return int(torch.count_nonzero(stored_values(self.features))) / max(self.features.shape.numel(), 1)

    @property
    def edges_within_classes(self) -> tuple[int, int]:
        """How many edges join nodes of the same class, and how many join labeled nodes."""
        ends = self.labels[self.edge_index]
        known = (ends != UNKNOWN).all(0)
        return int((ends[0] == ends[1])[known].sum()) // 2, int(known.sum()) // 2

    @property
    def homophily(self) -> float:
        """The fraction of edges that join two nodes of one class, among those whose two ends are labeled."""
        same, known = self.edges_within_classes
        return same / known if known else float("nan")

    @property
    def split(self) -> Split:
        """The train, validation and test masks together."""
        return Split(self.train, self.validation, self.test)

    def __deepcopy__(self, memo: object) -> Graph:
        return self  # it never changes, and torch cannot copy sparse tensors

    def replace(self, **changes: Any) -> Graph:
        """Return the graph with the named parts replaced."""
        if "feature_names" in changes:
            changes.setdefault("encoder", None)  # it tells of those features only
        if "class_names" in changes:
            changes.setdefault("numbered", None)  # it tells of those names only
        if changes.get("node_names") is not None:
            changes.setdefault("named", True)
        changes.setdefault("node_names", NodeNames(self.node_names))
        if changes.get("adjacency", self.adjacency) is not self.adjacency:
            changes.setdefault("directed", None)  # it tells of those edges only
        return replace(self, **changes)

    def with_split(self, split: Sequence[ArrayLike] | str, seed: int = 0) -> Graph:
        """Return the graph with another split.

        Args:
            split: three masks, or ``'random'`` (3% / 10% / 87% of the labeled nodes), or ``'per-class-20'``
                (20 training nodes of each class), or ``'per-class-20-of-1500'`` (of 1,500 nodes, the rest of
                which validate); other numbers likewise.
            seed: for a split drawn at random.
        """
        if isinstance(split, str):
            split = split_by_name(split, self.labels, seed)
        return self.replace(**Split(*split)._asdict())

    def with_structure(self) -> Graph:
        """Give a graph without features structural ones: degrees, core number, ...

        They are ``pairnorm.data.features.STRUCTURAL_FEATURES``. A graph that has features stays as it is.
        """
        if self.num_features:
            return self
        before = () if self.encoder is None else self.encoder.columns
        columns = (*before, *(Column(name, "structure") for name in matrices.STRUCTURAL_FEATURES))
        encoder = Encoder(columns) if self.encoder is None else replace(self.encoder, columns=columns)
        missing = torch.zeros(self.num_nodes, dtype=torch.bool, device=self.device)
        features = matrices.structural_features(self.adjacency)
        return self.replace(features=features, missing=missing, encoder=encoder)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of edges, features, labels and split, as 16 hexadecimal digits.

        Directions do not count: no trial that is stored looks at them.
        """
        digest = sha256()
        parts = (self.adjacency, self.features, self.labels, *self.split, self.missing)
        for part in parts:
            for piece in csr_components(part):
                array = piece.detach().cpu().contiguous().numpy()
                # Torch's CSR may count in 32 or 64 bits; the graph is the same.
                array = array.astype("<i8") if array.dtype.kind == "i" else array
                digest.update(f"{array.shape}".encode())
                digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return digest.hexdigest()[:16]

    def aligned(self, encoder: Encoder | None, count: int, strict: bool = False) -> Graph:
        """Return the graph with the features of a model, matched by column and category.

        Absent columns and unknown categories count as missing, and unknown columns are ignored, with a
        warning each; where ``strict``, they are errors.
        """
        if self.num_features == 0 and encoder is not None and encoder.named("structure"):
            return self.with_structure().replace(encoder=encoder)
        ours, theirs = (coder and tuple(coder.features.values()) for coder in (self.encoder, encoder))
        if self.encoder is not None and encoder is not None and ours != theirs:
            parts = (f"graph {self.name!r}", self.features, self.missing, self.encoder)
            features, missing, notes = align_features(*parts, encoder, strict)
            for note in notes:
                warnings.warn(f"{note}.".replace("?.", "?"), GraphWarning, stacklevel=4)
            return self.replace(features=features, missing=missing, encoder=encoder)
        if self.num_features != count:
            problem = f"graph {self.name!r} has {self.num_features} features; the model was fitted on {count}"
            raise PairNormError(problem, code="wrong-shape", value=self.num_features)
        return self

    def labels_among(self, classes: Sequence[str | int]) -> Tensor:
        """Return the labels as numbers of a model's classes, matched by name; -1 where unknown."""
        place = {str(name): number for number, name in enumerate(classes)}
        used = {self.class_names[number] for number in self.labels[self.labeled].unique().tolist()}
        if unknown := sorted(used - place.keys()):
            problem = f"graph {self.name!r} has nodes of class {quoted(unknown[0])}; the model knows "
            problem += quote_names([*map(str, classes)], 7)
            hint = "Correct the label, or fit again with it."
            raise PairNormError(problem, code="unknown-class", value=unknown[0], hint=hint)
        numbers = [*(place.get(name, UNKNOWN) for name in self.class_names), UNKNOWN]
        return torch.tensor(numbers, device=self.device)[self.labels]

    def to(self, device: torch.device | str) -> Graph:
        """Return the graph with every tensor on ``device``."""
        tensors = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)}
        mark_validated(tensors["adjacency"])
        return self.replace(**tensors)

    to_pyg, to_scipy, to_networkx = exchange.to_pyg, exchange.to_scipy, exchange.to_networkx

    def describe(self) -> list[tuple[str, str]]:
        """Return the facts about the graph: pairs of a property, such as ``"nodes"``, and a text."""
        per_node = 2 * self.num_edges / max(self.num_nodes, 1)
        kind = "sparse" if self.features.layout == torch.sparse_csr else "dense"
        classes = ", ".join(self.class_names[:7]) + (", …" if self.num_classes > 7 else "")
        vectors = int(self.missing_vectors.sum())
        missing = f"{_share(vectors, self.num_nodes)} vectors" if vectors else "no vector"
        if self.missing.dim() == 2:
            missing += f", {int(self.missing.sum()) - vectors * self.num_features:,} single entries"
        same, known = self.edges_within_classes
        joined = f"{same:,} of {known:,} edges between labeled nodes join one class"
        homophily = f"{same / known:.3f}: {joined}" if known else "unknown: no edge joins two labeled nodes"
        parts = (f"{part} {int(mask.sum()):,}" for part, mask in self.split._asdict().items())
        return [
            ("nodes", f"{self.num_nodes:,}"),
            ("edges", f"{self.num_edges:,} undirected, {per_node:.1f} per node"),
            ("features", f"{self.num_features:,} {kind}, {100 * self.density:.3g}% non-zero"),
            ("classes", f"{self.num_classes} ({classes})" if self.num_classes else "none"),
            ("labeled", _share(int(self.labeled.sum()), self.num_nodes)),
            ("split", ", ".join(parts)),
            ("missing", missing),
            ("homophily", homophily),
            *(("note", note) for note in self.notes),
        ]

    def __repr__(self) -> str:
        lines = (f"  {what:<10} {text}" for what, text in self.describe())
        return "\n".join([f"Graph {self.name!r}", *lines])


def _share(part: int, total: int) -> str:
    """Format a count and its percentage of a total.

    >>> _share(140, 2708)
    '140 (5.17%)'
    """
    return f"{part:,} ({100 * part / max(total, 1):.3g}%)"


def check_graph(graph: object, what: str = "graph") -> None:
    """Raise an error that says how to make a graph, unless this is one."""
    if not isinstance(graph, Graph):
        problem, kind = f"{what} is a {type(graph).__name__}", type(graph).__name__
        hint = "Graph.from_frames, from_files, from_edges, from_packed or from_pyg makes one; "
        hint += "pairnorm.load('cora') reads one by its name."
        raise PairNormError(problem, code="wrong-type", value=kind, expected="a pairnorm.Graph", hint=hint)


def _check_shapes(graph: Graph) -> None:
    """Raise an error that names the first part whose type is wrong, or that does not fit the others."""
    nodes: tuple[int, ...] = (graph.num_nodes,)
    features = tuple(graph.features.shape)
    masks = (*Split._fields, "missing", "directed")
    if not graph.features.is_floating_point() or len(features) != 2:
        problem = f"features is a {graph.features.dtype} tensor of shape {features}"
        expected = "floats of shape [n, d]"
        raise PairNormError(problem, code="wrong-type", value=str(graph.features.dtype), expected=expected)
    shapes = {part: [nodes] for part in (*Split._fields, "labels", "node_names")}
    shapes |= {"features": [nodes + features[1:]], "missing": [nodes, features]}
    shapes["directed"] = [tuple(graph.adjacency.values().shape)]
    for part, expected_shapes in shapes.items():
        if (value := getattr(graph, part)) is None:
            continue
        if part in masks and value.dtype != torch.bool:
            problem, code, expected = f"{part} is a {value.dtype} tensor", "wrong-type", "booleans"
            raise PairNormError(problem, code=code, value=str(value.dtype), expected=expected)
        if tuple(value.shape) not in expected_shapes:
            problem = f"{part} has shape {tuple(value.shape)}, but the graph has {nodes[0]} nodes"
            expected = "shape " + " or ".join(str(list(shape)) for shape in expected_shapes)
            raise PairNormError(problem, code="wrong-shape", value=part, expected=expected)
    if graph.feature_names is not None and len(graph.feature_names) != graph.num_features:
        problem = f"{len(graph.feature_names)} feature names for {graph.num_features} features"
        raise PairNormError(problem, code="wrong-shape", value="feature_names")
