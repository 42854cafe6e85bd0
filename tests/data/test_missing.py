import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pairnorm.data import Graph, given_missing, missing_entries, missing_nodes, missing_vectors
from pairnorm.errors import PairNormError

RATES = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]


@pytest.mark.parametrize("rate", RATES)
def test_exactly_the_rate_of_nodes_outside_train_lose_their_vectors(cora: Graph, rate: float) -> None:
    missing = missing_vectors(cora, rate, trials=3)
    assert missing.mask.sum(0).tolist() == [round(rate * (2708 - 140))] * 3
    assert not missing.mask[cora.train].any()


def test_at_rate_one_all_but_the_training_nodes_are_missing(cora: Graph) -> None:
    assert torch.equal(missing_vectors(cora, 1.0).mask[:, 0], ~cora.train)


@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 50))
def test_a_lower_rate_misses_a_part_of_what_a_higher_one_does(first: float, second: float, seed: int) -> None:
    graph = Graph.from_edges([[0], [1]], num_nodes=40, features=torch.ones(40, 2))
    for draw in (missing_vectors, missing_nodes, missing_entries):
        low, high = (draw(graph, rate, seed=seed).mask for rate in sorted((first, second)))
        assert not (low & ~high).any()


def test_a_trial_depends_on_its_own_seed_alone(cora: Graph) -> None:
    together = missing_vectors(cora, 0.4, trials=5, seed=10).mask
    for trial in range(5):
        assert torch.equal(together[:, trial], missing_vectors(cora, 0.4, seed=10 + trial).mask[:, 0])
    assert len({tuple(mask) for mask in together.T.tolist()}) == 5


def test_masks_are_pinned(cora: Graph) -> None:
    # The same seed must give the same mask on every machine, under every numpy.
    assert missing_vectors(cora, 0.003).mask[:, 0].nonzero().flatten().tolist() == [
        623,
        846,
        900,
        1190,
        1713,
        2349,
        2524,
        2601,
    ]


def test_the_mask_tells_nothing_about_the_random_split(cora: Graph) -> None:
    graph = cora.with_split("random", seed=0)
    mask = missing_vectors(graph, 0.5, seed=0).mask[:, 0]
    share = mask[graph.validation].double().mean()
    assert abs(share - 0.5) < 0.1


def test_nodes_are_drawn_from_all(cora: Graph) -> None:
    missing = missing_nodes(cora, 0.5, trials=2)
    assert missing.mask.sum(0).tolist() == [1354, 1354]
    assert missing.mask[cora.train].any()


def test_entries_are_the_stored_ones_of_sparse_features(cora: Graph) -> None:
    missing = missing_entries(cora, 0.25)
    assert missing.mask.shape == (49216, 1)
    assert int(missing.mask.sum()) == 12304


def test_given_is_what_the_data_lacks(small: Graph) -> None:
    lacking = torch.tensor([False, True, False, False, True])
    missing = given_missing(small.replace(missing=lacking), trials=3)
    assert torch.equal(missing.mask, lacking[:, None].expand(-1, 3))
    assert missing.rate == 0.4
    assert missing.seed is None


def test_it_tells_what_it_is(cora: Graph) -> None:
    assert repr(missing_vectors(cora, 0.6, trials=5, seed=3)) == (
        "Missing(kind='vectors', rate=0.6, seed=3, trials=5: 1,541 of 2,708 nodes)"
    )


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_a_rate_is_a_fraction(small: Graph, rate: float) -> None:
    with pytest.raises(PairNormError, match=r"rate is .*; expected a fraction from 0 to 1"):
        missing_vectors(small, rate)


def test_there_is_at_least_one_trial(small: Graph) -> None:
    with pytest.raises(PairNormError, match="trials is 0"):
        missing_vectors(small, 0.5, trials=0)
    with pytest.raises(PairNormError, match="seed is -1"):
        missing_vectors(small, 0.5, seed=-1)
