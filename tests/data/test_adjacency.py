import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from pairnorm.data.adjacency import EdgeCounts, symmetric_adjacency

Edges = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(1, 9)), max_size=40)


@given(Edges)
def test_it_equals_a_dense_matrix_filled_by_hand(edges: list[tuple[int, int, int]]) -> None:
    expected = np.zeros((7, 7))
    for a, b, weight in edges:
        if a != b:
            expected[a, b] = expected[b, a] = max(expected[a, b], weight)
    listed = np.array(edges, dtype=np.int64).reshape(-1, 3)
    weighted, counts = symmetric_adjacency(listed[:, 0], listed[:, 1], 7, listed[:, 2])
    np.testing.assert_array_equal(weighted.to_dense().numpy(), expected)
    plain, _ = symmetric_adjacency(listed[:, 0], listed[:, 1], 7)
    np.testing.assert_array_equal(plain.to_dense().numpy(), expected > 0)

    directed = {(a, b) for a, b, _ in edges if a != b}
    assert counts == EdgeCounts(
        distinct=len({frozenset(pair) for pair in directed}),
        self_loops=sum(a == b for a, b, _ in edges),
        duplicates=sum(a != b for a, b, _ in edges) - len(directed),
        one_way=sum((b, a) not in directed for a, b in directed),
        isolated=7 - len({node for pair in directed for node in pair}),
    )


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
    notes = EdgeCounts(distinct=5, self_loops=1, duplicates=2, one_way=0, isolated=1200).notes()
    assert notes == ("1 self-loop was dropped", "2 repeated edges were merged", "1,200 nodes have no edge")
