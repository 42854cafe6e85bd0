import pytest
import torch

from pairnorm.nn import normalized_adjacency
from pairnorm.nn.norms import GraphNorm, GraphNormV2
from pairnorm.nn.propagate import dominant_eigenvectors


def by_hand(x, basis, tau, weight, bias, eps=1e-5):
    """The formula, a feature at a time."""
    n, columns = len(x), []
    for j in range(x.size(1)):
        u = torch.full((n,), n**-0.5, dtype=x.dtype) + basis @ tau[:, j]
        z = x[:, j] - u * (u @ x[:, j])
        columns.append(weight[j] * z / (z.square().mean() + eps).sqrt() + bias[j])
    return torch.stack(columns, 1)


@pytest.fixture
def graph(edge_index):
    adjacency = torch.zeros(20, 20)
    adjacency[tuple(edge_index)] = adjacency[tuple(edge_index.flip(0))] = 1
    return adjacency


@pytest.fixture
def norm():
    norm = GraphNormV2(5, num_eigenvectors=3).double()
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter)
    return norm


def test_equals_the_formula(norm, near):
    x, basis = torch.randn(12, 5).double() + 2, torch.randn(12, 4).double()
    near(norm.bind(basis)(x), by_hand(x, basis, norm.tau, norm.weight, norm.bias))


def test_starts_as_graph_norm(graph, near):
    x = torch.randn(20, 5, dtype=torch.float64)
    near(GraphNormV2(5).double().bind_graph(graph)(x), GraphNorm(5).double()(x))


@pytest.mark.parametrize("count", [1, 3, 5])
def test_eigenvectors_are_those_of_the_largest_eigenvalues(graph, count):
    matrix = normalized_adjacency(graph, "sym")
    dense = matrix.to_dense().double()
    largest = torch.linalg.eigvalsh(dense).abs().sort(descending=True).values[:count]
    vectors = dominant_eigenvectors(matrix, count)
    torch.testing.assert_close(vectors.T @ vectors, torch.eye(count, dtype=torch.float64))
    torch.testing.assert_close((dense @ vectors).norm(dim=0), largest, rtol=1e-5, atol=1e-5)


def test_basis_is_orthonormal_and_spans_the_ones(norm, graph):
    basis = norm.bind_graph(graph).basis
    torch.testing.assert_close(basis.T @ basis, torch.eye(4, dtype=torch.float64))
    ones = torch.ones(20, dtype=torch.float64)
    torch.testing.assert_close(basis @ (basis.T @ ones), ones)


def test_more_eigenvectors_than_nodes_are_zero(near):
    norm = GraphNormV2(2, num_eigenvectors=8).bind_graph(torch.tensor([[0, 1], [1, 0]]))
    assert norm(torch.randn(2, 2)).isfinite().all()


def test_unbound_norm_raises(norm, raises):
    with raises("not-fitted", value=12):
        norm(torch.randn(12, 5).double())
    with raises("wrong-shape", value=[12, 5]):
        norm.bind(torch.randn(12, 5))
