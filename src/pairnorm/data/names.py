"""Names of nodes: read from a table, and found again at the ends of edges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pairnorm.data.numeric import numbers
from pairnorm.data.tables import Source, as_text, read_blocks
from pairnorm.errors import PairNormError

if TYPE_CHECKING:
    import pandas


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
