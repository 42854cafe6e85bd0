from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pairnorm.data import Graph
from pairnorm.data.adjacency import (
    EdgeCounts,
    along_and_against,
    check_adjacency,
    check_csr,
    components,
    listed_directions,
    symmetric_adjacency,
)

Edges = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(1, 9)), max_size=40)


@given(Edges)
def test_symmetric_adjacency_equals_a_dense_matrix(edges: list[tuple[int, int, int]]) -> None:
    totals = np.zeros((7, 7))
    for a, b, weight in edges:
        totals[a, b] += weight if a != b else 0
    expected = np.maximum(totals, totals.T)
    listed = np.array(edges, dtype=np.int64).reshape(-1, 3)
    weighted, counts = symmetric_adjacency(listed[:, 0], listed[:, 1], 7, listed[:, 2])
    np.testing.assert_array_equal(weighted.to_dense().numpy(), expected)
    plain, _ = symmetric_adjacency(listed[:, 0], listed[:, 1], 7)
    np.testing.assert_array_equal(plain.to_dense().numpy(), expected > 0)

    directed = {(a, b) for a, b, _ in edges if a != b}
    assert plain.values().numel() == 2 * len({frozenset(pair) for pair in directed})
    assert counts == EdgeCounts(
        self_loops=sum(a == b for a, b, _ in edges),
        duplicates=sum(a != b for a, b, _ in edges) - len(directed),
        one_way=sum((b, a) not in directed for a, b in directed),
        isolated=7 - len({node for pair in directed for node in pair}),
    )


@given(Edges)
def test_directions_are_those_listed(edges: list[tuple[int, int, int]]) -> None:
    listed = np.array(edges, dtype=np.int64).reshape(-1, 3)
    adjacency, _ = symmetric_adjacency(*listed.T[:2], 7, listed[:, 2])
    expected = np.zeros((7, 7), dtype=bool)
    for a, b, _ in edges:
        expected[a, b] = a != b
    along, against = along_and_against(adjacency, listed_directions(adjacency, *listed.T[:2]))
    dense = adjacency.to_dense().numpy()
    np.testing.assert_array_equal(along.to_dense().numpy(), dense * expected)
    np.testing.assert_array_equal(against.to_dense().numpy(), dense * expected.T)
    np.testing.assert_array_equal(adjacency.to_dense().numpy(), dense)


def test_columns_are_in_order_within_every_row() -> None:
    source, target = np.random.default_rng(0).integers(0, 50, (2, 600))
    adjacency, _ = symmetric_adjacency(source, target, 50)
    torch.sparse_csr_tensor(
        adjacency.crow_indices(),
        adjacency.col_indices(),
        adjacency.values(),
        size=(50, 50),
        check_invariants=True,
    )


def test_notes_count_and_agree_in_number() -> None:
    notes = EdgeCounts(self_loops=1, duplicates=2, one_way=0, isolated=1200).notes()
    assert notes == ("1 self-loop was dropped", "2 repeated edges were merged", "1,200 nodes have no edge")


@pytest.mark.parametrize(
    ("dense", "code"),
    [
        ([[0, 1, 0], [0, 0, 1], [0, 1, 0]], "not-symmetric"),
        ([[0, 1, 0], [2, 0, 1], [0, 1, 0]], "not-symmetric"),
        ([[1, 1, 0], [1, 0, 1], [0, 1, 0]], "self-loop"),
    ],
)
def test_an_adjacency_that_counts_edges_wrongly_is_refused(
    dense: list[list[float]], code: str, raises: Callable
) -> None:
    with raises(code):
        check_adjacency(torch.tensor(dense, dtype=torch.float32).to_sparse_csr())


def test_the_order_within_a_row_does_not_matter_but_repeats_do(raises: Callable) -> None:
    def matrix(crow: list[int], column: list[int]) -> torch.Tensor:
        return torch.sparse_csr_tensor(crow, column, torch.ones(len(column)), (3, 3), check_invariants=False)

    check_adjacency(matrix([0, 2, 3, 4], [2, 1, 0, 0]))
    with raises("repeated-edge"):
        check_adjacency(matrix([0, 2, 4, 4], [1, 1, 0, 0]))


@given(Edges)
def test_built_adjacencies_are_valid(edges: list[tuple[int, int, int]]) -> None:
    listed = np.array(edges, dtype=np.int64).reshape(-1, 3)
    check_adjacency(symmetric_adjacency(listed[:, 0], listed[:, 1], 7, listed[:, 2])[0])


@pytest.mark.parametrize(
    ("starts", "indices", "entries", "columns"),
    [
        ([0, 10**9, -1], [0, 1], 2, 2),
        ([1, 1, 2], [0, 1], 2, 2),
        ([0, 2, 1], [0], 1, 2),
        ([0, 1], [0], 1, 2),
        ([0, 1, 2], [0, 1], 3, 2),
        ([0, 1, 2], [0, 2], 2, 2),
        ([0, 1, 2], [0, -1], 2, 2),
        ([0.0, 1.0, 2.0], [0, 1], 2, 2),
        ([0, 1, 2], [[0], [1]], 2, 2),
        ([0, 1, 2], [0, 1], 2, 10**15),
        # Differences of these overflow and look as if the rows only grew.
        ([0, 2**63 - 1, -2, 2], [0, 1], 2, 2),
    ],
)
def test_invalid_csr_components_are_refused(
    starts: list[int], indices: list[int], entries: int, columns: int, raises: Callable
) -> None:
    rows = 3 if len(starts) == 4 else 2
    for kind in (np.array, torch.tensor):
        with raises("broken-matrix"):
            check_csr("x", kind(starts), kind(indices), entries, (rows, columns))
    check_csr("x", np.array([0, 1, 2]), np.array([1, 0], dtype=np.uint8), 2, (2, 2))


def test_an_adjacency_that_is_changed_in_place_is_checked_again(raises: Callable) -> None:
    graph = Graph.from_edges([[0, 1, 2], [1, 2, 3]])
    assert components(graph.adjacency).tolist() == [0, 0, 0, 0]
    graph.adjacency.col_indices()[0] = 99
    with raises("broken-matrix"):
        graph.replace(name="changed")
    changed = Graph.from_edges([[0, 1, 2], [1, 2, 3]])
    changed.adjacency.values()[0] = 7.0
    with raises("not-symmetric"):
        changed.replace(name="changed")
