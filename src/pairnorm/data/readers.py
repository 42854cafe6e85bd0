"""Open tables: text in any encoding, Parquet, Excel, JSON, compressed, standard input, or a database."""

from __future__ import annotations

import bz2
import codecs
import gzip
import json
import lzma
import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from glob import glob
from io import BufferedReader, BytesIO, RawIOBase, TextIOWrapper
from itertools import islice
from os import PathLike, fspath
from pathlib import Path, PurePath
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from pairnorm.base.errors import PairNormError, closest, one_of, quoted
from pairnorm.base.files import check_path
from pairnorm.base.memory import (
    BYTES_PER_TEXT_BYTE,
    BYTES_PER_XML_BYTE,
    NO_LIMIT,
    MemoryLimit,
)
from pairnorm.data.tables import Source, readable, shown

if TYPE_CHECKING:
    import pandas


Given = str | PathLike[str] | Sequence[str | PathLike[str]]
Open = Callable[[], IO[bytes]]

DELIMITERS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
TAB = ("tab", "\\t")  # A tab is hard to type in a shell.
TABLES = (*DELIMITERS, ".parquet", ".xlsx", ".json", ".jsonl")
STDIN = "-"
ROWS_AT_ONCE = 10_000
COMMENT, MAX_COMMENT_LINES = ("#", "%"), 1000
BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16, whose mark begins it
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
MAGIC = {
    b"\x1f\x8b": ".gz",
    b"BZh": ".bz2",
    b"\xfd7zXZ": ".xz",
    b"\x28\xb5\x2f\xfd": ".zst",
    b"PAR1": ".parquet",
    b"PK\x03\x04": ".xlsx",
}


def open_tables(
    role: str,
    given: Given,
    *,
    delimiter: str | None = None,
    encoding: str | None = None,
    decimal: str | None = None,
    database: str | None = None,
    memory: MemoryLimit = NO_LIMIT,
) -> list[Source]:
    """Look at the head of each of some tables of one ``role``: nodes, edges or features.

    They are files, patterns, ``'-'``, or queries; options are as for ``Graph.from_files``.
    """
    if decimal is not None:
        one_of("decimal", decimal, (".", ","))
    if encoding is not None:
        _check_encoding(encoding)
    several = [given] if isinstance(given, str | PathLike) else list(given)
    if database is not None:
        return [_query(database, fspath(query), role, memory) for query in several]
    how: dict[str, Any] = {"delimiter": delimiter, "encoding": encoding, "decimal": decimal, "memory": memory}
    return [
        _read_stdin(role, how) if place == STDIN else open_table(place, **how, role=role)
        for place in find_files(several)
    ]


def find_files(given: Iterable[str | PathLike[str]]) -> list[Any]:
    """Return the files that names, patterns and folders of Parquet files stand for; ``'-'`` stays."""
    files: list[Any] = []
    for place in given:
        path = check_path(Path(place))
        if fspath(place) == STDIN:
            files.append(STDIN)
        elif path.is_dir() and (inside := sorted(path.glob("*.parquet"))):
            files += inside
        elif not path.exists() and any(sign in fspath(place) for sign in "*?["):
            matching = sorted(map(Path, glob(fspath(place), recursive=True)))
            if not matching:
                raise PairNormError(f"{place}: no file matches", code="file-missing", value=str(place))
            files += matching
        else:
            files.append(path)
    return files


def existing(path: Path) -> Path:
    """Return a path if it is a file, else raise an error that names it."""
    if path.is_file():
        return path
    if path.exists() and not path.is_dir():  # reading a pipe or a device could wait for ever
        problem = f"{path}: it is a pipe or a device"
        hint = "Write its contents to a file, or pipe them to the standard input: -"
        raise PairNormError(problem, code="not-a-file", value=str(path), expected="a regular file", hint=hint)
    problem = f"{path}: there is no such file"
    raise PairNormError(problem, code="file-missing", value=str(path), hint="Check the name and the folder.")


def kind_of(path: PurePath) -> str:
    """Return the ending of a file's name, without that of a compression; a zip has that of what is inside.

    >>> kind_of(PurePath("nodes.CSV.gz"))
    '.csv'
    """
    if ".xlsx#" in path.name.lower():  # the sheet of a workbook
        return ".xlsx"
    ending = path.suffix.lower()
    if ending == ".zip" and not PurePath(path.stem).suffix and Path(path).is_file():
        with readable(path.name):
            return kind_of(PurePath(_member(Path(path))))
    return PurePath(path.stem).suffix.lower() if ending in COMPRESSED else ending


def name_of(place: str) -> str:
    """Return what is before the endings of a file's name, those of its kind and of its compression.

    >>> name_of("v1.2.csv.gz")
    'v1.2'
    """
    path = PurePath(place)
    return PurePath(path.stem).stem if path.suffix.lower() in COMPRESSED else path.stem


def open_table(
    path: Path,
    delimiter: str | None = None,
    encoding: str | None = None,
    decimal: str | None = None,
    role: str = "nodes",
    memory: MemoryLimit = NO_LIMIT,
) -> Source:
    """Look at the head of one file; see ``open_tables``."""
    book, _, sheet = str(path).rpartition("#")
    if book.lower().endswith(".xlsx") and not path.exists():
        frame, notes = _frame(path.name, ".xlsx", partial(_plain, existing(Path(book))), f"#{sheet}", memory)
        return Source(
            path.name, columns_of(path.name, list(frame.columns)), frame, decimal=decimal, notes=notes
        )
    if existing(path).stat().st_size == 0:
        raise _empty(path.name)
    kind, compression = kind_of(path), path.suffix.lower()
    if compression not in COMPRESSED and kind not in FRAMES:
        bytes_ = path.stat().st_size
        memory.check(path.name, bytes_ * BYTES_PER_TEXT_BYTE, f"a text of {bytes_:,} bytes")
    opened: Open = partial(COMPRESSED.get(compression, _plain), path)
    return _table(path.name, kind, opened, role, delimiter, encoding, decimal, memory)


def _table(
    name: str,
    kind: str,
    opened: Open,
    role: str,
    delimiter: str | None,
    encoding: str | None,
    decimal: str | None,
    memory: MemoryLimit,
) -> Source:
    if kind == ".parquet":  # may be large, and tells its columns first
        with readable(name), opened() as file:
            parquet = _library("pyarrow.parquet", "Parquet")
            columns = columns_of(name, parquet.read_schema(_seekable(name, file, memory)).names)
        load = partial(_frame, name, kind, opened, role, memory)
        return Source(name, columns, load=lambda: load()[0], decimal=decimal)
    if kind in FRAMES:
        frame, notes = _frame(name, kind, opened, role, memory)
        return Source(name, columns_of(name, list(frame.columns)), frame, decimal=decimal, notes=notes)
    given, delimiter = delimiter, "\t" if delimiter in TAB else delimiter or DELIMITERS.get(kind, ",")
    if len(delimiter) != 1:
        problem = f"delimiter is {quoted(delimiter)}"
        raise PairNormError(problem, code="out-of-range", value=delimiter, expected="one character, or 'tab'")
    unlimited, opened = opened, partial(_limited, name, opened, memory, delimiter)
    with readable(name):
        detected, notes = (_with_mark(encoding), []) if encoding else _find_encoding(name, opened)
        is_converted = role == "edges" and given is None and _is_edge_list(opened, detected)
        if is_converted:
            notes.append(f"{name} is separated by spaces; lines that begin with # or % are comments")
            opened, detected, delimiter = partial(_open_edge_list, opened, detected), "utf-8", "\t"
        source = Source(name, (), open=opened, delimiter=delimiter, encoding=detected)
        with source.lines() as lines:
            titles = ([cell.strip() for cell in cells] for cells in lines)
            header: list[str] = next(filter(any, titles), [])
    if not header:
        raise _empty(name)
    other = next((sign for sign in (",", ";", "\t", "|") if sign != delimiter and sign in header[0]), None)
    if len(header) == 1 and other and given is None:
        result = _table(name, kind, unlimited, role, other, encoding, decimal, memory)
        note = f"{name} is separated by {other!r}; --delimiter (delimiter=) names another sign"
        return replace(result, notes=[*result.notes, note])
    if len(header) == 1 and other:
        problem = (
            f"{name}: line 1 is one column {quoted(header[0])}: separated by {other!r}, not by {delimiter!r}?"
        )
        hint = "Pass {delimiter}."
        raise PairNormError(problem, code="wrong-delimiter", value=delimiter, hint=hint, delimiter=other)
    has_header = role != "edges" or len({*header}) == len(header)
    columns = columns_of(name, header) if has_header else tuple(f"column {n + 1}" for n in range(len(header)))
    if not has_header:
        notes.append(f"line 1 of {name} is an edge, not a header")
    return Source(
        name, columns, None, opened, None, delimiter, detected, decimal, has_header, is_converted, notes
    )


def _limited(name: str, opened: Open, memory: MemoryLimit, delimiter: str) -> IO[bytes]:
    return memory.stream(name, opened(), delimiter)


def _is_edge_list(opened: Open, encoding: str) -> bool:
    """Return whether a text begins with comments, or separates the cells of its first line by spaces."""
    with opened() as file, TextIOWrapper(file, encoding, errors="replace") as text:
        for line in islice(text, MAX_COMMENT_LINES):
            if line.startswith(COMMENT):
                continue
            if line.strip():
                cells = line.split()
                return len(cells) in (2, 3, 4) and not any(sign in line for sign in ',;|\t"')
    return False


def _open_edge_list(opened: Open, encoding: str) -> IO[bytes]:
    return BufferedReader(_SpacesAsTabs(opened, encoding))


class _SpacesAsTabs(RawIOBase):
    """The bytes of an edge list with a tab between cells, and empty lines for comments."""

    def __init__(self, opened: Open, encoding: str) -> None:
        self._text = TextIOWrapper(opened(), encoding)
        self._rest = b""

    def readable(self) -> bool:
        """Return True, as ``io`` asks."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, as ``io`` asks."""
        while len(self._rest) < len(buffer) and (lines := self._text.readlines(2**16)):
            cells = ("" if line.startswith(COMMENT) else "\t".join(line.split()) for line in lines)
            self._rest += ("\n".join(cells) + "\n").encode()
        part, self._rest = self._rest[: len(buffer)], self._rest[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)

    def close(self) -> None:
        """Close the file."""
        self._text.close()
        super().close()


def columns_of(name: str, header: Sequence[Any]) -> tuple[str, ...]:
    """Return the names of columns, which must all be different."""
    columns = tuple(map(str, header))
    column, times = Counter(columns).most_common(1)[0] if columns else ("", 0)
    if times > 1:
        problem = f"{name}: column {quoted(column)} is there twice"
        raise PairNormError(
            problem, code="duplicate-column", value=column, hint="Give each column its own name."
        )
    if not columns:
        raise _empty(name)
    return columns


def _empty(name: str) -> PairNormError:
    return PairNormError(f"{name}: the file is empty", code="file-empty", expected="a header line and rows")


def _plain(path: Path) -> IO[bytes]:
    return open(path, "rb")


def _unzip(path: Path) -> IO[bytes]:
    return zipfile.ZipFile(path).open(_member(path))


def _member(path: Path) -> str:
    with zipfile.ZipFile(path) as archive:
        names = [one.filename for one in archive.infolist() if not one.is_dir()]
    names = [name for name in names if not name.startswith("__MACOSX/")]
    if len(names) != 1:
        problem = f"it holds {len(names)} files: {shown(names)}"
        raise PairNormError(
            problem, code="unknown-contents", value=names, expected="one table", hint="Unpack it."
        )
    return names[0]


def _unzstd(path: Path | IO[bytes]) -> IO[bytes]:
    zstandard = _library("zstandard", "zstd")
    opened: IO[bytes] = zstandard.open(path, "rb")
    return opened


COMPRESSED: dict[str, Callable[[Any], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": _unzstd,
    ".zip": _unzip,
}


def _library(name: str, what: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        raise _missing_library(f"reading {what}", name.partition(".")[0]) from error


def _missing_library(what: str, library: str | None) -> PairNormError:
    hint = "pip install 'pairnorm[all]'"
    return PairNormError(f"{what} needs {library}", code="library-missing", value=library, hint=hint)


def _read_stdin(role: str, how: dict[str, Any]) -> Source:
    name, memory = "the standard input", how["memory"]
    data = memory.read(name, sys.stdin.buffer)
    if not data:
        problem = f"{name}: there is nothing left to read for the {role}"
        raise PairNormError(problem, code="file-empty", expected="a table; only one can be piped in")
    opened: Open = partial(BytesIO, data)
    kind = _magic(data)
    with readable(name):
        if kind in COMPRESSED:
            with COMPRESSED[kind](BytesIO(data)) as file:
                data = memory.read(name, file)
            opened, kind = partial(BytesIO, data), _magic(data)
        return _table(name, kind, opened, role, **how)


def _magic(data: bytes) -> str:
    """Return the ending that a file with these bytes would have."""
    start = data[:64].lstrip(codecs.BOM_UTF8).lstrip()
    if start.startswith((b"{", b"[")):
        with suppress(ValueError):
            json.loads(data)
            return ".json"
        return ".jsonl"
    return next((kind for magic, kind in MAGIC.items() if data.startswith(magic)), ".csv")


def _check_encoding(name: str) -> None:
    try:
        "".encode(name)
    except (LookupError, ValueError) as error:
        problem = f"encoding is {quoted(name)}"
        expected = "one that Python knows, such as 'utf-8', 'utf-16' or 'latin-1'"
        raise PairNormError(problem, code="unknown-choice", value=name, expected=expected) from error


def _with_mark(encoding: str) -> str:
    return "utf-8-sig" if codecs.lookup(encoding).name == "utf-8" else encoding


def _find_encoding(name: str, opened: Open) -> tuple[str, list[str]]:
    """Return the encoding of a text by its bytes, all of them, and a note unless it is UTF-8."""
    with opened() as file:
        start = file.read(2**12)
    marked = next((encoding for mark, encoding in BYTE_ORDER_MARKS.items() if start.startswith(mark)), None)
    if marked:
        return marked, []
    odd, even = start[1::2].count(0), start[::2].count(0)
    if max(odd, even) > len(start) / 4:  # every other byte of plain UTF-16 is zero
        encoding = "utf-16-le" if odd > even else "utf-16-be"
    else:
        encoding = next((one for one in ("utf-8", "cp1252") if _decodes(opened, one)), "latin-1")
    if encoding == "utf-8":
        return encoding, []
    title = {"cp1252": "Windows-1252 (Latin-1)", "latin-1": "Latin-1"}.get(encoding, encoding.upper())
    return encoding, [f"{name} is not UTF-8 and is read as {title}; --encoding (encoding=) names another"]


def _decodes(opened: Open, encoding: str) -> bool:
    decoder = codecs.getincrementaldecoder(encoding)()
    with opened() as file:
        try:
            while block := file.read(2**20):
                decoder.decode(block)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return False
    return True


class _Reading(NamedTuple):
    """What a reader of whole tables needs."""

    name: str
    file: IO[bytes]
    role: str
    notes: list[str]
    memory: MemoryLimit


def _frame(
    name: str, kind: str, opened: Open, role: str, memory: MemoryLimit
) -> tuple[pandas.DataFrame, list[str]]:
    notes: list[str] = []
    with readable(name), opened() as file:
        return FRAMES[kind](_Reading(name, file, role, notes, memory)), notes


def _read_parquet(given: _Reading) -> pandas.DataFrame:
    parquet = _library("pyarrow.parquet", "Parquet")
    with parquet.ParquetFile(_seekable(given.name, given.file, given.memory)) as table:
        given.memory.check_cells(given.name, table.metadata.num_rows, table.metadata.num_columns)
        return arrow_frame(table.read())


def _seekable(name: str, file: IO[bytes], memory: MemoryLimit) -> IO[bytes]:
    if isinstance(file, BufferedReader | BytesIO):
        return file
    return BytesIO(memory.read(name, file))


def arrow_frame(table: Any) -> pandas.DataFrame:
    """Return a pyarrow table as a frame, whole numbers next to an empty cell unchanged."""
    import pyarrow

    for place, field in enumerate(table.schema):
        if pyarrow.types.is_binary(field.type) or pyarrow.types.is_large_binary(field.type):
            # Some writers do not mark text as such; what is none is refused where it is used.
            with suppress(pyarrow.ArrowInvalid):
                table = table.set_column(place, field.name, table.column(place).cast(pyarrow.large_string()))
    # What pandas wrote about its index is ignored: to us that is a column like any other. Whole numbers
    # next to an empty cell must not become floats: two that differ in their last digit would be one.
    frame: pandas.DataFrame = table.to_pandas(ignore_metadata=True, integer_object_nulls=True)
    return frame


def _read_excel(given: _Reading) -> pandas.DataFrame:
    """Read the sheet named after ``#``, else the one named after the role, else the first."""
    import pandas

    openpyxl, role = _library("openpyxl", "Excel"), given.role
    file = _seekable(given.name, given.file, given.memory)
    with zipfile.ZipFile(file) as archive:
        xml = sum(member.file_size for member in archive.infolist())
        given.memory.check(given.name, xml * BYTES_PER_XML_BYTE, f"a workbook of {xml:,} bytes of XML")
    book = openpyxl.load_workbook(file, read_only=True, data_only=True, keep_links=False)
    try:
        sheets = [sheet.title for sheet in book.worksheets]
        requested = role.removeprefix("#").strip().lower()
        named = [sheet for sheet in sheets if sheet.strip().lower() == requested]
        if role.startswith("#") and not named:
            problem, hint = f"there is no sheet {quoted(role[1:])}", closest(role[1:], sheets)
            expected = f"one of {shown(sheets, 10)}"
            raise PairNormError(problem, code="unknown-sheet", value=role[1:], expected=expected, hint=hint)
        sheet = next(iter(named), sheets[0])
        if len(sheets) > 1 and not role.startswith("#"):
            given.notes.append(f"the {role} are read from sheet {quoted(sheet)} of {shown(sheets)}")
        rows = _sheet_rows(given, book[sheet])
    finally:
        book.close()
    if not rows:
        problem = f"sheet {quoted(sheet)} is empty"
        raise PairNormError(problem, code="file-empty", expected="a header and rows")
    used = sorted({column for row in rows for column in row})
    given.memory.check_cells(given.name, len(rows), len(used))
    titles, *cells = [[row.get(column) for column in used] for row in rows]
    return _typed(pandas.DataFrame(cells, columns=[str(title).strip() for title in titles], dtype=object))


def _sheet_rows(given: _Reading, sheet: Any) -> list[dict[int, Any]]:
    """Return the filled cells of each row that has some, by column: a sheet may have one far cell."""
    rows, filled = [], 0
    sheet.reset_dimensions()  # what the file says of them may be anything
    for cells in sheet.iter_rows():
        row = {cell.column: _excel_value(cell) for cell in cells if cell.value not in (None, "")}
        if row:
            rows.append(row)
            filled += len(row)
            given.memory.check_cells(given.name, 1, filled)
    return rows


def _excel_value(cell: Any) -> Any:
    """Return the value of a cell: a whole number as an integer, an error as missing."""
    if isinstance(cell.value, float) and cell.value.is_integer():
        return int(cell.value)
    return None if cell.data_type == "e" else cell.value


def _read_json(given: _Reading) -> pandas.DataFrame:
    """Read a list of records or a dictionary of columns, maybe under the name of what they are."""
    role = given.role
    contents = json.loads(given.memory.stream(given.name, given.file).read())
    if isinstance(contents, dict):
        # Graphs as d3 and networkx write them have both in one file.
        names = (role, "links") if role == "edges" else (role,)
        contents = next((contents[name] for name in names if isinstance(contents.get(name), list)), contents)
    if (
        role == "features"
        and isinstance(contents, dict)
        and all(isinstance(v, list | dict) for v in contents.values())
    ):
        contents = [
            {"node": node, "feature": feature, "value": words[feature] if isinstance(words, dict) else 1}
            for node, words in contents.items()
            for feature in words
        ]
    return _records(given, contents)


def _read_json_lines(given: _Reading) -> pandas.DataFrame:
    lines = given.memory.stream(given.name, given.file)
    return _records(given, [json.loads(line) for line in lines if line.strip()])


def _records(given: _Reading, contents: Any) -> pandas.DataFrame:
    import pandas

    rows = contents if isinstance(contents, list) else [contents]
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise PairNormError(
            "it holds no table",
            code="unknown-contents",
            value=type(rows[0]).__name__ if rows else None,
            expected='rows such as {"id": "a", "age": 31}',
        )
    if isinstance(contents, list):  # each row may have columns of its own
        given.memory.check_cells(given.name, len(rows), len({name for row in rows for name in row}))
    return _typed(pandas.DataFrame(contents, dtype=object))


def _typed(frame: pandas.DataFrame) -> pandas.DataFrame:
    """Give columns of objects their type, except whole numbers next to an empty cell."""
    import pandas

    columns = (frame.iloc[:, place] for place in range(frame.shape[1]))
    typed = [column.infer_objects() if column.notna().all() else column for column in columns]
    return pandas.concat(typed, axis=1) if typed else frame


CONNECT_SECONDS = 10
FRAMES = {".parquet": _read_parquet, ".xlsx": _read_excel, ".json": _read_json, ".jsonl": _read_json_lines}


def connect_arguments(url: Any) -> dict[str, Any]:
    """Return the time limit for connecting to a database server, which may accept and then fall silent."""
    known = "connect_timeout" in url.query or url.get_backend_name() not in ("postgresql", "mysql", "mariadb")
    return {} if known else {"connect_timeout": CONNECT_SECONDS}


def _query(database: str, query: str, role: str, memory: MemoryLimit) -> Source:
    """Return what a query finds, or all of a table that is named; nothing is changed there."""
    import pandas

    sqlalchemy = _library("sqlalchemy", "a database")
    name = f"the query for {role}"
    try:
        url = sqlalchemy.make_url(database)
    except (ValueError, sqlalchemy.exc.SQLAlchemyError) as error:  # such as a port that is no number
        raise _no_database(f"the URL of the database is not valid: {error}", error) from error
    try:
        if url.drivername in ("postgres", "postgresql"):
            url = url.set(drivername="postgresql+psycopg")
        local = url.get_backend_name() in ("sqlite", "duckdb") and url.database
        if local and local != ":memory:":
            existing(Path(local))  # else an empty one would be made
        reading = {"read_only": True} if url.get_backend_name() == "duckdb" else connect_arguments(url)
        engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool, connect_args=reading)
        with engine.connect() as connection:  # what is not committed is undone
            if len(query.split()) == 1:
                quote = connection.dialect.identifier_preparer.quote
                query = f"SELECT * FROM {'.'.join(map(quote, query.split('.')))}"
            result = connection.exec_driver_sql(query)
            if not result.returns_rows:
                problem = f"{name} gives no rows"
                expected = "a SELECT, or a table's name"
                raise PairNormError(problem, code="no-rows", value=query, expected=expected)
            columns = columns_of(name, list(result.keys()))
            rows: list[Any] = []
            while some := result.fetchmany(ROWS_AT_ONCE):
                rows += some
                memory.check_cells(name, len(rows), len(columns))
            frame = _typed(pandas.DataFrame(rows, columns=list(columns), dtype=object))
    except sqlalchemy.exc.NoSuchModuleError as error:
        raise _no_database(f"databases of type {url.drivername!r} are not known", error) from error
    except ImportError as error:
        raise _missing_library("this database", error.name) from error
    except sqlalchemy.exc.SQLAlchemyError as error:
        raise _no_database(f"{name}: {getattr(error, 'orig', None) or error}", error) from error
    return Source(name, columns, frame)


def _no_database(problem: str, error: Exception) -> PairNormError:
    return PairNormError(
        " ".join(problem.split())[:300],
        code="database-error",
        value=type(error).__name__,
        expected="a URL such as sqlite:///file.db, duckdb:///file.db or postgresql://user@host/database, "
        "and a query that it answers",
    )
