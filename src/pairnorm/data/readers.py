"""Open tables: text files, whose rows are read later, and whole Parquet, Excel, JSON files and queries."""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from io import BufferedReader, BytesIO
from itertools import islice
from math import inf
from os import PathLike, fspath
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import pandas

from pairnorm.base.databases import open_engine
from pairnorm.base.errors import PairNormError, did_you_mean, load_library, missing_library, quoted
from pairnorm.base.memory import BYTES_PER_TEXT_BYTE, BYTES_PER_XML_BYTE, NO_LIMIT, MemoryLimit
from pairnorm.data.encoder import ColumnOptions
from pairnorm.data.files import (
    COMPRESSED,
    STDIN,
    Open,
    PathOrPaths,
    check_is_file,
    empty_file,
    explain_read_errors,
    file_type,
    find_delimiter,
    find_files,
    open_plain,
    open_text,
    quote_names,
    read_stdin,
)
from pairnorm.data.profile import ID_NAME, WHOLE, is_missing, is_number
from pairnorm.data.tables import Table, without_header

MAX_EXCEL_ROWS = 2**20
ROWS_AT_ONCE = 10_000
DEFAULT_OPTIONS = ColumnOptions()
DELIMITERS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
TAB = ("tab", "\\t")  # A tab is hard to type in a shell.
# Text files whose delimiter is detected, white space included.
TEXT_FILES = (".txt", ".dat", ".data", ".edgelist", ".edges", ".content", ".cites")
ROWS_TO_COMPARE = 200
LINKS = "links"  # the role of edges that the file of the nodes must hold


def edges_missing(name: str) -> PairNormError:
    """Return the error about a table of nodes that comes without edges."""
    problem = f"{name}: a table of nodes needs a table of edges"
    return PairNormError(problem, code="option-missing", hint="Pass {edges}", edges=...)


def check_column_names(name: str, header: Sequence[Any]) -> tuple[str, ...]:
    """Return the names of columns, which must all be different."""
    columns = tuple(map(str, header))
    if not columns:
        raise empty_file(name)
    column, times = Counter(columns).most_common(1)[0]
    if times > 1:
        problem, hint = f"{name}: column {quoted(column)} is there twice", "Give each column its own name."
        raise PairNormError(problem, code="duplicate-column", value=column, hint=hint)
    return columns


class _Reading(NamedTuple):
    """An open file to read as one table, and what to note and limit meanwhile."""

    name: str
    file: IO[bytes]
    role: str
    notes: list[str]
    memory: MemoryLimit


def read_frame(
    name: str, kind: str, opened: Open, role: str, memory: MemoryLimit
) -> tuple[pandas.DataFrame, list[str]]:
    """Read a table of a kind in ``FRAMES``; return it with notes."""
    notes: list[str] = []
    with explain_read_errors(name), opened() as file:
        return FRAMES[kind](_Reading(name, file, role, notes, memory)), notes


def _read_parquet(source: _Reading) -> pandas.DataFrame:
    pyarrow = load_library("pyarrow", "reading Parquet")
    parquet = load_library("pyarrow.parquet", "reading Parquet")
    with parquet.ParquetFile(as_seekable(source.name, source.file, source.memory)) as table:
        source.memory.check_cells(source.name, table.metadata.num_rows, table.metadata.num_columns)
        batches, total = [], 0
        for batch in table.iter_batches(ROWS_AT_ONCE):  # few bytes may unpack to many equal texts
            batches.append(batch)
            total += batch.nbytes
            source.memory.check(source.name, total, "what it unpacks to")
        return arrow_frame(pyarrow.Table.from_batches(batches, table.schema_arrow))


def as_seekable(name: str, file: IO[bytes], memory: MemoryLimit) -> IO[bytes]:
    """Return a file that can be read from any position: itself, or what it unpacks to."""
    return file if isinstance(file, BufferedReader | BytesIO) else BytesIO(memory.read(name, file))


def arrow_frame(table: Any) -> pandas.DataFrame:
    """Return a pyarrow table as a frame, whole numbers next to an empty cell unchanged."""
    import pyarrow
    import pyarrow.compute

    for place, field in enumerate(table.schema):
        if pyarrow.types.is_date(field.type):  # infinite dates are beyond those of Python
            year = pyarrow.compute.year(table.column(place))
            is_valid = pyarrow.compute.and_(
                pyarrow.compute.greater(year, 0), pyarrow.compute.less(year, 10_000)
            )
            dates = pyarrow.compute.if_else(is_valid, table.column(place), None)
            table = table.set_column(place, field.name, dates)
        if pyarrow.types.is_binary(field.type) or pyarrow.types.is_large_binary(field.type):
            # Some writers do not mark text as such; what is none is refused where it is used.
            with suppress(pyarrow.ArrowInvalid):
                table = table.set_column(place, field.name, table.column(place).cast(pyarrow.large_string()))
    # What pandas wrote about its index is ignored: to us that is a column like any other. Whole numbers
    # next to an empty cell must not become floats: two that differ in their last digit would be one.
    frame: pandas.DataFrame = table.to_pandas(ignore_metadata=True, integer_object_nulls=True)
    return frame


def _read_excel(source: _Reading) -> pandas.DataFrame:
    """Read the sheet named after ``#``, else the one named after the role, else the first."""
    openpyxl, role = load_library("openpyxl", "reading Excel"), source.role
    file = as_seekable(source.name, source.file, source.memory)
    with zipfile.ZipFile(file) as archive:
        xml = sum(member.file_size for member in archive.infolist())
        source.memory.check(source.name, xml * BYTES_PER_XML_BYTE, f"a workbook of {xml:,} bytes of XML")
    book = openpyxl.load_workbook(file, read_only=True, data_only=True, keep_links=False)
    try:
        sheets = [sheet.title for sheet in book.worksheets]
        requested = role.removeprefix("#").strip().lower()
        named = [sheet for sheet in sheets if sheet.strip().lower() == requested]
        if role.startswith("#") and not named:
            problem, hint = f"there is no sheet {quoted(role[1:])}", did_you_mean(role[1:], sheets)
            expected = f"one of {quote_names(sheets, 10)}"
            raise PairNormError(problem, code="unknown-sheet", value=role[1:], expected=expected, hint=hint)
        sheet = next(iter(named), sheets[0])
        if len(sheets) > 1 and not role.startswith("#"):
            source.notes.append(f"the {role} are read from sheet {quoted(sheet)} of {quote_names(sheets)}")
        rows = _sheet_rows(source, book[sheet])
    finally:
        book.close()
    if not rows:
        problem = f"sheet {quoted(sheet)} is empty"
        raise PairNormError(problem, code="file-empty", expected="a header and rows")
    used = sorted({column for row in rows for column in row})
    source.memory.check_cells(source.name, len(rows), len(used))
    titles, *cells = [[row.get(column) for column in used] for row in rows]
    return _typed(pandas.DataFrame(cells, columns=[str(title).strip() for title in titles], dtype=object))


def _sheet_rows(source: _Reading, sheet: Any) -> list[dict[int, Any]]:
    """Return the filled cells of each row that has some, by column: a sheet may have one far cell."""
    rows, filled = [], 0
    sheet.reset_dimensions()  # what the file says of them may be anything
    for number, cells in enumerate(sheet.iter_rows(), 1):
        if number > MAX_EXCEL_ROWS:  # openpyxl yields an empty row for each number that is skipped
            problem = f"a row has a number over {MAX_EXCEL_ROWS:,}, the limit of Excel"
            raise PairNormError(problem, code="file-damaged", value=number)
        row = {cell.column: _excel_value(cell) for cell in cells if cell.value not in (None, "")}
        if row:
            rows.append(row)
            filled += len(row)
            source.memory.check_cells(source.name, 1, filled)
    return rows


def _excel_value(cell: Any) -> Any:
    """Return the value of a cell: a whole number as an integer, an error as missing."""
    if isinstance(cell.value, float) and cell.value.is_integer():
        return int(cell.value)
    return None if cell.data_type == "e" else cell.value


def _read_json(source: _Reading) -> pandas.DataFrame:
    """Read a list of records or a dictionary of columns, possibly under the key ``nodes`` or ``edges``."""
    role = source.role
    contents = json.loads(source.memory.stream(source.name, source.file).read())
    if isinstance(contents, dict):
        # Graphs as d3 and networkx write them have both in one file.
        lists = {name: rows for name, rows in contents.items() if isinstance(rows, list)}
        edges = lists.get("edges", lists.get("links"))
        if role == "nodes" and role in lists:
            contents = _with_positions(lists[role], edges or [])
        elif role in ("edges", LINKS):
            contents, role = (contents, role) if edges is None else (edges, "edges")
        else:
            contents = lists.get(role, contents)
    if role == LINKS:
        raise edges_missing(source.name)
    is_mapping = isinstance(contents, dict) and all(isinstance(v, list | dict) for v in contents.values())
    if role == "features" and is_mapping:
        contents = [
            {"node": node, "feature": feature, "value": words[feature] if isinstance(words, dict) else 1}
            for node, words in contents.items()
            for feature in words
        ]
    return _frame_of_records(source, contents)


def _with_positions(nodes: list[Any], edges: list[Any]) -> list[Any]:
    """Return records of nodes, with their position as id where edges refer to nodes by it, as in d3."""
    if not all(isinstance(row, dict) for row in (*nodes, *edges)) or any("id" in row for row in nodes):
        return nodes
    if {type(edge.get(end)) for edge in edges for end in ("source", "target")} != {int}:
        return nodes
    return [{"id": place} | {k: v for k, v in row.items() if k != "index"} for place, row in enumerate(nodes)]


def _read_json_lines(source: _Reading) -> pandas.DataFrame:
    lines = source.memory.stream(source.name, source.file)
    return _frame_of_records(source, [json.loads(line) for line in lines if line.strip()])


def _frame_of_records(source: _Reading, contents: Any) -> pandas.DataFrame:
    rows = contents if isinstance(contents, list) else [contents]
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise PairNormError(
            "it holds no table",
            code="unknown-contents",
            value=type(rows[0]).__name__ if rows else None,
            expected='rows such as {"id": "a", "age": 31}',
        )
    if isinstance(contents, list):  # each row may have columns of its own
        source.memory.check_cells(source.name, len(rows), len({name for row in rows for name in row}))
    elif len({len(cells) for cells in contents.values() if isinstance(cells, list | dict)}) > 1:
        problem, hint = "its columns differ in length", "If they are features of nodes, pass {features}."
        raise PairNormError(problem, code="unknown-contents", hint=hint, features=source.name)
    frame = pandas.DataFrame(contents, dtype=object)
    if source.role == "nodes" and "id" in frame:  # keys have no order, and networkx writes the id last
        frame = frame[["id", *frame.columns.drop("id")]]
    return _typed(frame)


def _typed(frame: pandas.DataFrame) -> pandas.DataFrame:
    """Give columns of objects their type, except whole numbers next to an empty cell."""
    columns = (frame.iloc[:, place] for place in range(frame.shape[1]))
    typed = [column.infer_objects() if column.notna().all() else column for column in columns]
    return pandas.concat(typed, axis=1) if typed else frame


FRAMES = {".parquet": _read_parquet, ".xlsx": _read_excel, ".json": _read_json, ".jsonl": _read_json_lines}
TABLES = (*DELIMITERS, *TEXT_FILES, *FRAMES)


def run_query(name: str, database: str, query: str, memory: MemoryLimit) -> pandas.DataFrame:
    """Return the rows of a query, or of a table that is named; the database is not changed."""
    sqlalchemy = load_library("sqlalchemy", "reading a database")
    try:
        url = sqlalchemy.make_url(database)
    except (ValueError, sqlalchemy.exc.SQLAlchemyError) as error:  # such as a port that is no number
        raise _no_database(f"the URL of the database is not valid: {error}", error) from error
    try:
        if url.drivername in ("postgres", "postgresql"):
            url = url.set(drivername="postgresql+psycopg")
        local = url.get_backend_name() in ("sqlite", "duckdb") and url.database
        if local and local != ":memory:":
            check_is_file(Path(local))  # else an empty one would be made
        reading = {"read_only": True} if url.get_backend_name() == "duckdb" else {}
        engine = open_engine(url, poolclass=sqlalchemy.NullPool, connect_args=reading)
        with engine.connect() as connection:  # what is not committed is undone
            connection = connection.execution_options(stream_results=True)
            if len(query.split()) == 1:
                quote = connection.dialect.identifier_preparer.quote
                query = f"SELECT * FROM {'.'.join(map(quote, query.split('.')))}"
            with connection.exec_driver_sql(query) as result:
                if not result.returns_rows:
                    problem = f"{name} gives no rows"
                    expected = "a SELECT, or a table's name"
                    raise PairNormError(problem, code="no-rows", value=query, expected=expected)
                columns = check_column_names(name, list(result.keys()))
                rows: list[Any] = []
                while batch := result.fetchmany(ROWS_AT_ONCE):
                    rows += batch
                    memory.check_cells(name, len(rows), len(columns))
                return _typed(pandas.DataFrame(rows, columns=list(columns), dtype=object))
    except sqlalchemy.exc.NoSuchModuleError as error:
        raise _no_database(f"databases of type {url.drivername!r} are not known", error) from error
    except ImportError as error:
        raise missing_library("this database", error.name) from error
    except (sqlalchemy.exc.SQLAlchemyError, UnicodeError) as error:
        raise _no_database(f"{name}: {getattr(error, 'orig', None) or error}", error) from error


def _no_database(problem: str, error: Exception) -> PairNormError:
    return PairNormError(
        " ".join(problem.split())[:300],
        code="database-error",
        value=type(error).__name__,
        expected="a URL such as sqlite:///file.db, duckdb:///file.db or postgresql://user@host/database, "
        "and a query that it answers",
    )


def open_tables(
    role: str,
    paths: PathOrPaths,
    options: ColumnOptions = DEFAULT_OPTIONS,
    *,
    database: str | None = None,
    memory: MemoryLimit = NO_LIMIT,
) -> list[Table]:
    """Open the tables of one ``role`` (nodes, edges or features), and read their first rows.

    They are files, patterns, ``'-'``, or queries of a database.
    """
    several = [paths] if isinstance(paths, str | PathLike) else list(paths)
    if database is not None:
        name = f"the query for {role}"
        frames = [run_query(name, database, fspath(query), memory) for query in several]
        return [Table(name, tuple(frame.columns), frame) for frame in frames]
    tables = []
    for place in find_files(several):
        if place == STDIN:
            name = "the standard input"
            kind, data = read_stdin(name, role, memory)
            tables.append(_open_table(name, kind, partial(BytesIO, data), role, options, memory))
        else:
            tables.append(open_table(place, role, options, memory))
    return tables


def open_table(
    path: Path,
    role: str = "nodes",
    options: ColumnOptions = DEFAULT_OPTIONS,
    memory: MemoryLimit = NO_LIMIT,
) -> Table:
    """Open one table, and read its first rows."""
    book, _, sheet = str(path).rpartition("#")
    if book.lower().endswith(".xlsx") and not path.exists():
        opened = partial(open_plain, check_is_file(Path(book)))
        return _open_table(path.name, ".xlsx", opened, f"#{sheet}", options, memory)
    if check_is_file(path).stat().st_size == 0:
        raise empty_file(path.name)
    kind, compression = file_type(path), path.suffix.lower()
    if compression not in COMPRESSED and kind not in FRAMES:
        count = path.stat().st_size
        memory.check(path.name, count * BYTES_PER_TEXT_BYTE, f"a text of {count:,} bytes")
    opened = partial(COMPRESSED.get(compression, open_plain), path)
    return _open_table(path.name, kind, opened, role, options, memory)


def _open_table(
    name: str, kind: str, opened: Open, role: str, options: ColumnOptions, memory: MemoryLimit
) -> Table:
    decimal = options.decimal
    if kind == ".parquet":  # may be large, and names its columns first
        with explain_read_errors(name), opened() as file:
            parquet = load_library("pyarrow.parquet", "reading Parquet")
            columns = check_column_names(name, parquet.read_schema(as_seekable(name, file, memory)).names)
        load = partial(read_frame, name, kind, opened, role, memory)
        return Table(name, columns, load=lambda: load()[0], decimal=decimal)
    if kind in FRAMES:
        frame, notes = read_frame(name, kind, opened, role, memory)
        return Table(name, check_column_names(name, list(frame.columns)), frame, decimal=decimal, notes=notes)
    delimiter = (options.edge_delimiter if role == "edges" else None) or options.delimiter
    sign = "\t" if delimiter in TAB else delimiter or DELIMITERS.get(kind, ",")
    if len(sign) != 1:
        problem, expected = f"delimiter is {quoted(sign)}", "one character, or 'tab'"
        raise PairNormError(problem, code="out-of-range", value=sign, expected=expected)
    max_cells = (4.0 if kind in DELIMITERS else inf) if role == "edges" or kind not in DELIMITERS else 0.0

    def counted() -> IO[bytes]:
        return memory.stream(name, opened(), sign)

    with explain_read_errors(name):
        text, notes = open_text(name, counted, sign, options.encoding, max_cells, delimiter is None)
        other = find_delimiter(text, ROWS_TO_COMPARE)
        with text.rows(errors="replace") as reader:
            stripped = ([cell.strip() for cell in cells] for cells in reader)
            header, *rows = list(islice(filter(any, stripped), ROWS_TO_COMPARE + 1)) or [[]]
    if not header:
        raise empty_file(name)
    if other != text.delimiter and delimiter is None:
        again = replace(options, delimiter=other, edge_delimiter=None)
        result = _open_table(name, kind, opened, role, again, memory)
        note = f"{name} is separated by {other!r}; --delimiter (delimiter=) names another sign"
        return replace(result, notes=[*result.notes, note])
    if len(header) == 1 and other != text.delimiter:
        problem = f"{name}: line 1 is one column {quoted(header[0])}: separated by {other!r}, not {sign!r}?"
        hint = "Pass {delimiter}."
        raise PairNormError(problem, code="wrong-delimiter", value=sign, hint=hint, delimiter=other)
    named = options.columns_of(role)
    if first_line_is_data(header, rows, role == "edges", named, may_be_numbered=not text.is_converted):
        table = Table(name, tuple(header), text=text, decimal=decimal, notes=notes)
        return without_header(table, {"edges": "an edge", "nodes": "a node"}.get(role, "a row"), named)
    if role == "edges" and len(set(header)) < len(header):
        notes.append(f"columns of {name} with the same title are called 'column 1', 'column 2', …")
        header = [f"column {n + 1}" if header.count(title) > 1 else title for n, title in enumerate(header)]
    return Table(name, check_column_names(name, header), text=text, decimal=decimal, notes=notes)


def first_line_is_data(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    is_edge: bool,
    named: Sequence[str],
    may_be_numbered: bool,
) -> bool:
    """Return whether the first line of a text is no header: its cells look like those of the ``rows`` below.

    With ``may_be_numbered``, increasing whole numbers may be column names, as pandas writes them.
    """
    repeated = [title for title, times in Counter(titles).items() if times > 1]
    if any(map(is_number, repeated)):
        return True
    texts = [place for place, title in enumerate(titles) if not (is_missing(title) or is_number(title))]
    if not titles[0] or any(titles[place] in named or ID_NAME.search(titles[place]) for place in texts):
        return False
    is_repeated = False
    for place in texts:
        cells = {row[place] for row in rows if place < len(row) and not is_missing(row[place])}
        if cells and all(map(is_number, cells)):
            return False
        is_repeated |= titles[place] in cells
    if texts or not rows:
        return is_repeated or (is_edge and bool(repeated))
    numbers = [float(title) for title in titles if WHOLE.fullmatch(title)]
    is_increasing = len(numbers) == len(titles) and all(np.diff(numbers) > 0)
    return not (may_be_numbered and is_increasing)
