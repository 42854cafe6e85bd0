"""Columns of numbers: what is one, and which of its cells are empty."""

from __future__ import annotations

from collections.abc import Sized
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pairnorm.data.tables import Source, readable
from pairnorm.errors import PairNormError

if TYPE_CHECKING:
    import pandas

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
