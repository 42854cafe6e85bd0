"""The kernels of every back end give what the references give, which define the operations."""

import importlib.util
from importlib import import_module

import pytest
import torch

from pairnorm.nn import PairNorm, SparseMatrix
from pairnorm.nn.ops import pair_norm as pair_norm_reference
from pairnorm.nn.ops import sparse_product as sparse_reference
from pairnorm.nn.ops.convolution import NEGATIVE_SLOPE, attend, attention_reference, gcn_reference
from pairnorm.nn.ops.dropout import draw_keys, factor, keep_mask
from pairnorm.nn.ops.kernels import KernelFunction
from pairnorm.nn.ops.linear import _reference as linear_reference
from pairnorm.nn.ops.sparse_product import ACTIVATIONS, Pattern
from pairnorm.train.block_ops import reference_propagate

# Of lanes beyond the end of a row, whose results are never stored.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")
RATES = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 3e-2}
"""Tolerances, relative to the norm of a result."""


class Backend:
    """The kernels of a back end, on its device."""

    def __init__(self, name, device):
        self.name, self.device = name, device

    def __getattr__(self, operation):
        return import_module(f"pairnorm.nn.ops._{self.name}.{operation}")

    def randn(self, *shape, dtype=torch.float32):
        return torch.randn(shape, device=self.device).to(dtype).requires_grad_()

    def keys(self, count):
        return draw_keys(count, device=self.device)


@pytest.fixture(params=["numba", "triton"])
def backend(request, runs_triton, device):
    if request.param == "triton" and not runs_triton:
        pytest.skip("runs on a GPU, or in the interpreter: see test_interpreter.py")
    if request.param == "numba" and importlib.util.find_spec("numba") is None:
        pytest.skip("numba is not installed")
    return Backend(request.param, device if request.param == "triton" else torch.device("cpu"))


@pytest.fixture
def dtype(request, backend):
    """float32, and on CUDA the types with fewer digits."""
    dtype = getattr(request, "param", torch.float32)
    if backend.name == "numba" and dtype != torch.float32:
        pytest.skip("not on a CPU")
    return dtype


def check(outputs, expected, tensors, wide):
    """Compare outputs and, for random cotangents, gradients, relative to their norms."""
    pairs = [*zip(outputs, expected, strict=True)]
    grads = [torch.randn_like(output) for output in outputs]
    ours = torch.autograd.grad(outputs, tensors, grads)
    theirs = torch.autograd.grad(expected, wide, [grad.double() for grad in grads])
    assert [one.dtype for one in ours] == [tensor.dtype for tensor in tensors]
    tolerance = max(RATES[output.dtype] for output in outputs)
    for one, other in [*pairs, *zip(ours, theirs, strict=True)]:
        assert (one.double() - other).norm() <= tolerance * (other.norm() + 1)


def in_double(tensors):
    return [tensor.detach().double().requires_grad_() for tensor in tensors]


@pytest.mark.parametrize("shape", [(40, 3, 7), (40, 3, 8), (3, 2, 1), (1, 4, 301), (2, 1, 1500)])
@pytest.mark.parametrize("rate", [1e-9, 0.1, 0.6, 0.99999])
def test_dropout_bit_for_bit(backend, shape, rate):
    x, keys = backend.randn(*shape).detach(), backend.keys(shape[1])
    expected = keep_mask(keys, shape[0], shape[2], rate).mul_(factor(rate)).mul(x)
    assert torch.equal(backend.dropout.forward(x, rate, keys), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], indirect=True)
def test_dropout_in_half_precision(backend, dtype):
    x, keys = torch.ones(30, 2, 5, dtype=dtype, device=backend.device), backend.keys(2)
    assert torch.equal(backend.dropout.forward(x, 0.5, keys).float(), 2 * keep_mask(keys, 30, 5, 0.5))


@pytest.mark.parametrize("strides", ["expanded", "permuted", "sliced"])
def test_dropout_with_any_strides(backend, strides):
    views = {
        "expanded": lambda: backend.randn(9, 1, 5).expand(-1, 3, -1),
        "permuted": lambda: backend.randn(5, 3, 9).permute(2, 1, 0),
        "sliced": lambda: backend.randn(9, 6, 5)[:, ::2],
    }
    x, keys = views[strides]().detach(), backend.keys(3)
    forward = backend.dropout.forward
    assert torch.equal(forward(x, 0.4, keys), forward(x.contiguous(), 0.4, keys))


def linear(backend, x, weight, ends, rate, keys):
    functions = (backend.linear.forward, backend.linear.backward, linear_reference)
    return KernelFunction.apply(*functions, (rate, keys), x, weight, ends)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], indirect=True)
@pytest.mark.parametrize(("nodes", "width", "out"), [(1, 1, 1), (9, 5, 7), (100, 33, 40), (64, 32, 32)])
@pytest.mark.parametrize(("rate", "scores"), [(0.0, 0), (0.6, 0), (0.0, 2), (0.6, 6)])
def test_linear_equals_reference(backend, nodes, width, out, rate, scores, dtype, monkeypatch):
    if backend.name == "triton" and scores:  # a program then takes several tiles of rows
        monkeypatch.setattr(backend.linear, "PROGRAMS", 2)
        monkeypatch.setattr(backend.linear, "PROGRAMS_OF_SUMS", 2)
    tensors = [backend.randn(nodes, 2, width, dtype=dtype), backend.randn(2, width, out)]
    tensors += [backend.randn(2, out, scores)] if scores else []
    wide, keys, none = in_double(tensors), backend.keys(2) if rate else None, [None] * (not scores)
    count = 2 if scores else 1
    ours = linear(backend, *tensors, *none, rate, keys)[:count]
    assert [output.dtype for output in ours] == [dtype, torch.float32][:count]
    check(ours, linear_reference(*wide, *none, rate, keys)[:count], tensors, wide)


@pytest.mark.parametrize("used", [0, 1])
def test_linear_with_an_unused_output(backend, used):
    tensors = [backend.randn(6, 2, 4), backend.randn(2, 4, 3), backend.randn(2, 3, 2)]
    wide, needed = in_double(tensors), 2 + used
    ours, expected = linear(backend, *tensors, 0.0, None), linear_reference(*wide, 0.0, None)
    check([ours[used]], [expected[used]], tensors[:needed], wide[:needed])


def test_linear_returns_requested_gradients(backend):
    x, weight = backend.randn(5, 2, 3).detach(), backend.randn(2, 3, 4)
    linear(backend, x, weight, None, 0.0, None)[0].sum().backward()
    torch.testing.assert_close(weight.grad, x.sum(0).unsqueeze(-1).expand(2, 3, 4))


def test_wide_weights_are_left_to_the_matrix_library(backend):
    fits = backend.linear.fits
    assert fits(torch.empty(3, 64, 64, device="meta"))
    assert not fits(torch.empty(3, 1433, 64, device="meta"))
    if backend.name == "triton":
        weight, most = torch.empty(1, 8, 8, device="meta"), backend.linear.MAX_SCORES
        assert fits(weight, torch.empty(1, 8, most, device="meta"))
        assert not fits(weight, torch.empty(1, 8, most + 1, device="meta"))


def check_second_gradients(ours, expected, second_gradients, tensors, wide):
    theirs = second_gradients(expected, wide)
    largest = max(gradient.abs().max().item() for gradient in theirs)
    for gradient, other in zip(second_gradients(ours, tensors), theirs, strict=True):
        torch.testing.assert_close(gradient.double(), other, rtol=1e-2, atol=1e-3 * largest)


def test_second_derivatives_of_linear(backend, second_gradients):
    """Bug: on CUDA they were refused."""
    tensors, keys = [backend.randn(9, 2, 5), backend.randn(2, 5, 3), backend.randn(2, 3, 2)], backend.keys(2)
    wide = in_double(tensors)
    ours, theirs = linear(backend, *tensors, 0.5, keys), linear_reference(*wide, 0.5, keys)
    check_second_gradients(torch.cat(ours, -1), torch.cat(theirs, -1), second_gradients, tensors, wide)


@pytest.fixture(params=[(3, 2**31), (64, 2**31), (3, 5)], ids=["pieces of rows", "whole rows", "64 bits"])
def matrix(request, monkeypatch, backend):
    piece, most = request.param
    if backend.name == "triton":
        monkeypatch.setattr(backend.sparse_product, "PIECE", piece)
    monkeypatch.setattr(sparse_reference, "MAX_ENTRIES_IN_32_BITS", most)
    dense = torch.randn(7, 12) * (torch.rand(7, 12) < 0.4)
    dense[4], dense[6] = 0, 1
    return SparseMatrix.from_torch(dense).to(backend.device)


@pytest.mark.parametrize(  # each with each other, though not all three
    ("activation", "features", "per_model"),
    [
        (activation, features, (row + column) % 2 == 0)
        for row, activation in enumerate([None, *ACTIVATIONS])
        for column, features in enumerate([5, 130])
    ],
)
def test_sparse_product_equals_dense(backend, matrix, per_model, activation, features):
    values = backend.randn(3, matrix.pattern.num_entries).detach() if per_model else matrix.values
    x, bias = backend.randn(12, 3, features).detach(), backend.randn(3, features).detach()
    dense = SparseMatrix(matrix.pattern, values).to_dense().expand(3, -1, -1)
    expected, end = torch.einsum("tij,jtf->itf", dense, x), ()
    if activation is not None:
        expected, end = ACTIVATIONS[activation](expected + bias), (bias, activation)
    y = backend.sparse_product.forward(matrix.pattern, values, x, *end)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
    one = backend.sparse_product.forward(matrix.pattern, matrix.values, x[:, 0])
    torch.testing.assert_close(one, matrix.to_dense() @ x[:, 0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], indirect=True)
def test_sparse_product_in_half_precision(backend, matrix, dtype):
    x = backend.randn(12, 3, 5, dtype=dtype).detach()
    y = backend.sparse_product.forward(matrix.pattern, matrix.values, x)
    assert y.dtype == dtype
    expected = torch.einsum("ij,jtf->itf", matrix.to_dense().double(), x.double())
    assert (y.double() - expected).norm() <= RATES[dtype] * expected.norm()


def test_sparse_product_with_any_strides(backend, matrix):
    x, forward = backend.randn(5, 3, 12).detach().permute(2, 1, 0), backend.sparse_product.forward
    for weights in (matrix.values, backend.randn(matrix.pattern.num_entries, 3).detach().T):
        expected = forward(matrix.pattern, weights.contiguous(), x.contiguous())
        assert torch.equal(forward(matrix.pattern, weights, x), expected)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (9, 2, 5), (70, 3, 50)])
def test_gradient_of_the_activation(backend, activation, shape):
    x, grad = backend.randn(*shape), backend.randn(*shape).detach()
    y = ACTIVATIONS[activation](x)
    (expected,) = torch.autograd.grad(y, x, grad)
    gradient, grad_bias = backend.sparse_product.activation_backward(grad, y.detach(), activation)
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(grad_bias, expected.sum(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_far_from_zero(backend, activation):
    identity = SparseMatrix.from_torch(torch.ones(1, 1)).to(backend.device)
    x = torch.tensor([-1e30, -100.0, -0.0, 0.0, 1e30, torch.nan], device=backend.device).view(1, 1, 6)
    expected, bias = ACTIVATIONS[activation](x), torch.zeros(1, 6, device=backend.device)
    y = backend.sparse_product.forward(identity.pattern, identity.values, x, bias, activation)
    torch.testing.assert_close(y, expected, rtol=0, atol=0, equal_nan=True)
    gradient, _ = backend.sparse_product.activation_backward(torch.ones_like(x), expected, activation)
    assert gradient.flatten()[[0, 1, 4]].tolist() == ([1, 1, 1] if activation == "none" else [0, 0, 1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], indirect=True)
@pytest.mark.parametrize("is_symmetric", [False, True])
@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("width", [3, 130])
def test_propagation_of_a_column_block_equals_reference(
    backend, few_nodes, width, is_weighted, is_symmetric, dtype
):
    pattern = few_nodes.pattern.to(backend.device)
    crow, column = pattern.crow.long(), pattern.column.int()
    x = backend.randn(8, width, dtype=dtype).detach()
    weight = torch.rand(len(column), device=backend.device) + 0.5 if is_weighted else None
    roots = torch.rand(8, device=backend.device) if is_symmetric else None
    y, expected = torch.empty_like(x), torch.empty_like(x)
    backend.sparse_product.propagate(crow, column, weight, roots, x, y)
    reference_propagate(crow, column, weight, roots, x, expected)
    torch.testing.assert_close(y, expected, rtol=1e-5 if dtype == torch.float32 else 1e-3, atol=1e-5)


def by_attention(backend, matrix, scores, z, bias, activation, rate=0.0, keys=None, norm=None):
    settings = (matrix, activation, NEGATIVE_SLOPE, rate, keys, norm)
    functions = (backend.convolution.attention_forward, backend.convolution.attention_backward)
    return KernelFunction.apply(*functions, attention_reference, settings, scores, z, bias)


def attention_inputs(backend, nodes, models, features, dtype=torch.float32):
    z = backend.randn(nodes, models, features, dtype=dtype)
    return [backend.randn(nodes, models, 2), z, backend.randn(models, features)]


@pytest.mark.parametrize("mode", ["PN", "PN-SI"])
def test_pair_norm_with_its_statistics(backend, mode, monkeypatch):
    x = backend.randn(300, 7).detach() + 5
    expected = PairNorm(2.0, mode)(x.double()).float()
    monkeypatch.setattr(pair_norm_reference, "find_kernels", lambda *_: backend.pair_norm)
    monkeypatch.setattr(pair_norm_reference, "MAX_FUSED_ELEMENTS", 0)
    y, (mean, mean_square) = pair_norm_reference.normalize_and_measure(x, 2.0, 1e-6, mode)
    torch.testing.assert_close(mean, x.mean(0))
    torch.testing.assert_close(mean_square, (x - x.mean(0)).square().sum(1).mean().view(1))
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)


NORMS = [None, PairNorm(3.0), PairNorm(3.0, "PN-SI")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], indirect=True)
@pytest.mark.parametrize("norm", NORMS, ids=str)
@pytest.mark.parametrize(("models", "features"), [(1, 1), (3, 7), (2, 40)])
@pytest.mark.parametrize(("rate", "activation"), [(0.0, "none"), (0.6, "elu"), (0.6, "relu")])
def test_attention_equals_reference(backend, few_nodes, norm, models, features, rate, activation, dtype):
    if models != 3 and (dtype == torch.bfloat16 or (backend.name == "triton" and norm is not None)):
        pytest.skip("the interpreter is slow")
    matrix, keys = few_nodes.to(backend.device), backend.keys(models) if rate else None
    tensors = attention_inputs(backend, 8, models, features, dtype)
    settings, wide = (activation, rate, keys, norm), in_double(tensors)
    y = by_attention(backend, matrix, *tensors, *settings)
    check([y], [attend(matrix, *wide, *settings)], tensors, wide)
    with torch.no_grad():
        assert torch.equal(by_attention(backend, matrix, *tensors, *settings), y)


@pytest.mark.parametrize("norm", NORMS[:2], ids=str)
def test_attention_without_learned_bias(backend, few_nodes, norm):
    matrix, (scores, z, bias) = few_nodes.to(backend.device), attention_inputs(backend, 8, 2, 3)
    for fixed, activation in ((bias.detach(), "relu"), (None, "none")):
        wide = in_double((scores, z))
        wide_bias = None if fixed is None else fixed.double()
        y = by_attention(backend, matrix, scores, z, fixed, activation, norm=norm)
        check([y], [attend(matrix, *wide, wide_bias, activation, norm=norm)], [scores, z], wide)


def test_attention_to_split_rows(backend, few_nodes, monkeypatch):
    if backend.name == "triton":
        monkeypatch.setattr(backend.sparse_product, "PIECE", 3)
    matrix, tensors, keys = (
        few_nodes.to(backend.device),
        attention_inputs(backend, 8, 18, 16),
        backend.keys(18),
    )
    pattern = Pattern(matrix.pattern.crow.clone(), matrix.pattern.column.clone(), (8, 8))  # not cut before
    matrix, wide = SparseMatrix(pattern, matrix.values), in_double(tensors)
    y = by_attention(backend, matrix, *tensors, "elu", 0.6, keys)
    check([y], [attend(matrix, *wide, "elu", 0.6, keys)], tensors, wide)


def test_attention_of_rows_without_entries_and_of_extreme_scores(backend):
    dense = torch.tensor([[0.0, 1, 1], [0, 0, 0], [1, 0, 0]])
    matrix, tensors = SparseMatrix.from_torch(dense).to(backend.device), attention_inputs(backend, 3, 2, 4)
    wide = in_double(tensors)
    y = by_attention(backend, matrix, *tensors, "relu")
    check([y], [attend(matrix, *wide, "relu")], tensors, wide)
    tensors[0] = (1e4 * tensors[0]).detach().requires_grad_()
    y = by_attention(backend, matrix, *tensors, "none")
    assert y.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(y.sum(), tensors))


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # of the interpreter
def test_attention_keeps_nan_in_its_model(backend, few_nodes):
    tensors = attention_inputs(backend, 8, 3, 5)
    tensors[0].data[7, 1] = torch.nan
    y = by_attention(backend, few_nodes.to(backend.device), *tensors, "elu", norm=PairNorm())
    assert y[7, 1].isnan().all()
    assert y[:, [0, 2]].isfinite().all()
    gradients = torch.autograd.grad(y.sum(), tensors)
    assert all(gradient[:, [0, 2]].isfinite().all() for gradient in gradients[:2])
    assert gradients[2][[0, 2]].isfinite().all()


def test_second_derivatives_of_attention(backend, few_nodes, second_gradients):
    """Bug: on CUDA they were refused."""
    matrix, tensors = few_nodes.to(backend.device), attention_inputs(backend, 8, 2, 3)
    wide = in_double(tensors)
    ours = by_attention(backend, matrix, *tensors, "elu", norm=PairNorm())
    theirs = attend(matrix, *wide, "elu", norm=PairNorm())
    check_second_gradients(ours, theirs, second_gradients, tensors, wide)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], indirect=True)
@pytest.mark.parametrize("norm", NORMS, ids=str)
@pytest.mark.parametrize("activation", ["none", "relu"])
@pytest.mark.parametrize("maps", [True, False])
def test_gcn_layer_equals_reference(backend, few_nodes, norm, activation, maps, dtype):
    x, weight = backend.randn(8, 3, 6, dtype=dtype), backend.randn(3, 6, 5)
    tensors = [x, weight, backend.randn(3, 5)] if maps else [x, backend.randn(3, 6)]
    settings = (few_nodes.to(backend.device), activation, norm, 0.5, backend.keys(3) if maps else None)
    wide = in_double(tensors)

    def arguments(tensors):
        return tensors if maps else (tensors[0], None, tensors[1])

    functions = (backend.convolution.gcn_forward, backend.convolution.gcn_backward, gcn_reference)
    y = KernelFunction.apply(*functions, settings, *arguments(tensors))
    assert y.dtype == dtype
    check([y], [gcn_reference(*arguments(wide), *settings)], tensors, wide)
