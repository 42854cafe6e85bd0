import itertools
import math

import numpy
import pytest
import torch

from pairnorm.measure import collapse, distances
from pairnorm.measure.collapse import (
    dominant_subspace_distance,
    estimate_instance_information_gain,
    group_distance_ratio,
    instance_information_gain,
    numerical_rank,
)


def near(actual, expected, tolerance=1e-10):
    torch.testing.assert_close(
        torch.as_tensor(actual).double(), torch.as_tensor(expected).double(), rtol=tolerance, atol=tolerance
    )


def unit(x):
    norm = x.norm(dim=-1, keepdim=True)
    return x / norm.where(norm > 0, 1)


class TestNumericalRank:
    @pytest.mark.parametrize("shape", [(30, 7), (7, 30), (1, 4), (4, 1)])
    def test_equals_singular_values(self, shape):
        x = torch.randn(shape, dtype=torch.float64) * 1e-3
        values = torch.linalg.svdvals(x)
        near(numerical_rank(x), (values**2).sum() / values[0] ** 2)

    @pytest.mark.parametrize("scale", [1e-200, 1e200])
    def test_ranks_do_not_depend_on_scale(self, scale):
        x = torch.randn(9, 4, dtype=torch.float64)
        near(numerical_rank(x * scale), numerical_rank(x), 1e-9)

    def test_ranks_of_zero_and_nan(self):
        assert numerical_rank(torch.zeros(3, 2)) == 0
        assert numerical_rank(torch.zeros(0, 2)) == 0
        assert numerical_rank(torch.full((3, 2), torch.nan)).isnan()
        assert numerical_rank(torch.full((3, 2), torch.inf)).isnan()


class TestDominantSubspaceDistance:
    @pytest.mark.parametrize("kind", ["rw", "sym"])
    @pytest.mark.parametrize("parts", [1, 2])
    def test_equals_eigenvectors(self, adjacency, kind, parts):
        """The subspace of eigenvalue 1, from the decomposition of the adjacency itself."""
        adjacency = torch.block_diag(*[adjacency] * parts).double() + torch.eye(40 * parts)
        adjacency[0, 5] = adjacency[5, 0] = 3  # weights count
        degree = adjacency.sum(1)
        values, vectors = torch.linalg.eigh(adjacency / (degree[:, None] * degree).sqrt())
        dominant = vectors[:, values > 1 - 1e-9]
        assert dominant.shape[1] == parts
        if kind == "rw":  # D⁻¹A is similar to the symmetric one: its eigenvectors are D^(−1/2) times
            dominant = torch.linalg.qr(dominant / degree.sqrt()[:, None]).Q
        x = torch.randn(40 * parts, 3, 4, dtype=torch.float64) + 1
        component = torch.arange(40 * parts) // 40 if parts > 1 else None
        result = dominant_subspace_distance(x, degree if kind == "sym" else None, component)
        for trial in range(3):
            rest = x[:, trial] - dominant @ (dominant.T @ x[:, trial])
            near(result[trial], rest.norm())
        relative = dominant_subspace_distance(x, degree if kind == "sym" else None, component, relative=True)
        near(relative, result / x.norm(dim=(0, 2)))

    def test_small_differences_on_a_large_offset(self):
        x = 1e6 + torch.randn(300, 4).round(decimals=1)
        near(dominant_subspace_distance(x), (x - x.double().mean(0)).norm(), 1e-6)
        noise = torch.randint(9, (50, 3)).double() / 256  # with the offset exact, but for its mean
        near(dominant_subspace_distance(2.0**44 + noise), dominant_subspace_distance(noise))
        assert dominant_subspace_distance(torch.full((300, 4), 1e6 / 3)) == 0
        assert dominant_subspace_distance(torch.zeros(3, 4), relative=True) == 0

    def test_errors(self, raises):
        with raises("wrong-shape", value=[2]):
            dominant_subspace_distance(torch.ones(3, 2), torch.ones(2))
        with raises("out-of-range", value=0.0):
            dominant_subspace_distance(torch.ones(2, 2), torch.tensor([1.0, 0.0]))


class TestGroupDistanceRatio:
    @pytest.mark.parametrize("offset", [0, 1e4])  # the latter: collapsed, where products of rows would cancel
    def test_equals_brute_force(self, offset):
        x = torch.randn(30, 2, 5, dtype=torch.float64) + offset
        labels = torch.arange(30) % 4 - 1  # -1: unlabeled
        labels[labels == 2] = 7  # numbers may be missing
        x[4, 0] *= offset > 0  # a zero row has no direction
        result = group_distance_ratio(x, labels)
        for trial in range(2):
            rows = unit(x[:, trial])
            between = (rows[:, None] - rows[None]).square().sum(-1)
            mean = {
                (a, b): between[labels == a][:, labels == b].mean()
                for a, b in itertools.product((0, 1, 7), repeat=2)
            }
            inter = sum(mean[pair] for pair in ((0, 1), (0, 7), (1, 7))) / 3
            near(result[trial], inter / (sum(mean[a, a] for a in (0, 1, 7)) / 3), 1e-9)

    def test_collapsed_states(self):
        labels = torch.arange(30) % 2
        assert group_distance_ratio(torch.full((30, 4), 1 / 3), labels) == 1
        assert group_distance_ratio(torch.eye(2)[labels], labels) > 1e15

    def test_too_few_classes(self, raises):
        with raises("too-few-classes", value=1):
            group_distance_ratio(torch.ones(3, 2), torch.tensor([-1, 0, 0]))


class TestInstanceInformationGain:
    @staticmethod
    def entropy(features, variance):
        """Kolchinsky & Tracey's lower bound for a mixture of Gaussians, in nats, as they write it."""
        n, d = features.shape
        squared = ((features[:, None] - features[None]) ** 2).sum(-1)
        wide = 4 * variance
        log_density = numpy.log(numpy.exp(-squared / (2 * wide)).sum(1)) - math.log(n)
        log_density -= d / 2 * math.log(2 * math.pi * wide)
        return d / 2 - log_density.mean() + math.log(0.25) * d / 2

    @pytest.mark.parametrize("rows", [7, 512])
    @pytest.mark.parametrize("block_bytes", [1, 3000, 2**24])
    def test_equals_the_difference_of_entropies(self, rows, block_bytes, monkeypatch):
        monkeypatch.setattr(distances, "BLOCK_BYTES", block_bytes)
        monkeypatch.setattr(collapse, "ROWS", rows)
        x, features = torch.randn(40, 2, 3, dtype=torch.float64), torch.rand(40, 6, dtype=torch.float64)
        features[3] = 0
        result = instance_information_gain(x, features)
        inputs_ = unit(features).numpy()
        for trial in range(2):
            chosen = x[:, trial].argmax(1).numpy()
            conditional = sum(
                (chosen == entry).mean() * self.entropy(inputs_[chosen == entry], 0.1)
                for entry in numpy.unique(chosen)
            )
            near(result[trial], (self.entropy(inputs_, 0.1) - conditional) / math.log(2))

    def test_bounds(self):
        features = torch.eye(8).repeat_interleave(5, 0)
        assert instance_information_gain(torch.ones(40, 3), features).abs() < 1e-12
        informed = instance_information_gain(features, features, variance=1e-4)
        near(informed, 3.0, 1e-6)  # eight equal groups, distinguished: three bits

    def test_nan_gives_nan(self):
        x = torch.randn(40, 2, 3)
        x[:, 1] = torch.nan
        gain = instance_information_gain(x, torch.rand(40, 6))
        assert gain.isnan().tolist() == [False, True]

    def test_standard_error_matches_the_spread_of_samples(self):
        x, features = torch.randn(300, 2, 4), torch.rand(300, 6)
        exact = instance_information_gain(x, features)
        estimates = [estimate_instance_information_gain(x, features, 60, seed) for seed in range(60)]
        off = torch.stack([(value - exact) / error for value, error in estimates])
        assert off.mean().abs() < 0.4
        assert 0.75 < off.std() < 1.3

    def test_errors(self, raises):
        with raises("wrong-shape", value=[4, 2]):
            instance_information_gain(torch.ones(3, 2), torch.ones(4, 2))
        with raises("not-a-whole-number", value=1):
            estimate_instance_information_gain(torch.ones(3, 2), torch.ones(3, 2), 1)
