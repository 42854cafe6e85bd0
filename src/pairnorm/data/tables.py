"""A table of a user: where its rows are, what its cells hold, and how to name one of them to a person."""

from __future__ import annotations

import csv
import re
import warnings
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from io import TextIOWrapper
from typing import IO, TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from pairnorm.base.errors import PairNormError, closest, quoted

if TYPE_CHECKING:
    import pandas


ROWS_PER_BLOCK = 1_000_000
# What counts as empty among numbers. Among text only an empty cell does: there NA is a country.
EMPTY = ["", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", "?"]
# Up to this share of texts, those among numbers are slips; beyond, the numbers are names made of digits.
MOSTLY = 0.5
DECIMAL_COMMA = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+)?(,\d+)?([eE][+-]?\d+)?(?<=\d)")
THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})*")
WITH_POINT = re.compile(r"[+-]?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?")
MONTH_FIRST, DAY_FIRST = "%m/%d/%Y", "%d/%m/%Y"
DATES = (
    (r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d([.,]\d+)?)?( ?(Z|UTC|[+-]\d\d:?\d\d))?)?", "ISO8601"),
    (r"\d{4}/\d{1,2}/\d{1,2}", "%Y/%m/%d"),
    (r"\d{1,2}\.\d{1,2}\.\d{4}", "%d.%m.%Y"),
    (r"\d{1,2}/\d{1,2}/\d{4}", MONTH_FIRST),
)
# A first number that is no month says which of the two orders it is.
NO_MONTH = r"(1[3-9]|[23]\d)/"
EITHER = {MONTH_FIRST: ", month first", DAY_FIRST: ", day first"}
DURATIONS = "durations are read as days"
# '01234' is a postcode, or the number of an account: without its zeros it would be another.
PADDED, WHOLE = re.compile("0[0-9]+"), re.compile("[0-9]+")
CODES = (
    "whole numbers with leading zeros are codes, read as categories; write them without if they are numbers"
)
BLANK = "empty throughout"
TRUTH = {"True": 1.0, "TRUE": 1.0, "true": 1.0, "False": 0.0, "FALSE": 0.0, "false": 0.0}


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
        decimal: the decimal point, where the user said which.
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
    notes: list[str] = field(default_factory=list, compare=False)
    parts: tuple[Sequence[Source], NDArray[np.int64]] | None = None
    _told: dict[str, list[str]] = field(default_factory=dict, compare=False)

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
            if not any(map(cell.search, file)):  # much sooner said than what is in which column
                return []
        with readable(self.name), self.lines() as lines:
            found = {
                place for cells in lines for place, text in enumerate(cells) if PADDED.fullmatch(text.strip())
            }
        return [name for place, name in enumerate(self.columns) if place in found]

    def tell(self, what: str, name: str) -> None:
        """Note something of a column; columns of which the same is said share a sentence."""
        self._told.setdefault(what, []).append(name)

    def remarks(self) -> list[str]:
        """Return all notes, those on columns too."""
        told = (
            f"{'column' if len(names) == 1 else 'columns'} {shown(names)} of {self.name}: {what}"
            for what, names in self._told.items()
        )
        return [*self.notes, *told]

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
            seen, start = -1, 1
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
            empty = pandas.isna(values)
            for row in (row for row, value in enumerate(values) if isinstance(value, bytes)):
                self._reject_kind(first + row, name, values[row])
            values[~empty] = [_written(value).strip() for value in values[~empty]]
        values[empty] = None
        values[values == ""] = None
        return values

    def numbers(self, name: str, column: pandas.Series, first: int = 0) -> NDArray[np.float32] | None:
        """Return a column of numbers or truths, NaN where empty, or None if it holds text throughout."""
        import pandas

        if pandas.api.types.is_numeric_dtype(column.dtype):
            if pandas.api.types.is_complex_dtype(column.dtype):
                self._reject_kind(first, name, 1j)
            values = column.to_numpy(dtype=np.float64, na_value=np.nan)
        elif pandas.api.types.infer_dtype(column).startswith("timedelta"):
            self.tell(DURATIONS, name)
            values = pandas.to_timedelta(column).to_numpy() / np.timedelta64(1, "D")
        elif pandas.api.types.is_datetime64_any_dtype(column.dtype):
            return None
        elif (parsed := self._parse(name, column, first)) is not None:
            values = parsed
        else:
            return None
        with np.errstate(over="ignore"):
            narrow = values.astype(np.float32)
        if (infinite := np.isinf(narrow)).any():
            row = int(infinite.argmax())
            problem = f"{values[row]} in column {quoted(name)} is not finite or beyond float32"
            hint = "Correct it, or leave the cell empty."
            self.reject(first + row, problem, code="not-finite", value=float(values[row]), hint=hint)
        return narrow

    def _parse(self, name: str, column: pandas.Series, first: int) -> NDArray[np.float64] | None:
        import pandas

        with readable(f"{self.name}, column {quoted(name)}"):
            cells, filled, written = _filled(column)
            if self.decimal == "," or any(isinstance(cell, str) and "," in cell for cell in written):
                written = self._with_points(name, written, first)
            values = np.full(len(cells), np.nan)
            numbers = pandas.to_numeric(written, errors="coerce")
            complex_numbers = pandas.api.types.is_complex_dtype(numbers.dtype)
            if not complex_numbers:
                values[filled] = numbers.to_numpy(np.float64, na_value=np.nan)
        if complex_numbers:
            self._reject_kind(first, name, 1j)
        text = filled & np.isnan(values)
        if not text.any():
            return values
        row = int(text.argmax())
        cell = cells.iloc[row]
        if isinstance(cell, Sized) and not isinstance(cell, str):
            self._reject_kind(first + row, name, cell)
        if text.sum() <= MOSTLY * filled.sum():
            problem = f"{quoted(str(cell))} in column {quoted(name)} is not a number"
            hint = "Correct it, leave the cell empty, or pass {categorical}."
            self.reject(first + row, problem, code="not-a-number", value=cell, hint=hint, categorical=[name])
        if cell not in TRUTH:
            return None
        truths = np.asarray(cells.astype(str).map(TRUTH), dtype=np.float64)
        return None if np.isnan(truths[filled]).any() else truths

    def _with_points(self, name: str, cells: pandas.Series, first: int) -> pandas.Series:
        """Return cells without commas where all are numbers that have them: decimal, or between thousands."""
        if self.decimal != "," and all(WITH_POINT.fullmatch(str(cell).strip()) for cell in cells):
            text = cells.astype(str)
            # One cell that has both tells what the commas of all are for.
            if self.decimal == "." or text.str.contains(",.*[.]", regex=True).any():
                self.tell("commas are read as separators of thousands", name)
                return text.str.replace(",", "")
        if self.decimal == "." or not all(DECIMAL_COMMA.fullmatch(str(cell).strip()) for cell in cells):
            return cells
        if self.decimal is None:
            if all(THOUSANDS.fullmatch(str(cell).strip()) for cell in cells):
                problem = f"the commas may separate thousands, or be decimal: {quoted(str(cells.iloc[0]))}"
                hint = "Pass {decimal} if they are decimal, a point in its place if they separate thousands."
                raise PairNormError(problem, code="ambiguous-number", value=name, hint=hint, decimal=",")
            self.tell("a comma is read as the decimal point", name)
        return cells.astype(str).str.strip().str.replace(".", "").str.replace(",", ".")

    def dates(
        self, name: str, column: pandas.Series, known: str = ""
    ) -> tuple[NDArray[np.float32], str] | None:
        """Return a column of dates as days since 1970-01-01, NaN where empty, or None if it holds others.

        Beside them is the form in which they are written if day and month could be taken for each other;
        the ``known`` form of a model decides.
        """
        import pandas

        cells, filled, written = _filled(column)
        if not filled.any():
            return None
        form = ""
        if not all(isinstance(cell, date) for cell in written):
            first = str(written.iloc[0]).strip()
            if not any(re.fullmatch(pattern, first) for pattern, *_ in DATES):
                return None  # at once: a table may have a hundred thousand columns of text
            text = written.astype(str).str.strip()
            form = next((form for pattern, form in DATES if text.str.fullmatch(pattern).all()), "")
            if not form:
                return None
            if form == MONTH_FIRST:
                form = known or (DAY_FIRST if text.str.match(NO_MONTH).any() else form)
            written = text
        try:
            moments = pandas.to_datetime(written, utc=True, format=form or None)
        except (ValueError, OverflowError):
            if known and form == known:
                reject_dates(self.name, name, known)
            return None
        self.tell_dates(name, form)
        days = np.full(len(cells), np.nan, dtype=np.float32)
        start = pandas.Timestamp(0, tz="UTC")
        days[filled] = ((moments - start) / pandas.Timedelta(days=1)).to_numpy(np.float32)
        return days, form if form in EITHER else ""

    def tell_dates(self, name: str, form: str) -> None:
        """Note that a column is read as dates, and in which order where that had to be guessed."""
        self.tell(f"dates{EITHER.get(form, '')} are read as days since 1970-01-01", name)

    def _reject_kind(self, row: int, name: str, cell: object) -> NoReturn:
        problem = f"column {quoted(name)} holds a {type(cell).__name__}"
        expected = "a number or a text"
        hint = "Decode it" if isinstance(cell, bytes) else "Give each of its numbers a column"
        hint += ", or pass {ignore}."
        self.reject(row, problem, code="not-a-cell", value=name, expected=expected, hint=hint, ignore=[name])


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


def _filled(column: pandas.Series) -> tuple[pandas.Series, NDArray[np.bool_], pandas.Series]:
    """Return cells, None where they count as empty among numbers; which do not; and those that do not."""
    cells = column.astype(object)
    cells[cells.isin(EMPTY)] = None
    filled = cells.notna().to_numpy()
    return cells, filled, cells[filled]


def are_codes(column: pandas.Series) -> bool:
    """Say whether cells are texts of whole numbers, some of them with leading zeros.

    >>> import pandas
    >>> are_codes(pandas.Series(["01234", "99999", None])), are_codes(pandas.Series(["01", "1.5"]))
    (True, False)
    """
    import pandas

    if pandas.api.types.is_numeric_dtype(column.dtype):
        return False
    padded = False
    for cell in column.dropna():  # one by one, for most columns of text are none at their first cell
        text = cell.strip() if isinstance(cell, str) else "no text"
        if text in EMPTY:
            continue
        if not WHOLE.fullmatch(text):
            return False
        padded = padded or PADDED.fullmatch(text) is not None
    return padded


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
            header=0,
            names=list(source.columns),
            index_col=False,
            dtype=dict.fromkeys(text, str),
            na_values=[""],  # what else is empty depends on the column: see ``Source.numbers``
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
            expected, line, found = fields.groups()
            problem = f"line {line} has {found} cells, expected {expected}"
            hint = "Quote a cell that holds a delimiter."
        elif problem.startswith("Length of header"):
            problem, hint = "its rows have more cells than its header", "Give every column a name."
        problem = problem[:300] or type(error).__name__
        raise PairNormError(f"{name}: {problem}", code="file-damaged", hint=hint) from error
