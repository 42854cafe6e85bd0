"""The graph: features, labels, split and missing values on the nodes of an undirected graph."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from hashlib import sha256
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from pairnorm.base.csr import csr_components, sparse_csr
from pairnorm.base.errors import PairNormError, one_of, quoted, whole_number
from pairnorm.base.memory import MemoryLimit
from pairnorm.data import exchange, files
from pairnorm.data.adjacency import (
    check_adjacency,
    check_edges,
    listed_directions,
    mark_validated,
    most_empty,
    symmetric_adjacency,
)
from pairnorm.data.encoder import Column, ColumnOptions, Encoder, align_features
from pairnorm.data.features import (
    STRUCTURE,
    all_finite,
    as_ends,
    as_tensor,
    check_infinite,
    nan_as_missing,
    stored_rows,
    stored_values,
    structural_features,
)
from pairnorm.data.labels import UNKNOWN, as_given, as_labels, check_labels, numbered_classes
from pairnorm.data.packed import PackedGraph
from pairnorm.data.readers import Given, name_of
from pairnorm.data.split import Split, check_split, split_by_name
from pairnorm.data.tables import readable, shown

if TYPE_CHECKING:
    import networkx
    import scipy.sparse
    from torch_geometric.data import Data


_UNSET: Any = None


class GraphWarning(UserWarning):
    """Something odd in a user's files that was handled. The graph's ``notes`` say the same."""


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """An undirected graph with features and labels on its nodes. It never changes; ``replace`` gives another.

    >>> graph = Graph.from_edges([[0, 1, 2], [1, 2, 3]], labels=[0, 0, 1, 1])
    >>> graph.num_nodes, graph.num_edges, graph.num_classes
    (4, 3, 2)

    Features, labels and masks may also be lists, or arrays of numpy, pandas or scipy: they become tensors.

    Args:
        adjacency: ``torch.sparse_csr`` [n, n] of float32 weights, symmetric, without self-loops.
        features: float32 [n, d], dense or ``torch.sparse_csr``; NaN where missing, kept as 0.
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
        numbered: whether classes were not given as texts, so that ``classes`` are integers or truths where
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
        labels, class_names, numbered = as_labels(labels, self.class_names, device)
        self._set("labels", labels)
        self._set("numbered", numbered if self.numbered is None else self.numbered)
        self._set("class_names", numbered_classes(labels) if class_names is None else class_names)
        for part in (*Split._fields, "missing"):
            given = getattr(self, part)
            self._set(part, none if given is None else as_tensor(part, given, device=device))
        self._set("named", self.node_names is not None if self.named is None else self.named)
        names = np.arange(nodes) if self.node_names is None else np.array(self.node_names)
        names.flags.writeable = False
        self._set("node_names", names)
        if self.encoder is not None:
            self._set("feature_names", self.encoder.feature_names)
        elif self.feature_names is not None:
            self._set("encoder", Encoder.of_numbers(self.feature_names))
        _check_shapes(self)
        check_labels(self.labels, self.num_classes)
        check_split(self.split, self.labeled, names)
        if not all_finite(self.features):
            check_infinite(self.features, self.node_names, self.feature_names)
            features, missing = nan_as_missing(self.features, self.missing)
            self._set("features", features)
            self._set("missing", missing)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def num_nodes(self) -> int:
        """How many nodes there are."""
        return self.adjacency.shape[0]

    @property
    def num_edges(self) -> int:
        """How many distinct undirected edges there are."""
        return self.adjacency.values().numel() // 2

    @property
    def num_features(self) -> int:
        """How many features a node has."""
        return self.features.shape[1]

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)

    @property
    def classes(self) -> NDArray[Any]:
        """The classes in order as they were given: integers or truths where all are, else their names."""
        return as_given(self.class_names, bool(self.numbered))

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
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
        """How many edges join two nodes of one class, and how many two labeled nodes."""
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
        """Return the graph with some of its parts exchanged."""
        _check_names(changes.get("node_names"))
        if "feature_names" in changes:
            changes.setdefault("encoder", None)  # it tells of those features only
        if "class_names" in changes:
            changes.setdefault("numbered", None)  # it tells of those names only
        if changes.get("node_names") is not None:
            changes.setdefault("named", True)
        if changes.get("adjacency", self.adjacency) is not self.adjacency:
            changes.setdefault("directed", None)  # it tells of those edges only
        return replace(self, **changes)

    def with_split(self, split: Sequence[ArrayLike] | str, seed: int = 0) -> Graph:
        """Return the graph with another split.

        Args:
            split: three masks, or ``'random'`` (3% / 10% / 87% of the labeled nodes), or ``'per-class-20'``
                (20 training nodes of each class), or ``'per-class-20-of-1500'`` (of so many nodes; those
                left of them validate); other numbers likewise.
            seed: for a split drawn at random.
        """
        if isinstance(split, str):
            split = split_by_name(split, self.labels, seed)
        return self.replace(**Split(*split)._asdict())

    def with_structure(self) -> Graph:
        """Return a graph without features with some that tell of its structure: degrees, core number, ...

        They are those of ``pairnorm.data.features.STRUCTURE``. A graph that has features stays as it is.
        """
        if self.num_features:
            return self
        before = () if self.encoder is None else self.encoder.columns
        columns = (*before, *(Column(name, "structure") for name in STRUCTURE))
        encoder = Encoder(columns) if self.encoder is None else replace(self.encoder, columns=columns)
        missing = torch.zeros(self.num_nodes, dtype=torch.bool, device=self.device)
        return self.replace(features=structural_features(self.adjacency), missing=missing, encoder=encoder)

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that tell this graph from another: its edges, features, labels and split.

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
        ours, theirs = (one and tuple(one.features.values()) for one in (self.encoder, encoder))
        if self.encoder is not None and encoder is not None and ours != theirs:
            name = f"graph {self.name!r}"
            features, missing, notes = align_features(
                name, self.features, self.missing, self.encoder, encoder, strict
            )
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
        if strange := sorted(used - place.keys()):
            raise PairNormError(
                f"graph {self.name!r} has nodes of class {quoted(strange[0])}; "
                f"the model knows {shown([*map(str, classes)], 7)}",
                code="unknown-class",
                value=strange[0],
                hint="Correct the label, or fit again with it.",
            )
        numbers = [*(place.get(name, UNKNOWN) for name in self.class_names), UNKNOWN]
        return torch.tensor(numbers, device=self.device)[self.labels]

    def to(self, device: torch.device | str) -> Graph:
        """Return the graph with every tensor on ``device``."""
        tensors = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)}
        mark_validated(tensors["adjacency"])
        return self.replace(**tensors)

    @classmethod
    def from_edges(
        cls,
        edge_index: ArrayLike,
        features: ArrayLike | scipy.sparse.sparray | None = None,
        labels: ArrayLike | None = None,
        *,
        num_nodes: int | None = None,
        weights: ArrayLike | None = None,
        notes: tuple[str, ...] = (),
        **parts: Any,
    ) -> Graph:
        """Make a graph from a list of edges, in one or both directions.

        Lists, arrays of numpy or torch, and frames and series of pandas will do for every part.

        Args:
            edge_index: whole numbers of shape [2, edges]: the two ends of each edge.
            features: [n, d], also a scipy matrix; NaN or None where missing. Default: none, d = 0.
            labels: [n]; numbers of classes, -1 where unknown, or truths, or names; None or NaN is unknown.
            num_nodes: n. Default: the length of ``features`` or ``labels``, else the largest end + 1.
            weights: [edges], positive. Default: 1.
            notes: what else was odd; what is odd about the edges comes before it.
            **parts: any other part of a graph, e.g. ``train``.
        """
        _check_names(parts.get("node_names"))
        return cls._from_read(
            edge_index, features, labels, num_nodes=num_nodes, weights=weights, notes=notes, **parts
        )

    @classmethod
    def _from_read(
        cls,
        edge_index: ArrayLike,
        features: ArrayLike | scipy.sparse.sparray | None = None,
        labels: ArrayLike | None = None,
        *,
        num_nodes: int | None = None,
        weights: ArrayLike | None = None,
        notes: tuple[str, ...] = (),
        **parts: Any,
    ) -> Graph:
        """Make a graph as ``from_edges`` does, of names that a reader has found to be all different."""
        tensors = (part for part in (edge_index, features) if isinstance(part, Tensor))
        device = next((part.device for part in tensors), torch.device("cpu"))
        ends = as_ends(edge_index)
        if features is not None:
            features = as_tensor("features", features, np.float32).to(device, torch.float32)
        if labels is not None:
            labels, parts["class_names"], numbered = as_labels(labels, parts.get("class_names"))
            labels, parts = labels.to(device), {"numbered": numbered} | parts
        if num_nodes is None:
            known = next((len(part) for part in (features, labels) if part is not None), None)
            num_nodes = known if known is not None else int(ends.max(initial=-1)) + 1
        if features is None and labels is None and num_nodes > most_empty(ends.size):
            problem = f"{num_nodes:,} nodes are claimed, but there are {ends.size // 2:,} edges"
            raise PairNormError(
                problem, code="out-of-range", value=num_nodes, hint="Number nodes from 0 without gaps."
            )
        nodes = whole_number("num_nodes", num_nodes)
        strengths = None if weights is None else as_tensor("weights", weights).cpu().float().numpy()
        check_edges(ends, nodes, strengths)
        adjacency, counts = symmetric_adjacency(ends[0], ends[1], nodes, strengths)
        if counts.one_way:
            parts.setdefault("directed", listed_directions(adjacency, ends[0], ends[1]).to(device))
        if features is None:
            features = torch.zeros(nodes, 0, device=device)
        notes = counts.notes(weights is not None) + notes
        return cls(mark_validated(adjacency.to(device)), features, labels, notes=notes, **parts)  # type: ignore[arg-type]

    @classmethod
    def from_files(
        cls,
        nodes: Given,
        edges: Given | None = None,
        *,
        features: Given | None = None,
        database: str | None = None,
        id: str | None = None,
        label: str | None = None,
        source: str | None = None,
        target: str | None = None,
        weight: str | None = None,
        split: str | None = None,
        classes: int | str | None = None,
        merge_classes: bool | None = None,
        categorical: Sequence[str] = (),
        ignore: Sequence[str] = (),
        keep: Sequence[str] = (),
        unknown_edges: str | None = None,
        delimiter: str | None = None,
        edge_delimiter: str | None = None,
        edge_columns: Sequence[str] = (),
        encoding: str | None = None,
        decimal: str | None = None,
        name: str | None = None,
        encoder: Encoder | None = None,
        memory: int | str | None = None,
        strict: bool = False,
    ) -> Graph:
        """Read a graph from tables of nodes and tables of edges, or from one file that holds both.

        Tables are CSV, TSV, Parquet, Excel, JSON or JSON lines, also compressed (gzip, bzip2, xz, zstd, zip),
        the standard input (``'-'``), or queries of a database. Several files, or those that a pattern such as
        ``'part-*.parquet'`` matches, are one table; rows of nodes with the same id are put together.

        Every column of the nodes that is not named below is a feature: numbers as they are, dates as days,
        text one-hot, and so are whole numbers with leading zeros (``01234``). An empty cell is missing; among
        numbers, so is ``NA`` and its like. A column of text whose cells nearly all differ is left out.
        Whole graphs are ``.npz`` (``edge_index``, ``x``, ``y``; or CSR pieces ``adj_*``, ``attr_*``, and
        ``labels``), a PyG ``Data`` as ``.safetensors`` or ``.pt``, or ``.graphml``.
        What is odd is handled, noted in ``graph.notes``, and warned of once.

        Args:
            nodes: the tables of nodes, or the file that holds the whole graph.
            edges: the tables of edges.
            features: tables of node, feature and value (without one: 1), for features that are mostly 0; or
                JSON such as ``{"node": ["feature", ...]}``. A node without a row lacks features.
            database: its URL, as SQLAlchemy writes them; ``nodes``, ``edges`` and ``features`` are then
                queries, or names of tables.
            id: the column of ``nodes`` with their names. Default: the first.
            label: the column of ``nodes`` with their classes; an empty cell is unknown. Default: no labels.
            source: the column of ``edges`` with one end. Default: ``'source'``, else the first.
            target: the column with the other end. Default: ``'target'``, else the second.
            weight: the column of ``edges`` with their weights. Default: all weigh 1.
            split: the column of ``nodes`` that says train, validation or test. Default: no split.
            classes: how many classes of equal size to cut a label of numbers into, or ``'each'`` to take
                every number for a class. Default: many different numbers are refused.
            merge_classes: merge classes that differ by case, spaces or one letter. Default: they are noted.
            categorical: columns of ``nodes`` that are categories though they look like numbers.
            ignore: columns of ``nodes`` to leave out.
            keep: columns of ``nodes`` to take as categories though there are very many of them.
            unknown_edges: ``'drop'`` to leave out edges whose ends are no nodes. Default: ``'error'``.
            delimiter: what separates cells of text, or ``'tab'``. Default: a comma, in ``.tsv`` a tab.
            edge_columns: columns of ``edges`` to aggregate to features of nodes (counts, sums and means, by
                category), or ``'auto'`` for all. Default: none.
            edge_delimiter: separates the cells of ``edges``, where it differs. Edge lists separated by
                spaces, with comments (#) and without a header, are recognized.
            encoding: of text. Default: found by its bytes, and noted unless it is UTF-8.
            decimal: the decimal point of text, ``'.'`` or ``','``. Default: a point; where all cells of a
                column have a comma, that, and noted.
            name: what to call the graph. Default: the name of the node file.
            encoder: that of a graph read before, or of a fitted model (``classifier.encoder_``): this file is
                read the same way, except for the options given here. Its labels are optional, a split is left
                out. Absent columns and unknown categories count as missing, unknown columns are ignored, with
                a note each.
            strict: refuse columns and categories that differ from those of the encoder.
            memory: the most memory that reading may take, in bytes or as ``'8GB'``. Default: half of what is
                free. A file that needs more, also one that unpacks to more, is refused.
        """
        options = ColumnOptions(
            *(id, label, split, source, target, weight, delimiter, categorical, ignore),
            *(
                keep,
                encoding,
                decimal,
                classes,
                unknown_edges,
                merge_classes,
                edge_delimiter,
                strict,
                edge_columns,
            ),
        )
        parts = files.read_files(nodes, edges, features, database, options, encoder, MemoryLimit.of(memory))
        place = files.place_name(nodes) if database is None else "graph"
        with readable(place):
            graph = cls._from_read(**(parts | {"name": name or name_of(place)}))
        return _warned(graph)

    @classmethod
    def from_frames(
        cls,
        nodes: Any,
        edges: Any,
        *,
        features: Any = None,
        name: str = "graph",
        encoder: Encoder | None = None,
        **options: Any,
    ) -> Graph:
        """Take over frames of nodes and of edges; their columns are read as those of files are.

        >>> nodes = {"id": ["a", "b", "c"], "age": [31, 25, None], "risk": ["low", "high", None]}
        >>> graph = Graph.from_frames(nodes, {"source": [*"abbc"], "target": [*"bacb"]}, label="risk")
        >>> graph.feature_names, graph.missing.tolist(), graph.labels.tolist()
        (('age',), [False, False, True], [1, 0, -1])

        Args:
            nodes: of pandas, or of any library with ``__arrow_c_stream__`` or ``__dataframe__``, as Polars;
                also a dictionary of columns. An index that has a name is a column.
            edges: likewise.
            features: a long frame of node, feature and value, as for ``from_files``.
            name: what to call the graph.
            encoder: as for ``from_files``.
            **options: what ``from_files`` takes on columns, such as ``id``, ``label`` and ``ignore``.
        """
        for option in options:
            one_of("an option", option, [field.name for field in fields(ColumnOptions)])
        parts = exchange.from_frames(nodes, edges, features, ColumnOptions(**options), encoder)
        return _warned(cls._from_read(**(parts | {"name": name})))

    @staticmethod
    def open(folder: str | PathLike[str]) -> PackedGraph:
        """Open a graph that ``pairnorm pack`` wrote, however large: its arrays are mapped, not read."""
        return PackedGraph.open(folder)

    @classmethod
    def from_packed(cls, packed: PackedGraph) -> Graph:
        """Read a packed graph into memory."""
        packed.check()
        facts = packed.facts
        weights = np.ones(facts.entries, np.float32) if packed.weight is None else np.array(packed.weight)
        arrays = (np.array(packed.crow), packed.column.astype(np.int64), weights)
        crow, column, values = map(torch.from_numpy, arrays)
        features = packed.features(slice(None), range(facts.features))
        gone = _UNSET if facts.missing[1] else torch.from_numpy(packed.missing == 2)
        parts = Split(*(torch.from_numpy(packed.split == number) for number in range(3)))
        return cls(
            mark_validated(sparse_csr(crow, column, values, (facts.nodes, facts.nodes))),
            torch.from_numpy(features if gone is None else np.nan_to_num(features, copy=False, nan=0.0)),
            torch.from_numpy(packed.labels.astype(np.int64)),
            missing=gone,
            node_names=np.concatenate(list(packed.ids())),
            class_names=facts.classes,
            numbered=facts.numbered,
            encoder=facts.encoder,
            name=packed.folder.name,
            notes=facts.notes,
            **parts._asdict(),
        )

    @classmethod
    def from_networkx(
        cls,
        graph: networkx.Graph,
        *,
        label: str | None = None,
        split: str | None = None,
        weight: str | None = None,
        features: str = "x",
        categorical: Sequence[str] = (),
        ignore: Sequence[str] = (),
        encoder: Encoder | None = None,
    ) -> Graph:
        """Take over a networkx graph. Its nodes' attributes become features as the columns of a file do.

        Args:
            graph: directed or not.
            label: the attribute that holds the class. Default: ``'label'`` where some node has it.
            split: the attribute that says train, validation or test. Default: ``'split'``.
            weight: the attribute of its edges that holds their weights. Default: ``'weight'``, or 1 without.
            features: an attribute that holds whole vectors; if none does, all others are features.
            categorical: attributes that are categories though they look like numbers.
            ignore: attributes of nodes to leave out.
            encoder: as for ``from_files``.
        """
        options = ColumnOptions(
            label=label, split=split, weight=weight, categorical=categorical, ignore=ignore
        )
        return cls._from_read(**exchange.from_networkx(graph, options, encoder, features))

    @classmethod
    def from_pyg(cls, data: Data, **parts: Any) -> Graph:
        """Take over a PyG ``Data``: x, edge_index, edge_weight, y and the masks; ``parts`` go before them."""
        return cls.from_edges(**(exchange.from_pyg(data.to_dict()) | parts))

    @classmethod
    def from_scipy(cls, adjacency: scipy.sparse.sparray, features: Any = None, **parts: Any) -> Graph:
        """Take over a scipy adjacency matrix, and features that are a scipy matrix or a numpy array.

        Args:
            adjacency: [n, n]; self-loops are dropped, and an edge in one direction is taken as undirected.
            features: [n, d].
            **parts: any other part of a graph, e.g. ``labels``.
        """
        return cls.from_edges(**(exchange.from_scipy(adjacency, features) | parts))

    def to_pyg(self) -> Data:
        """Return a PyG ``Data``: x, edge_index, edge_weight, y, three masks, and missing if any is."""
        return exchange.to_pyg(self)

    def to_scipy(self) -> tuple[scipy.sparse.csr_array, Any]:
        """Return the adjacency matrix as a scipy ``csr_array``, and features as one or as a numpy array."""
        return exchange.to_scipy(self)

    def to_networkx(self) -> networkx.Graph:
        """Return a networkx graph: ``x``, ``label`` and ``split`` on its nodes, ``weight`` on its edges."""
        return exchange.to_networkx(self)

    def describe(self) -> list[tuple[str, str]]:
        """Return what is inside: a list of what it is about, and a text."""
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
        return "\n".join(
            [f"Graph {self.name!r}", *(f"  {what:<10} {text}" for what, text in self.describe())]
        )


def _warned(graph: Graph) -> Graph:
    if graph.notes:
        warnings.warn(f"{graph.name}: {'; '.join(graph.notes)}.", GraphWarning, stacklevel=3)
    return graph


def _share(part: int, whole: int) -> str:
    """Say how many, and what share of the whole that is.

    >>> _share(140, 2708)
    '140 (5.17%)'
    """
    return f"{part:,} ({100 * part / max(whole, 1):.3g}%)"


def check_graph(graph: object, what: str = "graph") -> None:
    """Raise an error that says how to make a graph, unless this is one."""
    if not isinstance(graph, Graph):
        raise PairNormError(
            f"{what} is a {type(graph).__name__}",
            code="wrong-type",
            value=type(graph).__name__,
            expected="a pairnorm.Graph",
            hint="Graph.from_frames, from_files, from_edges, from_packed or from_pyg makes one; "
            "pairnorm.load('cora') reads one by its name.",
        )


def _check_names(names: ArrayLike | None) -> None:
    """Raise an error that tells a name that two nodes have."""
    listed = [] if names is None else np.asarray(names).ravel().tolist()
    if len(set(listed)) < len(listed):
        ((name, _),) = Counter(listed).most_common(1)
        problem = f"two nodes have the name {quoted(name)}"
        hint = "Give every node a name of its own."
        raise PairNormError(problem, code="duplicate-id", value=name, hint=hint)


def _check_shapes(graph: Graph) -> None:
    """Raise an error that names the first part whose type is wrong, or that does not fit the others."""
    features, nodes = graph.features, graph.num_nodes
    kinds = {"features": (features.is_floating_point() and features.dim() == 2, "floats of shape [n, d]")}
    for part, mask in graph.split._asdict().items():
        kinds[part] = (mask.dtype == torch.bool and mask.dim() == 1, "bool of shape [n]")
    kinds["missing"] = (graph.missing.dtype == torch.bool, "bool of shape [n] or [n, d]")
    of_nodes = (*kinds, "labels", "node_names")
    if (directed := graph.directed) is not None:
        entries = graph.adjacency.values().shape
        fits = directed.dtype == torch.bool and directed.shape == entries
        kinds["directed"] = (fits, f"bool of shape {list(entries)}, as the adjacency has entries")
    for what, (fits, expected) in kinds.items():
        if not fits:
            tensor = getattr(graph, what)
            problem = f"{what} is a {tensor.dtype} tensor of shape {tuple(tensor.shape)}"
            raise PairNormError(problem, code="wrong-type", value=str(tensor.dtype), expected=expected)
    for what in of_nodes:
        found = getattr(graph, what).shape
        if len(found) == 0 or found[0] != nodes:
            problem = f"{what} has shape {tuple(found)}, but the graph has {nodes} nodes"
            raise PairNormError(problem, code="wrong-shape", value=what)
    if tuple(graph.missing.shape) not in {(nodes,), tuple(features.shape)}:
        problem = f"missing has shape {tuple(graph.missing.shape)}"
        expected = f"[{nodes}] for whole vectors or {list(features.shape)} for single entries"
        raise PairNormError(problem, code="wrong-shape", value="missing", expected=expected)
    if graph.feature_names is not None and len(graph.feature_names) != graph.num_features:
        problem = f"{len(graph.feature_names)} feature names for {graph.num_features} features"
        raise PairNormError(problem, code="wrong-shape", value="feature_names")
