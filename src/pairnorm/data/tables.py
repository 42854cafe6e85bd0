"""Names of nodes: read from a table, and found again at the ends of edges."""

from __future__ import annotations

import csv
import re
import warnings
from collections.abc import Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from pairnorm.errors import PairNormError

if TYPE_CHECKING:
    import pandas


DELIMITERS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
TAB = ("tab", "\\t")  # A tab is hard to type in a shell.
TABLES = (*DELIMITERS, ".parquet")
ROWS_PER_BLOCK = 1_000_000


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
        close = get_close_matches(str(name), self.columns, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        shown = ", ".join(map(repr, self.columns[:10])) + (", …" if len(self.columns) > 10 else "")
        raise PairNormError(f"{self.name}: there is no column {name!r} ({option}); it has {shown}.{hint}")

    def line(self, row: int) -> str:
        """Say where a row is: ``'line 7'`` of a text file (its header is line 1), ``'row 7'`` of others.

        Args:
            row: its number, from 0.
        """
        if self.path is None or self.delimiter is None:
            return f"row {row + 1:,}"
        # Counted only when something is wrong, for blank lines and quoted line breaks make it slow work.
        with open(self.path, encoding="utf-8-sig", errors="replace", newline="") as file:
            reader = csv.reader(file, delimiter=self.delimiter, skipinitialspace=True)
            seen, start = -1, 1
            for cells in reader:
                if len(cells) > 1 or any(cell.strip() for cell in cells):
                    if seen == row:
                        break
                    seen += 1
                start = reader.line_num + 1
        return f"line {start:,}"

    def reject(self, row: int, problem: str) -> NoReturn:
        """Raise an error about one row."""
        raise PairNormError(f"{self.name}, {self.line(row)}: {problem}")


def is_table(nodes: Path, edges: str | PathLike[str] | None, delimiter: str | None) -> bool:
    """Say whether nodes come as a table, by the file's ending or since edges and a delimiter come with it.

    Args:
        nodes: the file of the nodes, or of the whole graph.
        edges: the file of the edges, if there is one.
        delimiter: what was named as such.
    """
    return nodes.suffix.lower() in TABLES or (edges is not None and delimiter is not None)


def open_table(path: Path, delimiter: str | None = None) -> Source:
    """Look at the first line of a table and return where it is and what its columns are called.

    Args:
        path: a CSV, TSV or Parquet file.
        delimiter: what separates the cells of text, or ``'tab'``. Default: a comma, in ``.tsv`` a tab.
    """
    if not path.is_file():
        raise PairNormError(f"{path}: there is no such file. Check the name and the folder.")
    if path.stat().st_size == 0:
        raise PairNormError(f"{path.name}: the file is empty. Expected a header line and rows.")
    if path.suffix.lower() == ".parquet":
        return Source(path.name, _parquet_columns(path), path)
    delimiter = "\t" if delimiter in TAB else delimiter or DELIMITERS.get(path.suffix.lower(), ",")
    if len(delimiter) != 1:
        raise PairNormError(f"delimiter is {delimiter!r}; expected one character, or 'tab'.")
    with readable(path.name), open(path, encoding="utf-8-sig", newline="") as file:
        lines = csv.reader(file, delimiter=delimiter, skipinitialspace=True)
        header = next((cells for cells in lines if any(cell.strip() for cell in cells)), [])
    if not header:
        raise PairNormError(f"{path.name}: the file is empty. Expected a header line and rows.")
    _check_delimiter(path.name, header, delimiter)
    twice = [name for name in header if header.count(name) > 1]
    if twice:
        raise PairNormError(
            f"{path.name}: column {twice[0]!r} is there twice. Give each column its own name."
        )
    return Source(path.name, tuple(header), path, delimiter)


def _check_delimiter(name: str, header: list[str], delimiter: str) -> None:
    if len(header) > 1:
        return
    other = next((sign for sign in (",", ";", "\t", "|") if sign != delimiter and sign in header[0]), None)
    if other:
        raise PairNormError(
            f"{name}: line 1 is one column {header[0]!r}: separated by {other!r}, not by {delimiter!r}? "
            f"Pass delimiter={other!r}."
        )


def _parquet_columns(path: Path) -> tuple[str, ...]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise PairNormError(f"{path.name}: reading Parquet needs pyarrow. pip install pyarrow") from error
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
    from pyarrow import parquet

    with readable(source.name):
        # What pandas wrote about its index is ignored: to us that is a column like any other.
        frame: pandas.DataFrame = parquet.read_table(source.path).to_pandas(ignore_metadata=True)
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
            na_values=[""],  # what else is empty depends on the column: see ``numbers``
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
    """Turn whatever a reader throws at a broken file into an error that names the file.

    Args:
        name: of the file.
    """
    try:
        yield
    except MemoryError:
        raise
    except PairNormError as error:
        if str(error).startswith(name):
            raise
        raise PairNormError(f"{name}: {error}") from error
    except UnicodeDecodeError as error:
        raise PairNormError(
            f"{name}: byte {error.start} is not UTF-8. Save the file with UTF-8 as its encoding."
        ) from error
    except Exception as error:
        problem = " ".join(str(error).split()).removeprefix("Error tokenizing data. C error: ")
        if fields := re.match(r"Expected (\d+) fields in line (\d+), saw (\d+)", problem):
            expected, line, found = fields.groups()
            problem = (
                f"line {line} has {found} cells, expected {expected}. Quote a cell that holds a delimiter."
            )
        elif problem.startswith("Length of header"):
            problem = "its rows have more cells than its header. Give every column a name."
        raise PairNormError(f"{name}: {problem[:300] or type(error).__name__}") from error


def as_text(column: pandas.Series) -> NDArray[np.object_]:
    """Return cells as stripped strings, None where empty; whole numbers are written without a point.

    Args:
        column: cells of any type.
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
        values[~empty] = [str(value).strip() for value in values[~empty]]
    values[empty] = None
    values[values == ""] = None
    return values


# What counts as empty among numbers. Among text only an empty cell does: there NA is a country.
EMPTY = ["", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", "?"]
TRUTH = {"True": 1.0, "TRUE": 1.0, "true": 1.0, "False": 0.0, "FALSE": 0.0, "false": 0.0}


def numbers(source: Source, name: str, column: pandas.Series, first: int = 0) -> NDArray[np.float32] | None:
    """Return a column of numbers or truths, NaN where empty, or None if it holds text throughout.

    Args:
        source: where it is from, for messages.
        name: of the column.
        column: its cells.
        first: the number of its first row.
    """
    import pandas

    if pandas.api.types.is_numeric_dtype(column.dtype):
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
    elif pandas.api.types.is_datetime64_any_dtype(column.dtype):
        raise PairNormError(
            f"{source.name}: column {name!r} holds dates. Turn them into numbers, or pass ignore=[{name!r}]."
        )
    elif (parsed := _parse(source, name, column, first)) is not None:
        values = parsed
    else:
        return None
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32)
    if (infinite := np.isinf(narrow)).any():
        row = int(infinite.argmax())
        source.reject(
            first + row,
            f"{values[row]} in column {name!r} is not finite. Correct it, or leave the cell empty.",
        )
    return narrow


def _parse(source: Source, name: str, column: pandas.Series, first: int) -> NDArray[np.float64] | None:
    import pandas

    with readable(f"{source.name}, column {name!r}"):
        cells = column.astype(object)
        cells[cells.isin(EMPTY)] = None
        values = pandas.to_numeric(cells, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    filled = cells.notna().to_numpy()
    text = filled & np.isnan(values)
    if not text.any():
        return values
    row = int(text.argmax())
    cell = cells.iloc[row]
    if isinstance(cell, Sized) and not isinstance(cell, str | bytes):
        source.reject(
            first + row,
            f"column {name!r} holds a {type(cell).__name__}; expected a number or a text. "
            f"Give each of its numbers a column, or pass ignore=[{name!r}].",
        )
    if (text < filled).any():
        source.reject(
            first + row,
            f"{str(cell)!r} in column {name!r} is not a number. Correct it, leave the cell empty, "
            f"or pass categorical=[{name!r}].",
        )
    truths = np.asarray(cells.astype(str).map(TRUTH), dtype=np.float64)
    return None if np.isnan(truths[filled]).any() else truths


class Ends(NamedTuple):
    """The two columns of a table of edges that name nodes, and whether we guessed them by their place."""

    source: str
    target: str
    guessed: bool = False


def node_names(source: Source, name: str, column: pandas.Series) -> NDArray[Any]:
    """Return the names of the nodes: int64 where all are plainly written whole numbers, else strings.

    Args:
        source: where the table is from, for messages.
        name: of the column.
        column: its cells.
    """
    import pandas

    text = as_text(column)
    empty = pandas.isna(text)
    if empty.any():
        source.reject(
            int(empty.argmax()), f"the id in column {name!r} is empty. Give every node a name of its own."
        )
    again = pandas.Series(text).duplicated().to_numpy()
    if again.any():
        row = int(again.argmax())
        first = source.line(int((text == text[row]).argmax()))
        source.reject(row, f"id {text[row]!r} was used before, in {first}. Give every node an id of its own.")
    try:
        whole = text.astype(np.int64)
    except (ValueError, OverflowError):
        return text
    # '007' and '7' may be two customers: names stay text unless every number is written as we would write it.
    plain = all(str(value) == written for value, written in zip(whole.tolist(), text, strict=True))
    return whole if plain else text


def read_edges(
    edges: Source, ends: Ends, names: NDArray[Any], weight: str | None
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32] | None]:
    """Return the numbers of the two nodes of every edge, and the weights.

    Args:
        edges: the table of edges.
        ends: its two columns that name nodes.
        names: of all nodes.
        weight: the column of the weights; None for none.
    """
    import pandas

    index = pandas.Index(names)
    if ends.guessed:
        _check_header(edges, ends, names)
    found: dict[str, list[NDArray[Any]]] = {"source": [], "target": [], "weight": []}
    first = 0
    # Whole numbers are read as such: that is several times faster than text.
    for block in read_blocks(edges, () if names.dtype == np.int64 else ends[:2]):
        for end, column in zip(("source", "target"), ends[:2], strict=True):
            found[end].append(_look_up(edges, column, block[column], index, first))
        if weight is not None:
            found["weight"].append(_weights(edges, weight, block[weight], first))
        first += len(block)
    source, target = (
        np.concatenate([np.zeros(0, dtype=np.int64), *found[end]]) for end in ("source", "target")
    )
    return source, target, np.concatenate(found["weight"]) if found["weight"] else None


def _check_header(edges: Source, ends: Ends, names: NDArray[Any]) -> None:
    """Notice a file without a header, whose first edge would be taken for one."""
    if all((names.astype(str) == end).any() for end in ends[:2]):
        raise PairNormError(
            f"{edges.name}: line 1 is no header: it holds the node ids {ends.source!r} and {ends.target!r}. "
            "Put a first line such as 'source,target' above it, or name the columns."
        )


def _look_up(
    edges: Source, name: str, column: pandas.Series, index: pandas.Index, first: int
) -> NDArray[np.int64]:
    """Return the number of each named node. ``first`` is the number of the block's first row."""
    import pandas

    cells: Any = column
    if not pandas.api.types.is_integer_dtype(index.dtype):
        cells = as_text(column)
    elif not pandas.api.types.is_integer_dtype(column.dtype):
        # Something among these cells is no whole number; compared as text, it will be found and named.
        cells, index = as_text(column), pandas.Index(index.astype(str), dtype=object)
    places = index.get_indexer(cells)
    if (unknown := places < 0).any():
        row = int(unknown.argmax())
        cell = cells.iloc[row].item() if cells is column else cells[row]
        if cell is None:
            edges.reject(
                first + row, f"column {name!r} is empty; an edge needs two ends. Fill it in or drop the edge."
            )
        count = int(unknown.sum())
        more = f" ({count:,} of {len(unknown):,} cells are not)" if count > 1 else ""
        edges.reject(
            first + row,
            f"{cell!r} in column {name!r} is not the id of a node{more}. "
            "Add the node, drop the edge, or name another column as an end of edges.",
        )
    return places


def _weights(edges: Source, name: str, column: pandas.Series, first: int) -> NDArray[np.float32]:
    values = numbers(edges, name, column, first)
    if values is None or not (values > 0).all():
        row = 0 if values is None else int((~(values > 0)).argmax())
        cell = as_text(column.iloc[row : row + 1])[0]
        edges.reject(first + row, f"the weight in column {name!r} is {cell!r}; expected a positive number.")
    return values
