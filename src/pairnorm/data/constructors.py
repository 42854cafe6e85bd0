"""Make graphs: of edges, files, frames, packed graphs, and graphs of other libraries."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from pairnorm.base.errors import PairNormError, load_library, whole_number
from pairnorm.base.memory import MemoryLimit
from pairnorm.data import adjacency as matrices
from pairnorm.data import exchange
from pairnorm.data.encoder import ColumnOptions, Encoder
from pairnorm.data.features import as_tensor, to_endpoints, to_labels
from pairnorm.data.files import STDIN, PathOrPaths, explain_read_errors, file_type, is_pattern, name_of_files
from pairnorm.data.ids import NodeNames
from pairnorm.data.packed import PackedGraph

if TYPE_CHECKING:
    import networkx
    import scipy.sparse
    from torch_geometric.data import Data

    from pairnorm.data.graph import Graph


class GraphWarning(UserWarning):
    """Something odd in a user's files that was handled; also one of the graph's ``notes``."""


class GraphConstructors:
    """The constructors of ``Graph``, which inherits them."""

    @classmethod
    def from_edges(
        cls: type[Any],
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

        Args:
            edge_index: whole numbers of shape [2, edges]: the two ends of each edge.
            features: [n, d], also a scipy matrix; NaN or None where missing. Default: none, d = 0.
            labels: [n]; numbers of classes, -1 where unknown, or booleans, or names; None or NaN is unknown.
            num_nodes: n. Default: the length of ``features`` or ``labels``, else the largest end + 1.
            weights: [edges], positive. Default: 1.
            notes: on other oddities; notes on the edges come before them.
            **parts: any other part of a graph, e.g. ``train``.
        """
        tensors = (part for part in (edge_index, features) if isinstance(part, Tensor))
        device = next((part.device for part in tensors), torch.device("cpu"))
        ends = to_endpoints(edge_index)
        if features is not None:
            features = as_tensor("features", features, np.float32).to(device, torch.float32)
        if labels is not None:
            labels, parts["class_names"], numbered = to_labels(labels, parts.get("class_names"))
            labels, parts = labels.to(device), {"numbered": numbered} | parts
        if num_nodes is None:
            known = next((len(part) for part in (features, labels) if part is not None), None)
            num_nodes = known if known is not None else int(ends.max(initial=-1)) + 1
        if features is None and labels is None and num_nodes > matrices.max_claimed_size(ends.size):
            problem = f"{num_nodes:,} nodes are claimed, but there are {ends.size // 2:,} edges"
            hint = "Number nodes from 0 without gaps."
            raise PairNormError(problem, code="out-of-range", value=num_nodes, hint=hint)
        nodes = whole_number("num_nodes", num_nodes)
        strengths = None if weights is None else as_tensor("weights", weights).cpu().float().numpy()
        matrices.check_edges(ends, nodes, strengths)
        adjacency, counts = matrices.symmetric_adjacency(ends[0], ends[1], nodes, strengths)
        if counts.one_way:
            parts.setdefault("directed", matrices.listed_directions(adjacency, ends[0], ends[1]).to(device))
        if features is None:
            features = torch.zeros(nodes, 0, device=device)
        notes = counts.notes(weights is not None) + notes
        adjacency = matrices.mark_validated(adjacency.to(device))
        graph: Graph = cls(adjacency, features, labels, notes=notes, **parts)
        return graph

    @classmethod
    def from_files(
        cls: type[Any],
        nodes: PathOrPaths,
        edges: PathOrPaths | None = None,
        *,
        features: PathOrPaths | None = None,
        database: str | None = None,
        name: str | None = None,
        encoder: Encoder | None = None,
        memory: int | str | None = None,
        **options: Any,
    ) -> Graph:
        """Read a graph from tables of nodes and tables of edges, or from one file that holds both.

        Tables are CSV, TSV, Parquet, Excel, JSON or JSON lines, also compressed (gzip, bzip2, xz, zstd, zip),
        the standard input (``'-'``), or queries of a database. Several files, or those that a pattern such as
        ``'part-*.parquet'`` matches, are one table; rows of nodes with the same id are put together.
        Graphs in one file are ``.npz`` (``edge_index``, ``x``, ``y``; or CSR pieces ``adj_*``, ``attr_*``,
        and ``labels``), a PyG ``Data`` as ``.safetensors`` or ``.pt``, ``.graphml``,
        ``.gml``, ``.gexf``, or ``.json`` of d3 and networkx.

        Every column of the nodes that no option names is a feature: numbers as they are, dates as days, text
        one-hot, and so are whole numbers with leading zeros (``01234``). An empty cell is missing; among
        numbers, so is ``NA`` and its like. A column of text whose cells nearly all differ is left out.
        Oddities are handled, listed in ``graph.notes``, and shown in one warning.

        Args:
            nodes: the tables of nodes, or the file that holds the whole graph.
            edges: the tables of edges.
            features: tables of node, feature and value (without one: 1), for features that are mostly 0; or
                JSON such as ``{"node": ["feature", ...]}``. A node without a row lacks features.
            database: its URL, as SQLAlchemy writes them; ``nodes``, ``edges`` and ``features`` are then
                queries, or names of tables.
            name: what to call the graph. Default: the name of the node file.
            encoder: that of a graph read before, or of a fitted model (``classifier.encoder_``): this file is
                read the same way, except for the options given here. Its labels are optional, a split is left
                out. Absent columns and unknown categories count as missing, unknown columns are ignored, with
                a note each.
            memory: the most memory that reading may take, in bytes or as ``'8GB'``. Default: half of what is
                free. A file that needs more, also one that unpacks to more, is refused.
            **options: those of ``ColumnOptions``, such as ``id``, ``label`` and ``ignore``.
        """
        inputs = {"nodes": nodes, "edges": edges, "features": features}
        parts = _read_files(inputs, database, ColumnOptions.of(options), encoder, MemoryLimit.of(memory))
        place, default = name_of_files(nodes) if database is None else ("graph", "graph")
        with explain_read_errors(place):
            return _from_read(cls, parts | {"name": name or default}, warn=True)

    @classmethod
    def from_frames(
        cls: type[Any],
        nodes: Any,
        edges: Any,
        *,
        features: Any = None,
        name: str = "graph",
        encoder: Encoder | None = None,
        **options: Any,
    ) -> Graph:
        """Make a graph from data frames of nodes and of edges, whose columns are read as those of files.

        >>> from pairnorm.data import Graph
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
            **options: those of ``ColumnOptions``.
        """
        parts = exchange.from_frames(nodes, edges, features, ColumnOptions.of(options), encoder)
        return _from_read(cls, parts | {"name": name}, warn=True)

    @staticmethod
    def open(folder: str | PathLike[str]) -> PackedGraph:
        """Open a graph that ``pairnorm pack`` wrote, however large: its arrays are mapped, not read."""
        return PackedGraph.open(folder)

    @classmethod
    def from_packed(cls: type[Any], packed: PackedGraph) -> Graph:
        """Read a packed graph into memory."""
        parts = packed.parts()
        graph: Graph = cls(**parts | {"node_names": NodeNames(parts["node_names"])})
        return graph

    @classmethod
    def from_networkx(
        cls: type[Any],
        graph: networkx.Graph,
        *,
        features: str = "x",
        encoder: Encoder | None = None,
        **options: Any,
    ) -> Graph:
        """Make a graph from a networkx graph, whose node attributes are read as the columns of a file.

        Args:
            graph: directed or not.
            features: an attribute that holds whole vectors; if none does, all others are features.
            encoder: as for ``from_files``.
            **options: ``label``, ``split``, ``weight``, ``categorical``, ``ignore`` and ``edge_columns`` of
                ``ColumnOptions``, which name attributes. By default ``label``, ``split`` and ``weight`` are
                used where there are attributes of that name.
        """
        chosen = ColumnOptions.of(options, exchange.ATTRIBUTE_OPTIONS)
        return _from_read(cls, exchange.from_networkx(graph, chosen, encoder, features))

    @classmethod
    def from_pyg(cls: type[Any], data: Data, **parts: Any) -> Graph:
        """Make a graph from a PyG ``Data``: x, edge_index, edge_weight, y, masks; ``parts`` override them."""
        return _from_read(cls, exchange.from_pyg(data.to_dict()) | parts)

    @classmethod
    def from_scipy(
        cls: type[Any], adjacency: scipy.sparse.sparray, features: Any = None, **parts: Any
    ) -> Graph:
        """Make a graph from a scipy adjacency matrix, and features as a scipy matrix or a numpy array.

        Self-loops are dropped, and an edge in one direction is taken as undirected. ``parts`` are other parts
        of a graph, e.g. ``labels``.
        """
        return _from_read(cls, exchange.from_scipy(adjacency, features) | parts)


def _from_read(cls: type[Any], parts: dict[str, Any], warn: bool = False) -> Graph:
    """Make a graph of the parts that a reader returns, and issue its notes as warnings."""
    graph: Graph = cls.from_edges(**parts)
    if warn and graph.notes:
        warnings.warn(f"{graph.name}: {'; '.join(graph.notes)}.", GraphWarning, stacklevel=3)
    return graph


def _read_files(
    inputs: dict[str, Any],
    database: str | None,
    options: ColumnOptions,
    encoder: Encoder | None,
    memory: MemoryLimit,
) -> dict[str, Any]:
    """Return the parts of a graph in tables of nodes, edges and features, or in one file that holds it."""
    load_library("pandas", "Graph.from_files")
    from pairnorm.data.formats import LINKS, TABLES, edges_missing, open_tables
    from pairnorm.data.tabular import read_tables

    for role, value in inputs.items():
        if not isinstance(value, str | PathLike | Sequence | None):
            problem, kind = f"{role} is a {type(value).__name__}", type(value).__name__
            expected, hint = "the name of a file, or a list of them", "Graph.from_frames takes frames."
            raise PairNormError(problem, code="wrong-type", value=kind, expected=expected, hint=hint)
    nodes, edges = inputs["nodes"], inputs["edges"]
    if not isinstance(nodes, str | PathLike | None) and len(nodes) == 1:
        (nodes,) = nodes
    again = options.after(encoder)
    is_text = edges is not None and again.delimiter is not None
    if database is None and isinstance(nodes, str | PathLike) and nodes != STDIN and not is_text:
        path = Path(nodes)
        if not is_pattern(path.name) and not path.is_dir() and file_type(path) not in TABLES:
            return exchange.read_graph_file(path, inputs, options, encoder, memory)
        if edges is None and file_type(path) == ".json":  # d3 and networkx write both into one file
            tables = [open_tables(role, path, again, memory=memory) for role in ("nodes", LINKS)]
            return read_tables([*tables, []], again, encoder)
    if edges is None:
        raise edges_missing(name_of_files(nodes or "")[0])
    if nodes == edges == STDIN:
        problem = "nodes and edges are both '-'"
        raise PairNormError(problem, code="conflicting-options", hint="Pipe one of them in only.")
    tables = [
        [] if value is None else open_tables(role, value, again, database=database, memory=memory)
        for role, value in (inputs | {"nodes": nodes}).items()
    ]
    return read_tables(tables, again, encoder)
