"""DuckDB over tables of any size, within a memory limit, and SQL expressions for cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from glob import glob
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from pairnorm.base.errors import PairNormError, quoted
from pairnorm.base.memory import MAX_LINE_SHARE, MemoryLimit, size
from pairnorm.data.encoder import ColumnOptions
from pairnorm.data.files import explain_read_errors, file_type
from pairnorm.data.profile import DASHES, MISSING_WORDS, NULLS
from pairnorm.data.readers import DEFAULT_OPTIONS, FRAMES, open_table
from pairnorm.data.tables import Table

SIGNED = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT")
WHOLE = (*SIGNED, *(f"U{kind}" for kind in SIGNED))
# A column of Arrow that is empty throughout may have no other type than null.
NUMERIC = (*WHOLE, "FLOAT", "DOUBLE", "DECIMAL", "BOOLEAN", '"NULL"')
DURATION = "DURATION"
"""The type of a column of Arrow's durations, which DuckDB takes for whole numbers; our query makes days."""
UNITS_PER_DAY = {"s": 86400, "ms": 86400 * 10**3, "us": 86400 * 10**6, "ns": 86400 * 10**9}

File = str | PathLike[str]
Files = File | Sequence[File]


class QueriedTable(NamedTuple):
    """One file or several with the same columns.

    Args:
        source: the first of them.
        query: what DuckDB reads them all by.
        kinds: DuckDB's type of every column, or ``DURATION``.
        sources: all of them.
    """

    source: Table
    query: str
    kinds: dict[str, str]
    sources: list[Table]


class Database:
    """A DuckDB database in a folder, which it may spill to.

    Args:
        folder: where it lies.
        memory: bytes that may be taken; DuckDB gets half, who asks it the other half.
    """

    def __init__(self, folder: Path, memory: int) -> None:
        import duckdb

        self.memory, self.folder = memory, folder
        with explain_duckdb_errors(memory):
            self._base = duckdb.connect(str(folder / "names.duckdb"))
        self.run(f"SET memory_limit='{memory // 2}B'")
        self.run("SET temp_directory=?", [str(folder / "spill")])
        self.run("SET enable_progress_bar=false")
        self.run("SET TimeZone='UTC'")

    def close(self) -> None:
        """Write what is still to be written."""
        with explain_duckdb_errors(self.memory):
            self._base.close()

    def run(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a query's result."""
        with explain_duckdb_errors(self.memory):
            rows: list[tuple[Any, ...]] = self._base.execute(query, list(values)).fetchall()
        return rows

    def batches(self, query: str, rows: int) -> Iterator[list[NDArray[Any]]]:
        """Yield the columns of a query's result, ``rows`` rows at a time."""
        with explain_duckdb_errors(self.memory):
            for batch in self._base.sql(query).to_arrow_reader(rows):
                yield [column.to_numpy(zero_copy_only=False) for column in batch.columns]

    def open(
        self, files: Files, role: str = "nodes", options: ColumnOptions = DEFAULT_OPTIONS
    ) -> QueriedTable:
        """Open files as one table and find their columns, which must be the same in all."""
        names = [str(file) for file in ([files] if isinstance(files, str | PathLike) else files)]
        paths = [Path(path) for name in names for path in (sorted(glob(name)) or [name])]
        for path in paths:
            _check_kind(path)
            if not str(path).isprintable() and "\udc80" <= max(str(path)) <= "\udcff":
                problem = f"{path}: the file name is not valid UTF-8, which DuckDB needs"
                raise PairNormError(problem, code="unusable-path", value=str(path), hint="Rename the file.")
        limit = MemoryLimit(None, self.memory // MAX_LINE_SHARE)
        source, *others = opened = [open_table(path, role, options, limit) for path in paths]
        for other in others:
            if other.columns != source.columns or _delimiter(other) != _delimiter(source):
                problem = f"{other.name}: its columns are not those of {source.name}"
                raise PairNormError(problem, code="unlike-columns", value=other.name)
        listed = f"[{', '.join(sql_text(str(path)) for path in self._converted(opened, paths))}]"
        durations: dict[str, str] = {}
        if source.text is None:
            table = f"read_parquet({listed})"
            if durations := _durations(paths):
                days = (f"{sql_name(name)} / {UNITS_PER_DAY[unit]}.0" for name, unit in durations.items())
                named = ", ".join(
                    f"{day} AS {sql_name(name)}" for day, name in zip(days, durations, strict=True)
                )
                table = f"(SELECT * REPLACE ({named}) FROM {table})"
        else:
            columns = ", ".join(f"{sql_text(name)}: 'VARCHAR'" for name in source.columns)
            header = str(source.has_header).lower()
            table = (
                f"read_csv({listed}, delim={sql_text(source.text.delimiter)}, header={header}, quote='\"', "
                f"escape='\"', auto_detect=false, columns={{{columns}}}, max_line_size=16777216)"
            )
        kinds = {name: kind for name, kind, *_ in self.run(f"DESCRIBE SELECT * FROM {table}")}
        for name in source.columns:
            if name not in kinds:
                problem = (
                    f"{source.name}: column {quoted(name)} has no name, or differs from another only in case"
                )
                hint = "Give each column its own name."
                raise PairNormError(problem, code="duplicate-column", value=name, hint=hint)
        return QueriedTable(source, table, kinds | dict.fromkeys(durations, DURATION), opened)

    def _converted(self, sources: Sequence[Table], paths: Sequence[Path]) -> Sequence[Path]:
        """Copy edge lists that DuckDB cannot read: separated by spaces, with comments."""
        copies = list(paths)
        for number, source in enumerate(sources):
            if source.text is not None and source.text.is_converted:
                copies[number] = self.folder / f"edges-{number}.tsv"
                with source.text.characters() as text, open(copies[number], "w", encoding="utf-8") as copy:
                    copy.writelines(line for line in text if line.strip())
        return copies


def _delimiter(source: Table) -> str | None:
    return None if source.text is None else source.text.delimiter


def _check_kind(path: Path) -> None:
    """Raise an error for a type of file that must be read into memory whole."""
    kind = file_type(path)
    if kind in FRAMES and kind != ".parquet":
        raise PairNormError(
            f"{path.name}: a file of type {quoted(kind)} is read into memory as a whole",
            code="unknown-file-type",
            value=kind,
            expected="one of '.csv', '.tsv', '.parquet'",
            hint="Write it as one of these; or fit it as it is, where it fits memory.",
        )


def _durations(paths: Sequence[Path]) -> dict[str, str]:
    """Return the unit of every column of durations of Parquet files, which must be the same in all."""
    import pyarrow
    from pyarrow import parquet

    first: dict[str, str] = {}
    for number, path in enumerate(paths):
        with explain_read_errors(path.name):
            schema = parquet.read_schema(path)
        units = {field.name: field.type.unit for field in schema if pyarrow.types.is_duration(field.type)}
        first = units if number == 0 else first
        if units != first:
            name = min(units.items() ^ first.items())[0]
            problem = f"{path.name}: column {quoted(name)} has another unit of time than in {paths[0].name}"
            raise PairNormError(problem, code="unlike-columns", value=path.name)
    return first


@contextmanager
def explain_duckdb_errors(memory: int) -> Iterator[None]:
    """Convert errors of DuckDB to ``PairNormError``."""
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        problem = " ".join(str(error).split())[:300]
        more: dict[str, Any] = {}
        code, hint = "file-damaged", "Correct the file, or free the disk if it is full."
        if isinstance(error, duckdb.OutOfMemoryException):
            more = {"value": memory, "memory": size(2 * memory)}
            code, hint = "too-large", "Allow {memory}."
        elif isinstance(error, duckdb.IOException) and "write" in problem:
            code, hint = "not-writable", "Make room on the disk, or choose another place."
            problem = f"what is under way cannot be written ({problem})"
        raise PairNormError(problem, code=code, hint=hint, **more) from error


def as_text(column: str, kind: str) -> str:
    """Return the SQL of a cell as text without spaces around it, NULL where it is empty."""
    cell = sql_name(column)
    if kind in ("FLOAT", "DOUBLE"):  # whole numbers are written without a point; what is no number is empty
        is_integer = f"abs({cell}) < 1e18 AND {cell} = trunc({cell})"
        text = f"CASE WHEN {is_integer} THEN {cell}::BIGINT::VARCHAR ELSE {cell}::VARCHAR END"
        return f"CASE WHEN NOT isnan({cell}) THEN {text} END"
    if kind == "BOOLEAN":  # as Python writes them
        return f"CASE WHEN {cell} THEN 'True' WHEN NOT {cell} THEN 'False' END"
    return f"CASE WHEN trim({cell}::VARCHAR) NOT IN {sql_row(('', *NULLS))} THEN trim({cell}::VARCHAR) END"


def as_id(column: str, kind: str, is_integer: bool) -> str:
    """Return the SQL of an endpoint of an edge, to compare with names that are integers or texts."""
    text = as_text(column, kind)
    if not is_integer:
        return text
    if kind in WHOLE:
        return f"{sql_name(column)}::BIGINT"
    plain = f"regexp_replace({text}, '[.]0+$', '')"  # '7.0' is what pandas makes of a 7 next to empty cells
    # DuckDB would round '7.5' to a node of that number.
    return f"CASE WHEN try_cast({plain} AS BIGINT)::VARCHAR = {plain} THEN try_cast({plain} AS BIGINT) END"


def as_double(column: str, kind: str) -> str:
    """Return the SQL of a cell as a number, NULL where it is none."""
    if kind != "VARCHAR":
        return f"{sql_name(column)}::DOUBLE"
    cell = f"trim({sql_name(column)})"
    return f"try_cast(CASE WHEN {cell} NOT IN {sql_row(MISSING_WORDS + NULLS)} THEN {cell} END AS DOUBLE)"


def has_other_text(column: str) -> str:
    """Return the SQL that says whether a column has texts that are neither plain numbers nor missing.

    Whole numbers with leading zeros, and dashes for missing values, count as such texts: they are noted.
    """
    cell = f"trim({sql_name(column)})"
    odd = f"regexp_matches({cell}, '^(0[0-9]|[{''.join(DASHES)}]$)')"
    missing = sql_row(MISSING_WORDS + NULLS)
    return f"bool_or({odd} OR (try_cast({cell} AS DOUBLE) IS NULL AND {cell} NOT IN {missing}))"


def sql_text(value: str) -> str:
    """Return a text as SQL writes it."""
    return "'" + value.replace("'", "''") + "'"


def sql_row(values: Mapping[str, Any] | Sequence[str]) -> str:
    """Return texts as SQL writes what follows IN."""
    return "(" + ", ".join(map(sql_text, values)) + ")"


def sql_name(name: str) -> str:
    """Return the name of a column as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'
