"""Packing: tables of any size become a folder of arrays, within a stated memory.

DuckDB reads the tables and finds the nodes of the edges by their names, one join at a time, spilling to disk
where it must. The entries are then dealt out by range of rows and sorted, one range after the other.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from glob import glob
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pairnorm.data.adjacency import EdgeCounts, first_of_run
from pairnorm.data.encoder import AGAIN, Column, Encoder, Options
from pairnorm.data.labels import PARTS, numbers_first
from pairnorm.data.names import Ends, find_ends
from pairnorm.data.nodes import CALLED_ID, FEWEST_NAMES, LEFT_OUT, MOST_CATEGORIES, are_names
from pairnorm.data.packed import DTYPES, MOST_NODES, ROWS_PER_BATCH, Facts, PackedGraph
from pairnorm.data.readers import open_table
from pairnorm.data.tables import DATES, DAY_FIRST, EMPTY, MOSTLY, NO_MONTH, TRUTH, Source
from pairnorm.errors import PairNormError, one_of, quoted, whole_number
from pairnorm.memory import parse_memory, size
from pairnorm.writing import change_folder

WHOLE = (
    "TINYINT",
    "SMALLINT",
    "INTEGER",
    "BIGINT",
    "UTINYINT",
    "USMALLINT",
    "UINTEGER",
    "UBIGINT",
    "HUGEINT",
)
NUMERIC = (*WHOLE, "FLOAT", "DOUBLE", "DECIMAL", "BOOLEAN")
MOST_CLASSES = 10_000
EDGES_PER_BATCH, FEWEST_PER_RANGE, ENTRIES_PER_RANGE = 2**19, 2**18, 2**25
BYTES_PER_SORTED_ENTRY = 48
LEAST_MEMORY = 256 * 10**6

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
    keep: Sequence[str] = (),
    delimiter: str | None = None,
    memory: int | str = "4GB",
    dtype: str = "float32",
    block: int = 32,
    tick: Tick = lambda stage, share: None,
) -> PackedGraph:
    """Read tables of nodes and edges into a folder, within about ``memory``, however large they are.

    What is read, and how, is as for ``Graph.from_files``. The folder appears when it is complete; what a
    killed call left behind is cleared by the next one.

    Args:
        nodes: CSV, TSV or Parquet, one file or several with the same columns; ``*`` may stand in a name.
        edges: likewise.
        out: the folder to make; absent or empty.
        id: the column of nodes with their names. Default: the first.
        label: the column with their classes.
        split: the column that says train, validation or test.
        source: the column of edges with one end. Default: ``'source'``, else the first.
        target: the column with the other end. Default: ``'target'``, else the second.
        weight: the column with weights. Default: all weigh 1.
        categorical: columns of numbers that are categories.
        ignore: columns to leave out.
        keep: columns of names, or of very many texts, to take as categories.
        delimiter: of text files, or ``'tab'``.
        memory: bytes, or a text such as ``'4GB'``; DuckDB gets half, sorting the other half.
        dtype: of the features on disk, ``'float32'`` or ``'float16'``.
        block: how many columns lie together.
        tick: is told the stage and what share of it is done.
    """
    one_of("dtype", dtype, DTYPES)
    whole_number("block", block, least=1)
    limit = whole_number("memory", parse_memory(memory), least=LEAST_MEMORY)
    place = Path(out)
    if place.exists() and not (place.is_dir() and not any(place.iterdir())):
        problem = f"{place}: there is something of that name"
        remedy = "Choose another folder, or remove it."
        raise PairNormError(problem, code="exists-already", value=str(place), remedy=remedy)
    told = Options(id, label, split, source, target, weight, delimiter, categorical, ignore, keep)
    with change_folder(place, ()) as draft, _Packer(draft, limit, told, tick) as packer:
        columns = packer.name_nodes(nodes)
        features = packer.write_nodes(columns, dtype, block)
        entries, counts = packer.write_edges(edges)
        packer.close()
        Facts(
            nodes=packer.nodes, entries=entries, weighted=weight is not None, dtype=dtype, block=block,
            encoder=Encoder(tuple(columns), **{name: getattr(told, name) for name in AGAIN}),
            classes=packer.classes,
            notes=(*packer.source.remarks(), *counts.notes()), **features,
        ).write(draft)  # fmt: skip
    return PackedGraph.open(place)


class _Packer:
    """One packing: a draft folder, and in it a DuckDB database of the nodes' names."""

    nodes = 0
    classes: tuple[str, ...] = ()

    def __init__(self, draft: Path, memory: int, told: Options, tick: Tick) -> None:
        import duckdb

        self.draft, self.memory, self.told, self.tick = draft, memory, told, tick
        self.work = draft / "work"
        self.work.mkdir()
        with _explained(memory):
            self.base = duckdb.connect(str(self.work / "names.duckdb"))
        self._run(f"SET memory_limit='{memory // 2}B'")
        self._run("SET temp_directory=?", [str(self.work / "spill")])
        self._run("SET enable_progress_bar=false")
        self._run("SET TimeZone='UTC'")

    def __enter__(self) -> _Packer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Forget the database."""
        with _explained(self.memory):  # what it still had to write
            self.base.close()
        shutil.rmtree(self.work, ignore_errors=True)

    def _run(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with _explained(self.memory):
            found: list[tuple[Any, ...]] = self.base.execute(query, list(values)).fetchall()
        return found

    def _batches(self, query: str, rows: int) -> Iterator[list[NDArray[Any]]]:
        """Yield the columns of a query's result, so many rows at a time."""
        with _explained(self.memory):
            for batch in self.base.sql(query).to_arrow_reader(rows):
                yield [column.to_numpy(zero_copy_only=False) for column in batch.columns]

    def _open(self, files: Files) -> tuple[Source, str, dict[str, str]]:
        """Return the first of some files, what DuckDB reads them all by, and the type of each column."""
        names = [str(file) for file in ([files] if isinstance(files, str | PathLike) else files)]
        paths = [Path(path) for name in names for path in (sorted(glob(name)) or [name])]
        source, *others = (open_table(path, self.told.delimiter) for path in paths)
        for other in others:
            if (other.columns, other.delimiter) != (source.columns, source.delimiter):
                problem = f"{other.name}: its columns are not those of {source.name}"
                raise PairNormError(problem, code="unlike-columns", value=other.name)
        listed = _list([str(path) for path in paths])
        if source.delimiter is None:
            table = f"read_parquet({listed})"
        else:
            columns = ", ".join(f"{_text(name)}: 'VARCHAR'" for name in source.columns)
            table = (
                f"read_csv({listed}, delim={_text(source.delimiter)}, header=true, quote='\"', escape='\"', "
                f"auto_detect=false, columns={{{columns}}}, max_line_size=16777216)"
            )
        kinds = {name: kind for name, kind, *_ in self._run(f"DESCRIBE SELECT * FROM {table}")}
        for name in source.columns:
            if name not in kinds:
                raise PairNormError(
                    f"{source.name}: column {quoted(name)} has no name, or another's but for its case",
                    code="duplicate-column",
                    value=name,
                    remedy="Give each column its own name.",
                )
        return source, table, kinds

    def name_nodes(self, files: Files) -> list[Column]:
        """Number the nodes in the order of their rows, and find out what every column is."""
        self.source, self.table, self.kinds = self._open(files)
        source, told, self.dates = self.source, self.told, dict[str, str]()
        told.check(source)
        self.name = name = source.columns[0] if told.id is None else source.column("id", told.id)
        self.tick("names", 0.0)
        cell = _as_text(name, self.kinds[name])
        self._run(
            "CREATE TABLE names AS SELECT (row_number() OVER () - 1)::INTEGER AS number, name "
            f"FROM (SELECT {cell} AS name FROM {self.table})"
        )
        self._check_names(source)
        named = (("label", told.label), ("split", told.split))
        roles = dict.fromkeys(told.ignore, "ignored") | {name: "id"}
        roles |= {column: role for role, column in named if column is not None}
        columns = [
            Column(column, roles[column], self._classes(source, column) if roles[column] == "label" else ())  # type: ignore[arg-type]
            for column in source.columns
            if column in roles
        ]
        if told.split is not None:
            self._check_split(source, told.split)
        chosen = [column for column in source.columns if column not in roles]
        return columns + list(self._features(source, chosen))

    def _check_names(self, source: Source) -> None:
        ((self.nodes, empty, plain),) = self._run(
            "SELECT count(*), count(*) FILTER (name IS NULL), "
            "count(*) FILTER (try_cast(name AS BIGINT)::VARCHAR = name) FROM names"
        )
        if self.nodes == 0:
            problem = f"{source.name}: there are no rows under the header"
            raise PairNormError(problem, code="no-rows", expected="a row per node")
        whole_number("the number of nodes", self.nodes, most=MOST_NODES)
        if empty:
            problem = f"{source.name}: {empty:,} nodes have no id"
            remedy = "Give every node a name of its own."
            raise PairNormError(problem, code="empty-cell", value=empty, remedy=remedy)
        self.whole = plain == self.nodes  # '007' and '7' may be two customers
        if self.whole:
            self._run("ALTER TABLE names ALTER name TYPE BIGINT")
        for (name,) in self._run("SELECT name FROM names GROUP BY name HAVING count(*) > 1 LIMIT 1"):
            problem = f"{source.name}: two nodes have the id {quoted(name)}"
            remedy = "Give every node an id of its own."
            raise PairNormError(problem, code="duplicate-id", value=name, remedy=remedy)
        path = _text(str(self.draft / "ids.parquet"))
        self._run(f"COPY (SELECT name AS id FROM names ORDER BY number) TO {path} (FORMAT parquet)")
        with open(self.work / "hashes", "wb") as file:
            for (hashes,) in self._batches("SELECT hash(name) FROM names ORDER BY number", ROWS_PER_BATCH):
                hashes.tofile(file)

    def _texts(self, column: str, most: int) -> list[str]:
        """Return the different texts of a column, in order; one more than ``most`` at most."""
        cell = _as_text(column, self.kinds[column])
        found = self._run(
            f"SELECT DISTINCT {cell} AS c FROM {self.table} WHERE {cell} IS NOT NULL LIMIT {most + 1}"
        )
        return sorted(text for (text,) in found)

    def _classes(self, source: Source, column: str) -> tuple[str, ...]:
        found = self._texts(column, MOST_CLASSES)
        if not 2 <= len(found) <= MOST_CLASSES:
            raise PairNormError(
                f"{source.name}: column {quoted(column)} holds "
                f"{'more than ' if len(found) > 1 else ''}{min(len(found), MOST_CLASSES):,} classes",
                code="too-few-classes" if len(found) < 2 else "too-many-classes",
                value=column,
                expected=f"from 2 to {MOST_CLASSES:,}",
            )
        self.classes = tuple(sorted(found, key=numbers_first))
        return self.classes

    def _check_split(self, source: Source, column: str) -> None:
        for text in self._texts(column, MOST_CLASSES):
            if text.lower() not in PARTS:
                problem = f"{source.name}: {quoted(text)} in column {quoted(column)}"
                expected = "'train', 'validation', 'test' or an empty cell"
                raise PairNormError(problem, code="unknown-part", value=text, expected=expected)

    def _features(self, source: Source, names: Sequence[str]) -> Iterator[Column]:
        """Tell numbers, dates, categories and names apart, by the rule of ``pairnorm.data.nodes``."""
        counts = self._count_kinds([name for name in names if self.kinds[name] == "VARCHAR"])
        for name in names:
            kind, free = self.kinds[name], name not in (*self.told.categorical, *self.told.keep)
            filled, numbers, truths, lettered = counts.get(name, (0, 0, 0, 0))
            if free and self._are_names(name, filled, lettered, numbers):
                source.tell(LEFT_OUT, name)
                yield Column(name, "ignored")
            elif name in self.told.categorical:
                yield self._category(source, name, free)
            elif kind.startswith(NUMERIC) or (kind == "VARCHAR" and filled in (numbers, truths)):
                yield Column(name, "number")
            elif kind == "VARCHAR" and filled - numbers <= MOSTLY * filled:
                raise PairNormError(
                    f"{source.name}: column {quoted(name)} holds {numbers:,} numbers and "
                    f"{filled - numbers:,} texts",
                    code="not-a-number",
                    value=name,
                    remedy="Correct or empty the cells, or pass {categorical}.",
                    categorical=[name],
                )
            elif days := self._days(source, name):
                self.dates[name] = days
                yield Column(name, "date")
            elif kind == "VARCHAR":
                yield self._category(source, name, free)
            else:
                problem = f"{source.name}: column {quoted(name)} holds {kind.lower()}s"
                remedy = "Turn them into numbers, or pass {ignore}."
                raise PairNormError(problem, code="not-a-cell", value=name, remedy=remedy, ignore=[name])

    def _are_names(self, name: str, filled: int, lettered: int, numbers: int) -> bool:
        kind, text = self.kinds[name], self.kinds[name] == "VARCHAR"
        if text and are_names(filled, filled, lettered, numbers):  # unless too few of them differ
            cell = _filled(name)
            query = f"SELECT DISTINCT {cell} FROM {self.table} WHERE {cell} IS NOT NULL"
            ((different,),) = self._run(f"SELECT count(*) FROM ({query})")
            return are_names(filled, different, lettered, numbers)
        if not CALLED_ID.search(name) or not (kind.startswith(NUMERIC) or (text and filled == numbers)):
            return False
        cell = _number(name) if text else f"{_quoted(name)}::DOUBLE"
        ((filled, different, fractions),) = self._run(
            "SELECT count(c), count(DISTINCT c), count(*) FILTER (c % 1 <> 0) "
            f"FROM (SELECT {cell} AS c FROM {self.table})"
        )
        return bool(filled == different and not fractions and filled >= FEWEST_NAMES)

    def _category(self, source: Source, name: str, free: bool) -> Column:
        found = self._texts(name, MOST_CATEGORIES if free else MOST_NODES)
        if free and len(found) > MOST_CATEGORIES:
            problem = f"{source.name}: column {quoted(name)} holds more than {MOST_CATEGORIES:,} texts"
            remedy = "Pass {ignore}, or {keep} to have them all."
            raise PairNormError(
                problem, code="too-many-categories", value=name, remedy=remedy, ignore=[name], keep=[name]
            )
        return Column(name, "category", tuple(found))

    def _days(self, source: Source, name: str) -> str | None:
        """Return the SQL of a column of dates as days since 1970-01-01; None if it holds others."""
        if self.kinds[name].startswith(("DATE", "TIMESTAMP")):
            source.tell_dates(name, "")
            return f"epoch({_quoted(name)}) / 86400"
        if self.kinds[name] != "VARCHAR":
            return None
        cell = _filled(name)
        for pattern, form in DATES:
            moment = f"try_strptime({cell}, {_text(form)})"
            if form == "ISO8601":
                moment = (
                    f"try_cast(regexp_replace(replace({cell}, ',', '.'), ' ([+-])', '\\1') AS TIMESTAMPTZ)"
                )
            ((others, swapped),) = self._run(
                f"SELECT count(*) FILTER (NOT regexp_full_match({cell}, {_text(pattern)})), "
                f"count(*) FILTER (regexp_matches({cell}, {_text('^' + NO_MONTH)})) FROM {self.table}"
            )
            if others:
                continue
            if swapped:
                form, moment = DAY_FIRST, moment.replace(form, DAY_FIRST)
            ((wrong,),) = self._run(f"SELECT count({cell}) - count({moment}) FROM {self.table}")
            if wrong:
                return None
            source.tell_dates(name, form)
            return f"epoch({moment}) / 86400"
        return None

    def _count_kinds(self, names: Sequence[str]) -> dict[str, tuple[int, int, int, int]]:
        """Return how many cells of each column are filled, numbers, truths, and have a letter."""
        if not names:
            return {}
        counts = ", ".join(
            f"count({_filled(name)}), count({_number(name)}), "
            f"count(*) FILTER ({_filled(name)} IN {_row(TRUTH)}), "
            f"count(*) FILTER (regexp_matches({_filled(name)}, '\\p{{L}}'))"
            for name in names
        )
        (found,) = self._run(f"SELECT {counts} FROM {self.table}")
        return {name: found[4 * place : 4 * place + 4] for place, name in enumerate(names)}

    def write_nodes(self, columns: Sequence[Column], dtype: str, block: int) -> dict[str, Any]:
        """Write labels, split, features and which are missing; return what ``Facts`` says of the features."""
        features = [
            expression for column in columns if column.width for expression in self._expressions(column)
        ]
        expressions = [
            # With row_number DuckDB reads in the order of the rows; without, now and then it does not.
            "row_number() OVER ()",
            f"hash({_as_id(self.name, self.kinds[self.name], self.whole)})",
            self._place(self.told.label, {name: number for number, name in enumerate(self.classes)}),
            self._place(self.told.split, PARTS, lower=True),
            *features,
        ]
        query = ", ".join(f"{expression} AS c{place}" for place, expression in enumerate(expressions))
        starts, moments = range(0, len(features), block), _Moments(len(features))
        done, missing, taught = 0, np.zeros(3, np.int64), np.zeros(len(self.classes), np.int64)
        with ExitStack() as stack:
            labels, splits, gaps, *files = (
                stack.enter_context(open(self.draft / name, "wb"))
                for name in ("labels", "split", "missing", *(f"features-{n:04d}" for n in range(len(starts))))
            )
            hashes = np.memmap(self.work / "hashes", np.uint64, "r")
            for _, names, classes, parts, *values in self._batches(
                f"SELECT {query} FROM {self.table}", _rows_within(self.memory // 8, len(expressions))
            ):
                if not np.array_equal(names, hashes[done : done + len(names)]):
                    problem = "the nodes were not the same when they were read again"
                    remedy = "Leave the files alone meanwhile."
                    raise PairNormError(problem, code="file-changed", remedy=remedy)
                _check_labelled(classes, parts, done)
                taught += np.bincount(classes[parts == 0], minlength=len(taught))
                classes.astype("<i4").tofile(labels)
                parts.astype("i1").tofile(splits)
                found = np.empty((len(classes), len(values)), np.float32)
                with np.errstate(over="ignore"):
                    for place, value in enumerate(values):
                        found[:, place] = value
                self._check_finite(found, dtype, columns)
                moments.add(found)
                gone = np.isnan(found).sum(1)
                kind = (gone > 0).astype("i1") + (gone == max(len(values), 1))
                kind.tofile(gaps)
                missing += np.bincount(kind, minlength=3)
                for file, start in zip(files, starts, strict=True):
                    np.ascontiguousarray(found[:, start : start + block], dtype).tofile(file)
                done += len(classes)
                self.tick("features", done / self.nodes)
        if self.told.split is not None and (taught == 0).any():
            name = self.classes[int((taught == 0).argmax())]
            problem = f"class {quoted(name)} has no training node"
            remedy = f"Mark one of its nodes 'train' in column {quoted(self.told.split)}."
            raise PairNormError(problem, code="class-without-training", value=name, remedy=remedy)
        deviation = np.sqrt(moments.squares / np.maximum(moments.count, 1))
        return {
            "missing": (int(missing[2]), int(missing[1])),
            "known": tuple(moments.count.astype(int).tolist()),
            "mean": tuple(moments.mean.tolist()),
            "deviation": tuple(deviation.tolist()),
        }

    def _check_finite(self, found: NDArray[np.float32], dtype: str, columns: Sequence[Column]) -> None:
        most = float(np.finfo(dtype).max)
        if (wrong := np.abs(found) > most).any():
            row, place = (int(axis[0]) for axis in np.nonzero(wrong))
            name = Encoder(tuple(columns)).feature_names[place]
            problem = f"{found[row, place]:g} in column {quoted(name)} is not finite or beyond {dtype}"
            remedy = "Correct it, leave the cell empty, or pass {dtype}."
            raise PairNormError(
                problem, code="not-finite", value=float(found[row, place]), remedy=remedy, dtype="float32"
            )

    def _expressions(self, column: Column) -> Iterator[str]:
        """Yield the SQL of the features of a column; NULL where the cell is empty."""
        if column.kind == "category":
            cell = _as_text(column.name, self.kinds[column.name])
            yield from (f"({cell} = {_text(category)})::DOUBLE" for category in column.categories)
        elif column.kind == "date":
            yield self.dates[column.name]
        elif self.kinds[column.name] == "VARCHAR":
            truths = " ".join(f"WHEN {_text(word)} THEN {value}" for word, value in TRUTH.items())
            yield f"coalesce({_number(column.name)}, CASE {_filled(column.name)} {truths} END)::DOUBLE"
        else:
            yield f"{_quoted(column.name)}::DOUBLE"

    def _place(self, column: str | None, numbers: Mapping[str, int], lower: bool = False) -> str:
        """Return the SQL of the number of a text; -1 where it has none."""
        if column is None:
            return "-1"
        cell = _as_text(column, self.kinds[column])
        cell = f"lower({cell})" if lower else cell
        return f"coalesce({list(numbers.values())}[list_position({_list(list(numbers))}, {cell})], -1)"

    def write_edges(self, files: Files) -> tuple[int, EdgeCounts]:
        """Write crow, column and weight; return how many entries there are, and what was odd."""
        table, query, kinds = self._open(files)
        weight = self.told.weight
        ends = find_ends(table, self.told.source, self.told.target)
        value = "" if weight is None else f", {self._weight(table, weight, kinds)} AS w"
        self._check_header(table, ends)
        first, second = (_as_id(end, kinds[end], self.whole) for end in ends[:2])
        self.tick("edges", 0.0)
        # One join at a time: each builds one table of the names, which may spill.
        self._run("SET preserve_insertion_order=false")
        self._run(
            f"CREATE TABLE half AS SELECT n.number AS s, e.t{', e.w' if value else ''} "
            f"FROM (SELECT {first} AS s, {second} AS t{value} FROM {query}) e "
            "LEFT JOIN names n ON e.s = n.name"
        )
        ((listed, lost),) = self._run("SELECT count(*), count(*) FILTER (s IS NULL) FROM half")
        if lost:
            self._reject_end(table, query, ends.source, first, lost)
        self.tick("edges", 0.3)
        joined = (
            f"SELECT h.s, n.number AS t{', h.w' if value else ''} FROM half h JOIN names n ON h.t = n.name"
        )
        ranges, kept, loops = self._deal_out(joined, listed, weight)
        if lost := listed - kept - loops:
            self._reject_end(table, query, ends.target, second, lost)
        self._run("DROP TABLE half")
        return self._sort(ranges, kept, loops)

    def _weight(self, table: Source, weight: str, kinds: Mapping[str, str]) -> str:
        kind = kinds[table.column("weight", weight)]
        return _number(weight) if kind == "VARCHAR" else f"{_quoted(weight)}::DOUBLE"

    def _check_header(self, table: Source, ends: Ends) -> None:
        if ends.guessed and table.delimiter is not None:
            found = self._run(f"SELECT count(*) FROM names WHERE name::VARCHAR IN {_row(ends[:2])}")
            if found == [(2,)]:
                raise PairNormError(
                    f"{table.name}: line 1 is no header: it holds the node ids {quoted(ends.source)} and "
                    f"{quoted(ends.target)}",
                    code="header-missing",
                    value=ends[:2],
                    remedy="Put a first line such as 'source,target' above it, or name the columns.",
                )

    def _reject_end(self, table: Source, query: str, column: str, end: str, lost: int) -> None:
        cell = _quoted(column)
        ((value,),) = self._run(
            f"SELECT {cell} FROM {query} WHERE {end} IS NULL OR {end} NOT IN (SELECT name FROM names) LIMIT 1"
        )
        empty = value is None or not str(value).strip()
        raise PairNormError(
            f"{table.name}: {quoted(value)} in column {quoted(column)} is not the id of a node "
            f"({lost:,} cells are not)",
            code="empty-cell" if empty else "unknown-node",
            value=value,
            remedy="Add the node, drop the edge, or name another column as an end of edges.",
        )

    def _deal_out(self, query: str, listed: int, weight: str | None) -> tuple[_Ranges, int, int]:
        """Write both directions of all edges to files by range of rows, each small enough to be sorted."""
        most = max(FEWEST_PER_RANGE, min(ENTRIES_PER_RANGE, self.memory // 2 // BYTES_PER_SORTED_ENTRY))
        rows = -(-self.nodes // max(1, -(-2 * listed // most)))
        kept = loops = 0
        with _Ranges(self.work, rows, self.nodes, weight is not None) as ranges:
            for s, t, *value in self._batches(query, EDGES_PER_BATCH):
                between = s != t
                weights = value[0].astype(np.float32)[between] if value else None
                if value and not ((value[0] > 0) & (value[0] <= np.finfo(np.float32).max)).all():
                    problem = f"a weight in column {quoted(weight)} is not one"
                    expected = "a positive number"
                    raise PairNormError(problem, code="bad-weight", value=weight, expected=expected)
                loops += int(np.count_nonzero(~between))
                s, t = s[between].astype(np.int64), t[between].astype(np.int64)
                kept += len(s)
                ranges.add(s, t, 0, weights)
                ranges.add(t, s, 1, weights)
                self.tick("edges", 0.3 + 0.7 * (kept + loops) / listed)
        return ranges, kept, loops

    def _sort(self, ranges: _Ranges, kept: int, loops: int) -> tuple[int, EdgeCounts]:
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
        return entries, EdgeCounts(loops, kept - directed // 2, entries - directed // 2, isolated)


class _Ranges:
    """Entries of a matrix in files by range of rows: keys 2 (row · n + column) + the direction listed."""

    def __init__(self, folder: Path, rows: int, nodes: int, weighted: bool) -> None:
        self.rows, self.nodes, self.weighted = rows, nodes, weighted
        self.paths = [folder / f"range-{number:05d}" for number in range(-(-nodes // rows))]
        self.kind = np.dtype([("key", "<i8"), ("weight", "<f4")] if weighted else [("key", "<i8")])

    def __enter__(self) -> _Ranges:
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
            ways = int(np.count_nonzero(first_of_run(keys)))
            keys >>= 1
            first = first_of_run(keys)
            if len(weights):
                weights = np.maximum.reduceat(weights, np.flatnonzero(first))
            keys = keys[first]
            row, low = keys // self.nodes, number * self.rows
            degrees = np.bincount(row - low, minlength=min(self.rows, self.nodes - low))
            yield degrees, keys - row * self.nodes, weights, ways


class _Moments:
    """Count, mean and squares about it of every column, merged as Chan does; NaN takes no part."""

    def __init__(self, columns: int) -> None:
        self.count, self.mean, self.squares = np.zeros((3, columns))

    def add(self, values: NDArray[np.float32]) -> None:
        """Take in more rows."""
        known = ~np.isnan(values)
        count = known.sum(0)
        mean = np.where(known, values, 0).sum(0, dtype=np.float64) / np.maximum(count, 1)
        squares = np.square(np.where(known, values - mean, 0)).sum(0)
        apart, both = mean - self.mean, np.maximum(self.count + count, 1)
        self.squares += squares + apart**2 * self.count * count / both
        self.mean += apart * count / both
        self.count += count


def _rows_within(memory: int, columns: int) -> int:
    """Return how many rows of doubles are a batch."""
    return max(1024, min(ROWS_PER_BATCH, memory // (16 * max(columns, 1))))


def _check_labelled(classes: NDArray[Any], parts: NDArray[Any], first: int) -> None:
    if (blank := (parts >= 0) & (classes < 0)).any():
        problem = f"node {first + int(blank.argmax()) + 1:,} is in a part of the split but has no label"
        remedy = "Label it, or empty its cell in the column of the split."
        raise PairNormError(problem, code="label-missing", remedy=remedy)


@contextmanager
def _explained(memory: int) -> Iterator[None]:
    """Turn what DuckDB says into an error of ours."""
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        problem = " ".join(str(error).split())[:300]
        if isinstance(error, duckdb.OutOfMemoryException):
            raise PairNormError(
                problem, code="too-large", value=memory, remedy="Allow {memory}.", memory=size(2 * memory)
            ) from error
        if isinstance(error, duckdb.IOException) and "write" in problem:
            raise PairNormError(
                f"what is under way cannot be written ({problem})",
                code="not-writable",
                remedy="Make room on the disk, or choose another place.",
            ) from error
        raise PairNormError(
            problem, code="file-damaged", remedy="Correct the file, or free the disk if it is full."
        ) from error


def _as_text(column: str, kind: str) -> str:
    """Return the SQL of a cell as text without spaces around it, NULL where it is empty."""
    cell = _quoted(column)
    if kind in ("FLOAT", "DOUBLE"):  # whole numbers are written without a point
        return f"CASE WHEN {cell} = trunc({cell}) THEN {cell}::BIGINT::VARCHAR ELSE {cell}::VARCHAR END"
    return f"nullif(trim({cell}::VARCHAR), '')"


def _as_id(column: str, kind: str, whole: bool) -> str:
    """Return the SQL of an end of an edge, to be compared with whole or other names."""
    text = _as_text(column, kind)
    if not whole:
        return text
    if kind in WHOLE:
        return f"{_quoted(column)}::BIGINT"
    # DuckDB would round '7.5' to a node of that number.
    return f"CASE WHEN try_cast({text} AS BIGINT)::VARCHAR = {text} THEN try_cast({text} AS BIGINT) END"


def _filled(column: str) -> str:
    """Return the SQL of a text that may be a number: NULL where it is empty or says so."""
    cell = f"trim({_quoted(column)})"
    return f"CASE WHEN {cell} NOT IN {_row(EMPTY)} THEN {cell} END"


def _number(column: str) -> str:
    return f"try_cast({_filled(column)} AS DOUBLE)"


def _text(value: str) -> str:
    """Return a text as SQL writes it."""
    return "'" + value.replace("'", "''") + "'"


def _list(values: Sequence[str]) -> str:
    return "[" + ", ".join(map(_text, values)) + "]"


def _row(values: Mapping[str, Any] | Sequence[str]) -> str:
    return "(" + ", ".join(map(_text, values)) + ")"


def _quoted(name: str) -> str:
    """Return the name of a column as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'
