"""What the paper proves or claims, as properties of the code."""

from itertools import pairwise

import numpy
import pytest
import scipy.sparse.csgraph
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pairnorm import load, pair_norm
from pairnorm.data import csbm
from pairnorm.measure import apsd, col_diff, random_pairs, row_diff, tpsd
from pairnorm.nn import SGC, normalized_adjacency

few = settings(max_examples=40, deadline=None)
scales = st.floats(0.05, 50)
TINY = 1e-24  # an eps that double precision does not see


@st.composite
def states(draw, least=2):
    """Node states [n, d], somewhere in space, none all equal."""
    nodes, features = draw(st.integers(least, 25)), draw(st.integers(1, 8))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    x = torch.randn(nodes, features, dtype=torch.float64, generator=generator)
    return x * draw(st.floats(1e-3, 1e3)) + draw(st.floats(-100, 100))


@pytest.fixture(scope="module")
def connected():
    """Of Cora's largest component: adjacency, degrees with self-loops, and the hundred commonest words."""
    adjacency, features = load("cora").to_scipy()
    _, component = scipy.sparse.csgraph.connected_components(adjacency, directed=False)
    inside = component == numpy.bincount(component).argmax()
    dense = torch.from_numpy(adjacency[inside][:, inside].toarray())
    words = torch.from_numpy(features[inside].toarray()).double()
    return dense.to_sparse_csr(), dense.double().sum(1) + 1, words[:, (words > 0).sum(0).topk(100).indices]


@pytest.fixture(scope="module")
def homophilous():
    return csbm(300, features=40, degree=6, seed=1)


class TestPairNorm:
    @few
    @given(x=states(), scale=scales)
    def test_pn_gives_constant_tpsd_and_zero_column_means(self, x, scale):
        y = pair_norm(x, scale, "PN", TINY)
        torch.testing.assert_close(tpsd(y).item(), 2 * len(x) ** 2 * scale**2, rtol=1e-9, atol=0)
        assert y.mean(0).abs().max() <= 1e-10 * scale

    @few
    @given(x=states(), scale=scales)
    def test_pn_si_gives_rows_of_length_s(self, x, scale):
        norms = pair_norm(x, scale, "PN-SI", TINY).norm(dim=1)
        torch.testing.assert_close(norms, torch.full_like(norms, scale), rtol=1e-9, atol=0)

    @few
    @given(x=states())
    def test_centering_keeps_tpsd(self, x):
        torch.testing.assert_close(tpsd(x - x.mean(0)), tpsd(x), rtol=1e-9, atol=0)

    @few
    @given(x=states())
    def test_tpsd_equals_equation_8(self, x):
        """Eq. 8, against all n² distances."""
        n = len(x)
        eq8 = 2 * n**2 * (x.square().sum(1).mean() - x.mean(0).square().sum())
        every_pair = (x[:, None] - x[None]).square().sum()
        scale = x.square().sum().item() * n
        torch.testing.assert_close(every_pair, eq8, rtol=1e-9, atol=1e-12 * scale)
        torch.testing.assert_close(tpsd(x), every_pair, rtol=1e-9, atol=0)

    @few
    @given(x=states(), shift=st.floats(-100, 100), factor=st.floats(0.01, 100), scale=scales)
    def test_pn_is_invariant_to_shift_and_scale(self, x, shift, factor, scale):
        expected = pair_norm(x, scale, "PN", TINY)
        torch.testing.assert_close(
            pair_norm(factor * x + shift, scale, "PN", TINY), expected, rtol=1e-6, atol=1e-8
        )

    @few
    @given(x=states(), scale=scales)
    def test_pn_keeps_ratios_of_distances(self, x, scale):
        before, after = (torch.cdist(state, state) for state in (x, pair_norm(x, scale, "PN", TINY)))
        factor = (tpsd(pair_norm(x, scale, "PN", TINY)) / tpsd(x)).sqrt()
        torch.testing.assert_close(after, factor * before, rtol=1e-5, atol=1e-5 * scale)

    @few
    @given(x=states(), scale=scales)
    def test_pn_is_idempotent(self, x, scale):
        once = pair_norm(x, scale, "PN", TINY)
        torch.testing.assert_close(pair_norm(once, scale, "PN", TINY), once, rtol=1e-9, atol=1e-12)

    @few
    @given(x=states(least=3), seed=st.integers(0, 1000))
    @pytest.mark.parametrize("mode", ["PN", "PN-SI", "PN-SCS"])
    def test_pair_norm_is_permutation_equivariant(self, mode, x, seed):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(pair_norm(x[order], 1.0, mode), pair_norm(x, 1.0, mode)[order])


class TestSmoothing:
    HOPS = (0, 1, 2, 4, 8, 16, 32)

    def smoothed(self, connected, kind):
        adjacency, _, x = connected
        matrix = normalized_adjacency(adjacency, kind)
        for hop in range(max(self.HOPS) + 1):
            if hop in self.HOPS:
                yield x
            x = matrix @ x

    def assert_falling(self, values):
        assert all(later < earlier for earlier, later in pairwise(values)), values
        assert values[-1] < 0.25 * values[0]

    def test_row_diff_falls_to_stationary_point(self, connected):
        """Row-diff falls with K, and D̃⁻¹Ã takes every column to its mean weighted by degree."""
        _, degree, x = connected
        point = degree @ x / degree.sum()
        states = list(self.smoothed(connected, "rw"))
        self.assert_falling([row_diff(state).item() for state in states])
        self.assert_falling([(state - point).norm().item() for state in states])

    def test_col_diff_falls_to_stationary_point(self, connected):
        """Col-diff falls with K, and D̃^-½ÃD̃^-½ takes columns to multiples of the root of the degrees."""
        _, degree, _ = connected
        point = (degree.sqrt() / degree.sqrt().sum()).unsqueeze(1)
        states = list(self.smoothed(connected, "sym"))
        self.assert_falling([col_diff(state).item() for state in states])
        self.assert_falling([(state / state.sum(0) - point).norm().item() for state in states])

    @pytest.mark.parametrize("kind", ["rw", "sym"])
    def test_stationary_point_is_fixed(self, connected, kind):
        adjacency, degree, _ = connected
        point = (degree.sqrt() if kind == "sym" else torch.ones_like(degree)).unsqueeze(1)
        torch.testing.assert_close(normalized_adjacency(adjacency, kind) @ point, point, rtol=1e-6, atol=0)


class TestSGC:
    def states(self, graph, norm, scale=1.0, hops=40):
        model = SGC(40, 5, num_layers=hops, norm=norm, scale=scale, adjacency="rw")
        seen = []
        model.propagation.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0][:, 0]))
        seen.append(model.hidden(graph.features, graph.adjacency)[:, 0])
        return seen

    def test_pn_keeps_tpsd_constant_across_layers(self, homophilous):
        values = torch.stack([tpsd(state) for state in self.states(homophilous, "PN", 2.0)])
        torch.testing.assert_close(values, torch.full_like(values, 2 * 300**2 * 2.0**2), rtol=1e-3, atol=0)

    def test_tpsd_vanishes_without_pair_norm(self, homophilous):
        values = [tpsd(state).item() for state in self.states(homophilous, None)]
        assert values[-1] < 1e-2 * values[0]

    def test_apsd_of_random_pairs_reflects_tpsd(self, homophilous):
        pairs = random_pairs(300, 20_000)
        for state in self.states(homophilous, "PN")[::10]:
            torch.testing.assert_close(apsd(state, pairs).item(), 2.0, rtol=0.1, atol=0)

    @pytest.mark.parametrize("scale", [0.1, 5.0])
    def test_scale_multiplies_all_states(self, homophilous, scale):
        """With scale s every state is s times the state with scale 1."""
        for ours, one in zip(
            self.states(homophilous, "PN", scale), self.states(homophilous, "PN"), strict=True
        ):
            torch.testing.assert_close(ours, scale * one, rtol=1e-3, atol=1e-3 * scale)
