"""Tables of a user: columns, cells and lines of text or Parquet, names of nodes, and ends of edges."""

from __future__ import annotations

import csv
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence, Sized
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from pairnorm.errors import PairNormError, closest, quoted

if TYPE_CHECKING:
    import pandas


DELIMITERS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
TAB = ("tab", "\\t")  # A tab is hard to type in a shell.
TABLES = (*DELIMITERS, ".parquet")
ROWS_PER_BLOCK = 1_000_000
# What counts as empty among numbers. Among text only an empty cell does: there NA is a country.
EMPTY = ["", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", "?"]
TRUTH = {"True": 1.0, "TRUE": 1.0, "true": 1.0, "False": 0.0, "FALSE": 0.0, "false": 0.0}


@dataclass(frozen=True)
class Source:
    """Where rows come from, and how to tell a person about one of them.

    Args:
        name: what to call it in messages, e.g. ``'nodes.csv'``.
        columns: the names of its columns.
        path: the file; None for rows that were given in Python.
        delimiter: what separates its cells; None where it is no text file.
        frame: rows that were given in Python.
    """

    name: str
    columns: tuple[str, ...]
    path: Path | None = None
    delimiter: str | None = None
    frame: pandas.DataFrame | None = None

    def column(self, option: str, name: str) -> str:
        """Return ``name`` if there is such a column, else raise an error that suggests the closest one.

        Args:
            option: the argument that named it.
            name: the column.
        """
        if name in self.columns:
            return name
        raise PairNormError(
            f"{self.name}: there is no column {quoted(name)} ({option}); it has {shown(self.columns, 10)}",
            code="unknown-column",
            value=name,
            remedy=closest(name, self.columns),
        )

    def line(self, row: int) -> str:
        """Say where a row is: ``'line 7'`` of a text file (its header is line 1), ``'row 7'`` of others.

        Args:
            row: its number, from 0.
        """
        if self.path is None or self.delimiter is None:
            return f"row {row + 1:,}"
        # Counted only when something is wrong, for blank lines and quoted line breaks make it slow work.
        with text_rows(self.path, self.delimiter, errors="replace") as reader:
            seen, start = -1, 1
            for cells in reader:
                if len(cells) > 1 or any(cell.strip() for cell in cells):
                    if seen == row:
                        break
                    seen += 1
                start = reader.line_num + 1
        return f"line {start:,}"

    def reject(self, row: int, problem: str, code: str, **fields: Any) -> NoReturn:
        """Raise an error about one row; ``fields`` are those of ``PairNormError``."""
        raise PairNormError(f"{self.name}, {self.line(row)}: {problem}", code=code, **fields)

    def text(self, name: str, column: pandas.Series, first: int = 0) -> NDArray[np.object_]:
        """Return cells as stripped strings, None where empty; whole numbers are written without a point.

        Args:
            name: of the column.
            column: its cells, of any type.
            first: the number of its first row.
        """
        import pandas

        if pandas.api.types.is_float_dtype(column.dtype) and (column.dropna() % 1 == 0).all():
            column = column.astype("Int64")
        if isinstance(column.dtype, pandas.StringDtype):
            values = column.str.strip().astype(object).to_numpy(copy=True)
            empty = pandas.isna(values)
        else:
            values = column.astype(object).to_numpy(copy=True)
            empty = pandas.isna(values)
            for row in (row for row, value in enumerate(values) if isinstance(value, bytes)):
                self._reject_kind(first + row, name, values[row])
            values[~empty] = [str(value).strip() for value in values[~empty]]
        values[empty] = None
        values[values == ""] = None
        return values

    def numbers(self, name: str, column: pandas.Series, first: int = 0) -> NDArray[np.float32] | None:
        """Return a column of numbers or truths, NaN where empty, or None if it holds text throughout.

        Args:
            name: of the column.
            column: its cells.
            first: the number of its first row.
        """
        import pandas

        if pandas.api.types.is_numeric_dtype(column.dtype):
            values = column.to_numpy(dtype=np.float64, na_value=np.nan)
        elif pandas.api.types.is_datetime64_any_dtype(column.dtype):
            raise PairNormError(
                f"{self.name}: column {quoted(name)} holds dates",
                code="not-a-number",
                value=name,
                remedy="Turn them into numbers, or pass {ignore}.",
                ignore=[name],
            )
        elif (parsed := self._parse(name, column, first)) is not None:
            values = parsed
        else:
            return None
        with np.errstate(over="ignore"):
            narrow = values.astype(np.float32)
        if (infinite := np.isinf(narrow)).any():
            row = int(infinite.argmax())
            self.reject(
                first + row,
                f"{values[row]} in column {quoted(name)} is not finite",
                code="not-finite",
                value=float(values[row]),
                remedy="Correct it, or leave the cell empty.",
            )
        return narrow

    def _parse(self, name: str, column: pandas.Series, first: int) -> NDArray[np.float64] | None:
        import pandas

        with readable(f"{self.name}, column {quoted(name)}"):
            cells = column.astype(object)
            cells[cells.isin(EMPTY)] = None
            values = pandas.to_numeric(cells, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
        filled = cells.notna().to_numpy()
        text = filled & np.isnan(values)
        if not text.any():
            return values
        row = int(text.argmax())
        cell = cells.iloc[row]
        if isinstance(cell, Sized) and not isinstance(cell, str):
            self._reject_kind(first + row, name, cell)
        if (text < filled).any():
            self.reject(
                first + row,
                f"{quoted(str(cell))} in column {quoted(name)} is not a number",
                code="not-a-number",
                value=cell,
                remedy="Correct it, leave the cell empty, or pass {categorical}.",
                categorical=[name],
            )
        truths = np.asarray(cells.astype(str).map(TRUTH), dtype=np.float64)
        return None if np.isnan(truths[filled]).any() else truths

    def _reject_kind(self, row: int, name: str, cell: object) -> NoReturn:
        self.reject(
            row,
            f"column {quoted(name)} holds a {type(cell).__name__}",
            code="not-a-cell",
            value=name,
            expected="a number or a text",
            remedy="Give each of its numbers a column, or pass {ignore}.",
            ignore=[name],
        )


def shown(names: Sequence[str], most: int = 3) -> str:
    """Return the first few names, quoted."""
    return ", ".join(map(quoted, names[:most])) + (", …" if len(names) > most else "")


@contextmanager
def text_rows(path: Path, delimiter: str, errors: str = "strict") -> Iterator[Any]:
    """Give the csv reader of a file, for cells of any length."""
    limit = csv.field_size_limit(2**31 - 1)
    try:
        with open(path, encoding="utf-8-sig", errors=errors, newline="") as file:
            yield csv.reader(file, delimiter=delimiter, skipinitialspace=True)
    finally:
        csv.field_size_limit(limit)


def existing(path: Path) -> Path:
    """Return a path if it is a file, else raise an error that names it."""
    if path.is_file():
        return path
    problem = f"{path}: there is no such file"
    raise PairNormError(
        problem, code="file-missing", value=str(path), remedy="Check the name and the folder."
    )


def is_table(nodes: Path, edges: str | PathLike[str] | None, delimiter: str | None) -> bool:
    """Say whether nodes come as a table, by the file's ending or since edges and a delimiter come with it."""
    return nodes.suffix.lower() in TABLES or (edges is not None and delimiter is not None)


def open_table(path: Path, delimiter: str | None = None) -> Source:
    """Look at the first line of a table and return where it is and what its columns are called.

    Args:
        path: a CSV, TSV or Parquet file.
        delimiter: what separates the cells of text, or ``'tab'``. Default: a comma, in ``.tsv`` a tab.
    """
    if existing(path).stat().st_size == 0:
        raise _empty(path)
    if path.suffix.lower() == ".parquet":
        return Source(path.name, _parquet_columns(path), path)
    delimiter = "\t" if delimiter in TAB else delimiter or DELIMITERS.get(path.suffix.lower(), ",")
    if len(delimiter) != 1:
        problem = f"delimiter is {quoted(delimiter)}"
        raise PairNormError(problem, code="out-of-range", value=delimiter, expected="one character, or 'tab'")
    with readable(path.name), text_rows(path, delimiter) as lines:
        header: list[str] = next((cells for cells in lines if any(cell.strip() for cell in cells)), [])
    if not header:
        raise _empty(path)
    other = next((sign for sign in (",", ";", "\t", "|") if sign != delimiter and sign in header[0]), None)
    if len(header) == 1 and other:
        raise PairNormError(
            f"{path.name}: line 1 is one column {quoted(header[0])}: "
            f"separated by {other!r}, not by {delimiter!r}?",
            code="wrong-delimiter",
            value=delimiter,
            remedy="Pass {delimiter}.",
            delimiter=other,
        )
    name, times = Counter(header).most_common(1)[0]
    if times > 1:
        problem = f"{path.name}: column {quoted(name)} is there twice"
        raise PairNormError(
            problem, code="duplicate-column", value=name, remedy="Give each column its own name."
        )
    return Source(path.name, tuple(header), path, delimiter)


def _empty(path: Path) -> PairNormError:
    return PairNormError(
        f"{path.name}: the file is empty", code="file-empty", expected="a header line and rows"
    )


def _parquet_columns(path: Path) -> tuple[str, ...]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        problem = f"{path.name}: reading Parquet needs pyarrow"
        raise PairNormError(
            problem, code="library-missing", value="pyarrow", remedy="pip install 'pairnorm[all]'"
        ) from error
    with readable(path.name):
        return tuple(parquet.read_schema(path).names)


def read_blocks(
    source: Source, text: Sequence[str] = (), rows: int | None = ROWS_PER_BLOCK
) -> Iterator[pandas.DataFrame]:
    """Read a table block by block.

    Args:
        source: where it is.
        text: the columns to read as text even if they look like numbers.
        rows: how many rows are in a block; None for all of them.
    """
    if source.delimiter is not None:
        yield from _read_text(source, text, rows)
        return
    frame = _read_parquet(source) if source.frame is None else source.frame
    step = rows or max(len(frame), 1)
    yield from (frame.iloc[start : start + step] for start in range(0, max(len(frame), 1), step))


def _read_parquet(source: Source) -> pandas.DataFrame:
    import pyarrow
    from pyarrow import parquet

    with readable(source.name):
        table = parquet.read_table(source.path)
        for place, field in enumerate(table.schema):
            if pyarrow.types.is_binary(field.type) or pyarrow.types.is_large_binary(field.type):
                # Some writers do not mark text as such; what is none is refused where it is used.
                with suppress(pyarrow.ArrowInvalid):
                    table = table.set_column(
                        place, field.name, table.column(place).cast(pyarrow.large_string())
                    )
        # What pandas wrote about its index is ignored: to us that is a column like any other. Whole numbers
        # beside an empty cell must not become floats: two that differ in their last digit would be one.
        frame: pandas.DataFrame = table.to_pandas(ignore_metadata=True, integer_object_nulls=True)
    return frame


def _read_text(source: Source, text: Sequence[str], rows: int | None) -> Iterator[pandas.DataFrame]:
    import pandas

    assert source.path is not None
    with readable(source.name), warnings.catch_warnings():
        warnings.simplefilter("error", pandas.errors.ParserWarning)
        whole_or_blocks = pandas.read_csv(
            source.path,
            sep=source.delimiter,
            header=0,
            names=list(source.columns),
            index_col=False,
            dtype=dict.fromkeys(text, str),
            na_values=[""],  # what else is empty depends on the column: see ``Source.numbers``
            keep_default_na=False,
            skipinitialspace=True,
            encoding="utf-8-sig",
            low_memory=False,
            chunksize=rows,
        )
        if isinstance(whole_or_blocks, pandas.DataFrame):
            yield whole_or_blocks
        else:
            with whole_or_blocks:
                yield from whole_or_blocks


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Turn whatever a reader throws at a broken file into an error that names the file."""
    try:
        yield
    except PairNormError as error:
        raise error.within(name) from error
    except MemoryError as error:
        raise PairNormError(
            f"{name}: it asks for more memory than there is ({quoted(str(error))})", code="too-large"
        ) from error
    except UnicodeDecodeError as error:
        problem = f"{name}: byte {error.start} is not UTF-8"
        raise PairNormError(
            problem, code="wrong-encoding", remedy="Save the file with UTF-8 as its encoding."
        ) from error
    except Exception as error:
        problem = " ".join(str(error).split()).removeprefix("Error tokenizing data. C error: ")
        remedy = ""
        if fields := re.match(r"Expected (\d+) fields in line (\d+), saw (\d+)", problem):
            expected, line, found = fields.groups()
            problem = f"line {line} has {found} cells, expected {expected}"
            remedy = "Quote a cell that holds a delimiter."
        elif problem.startswith("Length of header"):
            problem, remedy = "its rows have more cells than its header", "Give every column a name."
        problem = problem[:300] or type(error).__name__
        raise PairNormError(f"{name}: {problem}", code="file-damaged", remedy=remedy) from error


class Ends(NamedTuple):
    """The two columns of a table of edges that name nodes, and whether we guessed them by their place."""

    source: str
    target: str
    guessed: bool = False


def find_ends(edges: Source, source: str | None = None, target: str | None = None) -> Ends:
    """Return the columns that are named, else ``source`` and ``target``, else the first two."""
    if len(edges.columns) < 2:
        problem = f"{edges.name}: it has one column only, {quoted(edges.columns[0])}"
        raise PairNormError(problem, code="too-few-columns", expected="the two ends of an edge")
    titled = {"source", "target"} <= set(edges.columns)
    defaults = ("source", "target") if titled else edges.columns[:2]
    first = defaults[0] if source is None else edges.column("source", source)
    second = defaults[1] if target is None else edges.column("target", target)
    if first == second:
        problem = f"{edges.name}: column {quoted(first)} is both source and target"
        raise PairNormError(problem, code="same-column", value=first, remedy="Name the two ends.")
    return Ends(first, second, guessed=not titled and source is None and target is None)


def node_names(source: Source, name: str, column: pandas.Series) -> NDArray[Any]:
    """Return the names of the nodes: int64 where all are plainly written whole numbers, else strings.

    Args:
        source: where the table is from, for messages.
        name: of the column.
        column: its cells.
    """
    import pandas

    text = source.text(name, column)
    empty = pandas.isna(text)
    if empty.any():
        row, remedy = int(empty.argmax()), "Give every node a name of its own."
        source.reject(
            row, f"the id in column {quoted(name)} is empty", "empty-cell", value=name, remedy=remedy
        )
    again = pandas.Series(text).duplicated().to_numpy()
    if again.any():
        row = int(again.argmax())
        first = source.line(int((text == text[row]).argmax()))
        problem = f"id {quoted(text[row])} was used before, in {first}"
        source.reject(
            row, problem, code="duplicate-id", value=text[row], remedy="Give every node an id of its own."
        )
    try:
        whole = text.astype(np.int64)
    except (ValueError, OverflowError):
        return text
    # '007' and '7' may be two customers: names stay text unless every number is written as we would write it.
    plain = all(str(value) == written for value, written in zip(whole.tolist(), text, strict=True))
    return whole if plain else text


def read_edges(
    edges: Source, ends: Ends, names: NDArray[Any], weight: str | None
) -> tuple[NDArray[np.int64], NDArray[np.float32] | None]:
    """Return the numbers of the two nodes of every edge, [2, edges], and the weights.

    Args:
        edges: the table of edges.
        ends: its two columns that name nodes.
        names: of all nodes.
        weight: the column of the weights; None for none.
    """
    import pandas

    if ends.guessed and all((names.astype(str) == end).any() for end in ends[:2]):
        raise PairNormError(
            f"{edges.name}: line 1 is no header: it holds the node ids {quoted(ends.source)} and "
            f"{quoted(ends.target)}",
            code="header-missing",
            value=ends[:2],
            remedy="Put a first line such as 'source,target' above it, or name the columns.",
        )
    index, first = pandas.Index(names), 0
    pairs, weights = [np.zeros((2, 0), dtype=np.int64)], []
    # Whole numbers are read as such: that is several times faster than text.
    for block in read_blocks(edges, () if names.dtype == np.int64 else ends[:2]):
        pairs.append(np.stack([_look_up(edges, name, block[name], index, first) for name in ends[:2]]))
        if weight is not None:
            weights.append(_weights(edges, weight, block[weight], first))
        first += len(block)
    return np.concatenate(pairs, 1), np.concatenate(weights) if weights else None


def _look_up(
    edges: Source, name: str, column: pandas.Series, index: pandas.Index, first: int
) -> NDArray[np.int64]:
    """Return the number of each named node. ``first`` is the number of the block's first row."""
    import pandas

    cells: Any = column
    if not pandas.api.types.is_integer_dtype(index.dtype):
        cells = edges.text(name, column, first)
    elif not pandas.api.types.is_integer_dtype(column.dtype):
        # Something among these cells is no whole number; compared as text, it will be found and named.
        cells, index = edges.text(name, column, first), pandas.Index(index.astype(str), dtype=object)
    places = index.get_indexer(cells)
    if (unknown := places < 0).any():
        row = int(unknown.argmax())
        cell = cells.iloc[row].item() if cells is column else cells[row]
        if cell is None:
            problem = f"column {quoted(name)} is empty; an edge needs two ends"
            edges.reject(first + row, problem, "empty-cell", remedy="Fill it in or drop the edge.")
        count = int(unknown.sum())
        more = f" ({count:,} of {len(unknown):,} cells are not)" if count > 1 else ""
        edges.reject(
            first + row,
            f"{quoted(cell)} in column {quoted(name)} is not the id of a node{more}",
            code="unknown-node",
            value=cell,
            remedy="Add the node, drop the edge, or name another column as an end of edges.",
        )
    return places


def _weights(edges: Source, name: str, column: pandas.Series, first: int) -> NDArray[np.float32]:
    values = edges.numbers(name, column, first)
    if values is None or not (values > 0).all():
        row = 0 if values is None else int((~(values > 0)).argmax())
        cell = edges.text(name, column.iloc[row : row + 1], first + row)[0]
        problem = f"the weight in column {quoted(name)} is {quoted(cell)}"
        edges.reject(first + row, problem, "bad-weight", value=cell, expected="a positive number")
    return values
