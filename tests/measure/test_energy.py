import pytest
import torch

from pairnorm.errors import PairNormError
from pairnorm.measure import dirichlet_energy, mean_average_distance


def laplacian(adjacency, kind):
    adjacency = (adjacency + adjacency.T).double() / 2
    adjacency = adjacency - adjacency.diag().diag()
    if kind == "combinatorial":
        return adjacency.sum(1).diag() - adjacency
    with_loops = adjacency + torch.eye(len(adjacency))
    root = with_loops.sum(1).rsqrt()
    return torch.eye(len(adjacency)) - root[:, None] * with_loops * root


@pytest.mark.parametrize("kind", ["sym", "combinatorial"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("directed", [False, True])
def test_energy_is_the_trace(adjacency, kind, weighted, directed):
    if weighted:
        weight = torch.rand(40, 40, generator=torch.Generator().manual_seed(2)) + 0.1
        adjacency = adjacency * (weight + weight.T)
    if directed:
        adjacency = adjacency.triu() + adjacency.tril() * (torch.arange(40) % 3 == 0)
    adjacency = adjacency + 3 * torch.eye(40)  # self-loops do not count
    x = torch.randn(40, 2, 5)
    expected = torch.stack(
        [(x[:, t].double().T @ laplacian(adjacency, kind) @ x[:, t].double()).trace() for t in range(2)]
    )
    for graph in (adjacency, adjacency.to_sparse_csr()):
        torch.testing.assert_close(dirichlet_energy(x, graph, kind).double(), expected, rtol=1e-5, atol=0)
        torch.testing.assert_close(
            dirichlet_energy(x[:, 0], graph, kind).double(), expected[0], rtol=1e-5, atol=0
        )


def test_an_edge_index_is_the_unweighted_graph(adjacency):
    x = torch.randn(40, 3)
    torch.testing.assert_close(dirichlet_energy(x, adjacency.nonzero().T), dirichlet_energy(x, adjacency))


def test_each_energy_is_zero_at_its_stationary_point(adjacency):
    root_degree = (adjacency.sum(1) + 1).sqrt()[:, None] * torch.ones(3)
    constant = torch.ones(40, 3)
    assert dirichlet_energy(root_degree, adjacency, "sym") < 1e-10
    assert dirichlet_energy(constant, adjacency, "sym") > 0.1
    assert dirichlet_energy(constant, adjacency, "combinatorial") == 0
    assert dirichlet_energy(root_degree, adjacency, "combinatorial") > 0.1


def test_energy_of_a_far_and_tight_cloud_does_not_cancel(adjacency):
    x = 1e4 + torch.randn(40, 3) * 1e-2
    i, j = adjacency.nonzero().T
    expected = (x[i].double() - x[j].double()).square().sum() / 2
    torch.testing.assert_close(
        dirichlet_energy(x, adjacency, "combinatorial").double(), expected, rtol=1e-6, atol=0
    )


def test_no_edges_no_energy():
    assert dirichlet_energy(torch.randn(3, 2), torch.zeros(3, 3)) == 0


@pytest.mark.parametrize("kind", ["cora", "rw"])
def test_unknown_laplacians_are_named(kind):
    with pytest.raises(PairNormError, match=f"laplacian is '{kind}'; expected one of 'sym', 'combinatorial'"):
        dirichlet_energy(torch.randn(3, 2), torch.zeros(3, 3), kind)


def test_negative_weights_and_foreign_nodes_are_named():
    with pytest.raises(PairNormError, match="weight -1; expected weights >= 0"):
        dirichlet_energy(torch.randn(2, 2), torch.tensor([[0.0, -1.0], [-1.0, 0.0]]))
    with pytest.raises(PairNormError, match="adjacency holds the node 3, but x has 3 nodes"):
        dirichlet_energy(torch.randn(3, 2), torch.tensor([[0], [3]]))


def cosine_distance(x):
    return 1 - torch.nn.functional.cosine_similarity(x[:, None].double(), x[None].double(), dim=-1)


def test_global_mad_is_the_mean_cosine_distance_of_other_nodes():
    x = torch.randn(25, 6)
    expected = cosine_distance(x)[~torch.eye(25, dtype=torch.bool)].mean()
    torch.testing.assert_close(mean_average_distance(x).double(), expected, rtol=1e-6, atol=0)


def test_neighbour_mad_is_a_mean_of_means(adjacency):
    adjacency[5] = adjacency[:, 5] = 0  # no neighbours: not averaged
    x = torch.randn(40, 2, 6)
    means = []
    for trial in range(2):
        distance = cosine_distance(x[:, trial])
        rows = [distance[i][adjacency[i] > 0].mean() for i in range(40) if i != 5]
        means.append(torch.stack(rows).mean())
    value = mean_average_distance(x, adjacency.to_sparse_csr())
    torch.testing.assert_close(value.double(), torch.stack(means), rtol=1e-6, atol=0)


def test_mad_ignores_length_and_sees_near_parallel_rows():
    angle = torch.tensor([0.0, 1e-6], dtype=torch.float64)
    x = torch.stack([angle.cos(), angle.sin()], 1) * torch.tensor([[1.0], [50.0]])
    expected = torch.tensor(0.5e-12, dtype=torch.float64)
    torch.testing.assert_close(mean_average_distance(x), expected, rtol=1e-6, atol=0)


def test_a_zero_row_has_no_direction():
    x = torch.tensor([[0.0, 0.0], [0.0, 0.0], [2.0, 0.0]])
    between = torch.tensor([[0, 0], [1, 2]])
    torch.testing.assert_close(mean_average_distance(x, between), torch.tensor(0.25))
    assert mean_average_distance(torch.zeros(4, 3)) == 0


def test_opposite_rows_reach_the_largest_value():
    torch.testing.assert_close(mean_average_distance(torch.tensor([[1.0], [-1.0]])), torch.tensor(2.0))


def test_mad_to_no_neighbours_is_named():
    with pytest.raises(PairNormError, match="adjacency has no edges"):
        mean_average_distance(torch.randn(3, 2), torch.eye(3))
