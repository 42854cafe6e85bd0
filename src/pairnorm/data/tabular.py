"""Read graphs from tables: files, databases, frames, and the attributes of networkx graphs."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import asdict, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas
import torch

from pairnorm.base.errors import PairNormError, quoted
from pairnorm.base.memory import BYTES_PER_XML_BYTE, MemoryLimit
from pairnorm.data.edges import EndpointColumns, add_edges, read_tables
from pairnorm.data.encoder import ColumnOptions, Encoder
from pairnorm.data.exchange import READERS, Parts
from pairnorm.data.files import (
    STDIN,
    PathOrPaths,
    check_is_file,
    explain_read_errors,
    file_type,
    is_pattern,
    load_library,
)
from pairnorm.data.nodes import read_nodes
from pairnorm.data.readers import TABLES, arrow_frame, check_column_names, open_tables
from pairnorm.data.tables import Table

if TYPE_CHECKING:
    import networkx

ATTRIBUTE_OPTIONS = ("label", "split", "weight", "categorical", "ignore", "edge_columns")
_NODE, _SOURCE, _TARGET = "(node)", "(source)", "(target)"


def read_files(
    given: dict[str, PathOrPaths | None],
    database: str | None,
    options: ColumnOptions,
    encoder: Encoder | None,
    memory: MemoryLimit,
) -> Parts:
    """Return the parts of a graph in tables, or in one file that holds it whole.

    Args:
        given: the files or queries for ``nodes``, ``edges`` and ``features``.
        database: its URL, where queries are given.
        options: how to read columns.
        encoder: of a graph read before.
        memory: the most that reading may take.
    """
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
        return _read_whole(Path(nodes), given, options, encoder, memory)  # type: ignore[arg-type]
    if edges is None:
        problem = f"{base_name(nodes or '')}: a table of nodes needs a table of edges"
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
    is_text = edges is not None and delimiter is not None
    if not isinstance(nodes, str | PathLike) or nodes == STDIN or is_text:
        return False
    path = Path(nodes)
    return not is_pattern(path.name) and not path.is_dir() and file_type(path) not in TABLES


def base_name(given: PathOrPaths) -> str:
    """Return what to call a graph, or its nodes, by where they are."""
    first = given if isinstance(given, str | PathLike) else next(iter(given), "")
    return Path(first).name


def _read_whole(
    path: Path, given: dict[str, Any], options: ColumnOptions, encoder: Encoder | None, memory: MemoryLimit
) -> Parts:
    """Return the parts of a graph in one file."""
    for option in ("edges", "features"):
        if given[option] is not None:
            raise PairNormError(
                f"{path.name}: {path.suffix!r} is no table, but {option} are given",
                code="unknown-file-type",
                value=path.suffix,
                expected=", ".join(TABLES),
                hint="For a text file with another ending pass {delimiter}.",
                delimiter=",",
            )
    kind = check_is_file(path).suffix.lower()
    with explain_read_errors(path.name):
        _check_applies(kind, options)
        count = path.stat().st_size
        if kind in NETWORKX_READERS:
            memory.check(path.name, count * BYTES_PER_XML_BYTE, f"{count:,} bytes of {kind[1:].upper()}")
            graph = NETWORKX_READERS[kind](path)
            return from_networkx(graph, options, encoder, limit=partial(memory.check_cells, path.name))
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                count = sum(member.file_size for member in archive.infolist())
        memory.check(path.name, count, "its arrays")
        return READERS[kind](path)


def _check_applies(kind: str, options: ColumnOptions) -> None:
    """Refuse a kind of file that is not known, and options that mean nothing in it."""
    if kind not in (*NETWORKX_READERS, *READERS):
        problem = f"files of type {quoted(kind)} are not known"
        expected = "one of " + ", ".join((*TABLES, *NETWORKX_READERS, *READERS))
        raise PairNormError(problem, code="unknown-file-type", value=kind, expected=expected)
    for option, value in asdict(options).items():
        if value and not (kind in NETWORKX_READERS and option in ATTRIBUTE_OPTIONS):
            problem, hint = f"{option} does not apply to {kind} files", f"Leave out {{{option}}}."
            fields = {option: value}
            raise PairNormError(problem, code="option-does-not-apply", value=option, hint=hint, **fields)


def _read_graphml(path: Path) -> networkx.Graph:
    return load_library("networkx", "GraphML").read_graphml(path)


def _read_gml(path: Path) -> networkx.Graph:
    """Read GML: nodes without labels are called by their ids, and an edge may be listed several times."""
    text = path.read_text(encoding="utf-8")
    if not re.search(r"\bmultigraph\b", text):
        text = re.sub(r"\bgraph\s*\[", "graph [\n multigraph 1\n", text, count=1)
    label = "label" if re.search(r"\blabel\b", text) else "id"
    return load_library("networkx", "GML").parse_gml(text, label=label)


NETWORKX_READERS = {".graphml": _read_graphml, ".gml": _read_gml}


def from_frames(
    nodes: Any, edges: Any, features: Any, options: ColumnOptions, encoder: Encoder | None
) -> Parts:
    """Return the parts of a graph in frames of pandas, or of any library that hands its columns over."""
    tables = [
        [] if role == "features" and frame is None else [_frame_source(f"the frame of {role}", frame)]
        for role, frame in (("nodes", nodes), ("edges", edges), ("features", features))
    ]
    try:
        return read_tables(tables, options.after(encoder), encoder)
    except PairNormError as error:
        if error.code == "unknown-node" and str(error.value) in _unread_index(nodes):
            error.hint += " It is in the index of the nodes; only one with a name, such as 'id', is read."
        raise


def _unread_index(frame: Any) -> set[str]:
    if not isinstance(frame, pandas.DataFrame) or isinstance(frame.index, pandas.RangeIndex):
        return set()
    return set() if any(frame.index.names) else set(map(str, frame.index))


def _frame_source(name: str, frame: Any) -> Table:
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
    for items in (graph.nodes(data=True), graph.edges(data=True)):
        limit(len(items), len({key for *_, attributes in items for key in attributes}))
    nodes = _attributes([attributes for _, attributes in graph.nodes(data=True)])
    edges = _edges(graph)
    options = options.after(encoder)
    if encoder is None:
        candidates = nodes.keys() - set(options.ignore)
        defaults: dict[str, Any] = {
            name: name for name in ("label", "split") if name in candidates and not getattr(options, name)
        }
        options = replace(options, **defaults)
    else:
        candidates = nodes.keys() - {*options.ignore, *encoder.features}
        options = replace(options, id=_NODE)
    vectors = nodes[features] if features in candidates and any(map(_is_vector, nodes[features])) else None
    if vectors is not None:
        used = (options.label, options.split, *options.ignore)
        nodes = {name: cells for name, cells in nodes.items() if name in used}
    weight = options.weight
    if weight is None and "weight" in edges:
        weight = "weight"
        edges[weight] = [1.0 if value is None else value for value in edges[weight]]
    node_table, edge_table = (
        Table(f"the {what} of the networkx graph", tuple(columns), pandas.DataFrame(columns))
        for what, columns in (("nodes", {_NODE: list(graph.nodes)} | nodes), ("edges", edges))
    )
    weight = weight and edge_table.column("weight", weight)
    parts = read_nodes([node_table], options, encoder)
    parts = add_edges(parts, [edge_table], [EndpointColumns(_SOURCE, _TARGET)], weight, options, encoder)
    parts["name"] = graph.name or "graph"
    return parts if vectors is None else parts | _vectors(vectors, features)


def _edges(graph: networkx.Graph) -> dict[str, list[Any]]:
    """Return the two ends and the attributes of every edge, in both directions where it has none."""
    edges = list(graph.edges(data=True))
    if not graph.is_directed():
        edges += [(target, source, attributes) for source, target, attributes in edges if source != target]
    ends = {_SOURCE: [edge[0] for edge in edges], _TARGET: [edge[1] for edge in edges]}
    return ends | _attributes([edge[2] for edge in edges])


def _attributes(items: list[dict[Any, Any]]) -> dict[str, list[Any]]:
    """Return a column for each attribute that some node or edge has; None for those that have it not."""
    known = dict.fromkeys(key for attributes in items for key in attributes)
    return {str(key): [attributes.get(key) for attributes in items] for key in known}


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
