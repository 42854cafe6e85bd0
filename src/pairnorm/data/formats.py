"""Open tables: text files, whose rows are read later, and Parquet, Excel, JSON and queries, read whole."""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from io import BufferedReader, BytesIO
from itertools import islice
from math import inf
from os import PathLike, fspath
from pathlib import Path
from typing import IO, Any, NamedTuple

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
from pairnorm.data.profile import MAX_DAYS, MIN_DAYS
from pairnorm.data.tables import Table, first_line_is_data, without_header

DEFAULT_OPTIONS = ColumnOptions()
DELIMITERS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
TAB = ("tab", "\\t")  # A tab is hard to type in a shell.
# Text files whose delimiter is detected, white space included.
TEXT_FILES = (".txt", ".dat", ".data", ".edgelist", ".edges", ".content", ".cites")
ROWS_TO_COMPARE = 200
MAX_EXCEL_ROWS = 2**20
ROWS_AT_ONCE = 10_000
ENDS = ("source", "target")
LINKS = "links"  # the role of edges that the file of the nodes must hold


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
        frames = (run_query(name, database, fspath(query), memory) for query in several)
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
    with explain_read_errors(name):
        counted = lambda: memory.stream(name, opened(), sign)  # noqa: E731
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
        more = {"hint": "Pass {delimiter}.", "delimiter": other}
        raise PairNormError(problem, code="wrong-delimiter", value=sign, **more)
    named = options.columns_of(role)
    if first_line_is_data(header, rows, role == "edges", named, may_be_numbered=not text.is_converted):
        table = Table(name, tuple(header), text=text, decimal=decimal, notes=notes)
        return without_header(table, {"edges": "an edge", "nodes": "a node"}.get(role, "a row"), named)
    if role == "edges" and len(set(header)) < len(header):
        notes.append(f"columns of {name} with the same title are called 'column 1', 'column 2', …")
        header = [f"column {n + 1}" if header.count(title) > 1 else title for n, title in enumerate(header)]
    return Table(name, check_column_names(name, header), text=text, decimal=decimal, notes=notes)


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


class _Source(NamedTuple):
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
        return FRAMES[kind](_Source(name, file, role, notes, memory)), notes


def _read_parquet(source: _Source) -> pandas.DataFrame:
    """Read Parquet in batches, within the memory limit."""
    parquet = load_library("pyarrow.parquet", "reading Parquet")
    with parquet.ParquetFile(as_seekable(source.name, source.file, source.memory)) as table:
        source.memory.check_cells(source.name, table.metadata.num_rows, table.metadata.num_columns)
        return _read_batches(source.name, table.schema_arrow, table.iter_batches(ROWS_AT_ONCE), source.memory)


def _read_batches(name: str, schema: Any, batches: Iterable[Any], memory: MemoryLimit) -> pandas.DataFrame:
    """Read batches of pyarrow within a limit: few bytes may unpack to many equal texts."""
    import pyarrow

    kept, total = [], 0
    for batch in batches:
        kept.append(batch)
        total += batch.nbytes
        memory.check(name, total, "what it unpacks to")
    return arrow_frame(pyarrow.Table.from_batches(kept, schema))


def as_seekable(name: str, file: IO[bytes], memory: MemoryLimit) -> IO[bytes]:
    """Return a file that can be read from any position: itself, or what it unpacks to."""
    return file if isinstance(file, BufferedReader | BytesIO) else BytesIO(memory.read(name, file))


def arrow_frame(table: Any) -> pandas.DataFrame:
    """Return a pyarrow table as a frame, whole numbers next to an empty cell unchanged."""
    import pyarrow
    from pyarrow import compute, types

    columns = []
    for column in table.columns:
        if types.is_date(column.type):  # infinite dates, for one, are beyond those of Python
            days = compute.divide(column.cast(pyarrow.timestamp("ms")).cast("int64"), 86_400_000)
            is_valid = compute.and_(compute.greater_equal(days, MIN_DAYS), compute.less(days, MAX_DAYS))
            column = compute.if_else(is_valid, column, None)
        elif types.is_interval(column.type):  # of DuckDB, to which a month has 30 days
            day, cells = pandas.Timedelta(days=1), column.to_pylist()
            spans = [c and pandas.Timedelta(c.nanoseconds) + (30 * c.months + c.days) * day for c in cells]
            column = pyarrow.array(spans, pyarrow.duration("us"))
        elif types.is_binary(column.type) or types.is_large_binary(column.type):
            # Some writers do not mark text as such; other bytes are refused where they are used.
            with suppress(pyarrow.ArrowInvalid):
                column = column.cast(pyarrow.large_string())
        columns.append(column)
    table = pyarrow.Table.from_arrays(columns, names=table.column_names)
    # What pandas wrote about its index is ignored: to us that is a column like any other. Whole numbers
    # next to an empty cell must not become floats: two that differ in their last digit would be one.
    frame: pandas.DataFrame = table.to_pandas(ignore_metadata=True, integer_object_nulls=True)
    return frame


def _read_excel(source: _Source) -> pandas.DataFrame:
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
        problem, expected = f"sheet {quoted(sheet)} is empty", "a header and rows"
        raise PairNormError(problem, code="file-empty", expected=expected)
    used = sorted({column for row in rows for column in row})
    source.memory.check_cells(source.name, len(rows), len(used))
    titles, *cells = [[row.get(column) for column in used] for row in rows]
    return _typed(pandas.DataFrame(cells, columns=[str(title).strip() for title in titles], dtype=object))


def _sheet_rows(source: _Source, sheet: Any) -> list[dict[int, Any]]:
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


def _read_json(source: _Source) -> pandas.DataFrame:
    """Read a list of records or a dictionary of columns, possibly under the key ``nodes`` or ``edges``."""
    role = source.role
    contents = json.loads(source.memory.stream(source.name, source.file).read())
    lists = _node_and_edge_lists(contents) if isinstance(contents, dict) else {}
    contents = lists.get("edges" if role == LINKS else role, contents)
    if role == LINKS and "edges" not in lists:
        raise edges_missing(source.name)
    is_mapping = isinstance(contents, dict) and all(isinstance(v, list | dict) for v in contents.values())
    if role == "features" and is_mapping:
        contents = [
            {"node": node, "feature": feature, "value": words[feature] if isinstance(words, dict) else 1}
            for node, words in contents.items()
            for feature in words
        ]
    return _frame_of_records(source, contents)


def _node_and_edge_lists(contents: dict[str, Any]) -> dict[str, list[Any]]:
    """Return the lists of a JSON graph by name: records of nodes, and of edges between their ids.

    The ends of links may be positions or nodes, as in d3. networkx also writes adjacency lists, and Cytoscape
    elements.
    """
    elements = contents.get("elements", contents)
    if isinstance(elements, list):
        parts = [[row for row in elements if ("source" in row["data"]) == is_edge] for is_edge in (0, 1)]
        elements = dict(zip(("nodes", "edges"), parts, strict=True))
    lists = {name: rows for name, rows in elements.items() if isinstance(rows, list)}
    if elements is not contents:
        lists = {name: [element["data"] for element in rows] for name, rows in lists.items()}
    nodes, edges = lists.get("nodes", []), lists.get("edges", lists.get("links"))
    if edges is None and "adjacency" in lists:
        edges = [
            {"source": node["id"], "target": other["id"]} | {k: v for k, v in other.items() if k != "id"}
            for node, neighbors in zip(nodes, lists["adjacency"], strict=True)
            for other in neighbors
        ]
    if edges is None or not all(isinstance(row, dict) for row in (*nodes, *edges)):
        return lists if edges is None else lists | {"edges": edges}
    ends = [
        {end: edge[end].get("id", edge[end].get("index")) for end in ENDS if isinstance(edge.get(end), dict)}
        for edge in edges
    ]
    edges = [edge | end for edge, end in zip(edges, ends, strict=True)]
    ids = [node["id"] for node in nodes if "id" in node]
    named = {edge.get(end) for edge in edges for end in ENDS}
    if nodes and {*map(type, named)} == {int} and named <= {*range(len(nodes))}.difference(ids):
        if ids:  # the ends are positions, as in d3
            edges = [edge | {end: nodes[edge[end]]["id"] for end in ENDS} for edge in edges]
        else:
            nodes = [{"id": place, **node} for place, node in enumerate(nodes)]
    nodes = [{k: v for k, v in row.items() if (k, v) != ("index", n)} for n, row in enumerate(nodes)]
    return lists | {"edges": edges} | ({"nodes": nodes} if nodes else {})


def _read_json_lines(source: _Source) -> pandas.DataFrame:
    """Read a record from each line."""
    lines = source.memory.stream(source.name, source.file)
    return _frame_of_records(source, [json.loads(line) for line in lines if line.strip()])


def _frame_of_records(source: _Source, contents: Any) -> pandas.DataFrame:
    """Make a table of records, or of a dictionary of columns."""
    rows = contents if isinstance(contents, list) else [contents]
    if not rows or not all(isinstance(row, dict) for row in rows):
        value, expected = type(rows[0]).__name__ if rows else None, 'rows such as {"id": "a", "age": 31}'
        raise PairNormError("it holds no table", code="unknown-contents", value=value, expected=expected)
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
    """Convert object columns to their inferred type, except whole numbers next to an empty cell."""
    typed = [column.infer_objects() if column.notna().all() else column for _, column in frame.items()]
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
        is_duckdb = url.get_backend_name() == "duckdb"
        if (is_duckdb or url.get_backend_name() == "sqlite") and url.database not in (None, "", ":memory:"):
            check_is_file(Path(url.database))  # else an empty one would be made
        if is_duckdb:
            return _query_duckdb(name, url.database, query, memory)
        engine = open_engine(url, poolclass=sqlalchemy.NullPool)
        with engine.connect() as connection:  # uncommitted changes are undone
            connection = connection.execution_options(stream_results=True)
            if len(query.split()) == 1:
                quote = connection.dialect.identifier_preparer.quote
                query = f"SELECT * FROM {'.'.join(map(quote, query.split('.')))}"
            with connection.exec_driver_sql(query) as result:
                if not result.returns_rows:
                    raise _no_rows(name, query)
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


def _query_duckdb(name: str, database: str, query: str, memory: MemoryLimit) -> pandas.DataFrame:
    """Return the rows of a query by Arrow, as those of Parquet: Python has no infinite dates and unions."""
    duckdb = load_library("duckdb", "reading a DuckDB database")
    try:
        with duckdb.connect(database, read_only=True) as connection:
            if len(query.split()) == 1:
                query = "FROM " + ".".join(f'"{part}"' for part in query.split("."))
            if (rows := connection.sql(query)) is None:
                raise _no_rows(name, query)
            check_column_names(name, rows.columns)
            batches = rows.to_arrow_reader(ROWS_AT_ONCE)
            with explain_read_errors(name):
                return _read_batches(name, batches.schema, batches, memory)
    except duckdb.Error as error:
        raise _no_database(f"{name}: {error}", error) from error


def _no_rows(name: str, query: str, expected: str = "a SELECT, or a table's name") -> PairNormError:
    """Return the error about a query that changes a database."""
    return PairNormError(f"{name} gives no rows", code="no-rows", value=query, expected=expected)


def _no_database(problem: str, error: Exception) -> PairNormError:
    """Return the error about a database that cannot be opened, or does not answer a query."""
    problem, kind = " ".join(problem.split())[:300], type(error).__name__
    urls = "sqlite:///file.db, duckdb:///file.db or postgresql://user@host/database"
    expected = f"a URL such as {urls}, and a query that it answers"
    return PairNormError(problem, code="database-error", value=kind, expected=expected)
