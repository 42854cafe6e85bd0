"""Decide what a column of text holds, by one set of rules for every reader.

A reader supplies the distinct texts of a column and how many cells hold each: pandas by ``factorize``, DuckDB
by ``GROUP BY``. ``decide`` returns how to encode the column, with the notes to show, or refuses it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from pairnorm.base.errors import quoted
from pairnorm.data.files import is_padded

# Words that mean a missing value among numbers. In a column of text only an empty cell is missing.
MISSING_WORDS = ("", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", "?", "—", "–", "-", "#N/A")
NULLS = ("\\N",)  # missing in every column: NULL as MySQL and PostgreSQL write it
DASHES = ("—", "–", "-")
BOOLEAN_WORDS = {"True": 1.0, "TRUE": 1.0, "true": 1.0, "False": 0.0, "FALSE": 0.0, "false": 0.0}
MAX_CATEGORIES = 1000
# A column with at least this many texts and this share of different ones holds names.
MIN_NAMES, NAME_SHARE = 50, 0.9
# Among more than this many different numbers, one repeated word means a missing value; among fewer, a code.
MAX_CODES = 10
# Up to this share of texts among numbers are mistakes; a larger share makes the column one of texts.
MAX_TEXT_SHARE = 0.5

CURRENCY = r"(?:[A-Z]{0,2}[$]|[€£¥₹₽₩₺]|USD|EUR|GBP|CHF|JPY|CNY|SEK|NOK|DKK|PLN|kr|zł|Kč)"
SPACES = " \u00a0\u2009\u202f"  # also the narrow ones that group digits
DECORATED = re.compile(
    rf"(\()?[{SPACES}]*([+\-−–]?)[{SPACES}]*{CURRENCY}?[{SPACES}]*"
    rf"([+-]?[\d.,'’{SPACES}]*\d[\d.,]*(?:[eE][+-]?\d+)?)[{SPACES}]*(%|{CURRENCY})?[{SPACES}]*(\))?",
    re.ASCII,
)
GROUPED = re.compile(rf"[+-]?[1-9]\d{{0,2}}(?:(['’{SPACES}])\d{{3}})(?:\1\d{{3}})*([.,]\d+)?", re.ASCII)
PLAIN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
COMMA_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?", re.ASCII)
COMMA_DECIMAL = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+)?,\d+([eE][+-]?\d+)?", re.ASCII)
POINT_THOUSANDS = re.compile(r"[+-]?\d{1,3}(\.\d{3})*", re.ASCII)
WHOLE = re.compile("[0-9]+")
LETTER = re.compile(r"[^\W\d_]")
# A column without a name is the index that pandas writes, which pandas names "Unnamed: 0" when it reads it.
ID_NAME = re.compile(r"(^|_| )id$|^$|^Unnamed: \d+$", re.IGNORECASE)

MIN_DAYS, MAX_DAYS = -719_162, 2_932_897
"""Days from 1970 of the years 1 and 10,000: databases write an infinite date as one beyond."""
ISO, MONTH_FIRST, DAY_FIRST = "ISO8601", "%m/%d/%Y", "%d/%m/%Y"
DATE_PATTERNS = {
    ISO: re.compile(
        r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d([.,]\d+)?)?( ?(Z|UTC|[+-]\d\d:?\d\d))?)?", re.ASCII
    ),
    "%Y/%m/%d": re.compile(r"\d{4}/\d{1,2}/\d{1,2}", re.ASCII),
    "%d.%m.%Y": re.compile(r"\d{1,2}\.\d{1,2}\.\d{4}", re.ASCII),
    MONTH_FIRST: re.compile(r"\d{1,2}/\d{1,2}/\d{4}", re.ASCII),
}
NOT_A_MONTH = re.compile(r"(1[3-9]|[23]\d)/", re.ASCII)
DATE_ORDERS = {MONTH_FIRST: ", month first", DAY_FIRST: ", day first"}

KEEP_NOTE = "--keep (in Python, keep=) takes it in"
DROPPED_NAMES = f"left out, because nearly all cells differ; {KEEP_NOTE}"
CODES_NOTE = (
    "whole numbers with leading zeros are codes, read as categories; write them without if they are numbers"
)
EMPTY_NOTE = "empty throughout"

Reject = Callable[..., NoReturn]


@dataclass(frozen=True)
class NumberFormat:
    """How the numbers of a column are written.

    Args:
        comma: what a comma separates: ``"decimal"``, ``"thousands"``, or ``""`` where there is none.
        has_symbols: whether cells have currency or percent signs, parentheses, or grouped digits.
        is_boolean: whether cells are words for true and false.
    """

    comma: Literal["", "decimal", "thousands"] = ""
    has_symbols: bool = False
    is_boolean: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether any CSV reader parses the cells."""
        return self == NumberFormat()


@dataclass(frozen=True)
class Decision:
    """How to encode a column.

    Args:
        kind: of ``pairnorm.data.encoder.Column``.
        numbers: the format of numbers.
        dates: the format of dates, for ``parse_dates``.
        notes: to show to the user, without the name of the column.
    """

    kind: Literal["number", "category", "date", "ignored"]
    numbers: NumberFormat = NumberFormat()
    dates: str = ""
    notes: tuple[str, ...] = ()

    @property
    def form(self) -> str:
        """The order of day and month, where dates are ambiguous; empty elsewhere."""
        return self.dates if self.dates in DATE_ORDERS else ""


@dataclass(frozen=True)
class ColumnProfile:
    """The distinct texts of a column and how many cells hold each.

    Args:
        texts: the distinct texts, stripped, without the empty one.
        counts: cells per text.
        total: filled cells of the column, where ``texts`` is a sample.
        num_distinct: distinct texts of the column, where ``texts`` is a sample.
    """

    texts: NDArray[np.object_]
    counts: NDArray[np.int64]
    total: int | None = None
    num_distinct: int | None = None

    @classmethod
    def of(
        cls, counts: Mapping[str, int], total: int | None = None, num_distinct: int | None = None
    ) -> ColumnProfile:
        """Make a profile of texts and how many cells hold each."""
        texts = np.array([*counts, None], dtype=object)[:-1]
        return cls(texts, np.array([*counts.values()], np.int64), total, num_distinct)

    @cached_property
    def is_missing(self) -> NDArray[np.bool_]:
        """Whether each text means a missing value, if the column holds numbers."""
        return _is_one_of(self.texts, MISSING_WORDS)

    @cached_property
    def is_plain(self) -> NDArray[np.bool_]:
        """Whether each text is a plain number."""
        return ~np.isnan(parse_numbers(self.texts, NumberFormat()))

    @cached_property
    def others(self) -> list[str]:
        """The texts that are neither plain numbers nor words for missing values."""
        return sorted(self.texts[~self.is_plain & ~self.is_missing])

    @property
    def filled(self) -> int:
        """The number of cells that are not missing, if the column holds numbers."""
        return self.sampled if self.total is None else self.total

    @property
    def sampled(self) -> int:
        """The number of cells with one of ``texts`` that are not missing, if the column holds numbers."""
        return int(self.counts[~self.is_missing].sum())

    @property
    def distinct(self) -> int:
        """The number of distinct texts, words for missing values included."""
        return len(self.texts) if self.num_distinct is None else self.num_distinct

    def count(self, texts: Sequence[str]) -> int:
        """Count the cells that hold one of the texts."""
        return int(self.counts[_is_one_of(self.texts, texts)].sum())

    @cached_property
    def is_codes(self) -> bool:
        """Whether all cells are whole numbers, some with leading zeros, as postcodes are."""
        texts = self.texts[~self.is_missing]
        return not self.others and all(map(WHOLE.fullmatch, texts)) and any(map(is_padded, texts))

    @cached_property
    def is_names(self) -> bool:
        """Whether nearly all cells are different texts with letters, or different codes."""
        texts = self.texts[~self.is_missing]
        cells, distinct = self.filled, self.distinct - int(self.is_missing.sum())
        if cells < MIN_NAMES or distinct < NAME_SHARE * cells:
            return False
        if self.is_codes:
            return True
        lettered = sum(1 for text in texts if LETTER.search(text))
        return lettered >= NAME_SHARE * len(texts) and self.is_plain.sum() <= (1 - NAME_SHARE) * len(texts)

    def number_format(self, decimal: str | None, name: str, reject: Reject) -> tuple[NumberFormat, list[str]]:
        """Return the format that most cells share, and the texts that are no numbers in it."""
        if self.others and all(text in BOOLEAN_WORDS for text in self.others) and not self.is_plain.any():
            return NumberFormat(is_boolean=True), []
        cores = {text: number[0] for text in self.others if (number := _undecorated(text))}
        commas = {text: core for text, core in cores.items() if "," in core}
        symbols = any(core != text.lstrip("+-") for text, core in cores.items())
        texts = [text for text in self.others if text not in cores]
        points = any("." in text for text in self.texts[self.is_plain])
        if not commas and not (decimal == "," and points):
            return NumberFormat(has_symbols=symbols), texts
        comma = self._comma(commas, decimal, name, None if texts else reject)
        if comma is None:
            return NumberFormat(has_symbols=symbols), [*texts, *commas]
        return NumberFormat(comma, symbols), texts

    def _comma(
        self, commas: Mapping[str, str], decimal: str | None, name: str, reject: Reject | None
    ) -> Literal["", "decimal", "thousands"] | None:
        """Return what commas separate; None where cells contradict each other and ``reject`` is None."""
        plain, cores = list(self.texts[self.is_plain]), list(commas.values())
        thousands_only = any(core.count(",") > 1 or "." in core.partition(",")[2] for core in cores)
        decimal_only = any(not COMMA_THOUSANDS.fullmatch(core) or core.startswith("0,") for core in cores)
        pointed = any("." in text and not POINT_THOUSANDS.fullmatch(text) for text in plain)
        if decimal == ",":
            return "" if pointed and not cores else None if thousands_only or pointed else "decimal"
        if decimal == "." or thousands_only or pointed:
            return None if decimal_only else "thousands"
        if decimal_only:
            return "decimal"
        # Numbers with three decimals all have a comma, and numbers above 999 have one if it groups digits.
        # Amounts of money hardly ever have three decimals.
        integers = [float(text) for text in plain if "." not in text]
        grouped = bool(integers) and max(map(abs, integers)) < 1000
        if not grouped and not any(re.search(CURRENCY, text) for text in commas):
            if reject is None:
                return None
            text = next(iter(commas))
            problem = f"the commas may separate thousands, or be decimal: {quoted(text)} in {quoted(name)}"
            hint = "Pass {decimal} if they are decimal, a point in its place if they separate thousands."
            reject(text, problem, code="ambiguous-number", hint=hint, decimal=",")
        return "thousands"

    def date_format(self, known: str = "", lenient: bool = False) -> tuple[str, list[str]]:
        """Return the format that all cells share, or most where ``lenient``, and the other texts."""
        if not self.others or (self.is_plain.any() and not lenient):
            return "", []
        matching = {
            form: [text for text in self.others if pattern.fullmatch(text)]
            for form, pattern in DATE_PATTERNS.items()
            if lenient or pattern.fullmatch(self.others[0])
        }
        form, dates = max(matching.items(), key=lambda item: len(item[1]), default=("", []))
        if form == MONTH_FIRST:
            form = known or (DAY_FIRST if any(map(NOT_A_MONTH.match, dates)) else form)
        if form != known:
            invalid = np.isnan(parse_dates(np.array([*dates, None], dtype=object)[:-1], form))
            dates = [date for date, is_invalid in zip(dates, invalid, strict=True) if not is_invalid]
        texts = sorted({*self.texts[~self.is_missing]}.difference(dates))
        max_texts = MAX_TEXT_SHARE * self.sampled if lenient else 0
        return (form, texts) if dates and self.count(texts) <= max_texts else ("", [])


def _is_one_of(texts: NDArray[np.object_], words: Sequence[str]) -> NDArray[np.bool_]:
    """Return whether each text is one of the words."""
    return np.fromiter(map(set(words).__contains__, texts), bool, len(texts))


def decide(
    profile: ColumnProfile,
    name: str,
    reject: Reject,
    *,
    decimal: str | None = None,
    kind: str | None = None,
    form: str = "",
    keep: bool = False,
    lenient: bool = False,
) -> Decision:
    """Decide how to encode a column of text.

    Where ``lenient``, few cells that are neither numbers nor dates, in a column known to hold these, count as
    missing. One word without digits that repeats among numbers, such as ``k.A.``, always does.
    """
    column = quoted(name)
    if kind in (None, "number") and not (kind is None and profile.is_codes):
        numbers, texts = profile.number_format(decimal, name, reject)
        if not texts:
            return Decision("number", numbers, notes=_number_notes(profile, numbers, decimal))
        # Words for true and false next to other texts are categories, next to numbers they are mistakes.
        if not all(text in BOOLEAN_WORDS for text in texts) or profile.is_plain.any():
            wrong = profile.count(texts)
            if wrong <= MAX_TEXT_SHARE * profile.sampled:
                is_one_word = len(texts) == 1 < wrong and not any(map(str.isdigit, texts[0]))
                if lenient or (is_one_word and profile.distinct > MAX_CODES):
                    notes = _number_notes(profile, numbers, decimal) + _unreadable_note(profile, texts)
                    return Decision("number", numbers, notes=notes)
                problem = f"{quoted(texts[0])} in column {column} is not a number"
                hint = "Correct it, leave the cell empty, or pass {categorical}."
                reject(texts[0], problem, "not-a-number", texts[0], hint=hint, categorical=[name])
    if kind in (None, "date"):
        dates, texts = profile.date_format(form, lenient)
        if dates:
            return Decision("date", dates=dates, notes=(_date_note(dates), *_unreadable_note(profile, texts)))
    free = kind is None and not keep
    if free and profile.is_names:
        return Decision("ignored", notes=(DROPPED_NAMES,))
    if free and profile.distinct > MAX_CATEGORIES:
        if profile.filled < 2 * profile.distinct:
            note = f"left out, because it holds {profile.distinct:,} different texts; {KEEP_NOTE}"
            return Decision("ignored", notes=(note,))
        problem = f"column {column} holds {profile.distinct:,} different texts"
        more = {"hint": "Pass {ignore}, or {keep} to have them all.", "ignore": [name], "keep": [name]}
        more["expected"] = f"at most {MAX_CATEGORIES:,} categories"
        reject(None, problem, "too-many-categories", name, **more)
    return Decision("category", notes=(CODES_NOTE,) if kind is None and profile.is_codes else ())


def decide_typed(
    dtype: Literal["number", "date", "duration"],
    name: str,
    count: Callable[[], tuple[int, int, int]] | None = None,
) -> Decision:
    """Decide how to encode a column that a file or frame types as numbers, dates or durations.

    ``count`` returns the filled cells, the distinct ones and the fractions: a column that is named id, and
    has different whole numbers, is an index. Without ``count``, the user keeps the column.
    """
    if dtype == "number" and count is not None and ID_NAME.search(name):
        filled, distinct, fractions = count()
        if filled >= MIN_NAMES and filled == distinct and not fractions:
            return Decision("ignored", notes=(DROPPED_NAMES,))
    notes = {"date": (_date_note(""),), "duration": ("durations are read as days",)}.get(dtype, ())
    return Decision("date" if dtype == "date" else "number", notes=notes)


def _unreadable_note(profile: ColumnProfile, texts: Sequence[str]) -> tuple[str, ...]:
    """Return the note on texts that count as missing, if there are any."""
    return (unreadable_note(profile.count(texts), texts[0]),) if texts else ()


def unreadable_note(cells: int, example: object) -> str:
    """Return the note on cells that are not numbers and count as missing."""
    unit, verb = ("cell", "counts") if cells == 1 else ("cells", "count")
    return f"{cells:,} {unit} that cannot be read {verb} as missing, such as {quoted(example)}"


def null_note(word: str) -> str:
    """Return the note on cells that hold a word of ``NULLS``."""
    return f"{word} is read as an empty cell"


def _date_note(form: str) -> str:
    """Return the note on dates of a format."""
    return f"dates{DATE_ORDERS.get(form, '')} are read as days since 1970-01-01"


def _number_notes(profile: ColumnProfile, numbers: NumberFormat, decimal: str | None) -> tuple[str, ...]:
    """Return notes on numbers that are written with commas, signs, units or dashes."""
    notes = []
    if numbers.comma == "decimal" and decimal is None:
        notes.append("a comma is read as the decimal point")
    if numbers.comma == "thousands":
        notes.append("commas are read as separators of thousands")
    if numbers.has_symbols:
        cores = ((text, number[0]) for text in profile.others if (number := _undecorated(text)))
        text = next(text for text, core in cores if core != text.lstrip("+-"))
        value = float(parse_numbers(np.array([text], dtype=object), numbers)[0])
        notes.append(f"numbers with signs or units are read as numbers, {quoted(text)} as {value:g}")
    if dashes := [word for word in DASHES if word in profile.texts[profile.is_missing]]:
        notes.append(f"{quoted(dashes[0])} is read as missing")
    return tuple(notes)


def _undecorated(text: str) -> tuple[str, float] | None:
    """Return a number without currency, percent sign, parentheses and grouping marks, and what multiplies it.

    >>> _undecorated("$1,200"), _undecorated("(3.5)"), _undecorated("1 200 %"), _undecorated("12 kg")
    (('1,200', 1.0), ('3.5', -1.0), ('1200', 0.01), None)
    """
    match = DECORATED.fullmatch(text)
    if match is None or (match[1] is None) != (match[5] is None) or (match[1] and match[2]):
        return None
    core = re.sub(f"['’{SPACES}]", "", match[3]) if GROUPED.fullmatch(match[3]) else match[3]
    is_number = any(form.fullmatch(core) for form in (PLAIN, COMMA_THOUSANDS, COMMA_DECIMAL))
    if not is_number or (match[2] and core[0] in "+-"):
        return None
    sign = -1.0 if match[1] or match[2] not in ("", "+") else 1.0
    return core, sign / 100 if match[4] == "%" else sign


def parse_numbers(texts: NDArray[np.object_], form: NumberFormat) -> NDArray[np.float64]:
    """Return texts as numbers, NaN for None and for words that mean a missing value."""
    import pandas

    cells = pandas.Series(texts, dtype=object)
    if form.is_boolean:
        return np.array([np.nan if text is None else BOOLEAN_WORDS.get(text, np.nan) for text in texts])
    if form.is_plain:
        numbers = pandas.to_numeric(cells.where(~cells.isin(MISSING_WORDS)), errors="coerce")
        return numbers.to_numpy(np.float64, na_value=np.nan)
    return np.array([_parse_number(text, form.comma) for text in texts], dtype=np.float64)


def _parse_number(text: str | None, comma: str) -> float:
    """Return a text as a number, NaN if it is none or means a missing value."""
    number = None if text is None or text in MISSING_WORDS else _undecorated(text)
    if number is None:
        return np.nan
    core, factor = number
    core = core.replace(".", "").replace(",", ".") if comma == "decimal" else core.replace(",", "")
    return float(core) * factor if PLAIN.fullmatch(core) else np.nan


def parse_dates(texts: NDArray[np.object_], form: str) -> NDArray[np.float64]:
    """Return dates as days since 1970-01-01, NaN for None and for other texts."""
    import pandas

    cells = pandas.Series(texts, dtype=object)
    cells = cells.where(~cells.isin(MISSING_WORDS))
    return to_days(pandas.to_datetime(cells, utc=True, format=form, errors="coerce"))


def to_days(moments: Any) -> NDArray[np.float64]:
    """Return moments, of pandas or numpy, as days since 1970-01-01, NaN where missing or infinite."""
    import pandas

    moments = pandas.Series(moments)
    if moments.dt.tz is not None:
        moments = moments.dt.tz_convert("UTC").dt.tz_localize(None)
    units = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[np.datetime_data(moments.dtype)[0]]
    days = moments.astype(np.int64).to_numpy() / units / 86400
    return np.where(pandas.isna(moments) | (days < MIN_DAYS) | (days >= MAX_DAYS), np.nan, days)


def is_missing(text: str) -> bool:
    """Return whether a text means a missing value among numbers."""
    return text in MISSING_WORDS or text in NULLS


def is_number(text: str) -> bool:
    """Return whether Python reads a text as a number, and we do not read it as missing."""
    try:
        float(text)
    except ValueError:
        return False
    return text not in MISSING_WORDS
