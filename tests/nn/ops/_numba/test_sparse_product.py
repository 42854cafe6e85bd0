import pytest
import torch

from pairnorm.nn import SparseMatrix
from pairnorm.nn.ops._numba.sparse_product import activation_backward
from pairnorm.nn.ops._numba.sparse_product import forward as multiply
from pairnorm.nn.ops.sparse_product import ACTIVATIONS


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


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (9, 2, 5), (40, 3, 33)])
def test_gradient_of_the_activation(activation, shape):
    x, grad = torch.randn(shape, requires_grad=True), torch.randn(shape)
    y = ACTIVATIONS[activation](x)
    (expected,) = torch.autograd.grad(y, x, grad)
    gradient, grad_bias = activation_backward(grad, y.detach(), activation)
    torch.testing.assert_close(gradient, expected)
    torch.testing.assert_close(grad_bias, expected.sum(0))


@pytest.mark.parametrize("activation", ["relu", "elu"])
def test_activations_far_from_zero(activation):
    identity = SparseMatrix.from_torch(torch.ones(1, 1))
    x = torch.tensor([-1e30, -100.0, -0.0, 0.0, 1e30, torch.nan]).view(1, 1, 6)
    expected = ACTIVATIONS[activation](x)
    y = multiply(identity.pattern, identity.values, x, torch.zeros(1, 6), activation)
    torch.testing.assert_close(y, expected, rtol=0, atol=0, equal_nan=True)
    gradient, _ = activation_backward(torch.ones(1, 1, 6), expected, activation)
    assert gradient.flatten()[[0, 1, 4]].tolist() == [0, 0, 1]
