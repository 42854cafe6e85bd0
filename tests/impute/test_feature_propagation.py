import pytest
import torch
from torch import Tensor

from pairnorm.data import Graph, load, row_normalize
from pairnorm.impute import feature_propagation
from pairnorm.nn import SparseMatrix, normalized_adjacency


def brute_force(edges: Tensor, features: Tensor, known: Tensor, kind: str, steps: int) -> Tensor:
    """Average over neighbors and oneself, node by node, from the published formula."""
    nodes, width = features.shape
    mask = (known if known.dim() == 2 else known[:, None]).expand(nodes, width)
    neighbors = [{i, *(int(s) for s, t in edges.T if t == i)} for i in range(nodes)]
    filled = [[float(features[i, j]) if mask[i, j] else 0.0 for j in range(width)] for i in range(nodes)]
    for _ in range(steps):
        before = [row.copy() for row in filled]
        for i in range(nodes):
            for j in range(width):
                if not mask[i, j]:
                    filled[i][j] = sum(
                        before[k][j]
                        / (
                            len(neighbors[i])
                            if kind == "rw"
                            else (len(neighbors[i]) * len(neighbors[k])) ** 0.5
                        )
                        for k in neighbors[i]
                    )
    return torch.tensor(filled, dtype=torch.float64)


@pytest.mark.parametrize("kind", ["rw", "sym"])
@pytest.mark.parametrize("steps", [0, 1, 7, 40])
def test_it_is_the_published_formula(
    edge_index: Tensor, features: Tensor, known: Tensor, kind: str, steps: int
) -> None:
    matrix = normalized_adjacency(edge_index, kind, num_nodes=14)
    filled = feature_propagation(matrix, features, known, steps=steps)
    expected = brute_force(edge_index, features, known, kind, steps)
    # normalized_adjacency() holds its weights in single precision
    torch.testing.assert_close(filled, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("entries", [False, True])
def test_it_agrees_with_pyg(entries: bool) -> None:
    from torch_geometric.transforms import AddRemainingSelfLoops, FeaturePropagation

    graph = load("cora")
    features = row_normalize(graph.features)
    data = AddRemainingSelfLoops()(graph.replace(features=features.to_dense()).to_pyg())
    known = graph.train[:, None].expand(-1, 1433)
    if entries:
        known = torch.rand(known.shape, generator=torch.Generator().manual_seed(0)) < 0.1
    theirs = FeaturePropagation(~known)(data).x
    ours = feature_propagation(
        normalized_adjacency(graph.adjacency, "sym"), features, known if entries else graph.train
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-7)


def test_known_values_stay(matrix: SparseMatrix, features: Tensor, known: Tensor) -> None:
    filled = feature_propagation(matrix, features, known)
    mask = (known if known.dim() == 2 else known[:, None]).expand(14, 5)
    assert torch.equal(filled[mask], features[mask])


def test_the_limit_solves_the_dirichlet_problem(matrix: SparseMatrix, features: Tensor) -> None:
    known = torch.zeros(14, dtype=torch.bool)
    known[[1, 9, 12]] = True
    filled = feature_propagation(matrix, features, known, steps=4000)
    free = ~known
    free[13] = False  # no known value is connected with it
    laplacian = torch.eye(14, dtype=torch.float64) - matrix.to_dense().double()
    expected = torch.linalg.solve(laplacian[free][:, free], -laplacian[free][:, known] @ features[known])
    torch.testing.assert_close(filled[free], expected, rtol=1e-5, atol=1e-5)
    assert not filled[13].any()


def test_a_constant_stays_constant_where_it_arrives(walk: SparseMatrix) -> None:
    known = torch.zeros(14, dtype=torch.bool)
    known[[0, 7]] = True
    filled = feature_propagation(walk, torch.full((14, 3), 2.5, dtype=torch.float64), known, steps=3000)
    torch.testing.assert_close(filled[:11], torch.full((11, 3), 2.5, dtype=torch.float64), rtol=1e-5, atol=0)
    assert not filled[11:].any()


def test_the_steps_are_a_whole_number(walk: SparseMatrix, features: Tensor, raises) -> None:
    with raises("not-a-whole-number", value=-1):
        feature_propagation(walk, features, torch.ones(14, dtype=torch.bool), steps=-1)


def test_a_graph_without_edges_keeps_what_it_has() -> None:
    graph = Graph.from_edges(torch.zeros(2, 0, dtype=torch.long), torch.eye(3), num_nodes=3)
    filled = feature_propagation(
        normalized_adjacency(graph.adjacency), graph.features, torch.tensor([True, False, True])
    )
    assert filled.tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 1]]
