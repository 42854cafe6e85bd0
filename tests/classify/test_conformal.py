from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from pairnorm.classify.conformal import RATES, label_sets


def world(
    nodes: int, seed: int, harder: float = 0.0
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.bool_]]:
    """Probabilities of 4 classes, the true classes, and who lacks features, where the model is worse."""
    random = np.random.default_rng(seed)
    labels, lacking = random.integers(0, 4, nodes), random.random(nodes) < 0.4
    logits = random.normal(size=(nodes, 4)) * (1 + harder * lacking[:, None])
    logits[np.arange(nodes), labels] += 2
    chances = np.exp(logits)
    return (chances / chances.sum(1, keepdims=True)).astype(np.float32), labels, lacking


def held(
    chances: NDArray[np.float32], labels: NDArray[np.int64], sizes: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Whether the true class is among the most probable so many."""
    rank = (chances > chances[np.arange(len(labels)), labels][:, None]).sum(1)
    return rank < sizes


def test_the_threshold_is_the_order_statistic_of_the_definition() -> None:
    # Nine held-out nodes with p(y) = 0.9, 0.8, ... 0.1: at 20% q is the ceil(10 * 0.8) = 8th score, 0.8.
    right = np.arange(9, 0, -1) / 10
    chances = np.stack([right, 1 - right], 1).astype(np.float32)
    asked = np.array([[0.25, 0.75], [0.15, 0.85]], dtype=np.float32)
    chances = np.concatenate([chances, asked])
    held_out = np.arange(11) < 9
    [found] = label_sets(chances, np.zeros(11, dtype=np.int64), held_out, np.zeros(11, dtype=bool), [0.2])
    assert found.sizes[9:].tolist() == [2, 1]
    [found] = label_sets(chances, np.zeros(11, dtype=np.int64), held_out, np.zeros(11, dtype=bool), [0.05])
    assert found.sizes.tolist() == [2] * 11, "nine nodes cannot promise 95%: nothing is ruled out"


@pytest.mark.parametrize("rate", [0.05, 0.1, 0.3])
def test_nodes_that_nobody_saw_are_covered_as_promised_with_and_without_features(rate: float) -> None:
    covered: dict[bool, list[float]] = {False: [], True: []}
    for seed in range(20):
        chances, labels, lacking = world(4000, seed, harder=1.0)
        held_out = np.arange(4000) < 1000
        [found] = label_sets(chances, labels, held_out, lacking, [rate])
        inside = held(chances, labels, found.sizes)
        for kind in covered:
            covered[kind].append(inside[~held_out & (lacking == kind)].mean())
    for shares in covered.values():
        assert np.mean(shares) == pytest.approx(1 - rate, abs=0.008)


def test_measured_coverage_is_that_of_nodes_nobody_saw() -> None:
    chances, labels, lacking = world(20_000, 0)
    held_out = np.arange(20_000) < 2000
    for found in label_sets(chances, labels, held_out, lacking):
        measured = found.coverage["all held-out nodes"]
        inside = held(chances, labels, found.sizes)[~held_out].mean()
        assert measured.mean == pytest.approx(inside, abs=0.02)
        assert measured.low <= measured.mean <= measured.high
        assert found.coverage["without features"].nodes == (held_out & lacking).sum()


def test_a_larger_error_rate_gives_smaller_sets_and_at_last_none() -> None:
    chances, labels, lacking = world(2000, 0)
    sizes = [
        found.sizes for found in label_sets(chances, labels, np.arange(2000) < 500, lacking, (*RATES, 0.6))
    ]
    assert all((one >= other).all() for one, other in pairwise(sizes))
    assert (sizes[-1] == 0).any()


def test_with_few_of_a_kind_the_guarantee_is_for_all_together() -> None:
    chances, labels, lacking = world(1000, 0)
    lacking[:] = np.arange(1000) < 10
    [found] = label_sets(chances, labels, np.arange(1000) < 500, lacking, [0.1])
    assert [one.own for one in found.coverage.values()] == [True, False, False]
