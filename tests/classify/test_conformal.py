from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pairnorm.classify import predictions
from pairnorm.classify.holdout import Target, incomplete_nodes, mask_features
from pairnorm.classify.predictions import ERROR_RATES, MIN_GROUP, Calibration, PredictionSets
from pairnorm.data import Graph

Probabilities = tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.bool_]]


def simulate(nodes: int, seed: int) -> Probabilities:
    """Probabilities of 4 classes, the true classes, and which nodes lack features."""
    random = np.random.default_rng(seed)
    labels, incomplete = random.integers(0, 4, nodes), random.random(nodes) < 0.4
    logits = random.normal(size=(nodes, 4)) * (1 + incomplete[:, None])
    logits[np.arange(nodes), labels] += 2
    return softmax(logits), labels, incomplete


def softmax(logits: NDArray[np.float64]) -> NDArray[np.float32]:
    raised = np.exp(logits - logits.max(1, keepdims=True))
    return (raised / raised.sum(1, keepdims=True)).astype(np.float32)


def sets_of(drawn: Probabilities, held_out: NDArray[np.bool_], *rates: float) -> list[PredictionSets]:
    probabilities, labels, incomplete = drawn
    held = probabilities[held_out], labels[held_out], incomplete[held_out]
    return Calibration.of(*held).prediction_sets(probabilities, incomplete, rates or ERROR_RATES)


def covers(
    probabilities: NDArray[np.float32], labels: NDArray[np.int64], sizes: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Whether the true class is in the set of the most probable ones."""
    return (probabilities > probabilities[np.arange(len(labels)), labels][:, None]).sum(1) < sizes


@pytest.mark.parametrize(
    ("held_out", "rate", "rank"),
    [(9, 0.2, 8), (10, 0.2, 9), (20, 0.1, 19), (19, 0.1, 18), (10, 0.5, 6), (19, 0.05, 19), (19, 1.0, 1)],
)
def test_threshold_is_the_defined_order_statistic(held_out, rate, rank):
    """The true class is the second one and scores 0.51, 0.52, ...; the threshold is one of these."""
    scores = 0.5 + np.arange(1, held_out + 1) / 100
    evaluated = np.stack([scores, 1 - scores], 1).astype(np.float32)
    calls = 0.505 + np.arange(40) / 100
    delivered = np.stack([calls, 1 - calls], 1).astype(np.float32)
    labels, complete = np.ones(held_out, dtype=np.int64), np.zeros(40, dtype=bool)
    [result] = Calibration.of(evaluated, labels, complete[:held_out]).prediction_sets(
        delivered, complete, [rate]
    )
    assert np.count_nonzero(result.sizes == 2) == rank
    assert np.count_nonzero(result.sizes == 1) == 40 - rank
    [result] = Calibration.of(evaluated, labels, complete[:held_out]).prediction_sets(
        evaluated, complete[:held_out], [rate]
    )
    assert np.count_nonzero(result.sizes == 2) == rank, "a score equal to the threshold is in the set"
    labels[:] = 0
    [result] = Calibration.of(evaluated, labels, complete[:held_out]).prediction_sets(
        delivered, complete, [rate]
    )
    assert (result.sizes == 1).all(), "where the first class is always right, one is enough"


def test_threshold_rank_is_exact_in_float64():
    """In float64, 100 · (1 - 0.45) is above 55."""
    scores = np.arange(1, 100) / 100
    [[threshold, _]] = Calibration(scores, np.zeros(99, dtype=bool)).thresholds([0.45], by_group=False)
    assert threshold == 0.55


def test_few_held_out_nodes_give_full_sets():
    drawn = simulate(30, 0)
    [result] = sets_of(drawn, np.arange(30) < 9, 0.05)
    assert (result.sizes == 4).all(), "nine nodes cannot promise 95%"


@pytest.mark.parametrize("rate", [0.05, 0.1, 0.15])
def test_coverage_is_nominal_in_both_groups(rate):
    covered: dict[bool, list[float]] = {False: [], True: []}
    for seed in range(20):
        drawn = simulate(4000, seed)
        held_out = np.arange(4000) < 1000
        [result] = sets_of(drawn, held_out, rate)
        inside = covers(*drawn[:2], result.sizes)
        for kind in covered:
            covered[kind].append(inside[~held_out & (drawn[2] == kind)].mean())
    for shares in covered.values():
        assert np.mean(shares) == pytest.approx(1 - rate, abs=0.008)


def test_measured_coverage_equals_coverage_of_new_nodes():
    drawn, held_out = simulate(20_000, 0), np.arange(20_000) < 2000
    for result in sets_of(drawn, held_out, *ERROR_RATES, 0.6):
        measured = result.coverage["all held-out nodes"]
        inside = covers(*drawn[:2], result.sizes)[~held_out].mean()
        assert measured.mean == pytest.approx(inside, abs=0.02)
        assert measured.low <= measured.mean <= measured.high
        assert result.coverage["without features"].nodes == (held_out & drawn[2]).sum()


def test_coverage_is_measured_on_separate_nodes():
    """Of 20 + 20 nodes at 10%, the 19th of 20 scores covers 19 of 20 that set it, and 19 / 21 of others."""
    measured = []
    for seed in range(60):
        probabilities, labels, _ = simulate(40, seed)
        complete = np.zeros(40, dtype=bool)
        [result] = Calibration.of(probabilities, labels, complete).prediction_sets(
            probabilities, complete, [0.1]
        )
        measured.append(result.coverage["all held-out nodes"].mean)
    assert np.mean(measured) == pytest.approx(19 / 21, abs=0.02)


def test_larger_error_rate_gives_smaller_nonempty_sets():
    sizes = [result.sizes for result in sets_of(simulate(2000, 0), np.arange(2000) < 500, *ERROR_RATES, 0.9)]
    assert all((one >= other).all() for one, other in pairwise(sizes))
    assert (sizes[-1] == 1).all()


@pytest.mark.parametrize(("few", "guaranteed"), [(29, False), (30, True)])
def test_small_group_has_no_separate_guarantee(few, guaranteed):
    probabilities, labels, incomplete = simulate(1000, 0)
    incomplete[:] = np.arange(1000) < few
    [result] = sets_of((probabilities, labels, incomplete), np.arange(1000) < 500, 0.1)
    assert [one.guaranteed for one in result.coverage.values()] == [True, guaranteed, guaranteed]


CLASSES, COLUMNS, NODES, LABELED, HELD_OUT = 3, 6, 900, 400, 200


def posterior(graph: Graph, neighbors: NDArray[np.float64]) -> NDArray[np.float32]:
    """The posterior of a class given the neighbors and the known features: class c has the mean c in each."""
    known = ~graph.missing if graph.missing.dim() == 2 else ~graph.missing[:, None].expand(-1, COLUMNS)
    means = np.arange(CLASSES)
    logits = -((graph.features.numpy()[:, :, None] - means) ** 2) / 4
    return softmax((logits * known.numpy()[:, :, None]).sum(1) - (neighbors[:, None] - means) ** 2 / 4)


def simulate_coverage(
    seed: int, rate: float, columns: bool, masked: bool = True
) -> dict[str, tuple[float, float]]:
    """Return coverage and share of unlabeled nodes, by group; labeled nodes are complete, these are not."""
    random = np.random.default_rng(seed)
    classes = random.integers(0, CLASSES, NODES)
    neighbors = classes + np.sqrt(2) * random.normal(size=NODES)
    features = classes[:, None] + np.sqrt(2) * random.normal(size=(NODES, COLUMNS))
    labeled = np.arange(NODES) < LABELED
    missing = random.random((NODES, COLUMNS) if columns else NODES) < rate
    if columns:
        missing[:, 0] = False  # one column is never empty
    missing[labeled] = False
    edges = random.integers(0, NODES, (2, NODES))
    graph = mask_features(
        Graph.from_edges(edges, features, np.where(labeled, classes, -1)), torch.from_numpy(missing)
    )
    held_out = np.arange(NODES) < HELD_OUT
    target = Target.estimate(graph)
    evaluation = mask_features(
        graph, target.mask(graph, torch.from_numpy(held_out), seed) if masked else None
    )
    evaluated, delivered = posterior(evaluation, neighbors)[held_out], posterior(graph, neighbors)
    incomplete = incomplete_nodes(evaluation)[held_out], incomplete_nodes(graph)
    [result] = Calibration.of(evaluated, classes[held_out], incomplete[0]).prediction_sets(
        delivered, incomplete[1], [0.1]
    )
    inside = covers(delivered, classes, result.sizes)
    groups = {
        "all": ~labeled,
        "with": ~labeled & ~incomplete_nodes(graph),
        "without": ~labeled & incomplete_nodes(graph),
    }
    members = {name: group for name, group in groups.items() if group.any()}
    return {name: (inside[group].mean(), group.sum() / (~labeled).sum()) for name, group in members.items()}


@pytest.mark.parametrize("rate", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("columns", [False, True])
def test_coverage_is_nominal_for_nodes_without_features(monkeypatch, rate, columns):
    monkeypatch.setattr(predictions, "MAX_SPLITS", 2)
    runs = [simulate_coverage(seed, rate, columns) for seed in range(200)]
    for name in ("all", "with", "without"):
        result = np.array([run[name] for run in runs if name in run])
        held_out = HELD_OUT * result[:, 1].mean() if len(result) else 0
        if held_out < MIN_GROUP:  # the guarantee is for all nodes together
            continue
        error = result[:, 0].std(ddof=1) / np.sqrt(len(result))
        # Coverage is at least nominal, and at most 1 / (held-out nodes of the group + 1) more.
        assert 0.9 - 2 * error <= result[:, 0].mean() <= 0.9 + 2 * error + 1 / (held_out + 1), name


def test_unmasked_held_out_nodes_give_too_low_coverage():
    shares = [simulate_coverage(seed, 0.9, columns=True, masked=False)["all"][0] for seed in range(20)]
    assert np.mean(shares) < 0.85
