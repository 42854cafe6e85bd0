import pytest
import torch
from torch import Tensor

from pairnorm.impute import pcfi
from pairnorm.nn import SparseMatrix, normalized_adjacency


def brute_force(
    edges: Tensor, features: Tensor, known: Tensor, alpha: float, beta: float, steps: int
) -> Tensor:
    """The two stages as the paper has them: a search and a matrix of weights for every channel."""
    nodes, width = features.shape
    mask = (known if known.dim() == 2 else known[:, None]).expand(nodes, width)
    neighbors = [{i, *(int(s) for s, t in edges.T if t == i)} for i in range(nodes)]
    filled = torch.zeros(nodes, width, dtype=torch.float64)
    confidence = torch.zeros(nodes, width, dtype=torch.float64)
    for channel in range(width):
        hops = {i: 0 for i in range(nodes) if mask[i, channel]}
        queue = list(hops)
        for node in queue:
            for other in neighbors[node] - hops.keys():
                hops[other] = hops[node] + 1
                queue.append(other)
        weights = torch.zeros(nodes, nodes, dtype=torch.float64)
        for i in hops:
            confidence[i, channel] = alpha ** hops[i]
            row = {j: alpha ** (hops[j] - hops[i] + 1) for j in neighbors[i]}
            for j, weight in row.items():
                weights[i, j] = weight / sum(row.values())
        start = torch.where(mask[:, channel], features[:, channel], 0)
        values = start
        for _ in range(steps):
            values = torch.where(mask[:, channel], start, weights @ values)
        filled[:, channel] = values
    mean = filled.mean(0)
    correlation = torch.corrcoef(filled.T).nan_to_num().fill_diagonal_(0)
    expected = filled.clone()
    for i in range(nodes):
        for channel in range(width):
            told = sum(
                correlation[channel, other] * confidence[i, other] * (filled[i, other] - mean[other])
                for other in range(width)
                if other != channel
            )
            expected[i, channel] += beta * (1 - confidence[i, channel]) * told
    return expected


@pytest.mark.parametrize(("alpha", "beta", "steps"), [(0.9, 1, 100), (0.5, 0.3, 4), (0.9, 0, 7), (1.0, 1, 9)])
def test_it_is_the_published_formula(
    edge_index: Tensor, features: Tensor, known: Tensor, alpha: float, beta: float, steps: int
) -> None:
    matrix = normalized_adjacency(edge_index, num_nodes=14)
    filled = pcfi(matrix, features, known, alpha=alpha, beta=beta, steps=steps)
    expected = brute_force(edge_index, features, known, alpha, beta, steps)
    torch.testing.assert_close(filled, expected, rtol=1e-6, atol=1e-6)


def test_by_default_it_has_the_published_settings(
    edge_index: Tensor, features: Tensor, known: Tensor
) -> None:
    filled = pcfi(normalized_adjacency(edge_index, num_nodes=14), features, known)
    torch.testing.assert_close(
        filled, brute_force(edge_index, features, known, 0.9, 1, 100), rtol=1e-6, atol=1e-6
    )


def test_known_values_stay_and_what_is_not_connected_is_zero(walk: SparseMatrix, features: Tensor) -> None:
    known = torch.zeros(14, dtype=torch.bool)
    known[[2, 8]] = True
    filled = pcfi(walk, features, known)
    assert torch.equal(filled[known], features[known])
    assert filled[:11].all()
    assert not filled[11:].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_constant_stays_constant(walk: SparseMatrix, features: Tensor, dtype: torch.dtype) -> None:
    """It is not moved by the correlation of its rounding errors with other columns."""
    known = torch.arange(14) % 3 == 0
    known[:2] = True
    features = features.to(dtype)[:11]
    features[:, 0] = 1 / 3
    matrix = normalized_adjacency(torch.tensor([[*range(10), *range(1, 11)], [*range(1, 11), *range(10)]]))
    filled = pcfi(matrix, features, known[:11])
    torch.testing.assert_close(filled[:, 0], torch.full((11,), 1 / 3, dtype=dtype))


def test_a_long_path_ends(raises) -> None:
    """Confidence falls below what single precision holds."""
    path = torch.arange(1199)
    edges = torch.stack([torch.cat([path, path + 1]), torch.cat([path + 1, path])])
    filled = pcfi(normalized_adjacency(edges), torch.ones(1200, 1), torch.arange(1200) == 0, beta=0)
    torch.testing.assert_close(filled[:101], torch.ones(101, 1), rtol=1, atol=0)
    assert filled.isfinite().all()
    assert not filled[102:].any()


@pytest.mark.parametrize("alpha", [0, 1.5, float("nan")])
def test_alpha_is_a_confidence(walk: SparseMatrix, features: Tensor, alpha: float, raises) -> None:
    with raises("not-a-number"):
        pcfi(walk, features, torch.ones(14, dtype=torch.bool), alpha=alpha)
