import math
import re
import sys
from itertools import pairwise
from pathlib import Path

import numpy
import pytest
import scipy.linalg
import scipy.optimize
import torch

from pairnorm.nn.propagate import normalized_adjacency

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from repulsion import _largest_ratio, grls, largest_lambda, repel, repel_conv


def random_graph(nodes, density, seed=0, weighted=False):
    generator = torch.Generator().manual_seed(seed)
    upper = torch.triu(torch.rand(nodes, nodes, generator=generator) < density, 1).double()
    if weighted:
        upper *= torch.randint(1, 9, (nodes, nodes), generator=generator) / 4
    return upper + upper.T


def star(nodes):
    adjacency = torch.zeros(nodes, nodes, dtype=torch.float64)
    adjacency[0, 1:] = adjacency[1:, 0] = 1
    return adjacency


def two_cliques(size):
    one = torch.ones(size, size, dtype=torch.float64) - torch.eye(size)
    return torch.block_diag(one, one)


GRAPHS = {
    "random": random_graph(12, 0.3),
    "isolated nodes": random_graph(14, 0.08, seed=3),
    "weighted": random_graph(12, 0.4, weighted=True),
    "star": star(9),
    "two cliques": two_cliques(5),
    "path": torch.diag(torch.ones(7, dtype=torch.float64), 1)
    + torch.diag(torch.ones(7, dtype=torch.float64), -1),
    "no edge": torch.zeros(5, 5, dtype=torch.float64),
}
graphs = pytest.mark.parametrize("dense", GRAPHS.values(), ids=GRAPHS.keys())


def features(dense, columns=3):
    return torch.randn(len(dense), columns, dtype=torch.float64, generator=torch.Generator().manual_seed(7))


def objective(y, x, dense, lam, strength=1.0):
    """Eq. 6 pair by pair, each pair once; Eq. 5 for lam = 0."""
    total = sum((1 + dense[i].sum()) * (y[i] - x[i]).square().sum() for i in range(len(x)))
    for i in range(len(x)):
        for j in range(i):
            weight = dense[i, j] if dense[i, j] > 0 else -lam
            total = total + strength * weight * (y[i] - y[j]).square().sum()
    return total


def minimize(x, dense, lam, strength=1.0):
    def value_and_gradient(flat):
        y = torch.tensor(flat).view(x.shape).requires_grad_()
        value = objective(y, x, dense, lam, strength)
        return value.item(), torch.autograd.grad(value, y)[0].flatten().numpy()

    start = numpy.zeros(x.numel())
    result = scipy.optimize.minimize(
        value_and_gradient, start, jac=True, method="BFGS", options={"gtol": 1e-9}
    )
    return torch.tensor(result.x).view(x.shape)


def exact_bound(dense):
    """The bound from dense matrices: where the complement's Laplacian first outweighs the rest."""
    a = dense.numpy()
    complement = (a == 0) - numpy.eye(len(a))
    rest = numpy.eye(len(a)) + 2 * numpy.diag(a.sum(1)) - a
    return 1 / scipy.linalg.eigh(numpy.diag(complement.sum(1)) - complement, rest, eigvals_only=True)[-1]


@graphs
@pytest.mark.parametrize("fraction", [0, 0.3, 0.8])
def test_repel_is_the_minimizer_of_equation_6(dense, fraction):
    x, lam = features(dense, 2), fraction * exact_bound(dense)
    torch.testing.assert_close(
        repel(x, dense.to_sparse_csr(), lam), minimize(x, dense, lam), atol=1e-6, rtol=1e-6
    )


@graphs
def test_grls_is_the_closed_form_of_the_paper(dense):
    x, rw = features(dense), normalized_adjacency(dense.to_sparse_csr()).to_dense().double()
    closed = torch.linalg.solve(2 * torch.eye(len(dense)) - rw, x)
    torch.testing.assert_close(grls(x, dense.to_sparse_csr()), closed, atol=1e-6, rtol=1e-6)


@graphs
def test_repel_conv_is_the_closed_form(dense):
    x, n, lam = features(dense), len(dense), 0.5 * exact_bound(dense)
    rw = normalized_adjacency(dense.to_sparse_csr()).to_dense().double()
    degree, pattern = 1 + dense.sum(1, keepdim=True), (dense > 0).double()
    centered = x - x.mean(0)
    smoother = (
        pattern.sum(1, keepdim=True) * x - pattern @ x
    )  # (1 + lam)(I - A_rw) x where there are no weights
    expected = rw @ x - lam * smoother / degree + lam * n * centered / degree
    torch.testing.assert_close(repel_conv(x, dense.to_sparse_csr(), lam), expected, atol=1e-6, rtol=1e-6)
    if bool((dense <= 1).all()):
        expected = (1 + lam) * rw @ x - lam * x + lam * n * centered / degree
        torch.testing.assert_close(repel_conv(x, dense.to_sparse_csr(), lam), expected, atol=1e-6, rtol=1e-6)


@graphs
def test_zero_lambda_is_graph_convolution(dense):
    x, adjacency = features(dense).float(), dense.float().to_sparse_csr()
    torch.testing.assert_close(repel_conv(x, adjacency, 0.0), normalized_adjacency(adjacency) @ x)


@pytest.mark.parametrize("lam", [0.0, 0.05])
def test_repel_conv_is_the_first_order_expansion(lam):
    """With the graph's terms of strength t, the minimizer is x + t (repel_conv(x) - x) up to O(t²)."""
    dense = GRAPHS["random"]
    x = features(dense, 1)
    gradient = repel_conv(x, dense.to_sparse_csr(), lam) - x
    errors = [(minimize(x, dense, lam, t) - (x + t * gradient)).norm() for t in (0.04, 0.02, 0.01)]
    for coarse, fine in pairwise(errors):
        assert 3.6 < coarse / fine < 4.1  # a quarter for half of t, up to O(t³)


@graphs
def test_largest_lambda(dense, raises):
    adjacency, x = dense.to_sparse_csr(), features(dense)
    exact = exact_bound(dense)
    assert largest_lambda(adjacency) == pytest.approx(exact, rel=1e-8)
    repel(x, adjacency, 0.99 * exact)
    for function in (repel, repel_conv):
        with raises("out-of-range", value=1.001 * exact) as error:
            function(x, adjacency, 1.001 * exact)
    stated = float(re.search(r"at most ([\d.e-]+),", error.value.expected).group(1))
    assert 0.998 * exact < stated < exact
    repel(x, adjacency, stated, tolerance=1e-6)


@pytest.mark.parametrize(
    ("nodes", "density", "seed"), [(150, 0.02, 0), (150, 0.1, 1), (200, 0.5, 2), (3, 0.5, 0)]
)
def test_largest_lambda_of_larger_graphs(nodes, density, seed):
    dense = random_graph(nodes, density, seed)
    assert largest_lambda(dense.to_sparse_coo()) == pytest.approx(exact_bound(dense), rel=1e-8)


def test_complete_graph_has_infinite_bound():
    dense = two_cliques(4)[:4, :4]
    adjacency, x = dense.to_sparse_csr(), features(dense)
    assert largest_lambda(adjacency) == math.inf
    torch.testing.assert_close(repel(x, adjacency, 100.0), grls(x, adjacency))
    torch.testing.assert_close(repel_conv(x, adjacency, 100.0), repel_conv(x, adjacency, 0.0))


@graphs
def test_repulsion_keeps_disconnected_nodes_further_apart(dense):
    x, adjacency = features(dense), dense.to_sparse_csr()

    def apart(y):
        return (torch.cdist(y, y).square() * (dense == 0)).sum()

    bound = exact_bound(dense)
    sums = [apart(repel(x, adjacency, fraction * bound)) for fraction in (0, 0.25, 0.5, 0.75)]
    assert all(less < more for less, more in pairwise(sums))


def test_weighted_mean_is_preserved():
    """Both penalties ignore a common offset, so that Σ d̃ᵢ yᵢ = Σ d̃ᵢ xᵢ."""
    dense = GRAPHS["weighted"]
    x, adjacency, degree = features(dense), dense.to_sparse_csr(), 1 + dense.sum(1)
    for y in (repel(x, adjacency, 0.05), repel_conv(x, adjacency, 0.05)):
        torch.testing.assert_close(degree @ y, degree @ x)


@pytest.mark.parametrize("function", [repel, repel_conv], ids=["repel", "repel_conv"])
class TestBoth:
    def test_gradients_are_correct(self, function):
        dense = GRAPHS["weighted"]
        adjacency, x = dense.to_sparse_csr(), features(dense, 2).requires_grad_()
        assert torch.autograd.gradcheck(lambda x: function(x, adjacency, 0.05), x)
        assert torch.autograd.gradgradcheck(lambda x: function(x, adjacency, 0.05).pow(3), x)

    def test_trials_are_independent(self, function):
        dense = GRAPHS["random"]
        x, adjacency = features(dense, 12).view(-1, 4, 3), dense.to_sparse_csr()
        together = function(x, adjacency, 0.05)
        for trial in range(4):
            torch.testing.assert_close(together[:, trial], function(x[:, trial], adjacency, 0.05))

    def test_layouts_and_self_loops_do_not_matter(self, function):
        dense = GRAPHS["isolated nodes"]
        x = features(dense)
        expected = function(x, dense.to_sparse_csr(), 0.05)
        edges = dense.nonzero().T
        for adjacency in (
            dense.to_sparse_coo(),
            edges,
            edges.flip(0),
            (dense + torch.eye(14)).to_sparse_csr(),
        ):
            torch.testing.assert_close(function(x, adjacency, 0.05), expected)

    @pytest.mark.parametrize(
        ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float16, 3e-3), (torch.bfloat16, 2e-2)]
    )
    def test_dtypes_are_kept_within_tolerance(self, function, dtype, tolerance):
        dense = GRAPHS["random"]
        x = features(dense).to(dtype)
        result = function(x, dense.to_sparse_csr(), 0.05)
        assert result.dtype == dtype
        expected = function(x.double(), dense.to_sparse_csr(), 0.05)
        torch.testing.assert_close(result.double(), expected, atol=tolerance, rtol=tolerance)

    def test_graph_changed_in_place_is_recomputed(self, function):
        adjacency = GRAPHS["weighted"].to_sparse_coo().coalesce()
        x = features(adjacency)
        before = function(x, adjacency, 0.01)
        adjacency.mul_(2)
        after = function(x, adjacency, 0.01)
        assert not torch.allclose(before, after)
        torch.testing.assert_close(after, function(x, adjacency.clone(), 0.01))

    def test_large_graph_equals_eigenvector_solution(self, function):
        """A matrix of all pairs would take 80 GB here."""
        nodes = 100_000
        ring = torch.arange(nodes)
        edges = torch.cat([torch.stack([ring, ring.roll(1)]), torch.stack([ring.roll(1), ring])], dim=1)
        wave = torch.cos(2 * math.pi * 5 * ring.double() / nodes).unsqueeze(1)  # an eigenvector of the ring
        lam, laplacian = 2.0 / nodes, 2 - 2 * math.cos(2 * math.pi * 5 / nodes)
        gradient = ((1 + lam) * laplacian - lam * nodes) / 3
        factor = 1 / (1 + gradient) if function is repel else 1 - gradient
        torch.testing.assert_close(function(wave, edges, lam), factor * wave)

    def test_single_node_is_unchanged(self, function):
        x = torch.ones(1, 2)
        assert torch.equal(function(x, torch.zeros(2, 0, dtype=torch.long), 0.5), x)

    @pytest.mark.parametrize("lam", [-0.1, math.nan, math.inf])
    def test_invalid_lambda_raises(self, function, lam, raises):
        with raises("not-a-number"):
            function(features(star(4)), star(4).to_sparse_csr(), lam)

    def test_invalid_input_raises(self, function, raises):
        x, adjacency = features(star(4)), star(4).to_sparse_csr()
        with raises("not-symmetric"):
            function(x, torch.tensor([[0, 1, 2], [1, 0, 3]]), 0.1)
        with raises("not-symmetric"):
            function(x, torch.triu(2 * star(4)).add(torch.tril(star(4))).to_sparse_csr(), 0.1)
        with raises("out-of-range", value=-1.0):
            function(x, (-star(4)).to_sparse_csr(), 0.1)
        with raises("wrong-shape", value=3):
            function(x[:3], adjacency, 0.1)
        for wrong in (x.long(), x[:, 0], x.to_sparse_csr()):
            with raises("wrong-shape", value=list(wrong.shape)):
                function(wrong, adjacency, 0.1)


def test_nan_stays_in_its_column():
    x, adjacency = features(star(6)), star(6).to_sparse_csr()
    expected = repel(x, adjacency, 0.1)
    x[2, 0] = math.nan
    result = repel(x, adjacency, 0.1)
    assert result[:, 0].isnan().all()
    torch.testing.assert_close(result[:, 1:], expected[:, 1:])


def test_lambda_near_the_bound_raises(raises):
    dense = GRAPHS["random"]
    x, lam = features(dense).float(), exact_bound(dense) * (1 - 1e-13)
    with raises("not-converged", value=lam):
        repel(x, dense.to_sparse_csr(), lam)


def test_bound_is_iterated_to_convergence():
    """Bug: after 200 steps it was returned as it was, 2e-5 too large here."""
    nodes = 500
    weight, start = torch.logspace(-6, 6, nodes - 1), torch.arange(nodes - 1)
    dense = torch.zeros(nodes, nodes)
    dense[start, start + 1] = dense[start + 1, start] = weight
    assert largest_lambda(dense.to_sparse_csr()) == pytest.approx(exact_bound(dense), rel=1e-6)


def test_unconverged_bound_raises(monkeypatch, raises):
    monkeypatch.setattr(_largest_ratio, "__defaults__", (4, 1, 1e-5))
    with raises("not-converged"):
        largest_lambda(random_graph(150, 0.1, 1).to_sparse_csr())


def test_inference_tensors_are_supported():
    """Bug: they count no changes, which was asked of them."""
    with torch.inference_mode():
        adjacency, x = star(6).to_sparse_csr(), features(star(6))
        assert largest_lambda(adjacency) == pytest.approx(exact_bound(star(6)))
        torch.testing.assert_close(grls(x, adjacency), grls(x, star(6)))
