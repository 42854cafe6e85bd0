"""All imputations against references written from the published formulas, and the properties they share."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pairnorm.data import load, row_normalize
from pairnorm.impute import IMPUTATIONS, column_mean, feature_propagation, impute, missing_indicator, zero
from pairnorm.nn import normalized_adjacency

NODES, WIDTH = 14, 5


@pytest.fixture
def edge_index() -> Tensor:
    """A hub, a cycle and a long tail; a component of two, 11 and 12; and 13 without an edge."""
    pairs = [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (3, 4), (5, 6), (6, 7), (7, 8), (8, 9), (9, 10), (10, 6)]
    one_way = torch.tensor([*pairs, (11, 12)]).T
    return torch.cat([one_way, one_way.flip(0)], 1)


@pytest.fixture
def x() -> Tensor:
    return torch.randn(NODES, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def _some_entries() -> Tensor:
    """A third of the entries is known; none of the last column, all of the first."""
    known = torch.rand(NODES, WIDTH, generator=torch.Generator().manual_seed(2)) < 0.3
    known[:, 0], known[:, -1] = True, False
    known[11:, 1:] = False  # a component without a known entry in most columns
    return ~known


MASKS: dict[str, Callable[[], Tensor]] = {
    "most vectors": lambda: torch.ones(NODES, dtype=torch.bool).index_fill_(0, torch.tensor([4, 8]), False),
    "some vectors": lambda: torch.arange(NODES) <= 5,
    "entries": _some_entries,
    "everything": lambda: torch.ones(NODES, dtype=torch.bool),
    "nothing": lambda: torch.zeros(NODES, WIDTH, dtype=torch.bool),
}


@pytest.fixture(params=MASKS)
def missing(request: pytest.FixtureRequest) -> Tensor:
    return MASKS[request.param]()


@pytest.fixture(params=IMPUTATIONS)
def method(request: pytest.FixtureRequest) -> str:
    return request.param


def entrywise(x: Tensor, missing: Tensor) -> Tensor:
    return (missing if missing.dim() == 2 else missing[:, None]).expand_as(x)


def path(nodes: int) -> Tensor:
    first = torch.arange(nodes - 1)
    return torch.stack([torch.cat([first, first + 1]), torch.cat([first + 1, first])])


def neighborhoods(edges: Tensor, nodes: int) -> list[set[int]]:
    return [{i, *(int(s) for s, t in edges.T if t == i)} for i in range(nodes)]


def transition(edges: Tensor, nodes: int, normalization: str) -> Tensor:
    neighbors = neighborhoods(edges, nodes)
    matrix = torch.zeros(nodes, nodes, dtype=torch.float64)
    for i in range(nodes):
        for j in neighbors[i]:
            symmetric = (len(neighbors[i]) * len(neighbors[j])) ** 0.5
            matrix[i, j] = 1 / (symmetric if normalization == "sym" else len(neighbors[i]))
    return matrix


def reference_mean(edges: Tensor, x: Tensor, missing: Tensor, normalization: str) -> Tensor:
    expected = torch.where(missing, 0, x)
    for column in range(x.size(1)):
        known = [float(v) for v, gone in zip(x[:, column], missing[:, column], strict=True) if not gone]
        expected[missing[:, column], column] = sum(known) / len(known) if known else 0.0
    return expected


def reference_neighbor_mean(
    edges: Tensor, x: Tensor, missing: Tensor, normalization: str, *, steps: int = 10
) -> Tensor:
    """Weight every known value by the sum over all walks of ``steps`` edges that lead to it."""
    power = torch.linalg.matrix_power(transition(edges, len(x), normalization), steps)
    expected = torch.where(missing, 0, x)
    for node, column in missing.nonzero().tolist():
        known = [k for k in range(len(x)) if not missing[k, column] and power[node, k] > 0]
        if known:
            expected[node, column] = (power[node, known] @ x[known, column]) / power[node, known].sum()
    return expected


def reference_fp(edges: Tensor, x: Tensor, missing: Tensor, normalization: str, *, steps: int = 40) -> Tensor:
    matrix = transition(edges, len(x), normalization)
    state = start = torch.where(missing, 0, x)
    for _ in range(steps):
        state = torch.where(missing, matrix @ state, start)
    return state


def reference_pcfi(
    edges: Tensor,
    x: Tensor,
    missing: Tensor,
    normalization: str,
    *,
    alpha: float = 0.9,
    beta: float = 1,
    steps: int = 100,
) -> Tensor:
    """Both stages as published: a search and a matrix of weights for every channel."""
    nodes, width = x.shape
    neighbors = neighborhoods(edges, nodes)
    diffused, confidence = torch.zeros(2, nodes, width, dtype=torch.float64)
    for channel in range(width):
        hops = {i: 0 for i in range(nodes) if not missing[i, channel]}
        queue = list(hops)
        for node in queue:
            for other in range(nodes):
                if node in neighbors[other] and other not in hops:
                    hops[other] = hops[node] + 1
                    queue.append(other)
        weights = torch.zeros(nodes, nodes, dtype=torch.float64)
        for i in hops:
            confidence[i, channel] = alpha ** hops[i]
            row = {j: alpha ** (hops[j] - hops[i] + 1) for j in neighbors[i] & hops.keys()}
            for j, weight in row.items():
                weights[i, j] = weight / sum(row.values())
        state = start = torch.where(missing[:, channel], 0, x[:, channel])
        for _ in range(steps):
            state = torch.where(missing[:, channel], weights @ state, start)
        diffused[:, channel] = state
    correlation = torch.zeros(width, width, dtype=torch.float64)
    if width > 1:
        correlation = torch.corrcoef(diffused.T).nan_to_num().fill_diagonal_(0)
    correction = (confidence * (diffused - diffused.mean(0))) @ correlation
    return diffused + beta * (1 - confidence) * correction


REFERENCES: dict[str, Callable[..., Tensor]] = {
    "zero": lambda edges, x, missing, normalization: torch.where(missing, 0, x),
    "mean": reference_mean,
    "known_neighbor_mean": reference_neighbor_mean,
    "fp": reference_fp,
    "pcfi": reference_pcfi,
    "mask": lambda edges, x, missing, normalization: torch.cat([torch.where(missing, 0, x), missing], 1),
}


def test_defaults_match_the_reference(method: str, edge_index: Tensor, x: Tensor, missing: Tensor) -> None:
    normalization = "sym" if method == "fp" else "rw"
    expected = REFERENCES[method](edge_index, x, entrywise(x, missing), normalization)
    if method == "mask" and missing.dim() == 1:
        expected = expected[:, : WIDTH + 1]
    imputed = impute(x, missing, edge_index, method=method)
    torch.testing.assert_close(imputed, expected, rtol=1e-6, atol=1e-6)  # P is in single precision


@pytest.mark.parametrize(
    ("name", "steps"), [*(("known_neighbor_mean", k) for k in (0, 1, 6, 12)), ("fp", 0), ("fp", 7)]
)
@pytest.mark.parametrize("normalization", ["rw", "sym"])
def test_steps_match_the_reference(
    name: str, steps: int, normalization: str, edge_index: Tensor, x: Tensor, missing: Tensor
) -> None:
    matrix = normalized_adjacency(edge_index, normalization, num_nodes=NODES)
    expected = REFERENCES[name](edge_index, x, entrywise(x, missing), normalization, steps=steps)
    imputed = IMPUTATIONS[name].function(x, missing, matrix, steps=steps)
    torch.testing.assert_close(imputed, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("alpha", "beta", "steps"), [(0.5, 0.3, 4), (0.9, 0, 7), (1.0, 1, 9), (1e-8, 1, 40)])
def test_pcfi_settings_match_the_reference(
    edge_index: Tensor, x: Tensor, missing: Tensor, alpha: float, beta: float, steps: int
) -> None:
    settings = {"alpha": alpha, "beta": beta, "steps": steps}
    expected = reference_pcfi(edge_index, x, entrywise(x, missing), "rw", **settings)
    imputed = impute(x, missing, edge_index, method="pcfi", **settings)
    torch.testing.assert_close(imputed, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("alpha", [0.9, 0.1, 1e-3])
@pytest.mark.parametrize("by_entry", [False, True])
def test_pcfi_does_not_underflow_far_from_known_values(alpha: float, by_entry: bool) -> None:
    """At alpha 0.1 single precision ends at 37 hops."""
    x, missing = torch.rand(90, 2, generator=torch.Generator().manual_seed(0)) + 1, torch.ones(90, 2) > 0
    missing[0], missing[40, 1] = False, not by_entry
    settings = {"alpha": alpha, "beta": 0, "steps": 1000}
    expected = reference_pcfi(path(90), x.double(), missing, "rw", **settings)
    imputed = impute(x, missing if by_entry else missing[:, 0], path(90), method="pcfi", **settings)
    torch.testing.assert_close(imputed.double(), expected, rtol=1e-3, atol=1e-6)
    assert alpha == 0.9 or torch.allclose(imputed[:, 0], x[0, 0], rtol=0.3)


def test_pcfi_does_not_underflow_on_directed_edges() -> None:
    """Node 3 has a neighbor 57 hops further from the known value."""
    edges = torch.cat([torch.stack([torch.arange(60), torch.arange(1, 61)]), torch.tensor([[60], [3]])], 1)
    x, missing = torch.full((61, 1), 2.0), torch.arange(61)[:, None] > 0
    settings = {"alpha": 0.1, "beta": 0, "steps": 300}
    expected = reference_pcfi(edges, x.double(), missing, "rw", **settings)
    imputed = impute(x, missing, edges, method="pcfi", **settings)
    torch.testing.assert_close(imputed.double(), expected, rtol=1e-5, atol=0)


def test_pcfi_values_travel_one_hop_a_step() -> None:
    imputed = impute(torch.ones(1200, 1), torch.arange(1200) > 0, path(1200), method="pcfi", beta=0)
    assert imputed[:97].all()  # the first values to arrive are small
    assert not imputed[101:].any()
    assert imputed.isfinite().all()


def test_feature_propagation_agrees_with_pyg() -> None:
    from torch_geometric.transforms import AddRemainingSelfLoops, FeaturePropagation

    graph = load("cora")
    x = row_normalize(graph.features)
    data = AddRemainingSelfLoops()(graph.replace(features=x.to_dense()).to_pyg())
    by_vector = ~graph.train[:, None].expand(-1, 1433)
    by_entry = torch.rand(by_vector.shape, generator=torch.Generator().manual_seed(0)) >= 0.1
    for mask, missing in ((~graph.train, by_vector), (by_entry, by_entry)):
        expected = FeaturePropagation(missing)(data.clone()).x
        torch.testing.assert_close(impute(x, mask, graph.adjacency), expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("normalization", ["rw", "sym"])
def test_feature_propagation_converges_to_the_dirichlet_problem(
    normalization: str, edge_index: Tensor, x: Tensor
) -> None:
    missing = torch.ones(NODES, dtype=torch.bool)
    missing[[1, 9, 12]] = False
    matrix = normalized_adjacency(edge_index, normalization, num_nodes=NODES)
    imputed = feature_propagation(x, missing, matrix, steps=4000)
    free = missing.clone()
    free[13] = False  # not connected to a known value
    laplacian = torch.eye(NODES, dtype=torch.float64) - transition(edge_index, NODES, normalization)
    expected = torch.linalg.solve(laplacian[free][:, free], -laplacian[free][:, ~missing] @ x[~missing])
    torch.testing.assert_close(imputed[free], expected, rtol=1e-5, atol=1e-5)
    assert not imputed[13].any()


def test_known_entries_are_unchanged_and_missing_ones_not_read(
    method: str, edge_index: Tensor, x: Tensor, missing: Tensor
) -> None:
    gone = entrywise(x, missing)
    imputed = impute(torch.where(gone, torch.nan, x), missing, edge_index, method=method)
    assert imputed.isfinite().all()
    assert torch.equal(imputed[:, :WIDTH][~gone], x[~gone])


@pytest.mark.parametrize("method", ["mean", "known_neighbor_mean", "fp", "pcfi"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_constant_column_stays_constant(method: str, x: Tensor, dtype: torch.dtype) -> None:
    """Rounding errors of a constant column do not correlate with other columns either."""
    x = x.to(dtype)[:11]
    x[:, 0] = 1 / 3
    missing = torch.arange(11) % 3 != 0
    settings = {"steps": 3000} if method == "fp" else {}
    imputed = IMPUTATIONS[method].function(x, missing, normalized_adjacency(path(11)), **settings)
    torch.testing.assert_close(imputed[:, 0], torch.full((11,), 1 / 3, dtype=dtype), rtol=1e-5, atol=0)


@pytest.mark.parametrize("by_entry", [False, True])
def test_masks_are_independent(method: str, edge_index: Tensor, x: Tensor, by_entry: bool) -> None:
    shape = (NODES, 3, WIDTH if by_entry else 1)
    missing = torch.rand(shape, generator=torch.Generator().manual_seed(4)) >= 0.3
    together = impute(x, missing, edge_index, method=method)
    for index in range(3):
        alone = impute(x, missing[:, index], edge_index, method=method)
        torch.testing.assert_close(together[:, index], alone)


def test_permuting_nodes_permutes_the_result(
    method: str, edge_index: Tensor, x: Tensor, missing: Tensor
) -> None:
    order = torch.randperm(NODES, generator=torch.Generator().manual_seed(5))
    expected = impute(x, missing, edge_index, method=method)[order]
    imputed = impute(x[order], missing[order], order.argsort()[edge_index], method=method)
    torch.testing.assert_close(imputed, expected)


def test_sparse_and_float32_features_give_equal_results(
    method: str, edge_index: Tensor, x: Tensor, missing: Tensor
) -> None:
    expected = impute(x, missing, edge_index, method=method)
    imputed = impute(x.float().to_sparse_csr(), missing, edge_index, method=method)
    assert imputed.dtype == torch.float32
    torch.testing.assert_close(imputed.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["zero", "mean", "known_neighbor_mean", "fp"])
def test_column_blocks_are_independent(method: str, edge_index: Tensor, x: Tensor, missing: Tensor) -> None:
    blocks = [
        impute(x[:, columns], missing if missing.dim() == 1 else missing[:, columns], edge_index, method)
        for columns in (slice(0, 2), slice(2, 5))
    ]
    torch.testing.assert_close(torch.cat(blocks, 1), impute(x, missing, edge_index, method))


def test_no_edges_no_columns_and_no_nodes(method: str) -> None:
    no_edges = torch.zeros(2, 0, dtype=torch.long)
    x, missing = torch.tensor([[1.0, 2.0], [3.0, 5.0]]), torch.tensor([False, True])
    expected = [1.0, 2.0] if method == "mean" else [0.0, 0.0]
    assert impute(x, missing, no_edges, method)[:, :2].tolist() == [[1.0, 2.0], expected]
    for shape in ((2, 0), (0, 3)):
        imputed = impute(torch.zeros(shape), torch.zeros(shape[0], dtype=torch.bool), no_edges, method)
        assert len(imputed) == shape[0]


def test_indicators_follow_any_imputation(edge_index: Tensor, x: Tensor, missing: Tensor) -> None:
    matrix = normalized_adjacency(edge_index, num_nodes=NODES)
    for imputation in (zero, column_mean):
        result = missing_indicator(x, missing, matrix, imputation=imputation)
        assert torch.equal(result[:, :WIDTH], imputation(x, missing, matrix))
        assert torch.equal(result[:, WIDTH:], missing.view(NODES, -1).double())


@pytest.mark.parametrize("rows", [[1, 4], [0, 1, 2, 3, 4, 5, 6]])
def test_feature_propagation_is_differentiable(edge_index: Tensor, x: Tensor, rows: list[int]) -> None:
    missing = torch.ones(NODES, dtype=torch.bool)
    missing[rows] = False
    matrix = normalized_adjacency(edge_index, num_nodes=NODES)
    assert torch.autograd.gradcheck(
        lambda x: feature_propagation(x, missing, matrix, steps=3), x.requires_grad_()
    )


def test_invalid_settings_raise(edge_index: Tensor, x: Tensor, raises) -> None:
    nothing = torch.zeros(NODES, dtype=torch.bool)
    with raises("unknown-choice", value="pfci") as caught:
        impute(x, nothing, edge_index, method="pfci")
    assert caught.value.hint == "Did you mean 'pcfi'?"
    for alpha in (0, 1.5, float("nan")):
        with raises("not-a-number"):
            impute(x, nothing, edge_index, method="pcfi", alpha=alpha)
    for method in ("known_neighbor_mean", "fp", "pcfi"):
        with raises("not-a-whole-number", value=-1):
            impute(x, nothing, edge_index, method=method, steps=-1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cuda_equals_cpu(
    method: str, edge_index: Tensor, x: Tensor, missing: Tensor, dtype: torch.dtype
) -> None:
    expected = impute(x.to(dtype), missing, edge_index, method)
    imputed = impute(x.to(dtype).cuda(), missing.cuda(), edge_index.cuda(), method)
    torch.testing.assert_close(imputed.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_old_name_of_an_imputation_is_accepted(edge_index: Tensor, x: Tensor, missing: Tensor) -> None:
    old, new = (impute(x, missing, edge_index, method=name) for name in ("mass", "known_neighbor_mean"))
    assert torch.equal(old, new)
