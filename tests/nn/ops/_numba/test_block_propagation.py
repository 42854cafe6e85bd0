import numpy as np
import torch

from pairnorm.nn.ops._numba import sparse_product


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
