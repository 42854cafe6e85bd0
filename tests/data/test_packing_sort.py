from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import coo_array, vstack

from pairnorm.data.adjacency import ExternalSort


@pytest.mark.parametrize("rows", [1, 7, 40, 100])
@pytest.mark.parametrize("weighted", [False, True])
def test_ranges_make_the_matrix_of_all_entries(tmp_path: Path, rows: int, weighted: bool) -> None:
    """Whatever the ranges and the order of edges: each entry once, the larger sum of the two directions."""
    generator, nodes = np.random.default_rng(0), 40
    source, target = generator.integers(0, nodes, (2, 300))
    weights = generator.random(300).astype(np.float32)
    with ExternalSort(tmp_path, rows, nodes, weighted) as ranges:
        for part in np.array_split(np.arange(300), 4):
            ranges.add(source[part], target[part], weights[part] if weighted else None)
    result = vstack([matrix for matrix, _ in ranges.sorted()], format="csr")
    totals = np.zeros((nodes, nodes))
    np.add.at(totals, (source, target), weights)
    expected = coo_array(np.maximum(totals, totals.T)).tocsr()
    np.testing.assert_array_equal(result.indptr, expected.indptr)
    np.testing.assert_array_equal(result.indices, expected.indices)
    np.testing.assert_allclose(result.data, expected.data if weighted else 1, rtol=1e-6)
    assert not list(tmp_path.iterdir())


def test_directions_are_counted_before_they_are_merged(tmp_path: Path) -> None:
    """An edge that is listed in both directions counts twice, one that is listed twice in one once."""
    with ExternalSort(tmp_path, 10, 10, weighted=False) as ranges:
        ranges.add(np.array([1, 2, 3, 3]), np.array([2, 1, 4, 4]), None)
    ((matrix, listed),) = ranges.sorted()
    assert np.diff(matrix.indptr).tolist() == [0, 1, 1, 1, 1, 0, 0, 0, 0, 0]
    assert matrix.indices.tolist() == [2, 1, 4, 3]
    assert listed == 2 * 2 + 2


def test_nodes_up_to_two_billion_are_not_cut(tmp_path: Path) -> None:
    nodes, rows = 2**31 - 1, 2**30
    with ExternalSort(tmp_path, rows, nodes, weighted=False) as ranges:
        ranges.add(np.array([nodes - 1]), np.array([0]), None)
    entries = [np.fromfile(path, ranges.dtype).tolist() for path in ranges.paths]
    assert entries == [[(0, -1 - (nodes - 1))], [(nodes - 1 - rows, 0)]]
