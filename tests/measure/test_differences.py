import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from pairnorm.errors import PairNormError
from pairnorm.measure import Estimate, col_diff, row_diff, tpsd
from pairnorm.measure import states as states_module


def unit_columns(x):
    length = x.double().abs().sum(0)
    return x.double() / torch.where(length > 0, length, 1)


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
def test_tpsd_is_unchanged_by_centring_and_is_n_squared_mean_squared_distances(n, d, offset, seed):
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + offset
    total = tpsd(x)
    torch.testing.assert_close(total, tpsd(x - x.mean(0)), rtol=1e-9, atol=0)
    pairs = (x[:, None] - x[None]).square().sum(-1)
    torch.testing.assert_close(total, n**2 * pairs.mean(), rtol=1e-9, atol=0)
    # Jensen: the mean distance is at most the root of the mean squared one.
    assert row_diff(x) <= (total / n**2).sqrt() * (1 + 1e-9)


def test_a_zero_column_stays_zero():
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


@pytest.mark.parametrize("measure", [row_diff, col_diff])
def test_estimates_cover_the_exact_value(measure):
    x = torch.randn(60, 40, generator=torch.Generator().manual_seed(0)).exp()
    exact = measure(x)
    estimates = [measure(x, sample=400, seed=seed) for seed in range(400)]
    values = torch.stack([estimate.value for estimate in estimates])
    errors = torch.stack([estimate.standard_error for estimate in estimates])
    covered = int(((values - exact).abs() < 1.96 * errors).sum())
    assert 362 <= covered <= 395  # 95% of 400 is 380, its standard deviation 4.4
    torch.testing.assert_close(errors.mean(), values.std(), rtol=0.15, atol=0)
    assert (values.mean() - exact).abs() < 4 * values.std() / 20


@pytest.mark.parametrize("measure", [row_diff, col_diff])
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


@pytest.mark.parametrize("measure", [row_diff, col_diff])
def test_an_estimate_of_nothing_is_zero(measure):
    assert measure(torch.empty(0, 0), sample=5) == (torch.tensor(0.0), torch.tensor(0.0))


@pytest.mark.parametrize("measure", [row_diff, col_diff])
@pytest.mark.parametrize("sample", [1, 0, -3, 2.5, True])
def test_unusable_samples_are_named(measure, sample):
    with pytest.raises(PairNormError, match=f"sample is {sample}; expected a number of pairs"):
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
    estimate = row_diff(x, sample=20_000)
    assert (estimate.value - value).abs() < 5 * estimate.standard_error
