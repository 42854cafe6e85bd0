from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas
import pytest

from pairnorm.data import tables
from pairnorm.data.names import Ends, node_names, read_edges
from pairnorm.data.readers import open_table
from pairnorm.data.tables import Source, read_blocks
from pairnorm.errors import PairNormError

Write = Callable[[str, str], Path]
NODES = Source("nodes.csv", ("id",))


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["3", "1", "-2"], [3, 1, -2]),
        (["007", "7"], ["007", "7"]),
        (["1", "b"], ["1", "b"]),
        (["99999999999999999999", "1"], ["99999999999999999999", "1"]),
        ([3.0, 4.0], [3, 4]),
    ],
)
def test_names_are_numbers_only_where_nothing_is_lost(cells: list[object], expected: list[object]) -> None:
    assert node_names(NODES, "id", pandas.Series(cells)).tolist() == expected


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["a", "b", "a"], "row 3: id 'a' was used before, in row 1. Give every node an id of its own"),
        (["a", None], "row 2: the id in column 'id' is empty"),
    ],
)
def test_names_are_there_and_unlike(cells: list[object], message: str) -> None:
    with pytest.raises(PairNormError, match=message):
        node_names(NODES, "id", pandas.Series(cells))


@pytest.mark.parametrize("names", [np.array([5, 7, 9]), np.array(["5", "7", "x"], dtype=object)])
def test_ends_are_found(write: Write, names: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables.read_blocks, "__defaults__", ((), 2))
    last = names[2]
    edges = open_table(write("edges.csv", f"a,b,w\n5,7,1\n7,{last},2.5\n{last},5,3\n"))
    ends, weights = read_edges(edges, Ends("a", "b"), names, "w")
    assert ends.tolist() == [[0, 1, 2], [1, 2, 0]]
    assert weights is not None
    assert weights.tolist() == [1, 2.5, 3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b,w\n5,7,1\n7,8,1\n", r"edges\.csv, line 3: 8 in column 'b' is not the id of a node"),
        (
            "a,b,w\n5,7,1\n7,8,1\n7,6,1\n",
            r"edges\.csv, line 3: 8 in .* is not the id of a node \(2 of 3 cells are not\)",
        ),
        ("a,b,w\n5,7,1\n7,ann,1\n", r"edges\.csv, line 3: 'ann' in column 'b' is not the id of a node"),
        ("a,b,w\n5,7,1\n\n,7,1\n", r"edges\.csv, line 4: column 'a' is empty; an edge needs two ends"),
        (
            "a,b,w\n5,7,0\n",
            r"edges\.csv, line 2: the weight in column 'w' is '0'; expected a positive number",
        ),
        ("a,b,w\n5,7,1\n7,9,\n", r"edges\.csv, line 3: the weight in column 'w' is None"),
        ("a,b,w\n5,7,heavy\n", r"edges\.csv, line 2: the weight in column 'w' is 'heavy'"),
        ("a,b,w\n5,7,1\n5,7,x\n", r"edges\.csv, line 3: 'x' in column 'w' is not a number"),
        ("a,b,w\n5,7,inf\n", r"edges\.csv, line 2: inf in column 'w' is not finite"),
    ],
)
def test_bad_edges_are_named_by_line_and_value(write: Write, text: str, message: str) -> None:
    with pytest.raises(PairNormError, match=message):
        read_edges(open_table(write("edges.csv", text)), Ends("a", "b"), np.array([5, 7, 9]), "w")


def test_a_file_without_a_header_is_noticed(write: Write) -> None:
    edges = open_table(write("edges.csv", "5,7\n7,9\n"))
    with pytest.raises(PairNormError, match="line 1 is no header: it holds the node ids '5' and '7'"):
        read_edges(edges, Ends("5", "7", guessed=True), np.array([5, 7, 9]), None)


def test_no_edges_are_fine(write: Write) -> None:
    ends, weights = read_edges(open_table(write("e.csv", "a,b\n")), Ends("a", "b"), np.array([1]), None)
    assert (ends.tolist(), weights) == ([[], []], None)


def test_cells_longer_than_csv_allows_are_quoted_in_part(write: Write, raises: Callable) -> None:
    long = "x" * 200_000
    path = write("t.csv", f"id,text\na,{long}\n{long},b\n{long},c\n")
    table = open_table(path)
    (frame,) = read_blocks(table, rows=None)
    with raises("duplicate-id", value=long) as caught:
        node_names(table, "id", frame["id"])
    assert "t.csv, line 4: id 'xxx" in str(caught.value)
    assert len(str(caught.value)) < 250
    with raises("unknown-column") as caught:
        table.column("label", long)
    assert len(str(caught.value)) < 250
