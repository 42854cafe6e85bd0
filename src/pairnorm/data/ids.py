"""Names of nodes: check them, find nodes by them, and compare their spelling."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pairnorm.base.errors import PairNormError, quoted
from pairnorm.data.files import quote_names

if TYPE_CHECKING:
    import pandas

    from pairnorm.data.tables import Table

LEADING_ZEROS = re.compile(r"(?<![\d.])0+(?=\d)")
# What becomes of whole numbers where a column of floats is written as text.
FINAL_ZERO = re.compile(r"([+-]?\d+)\.0")
SPELLING = "only in case, spaces, leading zeros, a final .0 or Unicode form"


class NodeNames(NamedTuple):
    """Node names that are known to be distinct, so that a graph need not check them again."""

    values: NDArray[Any]

    @classmethod
    def of(cls, names: ArrayLike | NodeNames) -> NodeNames:
        """Check names that are not checked yet; raises an error that names a repeated one."""
        if isinstance(names, NodeNames):
            return names
        listed = np.asarray(names).ravel().tolist()
        if len(set(listed)) < len(listed):
            ((name, _),) = Counter(listed).most_common(1)
            problem, hint = f"two nodes have the name {quoted(name)}", "Give every node a name of its own."
            raise PairNormError(problem, code="duplicate-id", value=name, hint=hint)
        return cls(np.array(names))


def check_ids(source: Table, name: str, column: pandas.Series) -> NDArray[np.object_]:
    """Return the names of nodes as texts; raise an error for empty and repeated ones."""
    import pandas

    text, hint = source.texts(name, column), "Give every node an id of its own."
    empty = pandas.isna(text)
    if empty.any():
        problem = f"the id in column {quoted(name)} is empty"
        source.reject(int(empty.argmax()), problem, "empty-cell", value=name, hint=hint)
    again = pandas.Series(text).duplicated().to_numpy()
    if again.any():
        row = int(again.argmax())
        first = source.place(text.tolist().index(text[row])).removeprefix(f"{source.name}, ")
        problem = f"id {quoted(text[row])} was used before, in {first}"
        source.reject(row, problem, "duplicate-id", value=text[row], hint=hint)
    return text


def plain_integers(texts: Sequence[str] | NDArray[np.object_]) -> NDArray[np.int64] | None:
    """Convert texts to int64 if each is written as Python writes integers (not '007'); else return None."""
    try:
        integers = np.asarray(texts, dtype=object).astype(np.int64)
    except (ValueError, OverflowError):
        return None
    return integers if all(map(str.__eq__, map(str, integers.tolist()), texts)) else None


def integers_or_texts(names: NDArray[np.object_]) -> NDArray[Any]:
    """Return names as int64 where all are plainly written whole numbers, else as they are."""
    integers = plain_integers(names)
    return names if integers is None else integers


class NodeIndex:
    """The number of each node by its name.

    Args:
        names: of all nodes.
        drop: return -1 for unknown nodes instead of an error; ``unknown_example`` is the first of them.
    """

    def __init__(self, names: NDArray[Any], drop: bool = False) -> None:
        import pandas

        self._index, self._drop, self.unknown_example = pandas.Index(names), drop, ""
        self.is_whole = names.dtype == np.int64

    def places(self, table: Table, name: str, column: pandas.Series, first: int = 0) -> NDArray[np.int64]:
        """Return the number of each named node. ``first`` is the number of the block's first row."""
        import pandas

        cells, index = cast("Any", column), self._index
        if not self.is_whole:
            cells = table.texts(name, column, first)
        elif not pandas.api.types.is_integer_dtype(column.dtype):
            # Something among these cells is no whole number; compared as text, it will be found and named.
            cells, index = table.texts(name, column, first), pandas.Index(index.astype(str), dtype=object)
        places: NDArray[np.int64] = index.get_indexer(cells)
        if (unknown := places < 0).any():
            row = int(unknown.argmax())
            cell = cells.iloc[row].item() if cells is column else cells[row]
            if not self._drop:
                self._refuse(table, name, cell, first + row, int(unknown.sum()), len(unknown))
            example = "an empty cell" if cell is None else quoted(cell) + self._hint(cell)
            self.unknown_example = self.unknown_example or example
        return places

    def _refuse(self, table: Table, name: str, cell: Any, row: int, unknown: int, cells: int) -> NoReturn:
        """Raise an error about the first of the unknown nodes in a column."""
        if cell is None:
            problem = f"column {quoted(name)} is empty; an edge needs two ends"
            hint = "Fill it in, or pass {unknown_edges} to drop such rows."
            table.reject(row, problem, "empty-cell", hint=hint, unknown_edges="drop")
        more = f" ({unknown:,} of {cells:,} cells are not)" if unknown > 1 else ""
        problem = f"{quoted(cell)} in column {quoted(name)} is not the id of a node{more}{self._hint(cell)}"
        if 1 < unknown == cells:
            problem += f"; nodes are called {quote_names([str(node) for node in self._index[:3]])}"
            hint = "Pass {id} if their ids are in another column, or {source} and {target} for the edges."
            table.reject(row, problem, "unknown-node", value=cell, hint=hint, id=..., source=..., target=...)
        hint = "Name another column, or pass {unknown_edges} to add such nodes (drop: to drop such rows)."
        table.reject(row, problem, code="unknown-node", value=cell, hint=hint, unknown_edges="add")

    def _hint(self, cell: object) -> str:
        """Name the node whose id differs from a cell only in how it is written."""
        plain = plain_form(cell)
        close = next((node for node in self._index if plain_form(node) == plain), None)
        return "" if close is None else f"; it differs from the node {quoted(close)} {SPELLING}"


def plain_form(name: object) -> str:
    """Normalize a name for comparison: no case, spaces, leading zeros, final .0 or variants of Unicode.

    >>> plain_form("Straße  7") == plain_form("STRASSE 07"), plain_form("7.0") == plain_form("7")
    (True, True)
    """
    text = str(name)
    if not text.isascii():  # most are, and names may be many
        text = unicodedata.normalize("NFKC", text)
    text = " ".join(text.casefold().split())
    if "0" not in text:
        return text
    match = FINAL_ZERO.fullmatch(text)
    return LEADING_ZEROS.sub("", match[1] if match else text)


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
        f"{len(pairs):,} {what} differ from another {SPELLING}, such as {first} and {second}; "
        f"they are different {are}"
    ]
