import pytest
import torch

from pairnorm.nn.ops._triton import convolution as cuda
from pairnorm.nn.ops._triton import sparse_product as sparse_product
from pairnorm.nn.ops.convolution import NEGATIVE_SLOPE, attend, attention_reference, gcn_reference
from pairnorm.nn.ops.dropout import draw_keys
from pairnorm.nn.ops.kernels import KernelFunction
from pairnorm.nn.ops.sparse_product import Pattern
from pairnorm.nn.pair_norm import PairNorm, pair_norm
from pairnorm.nn.sparse import SparseMatrix

# Of lanes beyond the end of a row, whose results are never stored.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")


def by_kernels(matrix, scores, z, bias, activation, rate=0.0, keys=None, norm=None):
    settings = (matrix, activation, NEGATIVE_SLOPE, rate, keys, norm)
    functions = (cuda.attention_forward, cuda.attention_backward, attention_reference)
    return KernelFunction.apply(*functions, settings, scores, z, bias)


def assert_equal_with_gradients(matrix, tensors, activation, rate, keys, norm=None):
    y = by_kernels(matrix, *tensors, activation, rate, keys, norm)
    wide = [tensor.double() for tensor in tensors]  # which no kernel supports
    plain = attend(matrix, *wide, activation, rate, keys, norm)
    torch.testing.assert_close(y.double(), plain, rtol=1e-4, atol=1e-5)
    grad = torch.randn_like(y)
    gradients = torch.autograd.grad(y, tensors, grad)
    for gradient, other in zip(gradients, torch.autograd.grad(plain, tensors, grad.double()), strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-4, atol=1e-5)


def inputs(nodes, trials, features, device, scale=1.0):
    shapes = (nodes, trials, 2), (nodes, trials, features), (trials, features)
    scores, z, bias = (torch.randn(shape, device=device) for shape in shapes)
    return [tensor.requires_grad_() for tensor in (scale * scores, z, bias)]


@pytest.mark.parametrize(  # each with each other, though not all three
    ("trials", "features", "rate", "activation"),
    [(1, 1, None, "none"), (1, 1, 0.6, "elu"), (3, 7, None, "elu"), (3, 7, 0.6, "none")],
)
def test_equals_the_plain_form(trials, features, rate, activation, few_nodes, device):
    keys = None if rate is None else draw_keys(trials, device=device)
    tensors = inputs(8, trials, features, device)
    assert_equal_with_gradients(few_nodes.to(device), tensors, activation, rate or 0.0, keys)


@pytest.mark.parametrize("mode", ["PN", "PN-SI"])
@pytest.mark.parametrize("activation", ["relu", "elu"])
def test_with_pair_norm_equals_the_plain_form(activation, mode, few_nodes, device):
    tensors, keys = inputs(8, 3, 7, device), draw_keys(3, device=device)
    norm = PairNorm(scale=3.0, mode=mode)
    assert_equal_with_gradients(few_nodes.to(device), tensors, activation, 0.6, keys, norm)


@pytest.mark.parametrize("norm", [None, PairNorm()])
def test_a_bias_that_is_not_learned(norm, few_nodes, device):
    scores, z, bias = inputs(8, 2, 3, device)
    tensors = [scores, z, bias.detach()]
    y = by_kernels(few_nodes.to(device), *tensors, "relu", 0.0, None, norm)
    plain = attend(few_nodes.to(device), *(tensor.double() for tensor in tensors), "relu", norm=norm)
    grad = torch.randn_like(y)
    gradients = [
        torch.autograd.grad(*pair, retain_graph=True)
        for pair in ((y, (scores, z), grad), (plain, (scores, z), grad.double()))
    ]
    for ours, other in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-4, atol=1e-5)


def test_rows_in_pieces_and_many_trials(few_nodes, device, monkeypatch):
    monkeypatch.setattr(sparse_product, "PIECE", 3)
    tensors, keys = inputs(8, 18, 16, device), draw_keys(18, device=device)
    matrix = few_nodes.to(device)
    pattern = Pattern(matrix.pattern.crow.clone(), matrix.pattern.column.clone(), (8, 8))  # not cut before
    matrix = SparseMatrix(pattern, matrix.values)
    assert_equal_with_gradients(matrix, tensors, "elu", 0.6, keys)


def test_without_bias(few_nodes, device):
    matrix, (scores, z, bias) = few_nodes.to(device), inputs(8, 2, 3, device)
    plain = by_kernels(matrix, scores, z, None, "none", 0.0, None)
    torch.testing.assert_close(plain + bias, by_kernels(matrix, scores, z, bias, "none", 0.0, None))
    normed = by_kernels(matrix, scores, z, None, "none", 0.0, None, PairNorm())
    torch.testing.assert_close(normed, pair_norm(plain))
    for y in (plain, normed):
        gradients = torch.autograd.grad(y.square().sum(), (scores, z))
        assert all(gradient.isfinite().all() for gradient in gradients)


def test_extreme_scores(few_nodes, device):
    matrix, tensors = few_nodes.to(device), inputs(8, 2, 3, device, scale=1e4)
    y = by_kernels(matrix, *tensors, "none", 0.0, None)
    assert y.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(y.sum(), tensors))


def test_rows_without_entries_get_zeros(device):
    dense = torch.tensor([[0.0, 1, 1], [0, 0, 0], [1, 0, 0]])
    matrix = SparseMatrix.from_torch(dense).to(device)
    assert_equal_with_gradients(matrix, inputs(3, 2, 4, device), "relu", 0.0, None)


def test_gradients_of_gradients(few_nodes, device, second_gradients):
    """Bug: on CUDA they were refused."""
    matrix, tensors = few_nodes.to(device), inputs(8, 2, 3, device)
    wide = [tensor.detach().double().requires_grad_() for tensor in tensors]
    expected = second_gradients(attend(matrix, *wide, "elu", norm=PairNorm()), wide)
    largest = max(gradient.abs().max().item() for gradient in expected)
    ours = second_gradients(by_kernels(matrix, *tensors, "elu", norm=PairNorm()), tensors)
    for gradient, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(gradient.double(), other, rtol=1e-2, atol=1e-4 * largest)


@pytest.mark.parametrize("norm", [None, PairNorm()])
def test_states_in_half_precision(norm, few_nodes, device):
    """Scores, weights and sums stay in single."""
    matrix, keys = few_nodes.to(device), draw_keys(3, device=device)
    scores, z, bias = (tensor.detach() for tensor in inputs(8, 3, 7, device))
    given = [tensor.requires_grad_() for tensor in (scores, z.bfloat16(), bias)]
    wide = [tensor.detach().double().requires_grad_() for tensor in given]
    y = by_kernels(matrix, *given, "elu", 0.5, keys, norm)
    expected = attend(matrix, *wide, "elu", 0.5, keys, norm)
    assert y.dtype == torch.bfloat16
    grad = torch.randn_like(y)
    pairs = zip(
        [y, *torch.autograd.grad(y, given, grad)],
        [expected, *torch.autograd.grad(expected, wide, grad.double())],
        strict=True,
    )
    for ours, theirs in pairs:
        assert (ours.double() - theirs).norm() <= 0.03 * theirs.norm()


TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 3e-2}


@pytest.mark.parametrize(  # each type with each other value, though not with all of them
    ("mode", "activation", "maps", "dtype"),
    [
        (mode, activation, maps, list(TOLERANCES)[(number + (activation == "relu") + maps) % 2])
        for number, mode in enumerate([None, "PN", "PN-SI"])
        for activation in ("none", "relu")
        for maps in (True, False)
    ],
)
def test_a_layer_of_gcn_equals_the_plain_form_in_double(mode, activation, maps, dtype, few_nodes, device):
    norm = None if mode is None else PairNorm(2.0, mode)
    x, weight, bias = (torch.randn(shape, device=device) for shape in ((8, 3, 6), (3, 6, 5), (3, 5)))
    bias = bias if maps else torch.randn(3, 6, device=device)
    x = x.to(dtype)
    given = [tensor.requires_grad_() for tensor in ((x, weight, bias) if maps else (x, bias))]
    wide = [tensor.detach().double().requires_grad_() for tensor in given]
    keys = draw_keys(3, device=device) if maps else None
    settings = (few_nodes.to(device), activation, norm, 0.5, keys)

    def arguments(tensors):
        return tensors if maps else (tensors[0], None, tensors[1])

    functions = (cuda.gcn_forward, cuda.gcn_backward, gcn_reference)
    y = KernelFunction.apply(*functions, settings, *arguments(given))
    expected = gcn_reference(*arguments(wide), *settings)
    assert y.dtype == dtype
    _assert_near([y], [expected], TOLERANCES[dtype])
    grad = torch.randn_like(y)
    found = torch.autograd.grad(y, given, grad)
    assert [gradient.dtype for gradient in found] == [tensor.dtype for tensor in given]
    _assert_near(found, torch.autograd.grad(expected, wide, grad.double()), 2 * TOLERANCES[dtype])


def _assert_near(found, expected, tolerance):
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.double() - theirs).norm() <= tolerance * (theirs.norm() + 1)
