"""DuckDB over tables of any size, within a memory limit: a table's columns, and SQL for their cells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain, count
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple

from numpy.typing import NDArray

from pairnorm.base.databases import explain_duckdb_errors
from pairnorm.base.errors import PairNormError, quoted
from pairnorm.base.memory import BYTES_PER_CELL, MAX_LINE_SHARE, MemoryLimit
from pairnorm.data.encoder import ColumnOptions
from pairnorm.data.files import (
    CHARS_SHARE,
    COMPRESSED,
    MAX_CELL,
    STDIN,
    check_utf8_name,
    explain_read_errors,
    file_type,
    find_files,
)
from pairnorm.data.formats import FRAMES, open_table
from pairnorm.data.profile import (
    DASHES,
    MAX_DAYS,
    MIN_DAYS,
    MISSING_WORDS,
    NULLS,
    ColumnProfile,
    Decision,
    decide_typed,
    null_note,
    parse_dates,
    parse_numbers,
)
from pairnorm.data.tables import read_blocks

SIGNED = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT")
WHOLE = (*SIGNED, *(f"U{kind}" for kind in SIGNED))
# A column of Arrow that is empty throughout may have no other type than null.
NUMERIC = (*WHOLE, "FLOAT", "DOUBLE", "DECIMAL", "BOOLEAN", '"NULL"')
NESTED = ("STRUCT", "MAP", "UNION", "BLOB", "BIT", "INTERVAL", "VARIANT")
DURATION, TRIMMED = "DURATION", "TRIMMED"
TEXTS = ("VARCHAR", TRIMMED)
UNITS_PER_DAY = {"s": 86400, "ms": 86400 * 10**3, "us": 86400 * 10**6, "ns": 86400 * 10**9}
SPACES = " \t\n\r\v\f\u00a0"
# Distinct texts of a column from which its encoding is decided.
MAX_SAMPLED_TEXTS, MAX_TEXTS = 100_000, 2**31 - 1
# DuckDB takes time for the plan of a query with the square of its columns, and memory for each of them.
COLUMNS_AT_ONCE, BYTES_PER_COLUMN = 64, 2 * 10**7
# A text table is copied to files of at most this many columns.
COLUMNS_PER_PART = 256

File = str | PathLike[str]
Files = File | Sequence[File]


class Cell(NamedTuple):
    """The cells of a column, in SQL.

    Args:
        sql: the column, or an expression.
        kind: DuckDB's type of the column; ``DURATION`` where ``sql`` converts a duration to days, ``TRIMMED``
            for text without spaces around it, NULL where it is empty.
    """

    sql: str
    kind: str

    @property
    def text(self) -> str:
        """The cell as text without spaces around it, NULL where it is empty."""
        cell = self.sql
        if self.kind == TRIMMED:
            return f"CASE WHEN {cell} NOT IN {sql_row(NULLS)} THEN {cell} END"
        if self.kind in ("FLOAT", "DOUBLE"):  # whole numbers without a point; what is no number is empty
            is_integer = f"abs({cell}) < 1e18 AND {cell} = trunc({cell})"
            text = f"CASE WHEN {is_integer} THEN {cell}::BIGINT::VARCHAR ELSE {cell}::VARCHAR END"
            return f"CASE WHEN NOT isnan({cell}) THEN {text} END"
        if self.kind == "BOOLEAN":  # as Python writes them
            return f"CASE WHEN {cell} THEN 'True' WHEN NOT {cell} THEN 'False' END"
        text = self.trimmed
        return f"CASE WHEN ({text}) NOT IN {sql_row(('', *NULLS))} THEN ({text}) END"

    @property
    def number(self) -> str:
        """The cell as a number, NULL or NaN where it is none."""
        if self.kind.startswith(("DATE", "TIMESTAMP")):  # days since 1970, of the years that pandas reads
            days = f"(epoch(try_cast({self.sql} AS TIMESTAMPTZ)) / 86400)"
            return f"CASE WHEN {days} >= {MIN_DAYS} AND {days} < {MAX_DAYS} THEN {days} END"
        # As short as possible, because every part of it takes memory; missing words are no numbers.
        return f"try_cast(trim({self.sql}) AS DOUBLE)" if self.kind in TEXTS else f"{self.sql}::DOUBLE"

    def endpoint(self, is_integer: bool) -> str:
        """Return the cell as an endpoint of an edge, to compare with ids that are integers or texts."""
        if not is_integer:
            return self.text
        if self.kind in WHOLE:
            return f"{self.sql}::BIGINT"
        # A cast alone would round '7.5'; a 7 next to empty cells is written '7.0'.
        whole = f"try_cast({self.text} AS BIGINT)"
        return f"CASE WHEN {whole} = try_cast({self.text} AS DOUBLE) THEN {whole} END"

    @property
    def is_other_text(self) -> str:
        """Whether the cell is a text that is neither a plain number nor missing.

        Whole numbers with leading zeros, and dashes and NULLs for missing values, are such texts: they are
        noted.
        """
        cell = f"trim({self.sql})"
        odd = f"regexp_matches({cell}, '^0[0-9]|[^0-9eE.+-]') OR try_cast({cell} AS DOUBLE) IS NULL"
        missing = sql_row([word for word in MISSING_WORDS if word not in DASHES])
        return f"({odd}) AND {cell} NOT IN {missing}"

    @property
    def trimmed(self) -> str:
        """The cell as text without spaces around it."""
        if self.kind == TRIMMED:
            return self.sql
        cell = f"{self.sql}::VARCHAR"
        spaces = sql_text(SPACES)
        has_spaces = f"regexp_matches({cell}, '^[\\s\\v\u00a0]|[\\s\\v\u00a0]$')"  # trim is much slower
        return f"CASE WHEN {has_spaces} THEN trim({cell}, {spaces}) ELSE {cell} END"


class Database:
    """A DuckDB database in a folder, which it may spill to.

    Args:
        folder: where it lies.
        memory: bytes that may be taken; DuckDB gets half, who asks it the other half.
    """

    def __init__(self, folder: Path, memory: int) -> None:
        import duckdb

        self.memory, self.folder = memory, folder
        check_utf8_name(folder)
        with explain_duckdb_errors(memory):
            self._base = duckdb.connect(str(folder / "names.duckdb"))
        self.run(f"SET memory_limit='{memory // 2}B'")
        self.run("SET temp_directory=?", [str(folder / "spill")])
        self.run("SET enable_progress_bar=false")
        self.run("SET TimeZone='UTC'")
        self._numbers = count()

    def close(self) -> None:
        """Write what is still to be written."""
        with explain_duckdb_errors(self.memory):
            self._base.close()

    def run(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a query's result."""
        with explain_duckdb_errors(self.memory):
            rows: list[tuple[Any, ...]] = self._base.execute(query, list(values)).fetchall()
        return rows

    def function(self, compute: Callable[[NDArray[Any]], NDArray[Any]]) -> str:
        """Make a function of texts, computed in Python, for queries; return its name. NaN becomes NULL."""
        import pyarrow

        name = f"function_{next(self._numbers)}"
        self._base.create_function(
            name,
            lambda texts: pyarrow.array(compute(texts.to_numpy(zero_copy_only=False)), from_pandas=True),
            ["VARCHAR"],
            "DOUBLE",
            type="arrow",
            null_handling="special",
        )
        return name

    def lookup(self, text: str, numbers: Mapping[str, int]) -> str:
        """Return the SQL of the number of a text, itself SQL, NULL where it has none."""
        import pyarrow

        name = f"type_{next(self._numbers)}"
        self._base.register("listed", pyarrow.table({"text": [*numbers]}))
        self.run(f"CREATE TYPE {name} AS ENUM (SELECT text FROM listed)")
        code = f"enum_code(try_cast(({text}) AS {name}))"
        values = [*numbers.values()]
        return code if values == [*range(len(values))] else f"({values})[{code} + 1]"

    def batches(self, query: str, rows: int) -> Iterator[list[NDArray[Any]]]:
        """Yield the columns of a query's result, ``rows`` rows at a time."""
        with explain_duckdb_errors(self.memory):
            for batch in self._base.sql(query).to_arrow_reader(rows):
                yield [column.to_numpy(zero_copy_only=False) for column in batch.columns]


class QueriedTable:
    """One file or several with the same columns, as one table of a database.

    A text table is first copied to Parquet, its cells trimmed, so that a query reads only the columns that it
    names.

    Args:
        base: the database.
        files: the names of the files; ``*`` may stand in a name.
        role: nodes or edges.
        options: how to read text, and what the columns are.
    """

    def __init__(self, base: Database, files: Files, role: str, options: ColumnOptions) -> None:
        self.base, self.role = base, role
        self.paths = [*map(Path, find_files([files] if isinstance(files, str | PathLike) else files))]
        for path in self.paths:
            _check_type(path)
        limit = MemoryLimit(None, base.memory // MAX_LINE_SHARE)
        self.sources = [open_table(path, role, options, limit) for path in self.paths]
        self.source, self._is_plain = self.sources[0], dict[str, bool]()
        self.at_once = max(4, min(COLUMNS_AT_ONCE, base.memory // BYTES_PER_COLUMN))
        for other in self.sources:
            if other.columns != self.source.columns:
                problem = f"{other.name}: its columns are not those of {self.source.name}"
                raise PairNormError(problem, code="unlike-columns", value=other.name)
        self.load()

    def load(self) -> None:
        """Find the file and the type of each column; text is copied to Parquet."""
        columns = self.source.columns
        if self.source.text is not None:
            self.cells = {name: Cell(f"c{place}", TRIMMED) for place, name in enumerate(columns)}
            parts = [f"read_parquet({sql_text(str(path))})" for path in self._copy_text()]
            self._parts = {name: parts[place // COLUMNS_PER_PART] for place, name in enumerate(columns)}
            return
        for path in self.paths:
            check_utf8_name(path)
        units = _duration_units(self.paths)
        table = f"read_parquet([{', '.join(sql_text(str(path)) for path in self.paths)}])"
        self._parts = dict.fromkeys(columns, table)
        self.cells = {}
        # DuckDB renames columns without a name, and those that differ from another only in case.
        described = self.base.run(f"DESCRIBE SELECT * FROM {table}")
        for name, (column, kind, *_) in zip(columns, described, strict=True):
            cell = f"{sql_name(column)}::TIME" if kind == "TIME WITH TIME ZONE" else sql_name(column)
            self.cells[name] = Cell(cell, kind)
            if name in units:
                days = f"({sql_name(column)} / {UNITS_PER_DAY[units[name]]}.0)"
                self.cells[name] = Cell(days, DURATION)

    def _copy_text(self) -> list[Path]:
        """Copy the texts to Parquet files of few columns each, and return these."""
        from pyarrow import Table, parquet, schema, string

        columns = [cell.sql for cell in self.cells.values()]
        starts = range(0, len(columns), COLUMNS_PER_PART)
        groups = [columns[start : start + COLUMNS_PER_PART] for start in starts]
        paths = [self.base.folder / f"{self.role}-{number}.parquet" for number in range(len(groups))]
        if len(paths) == 1 and self._copy_by_duckdb(paths[0]):
            return paths
        rows = max(100, self.base.memory // 4 // (3 * BYTES_PER_CELL * len(columns)))
        with ExitStack() as stack:
            writers = [
                stack.enter_context(parquet.ParquetWriter(path, schema([(name, string()) for name in group])))
                for path, group in zip(paths, groups, strict=True)
            ]
            chars = self.base.memory / CHARS_SHARE
            blocks = (read_blocks(source, source.columns, rows, chars) for source in self.sources)
            for frame in chain.from_iterable(blocks):
                cells = frame.set_axis(columns, axis=1).astype(object).map(str.strip, na_action="ignore")
                cells = cells.where(cells != "", None)
                for writer, group in zip(writers, groups, strict=True):
                    writer.write_table(Table.from_pandas(cells[group], writer.schema, preserve_index=False))
        return paths

    def _copy_by_duckdb(self, copy: Path) -> bool:
        """Copy texts by DuckDB's own reader, which is faster and stricter; return whether it could."""
        texts = [source.text for source in self.sources if source.text is not None]
        layouts = {(text.delimiter, text.has_header) for text in texts}
        is_utf8 = all(text.encoding.startswith("utf-8") and not text.is_converted for text in texts)
        is_packed = any(path.suffix.lower() in COMPRESSED.keys() - {".gz", ".zst"} for path in self.paths)
        if not is_utf8 or is_packed or len(layouts) > 1:
            return False
        ((delimiter, has_header),) = layouts
        listed = ", ".join(sql_text(str(path)) for path in self.paths)
        raw = [Cell(cell.sql, "VARCHAR") for cell in self.cells.values()]
        columns = ", ".join(f"{cell.sql}: 'VARCHAR'" for cell in raw)
        cells = ", ".join(f"nullif({cell.trimmed}, '') AS {cell.sql}" for cell in raw)
        try:
            for path in self.paths:
                check_utf8_name(path)
            self.base.run(
                f"COPY (SELECT {cells} FROM read_csv([{listed}], delim={sql_text(delimiter)}, "
                f"header={has_header}, quote='\"', escape='\"', auto_detect=false, "
                f"columns={{{columns}}}, max_line_size={MAX_CELL}, buffer_size={2 * MAX_CELL})) "
                f"TO {sql_text(str(copy))} (FORMAT parquet)"
            )
        except PairNormError as error:
            if error.code not in ("file-damaged", "unusable-path"):
                raise error.within(self.source.name) from error
            return False
        return True

    def from_(self, names: Iterable[str]) -> str:
        """Return the SQL of the tables that hold the named columns, joined row by row."""
        return " POSITIONAL JOIN ".join(dict.fromkeys(self._parts[name] for name in names))

    def texts(self, name: str, limit: int) -> dict[str, int]:
        """Return at most ``limit`` distinct texts of a column, sorted, and how many cells hold each."""
        cell = self.cells[name]
        text = cell.trimmed if cell.kind in TEXTS else cell.text
        rows = self.base.run(
            f"SELECT {text}, count(*) FROM {self.from_([name])} WHERE ({text}) <> '' GROUP BY 1 LIMIT {limit}"
        )
        counts = dict(sorted(rows))
        for word in (word for word in NULLS if counts.pop(word, 0)):
            self.source.add_column_note(null_note(word), name)
        return counts

    def drop_repeated_rows(self) -> int:
        """Read the table from a copy without exact repetitions of rows; return how many there were."""
        copy, table = self.base.folder / f"{self.role}-distinct.parquet", self.from_(self.source.columns)
        self.base.run(
            "COPY (SELECT * EXCLUDE (row_), min(row_) AS row_ "
            f"FROM (SELECT *, row_number() OVER () AS row_ FROM {table}) GROUP BY ALL ORDER BY row_) "
            f"TO {sql_text(str(copy))} (FORMAT parquet)"
        )
        distinct = f"read_parquet({sql_text(str(copy))})"
        counts = (self.base.run(f"SELECT count(*) FROM {rows}")[0][0] for rows in (table, distinct))
        self._parts = dict.fromkeys(self.source.columns, distinct)
        before, after = counts
        return int(before - after)

    def reject_nested(self, name: str) -> None:
        """Raise an error for a column of lists, structures or bytes."""
        kind = self.cells[name].kind
        if kind.endswith("]") or kind.startswith(NESTED):
            problem = f"column {quoted(name)} holds values of type {kind.lower()[:60]}"
            more = {"expected": "a number or a text", "ignore": [name]}
            hint = "Give each of its numbers a column, or pass {ignore}."
            self.source.reject(None, problem, "not-a-cell", value=name, hint=hint, **more)

    def find_plain_numbers(self, names: Iterable[str]) -> None:
        """Find the columns of text whose cells are plain numbers, without leading zeros, or missing."""
        texts = [name for name in names if self.cells[name].kind in TEXTS]
        for start in range(0, len(texts), self.at_once):
            batch = texts[start : start + self.at_once]
            flags = ", ".join(f"bool_or({self.cells[name].is_other_text})" for name in batch)
            (row,) = self.base.run(f"SELECT {flags} FROM {self.from_(batch)}")
            self._is_plain |= {name: not others for name, others in zip(batch, row, strict=True)}

    def decide(
        self, name: str, *, kind: str | None = None, keep: bool = False
    ) -> tuple[Decision, dict[str, int]]:
        """Decide how to encode a column, by the rules of ``pairnorm.data.profile``; also return its texts."""
        if name not in self._is_plain:
            self.find_plain_numbers([name])
        is_plain = self._is_plain.get(name, False)
        self.reject_nested(name)
        dtype = None if kind == "category" else "number" if is_plain else _dtype(self.cells[name].kind)
        if dtype is not None:
            count_numbers = None if keep or kind else partial(self._count_numbers, name)
            return self.source.note(name, decide_typed(dtype, name, count_numbers)), {}
        counts, totals = self.texts(name, MAX_SAMPLED_TEXTS), ()
        if len(counts) == MAX_SAMPLED_TEXTS:
            cell = self.cells[name].text
            (totals,) = self.base.run(
                f"SELECT count(c), count(DISTINCT c) FROM (SELECT {cell} AS c FROM {self.from_([name])})"
            )
        decision = self.source.decide(name, ColumnProfile.of(counts, *totals), kind=kind, keep=keep)
        is_incomplete = totals and decision.kind == "category"
        return decision, self.texts(name, MAX_TEXTS) if is_incomplete else counts

    def _count_numbers(self, name: str) -> Any:
        """Return the filled cells of a column of numbers, the distinct ones, and the fractions."""
        number = f"nullif({self.cells[name].number}, 'NaN'::DOUBLE)"
        (counts,) = self.base.run(
            "SELECT count(c), count(DISTINCT c), count(*) FILTER (c % 1 <> 0) "
            f"FROM (SELECT {number} AS c FROM {self.from_([name])})"
        )
        return counts

    def number(self, name: str, decision: Decision) -> str:
        """Return the SQL of a column of numbers or dates, NULL or NaN where missing."""
        cell = self.cells[name]
        if decision.dates:
            return f"{self.base.function(partial(parse_dates, form=decision.dates))}({cell.text})"
        if not decision.numbers.is_plain:
            return f"{self.base.function(partial(parse_numbers, form=decision.numbers))}({cell.text})"
        return cell.number


def _dtype(kind: str) -> Literal["number", "date", "duration"] | None:
    """Convert a type of DuckDB to one of ours, None for text."""
    if kind == DURATION:
        return "duration"
    if kind.startswith(("DATE", "TIMESTAMP")):
        return "date"
    return "number" if kind.startswith(NUMERIC) else None


def _check_type(path: Path) -> None:
    """Raise an error for a type of file that must be read into memory whole."""
    if str(path) == STDIN:
        problem, hint = "the standard input is read once, pack reads tables again", "Name a file."
        raise PairNormError(problem, code="file-missing", value=STDIN, hint=hint)
    kind = file_type(path)
    if kind in FRAMES and kind != ".parquet":
        raise PairNormError(
            f"{path.name}: a file of type {quoted(kind)} is read into memory as a whole",
            code="unknown-file-type",
            value=kind,
            expected="one of '.csv', '.tsv', '.parquet'",
            hint="Write it as one of these; or fit it as it is, where it fits memory.",
        )


def _duration_units(paths: Sequence[Path]) -> dict[str, str]:
    """Return the time unit of each duration column of Parquet files; raise an error if files differ."""
    import pyarrow
    from pyarrow import parquet

    first: dict[str, str] | None = None
    for path in paths:
        with explain_read_errors(path.name):
            schema = parquet.read_schema(path)
        units = {field.name: field.type.unit for field in schema if pyarrow.types.is_duration(field.type)}
        if units != (first := units if first is None else first):
            name = min(units.items() ^ first.items())[0]
            problem = f"{path.name}: column {quoted(name)} has another unit of time than in {paths[0].name}"
            raise PairNormError(problem, code="unlike-columns", value=path.name)
    return first or {}


def sql_text(value: str) -> str:
    """Return a text as SQL writes it."""
    return "'" + value.replace("'", "''") + "'"


def sql_row(values: Mapping[str, Any] | Sequence[str]) -> str:
    """Return texts as SQL writes what follows IN."""
    return "(" + ", ".join(map(sql_text, values)) + ")"


def sql_name(name: str) -> str:
    """Return the name of a column as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'
