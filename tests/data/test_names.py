import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas
import pytest

from pairnorm.data import tables
from pairnorm.data.formats import open_table
from pairnorm.data.ids import check_ids, integers_or_texts, near_duplicate_notes
from pairnorm.data.tables import Table, read_blocks, read_rows
from pairnorm.data.tabular import EndpointColumns, read_edges

Write = Callable[[str, str], Path]
NODES = Table("nodes.csv", ("id",))


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
def test_ids_are_integers_only_if_written_plainly(cells: list[object], expected: list[object]) -> None:
    assert integers_or_texts(check_ids(NODES, "id", pandas.Series(cells))).tolist() == expected


@pytest.mark.parametrize(
    ("cells", "code", "where", "value"),
    [
        (["a", "b", "a"], "duplicate-id", "nodes.csv, row 3", "a"),
        (["a", None], "empty-cell", "nodes.csv, row 2", "id"),
    ],
)
def test_empty_and_repeated_ids_are_refused(
    cells: list[object], code: str, where: str, value: object, raises: Callable
) -> None:
    with raises(code, where, value=value):
        integers_or_texts(check_ids(NODES, "id", pandas.Series(cells)))


@pytest.mark.parametrize("names", [np.array([5, 7, 9]), np.array(["5", "7", "x"], dtype=object)])
def test_endpoints_are_matched_with_nodes(
    write: Write, names: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables.read_blocks, "__defaults__", ((), 2, math.inf))
    last = names[2]
    edges = open_table(write("edges.csv", f"a,b,w\n5,7,1\n7,{last},2.5\n{last},5,3\n"))
    ends, weights, _ = read_edges(edges, EndpointColumns("a", "b"), names, "w")
    assert ends.tolist() == [[0, 1, 2], [1, 2, 0]]
    assert weights is not None
    assert weights.tolist() == [1, 2.5, 3]


@pytest.mark.parametrize(
    ("text", "code", "where", "value"),
    [
        ("a,b,w\n5,7,1\n7,8,1\n", "unknown-node", "edges.csv, line 3", 8),
        (
            "a,b,w\n5,7,1\n7,8,1\n7,6,1\n",
            "unknown-node",
            "edges.csv, line 3",
            8,
        ),
        ("a,b,w\n5,7,1\n7,ann,1\n", "unknown-node", "edges.csv, line 3", "ann"),
        ("a,b,w\n5,7,1\n\n,7,1\n", "empty-cell", "edges.csv, line 4", None),
        (
            "a,b,w\n5,7,0\n",
            "bad-weight",
            "edges.csv, line 2",
            "0",
        ),
        ("a,b,w\n5,7,1\n7,9,\n", "bad-weight", "edges.csv, line 3", None),
        ("a,b,w\n5,7,heavy\n", "bad-weight", "edges.csv, line 2", "heavy"),
        ("a,b,w\n5,7,1\n5,7,x\n", "not-a-number", "edges.csv, line 3", "x"),
        ("a,b,w\n5,7,inf\n", "not-finite", "edges.csv, line 2", np.inf),
    ],
)
def test_invalid_edges_are_reported_by_line_and_value(
    write: Write, text: str, code: str, where: str, value: object, raises: Callable
) -> None:
    with raises(code, where, value=value):
        read_edges(open_table(write("edges.csv", text)), EndpointColumns("a", "b"), np.array([5, 7, 9]), "w")


def test_a_file_without_a_header_is_noticed(write: Write, raises: Callable) -> None:
    for guessed in (True, False):  # naming the columns of a file without a header does not eat its first edge
        edges = open_table(write("edges.csv", "5,7\n7,9\n"))
        result = read_edges(edges, EndpointColumns("5", "7", guessed), np.array([5, 7, 9]), None)
        assert result[0].tolist() == [[0, 1], [1, 2]]
        assert edges.notes == ["line 1 of edges.csv is an edge, not a header"]
    edges = open_table(write("edges.csv", "0,1\n1,2\n"))  # perhaps the header that pandas writes
    with raises("header-missing", "edges.csv", value=("0", "1")):
        read_edges(edges, EndpointColumns("0", "1", guessed=True), np.array([0, 1, 2]), None)
    with raises("unknown-node", "edges.csv, line 2"):
        edges = open_table(write("edges.csv", "5,7\n7,8\n"))
        read_edges(edges, EndpointColumns("5", "7"), np.array([5, 7, 9]), None)


def test_a_table_without_edges_is_valid(write: Write) -> None:
    ends, weights, _ = read_edges(
        open_table(write("e.csv", "a,b\n")), EndpointColumns("a", "b"), np.array([1]), None
    )
    assert (ends.tolist(), weights) == ([[], []], None)


def test_cells_longer_than_csv_allows_are_quoted_in_part(write: Write, raises: Callable) -> None:
    long = "x" * 200_000
    path = write("t.csv", f"id,text\na,{long}\n{long},b\n{long},c\n")
    table = open_table(path)
    (frame,) = read_blocks(table, rows=None)
    with raises("duplicate-id", value=long) as caught:
        integers_or_texts(check_ids(table, "id", frame["id"]))
    assert "t.csv, line 4: id 'xxx" in str(caught.value)
    assert len(str(caught.value)) < 250
    with raises("unknown-column") as caught:
        table.column("label", long)
    assert len(str(caught.value)) < 250


def rows(name: str, **columns: list[object]) -> Table:
    frame = pandas.DataFrame(columns)
    return Table(name, tuple(frame.columns), frame)


def test_tables_are_merged_by_id() -> None:
    first = rows("a.csv", id=["1", "2"], age=[30, None])
    second = rows("b.csv", id=[3, 2], age=[None, 40.0], job=["clerk", "nurse"])
    table, frame, names = read_rows([first, second], "id", ["id"])
    assert (table.name, table.columns) == ("a.csv and b.csv", ("id", "age", "job"))
    assert names.tolist() == [1, 2, 3]
    assert frame["age"].fillna(-1).tolist() == [30, 40, -1]
    assert frame["job"].fillna("").tolist() == ["", "nurse", "clerk"]
    assert [table.place(row) for row in range(3)] == ["a.csv, row 1", "a.csv, row 2", "b.csv, row 1"]


def test_conflicting_tables_are_refused(raises: Callable) -> None:
    first, second = rows("a.csv", id=["x"], age=[30]), rows("b.csv", id=["y", "x"], age=[1, 31])
    with raises("conflicting-rows", value="x") as caught:
        read_rows([first, second], "id", [])
    assert caught.value.problem == "b.csv, row 2: 'x' has '31' in column 'age', but '30' in another file"
    with raises("duplicate-id"):
        read_rows([first, rows("b.csv", id=["y", "y"], z=[1, 2])], "id", [])
    with raises("unknown-column", value="id"):
        read_rows([first, rows("b.csv", key=["y"])], "id", [])


EDGES = "a,b\nx,y\nx,Y\ny,no\n"
LETTERS = np.array(["x", "y", "Zu\u0308rich"], dtype=object)


def test_edges_with_unknown_endpoints_are_dropped_and_counted(write: Write, raises: Callable) -> None:
    table = open_table(write("e.csv", EDGES))
    with raises("unknown-node", value="Y", options={"unknown_edges": "add"}) as caught:
        read_edges(table, EndpointColumns("a", "b"), LETTERS, None)
    assert "differs from the node 'y' only in case, spaces" in caught.value.problem
    result = read_edges(table, EndpointColumns("a", "b"), LETTERS, None, drop=True)
    assert result[0].tolist() == [[0], [1]]
    assert table.notes[0].startswith(
        "2 of 3 edges in e.csv were dropped, because an endpoint is not a node, such as 'Y'"
    )


def test_examples_of_ids_are_shown_if_no_endpoint_matches(write: Write, raises: Callable) -> None:
    table = open_table(write("e.csv", "a,b\ncust 1,cust 2\ncust 2,cust 1\n"))
    with raises("unknown-node", value="cust 1", options={"id": ..., "source": ..., "target": ...}) as caught:
        read_edges(table, EndpointColumns("a", "b"), LETTERS, None)
    assert caught.value.problem.endswith("; nodes are called 'x', 'y', 'Zu\u0308rich'")


@pytest.mark.parametrize("cell", ["Z\u00fcrich", "z\u00fcrich", "ZU\u0308RICH"])
def test_another_form_of_a_name_is_recognized(write: Write, cell: str, raises: Callable) -> None:
    with raises("unknown-node", value=cell) as caught:
        read_edges(open_table(write("e.csv", f"a,b\n{cell},x\n")), EndpointColumns("a", "b"), LETTERS, None)
    assert "Unicode form" in caught.value.problem


@pytest.mark.parametrize(("node", "cell"), [("7", "007"), ("7.0", "7"), ("7", "7.0")])
def test_ids_with_other_zeros_are_suggested(write: Write, node: str, cell: str, raises: Callable) -> None:
    names = np.array([node, "x"], dtype=object)
    with raises("unknown-node", value=cell) as caught:
        read_edges(open_table(write("e.csv", f"a,b\n{cell},x\n")), EndpointColumns("a", "b"), names, None)
    assert f"differs from the node '{node}' only in" in caught.value.problem


def test_near_duplicate_ids_are_noted() -> None:
    assert near_duplicate_notes(np.array(["Bob", "ann", "Bo  b", "bo b", "BOB"], dtype=object)) == [
        "2 ids differ from another only in case, spaces, leading zeros, a final .0 or Unicode form, such "
        "as 'Bo  b' and 'bo b'; they are different nodes"
    ]
    assert (
        near_duplicate_notes(np.array([1, 2]))
        == near_duplicate_notes(np.array(["a", "b"], dtype=object))
        == []
    )
