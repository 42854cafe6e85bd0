"""Packing: tables of any size become a folder of arrays, within a stated memory.

DuckDB reads the tables and finds the nodes of the edges by their names, one join at a time, spilling to disk
where it must. The entries are then dealt out by range of rows and sorted, one range after the other.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from numpy.typing import NDArray

from pairnorm.base.errors import PairNormError, one_of, quoted, whole_number
from pairnorm.base.files import atomic_folder
from pairnorm.base.memory import parse_memory, size
from pairnorm.data.adjacency import EdgeCounts, ExternalSort
from pairnorm.data.encoder import Column, ColumnOptions
from pairnorm.data.files import check_utf8_name
from pairnorm.data.labels import PARTS, bin_codes, check_training
from pairnorm.data.pack_nodes import NodeTable, Tick
from pairnorm.data.packed import DTYPES, ROWS_PER_BATCH, Facts, PackedGraph
from pairnorm.data.profile import EMPTY_NOTE
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
# Blocks of features that are written at once, a file each.
BLOCKS_AT_ONCE = 256


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


class NodePacker(NodeTable):
    """Writes tables of nodes to a folder."""

    def write(self, dtype: str, block: int) -> dict[str, Any]:
        """Write labels, split, features and missing mask; return the fields of ``Facts`` about features."""
        self._write_labels()
        used = [column for column in self.encoder.columns if column.width]
        width = sum(column.width for column in used)
        self._check_disk(used, width * self.nodes * np.dtype(dtype).itemsize)
        moments = _Moments(width)
        gaps = np.memmap(self.base.folder / "gaps", np.int32, "w+", shape=self.nodes)
        for features in self._passes(used, block):
            self._write_features(used, features, dtype, block, moments, gaps)
            self.tick("features", features.stop / width)
        missing = np.zeros(3, np.int64)
        with open(self.draft / "missing", "wb") as file:
            for start in range(0, self.nodes, ROWS_PER_BATCH):
                absent = gaps[start : start + ROWS_PER_BATCH]
                kind = (absent > 0).astype("i1") + (absent == max(width, 1))
                kind.tofile(file)
                missing += np.bincount(kind, minlength=3)
        for column, count in zip(self.encoder.feature_names, moments.count, strict=True):
            if count == 0:
                self.source.add_column_note(EMPTY_NOTE, column)
        deviation = np.sqrt(moments.squares / np.maximum(moments.count, 1))
        return {
            "missing": (int(missing[2]), int(missing[1])),
            "known": tuple(moments.count.astype(int).tolist()),
            "mean": tuple(moments.mean.tolist()),
            "deviation": tuple(deviation.tolist()),
        }

    def _check_disk(self, columns: Sequence[Column], needed: int) -> None:
        """Raise an error if the ``needed`` bytes of the features do not fit on the disk."""
        free = shutil.disk_usage(self.draft).free
        if needed > free:
            widest = max(columns, key=lambda column: column.width)
            self.source.reject(
                None,
                f"the features of {self.nodes:,} nodes take {size(needed)}, but the disk has {size(free)} "
                f"left; column {quoted(widest.name)} alone makes {widest.width:,} features",
                code="disk-full",
                value=needed,
                hint="Leave it out, {ignore}, or give it fewer different texts.",
                ignore=[widest.name],
            )

    def _passes(self, columns: Sequence[Column], block: int) -> Iterator[slice]:
        """Yield ranges of features to read together: whole blocks, of few columns, that fit in memory."""
        ends = np.cumsum([column.width for column in columns])
        widest = min(BLOCKS_AT_ONCE * block, max(block, self.base.memory // 8 // 2**14))
        start, total = 0, int(ends[-1]) if len(ends) else 0
        while start < total:
            first = int(np.searchsorted(ends, start, side="right"))
            last = min(first + self.table.at_once, len(ends)) - 1
            stop = min(int(ends[last]), start + widest)
            if stop < total:
                stop = min(max(start + block, stop // block * block), total)
            yield slice(start, stop)
            start = stop

    def _read_batches(
        self, columns: Sequence[str], expressions: Sequence[str], width: int = 1
    ) -> Iterator[tuple[slice, list[NDArray[Any]]]]:
        """Yield slices of nodes and the values of SQL expressions there, in the order of the nodes."""
        digest = f"hash({self.cells[self.name].endpoint(self.whole)})"
        # With row_number DuckDB reads in the order of the rows; without, now and then it does not.
        listed = ["row_number() OVER ()", digest, *expressions]
        query = ", ".join(f"{expression} AS c{place}" for place, expression in enumerate(listed))
        hashes, start = np.memmap(self.base.folder / "hashes", np.uint64, "r"), 0
        at_once = max(1024, min(ROWS_PER_BATCH, self.base.memory // 8 // (16 * max(width, len(listed)))))
        tables = self.table.from_([self.name, *columns])
        for _, names, *values in self.base.batches(f"SELECT {query} FROM {tables}", at_once):
            rows = slice(start, start + len(names))
            if not np.array_equal(names, hashes[rows]):
                problem = "the nodes were not the same when they were read again"
                hint = "Leave the files alone meanwhile."
                raise PairNormError(problem, code="file-changed", hint=hint)
            yield rows, values
            start = rows.stop

    def _write_labels(self) -> None:
        training = np.zeros(len(self.classes), np.int64)
        label, split = self.options.label, self.options.split
        names = [name for name in (label, split) if name is not None]
        with open(self.draft / "labels", "wb") as labels, open(self.draft / "split", "wb") as splits:
            codes = [] if label is None else [self.label_number or self._lookup(label, self.class_numbers)]
            codes += [] if split is None else [self._lookup(split, PARTS, lower=True)]
            for rows, values in self._read_batches(names, codes):
                unknown = np.full(rows.stop - rows.start, -1)
                classes = unknown
                if label is not None:
                    number = values[0].astype(np.float32)
                    classes = bin_codes(number, self.bins) if self.bins else _codes(number)
                parts = _codes(values[-1]) if split else unknown
                if (blank := (parts >= 0) & (classes < 0)).any():
                    node = rows.start + int(blank.argmax()) + 1
                    problem = f"node {node:,} is in a part of the split but has no label"
                    hint = "Label it, or empty its cell in the column of the split."
                    raise PairNormError(problem, code="label-missing", hint=hint)
                training += np.bincount(classes[parts == 0], minlength=len(training))
                classes.astype("<i4").tofile(labels)
                parts.astype("i1").tofile(splits)
        if split is not None:
            check_training(self.source, split, training, self.classes)

    def _lookup(self, column: str, numbers: Mapping[str, int], lower: bool = False) -> str:
        """Return the SQL of the number of the text in a column, NULL where it has none."""

        def look_up(texts: NDArray[Any]) -> NDArray[Any]:
            cells = pandas.Series(texts, dtype=object)
            return (cells.str.lower() if lower else cells).map(numbers).to_numpy(np.float64)

        return f"{self.base.function(look_up)}({self.cells[column].text})"

    def _write_features(
        self,
        columns: Sequence[Column],
        features: slice,
        dtype: str,
        block: int,
        moments: _Moments,
        gaps: NDArray[np.int32],
    ) -> None:
        """Write columns in blocks, add to their moments, and count the missing features of every node."""
        ends = np.cumsum([column.width for column in columns])
        first, last = np.searchsorted(ends, [features.start, features.stop - 1], side="right")
        used = columns[first : last + 1]
        expressions = [self._expression(column) for column in used]
        width, starts = features.stop - features.start, range(features.start, features.stop, block)
        with ExitStack() as stack:
            paths = [self.draft / f"features-{start // block:04d}" for start in starts]
            files = [stack.enter_context(open(path, "wb")) for path in paths]
            names = [column.name for column in used]
            for rows, values in self._read_batches(names, expressions, width):
                filled = np.empty((rows.stop - rows.start, width), np.float32)
                offset = int(ends[first] - columns[first].width) - features.start
                with np.errstate(over="ignore"):
                    for column, value in zip(used, values, strict=True):
                        if column.kind == "category":
                            _write_one_hot(filled, _codes(value), offset, column.width)
                        else:
                            filled[:, offset] = value
                        offset += column.width
                self._check_finite(filled, features.start, dtype)
                moments.add(filled, features.start)
                gaps[rows] += np.isnan(filled).sum(1, dtype=np.int32)
                for file, start in zip(files, starts, strict=True):
                    low = start - features.start
                    np.ascontiguousarray(filled[:, low : low + block], dtype).tofile(file)

    def _check_finite(self, values: NDArray[np.float32], first: int, dtype: str) -> None:
        if (wrong := np.abs(values) > float(np.finfo(dtype).max)).any():
            row, place = (int(axis[0]) for axis in np.nonzero(wrong))
            name, value = self.encoder.feature_names[first + place], float(values[row, place])
            problem = f"{value:g} in column {quoted(name)} is not finite or beyond {dtype}"
            hint, more = "Correct it, or leave the cell empty.", {}
            if dtype != "float32":
                hint, more = "Correct it, leave the cell empty, or pass {dtype}.", {"dtype": "float32"}
            self.source.reject(None, problem, "not-finite", value=value, hint=hint, **more)

    def _expression(self, column: Column) -> str:
        """Return the SQL of a column, NULL where missing; of categories, their number."""
        if column.kind == "category":
            return self._lookup(column.name, {text: code for code, text in enumerate(column.categories)})
        return self.table.number(column.name, self.decisions[column.name])


def _codes(numbers: NDArray[Any]) -> NDArray[np.int64]:
    """Return numbers of classes or categories as integers, -1 for NaN."""
    codes: NDArray[np.int64] = np.nan_to_num(numbers, nan=-1).astype(np.int64)
    return codes


def _write_one_hot(filled: NDArray[np.float32], codes: NDArray[np.int64], offset: int, width: int) -> None:
    """Write the one-hot columns of categories that lie within a block, NaN where the category is unknown."""
    low, high = max(offset, 0), min(offset + width, filled.shape[1])
    filled[:, low:high] = np.where(codes < 0, np.nan, 0)[:, None]
    places = codes + offset
    rows = np.flatnonzero((codes >= 0) & (places >= low) & (places < high))
    filled[rows, places[rows]] = 1


class _Moments:
    """Count, mean and squares about it of every column, merged as Chan does; NaN takes no part."""

    def __init__(self, columns: int) -> None:
        self.count, self.mean, self.squares = np.zeros((3, columns))

    def add(self, values: NDArray[np.float32], first: int) -> None:
        known = ~np.isnan(values)
        count = known.sum(0)
        mean = np.where(known, values, 0).sum(0, dtype=np.float64) / np.maximum(count, 1)
        squares = np.square(np.where(known, values - mean, 0)).sum(0)
        place = slice(first, first + values.shape[1])
        apart, both = mean - self.mean[place], np.maximum(self.count[place] + count, 1)
        self.squares[place] += squares + apart**2 * self.count[place] * count / both
        self.mean[place] += apart * count / both
        self.count[place] += count


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
            np.zeros(1, "<i8").tofile(crow)
            for number, (matrix, listed) in enumerate(ranges.sorted()):
                (entries + matrix.indptr[1:].astype("<i8")).tofile(crow)
                matrix.indices.astype("<i4").tofile(column)
                if weight:
                    matrix.data.astype("<f4").tofile(weight[0])
                entries += matrix.nnz
                directed += listed
                isolated += int(np.count_nonzero(np.diff(matrix.indptr) == 0))
                self.tick("sorting", (number + 1) / len(ranges.paths))
        # Every directed edge was counted at both of its ends.
        return entries, EdgeCounts(loops, edges - directed // 2, entries - directed // 2, isolated)
