import pytest
import torch

from pairnorm.errors import PairNormError
from pairnorm.measure import apd, apsd, connected_pairs, pair_distances, random_pairs, row_diff, tpsd
from pairnorm.measure import states as states_module


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


def test_direction_weight_loops_and_repeats_do_not_count():
    edge_index = torch.tensor([[3, 0, 2, 2, 0], [0, 3, 2, 1, 3]])
    assert connected_pairs(edge_index).tolist() == [[0, 1], [3, 2]]


def test_a_graph_without_edges_has_no_connected_pairs():
    assert connected_pairs(torch.eye(3)).shape == (2, 0)


def test_random_pairs_are_uniform_over_ordered_pairs():
    counts = torch.zeros(5, 5)
    i, j = random_pairs(5, 50_000, seed=3)
    counts.index_put_((i, j), torch.ones(50_000), accumulate=True)
    expected = 50_000 / 25
    chi_squared = float(((counts - expected) ** 2 / expected).sum())
    assert 7 < chi_squared < 52  # the central 99.9% of chi² with 24 degrees of freedom


def test_a_seed_repeats_its_pairs_and_leaves_the_global_numbers_alone():
    before = torch.get_rng_state()
    assert torch.equal(random_pairs(9, 20, seed=1), random_pairs(9, 20, seed=1))
    assert not torch.equal(random_pairs(9, 20, seed=1), random_pairs(9, 20, seed=2))
    assert torch.equal(torch.get_rng_state(), before)
    generator = torch.Generator().manual_seed(1)
    assert torch.equal(random_pairs(9, 20, generator), random_pairs(9, 20, seed=1))


@pytest.mark.parametrize(("nodes", "count"), [(0, 1), (3, -1)])
def test_impossible_draws_are_named(nodes, count):
    with pytest.raises(PairNormError, match=f"cannot draw {count} pairs of {nodes} nodes"):
        random_pairs(nodes, count)


def test_no_pairs_of_no_nodes():
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
def test_no_pairs_have_no_average(measure):
    x = torch.randn(4, 2)
    none = torch.empty(2, 0, dtype=torch.int64)
    assert pair_distances(x, none).shape == (0,)
    with pytest.raises(PairNormError, match="pairs is empty"):
        measure(x, none)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (torch.tensor([[0, 1], [1, 4]]), "pairs holds the node 4, but x has 4 nodes"),
        (torch.tensor([[0, -1], [1, 2]]), "pairs holds the node -1"),
        (torch.zeros(3, 2, dtype=torch.int64), r"pairs is \[3, 2\] of torch.int64; expected"),
        (torch.zeros(2, 2), r"pairs is \[2, 2\] of torch.float32; expected"),
        ([(0, 1)], "of list; expected an integer tensor"),
    ],
)
def test_unusable_pairs_are_named(pairs, message):
    with pytest.raises(PairNormError, match=message):
        pair_distances(torch.randn(4, 2), pairs)
