import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional

from pairnorm.nn import PairNorm, SparseMatrix
from pairnorm.nn.ops.convolution import gcn_layer
from pairnorm.nn.ops.dropout import draw_keys, dropout

ACTIVATIONS = {"none": lambda x: x, "relu": functional.relu, "elu": functional.elu}
activations = pytest.mark.parametrize("activation", ACTIVATIONS)
norms = pytest.mark.parametrize("mode", [None, "PN", "PN-SI", "PN-SCS"])


def norm_of(mode):
    return None if mode is None else PairNorm(2.0, mode)


def formula(matrix, x, bias, activation, norm, weight=None, rate=0.0, keys=None):
    x = x if keys is None else dropout(x, rate, keys)
    z = x if weight is None else torch.einsum("nti,tio->nto", x, weight)
    y = ACTIVATIONS[activation](torch.einsum("ij,jtf->itf", matrix.to_dense().to(x.dtype), z) + bias)
    return y if norm is None else norm(y)


def layer(trials=3, width=6, out=5, dtype=torch.float32):
    shapes = ((20, trials, width), (trials, out), (trials, width, out))
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


@activations
@norms
@pytest.mark.parametrize("rate", [None, 0.0, 0.6])
@pytest.mark.parametrize(("trials", "width", "out"), [(1, 1, 1), (3, 6, 5), (2, 33, 40)])
def test_equals_the_formula_in_double(activation, mode, rate, trials, width, out, adjacency, either_form):
    x, bias, weight = layer(trials, width, out)
    keys = None if rate is None else draw_keys(trials)
    y = gcn_layer(adjacency, x, bias, activation, norm_of(mode), weight, rate or 0.0, keys)
    wide = [tensor.detach().double().requires_grad_() for tensor in (x, bias, weight)]
    expected = formula(adjacency, *wide[:2], activation, norm_of(mode), wide[2], rate or 0.0, keys)
    assert y.shape == (20, trials, out)
    torch.testing.assert_close(y.double(), expected, rtol=1e-4, atol=1e-4)
    grad = torch.randn(y.shape)
    gradients = torch.autograd.grad(y, (x, bias, weight), grad)
    for gradient, other in zip(gradients, torch.autograd.grad(expected, wide, grad.double()), strict=True):
        scale = other.abs().max().item() + 1
        torch.testing.assert_close(gradient.double(), other, rtol=1e-3, atol=1e-4 * scale)


@pytest.mark.parametrize("mode", ["PN", "PN-SI"])
@pytest.mark.parametrize("size", [1e20, 1e30, 1e37])
def test_states_near_the_float32_limit(mode, size, adjacency, either_form):
    """Their squares do not fit; a model with NaN next to them changes nothing."""
    x, bias, weight = (tensor.detach() for tensor in layer())
    x[:, 0] *= size
    x[3, 1] = torch.nan
    wide = [tensor.double().requires_grad_() for tensor in (x, bias, weight)]
    given = [tensor.requires_grad_() for tensor in (x, bias, weight)]
    y = gcn_layer(adjacency, *given[:2], "relu", norm_of(mode), given[2])
    expected = formula(adjacency, *wide[:2], "relu", norm_of(mode), wide[2])
    with torch.no_grad():
        alone = gcn_layer(adjacency, *given[:2], "relu", norm_of(mode), given[2])
    grad = torch.randn(y.shape)
    gradients = torch.autograd.grad(y, given, grad), torch.autograd.grad(expected, wide, grad.double())
    pairs = [(y, expected), (alone, expected), *zip(*gradients, strict=True)]
    for ours, other in pairs:
        for model in (0, 2):
            axis = 1 if ours.shape[0] == 20 else 0
            actual, exact = (tensor.detach().double().select(axis, model) for tensor in (ours, other))
            torch.testing.assert_close(actual, exact, rtol=1e-3, atol=1e-4 * float(exact.abs().max()))


@norms
def test_layer_without_weight_equals_the_formula(mode, adjacency, either_form, assert_equal_with_gradients):
    x, bias, _ = layer(width=5)
    expected = formula(adjacency, x, bias, "relu", norm_of(mode))
    y = gcn_layer(adjacency, x, bias, "relu", norm_of(mode))
    torch.testing.assert_close(y, expected)
    assert_equal_with_gradients(y, expected, (x, bias), atol=1e-4)


@activations
def test_gradients_reach_adjacency_weights(activation, adjacency, either_form, assert_equal_with_gradients):
    matrix = SparseMatrix(adjacency.pattern, adjacency.values.clone().requires_grad_())
    x, bias, weight = layer()
    y = gcn_layer(matrix, x, bias, activation, PairNorm(), weight)
    expected = formula(matrix, x, bias, activation, PairNorm(), weight)
    assert_equal_with_gradients(y, expected, (x, bias, weight, matrix.values), atol=1e-4)


@activations
def test_half_and_double_precision(activation, adjacency):
    x, bias, weight = (tensor.detach() for tensor in layer())
    expected = gcn_layer(adjacency, x, bias, activation, PairNorm(), weight)
    for dtype, tolerance in ((torch.float64, 1e-5), (torch.bfloat16, 0.1)):
        y = gcn_layer(adjacency, x.to(dtype), bias.to(dtype), activation, PairNorm(), weight.to(dtype))
        assert y.dtype == dtype
        torch.testing.assert_close(y.float(), expected, rtol=tolerance, atol=tolerance)


@activations
@norms
def test_second_derivatives_equal_autograd(activation, mode, adjacency, either_form, second_gradients):
    inputs, keys = layer(2, 4, 3), draw_keys(2)
    x, bias, weight = inputs
    settings = (adjacency, x, bias, activation, norm_of(mode), weight, 0.3, keys)
    ours, expected = (second_gradients(compute(*settings), inputs) for compute in (gcn_layer, formula))
    largest = max(gradient.abs().max().item() for gradient in expected)
    for gradient, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-2, atol=1e-4 * largest)


@activations
def test_gradcheck(activation, adjacency):
    x, bias, weight = layer(1, 2, 2, torch.float64)
    assert gradcheck(
        lambda *inputs: gcn_layer(adjacency, *inputs[:2], activation, None, inputs[2]), (x, bias, weight)
    )
    assert gradgradcheck(lambda *inputs: gcn_layer(adjacency, *inputs, activation), (x, bias))


@activations
@norms
def test_nan_stays_in_its_model(activation, mode, adjacency, either_form):
    x, bias, weight = layer()
    x.data[7, 1, 2] = torch.nan
    y = gcn_layer(adjacency, x, bias, activation, norm_of(mode), weight)
    assert y[7, 1].isnan().all()
    assert y[:, [0, 2]].isfinite().all()
    gradients = torch.autograd.grad(y.sum(), (x, bias, weight))
    assert gradients[0][:, [0, 2]].isfinite().all()
    for gradient in gradients[1:]:
        assert gradient[[0, 2]].isfinite().all()
    assert gradients[2][1].isnan().any()


@pytest.mark.parametrize("mode", [None, "PN", "PN-SI"])
def test_model_does_not_depend_on_other_models(mode, adjacency):
    (x, bias, weight), keys = layer(), draw_keys(3)
    together = gcn_layer(adjacency, x, bias, "relu", norm_of(mode), weight, 0.5, keys)
    for trial in range(3):
        own = [x[:, [trial]], bias[[trial]], "relu", norm_of(mode), weight[[trial]], 0.5, keys[[trial]]]
        assert torch.equal(gcn_layer(adjacency, *own), together[:, [trial]])


@activations
def test_result_does_not_depend_on_strides(activation, adjacency, either_form):
    x, bias, weight = torch.randn(5, 3, 20).permute(2, 1, 0), torch.randn(4, 3).T, torch.randn(3, 4, 5).mT
    torch.testing.assert_close(
        gcn_layer(adjacency, x, bias, activation, PairNorm(), weight),
        gcn_layer(adjacency, x.contiguous(), bias.contiguous(), activation, PairNorm(), weight.contiguous()),
    )


def test_shared_features_equal_repeated_features(adjacency, either_form):
    x, bias, weight = layer()
    shared = x[:, :1].detach().requires_grad_()
    every = shared.detach().expand(-1, 3, -1).clone().requires_grad_()
    ours, expected = (gcn_layer(adjacency, own, bias, "relu", None, weight) for own in (shared, every))
    torch.testing.assert_close(ours, expected)
    grad = torch.randn_like(ours)
    gradient, other = (torch.autograd.grad(y, own, grad)[0] for y, own in ((ours, shared), (expected, every)))
    torch.testing.assert_close(gradient, other.sum(1, keepdim=True))
