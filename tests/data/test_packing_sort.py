from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import coo_array

from pairnorm.data.adjacency import ExternalSort


@pytest.mark.parametrize("rows", [1, 7, 40, 100])
@pytest.mark.parametrize("weighted", [False, True])
def test_ranges_make_the_matrix_of_all_entries(tmp_path: Path, rows: int, weighted: bool) -> None:
    """Whatever the ranges and the order of entries: each once, by row and column, the sum of its weights."""
    generator, nodes = np.random.default_rng(0), 40
    row, column = generator.integers(0, nodes, (2, 300))
    weights = generator.random(300).astype(np.float32)
    with ExternalSort(tmp_path, rows, nodes, weighted) as ranges:
        for part in np.array_split(np.arange(300), 4):
            ranges.add(row[part], column[part], 0, weights[part] if weighted else None)
    found = list(ranges.sorted())
    crow = np.append(0, np.concatenate([degrees for degrees, *_ in found]).cumsum())
    totals = np.zeros((nodes, nodes))
    np.add.at(totals, (row, column), weights)
    expected = coo_array(totals).tocsr()
    np.testing.assert_array_equal(crow, expected.indptr)
    np.testing.assert_array_equal(np.concatenate([columns for _, columns, *_ in found]), expected.indices)
    if weighted:
        np.testing.assert_allclose(np.concatenate([one for _, _, one, _ in found]), expected.data, rtol=1e-6)
    assert not list(tmp_path.iterdir())


def test_directions_are_counted_before_they_are_merged(tmp_path: Path) -> None:
    """An edge that is listed in both directions counts twice, one that is listed twice in one once."""
    with ExternalSort(tmp_path, 10, 10, weighted=False) as ranges:
        for source, target in ((1, 2), (2, 1), (3, 4), (3, 4)):
            ends = np.array([source]), np.array([target])
            ranges.add(*ends, 0, None)
            ranges.add(*ends[::-1], 1, None)
    ((degrees, columns, _, directions),) = ranges.sorted()
    assert degrees.tolist() == [0, 1, 1, 1, 1, 0, 0, 0, 0, 0]
    assert columns.tolist() == [2, 1, 4, 3]
    assert directions == 2 * 2 + 2


def test_keys_of_more_than_two_billion_are_not_cut(tmp_path: Path) -> None:
    nodes = 2**31 - 1
    with ExternalSort(tmp_path, 2**30, nodes, weighted=False) as ranges:
        ranges.add(np.array([nodes - 1, 0]), np.array([nodes - 2, nodes - 1]), 1, None)
    keys = [np.fromfile(path, np.int64) for path in ranges.paths]
    assert [[int(one) >> 1 for one in some] for some in keys] == [
        [nodes - 1],
        [(nodes - 1) * nodes + nodes - 2],
    ]
