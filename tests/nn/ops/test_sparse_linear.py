import pytest
import torch

from pairnorm.nn import SparseMatrix
from pairnorm.nn.ops.dropout import draw_keys, keep_mask
from pairnorm.nn.ops.sparse_product import sparse_linear


@pytest.fixture(params=["shared", "per trial"])
def features(request):
    """Features ``[3, 11, 8]`` as a sparse matrix; one row and one column are empty, some values zero."""
    dense = torch.randn(11, 8) * (torch.rand(11, 8) < 0.4)
    dense[4], dense[:, 2] = 0, 0
    matrix = SparseMatrix.from_torch(dense)
    if request.param == "shared":
        return matrix
    values = torch.randn(3, matrix.pattern.num_entries)
    values[1, ::2] = 0
    return SparseMatrix(matrix.pattern, values)


def product(x, weight, rate=0.0, keys=None):
    """The formula in float64."""
    values = x.values.double().expand(3, -1)
    if keys is not None:
        values = values * keep_mask(keys, 1, x.pattern.num_entries, rate)[0] / (1 - rate)
    return torch.einsum("tni,tio->nto", SparseMatrix(x.pattern, values).to_dense(), weight)


@pytest.mark.parametrize("out", [1, 5, 32, 40])
@pytest.mark.parametrize("rate", [None, 0.0, 0.5, 0.75])
def test_equals_the_formula(features, out, rate, either_form, assert_equal_with_gradients):
    weight, keys = torch.randn(3, 8, out, requires_grad=True), draw_keys(3) if rate else None
    wide = weight.detach().double().requires_grad_()
    y = sparse_linear(features, weight, rate or 0.0, keys)
    expected = product(features, wide, rate or 0.0, keys)
    assert_equal_with_gradients(y, expected, [weight], [wide], rtol=1e-5)


def test_gradients_reach_learned_features(either_form):
    x = SparseMatrix.from_torch(torch.randn(4, 5))
    x = SparseMatrix(x.pattern, x.values.clone().requires_grad_())
    weight, keys = torch.randn(2, 5, 3), draw_keys(2)
    sparse_linear(x, weight, 0.5, keys).sum().backward()
    mask = keep_mask(keys, 1, 20, 0.5)[0] / 0.5
    torch.testing.assert_close(x.values.grad, (mask.view(2, 4, 5) * weight.sum(-1)[:, None]).sum(0).flatten())


def test_second_derivatives_equal_autograd(features, either_form):
    weight, keys = torch.randn(3, 8, 4, requires_grad=True), draw_keys(3)

    def second(y):
        (first,) = torch.autograd.grad(y.pow(3).sum(), weight, create_graph=True)
        return torch.autograd.grad(first.pow(2).sum(), weight)[0]

    expected = second(product(features, weight.double(), 0.5, keys))
    largest = expected.abs().max().item()
    torch.testing.assert_close(
        second(sparse_linear(features, weight, 0.5, keys)), expected.float(), rtol=1e-4, atol=1e-5 * largest
    )


def test_nan_stays_in_its_model(features, either_form):
    weight = torch.randn(3, 8, 4, requires_grad=True)
    weight.data[1] = torch.nan
    y = sparse_linear(features, weight, 0.5, draw_keys(3))
    assert y[:, 1].isnan().any()
    assert y[:, [0, 2]].isfinite().all()
