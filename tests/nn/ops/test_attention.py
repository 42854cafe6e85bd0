import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch_geometric.nn import GATConv

from pairnorm.nn import PairNorm
from pairnorm.nn.ops.convolution import NEGATIVE_SLOPE, attend, edge_softmax
from pairnorm.nn.ops.dropout import draw_keys, keep_mask
from pairnorm.nn.ops.sparse_product import ACTIVATIONS, Pattern
from pairnorm.nn.sparse import SparseMatrix


def brute_force(pattern, scores, z, factors=None):
    """Row by row, trial by trial."""
    source, target = scores.unbind(-1)
    result = []
    for row in range(pattern.shape[0]):
        entries = range(int(pattern.crow[row]), int(pattern.crow[row + 1]))
        columns = [int(pattern.column[entry]) for entry in entries]
        trials = []
        for trial in range(z.size(1)):
            if not columns:
                trials.append(z.new_zeros(z.size(2)))
                continue
            sums = torch.stack([source[column, trial] + target[row, trial] for column in columns])
            weights = torch.where(sums > 0, sums, NEGATIVE_SLOPE * sums).softmax(0)
            if factors is not None:
                weights = weights * factors[trial, list(entries)]
            trials.append(
                sum(weight * z[column, trial] for weight, column in zip(weights, columns, strict=True))
            )
        result.append(torch.stack(trials))
    return torch.stack(result)


def inputs(nodes=20, trials=3, features=5, dtype=torch.float32, scale=1.0):
    scores, z = (torch.randn(nodes, trials, width, dtype=dtype) for width in (2, features))
    return [tensor.requires_grad_() for tensor in (scale * scores, z)]


@pytest.mark.parametrize(("trials", "features"), [(1, 1), (3, 5), (2, 8)])
def test_attention_equals_brute_force(trials, features, adjacency, either_form, assert_equal_with_gradients):
    tensors = inputs(trials=trials, features=features)
    expected = brute_force(adjacency.pattern, *tensors)
    assert_equal_with_gradients(attend(adjacency, *tensors), expected, tensors)


def test_dropout_falls_on_the_weights(adjacency, either_form, assert_equal_with_gradients):
    tensors, keys = inputs(), draw_keys(3)
    factors = keep_mask(keys, 1, adjacency.pattern.num_entries, 0.5)[0] / 0.5
    expected = brute_force(adjacency.pattern, *tensors, factors)
    assert_equal_with_gradients(attend(adjacency, *tensors, rate=0.5, keys=keys), expected, tensors)


@pytest.mark.parametrize("activation", ["none", "relu", "elu"])
def test_bias_and_activation_follow(activation, adjacency, either_form, assert_equal_with_gradients):
    tensors = [*inputs(), torch.randn(3, 5, requires_grad=True)]
    expected = ACTIVATIONS[activation](brute_force(adjacency.pattern, *tensors[:2]) + tensors[2])
    assert_equal_with_gradients(attend(adjacency, *tensors, activation), expected, tensors)


def test_rows_without_entries_get_zeros(either_form, assert_equal_with_gradients):
    matrix = SparseMatrix.from_torch(torch.tensor([[0.0, 1, 1], [0, 0, 0], [1, 0, 0]]))
    tensors = inputs(nodes=3)
    y = attend(matrix, *tensors)
    assert not y[1].any()
    assert_equal_with_gradients(y, brute_force(matrix.pattern, *tensors), tensors)


@pytest.mark.parametrize("heads", [1, 3])
def test_attention_equals_pyg(heads, edge_index, adjacency, assert_equal_with_gradients):
    peer = GATConv(6, 4, heads=heads, bias=False)
    x = torch.randn(20, 6, requires_grad=True)
    z = peer.lin(x).view(20, heads, 4)
    tensors = [torch.stack([(z * end).sum(-1) for end in (peer.att_src, peer.att_dst)], -1), z]
    expected = peer(x, edge_index)
    ours = attend(adjacency, *tensors).flatten(1)
    leaves = [x, peer.lin.weight, peer.att_src, peer.att_dst]
    torch.testing.assert_close(ours, expected)
    assert_equal_with_gradients(ours, expected, leaves)


def test_extreme_scores_are_finite(adjacency, either_form):
    tensors = inputs(scale=1e4)
    y = attend(adjacency, *tensors)
    gradients = torch.autograd.grad(y, tensors, torch.randn_like(y))
    assert all(tensor.isfinite().all() for tensor in (y, *gradients))
    torch.testing.assert_close(y, brute_force(adjacency.pattern, *tensors))


def test_weights_of_a_row_sum_to_one(adjacency):
    weights = edge_softmax(adjacency.pattern, 10 * torch.randn(4, adjacency.pattern.num_entries))
    sums = torch.zeros(4, 20).index_add(1, adjacency.pattern.row, weights)
    torch.testing.assert_close(sums, torch.ones(4, 20))
    assert (weights >= 0).all()


def test_shifted_target_scores_keep_the_weights(adjacency):
    scores, z = (tensor.detach() for tensor in inputs())
    scores = scores.abs()  # LeakyReLU is linear there
    shifted = scores + torch.tensor([0.0, 3.0])
    torch.testing.assert_close(attend(adjacency, shifted, z), attend(adjacency, scores, z))


def test_gradients_equal_finite_differences(adjacency):
    matrix = SparseMatrix.from_torch(adjacency.to_dense()[:6, :6])
    tensors = inputs(nodes=6, trials=2, features=2, dtype=torch.float64)
    assert gradcheck(lambda *tensors: attend(matrix, *tensors), tensors)
    assert gradgradcheck(lambda *tensors: attend(matrix, *tensors), tensors)


@pytest.mark.parametrize("mode", [None, "PN", "PN-SI"])
@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_second_derivatives_equal_autograd(mode, rate, adjacency, either_form, second_gradients):
    tensors = [*inputs(), torch.randn(3, 5, requires_grad=True)]
    wide = [tensor.detach().double().requires_grad_() for tensor in tensors]
    keys, norm = draw_keys(3), None if mode is None else PairNorm(2.0, mode)

    def second(tensors):
        y = attend(adjacency, *tensors, "elu", rate, keys if rate else None, norm)
        return second_gradients(y, tensors)

    expected = second(wide)
    largest = max(gradient.abs().max().item() for gradient in expected)
    for gradient, other in zip(second(tensors), expected, strict=True):
        torch.testing.assert_close(gradient.double(), other, rtol=1e-2, atol=1e-4 * largest)


def test_zero_nodes_are_accepted():
    pattern = Pattern(torch.zeros(1, dtype=torch.int32), torch.zeros(0, dtype=torch.int32), (0, 0))
    matrix = SparseMatrix(pattern, torch.zeros(0))
    assert attend(matrix, torch.zeros(0, 2, 2), torch.zeros(0, 2, 3)).shape == (0, 2, 3)
