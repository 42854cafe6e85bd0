"""Tables of a user: their rows, their cells as text, numbers or dates, and where a cell is."""

from __future__ import annotations

import csv
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from io import TextIOWrapper
from typing import IO, TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from pairnorm.base.errors import PairNormError, closest, quoted
from pairnorm.data.profile import (
    DURATIONS_NOTE,
    PADDED,
    ColumnProfile,
    Decision,
    date_note,
    decide,
    parse_numbers,
    to_days,
)

if TYPE_CHECKING:
    import pandas

ROWS_PER_BLOCK = 1_000_000
NOT_A_CELL = (bytes, list, dict, set, np.ndarray)


@dataclass(frozen=True)
class Source:
    """Where rows come from, and how to tell a person about one of them.

    Args:
        name: what to call it in messages, e.g. ``'nodes.csv'``.
        columns: the names of its columns.
        frame: its rows; None for a file that is read when they are needed.
        load: gives the rows of a file that is no text.
        open: gives the bytes of a text file from the beginning.
        delimiter: what separates the cells of a text file.
        encoding: of a text file.
        decimal: the decimal point, where the user named it.
        has_header: whether the first line of a text file names the columns.
        is_converted: whether ``open`` gives other bytes than the file has: tabs for spaces, no comments.
        notes: what was odd, a sentence each; grows while the rows are read.
        parts: the tables that it was put together from, and of each row the number of its table and its row.
    """

    name: str
    columns: tuple[str, ...]
    frame: pandas.DataFrame | None = None
    open: Callable[[], IO[bytes]] | None = None
    load: Callable[[], pandas.DataFrame] | None = None
    delimiter: str | None = None
    encoding: str = "utf-8"
    decimal: str | None = None
    has_header: bool = True
    is_converted: bool = False
    notes: list[str] = field(default_factory=list, compare=False)
    parts: tuple[Sequence[Source], NDArray[np.int64]] | None = None
    _column_notes: dict[str, list[str]] = field(default_factory=dict, compare=False)

    @contextmanager
    def characters(self, errors: str = "strict") -> Iterator[IO[str]]:
        """Open a text file."""
        assert self.open is not None
        with self.open() as file:
            yield TextIOWrapper(file, self.encoding, errors, newline="")

    @contextmanager
    def lines(self, errors: str = "strict") -> Iterator[Any]:
        """Give the csv reader of a text file, for cells of any length."""
        with long_cells(), self.characters(errors) as file:
            yield csv.reader(file, delimiter=self.delimiter or ",", skipinitialspace=True)

    def padded(self) -> list[str]:
        """Return the columns of a text file in which whole numbers have leading zeros, to be read as text."""
        if self.open is None:
            return []
        around = rf'[^{re.escape(self.delimiter or ",")}"\s]'
        cell = re.compile(rf"0[0-9](?<!{around}0[0-9])[0-9]*(?!{around})")
        with readable(self.name), self.characters() as file:
            if not any(map(cell.search, file)):  # much faster than by column
                return []
        with readable(self.name), self.lines() as lines:
            columns = {
                place for cells in lines for place, text in enumerate(cells) if PADDED.fullmatch(text.strip())
            }
        return [name for place, name in enumerate(self.columns) if place in columns]

    def note_column(self, note: str, name: str) -> None:
        """Add a note on a column; columns with the same note share a sentence."""
        names = self._column_notes.setdefault(note, [])
        if name not in names:
            names.append(name)

    def all_notes(self) -> list[str]:
        """Return all notes, among them those on columns."""
        on_columns = (
            f"{'column' if len(names) == 1 else 'columns'} {shown(names)} of {self.name}: {note}"
            for note, names in self._column_notes.items()
        )
        return [*self.notes, *on_columns]

    def column(self, option: str, name: str) -> str:
        """Return ``name`` if there is such a column, else raise an error that suggests the closest one."""
        if name in self.columns:
            return name
        problem = (
            f"{self.name}: there is no column {quoted(name)} ({option}); it has {shown(self.columns, 10)}"
        )
        raise PairNormError(problem, code="unknown-column", value=name, hint=closest(name, self.columns))

    def line(self, row: int) -> str:
        """Say where a row is: ``'line 7'`` of a text file (its header is line 1), ``'row 7'`` of others."""
        if self.open is None:
            return f"row {row + 1:,}"
        # Counted only when something is wrong, for blank lines and quoted line breaks make it slow work.
        with self.lines(errors="replace") as reader:
            seen, start = -self.has_header, 1
            for cells in reader:
                if len(cells) > 1 or any(cell.strip() for cell in cells):
                    if seen == row:
                        break
                    seen += 1
                start = reader.line_num + 1
        return f"line {start:,}"

    def place(self, row: int) -> str:
        """Say in which table a row is, and where."""
        if self.parts is None:
            return f"{self.name}, {self.line(row)}"
        tables, rows = self.parts
        number, row = rows[:, row].tolist()
        table: Source = tables[number]
        return table.place(row)

    def reject(self, row: int, problem: str, code: str, **fields: Any) -> NoReturn:
        """Raise an error about one row; ``fields`` are those of ``PairNormError``."""
        raise PairNormError(f"{self.place(row)}: {problem}", code=code, **fields)

    def text(self, name: str, column: pandas.Series, first: int = 0) -> NDArray[np.object_]:
        """Return cells as stripped strings, None where empty; whole numbers are written without a point."""
        import pandas

        if isinstance(column.dtype, pandas.CategoricalDtype) and column.cat.categories.dtype.kind == "f":
            column = column.astype(np.float64)
        if isinstance(column.dtype, pandas.StringDtype):
            values = column.str.strip().astype(object).to_numpy(copy=True)
            empty = pandas.isna(values)
        else:
            values = column.astype(object).to_numpy(copy=True)
            empty = np.array([pandas.api.types.is_scalar(v) and pandas.isna(v) for v in values], dtype=bool)
            for row in (row for row, value in enumerate(values) if isinstance(value, NOT_A_CELL)):
                self._reject_kind(first + row, name, values[row])
            values[~empty] = [_written(value).strip() for value in values[~empty]]
        values[empty] = None
        values[values == ""] = None
        return values

    def native_values(self, name: str, column: pandas.Series, first: int = 0) -> NDArray[Any] | None:
        """Return numbers, or durations and dates as days, of a column typed as such; None for others."""
        import pandas

        types = pandas.api.types
        if types.is_complex_dtype(column.dtype):
            self._reject_kind(first, name, 1j)
        if types.is_numeric_dtype(column.dtype):
            return column.to_numpy(dtype=np.float64, na_value=np.nan)
        if types.is_datetime64_any_dtype(column.dtype):
            self.note_column(date_note(""), name)
            return to_days(column)
        kind = types.infer_dtype(column)
        if kind.startswith("timedelta"):
            self.note_column(DURATIONS_NOTE, name)
            days: NDArray[Any] = pandas.to_timedelta(column).to_numpy() / np.timedelta64(1, "D")
            return days
        filled = column.dropna()
        if kind == "complex" or any(isinstance(cell, complex) for cell in filled):
            self._reject_kind(first, name, 1j)
        if len(filled) and column.dtype == object and all(isinstance(cell, date) for cell in filled):
            with readable(f"{self.name}, column {quoted(name)}"):
                moments = pandas.to_datetime(column, utc=True).astype("datetime64[us, UTC]")
            self.note_column(date_note(""), name)
            return to_days(moments)
        return None

    def profile(self, name: str, column: pandas.Series, first: int = 0) -> _Profiled:
        """Return the profile of a column, and for every cell the place of its text in it, -1 where empty."""
        import pandas

        codes, texts = pandas.factorize(self.text(name, column, first))
        counts = np.bincount(codes[codes >= 0], minlength=len(texts))
        return _Profiled(ColumnProfile(np.asarray(texts, dtype=object), counts), codes)

    def decide(self, name: str, profiled: _Profiled, first: int = 0, **settings: Any) -> Decision:
        """Decide how to encode a column, note it, or refuse it with the line of the cell in question."""

        def reject(
            text: str | None, problem: str, code: str, value: object = name, **fields: Any
        ) -> NoReturn:
            if text is None:
                raise PairNormError(f"{self.name}: {problem}", code=code, value=value, **fields)
            where = int(np.flatnonzero(profiled.profile.texts == text)[0])
            places = np.flatnonzero(profiled.codes == where)
            self.reject(first + int(places[0]), problem, code=code, value=value, **fields)

        decision = decide(profiled.profile, name, reject, decimal=self.decimal, **settings)
        for note in decision.notes:
            self.note_column(note, name)
        return decision

    def numbers(self, name: str, column: pandas.Series, first: int = 0) -> NDArray[np.float32] | None:
        """Return a column of numbers or booleans, NaN where empty, or None if it holds texts or dates."""
        import pandas

        if pandas.api.types.is_datetime64_any_dtype(column.dtype):
            return None
        values = self.native_values(name, column, first)
        if values is None:
            profiled = self.profile(name, column, first)
            decision = self.decide(name, profiled, first, kind="number")
            if decision.kind != "number":
                return None
            values = profiled.values(parse_numbers(profiled.profile.texts, decision.numbers))
        return self.to_float32(name, values, first)

    def to_float32(self, name: str, values: NDArray[Any], first: int = 0) -> NDArray[np.float32]:
        """Return numbers in single precision; infinite and too large ones are refused."""
        with np.errstate(over="ignore"):
            narrow = values.astype(np.float32)
        if (infinite := np.isinf(narrow)).any():
            row = int(infinite.argmax())
            problem = f"{values[row]} in column {quoted(name)} is not finite or beyond float32"
            hint = "Correct it, or leave the cell empty."
            self.reject(first + row, problem, code="not-finite", value=float(values[row]), hint=hint)
        return narrow

    def _reject_kind(self, row: int, name: str, cell: object) -> NoReturn:
        problem = f"column {quoted(name)} holds a {type(cell).__name__}"
        expected = "a number or a text"
        hint = "Decode it" if isinstance(cell, bytes) else "Give each of its numbers a column"
        hint += ", or pass {ignore}."
        self.reject(row, problem, code="not-a-cell", value=name, expected=expected, hint=hint, ignore=[name])


class _Profiled(NamedTuple):
    """A profile, and for every cell the index of its text, -1 where it is empty."""

    profile: ColumnProfile
    codes: NDArray[np.int64]

    def values(self, per_text: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the value of every cell, NaN where it is empty."""
        return np.append(per_text, np.nan)[self.codes]


def reject_dates(place: str, name: str, form: str) -> NoReturn:
    """Raise an error about dates whose day and month stand in another order than a model knows."""
    problem = f"{place}: the dates in column {quoted(name)} are not written as the model knows them"
    expected = f"{'day' if form.startswith('%d') else 'month'} first ({form})"
    hint = "Write them so, or fit again."
    raise PairNormError(problem, code="other-dates", value=name, expected=expected, hint=hint)


def _written(value: Any) -> str:
    """Write a cell; a whole number as one, as ``queries.as_text`` does."""
    whole = isinstance(value, float | np.floating) and value.is_integer() and abs(float(value)) < 1e18
    return str(int(value) if whole else value)


@contextmanager
def long_cells() -> Iterator[None]:
    """Let ``csv`` take cells of any length; its limit is global, so it is put back."""
    limit = csv.field_size_limit(2**31 - 1)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def shown(names: Sequence[str], most: int = 3) -> str:
    """Return the first few names, quoted."""
    return ", ".join(map(quoted, names[:most])) + (", …" if len(names) > most else "")


def read_blocks(
    source: Source, text: Sequence[str] = (), rows: int | None = ROWS_PER_BLOCK
) -> Iterator[pandas.DataFrame]:
    """Read a table block by block, or whole where ``rows`` is None; columns of ``text`` stay so."""
    if source.open is not None:
        yield from _read_text(source, text, rows)
        return
    frame = source.load() if source.load is not None else source.frame
    assert frame is not None
    step = rows or max(len(frame), 1)
    yield from (frame.iloc[start : start + step] for start in range(0, max(len(frame), 1), step))


def _read_text(source: Source, text: Sequence[str], rows: int | None) -> Iterator[pandas.DataFrame]:
    import pandas

    with readable(source.name), warnings.catch_warnings(), source.characters() as file:
        warnings.simplefilter("error", pandas.errors.ParserWarning)
        whole_or_blocks = pandas.read_csv(
            file,
            sep=source.delimiter,
            header=0 if source.has_header else None,
            names=list(source.columns),
            index_col=False,
            dtype=dict.fromkeys(text, str),
            na_values=[""],  # what else is empty depends on the column: see ``pairnorm.data.profile``
            keep_default_na=False,
            skipinitialspace=True,
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
        problem = f"{name}: it asks for more memory than there is ({quoted(str(error))})"
        raise PairNormError(problem, code="too-large") from error
    except UnicodeDecodeError as error:
        problem = f"{name}: byte {error.start} is not {error.encoding.upper()}"
        raise PairNormError(
            problem, code="wrong-encoding", hint="Name the encoding of the file: {encoding}", encoding=...
        ) from error
    except Exception as error:
        problem = " ".join(str(error).split()).removeprefix("Error tokenizing data. C error: ")
        hint = ""
        if fields := re.match(r"Expected (\d+) fields in line (\d+), saw (\d+)", problem):
            expected, line, cells = fields.groups()
            problem = f"line {line} has {cells} cells, expected {expected}"
            hint = "Quote a cell that holds a delimiter."
        elif problem.startswith("Length of header"):
            problem, hint = "its rows have more cells than its header", "Give every column a name."
        problem = problem[:300] or type(error).__name__
        raise PairNormError(f"{name}: {problem}", code="file-damaged", hint=hint) from error
