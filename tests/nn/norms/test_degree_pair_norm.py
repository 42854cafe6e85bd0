import pytest
import torch

from pairnorm import PairNorm
from pairnorm.data import load
from pairnorm.measure import effective_rank
from pairnorm.nn import normalized_adjacency
from pairnorm.nn.norms import DegreePairNorm


def brute_force(x, degree, scale, mode, eps):
    """The projection as a matrix, row by row in float64."""
    dominant = degree.double().sqrt()
    dominant = dominant / dominant.norm()
    centered = x.double() - torch.outer(dominant, dominant) @ x.double()
    squares = [row @ row for row in centered]
    if mode == "PN":
        squares = [sum(squares) / len(squares)] * len(squares)
    return torch.stack(
        [scale * row / (square + eps).sqrt() for row, square in zip(centered, squares, strict=True)]
    )


@pytest.mark.parametrize("mode", ["PN", "PN-SI"])
def test_equals_brute_force(mode, batch, near):
    x, degree = torch.randn(12, 5, dtype=torch.float64) + 1, torch.rand(12, dtype=torch.float64) * 9 + 1
    y = DegreePairNorm(2.5, mode, eps=1e-3).bind(degree)(x, batch)
    index = torch.zeros(12) if batch is None else batch
    for graph in index.unique():
        nodes = index == graph
        near(y[nodes], brute_force(x[nodes], degree[nodes], 2.5, mode, 1e-3))


def test_total_weighted_pairwise_distance_is_constant(near):
    x, degree = torch.randn(12, 5, dtype=torch.float64) * 7, torch.rand(12, dtype=torch.float64) * 9 + 1
    z = DegreePairNorm(3.0, eps=1e-12).bind(degree)(x) / degree.sqrt().unsqueeze(1)
    squared = (z[:, None] - z[None]).square().sum(-1)
    near((degree[:, None] * degree * squared).sum(), 2 * 12 * 9 * degree.sum())


@pytest.mark.parametrize("mode", ["PN", "PN-SI"])
def test_equal_degrees_give_pair_norm(mode, near):
    x = torch.randn(12, 3, 5, dtype=torch.float64) + 2
    near(DegreePairNorm(2.0, mode).bind(torch.full((12,), 4.0))(x), PairNorm(2.0, mode)(x))


def test_removes_the_dominant_eigenvector_that_pair_norm_keeps(edge_index, near):
    """Of the connected part of a graph with a hub, from its eigenvectors."""
    adjacency = torch.zeros(20, 20, dtype=torch.float64).index_put(
        (edge_index[0], edge_index[1]), torch.ones(()).double()
    )
    reached = torch.linalg.matrix_power(adjacency + torch.eye(20), 20)[0] > 0
    adjacency = (adjacency + torch.eye(20))[reached][:, reached]
    degree = adjacency.sum(1)
    values, vectors = torch.linalg.eigh(adjacency / (degree[:, None] * degree).sqrt())
    assert values[-1] == pytest.approx(1)
    x = vectors[:, -1:] @ torch.randn(1, 4).double() * 1e3
    norm = DegreePairNorm().bind(degree)
    assert norm(x).abs().max() < 1e-6
    assert PairNorm()(x).abs().max() > 0.1
    # What is orthogonal to it passes but for its scale.
    other = vectors[:, :-1] @ torch.randn(len(values) - 1, 4).double()
    y = norm(other)
    near(y / y.norm(), other / other.norm())


@pytest.mark.parametrize("mode", ["PN", "PN-SI"])
def test_deep_symmetric_propagation_keeps_more_rank_on_cora(mode):
    """In the largest component, where D^½ 1 is all that walks fall towards: more at every depth, by under 1%.

    Of the effective rank: the numerical rank may go either way, by the draw of the features' projection.
    """
    from scipy.sparse.csgraph import connected_components

    graph = load("cora")
    component = torch.from_numpy(connected_components(graph.to_scipy()[0])[1])
    kept = component == component.mode().values
    number = kept.cumsum(0) - 1
    edges = number[graph.edge_index[:, kept[graph.edge_index[0]]]]
    matrix = normalized_adjacency(edges, "sym", int(kept.sum()))
    degree = torch.bincount(matrix.pattern.row.long()).float()
    features = graph.features.to_dense() if graph.features.is_sparse_csr else graph.features
    states = features[kept].float() @ torch.randn(features.size(1), 32)
    ranks = {}
    for name, norm in (("degree", DegreePairNorm(mode=mode).bind(degree)), ("plain", PairNorm(mode=mode))):
        x, ranks[name] = norm(states), []
        for depth in range(1, 65):
            x = norm(matrix @ x)
            if depth in (8, 16, 32, 64):
                ranks[name].append(effective_rank(x))
    more = torch.tensor(ranks["degree"]) / torch.tensor(ranks["plain"])
    assert ((more > 1) & (more < 1.01)).all()


def test_invalid_arguments_raise(raises):
    with raises("not-fitted", value=3):
        DegreePairNorm()(torch.ones(3, 2))
    with raises("not-fitted", value=3):
        DegreePairNorm().bind(torch.ones(4))(torch.ones(3, 2))
    with raises("out-of-range", value=0.0):
        DegreePairNorm().bind(torch.tensor([1.0, 0.0]))
    with raises("unknown-choice", value="PN-SCS"):
        DegreePairNorm(mode="PN-SCS")


def test_degrees_are_neither_saved_nor_cast_with_a_model():
    norm = DegreePairNorm().bind(torch.tensor([1.0, 100_001.0, 7.0])).half()
    assert not norm.state_dict()
    x = norm.degree.sqrt().unsqueeze(1)
    assert norm(x).abs().max() < 1e-2
    assert PairNorm()(x).abs().max() > 1
