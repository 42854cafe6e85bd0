"""Packing: tables of any size become a folder of arrays, within a stated memory.

DuckDB reads the tables and finds the nodes of the edges by their names, one join at a time, spilling to disk
where it must. The entries are then dealt out by range of rows and sorted, one range after the other.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np

from pairnorm.base.errors import PairNormError, one_of, quoted, whole_number
from pairnorm.base.files import atomic_folder
from pairnorm.base.memory import parse_memory
from pairnorm.data.adjacency import EdgeCounts, ExternalSort
from pairnorm.data.encoder import ColumnOptions
from pairnorm.data.files import check_utf8_name
from pairnorm.data.pack_nodes import NodePacker, Tick
from pairnorm.data.packed import DTYPES, Facts, PackedGraph
from pairnorm.data.queries import Database, File, Files, QueriedTable, sql_row
from pairnorm.data.tables import without_header
from pairnorm.data.tabular import find_endpoint_columns, header_is_edge, note_unused_columns

OPTIONS = (
    *("id", "label", "split", "source", "target", "weight", "categorical", "ignore", "keep", "classes"),
    *("merge_classes", "unknown_label", "delimiter", "edge_delimiter", "encoding", "decimal"),
)
"""Options of ``Graph.from_files`` on columns that apply to tables of any size."""
EDGES_PER_BATCH = 2**19
MIN_MEMORY = 256 * 10**6
WORK = "work"
MIN_ENTRIES_PER_RANGE, MAX_ENTRIES_PER_RANGE = 2**18, 2**25
BYTES_PER_SORTED_ENTRY = 72


def pack(
    nodes: Files,
    edges: Files,
    out: File,
    *,
    memory: int | str = "4GB",
    dtype: str = "float32",
    block: int = 32,
    tick: Tick = lambda stage, share: None,
    **columns: Any,
) -> PackedGraph:
    """Read tables of nodes and edges into a folder, within about ``memory``, however large they are.

    What is read, and how, is as for ``Graph.from_files``. The folder appears when it is complete; what a
    killed call left behind is cleared by the next one.

    Args:
        nodes: CSV, TSV or Parquet, one file or several with the same columns; ``*`` may stand in a name.
        edges: likewise.
        out: the folder to make; absent or empty.
        memory: bytes, or a text such as ``'4GB'``; DuckDB gets half, sorting the other half.
        dtype: of the features on disk, ``'float32'`` or ``'float16'``.
        block: how many columns lie together.
        tick: is called with the stage and the share of it that is done.
        **columns: what ``Graph.from_files`` takes on columns: ``id``, ``label``, ``split``, ``source``,
            ``target``, ``weight``, ``categorical``, ``ignore``, ``keep``, ``classes``, ``merge_classes``,
            ``unknown_label``, ``delimiter``, ``edge_delimiter``, ``encoding`` and ``decimal``.
    """
    options = ColumnOptions.of(columns, OPTIONS)
    one_of("dtype", dtype, DTYPES)
    whole_number("block", block, least=1)
    limit = whole_number("memory", parse_memory(memory), least=MIN_MEMORY)
    place = Path(out)
    check_utf8_name(place)
    if place.exists() and not (place.is_dir() and not any(place.iterdir())):
        problem = f"{place}: there is something of that name"
        hint = "Choose another folder, or remove it."
        raise PairNormError(problem, code="exists-already", value=str(place), hint=hint)
    with atomic_folder(place, ()) as draft:
        (draft / WORK).mkdir()
        with closing(Database(draft / WORK, limit)) as base:
            packer = _EdgePacker(base, draft, edges, options, tick)  # better now than after all nodes
            table = NodePacker(base, draft, nodes, options, tick)
            features = table.write(dtype, block)
            notes = table.notes()
            entries, counts = packer.write(table.nodes, table.are_integers)
        shutil.rmtree(draft / WORK)
        weighted = options.weight is not None
        Facts(
            nodes=table.nodes,
            entries=entries,
            weighted=weighted,
            dtype=dtype,
            block=block,
            encoder=table.encoder,
            classes=table.classes,
            numbered=table.numbered,
            notes=(*counts.notes(weighted), *notes, *packer.source.all_notes()),
            **features,
        ).write(draft)
    return PackedGraph.open(place)


class _EdgePacker:
    """Writes tables of edges to a folder."""

    def __init__(self, base: Database, draft: Path, files: Files, options: ColumnOptions, tick: Tick) -> None:
        self.base, self.draft, self.weight, self.tick = base, draft, options.weight, tick
        self.table = QueriedTable(base, files, "edges", options)
        self.source, self.cells = self.table.source, self.table.cells
        self.ends = find_endpoint_columns(self.source, options.source, options.target)
        note_unused_columns(self.source, self.ends, options.weight)

    def write(self, nodes: int, are_integers: bool) -> tuple[int, EdgeCounts]:
        """Write crow, column and weight; return the number of entries, and the counts of changes."""
        self._check_header()
        weight = "" if self.weight is None else self._weight(self.weight)
        first, second = (self.cells[end].endpoint(are_integers) for end in self.ends[:2])
        used = [*self.ends[:2], *([] if self.weight is None else [self.weight])]
        self.tick("edges", 0.0)
        # One join at a time: each builds one table of the names, which may spill.
        self.base.run("SET preserve_insertion_order=false")
        self.base.run(
            f"CREATE TABLE half AS SELECT n.number AS s, e.t{', e.w' if weight else ''} "
            f"FROM (SELECT {first} AS s, {second} AS t{weight} FROM {self.table.from_(used)}) e "
            "LEFT JOIN names n ON e.s = n.name"
        )
        ((listed, lost),) = self.base.run("SELECT count(*), count(*) FILTER (s IS NULL) FROM half")
        if lost:
            self._reject_end(self.ends.source, first, lost)
        self.tick("edges", 0.3)
        joined = (
            f"SELECT h.s, n.number AS t{', h.w' if weight else ''} FROM half h JOIN names n ON h.t = n.name"
        )
        length = max(
            MIN_ENTRIES_PER_RANGE, min(MAX_ENTRIES_PER_RANGE, self.base.memory // 2 // BYTES_PER_SORTED_ENTRY)
        )
        rows = -(-nodes // max(1, -(-2 * listed // length)))
        with ExternalSort(self.draft / WORK, rows, nodes, bool(weight)) as ranges:
            edges, loops = self._partition_edges(joined, listed, ranges)
        if lost := listed - edges - loops:
            self._reject_end(self.ends.target, second, lost)
        self.base.run("DROP TABLE half")
        return self._sort(ranges, edges, loops)

    def _check_header(self) -> None:
        """Read the first line as an edge where it names two nodes."""
        names = f"SELECT count(*) FROM names WHERE name::VARCHAR IN {sql_row(self.ends[:2])}"
        may_be_edge = self.source.text is not None and self.source.has_header
        if may_be_edge and self.base.run(names) == [(2,)] and header_is_edge(self.source, self.ends):
            self.table.sources = [
                without_header(source, "an edge", source.columns) for source in self.table.sources
            ]
            self.source = self.table.source = self.table.sources[0]
            self.table.load()

    def _reject_end(self, column: str, end: str, lost: int) -> None:
        """Raise an error about the first endpoint that is not a node."""
        ((value,),) = self.base.run(
            f"SELECT {self.cells[column].sql} FROM {self.table.from_([column])} "
            f"WHERE {end} IS NULL OR {end} NOT IN (SELECT name FROM names) LIMIT 1"
        )
        code = "empty-cell" if value is None or not str(value).strip() else "unknown-node"
        more = f" ({lost:,} cells are not)" if lost > 1 else ""
        problem = f"{quoted(value)} in column {quoted(column)} is not the id of a node{more}"
        hint = "Add the node, drop the edge, or name another column as an end of edges."
        self.source.reject(None, problem, code, value=value, hint=hint)

    def _weight(self, name: str) -> str:
        """Return the SQL of the weights as a column ``w``."""
        decision, _ = self.table.decide(name, kind="number")
        return f", {self.table.number(name, decision)} AS w"

    def _partition_edges(self, query: str, listed: int, ranges: ExternalSort) -> tuple[int, int]:
        """Write both directions of all edges to files by range of rows; return edges and self-loops."""
        edges = loops = 0
        for s, t, *value in self.base.batches(query, EDGES_PER_BATCH):
            between, weights = s != t, None
            if value:
                (numbers,) = value
                if (wrong := ~((numbers > 0) & (numbers <= np.finfo(np.float32).max))).any():
                    cell = "empty" if np.isnan(numbers[wrong][0]) else numbers[wrong][0]
                    problem = f"a weight in column {quoted(self.weight)} is {cell}"
                    expected = "a positive number"
                    self.source.reject(None, problem, "bad-weight", value=self.weight, expected=expected)
                weights = numbers.astype(np.float32)[between]
            loops += int(np.count_nonzero(~between))
            s, t = s[between].astype(np.int64), t[between].astype(np.int64)
            edges += len(s)
            ranges.add(s, t, weights)
            self.tick("edges", 0.3 + 0.7 * (edges + loops) / listed)
        return edges, loops

    def _sort(self, ranges: ExternalSort, edges: int, loops: int) -> tuple[int, EdgeCounts]:
        """Write the sorted ranges as crow, column and weight; return the number of entries, and counts."""
        entries = directed = isolated = 0
        with ExitStack() as stack:
            names = ("crow", "column", *(["weight"] if ranges.weighted else []))
            crow, column, *weight = (stack.enter_context(open(self.draft / name, "wb")) for name in names)
            crow.write(np.zeros(1, "<i8").data)
            for number, (matrix, listed) in enumerate(ranges.sorted()):
                crow.write((entries + matrix.indptr[1:].astype("<i8")).data)
                column.write(matrix.indices.astype("<i4").data)
                if weight:
                    weight[0].write(matrix.data.astype("<f4").data)
                entries += matrix.nnz
                directed += listed
                isolated += int(np.count_nonzero(np.diff(matrix.indptr) == 0))
                self.tick("sorting", (number + 1) / len(ranges.paths))
        # Every directed edge was counted at both of its ends.
        return entries, EdgeCounts(loops, edges - directed // 2, entries - directed // 2, isolated)
