"""Packing: tables of any size become a folder of arrays, within a stated memory.

DuckDB reads the tables and finds the nodes of the edges by their names, one join at a time, spilling to disk
where it must. The entries are then dealt out by range of rows and sorted, one range after the other.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pairnorm.base.errors import PairNormError, one_of, quoted, whole_number
from pairnorm.base.files import atomic_folder
from pairnorm.base.memory import parse_memory
from pairnorm.data.adjacency import EdgeCounts, first_of_run, merge_weights
from pairnorm.data.edges import find_ends, header_is_edge, note_unused_columns
from pairnorm.data.encoder import ColumnOptions
from pairnorm.data.pack_features import NodePacker
from pairnorm.data.pack_nodes import Tick
from pairnorm.data.packed import DTYPES, Facts, PackedGraph
from pairnorm.data.queries import Database, File, Files, as_id, as_number, sql_name, sql_row
from pairnorm.data.tables import without_header

OPTIONS = (
    *("id", "label", "split", "source", "target", "weight", "categorical", "ignore", "keep", "classes"),
    *("merge_classes", "delimiter", "edge_delimiter", "decimal"),
)
"""Options of ``Graph.from_files`` on columns that apply to tables of any size."""
EDGES_PER_BATCH = 2**19
LEAST_MEMORY = 256 * 10**6
WORK = "work"
FEWEST_PER_RANGE, ENTRIES_PER_RANGE = 2**18, 2**25
BYTES_PER_SORTED_ENTRY = 48


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
            ``delimiter``, ``edge_delimiter`` and ``decimal``.
    """
    for option in columns:
        one_of("an option", option, OPTIONS)
    one_of("dtype", dtype, DTYPES)
    whole_number("block", block, least=1)
    limit = whole_number("memory", parse_memory(memory), least=LEAST_MEMORY)
    place = Path(out)
    if place.exists() and not (place.is_dir() and not any(place.iterdir())):
        problem = f"{place}: there is something of that name"
        hint = "Choose another folder, or remove it."
        raise PairNormError(problem, code="exists-already", value=str(place), hint=hint)
    options = ColumnOptions(**columns)
    with atomic_folder(place, ()) as draft:
        (draft / WORK).mkdir()
        with closing(Database(draft / WORK, limit)) as base:
            packer = _EdgePacker(base, draft, edges, options, tick)  # better now than after all nodes
            table = NodePacker(base, draft, nodes, options, tick)
            features = table.write(dtype, block)
            notes = table.notes()
            entries, counts = packer.write(table.nodes, table.whole)
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
    """The tables of edges on their way into a folder."""

    def __init__(self, base: Database, draft: Path, files: Files, options: ColumnOptions, tick: Tick) -> None:
        self.base, self.draft, self.weight, self.tick = base, draft, options.weight, tick
        self.source, self.query, self.kinds, _ = base.open(files, "edges", options)
        self.ends = find_ends(self.source, options.source, options.target)
        note_unused_columns(self.source, self.ends, options.weight)

    def write(self, nodes: int, whole: bool) -> tuple[int, EdgeCounts]:
        """Write crow, column and weight; return how many entries there are, and what was odd."""
        self._check_header()
        weight = "" if self.weight is None else f", {self._weight(self.weight)} AS w"
        first, second = (as_id(end, self.kinds[end], whole) for end in self.ends[:2])
        self.tick("edges", 0.0)
        # One join at a time: each builds one table of the names, which may spill.
        self.base.run("SET preserve_insertion_order=false")
        self.base.run(
            f"CREATE TABLE half AS SELECT n.number AS s, e.t{', e.w' if weight else ''} "
            f"FROM (SELECT {first} AS s, {second} AS t{weight} FROM {self.query}) e "
            "LEFT JOIN names n ON e.s = n.name"
        )
        ((listed, lost),) = self.base.run("SELECT count(*), count(*) FILTER (s IS NULL) FROM half")
        if lost:
            self._reject_end(self.ends.source, first, lost)
        self.tick("edges", 0.3)
        joined = (
            f"SELECT h.s, n.number AS t{', h.w' if weight else ''} FROM half h JOIN names n ON h.t = n.name"
        )
        most = max(FEWEST_PER_RANGE, min(ENTRIES_PER_RANGE, self.base.memory // 2 // BYTES_PER_SORTED_ENTRY))
        rows = -(-nodes // max(1, -(-2 * listed // most)))
        with Ranges(self.draft / WORK, rows, nodes, bool(weight)) as ranges:
            edges, loops = self._deal_out(joined, listed, ranges)
        if lost := listed - edges - loops:
            self._reject_end(self.ends.target, second, lost)
        self.base.run("DROP TABLE half")
        return self._sort(ranges, edges, loops)

    def _weight(self, name: str) -> str:
        return as_number(name) if self.kinds[name] == "VARCHAR" else f"{sql_name(name)}::DOUBLE"

    def _check_header(self) -> None:
        """Read the first line as an edge where it names two nodes."""
        names = f"SELECT count(*) FROM names WHERE name::VARCHAR IN {sql_row(self.ends[:2])}"
        may_be_edge = self.source.text is not None and self.source.has_header
        if may_be_edge and self.base.run(names) == [(2,)] and header_is_edge(self.source, self.ends):
            self.source = without_header(self.source, "an edge", self.source.columns)
            self.query = self.query.replace("header=true", "header=false", 1)

    def _reject_end(self, column: str, end: str, lost: int) -> None:
        ((value,),) = self.base.run(
            f"SELECT {sql_name(column)} FROM {self.query} "
            f"WHERE {end} IS NULL OR {end} NOT IN (SELECT name FROM names) LIMIT 1"
        )
        code = "empty-cell" if value is None or not str(value).strip() else "unknown-node"
        problem = (
            f"{quoted(value)} in column {quoted(column)} is not the id of a node ({lost:,} cells are not)"
        )
        hint = "Add the node, drop the edge, or name another column as an end of edges."
        self.source.reject(None, problem, code, value=value, hint=hint)

    def _deal_out(self, query: str, listed: int, ranges: Ranges) -> tuple[int, int]:
        """Write both directions of all edges to files by range of rows; return edges and self-loops."""
        edges = loops = 0
        for s, t, *value in self.base.batches(query, EDGES_PER_BATCH):
            between = s != t
            weights = value[0].astype(np.float32)[between] if value else None
            if value and not ((value[0] > 0) & (value[0] <= np.finfo(np.float32).max)).all():
                problem, expected = (
                    f"a weight in column {quoted(self.weight)} is not one",
                    "a positive number",
                )
                raise PairNormError(problem, code="bad-weight", value=self.weight, expected=expected)
            loops += int(np.count_nonzero(~between))
            s, t = s[between].astype(np.int64), t[between].astype(np.int64)
            edges += len(s)
            ranges.add(s, t, 0, weights)
            ranges.add(t, s, 1, weights)
            self.tick("edges", 0.3 + 0.7 * (edges + loops) / listed)
        return edges, loops

    def _sort(self, ranges: Ranges, edges: int, loops: int) -> tuple[int, EdgeCounts]:
        entries = directed = isolated = 0
        with ExitStack() as stack:
            names = ("crow", "column", *(["weight"] if ranges.weighted else []))
            crow, column, *weight = (stack.enter_context(open(self.draft / name, "wb")) for name in names)
            np.zeros(1, "<i8").tofile(crow)
            for number, (degrees, columns, weights, ways) in enumerate(ranges.sorted()):
                (entries + np.cumsum(degrees)).astype("<i8").tofile(crow)
                columns.astype("<i4").tofile(column)
                if weight:
                    weights.astype("<f4").tofile(weight[0])
                entries += len(columns)
                directed += ways
                isolated += int(np.count_nonzero(degrees == 0))
                self.tick("sorting", (number + 1) / len(ranges.paths))
        # Every directed edge was counted at both of its ends.
        return entries, EdgeCounts(loops, edges - directed // 2, entries - directed // 2, isolated)


class Ranges:
    """Sort the entries of a matrix larger than memory: write them to files by range of rows, sort each file.

    An entry is the key 2 (row · n + column) + the direction in which the edge was listed.
    """

    def __init__(self, folder: Path, rows: int, nodes: int, weighted: bool) -> None:
        self.rows, self.nodes, self.weighted = rows, nodes, weighted
        self.paths = [folder / f"range-{number:05d}" for number in range(-(-nodes // rows))]
        self.kind = np.dtype([("key", "<i8"), ("weight", "<f4")] if weighted else [("key", "<i8")])

    def __enter__(self) -> Ranges:
        self.files = [open(path, "wb") for path in self.paths]  # noqa: SIM115
        return self

    def __exit__(self, *_: object) -> None:
        for file in self.files:
            file.close()

    def add(
        self, row: NDArray[np.int64], column: NDArray[np.int64], way: int, weights: NDArray[Any] | None
    ) -> None:
        """Append entries to the files they belong to."""
        entries = np.empty(len(row), self.kind)
        entries["key"] = (row * self.nodes + column) * 2 + way
        if weights is not None:
            entries["weight"] = weights
        number = (row // self.rows).astype(np.int32)
        order = np.argsort(number, kind="stable")
        bounds = np.searchsorted(number[order], np.arange(len(self.files) + 1))
        entries = entries[order]
        for place, file in enumerate(self.files):
            entries[bounds[place] : bounds[place + 1]].tofile(file)

    def sorted(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[Any], int]]:
        """Yield degrees, columns and weights of every range, each entry once; and how many directions."""
        for number, path in enumerate(self.paths):
            entries = np.fromfile(path, self.kind)
            path.unlink()
            if self.weighted:
                order = np.argsort(entries["key"], kind="stable")
                keys, weights = entries["key"][order], entries["weight"][order]
                del order
            else:
                keys, weights = entries["key"], np.empty(0, np.float32)
                keys.sort()
            del entries
            keys, totals = merge_weights(keys, weights)
            weights = weights if totals is None else totals
            ways = len(keys)
            keys >>= 1
            first = first_of_run(keys)
            if len(weights):
                weights = np.maximum.reduceat(weights, np.flatnonzero(first))
            keys = keys[first]
            row, low = keys // self.nodes, number * self.rows
            degrees = np.bincount(row - low, minlength=min(self.rows, self.nodes - low))
            yield degrees, keys - row * self.nodes, weights, ways
