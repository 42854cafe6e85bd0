import pytest
import torch

from pairnorm.nn import SparseMatrix
from pairnorm.nn.ops import sparse_product as pattern
from pairnorm.nn.ops._triton import sparse_product as kernels
from pairnorm.nn.ops.sparse_product import ACTIVATIONS


@pytest.fixture(
    params=[(3, 2**31), (64, 2**31), (3, 5)], ids=["rows in pieces", "rows in one piece", "64 bits"]
)
def matrix(request, monkeypatch, device):
    monkeypatch.setattr(kernels, "PIECE", request.param[0])
    monkeypatch.setattr(pattern, "MAX_ENTRIES_IN_32_BITS", request.param[1])
    dense = torch.randn(7, 12) * (torch.rand(7, 12) < 0.4)
    dense[4], dense[6] = 0, 1
    return SparseMatrix.from_torch(dense).to(device)


@pytest.mark.parametrize(  # each with each other, though not all three
    ("activation", "features", "per_trial"),
    [
        (activation, features, (row + column) % 2 == 0)
        for row, activation in enumerate([None, *ACTIVATIONS])
        for column, features in enumerate([5, 130])
    ],
)
def test_equals_dense(matrix, per_trial, activation, features, device):
    values = torch.randn(3, matrix.pattern.num_entries, device=device) if per_trial else matrix.values
    x, bias = torch.randn(12, 3, features, device=device), torch.randn(3, features, device=device)
    dense = SparseMatrix(matrix.pattern, values).to_dense().expand(3, -1, -1)
    expected = torch.einsum("tij,jtf->itf", dense, x)
    if activation is None:
        y = kernels.forward(matrix.pattern, values, x)
    else:
        y = kernels.forward(matrix.pattern, values, x, bias, activation)
        expected = ACTIVATIONS[activation](expected + bias)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)


def test_features_without_trials(matrix, device):
    x = torch.randn(12, 5, device=device)
    y = kernels.forward(matrix.pattern, matrix.values, x)
    torch.testing.assert_close(y, matrix.to_dense() @ x, rtol=1e-4, atol=1e-5)


def test_any_strides(matrix, device):
    x = torch.randn(5, 3, 12, device=device).permute(2, 1, 0)
    values = torch.randn(matrix.pattern.num_entries, 3, device=device).T
    for weights in (matrix.values, values):
        expected = kernels.forward(matrix.pattern, weights.contiguous(), x.contiguous())
        assert torch.equal(kernels.forward(matrix.pattern, weights, x), expected)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (9, 2, 5), (70, 3, 50)])
def test_gradient_of_the_activation(activation, shape, device):
    x = torch.randn(shape, device=device, requires_grad=True)
    y, grad = ACTIVATIONS[activation](x), torch.randn(shape, device=device)
    (expected,) = torch.autograd.grad(y, x, grad)
    gradient, grad_bias = kernels.activation_backward(grad, y.detach(), activation)
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(grad_bias, expected.sum(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nan_stays_nan(activation, device):
    identity = SparseMatrix.from_torch(torch.eye(3)).to(device)
    x, bias = torch.full((3, 1, 2), torch.nan, device=device), torch.zeros(1, 2, device=device)
    assert kernels.forward(identity.pattern, identity.values, x, bias, activation).isnan().all()
