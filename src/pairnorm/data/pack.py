"""Packing: tables of any size become a folder of arrays, within a stated memory.

DuckDB reads the tables and finds the nodes of the edges by their names, one join at a time, spilling to disk
where it must. The entries are then dealt out by range of rows and sorted, one range after the other.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pairnorm.data.packed import ROWS_PER_BATCH, Column, Facts, PackedGraph
from pairnorm.errors import PairNormError, one_of, whole_number

# What counts as empty, as among the numbers of pairnorm.data.tables.
EMPTY = ("", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", "?")
NUMERIC = (
    "TINYINT",
    "SMALLINT",
    "INTEGER",
    "BIGINT",
    "HUGEINT",
    "U",
    "FLOAT",
    "DOUBLE",
    "DECIMAL",
    "BOOLEAN",
)
PARTS = {"train": 0, "validation": 1, "valid": 1, "val": 1, "test": 2}
MOST_NODES = 2**31 - 1
MOST_CATEGORIES = 256
ENTRIES_PER_RANGE = 2**25
LEAST_MEMORY = 256 * 2**20

File = str | PathLike[str]
Files = File | Sequence[File]
Tick = Callable[[str, float], None]


def pack(
    nodes: Files,
    edges: Files,
    out: File,
    *,
    id: str | None = None,
    label: str | None = None,
    split: str | None = None,
    source: str | None = None,
    target: str | None = None,
    weight: str | None = None,
    categorical: Sequence[str] = (),
    ignore: Sequence[str] = (),
    delimiter: str | None = None,
    memory: int = 4 * 2**30,
    dtype: str = "float32",
    block: int = 32,
    tick: Tick = lambda stage, share: None,
) -> PackedGraph:
    """Read tables of nodes and edges into a folder, within about ``memory`` bytes.

    What is read, and how, is as for ``Graph.from_files``: every column of the nodes that is not named below is a
    feature, numbers as they are, text one-hot (at most 256 categories a column); an empty cell is missing. Edges
    are made undirected, repeated ones merged (the largest weight stays), self-loops dropped. The folder appears
    when it is complete; what a killed call left behind is cleared by the next.

    Args:
        nodes: CSV, TSV or Parquet, one file or several with the same columns; ``*`` may stand in a name.
        edges: likewise.
        out: the folder to make.
        id: the column of nodes with their names. Default: the first.
        label: the column with their classes.
        split: the column that says train, validation or test.
        source: the column of edges with one end. Default: ``source``, else the first.
        target: the column with the other end. Default: ``target``, else the second.
        weight: the column with weights. Default: all weigh 1.
        categorical: columns of numbers that are categories.
        ignore: columns to leave out.
        delimiter: of text files, or ``"tab"``.
        memory: bytes; DuckDB gets half, sorting the other half.
        dtype: of the features on disk, ``"float32"`` or ``"float16"``.
        block: how many columns lie together.
        tick: is told the stage and what share of it is done.
    """
    one_of("dtype", dtype, ("float32", "float16"))
    whole_number("block", block, least=1)
    whole_number("memory", memory, least=LEAST_MEMORY)
    place = Path(out)
    if place.exists():
        raise PairNormError(
            f"{place}: there is something of that name",
            code="exists-already",
            value=str(place),
            remedy="Choose another folder, or remove it.",
        )
    draft = place.with_name(f".{place.name}.partial")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        packer = _Packer(draft, memory, delimiter, tick)
        columns = packer.pack_nodes(nodes, id, label, split, categorical, ignore, dtype, block)
        entries, notes = packer.pack_edges(edges, source, target, weight)
        packer.close()
        Facts(packer.nodes, entries, weight is not None, dtype, block, columns, packer.classes, notes).write(
            draft
        )
        draft.rename(place)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return PackedGraph.open(place)


class _Packer:
    """One packing: a draft folder, and in it a DuckDB database of the nodes' names."""

    def __init__(self, draft: Path, memory: int, delimiter: str | None, tick: Tick) -> None:
        import duckdb

        self.draft, self.memory, self.tick = draft, memory, tick
        self.delimiter = "\t" if delimiter in ("tab", "\\t") else delimiter
        self.work = draft / "work"
        self.work.mkdir()
        self.base = duckdb.connect(str(self.work / "names.duckdb"))
        self.base.execute(f"SET memory_limit='{memory // 2 // 2**20}MiB'")
        self.base.execute("SET temp_directory=?", [str(self.work / "spill")])
        self.nodes, self.classes = 0, ()

    nodes: int
    classes: tuple[str, ...]

    def close(self) -> None:
        """Forget the database."""
        self.base.close()
        shutil.rmtree(self.work)

    def _open(self, files: Files, **wanted: Sequence[str | None]) -> tuple[str, dict[str, str]]:
        """Return what DuckDB reads files by and the type of each column; the wanted columns must be there."""
        import duckdb

        names = [str(file) for file in ([files] if isinstance(files, str | PathLike) else files)]
        endings = {Path(name.removesuffix(".gz").removesuffix(".zst")).suffix.lower() for name in names}
        if endings == {".parquet"}:
            table = f"read_parquet({_list(names)})"
        else:
            delimiter = self.delimiter or ("\t" if endings <= {".tsv", ".tab"} else ",")
            table = (
                f"read_csv({_list(names)}, delim={_text(delimiter)}, header=true, sample_size=-1, "
                f"nullstr={_list(EMPTY)}, allow_quoted_nulls=false)"
            )
        try:
            kinds = {name: kind for name, kind, *_ in self._rows(f"DESCRIBE SELECT * FROM {table}")}
        except duckdb.Error as error:
            problem = " ".join(str(error).split())[:200]
            raise PairNormError(
                f"{', '.join(names[:3])}: {problem}", code="file-damaged", value=names
            ) from error
        for option, columns in wanted.items():
            for column in columns:
                if column is not None and column not in kinds:
                    raise PairNormError(
                        f"{names[0]}: there is no column {column!r} ({option})",
                        code="unknown-column",
                        value=column,
                        expected=f"one of {', '.join(map(repr, list(kinds)[:10]))}",
                    )
        return table, kinds

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self.base.execute(query).fetchall()
        return found

    def _batches(self, query: str, rows: int) -> Iterator[list[NDArray[Any]]]:
        """Yield the columns of a query's result, so many rows at a time."""
        for batch in self.base.sql(query).to_arrow_reader(rows):
            yield [column.to_numpy(zero_copy_only=False) for column in batch.columns]

    def pack_nodes(
        self, files: Files, id: str | None, label: str | None, split: str | None,
        categorical: Sequence[str], ignore: Sequence[str], dtype: str, block: int,
    ) -> tuple[Column, ...]:  # fmt: skip
        """Number the nodes in the order of their rows; write names, labels, split and features."""
        table, kinds = self._open(
            files, id=[id], label=[label], split=[split], categorical=categorical, ignore=ignore
        )
        name = next(iter(kinds)) if id is None else id
        self.tick("names", 0.0)
        self.base.execute(
            "CREATE TABLE names AS SELECT (row_number() OVER () - 1)::INTEGER AS number, name "
            f"FROM (SELECT {_quoted(name)}::VARCHAR AS name FROM {table})"
        )
        self._check_names()
        ids = _text(str(self.draft / "ids.parquet"))
        self.base.execute(f"COPY (SELECT name AS id FROM names ORDER BY number) TO {ids} (FORMAT parquet)")
        plan: list[tuple[str, str | None]] = []
        for column, kind in kinds.items():
            if column in {name, label, split, *ignore}:
                continue
            if kind.startswith(NUMERIC) and column not in categorical:
                plan.append((column, None))
            else:
                plan += [(column, category) for category in self._categories(table, column, MOST_CATEGORIES)]
        if label is not None:
            self.classes = tuple(self._categories(table, label, MOST_NODES))
        return self._write_columns(table, plan, label, split, dtype, block)

    def _check_names(self) -> None:
        ((self.nodes, empty),) = self._rows(
            "SELECT count(*), count(*) FILTER (name IS NULL OR name = '') FROM names"
        )
        whole_number("the number of nodes", self.nodes, least=1, most=MOST_NODES)
        if empty:
            raise PairNormError(
                f"{empty:,} nodes have no name", code="empty-id", value=empty, remedy="Give each its own."
            )
        for (name,) in self._rows("SELECT name FROM names GROUP BY name HAVING count(*) > 1 LIMIT 1"):
            raise PairNormError(
                f"two nodes are called {name!r}", code="duplicate-id", value=name, remedy="Rename one."
            )

    def _categories(self, table: str, column: str, most: int) -> list[str]:
        cell = f"trim({_quoted(column)}::VARCHAR)"
        found = self._rows(
            f"SELECT DISTINCT {cell} AS c FROM {table} WHERE {cell} <> '' ORDER BY c LIMIT {most + 1}"
        )
        if len(found) > most:
            raise PairNormError(
                f"column {column!r} has more than {most} different texts",
                code="too-many-categories",
                value=column,
                remedy="Leave it out with {ignore}.",
                ignore=[column],
            )
        return [category for (category,) in found]

    def _write_columns(
        self, table: str, plan: list[tuple[str, str | None]], label: str | None, split: str | None,
        dtype: str, block: int,
    ) -> tuple[Column, ...]:  # fmt: skip
        expressions = [
            _number_in(label, {name: number for number, name in enumerate(self.classes)}),
            _number_in(split, PARTS),
            *(_feature(column, category) for column, category in plan),
        ]
        query = ", ".join(f"{expression} AS c{place}" for place, expression in enumerate(expressions))
        starts, moments, done = range(0, len(plan), block), _Moments(len(plan)), 0
        with ExitStack() as stack:
            labels, splits, *blocks = (
                stack.enter_context(open(self.draft / name, "wb"))
                for name in ("labels", "split", *(f"features-{place:04d}" for place in range(len(starts))))
            )
            for classes, parts, *columns in self._batches(f"SELECT {query} FROM {table}", ROWS_PER_BATCH):
                classes.astype("<i4").tofile(labels)
                parts.astype("i1").tofile(splits)
                if columns:
                    values = np.stack([column.astype(np.float32) for column in columns], 1)
                    moments.add(values)
                    for file, start in zip(blocks, starts, strict=True):
                        np.ascontiguousarray(values[:, start : start + block], dtype).tofile(file)
                done += len(classes)
                self.tick("features", done / self.nodes)
        deviations = np.sqrt(moments.squares / np.maximum(moments.count, 1))
        facts = zip(plan, moments.count.tolist(), moments.mean.tolist(), deviations.tolist(), strict=True)
        return tuple(Column(*named, int(known), mean, deviation) for named, known, mean, deviation in facts)

    def pack_edges(
        self, files: Files, source: str | None, target: str | None, weight: str | None
    ) -> tuple[int, tuple[str, ...]]:
        """Write crow, column and weight; return how many entries there are, and what was odd."""
        table, kinds = self._open(files, source=[source], target=[target], weight=[weight])
        titled = {"source", "target"} <= kinds.keys()
        defaults = ("source", "target") if titled else (*kinds, *kinds)[:2]
        first, second = source or defaults[0], target or defaults[1]
        ((listed,),) = self._rows(f"SELECT count(*) FROM {table}")
        value = "" if weight is None else f", e.{_quoted(weight)}::FLOAT AS w"
        self.tick("edges", 0.0)
        # One join at a time: each builds one table of the names, which may spill.
        self.base.execute("SET preserve_insertion_order=false")
        self.base.execute(
            f"CREATE TABLE half AS SELECT n.number AS s, e.{_quoted(second)}::VARCHAR AS t{value} "
            f"FROM {table} e JOIN names n ON e.{_quoted(first)}::VARCHAR = n.name"
        )
        self.tick("edges", 0.5)
        value = "" if weight is None else ", h.w"
        joined = f"SELECT h.s, n.number AS t{value} FROM half h JOIN names n ON h.t = n.name"
        ranges, kept, loops = self._deal_out(joined, listed, weight is not None)
        self.base.execute("DROP TABLE half")
        if lost := listed - kept - loops:
            raise PairNormError(
                f"{lost:,} of {listed:,} edges name a node that is not there",
                code="unknown-node",
                value=lost,
                remedy="Add the nodes, or correct the edges.",
            )
        entries = self._sort(ranges)
        odd = {
            "self-loops were dropped": loops,
            "repeated directions of edges were merged": 2 * kept - entries,
        }
        return entries, tuple(f"{count:,} {what}" for what, count in odd.items() if count)

    def _deal_out(self, query: str, listed: int, weighted: bool) -> tuple[_Ranges, int, int]:
        """Write both directions of all edges to files by range of rows, each small enough to be sorted."""
        size = max(2**20, min(ENTRIES_PER_RANGE, self.memory // 2 // 48))
        rows = -(-self.nodes // max(1, -(-2 * listed // size)))
        ranges = _Ranges(self.work, rows, self.nodes, weighted)
        kept = loops = 0
        with ranges:
            for s, t, *value in self._batches(query, 2**20):
                between = s != t
                loops += int(np.count_nonzero(~between))
                s, t = s[between].astype(np.int64), t[between].astype(np.int64)
                kept += len(s)
                weights = value[0][between] if value else None
                if weights is not None and not ((weights > 0) & np.isfinite(weights)).all():
                    raise PairNormError(
                        "an edge has a weight that is not positive", code="bad-weight", expected="above 0"
                    )
                ranges.add(s, t, weights)
                ranges.add(t, s, weights)
                self.tick("edges", 0.5 + (kept + loops) / (2 * listed))
        return ranges, kept, loops

    def _sort(self, ranges: _Ranges) -> int:
        total = 0
        with ExitStack() as stack:
            names = ("crow", "column", *(["weight"] if ranges.weighted else []))
            crow, column, *weight = (stack.enter_context(open(self.draft / name, "wb")) for name in names)
            np.zeros(1, "<i8").tofile(crow)
            for number, (degrees, columns, weights) in enumerate(ranges.sorted()):
                (total + np.cumsum(degrees)).astype("<i8").tofile(crow)
                columns.astype("<i4").tofile(column)
                if weight:
                    weights.astype("<f4").tofile(weight[0])
                total += len(columns)
                self.tick("sorting", (number + 1) / len(ranges.paths))
        return total


class _Ranges:
    """Entries of a matrix in files by range of rows, as keys row · n + column."""

    def __init__(self, folder: Path, rows: int, nodes: int, weighted: bool) -> None:
        self.rows, self.nodes, self.weighted = rows, nodes, weighted
        self.paths = [folder / f"range-{number:05d}" for number in range(-(-nodes // rows))]
        self.kind = np.dtype([("key", "<i8"), ("weight", "<f4")] if weighted else "<i8")

    def __enter__(self) -> None:
        self.files = [open(path, "wb") for path in self.paths]  # noqa: SIM115

    def __exit__(self, *_: object) -> None:
        for file in self.files:
            file.close()

    def add(self, row: NDArray[np.int64], column: NDArray[np.int64], weights: NDArray[Any] | None) -> None:
        """Append entries to the files they belong to."""
        entries = np.empty(len(row), self.kind)
        (entries["key"] if self.weighted else entries)[:] = row * self.nodes + column
        if self.weighted:
            entries["weight"] = weights
        number = (row // self.rows).astype(np.int32)
        order = np.argsort(number, kind="stable")
        bounds = np.searchsorted(number[order], np.arange(len(self.files) + 1))
        entries = entries[order]
        for place, file in enumerate(self.files):
            entries[bounds[place] : bounds[place + 1]].tofile(file)

    def sorted(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[Any]]]:
        """Yield the degrees, columns and weights of every range of rows, each entry once."""
        for number, path in enumerate(self.paths):
            entries = np.fromfile(path, self.kind)
            path.unlink()
            keys, weights = (entries["key"], entries["weight"]) if self.weighted else (entries, entries[:0])
            if self.weighted:
                order = np.argsort(keys, kind="stable")
                keys, weights = keys[order], weights[order]
            else:
                keys.sort()
            new = np.ones(len(keys), dtype=bool)
            np.not_equal(keys[1:], keys[:-1], out=new[1:])
            if len(weights):
                weights = np.maximum.reduceat(weights, np.flatnonzero(new))
            keys = keys[new]
            row = keys // self.nodes
            low = number * self.rows
            degrees = np.bincount(row - low, minlength=min(self.rows, self.nodes - low))
            yield degrees, keys - row * self.nodes, weights


class _Moments:
    """Count, mean and squares about it of every column, batch by batch merged as Chan does; NaN takes no part."""

    def __init__(self, columns: int) -> None:
        self.count, self.mean, self.squares = np.zeros((3, columns))

    def add(self, values: NDArray[np.float32]) -> None:
        """Take in more rows."""
        known = ~np.isnan(values)
        count = known.sum(0)
        wide = np.where(known, values, 0).astype(np.float64)
        mean = wide.sum(0) / np.maximum(count, 1)
        squares = np.square(wide - mean, where=known, out=np.zeros_like(wide)).sum(0)
        apart, both = mean - self.mean, np.maximum(self.count + count, 1)
        self.squares += squares + apart**2 * self.count * count / both
        self.mean += apart * count / both
        self.count += count


def _feature(column: str, category: str | None) -> str:
    """Return the SQL of a number, or of whether a text is a category; NULL where the cell is empty."""
    cell = _quoted(column)
    if category is None:
        return f"{cell}::FLOAT"
    return f"(nullif(trim({cell}::VARCHAR), '') = {_text(category)})::FLOAT"


def _number_in(column: str | None, numbers: dict[str, int]) -> str:
    """Return the SQL of the number of a text; -1 where it has none."""
    if column is None or not numbers:
        return "-1"
    texts, values = _list(list(numbers)), list(numbers.values())
    return f"coalesce({values}[list_position({texts}, trim({_quoted(column)}::VARCHAR))], -1)"


def _text(value: str) -> str:
    """Return a text as SQL writes it."""
    return "'" + value.replace("'", "''") + "'"


def _list(values: Sequence[str]) -> str:
    return "[" + ", ".join(map(_text, values)) + "]"


def _quoted(name: str) -> str:
    """Return the name of a column as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'
