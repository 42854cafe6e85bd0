import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from pairnorm.measure import (
    Estimate,
    apd,
    apsd,
    col_diff,
    connected_pairs,
    dirichlet_energy,
    effective_rank,
    estimate_col_diff,
    estimate_row_diff,
    mean_average_distance,
    pair_distances,
    random_pairs,
    row_diff,
    tpsd,
)
from pairnorm.measure import distances as states_module


def unit_columns(x):
    norm = x.double().abs().sum(0)
    return x.double() / torch.where(norm > 0, norm, 1)


@pytest.mark.parametrize("block_bytes", [1, 1000, 5000, 2**24])
@pytest.mark.parametrize("shape", [(1, 3), (2, 1), (31, 5), (9, 40)])
def test_equal_brute_force_in_any_block(brute_force, block_bytes, shape, monkeypatch):
    monkeypatch.setattr(states_module, "BLOCK_BYTES", block_bytes)
    x = torch.randn(shape)
    torch.testing.assert_close(row_diff(x).double(), brute_force(x).mean(), rtol=1e-6, atol=0)
    expected = brute_force(unit_columns(x).T).mean()
    torch.testing.assert_close(col_diff(x).double(), expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(tpsd(x).double(), brute_force(x).square().sum(), rtol=1e-6, atol=0)


def oversmoothed(kind):
    """States as deep networks leave them: tiny differences on a large common value, float32."""
    generator = torch.Generator().manual_seed(0)
    n, d = 300, 16
    noise = torch.randn(n, d, generator=generator)
    offset = torch.randn(d, generator=generator)
    if kind == "one point":
        return offset * 10 + noise * 1e-6
    if kind == "a large offset":
        return 1e4 + noise * 1e-2
    if kind == "an isolated node":
        x = offset + noise * 1e-6
        x[7] += 1
        return x
    clusters = torch.randn(4, d, generator=generator)
    return clusters.repeat_interleave(n // 4, 0) + (noise * 1e-6 if kind == "noisy clusters" else 0)


@pytest.mark.parametrize(
    "kind", ["one point", "a large offset", "an isolated node", "noisy clusters", "collapsed clusters"]
)
def test_oversmoothed_states_are_measured_exactly(brute_force, kind):
    x = oversmoothed(kind)
    torch.testing.assert_close(row_diff(x).double(), brute_force(x).mean(), rtol=2e-7, atol=0)
    torch.testing.assert_close(tpsd(x).double(), brute_force(x).square().sum(), rtol=2e-7, atol=0)


def test_near_parallel_columns_are_measured_exactly(brute_force):
    generator = torch.Generator().manual_seed(0)
    stationary = torch.rand(500, 1, generator=generator) + 0.5
    x = (
        stationary
        * torch.rand(12, generator=generator)
        * (1 + torch.randn(500, 12, generator=generator) * 1e-6)
    )
    expected = brute_force(unit_columns(x).T).mean()
    assert expected < 1e-7
    torch.testing.assert_close(col_diff(x).double(), expected, rtol=2e-7, atol=0)


@given(st.integers(2, 30), st.integers(1, 6), st.floats(-1e3, 1e3), st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_tpsd_is_unchanged_by_centering_and_is_n_squared_mean_squared_distances(n, d, offset, seed):
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + offset
    total = tpsd(x)
    torch.testing.assert_close(total, tpsd(x - x.mean(0)), rtol=1e-9, atol=0)
    pairs = (x[:, None] - x[None]).square().sum(-1)
    torch.testing.assert_close(total, n**2 * pairs.mean(), rtol=1e-9, atol=0)
    # Jensen: the mean distance is at most the root of the mean squared one.
    assert row_diff(x) <= (total / n**2).sqrt() * (1 + 1e-9)


def test_zero_column_stays_zero():
    x = torch.tensor([[1.0, 0.0], [3.0, 0.0]])
    torch.testing.assert_close(col_diff(x), torch.tensor([0.25, 0.75]).norm() / 2)


@pytest.mark.parametrize(("factor", "expected"), [(5.0, 0.0), (-5.0, 1.0)])
def test_multiples_of_a_column_are_equal_up_to_sign(factor, expected):
    column = torch.tensor([1.0, 1.0, 1.0, 1.0])
    torch.testing.assert_close(
        col_diff(torch.stack([column, factor * column], 1)), torch.tensor(expected / 2), rtol=1e-6, atol=1e-12
    )


def test_measures_fall_with_depth_towards_the_stationary_point(adjacency):
    with_loops = adjacency.double() + torch.eye(len(adjacency))
    root_degree = with_loops.sum(1).sqrt()
    operator = with_loops / root_degree[:, None] / root_degree
    features = torch.rand(len(adjacency), 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    direction = root_degree / root_degree.norm()
    stationary = torch.outer(direction, direction @ features)
    gaps, columns, states = [], [], features
    for _ in range(8):
        for _ in range(5):
            states = operator @ states
        gaps.append(float((row_diff(states) - row_diff(stationary)).abs()))
        columns.append(float(col_diff(states)))
    assert gaps == sorted(gaps, reverse=True)
    assert columns == sorted(columns, reverse=True)
    assert gaps[-1] < 1e-2 * gaps[0]
    assert columns[-1] < 1e-2 * columns[0]
    assert col_diff(stationary) < 1e-15
    assert row_diff(stationary) > 0.01  # the nodes still differ by the root of their degree


ESTIMATES = [estimate_row_diff, estimate_col_diff]


@pytest.mark.parametrize(("measure", "estimate"), [*zip([row_diff, col_diff], ESTIMATES, strict=True)])
def test_estimates_cover_the_exact_value(measure, estimate):
    x = torch.randn(60, 40, generator=torch.Generator().manual_seed(0)).exp()
    exact = measure(x)
    estimates = [estimate(x, sample=400, seed=seed) for seed in range(400)]
    values = torch.stack([estimate.value for estimate in estimates])
    errors = torch.stack([estimate.standard_error for estimate in estimates])
    covered = int(((values - exact).abs() < 1.96 * errors).sum())
    assert 362 <= covered <= 395  # 95% of 400 is 380, its standard deviation 4.4
    torch.testing.assert_close(errors.mean(), values.std(), rtol=0.15, atol=0)
    assert (values.mean() - exact).abs() < 4 * values.std() / 20


@pytest.mark.parametrize("measure", ESTIMATES)
@pytest.mark.parametrize("middle", [(), (2,), (0,)])
def test_estimates_take_trials(measure, middle):
    x = torch.randn(20, *middle, 8).half()
    estimate = measure(x, sample=50, seed=3)
    assert isinstance(estimate, Estimate)
    assert estimate.value.shape == estimate.standard_error.shape == middle
    assert estimate.value.dtype == estimate.standard_error.dtype == torch.float32
    for trial in range(len(estimate.value) if middle else 0):
        single = measure(x[:, trial], sample=50, seed=3)
        torch.testing.assert_close(estimate.value[trial], single.value)
        torch.testing.assert_close(estimate.standard_error[trial], single.standard_error)


@pytest.mark.parametrize("measure", ESTIMATES)
def test_estimate_of_empty_states_is_zero(measure):
    assert measure(torch.empty(0, 0), sample=5) == (torch.tensor(0.0), torch.tensor(0.0))


@pytest.mark.parametrize("measure", ESTIMATES)
@pytest.mark.parametrize("sample", [1, 0, -3, 2.5, True])
def test_invalid_samples_raise(raises, measure, sample):
    with raises("not-a-whole-number", value=sample):
        measure(torch.randn(4, 3), sample=sample)


class LargestTensor(TorchDispatchMode):
    """Notes the bytes of the largest tensor that any operation made."""

    def __init__(self):
        super().__init__()
        self.size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.size = max(self.size, result.untyped_storage().nbytes())
        return result


def test_twenty_thousand_nodes_fit_into_little_memory():
    x = torch.randn(20_000, 64)
    with LargestTensor() as largest:
        value = row_diff(x)
    assert largest.size <= states_module.BLOCK_BYTES  # all pairs at once would take 3 GiB
    estimate = estimate_row_diff(x, sample=20_000)
    assert (estimate.value - value).abs() < 5 * estimate.standard_error


def all_pairs(n):
    return torch.cartesian_prod(torch.arange(n), torch.arange(n)).T


def test_connected_pairs_are_the_upper_triangle(adjacency):
    expected = adjacency.triu(1).nonzero().T
    for graph in (
        adjacency,
        adjacency.to_sparse_csr(),
        adjacency.nonzero().T,
        adjacency.triu().to_sparse_csr(),
    ):
        assert torch.equal(connected_pairs(graph), expected)


def test_pairs_ignore_direction_weight_loops_and_repeats():
    edge_index = torch.tensor([[3, 0, 2, 2, 0], [0, 3, 2, 1, 3]])
    assert connected_pairs(edge_index).tolist() == [[0, 1], [3, 2]]


def test_graph_without_edges_has_no_connected_pairs():
    assert connected_pairs(torch.eye(3)).shape == (2, 0)


def test_random_pairs_are_uniform_over_ordered_pairs():
    counts = torch.zeros(5, 5)
    i, j = random_pairs(5, 50_000, seed=3)
    counts.index_put_((i, j), torch.ones(50_000), accumulate=True)
    expected = 50_000 / 25
    chi_squared = float(((counts - expected) ** 2 / expected).sum())
    assert 7 < chi_squared < 52  # the central 99.9% of chi² with 24 degrees of freedom


def test_seeded_pairs_repeat_and_keep_global_random_state():
    before = torch.get_rng_state()
    assert torch.equal(random_pairs(9, 20, seed=1), random_pairs(9, 20, seed=1))
    assert not torch.equal(random_pairs(9, 20, seed=1), random_pairs(9, 20, seed=2))
    assert torch.equal(torch.get_rng_state(), before)
    generator = torch.Generator().manual_seed(1)
    assert torch.equal(random_pairs(9, 20, generator), random_pairs(9, 20, seed=1))


@pytest.mark.parametrize(("nodes", "count"), [(0, 1), (3, -1)])
def test_impossible_draws_raise(raises, nodes, count):
    with raises("not-a-whole-number"):
        random_pairs(nodes, count)


def test_zero_pairs_of_zero_nodes():
    assert random_pairs(0, 0).shape == (2, 0)


@pytest.mark.parametrize("block_bytes", [1, 1000, 2**24])
def test_distances_equal_brute_force_in_any_block(brute_force, block_bytes, monkeypatch):
    monkeypatch.setattr(states_module, "BLOCK_BYTES", block_bytes)
    x = torch.randn(12, 3, 4)
    pairs = random_pairs(12, 33)
    expected = torch.stack([brute_force(x[:, t])[pairs[0], pairs[1]] for t in range(3)], dim=1)
    torch.testing.assert_close(pair_distances(x, pairs).double(), expected, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(apd(x, pairs).double(), expected.mean(0), rtol=1e-6, atol=0)
    torch.testing.assert_close(apsd(x, pairs).double(), expected.square().mean(0), rtol=1e-6, atol=0)


def test_over_all_pairs_the_averages_are_row_diff_and_tpsd():
    x = torch.randn(15, 2, 6)
    torch.testing.assert_close(apd(x, all_pairs(15)), row_diff(x))
    torch.testing.assert_close(apsd(x, all_pairs(15)), tpsd(x) / 15**2)


def test_near_equal_rows_far_from_zero_keep_their_distances():
    x = (1e4 + torch.randn(30, 8) * 1e-2).to(torch.float32)
    pairs = random_pairs(30, 100)
    expected = (x[pairs[0]].double() - x[pairs[1]].double()).norm(dim=-1)
    torch.testing.assert_close(pair_distances(x, pairs).double(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("measure", [apd, apsd])
def test_average_of_zero_pairs_raises(raises, measure):
    x = torch.randn(4, 2)
    none = torch.empty(2, 0, dtype=torch.int64)
    assert pair_distances(x, none).shape == (0,)
    with raises("no-pairs"):
        measure(x, none)


@pytest.mark.parametrize(
    ("pairs", "code"),
    [
        (torch.tensor([[0, 1], [1, 4]]), "out-of-range"),
        (torch.tensor([[0, -1], [1, 2]]), "out-of-range"),
        (torch.zeros(3, 2, dtype=torch.int64), "wrong-shape"),
        (torch.zeros(2, 2), "wrong-shape"),
        ([(0, 1)], "wrong-shape"),
    ],
)
def test_invalid_pairs_raise(raises, pairs, code):
    with raises(code):
        pair_distances(torch.randn(4, 2), pairs)


def laplacian(adjacency, kind):
    adjacency = (adjacency + adjacency.T).double() / 2
    adjacency = adjacency - adjacency.diag().diag()
    if kind == "unnormalized":
        return adjacency.sum(1).diag() - adjacency
    with_loops = adjacency + torch.eye(len(adjacency))
    if kind == "rw":
        walk = adjacency / with_loops.sum(1)[:, None]
        return ((walk + walk.T) / 2).sum(1).diag() - (walk + walk.T) / 2
    root = with_loops.sum(1).rsqrt()
    return torch.eye(len(adjacency)) - root[:, None] * with_loops * root


@pytest.mark.parametrize("kind", ["sym", "rw", "unnormalized"])
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


def test_edge_index_is_the_unweighted_graph(adjacency):
    x = torch.randn(40, 3)
    torch.testing.assert_close(dirichlet_energy(x, adjacency.nonzero().T), dirichlet_energy(x, adjacency))


def test_each_energy_is_zero_at_its_stationary_point(adjacency):
    root_degree = (adjacency.sum(1) + 1).sqrt()[:, None] * torch.ones(3)
    constant = torch.ones(40, 3)
    assert dirichlet_energy(root_degree, adjacency, "sym") < 1e-10
    assert dirichlet_energy(constant, adjacency, "sym") > 0.1
    assert dirichlet_energy(constant, adjacency, "unnormalized") == 0
    assert dirichlet_energy(root_degree, adjacency, "unnormalized") > 0.1
    assert dirichlet_energy(constant, adjacency, "rw") == 0


@pytest.mark.parametrize("kind", ["sym", "rw", "unnormalized"])
def test_relative_energy_has_no_scale(adjacency, kind):
    x = torch.randn(40, 2, 3, dtype=torch.float64)
    relative = dirichlet_energy(x, adjacency, kind, relative=True)
    torch.testing.assert_close(relative * x.square().sum((0, 2)), dirichlet_energy(x, adjacency, kind))
    torch.testing.assert_close(dirichlet_energy(7 * x, adjacency, kind, relative=True), relative)
    if kind == "sym":  # a Rayleigh quotient
        assert (relative < 2).all()
    assert dirichlet_energy(0 * x, adjacency, kind, relative=True).tolist() == [0, 0]


def test_energy_of_a_far_and_tight_cloud_does_not_cancel(adjacency):
    x = 1e4 + torch.randn(40, 3) * 1e-2
    i, j = adjacency.nonzero().T
    expected = (x[i].double() - x[j].double()).square().sum() / 2
    torch.testing.assert_close(
        dirichlet_energy(x, adjacency, "unnormalized").double(), expected, rtol=1e-6, atol=0
    )


def test_energy_without_edges_is_zero():
    assert dirichlet_energy(torch.randn(3, 2), torch.zeros(3, 3)) == 0


@pytest.mark.parametrize("kind", ["cora", "combinatorial"])
def test_unknown_laplacian_raises(raises, kind):
    with raises("unknown-choice", value=kind):
        dirichlet_energy(torch.randn(3, 2), torch.zeros(3, 3), kind)


def test_negative_weights_and_unknown_nodes_raise(raises):
    with raises("out-of-range", value=-1):
        dirichlet_energy(torch.randn(2, 2), torch.tensor([[0.0, -1.0], [-1.0, 0.0]]))
    with raises("out-of-range", value=3):
        dirichlet_energy(torch.randn(3, 2), torch.tensor([[0], [3]]))


def cosine_distance(x):
    return 1 - torch.nn.functional.cosine_similarity(x[:, None].double(), x[None].double(), dim=-1)


def test_global_mad_is_the_mean_cosine_distance_of_other_nodes():
    x = torch.randn(25, 6)
    expected = cosine_distance(x)[~torch.eye(25, dtype=torch.bool)].mean()
    torch.testing.assert_close(mean_average_distance(x).double(), expected, rtol=1e-6, atol=0)


def test_neighbor_mad_is_a_mean_of_means(adjacency):
    adjacency[5] = adjacency[:, 5] = 0  # no neighbors: not averaged
    x = torch.randn(40, 2, 6)
    means = []
    for trial in range(2):
        distance = cosine_distance(x[:, trial])
        rows = [distance[i][adjacency[i] > 0].mean() for i in range(40) if i != 5]
        means.append(torch.stack(rows).mean())
    value = mean_average_distance(x, adjacency.to_sparse_csr())
    torch.testing.assert_close(value.double(), torch.stack(means), rtol=1e-6, atol=0)


def test_mad_ignores_length_and_resolves_near_parallel_rows():
    angle = torch.tensor([0.0, 1e-6], dtype=torch.float64)
    x = torch.stack([angle.cos(), angle.sin()], 1) * torch.tensor([[1.0], [50.0]])
    expected = torch.tensor(0.5e-12, dtype=torch.float64)
    torch.testing.assert_close(mean_average_distance(x), expected, rtol=1e-6, atol=0)


def test_zero_row_has_no_direction():
    x = torch.tensor([[0.0, 0.0], [0.0, 0.0], [2.0, 0.0]])
    between = torch.tensor([[0, 0], [1, 2]])
    torch.testing.assert_close(mean_average_distance(x, between), torch.tensor(0.25))
    assert mean_average_distance(torch.zeros(4, 3)) == 0


def test_opposite_rows_reach_the_largest_value():
    torch.testing.assert_close(mean_average_distance(torch.tensor([[1.0], [-1.0]])), torch.tensor(2.0))


def test_mad_without_edges_raises(raises):
    with raises("no-pairs"):
        mean_average_distance(torch.randn(3, 2), torch.eye(3))


def with_spectrum(values, n, d):
    left, _ = torch.linalg.qr(torch.randn(n, len(values), dtype=torch.float64))
    right, _ = torch.linalg.qr(torch.randn(d, len(values), dtype=torch.float64))
    return left @ torch.tensor(values, dtype=torch.float64).diag() @ right.T


@pytest.mark.parametrize("shape", [(50, 6), (6, 50), (6, 6)])
@pytest.mark.parametrize(
    ("spectrum", "expected"),
    [
        ([3.0], 1),
        ([2.0] * 5, 5),
        ([1.0, 1.0, 0.0], 2),
        ([0.5, 0.25, 0.25], math.exp(1.5 * math.log(2))),
        ([1.0, 1e-12], 1),
    ],
)
def test_known_spectra(shape, spectrum, expected):
    value = effective_rank(with_spectrum(spectrum, *shape))
    torch.testing.assert_close(value, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=0)


def test_rank_ignores_scale_and_counts_the_mean():
    x = torch.randn(30, 4)
    torch.testing.assert_close(effective_rank(x), effective_rank(x * 1e-3))
    assert effective_rank(x + 1e6) < 1.01


@pytest.mark.parametrize("n", [1, 3])
def test_zero_states_have_rank_zero_and_one_row_rank_one(n):
    assert effective_rank(torch.zeros(n, 4)) == 0
    torch.testing.assert_close(effective_rank(torch.ones(n, 4)), torch.tensor(1.0))
