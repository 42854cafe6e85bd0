import pytest
import torch

from pairnorm.nn import SparseMatrix
from pairnorm.nn.ops._numba.sparse_product import forward as multiply
from pairnorm.nn.ops.activation import ACTIVATIONS


@pytest.fixture
def matrix():
    dense = torch.randn(11, 8) * (torch.rand(11, 8) < 0.4)
    dense[4] = 0
    return SparseMatrix.from_torch(dense)


@pytest.mark.parametrize("per_trial", [False, True])
@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
@pytest.mark.parametrize("features", [1, 5, 32])
def test_equals_dense(matrix, per_trial, activation, features):
    values = torch.randn(3, matrix.pattern.num_entries) if per_trial else matrix.values
    x, bias = torch.randn(8, 3, features), torch.randn(3, features)
    dense = SparseMatrix(matrix.pattern, values).to_dense().expand(3, -1, -1)
    expected = torch.einsum("tij,jtf->itf", dense, x)
    if activation is None:
        torch.testing.assert_close(multiply(matrix.pattern, values, x), expected)
    else:
        y = multiply(matrix.pattern, values, x, bias, activation)
        torch.testing.assert_close(y, ACTIVATIONS[activation](expected + bias))


def test_features_without_trials(matrix):
    x = torch.randn(8, 5)
    torch.testing.assert_close(multiply(matrix.pattern, matrix.values, x), matrix.to_dense() @ x)


def test_any_strides(matrix):
    x, values = torch.randn(5, 3, 8).permute(2, 1, 0), torch.randn(matrix.pattern.num_entries, 3).T
    for weights in (matrix.values, values):
        expected = multiply(matrix.pattern, weights.contiguous(), x.contiguous())
        assert torch.equal(multiply(matrix.pattern, weights, x), expected)
