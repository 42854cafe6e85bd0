"""Match ids across tables: node ids in one table or several, and ids in other tables."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from pairnorm.base.errors import quoted
from pairnorm.data.tables import Source, read_blocks, shown

if TYPE_CHECKING:
    import pandas


LEADING_ZEROS = re.compile(r"(?<![\d.])0+(?=\d)")
# What becomes of whole numbers where a column of floats is written as text.
FINAL_ZERO = re.compile(r"([+-]?\d+)\.0")
SPELLING = "only in case, spaces, leading zeros, a final .0 or Unicode form"


def read_rows(
    tables: Sequence[Source], identity: str, text: Sequence[str]
) -> tuple[Source, pandas.DataFrame, NDArray[Any]]:
    """Read tables of nodes whole, put together by id: what one leaves empty, another may fill.

    Returns where the rows are from, the rows, and the names of the nodes.
    """
    import pandas

    frames = []
    for table in tables:
        table.column("id", identity)
        (frame,) = read_blocks(table, [name for name in text if name in table.columns], rows=None)
        table, frame = _drop_repeated_rows(table, identity, frame)
        if len(tables) == 1:
            return table, frame, node_names(table, identity, frame[identity])
        frames.append(frame.assign(**{identity: _ids(table, identity, frame[identity])}))
    frame = pandas.concat(frames, ignore_index=True)
    places = [np.stack([np.full(len(one), table), np.arange(len(one))]) for table, one in enumerate(frames)]
    rows = np.concatenate(places, 1)
    columns = tuple(dict.fromkeys(name for table in tables for name in table.columns))
    name = " and ".join(table.name for table in tables) if len(tables) < 4 else f"{tables[0].name} and others"
    merged = replace(
        tables[0],
        name=name,
        columns=columns,
        open=None,
        load=None,
        notes=[],
        parts=(tables, rows),
        _column_notes={},
    )
    again = frame[identity].duplicated().to_numpy()
    if again.any():
        _check_agreement(merged, identity, frame)
        frame = frame.groupby(identity, sort=False, as_index=False).first()[list(columns)]
        merged = replace(merged, parts=(tables, rows[:, ~again]))
    merged.notes.extend(remark for table in tables for remark in table.all_notes())
    return replace(merged, frame=frame), frame, _whole_numbers(frame[identity].to_numpy(dtype=object))


def _drop_repeated_rows(
    table: Source, identity: str, frame: pandas.DataFrame
) -> tuple[Source, pandas.DataFrame]:
    """Return a table without rows that repeat another exactly, which are noted."""
    if not frame[identity].duplicated().any():
        return table, frame
    try:
        repeated = frame.duplicated().to_numpy()
    except TypeError:  # cells that are lists, which are refused where they are read
        return table, frame
    if not repeated.any():
        return table, frame
    table.notes.append(repeated_rows_note(table.name, int(repeated.sum())))
    rows = np.flatnonzero(~repeated)
    parts = (table,), np.stack([np.zeros_like(rows), rows])
    return replace(table, parts=parts), frame[~repeated].reset_index(drop=True)


def repeated_rows_note(name: str, count: int) -> str:
    """Return the note on rows that repeat another exactly."""
    return f"{count:,} {'row' if count == 1 else 'rows'} of {name} repeat another exactly: kept once"


def _check_agreement(merged: Source, identity: str, frame: pandas.DataFrame) -> None:
    """Raise an error where two tables say different things of one node."""
    several = frame[frame[identity].duplicated(keep=False)]
    for name in (name for name in merged.columns if name != identity):
        differing = several[[identity, name]].dropna().drop_duplicates()
        second = differing[identity].duplicated()
        if second.any():
            row = int(second.index[int(second.to_numpy().argmax())])
            node = differing[identity][row]
            cells = [quoted(str(cell)) for cell in differing[name][differing[identity] == node][:2]]
            problem = (
                f"{quoted(node)} has {cells[1]} in column {quoted(name)}, but {cells[0]} in another file"
            )
            merged.reject(row, problem, "conflicting-rows", value=node, hint="Correct one of them.")


def node_names(source: Source, name: str, column: pandas.Series) -> NDArray[Any]:
    """Return the names of the nodes: int64 where all are plainly written whole numbers, else strings."""
    return _whole_numbers(_ids(source, name, column))


def _ids(source: Source, name: str, column: pandas.Series) -> NDArray[np.object_]:
    """Return the names of nodes as texts, once each is known to have one of its own."""
    import pandas

    text = source.text(name, column)
    empty = pandas.isna(text)
    if empty.any():
        row, hint = int(empty.argmax()), "Give every node a name of its own."
        source.reject(row, f"the id in column {quoted(name)} is empty", "empty-cell", value=name, hint=hint)
    again = pandas.Series(text).duplicated().to_numpy()
    if again.any():
        row = int(again.argmax())
        first = source.line(int((text == text[row]).argmax()))
        problem = f"id {quoted(text[row])} was used before, in {first}"
        source.reject(
            row, problem, code="duplicate-id", value=text[row], hint="Give every node an id of its own."
        )
    return text


def _whole_numbers(text: NDArray[np.object_]) -> NDArray[Any]:
    """Return names as int64 where all are plainly written whole numbers, else as they are."""
    try:
        whole = text.astype(np.int64)
    except (ValueError, OverflowError):
        return text
    # '007' and '7' may be two customers: names stay text unless every number is written as we would write it.
    plain = all(str(value) == written for value, written in zip(whole.tolist(), text, strict=True))
    return whole if plain else text


def plain_form(name: object) -> str:
    """Return what is left of a name without case, spaces, leading zeros, a final .0 and forms of Unicode.

    >>> plain_form("Straße  7") == plain_form("STRASSE 07"), plain_form("7.0") == plain_form("7")
    (True, True)
    """
    text = str(name)
    if not text.isascii():  # most are, and names may be many
        text = unicodedata.normalize("NFKC", text)
    text = " ".join(text.casefold().split())
    if "0" not in text:
        return text
    whole = FINAL_ZERO.fullmatch(text)
    return LEADING_ZEROS.sub("", whole[1] if whole else text)


def near_duplicate_notes(
    names: NDArray[Any] | Sequence[str], what: str = "ids", are: str = "nodes"
) -> list[str]:
    """Return a note where different names have nearly the same spelling."""
    if isinstance(names, np.ndarray) and names.dtype != object:
        return []
    seen: dict[str, str] = {}
    pairs = [(other, name) for name in names if (other := seen.setdefault(plain_form(name), name)) != name]
    if not pairs:
        return []
    first, second = map(quoted, pairs[0])
    return [
        f"{len(pairs):,} {what} differ from another {SPELLING}, as {first} and {second}; "
        f"they are different {are}"
    ]


class NodeIndex:
    """The number of each node by its name.

    Args:
        names: of all nodes.
        drop: give -1 for what is not a node instead of an error; ``unknown_example`` is the first of those.
    """

    def __init__(self, names: NDArray[Any], drop: bool = False) -> None:
        import pandas

        self._index, self._drop, self.unknown_example = pandas.Index(names), drop, ""

    def places(self, table: Source, name: str, column: pandas.Series, first: int = 0) -> NDArray[np.int64]:
        """Return the number of each named node. ``first`` is the number of the block's first row."""
        import pandas

        cells: Any = column
        index = self._index
        if not pandas.api.types.is_integer_dtype(index.dtype):
            cells = table.text(name, column, first)
        elif not pandas.api.types.is_integer_dtype(column.dtype):
            # Something among these cells is no whole number; compared as text, it will be found and named.
            cells, index = table.text(name, column, first), pandas.Index(index.astype(str), dtype=object)
        places: NDArray[np.int64] = index.get_indexer(cells)
        if (unknown := places < 0).any():
            row = int(unknown.argmax())
            cell = cells.iloc[row].item() if cells is column else cells[row]
            if not self._drop:
                self._refuse(table, name, cell, first + row, int(unknown.sum()), len(unknown))
            self.unknown_example = self.unknown_example or quoted(cell) + self._hint(cell)
        return places

    def _refuse(self, table: Source, name: str, cell: Any, row: int, unknown: int, cells: int) -> NoReturn:
        if cell is None:
            problem = f"column {quoted(name)} is empty; an edge needs two ends"
            table.reject(row, problem, "empty-cell", hint="Fill it in or drop the edge.")
        more = f" ({unknown:,} of {cells:,} cells are not)" if unknown > 1 else ""
        problem = f"{quoted(cell)} in column {quoted(name)} is not the id of a node{more}{self._hint(cell)}"
        if 1 < unknown == cells:
            problem += f"; nodes are called {shown([str(node) for node in self._index[:3]])}"
            hint = "Pass {id} if their ids are in another column, or name another column of the edges."
            table.reject(row, problem, code="unknown-node", value=cell, hint=hint, id=...)
        hint = "Add the node, name another column, or drop such rows with {unknown_edges}."
        table.reject(row, problem, code="unknown-node", value=cell, hint=hint, unknown_edges="drop")

    def _hint(self, cell: object) -> str:
        """Name the node whose id differs from a cell only in how it is written."""
        plain = plain_form(cell)
        close = next((node for node in self._index if plain_form(node) == plain), None)
        if close is None:
            return ""
        return f"; it differs from the node {quoted(close)} {SPELLING}"
