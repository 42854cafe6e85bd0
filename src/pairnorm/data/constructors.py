"""Make graphs: of edges, files, frames, packed graphs, and graphs of other libraries."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from pairnorm.base.csr import sparse_csr
from pairnorm.base.errors import PairNormError, one_of, quoted, whole_number
from pairnorm.base.memory import MemoryLimit
from pairnorm.data import exchange
from pairnorm.data.adjacency import (
    check_edges,
    listed_directions,
    mark_validated,
    max_claimed_size,
    symmetric_adjacency,
)
from pairnorm.data.encoder import ColumnOptions, Encoder
from pairnorm.data.features import as_tensor, to_endpoints
from pairnorm.data.files import (
    STDIN,
    PathOrPaths,
    explain_read_errors,
    file_type,
    is_pattern,
    name_without_endings,
)
from pairnorm.data.labels import to_labels
from pairnorm.data.masks import Split
from pairnorm.data.packed import PackedGraph

if TYPE_CHECKING:
    import networkx
    import scipy.sparse
    from torch_geometric.data import Data

    from pairnorm.data.graph import Graph


class GraphWarning(UserWarning):
    """Something odd in a user's files that was handled. The graph's ``notes`` say the same."""


class NodeNames(NamedTuple):
    """Names of nodes that are known to be all different, so that a graph need not check them again."""

    values: NDArray[Any]

    @classmethod
    def of(cls, names: ArrayLike | NodeNames) -> NodeNames:
        """Check names that are not checked yet; raises an error that names a repeated one."""
        if isinstance(names, NodeNames):
            return names
        listed = np.asarray(names).ravel().tolist()
        if len(set(listed)) < len(listed):
            ((name, _),) = Counter(listed).most_common(1)
            problem, hint = f"two nodes have the name {quoted(name)}", "Give every node a name of its own."
            raise PairNormError(problem, code="duplicate-id", value=name, hint=hint)
        return cls(np.array(names))


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

        Lists, arrays of numpy or torch, and frames and series of pandas will do for every part.

        Args:
            edge_index: whole numbers of shape [2, edges]: the two ends of each edge.
            features: [n, d], also a scipy matrix; NaN or None where missing. Default: none, d = 0.
            labels: [n]; numbers of classes, -1 where unknown, or booleans, or names; None or NaN is unknown.
            num_nodes: n. Default: the length of ``features`` or ``labels``, else the largest end + 1.
            weights: [edges], positive. Default: 1.
            notes: what else was odd; what is odd about the edges comes before it.
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
        if features is None and labels is None and num_nodes > max_claimed_size(ends.size):
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
        return cast(
            "Graph", cls(mark_validated(adjacency.to(device)), features, labels, notes=notes, **parts)
        )

    @classmethod
    def from_files(
        cls: type[Any],
        nodes: PathOrPaths,
        edges: PathOrPaths | None = None,
        *,
        features: PathOrPaths | None = None,
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
        ``labels``), a PyG ``Data`` as ``.safetensors`` or ``.pt``, or ``.graphml`` or ``.gml``.
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
            id=id, label=label, split=split, source=source, target=target, weight=weight, classes=classes,
            merge_classes=merge_classes, categorical=categorical, ignore=ignore, keep=keep, strict=strict,
            edge_columns=edge_columns, unknown_edges=unknown_edges, delimiter=delimiter,
            edge_delimiter=edge_delimiter, encoding=encoding, decimal=decimal,
        )  # fmt: skip
        given = {"nodes": nodes, "edges": edges, "features": features}
        parts = _read_files(given, database, options, encoder, MemoryLimit.of(memory))
        place = _base_name(nodes) if database is None else "graph"
        with explain_read_errors(place):
            graph = _from_read(cls, parts | {"name": name or name_without_endings(place)})
        return _warned(graph)

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
        """Take over frames of nodes and of edges; their columns are read as those of files are.

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
            **options: what ``from_files`` takes on columns, such as ``id``, ``label`` and ``ignore``.
        """
        from pairnorm.data import tabular

        for option in options:
            one_of("an option", option, [field.name for field in fields(ColumnOptions)])
        parts = tabular.from_frames(nodes, edges, features, ColumnOptions(**options), encoder)
        return _warned(_from_read(cls, parts | {"name": name}))

    @staticmethod
    def open(folder: str | PathLike[str]) -> PackedGraph:
        """Open a graph that ``pairnorm pack`` wrote, however large: its arrays are mapped, not read."""
        return PackedGraph.open(folder)

    @classmethod
    def from_packed(cls: type[Any], packed: PackedGraph) -> Graph:
        """Read a packed graph into memory."""
        packed.check()
        facts = packed.facts
        weights = np.ones(facts.entries, np.float32) if packed.weight is None else np.array(packed.weight)
        arrays = (np.array(packed.crow), packed.column.astype(np.int64), weights)
        crow, column, values = map(torch.from_numpy, arrays)
        features = packed.features(slice(None), range(facts.features))
        gone = None if facts.missing[1] else torch.from_numpy(packed.missing == 2)
        parts = Split(*(torch.from_numpy(packed.split == number) for number in range(3)))
        return cast(
            "Graph",
            cls(
                mark_validated(sparse_csr(crow, column, values, (facts.nodes, facts.nodes))),
                torch.from_numpy(features if gone is None else np.nan_to_num(features, copy=False, nan=0.0)),
                torch.from_numpy(packed.labels.astype(np.int64)),
                missing=gone,
                node_names=NodeNames(np.concatenate(list(packed.ids()))),
                class_names=facts.classes,
                numbered=facts.numbered,
                encoder=facts.encoder,
                name=packed.folder.name,
                notes=facts.notes,
                **parts._asdict(),
            ),
        )

    @classmethod
    def from_networkx(
        cls: type[Any],
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
        return _from_read(cls, exchange.from_networkx(graph, options, encoder, features))

    @classmethod
    def from_pyg(cls: type[Any], data: Data, **parts: Any) -> Graph:
        """Take over a PyG ``Data``: x, edge_index, edge_weight, y and the masks; ``parts`` go before them."""
        return cast("Graph", cls.from_edges(**(exchange.from_pyg(data.to_dict()) | parts)))

    @classmethod
    def from_scipy(
        cls: type[Any], adjacency: scipy.sparse.sparray, features: Any = None, **parts: Any
    ) -> Graph:
        """Take over a scipy adjacency matrix, and features that are a scipy matrix or a numpy array.

        Args:
            adjacency: [n, n]; self-loops are dropped, and an edge in one direction is taken as undirected.
            features: [n, d].
            **parts: any other part of a graph, e.g. ``labels``.
        """
        return cast("Graph", cls.from_edges(**(exchange.from_scipy(adjacency, features) | parts)))


def _from_read(cls: type[Any], parts: dict[str, Any]) -> Graph:
    """Make a graph of parts that a reader made, which has checked the names of nodes."""
    names = parts.get("node_names")
    return cast(
        "Graph", cls.from_edges(**(parts | {"node_names": names if names is None else NodeNames(names)}))
    )


def _warned(graph: Graph) -> Graph:
    if graph.notes:
        warnings.warn(f"{graph.name}: {'; '.join(graph.notes)}.", GraphWarning, stacklevel=3)
    return graph


def _read_files(
    given: dict[str, PathOrPaths | None],
    database: str | None,
    options: ColumnOptions,
    encoder: Encoder | None,
    memory: MemoryLimit,
) -> exchange.Parts:
    """Return the parts of a graph in tables, or in one file that holds it whole."""
    from pairnorm.data.readers import open_tables
    from pairnorm.data.tabular import read_tables

    for role, value in given.items():
        if not isinstance(value, str | PathLike | Sequence | None):
            problem, kind = f"{role} is a {type(value).__name__}", type(value).__name__
            expected, hint = "the name of a file, or a list of them", "Graph.from_frames takes frames."
            raise PairNormError(problem, code="wrong-type", value=kind, expected=expected, hint=hint)
    nodes, edges = given["nodes"], given["edges"]
    if not isinstance(nodes, str | PathLike | None) and len(nodes) == 1:
        (nodes,) = nodes
    again = options.after(encoder)
    if database is None and _holds_graph(nodes, edges, again.delimiter):
        return exchange.read_graph_file(Path(nodes), given, options, encoder, memory)  # type: ignore[arg-type]
    if edges is None:
        problem = f"{_base_name(nodes or '')}: a table of nodes needs a table of edges"
        raise PairNormError(problem, code="option-missing", hint="Pass {edges}", edges=...)
    if nodes == edges == STDIN:
        problem = "nodes and edges are both '-'"
        raise PairNormError(problem, code="conflicting-options", hint="Pipe one of them in only.")
    tables = [
        [] if value is None else open_tables(role, value, again, database=database, memory=memory)
        for role, value in (given | {"nodes": nodes}).items()
    ]
    return read_tables(tables, again, encoder)


def _holds_graph(nodes: PathOrPaths | None, edges: PathOrPaths | None, delimiter: str | None) -> bool:
    """Return whether a file is no table: by its ending, unless edges and a delimiter come with it."""
    from pairnorm.data.readers import TABLES

    is_text = edges is not None and delimiter is not None
    if not isinstance(nodes, str | PathLike) or nodes == STDIN or is_text:
        return False
    path = Path(nodes)
    return not is_pattern(path.name) and not path.is_dir() and file_type(path) not in TABLES


def _base_name(given: PathOrPaths) -> str:
    """Return what to call a graph, or its nodes, by where they are."""
    first = given if isinstance(given, str | PathLike) else next(iter(given), "")
    return Path(first).name
