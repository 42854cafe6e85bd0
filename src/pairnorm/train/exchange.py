"""Rows of the store as tables for others: CSV that is exact and can be read back, and pandas."""

import csv
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pairnorm.errors import PairNormError
from pairnorm.train.record import COLUMNS, TYPES, Row, spec_of
from pairnorm.train.spec import LATER

if TYPE_CHECKING:
    import pandas

# Each measure has a column of its own, after the others.
_FIXED = tuple(name for name in COLUMNS if name != "measures")


def measure_names(rows: Sequence[Row]) -> list[str]:
    """Return the names of all measures in the rows, sorted."""
    return sorted({name for row in rows for name in row["measures"]})


def frame(rows: Sequence[Row]) -> "pandas.DataFrame":
    """Return the rows as a data frame, a column for each measure, without the curves."""
    import pandas

    names = [name for name in _FIXED if name != "curves"]
    columns = {name: [row[name] for row in rows] for name in names}
    columns |= {name: [row["measures"].get(name, nan) for row in rows] for name in measure_names(rows)}
    # Types are given, so that a table without rows has them too.
    numeric = {
        name: TYPES.get(name, float) for name in columns if TYPES.get(name, float) in (bool, int, float)
    }
    return pandas.DataFrame(columns).astype(numeric)


def write_parquet(rows: Sequence[Row], path: Path) -> None:
    """Write the ``frame`` of the rows as Parquet."""
    try:
        frame(rows).to_parquet(path, index=False)
    except ImportError as error:
        raise PairNormError("Parquet needs pyarrow; pip install pyarrow, or export as .csv.") from error


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """Write the rows as CSV: numbers with all their digits, ``nan`` for NaN, nothing for what is absent."""
    measures = measure_names(rows)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*_FIXED, *measures])
        for row in rows:
            values = [row[name] for name in _FIXED] + [row["measures"].get(name) for name in measures]
            writer.writerow([_write(value) for value in values])


def read_csv(path: Path) -> list[Row]:
    """Read what ``write_csv`` wrote; a column that is not the store's own is a measure."""
    with _long_fields(), path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file, strict=True)
        try:
            absent = [name for name in _FIXED if name not in (reader.fieldnames or ()) and name not in LATER]
            if absent:
                raise PairNormError(f"{path} has no column {absent[0]!r}; expected a CSV export of a store.")
            return [_read_row(values, f"{path}, line {reader.line_num}") for values in reader]
        except (csv.Error, UnicodeDecodeError) as error:
            raise PairNormError(
                f"{path} cannot be read as CSV ({error}); expected an export of a store."
            ) from error


def _write(value: Any) -> str:
    if value is None:
        return ""
    return json.dumps(value, sort_keys=True) if isinstance(value, dict) else str(value)


def _read_row(values: dict[str, str], place: str) -> Row:
    if None in values or None in values.values():
        raise PairNormError(f"{place} has more or fewer values than there are columns.")
    values = {**LATER, **values}
    row: Row = {name: _read(name, values[name], place) for name in _FIXED}
    extra = {name: value for name, value in values.items() if name not in TYPES and value}
    row["measures"] = {name: _read(name, value, place) for name, value in extra.items()}
    if row["hash"] != spec_of(row).hash:
        raise PairNormError(
            f"{place}: the spec has the hash {spec_of(row).hash}, not {row['hash']}; was it edited?"
        )
    return row


def _read(name: str, value: str, place: str) -> Any:
    kind = TYPES.get(name, float)
    try:
        if kind is bool:
            return {"False": False, "True": True}[value]
        if kind in (int, float, str):
            return kind(value)
        return (json.loads(value) if name == "curves" else value) if value else None
    except (KeyError, ValueError):
        raise PairNormError(
            f"{place}: {name} is {value!r}; expected a value as the store writes it."
        ) from None


@contextmanager
def _long_fields() -> Iterator[None]:
    """Let a CSV field be as long as the curves of many epochs are; the limit is global, so it is put back."""
    limit = csv.field_size_limit(2**31 - 1)
    try:
        yield
    finally:
        csv.field_size_limit(limit)
