"""Open tables: text files, whose rows are read later, and tables that are read whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from io import BytesIO
from itertools import islice
from math import inf
from os import PathLike, fspath
from pathlib import Path
from typing import IO

import numpy as np

from pairnorm.base.errors import PairNormError, load_library, quoted
from pairnorm.base.memory import BYTES_PER_TEXT_BYTE, NO_LIMIT, MemoryLimit
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
    read_stdin,
)
from pairnorm.data.frames import FRAMES, as_seekable, check_column_names, read_frame, run_query
from pairnorm.data.profile import ID_NAME, WHOLE, is_missing, is_number
from pairnorm.data.tables import Table, without_header

DEFAULT_OPTIONS = ColumnOptions()
DELIMITERS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
TAB = ("tab", "\\t")  # A tab is hard to type in a shell.
# Text files whose delimiter is detected, white space included.
TEXT_FILES = (".txt", ".dat", ".data", ".edgelist", ".edges", ".content", ".cites")
ROWS_TO_COMPARE = 200
TABLES = (*DELIMITERS, *TEXT_FILES, *FRAMES)


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
