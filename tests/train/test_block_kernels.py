import numpy as np
import pytest
import torch

from pairnorm.data import csbm
from pairnorm.nn import normalized_adjacency

pytest.importorskip("numba")
from pairnorm.train import block_kernels


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["rw", "sym"])
def test_a_step_is_the_product(weighted, kind, monkeypatch):
    monkeypatch.setattr(block_kernels, "ROWS_PER_TASK", 64)  # several threads
    adjacency = csbm(300, classes=2, seed=0).adjacency
    row = torch.arange(300).repeat_interleave(adjacency.crow_indices().diff())
    if weighted:
        adjacency.values().copy_(1 + (row * adjacency.col_indices()) % 5)
    crow, column = adjacency.crow_indices().numpy(), adjacency.col_indices().numpy().astype(np.int32)
    weight = adjacency.values().numpy() if weighted else None
    x, y = np.random.default_rng(0).normal(size=(2, 300, 7)).astype(np.float32)
    block_kernels.propagate(
        crow, column, weight, x, y, block_kernels.degree_roots(crow, weight) if kind == "sym" else None
    )
    expected = normalized_adjacency(adjacency, kind) @ torch.from_numpy(x)
    torch.testing.assert_close(torch.from_numpy(y), expected, rtol=1e-5, atol=1e-6)


def test_rows_beyond_two_to_the_31_are_found():
    """Row starts that do not fit 32 bits, over neighbors that are one number seen two billion times."""
    first = 2**31 + 10
    column = np.lib.stride_tricks.as_strided(np.zeros(1, np.int32), (first,), (0,))
    crow, x, y = np.array([0, first, first]), np.ones((2, 1), np.float32), np.zeros((2, 1), np.float32)
    block_kernels.propagate(np.array([first - 3, first, first]), column, None, x, y)
    assert y.tolist() == [[1], [1]]
    assert block_kernels.degree_roots(crow, None)[0] == pytest.approx((first + 1) ** -0.5)


def test_sums_and_center_and_norms():
    x = np.random.default_rng(0).normal(100, 1, size=(500, 5)).astype(np.float32)
    wide = x.astype(float)
    np.testing.assert_allclose(block_kernels.column_sums(x), wide.sum(0), rtol=1e-12)
    squares = np.zeros(500)
    block_kernels.row_squares(x, squares)
    np.testing.assert_allclose(squares, (wide**2).sum(1), rtol=1e-12)
    found = block_kernels.center(x, wide.mean(0))
    np.testing.assert_allclose(x, wide - wide.mean(0), atol=1e-5)
    np.testing.assert_allclose(found, (x.astype(float) ** 2).sum(0), rtol=1e-6)
