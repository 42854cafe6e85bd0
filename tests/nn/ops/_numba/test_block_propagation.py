import numpy as np
import pytest
import torch

from pairnorm.data import csbm
from pairnorm.nn import normalized_adjacency
from pairnorm.nn.ops._numba import sparse_product


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["rw", "sym"])
def test_a_step_is_the_product(weighted, kind, monkeypatch):
    monkeypatch.setattr(sparse_product, "ROWS_PER_TASK", 64)  # several threads
    adjacency = csbm(300, classes=2, seed=0).adjacency
    row = torch.arange(300).repeat_interleave(adjacency.crow_indices().diff())
    if weighted:
        adjacency.values().copy_(1 + (row * adjacency.col_indices()) % 5)
    crow, column = adjacency.crow_indices(), adjacency.col_indices().int()
    weight = adjacency.values() if weighted else None
    roots = (1 + adjacency.to_dense().sum(1)).rsqrt() if kind == "sym" else None
    x, y = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 300, 7)).astype(np.float32))
    sparse_product.propagate(crow, column, weight, roots, x, y)
    expected = normalized_adjacency(adjacency, kind) @ x
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-6)


def test_rows_beyond_two_to_the_31_are_read():
    """Row starts that do not fit 32 bits, over neighbors that are one number seen two billion times."""
    first = 2**31 + 10
    column = torch.zeros(1, dtype=torch.int32).expand(first)
    x, y = torch.ones(2, 1), torch.zeros(2, 1)
    sparse_product.propagate(torch.tensor([first - 3, first, first]), column, None, None, x, y)
    assert y.tolist() == [[1], [1]]


def test_center_subtracts_means_and_returns_the_sum_of_squares():
    x = np.random.default_rng(0).normal(100, 1, size=(500, 5)).astype(np.float32)
    wide = x.astype(float)
    squares = sparse_product.center(torch.from_numpy(x))
    np.testing.assert_allclose(x, wide - wide.mean(0), atol=1e-5)
    np.testing.assert_allclose(squares, (x.astype(float) ** 2).sum(), rtol=1e-6)
