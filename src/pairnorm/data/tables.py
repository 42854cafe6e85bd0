"""Tables of a user: open them, read their rows, take their cells as text or numbers, say where a cell is."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from math import inf
from typing import Any, Literal, NamedTuple, NoReturn, cast

import numpy as np
import pandas
from numpy.typing import NDArray

from pairnorm.base.errors import PairNormError, did_you_mean, quoted
from pairnorm.data.files import CountedText, TextFile, explain_read_errors, quote_names
from pairnorm.data.ids import check_ids, integers_or_texts
from pairnorm.data.profile import (
    ID_NAME,
    NULLS,
    WHOLE,
    ColumnProfile,
    Decision,
    decide,
    decide_typed,
    is_missing,
    is_number,
    null_note,
    parse_dates,
    parse_numbers,
    to_days,
    unreadable_note,
)

ROWS_PER_BLOCK = 1_000_000
NOT_A_CELL = (bytes, list, tuple, dict, set, np.ndarray)


@dataclass(frozen=True)
class Table:
    """A table of a user: the source of its rows, notes on them, and how to name a cell in a message.

    Args:
        name: what to call it in messages, e.g. ``'nodes.csv'``.
        columns: the names of its columns.
        frame: its rows; None for a file that is read when they are needed.
        text: the text file that it is read from.
        load: gives the rows of a file that is no text.
        decimal: the decimal point, where the user named it.
        notes: what was odd, a sentence each; grows while the rows are read.
        parts: the tables that its rows are from, by the index of ``frame``: number of the table, row.
    """

    name: str
    columns: tuple[str, ...]
    frame: pandas.DataFrame | None = None
    text: TextFile | None = None
    load: Callable[[], pandas.DataFrame] | None = None
    decimal: str | None = None
    notes: list[str] = field(default_factory=list, compare=False)
    parts: Sequence[Table] = ()
    _column_notes: dict[str, list[str]] = field(default_factory=dict, compare=False)

    @property
    def has_header(self) -> bool:
        """Whether columns have names: a text file may have no header."""
        return self.text is None or self.text.has_header

    def padded(self) -> list[str]:
        """Return the columns of a text file whose whole numbers have leading zeros; they are read as text."""
        if self.text is None:
            return []
        with explain_read_errors(self.name):
            columns = self.text.padded_columns()
        return [name for place, name in enumerate(self.columns) if place in columns]

    def add_column_note(self, note: str, name: str) -> None:
        """Add a note on a column; columns with the same note share a sentence."""
        names = self._column_notes.setdefault(note, [])
        if name not in names:
            names.append(name)

    def all_notes(self) -> list[str]:
        """Return all notes, among them those on columns."""
        on_columns = (
            f"{'column' if len(names) == 1 else 'columns'} {quote_names(names)} of {self.name}: {note}"
            for note, names in self._column_notes.items()
        )
        return [*dict.fromkeys(self.notes), *on_columns]

    def column(self, option: str, name: str) -> str:
        """Return ``name`` if there is such a column, else raise an error that suggests the closest one."""
        if name in self.columns:
            return name
        problem = f"{self.name}: there is no column {quoted(name)} ({option}); it has "
        problem += quote_names(self.columns, 10)
        problem += "" if self.has_header else ", because line 1 is data, not a header"
        raise PairNormError(problem, code="unknown-column", value=name, hint=did_you_mean(name, self.columns))

    def line(self, row: int) -> str:
        """Name the position of a row: ``'line 7'`` of a text file (the header is line 1) or ``'row 7'``."""
        if self.text is None or self.frame is not None:
            return f"row {row + 1:,}"
        return f"line {self.text.line_of(row):,}"

    def place(self, row: int) -> str:
        """Name the table and the position of a row."""
        if not self.parts:
            return f"{self.name}, {self.line(row)}"
        number, row = cast("Any", self.frame).index[row]
        table: Table = self.parts[number]
        return table.place(row)

    def reject(self, row: int | None, problem: str, code: str, **fields: Any) -> NoReturn:
        """Raise an error about one row, or None for all; ``fields`` are those of ``PairNormError``."""
        place = self.name if row is None else self.place(row)
        raise PairNormError(f"{place}: {problem}", code=code, **fields)

    def texts(self, name: str, column: pandas.Series, first: int = 0) -> NDArray[np.object_]:
        """Return cells as stripped strings, None where empty; whole numbers are written without a point."""
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
            values[~empty] = [_cell_text(value).strip() for value in values[~empty]]
        values[empty] = None
        values[values == ""] = None
        for word in NULLS:
            if (is_null := values == word).any():
                self.add_column_note(null_note(word), name)
                values[is_null] = None
        return values

    def typed(
        self, name: str, column: pandas.Series, first: int = 0
    ) -> tuple[Literal["number", "date", "duration"], NDArray[Any]] | None:
        """Return the type of a column that is no text, and its values, dates and durations as days."""
        types = pandas.api.types
        if types.is_complex_dtype(column.dtype):
            self._reject_kind(first, name, 1j)
        if types.is_numeric_dtype(column.dtype):
            return "number", column.to_numpy(dtype=np.float64, na_value=np.nan)
        if types.is_datetime64_any_dtype(column.dtype):
            return "date", to_days(column)
        kind = types.infer_dtype(column)
        if kind.startswith("timedelta"):
            return "duration", pandas.to_timedelta(column).to_numpy() / np.timedelta64(1, "D")
        filled = column.dropna()
        if kind == "complex" or any(isinstance(cell, complex) for cell in filled):
            self._reject_kind(first, name, 1j)
        if len(filled) and column.dtype == object and all(isinstance(cell, date) for cell in filled):
            with explain_read_errors(f"{self.name}, column {quoted(name)}"):
                return "date", to_days(pandas.to_datetime(column, utc=True).astype("datetime64[us, UTC]"))
        return None

    def profile(
        self, name: str, column: pandas.Series, first: int = 0
    ) -> tuple[ColumnProfile, NDArray[np.int64]]:
        """Return the profile of a column, and for every cell the index of its text, -1 where it is empty."""
        codes, texts = pandas.factorize(self.texts(name, column, first))
        counts = np.bincount(codes[codes >= 0], minlength=len(texts)).tolist()
        return ColumnProfile.of(dict(zip(texts, counts, strict=True))), codes

    def decide(
        self,
        name: str,
        profile: ColumnProfile,
        codes: NDArray[np.int64] | None = None,
        first: int = 0,
        **settings: Any,
    ) -> Decision:
        """Decide how to encode a column of text, note it, or refuse it with the line of the cell."""

        def reject(text: str | None, problem: str, code: str, value: object = name, **more: Any) -> NoReturn:
            row = None
            if text is not None and codes is not None:
                # A comparison by numpy would drop the null characters that a text ends with.
                row = first + int((codes == profile.texts.tolist().index(text)).argmax())
            self.reject(row, problem, code=code, value=value, **more)

        return self.note(name, decide(profile, name, reject, decimal=self.decimal, **settings))

    def note(self, name: str, decision: Decision) -> Decision:
        """Note what was decided about a column."""
        for note in decision.notes:
            self.add_column_note(note, name)
        return decision

    def read_column(
        self, name: str, column: pandas.Series, first: int = 0, *, kind: str | None = None, **settings: Any
    ) -> ReadColumn:
        """Read a column as numbers, dates or texts, by ``kind`` and other settings of ``profile.decide``."""
        typed = None if kind == "category" else self.typed(name, column, first)
        if typed is not None:
            is_free = kind is None and not settings.get("keep")
            count = partial(_count_numbers, typed[1]) if is_free else None
            return ReadColumn(self.note(name, decide_typed(typed[0], name, count)), typed[1])
        profile, codes = self.profile(name, column, first)
        decision = self.decide(name, profile, codes, first, kind=kind, **settings)
        parsed = np.full(len(profile.texts), np.nan)
        if decision.kind == "number":
            parsed = parse_numbers(profile.texts, decision.numbers)
        elif decision.kind == "date":
            parsed = parse_dates(profile.texts, decision.dates)
        return ReadColumn(decision, np.append(parsed, np.nan)[codes], profile.texts, codes)

    def numbers(self, name: str, column: pandas.Series, first: int = 0) -> NDArray[np.float32] | None:
        """Return a column of numbers or booleans, NaN where empty, or None if it holds texts or dates."""
        if pandas.api.types.is_datetime64_any_dtype(column.dtype):
            return None
        read = self.read_column(name, column, first, kind="number")
        return self.to_float32(name, read.values, first) if read.decision.kind == "number" else None

    def to_float32(
        self, name: str, values: NDArray[Any], first: int = 0, lenient: bool = False
    ) -> NDArray[np.float32]:
        """Return numbers in single precision; infinite and too large ones are refused, or NaN if lenient."""
        with np.errstate(over="ignore"):
            narrow = values.astype(np.float32)
        if (infinite := np.isinf(narrow)).any():
            row = int(infinite.argmax())
            if lenient:
                self.add_column_note(unreadable_note(int(infinite.sum()), float(values[row])), name)
                return np.where(infinite, np.float32(np.nan), narrow)
            problem = f"{values[row]} in column {quoted(name)} is not finite or beyond float32"
            hint = "Correct it, or leave the cell empty."
            self.reject(first + row, problem, code="not-finite", value=float(values[row]), hint=hint)
        return narrow

    def _reject_kind(self, row: int, name: str, cell: object) -> NoReturn:
        """Raise an error about a cell that is neither a number nor a text."""
        problem = f"column {quoted(name)} holds a {type(cell).__name__}"
        expected = "a number or a text"
        hint = "Decode it" if isinstance(cell, bytes) else "Give each of its numbers a column"
        hint += ", or pass {ignore}."
        self.reject(row, problem, code="not-a-cell", value=name, expected=expected, hint=hint, ignore=[name])


class ReadColumn(NamedTuple):
    """A column that was read: what it holds, its numbers, its distinct texts, and the text of every cell."""

    decision: Decision
    values: NDArray[Any]
    texts: NDArray[np.object_] = np.empty(0, object)
    codes: NDArray[np.int64] = np.empty(0, np.int64)


def _count_numbers(values: NDArray[np.float64]) -> tuple[int, int, int]:
    """Return how many cells are filled, how many of them differ, and how many are fractions."""
    filled = values[~np.isnan(values)]
    return len(filled), len(np.unique(filled)), int((filled != np.floor(filled)).sum())


def _cell_text(value: Any) -> str:
    """Write a cell; a whole number as one, as ``queries.Cell.text`` does."""
    is_integer = isinstance(value, float | np.floating) and value.is_integer() and abs(float(value)) < 1e18
    return str(int(value) if is_integer else value)


def without_header(source: Table, what: str, named: Sequence[str | None]) -> Table:
    """Return a text table whose first line is a row; its columns are numbered, unless the user names them."""
    assert source.text is not None
    source.notes.append(f"line 1 of {source.name} is {what}, not a header")
    columns = (
        title if title in named and source.columns.count(title) == 1 else f"column {n + 1}"
        for n, title in enumerate(source.columns)
    )
    return replace(source, columns=tuple(columns), text=replace(source.text, has_header=False))


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


def read_blocks(
    source: Table, text: Sequence[str] = (), rows: int | None = ROWS_PER_BLOCK, max_chars: float = inf
) -> Iterator[pandas.DataFrame]:
    """Read a table block by block, or whole where ``rows`` is None; columns of ``text`` stay so.

    Blocks have fewer rows where long cells would make a block of more than ``max_chars`` characters.
    """
    frame = source.load() if source.load is not None else source.frame
    if frame is not None:
        step = rows or max(len(frame), 1)
        yield from (frame.iloc[start : start + step] for start in range(0, max(len(frame), 1), step))
        return
    assert source.text is not None
    with explain_read_errors(source.name), warnings.catch_warnings(), source.text.characters() as file:
        warnings.simplefilter("error", pandas.errors.ParserWarning)
        counted = CountedText(source.name, file, max_chars)
        reader = pandas.read_csv(
            cast("Any", counted),
            sep=source.text.delimiter,
            header=0 if source.text.has_header else None,
            names=list(source.columns),
            index_col=False,
            dtype=dict.fromkeys(text, str),
            na_values=[""],  # what else is empty depends on the column: see ``pairnorm.data.profile``
            keep_default_na=False,
            skipinitialspace=True,
            low_memory=False,
            iterator=True,
        )
        if rows is None:
            yield reader.read()
            return
        block = rows if max_chars == inf else 1
        with suppress(StopIteration):
            while True:
                counted.count = 0
                yield reader.get_chunk(block)
                block = int(min(rows, 2 * block, max(1, block * max_chars / 8 / max(counted.count, 1))))


def read_rows(
    tables: Sequence[Table], identity: str, text: Sequence[str]
) -> tuple[Table, pandas.DataFrame, NDArray[Any]]:
    """Read tables of nodes whole, put together by id: what one leaves empty, another may fill.

    Returns where the rows are from, the rows, and the names of the nodes.
    """
    frames = dict[int, pandas.DataFrame]()
    for number, table in enumerate(tables):
        table.column("id", identity)
        (frame,) = read_blocks(table, [name for name in text if name in table.columns], rows=None)
        frame, source = frame.reset_index(drop=True), table
        repeated = np.zeros(0, bool)
        with suppress(TypeError):  # cells that are lists are refused where they are read
            if _trimmed(frame[identity]).duplicated().any():
                repeated = frame.apply(_trimmed).duplicated().to_numpy()
        if repeated.any():
            table.notes.append(repeated_rows_note(table.name, int(repeated.sum())))
            frame = frame[~repeated]
            source = replace(table, parts=[table], frame=pandas.concat({0: frame}))
        if len(tables) == 1:
            return source, frame, integers_or_texts(check_ids(source, identity, frame[identity]))
        frames[number] = frame.assign(**{identity: check_ids(source, identity, frame[identity])})
    frame = pandas.concat(frames)
    columns = tuple(dict.fromkeys(name for table in tables for name in table.columns))
    name = " and ".join(table.name for table in tables) if len(tables) < 4 else f"{tables[0].name} and others"
    merged = Table(name, columns, frame, tables[0].text, decimal=tables[0].decimal, parts=tables)
    again = frame[identity].duplicated().to_numpy()
    if again.any():
        _check_agreement(merged, identity, frame)
        index = frame.index[~again]
        frame = frame.groupby(identity, sort=False, as_index=False).first()[list(columns)].set_axis(index)
    merged.notes.extend(remark for table in tables for remark in table.all_notes())
    names = frame[identity].to_numpy(dtype=object)
    return replace(merged, frame=frame), frame, integers_or_texts(names)


def _trimmed(cells: pandas.Series) -> pandas.Series:
    if isinstance(cells.dtype, np.dtype) and cells.dtype != object:
        return cells
    return cells.map(lambda cell: cell.strip() if isinstance(cell, str) else cell)


def repeated_rows_note(name: str, count: int) -> str:
    """Return the note on rows that repeat another exactly."""
    row, repeat = ("row", "repeats") if count == 1 else ("rows", "repeat")
    return f"{count:,} {row} of {name} {repeat} another exactly: kept once"


def _check_agreement(merged: Table, identity: str, frame: pandas.DataFrame) -> None:
    """Raise an error where two tables say different things of one node."""
    several = frame[frame[identity].duplicated(keep=False)]
    for name in (name for name in merged.columns if name != identity):
        differing = several[[identity, name]].dropna().drop_duplicates()
        second = differing[identity].duplicated()
        if second.any():
            key = second.index[int(second.to_numpy().argmax())]
            row, node = cast("Any", frame.index.get_loc(key)), differing[identity][key]
            cells = [quoted(str(cell)) for cell in differing[name][differing[identity] == node][:2]]
            problem = (
                f"{quoted(node)} has {cells[1]} in column {quoted(name)}, but {cells[0]} in another file"
            )
            merged.reject(row, problem, "conflicting-rows", value=node, hint="Correct one of them.")
