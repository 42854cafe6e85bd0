from dataclasses import replace

import numpy as np
import pytest
import torch

from pairnorm.classify.evaluation import standardize
from pairnorm.classify.holdout import Target, incomplete_nodes, mask_features, strata, zero_masked
from pairnorm.data import Graph

NODES = 4000
LABELED = torch.arange(NODES) < 2000


def graph(missing: torch.Tensor, columns: int = 4) -> Graph:
    """A path; the first half is labeled."""
    ends = torch.stack([torch.arange(NODES - 1), torch.arange(1, NODES)])
    labels = torch.where(LABELED, torch.arange(NODES) % 2, -1)
    features = torch.ones(NODES, columns)
    return mask_features(Graph.from_edges(ends, features, labels), missing)


def shares(missing: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
    return missing[nodes].float().mean(0)


def drawn(rates: torch.Tensor, seed: int) -> torch.Tensor:
    return torch.rand(NODES, len(rates), generator=torch.Generator().manual_seed(seed)) < rates


@pytest.mark.parametrize(("labeled", "target"), [(0.0, 0.8), (0.1, 0.8), (0.3, 0.5), (0.0, 1.0)])
def test_held_out_vectors_are_masked_at_target_rate(labeled, target):
    rate = torch.where(LABELED, labeled, target)
    whole = graph(torch.rand(NODES, generator=torch.Generator().manual_seed(0)) < rate)
    held_out = LABELED & (torch.arange(NODES) % 2 == 0)
    mask = Target.estimate(whole).mask(whole, held_out)
    assert not (mask & (~held_out | whole.missing)).any()
    expected = shares(whole.missing, ~LABELED)
    assert shares(mask_features(whole, mask).missing, held_out) == pytest.approx(float(expected), abs=1e-3)
    assert torch.equal(mask, Target.estimate(whole).mask(whole, held_out))
    assert not torch.equal(mask, Target.estimate(whole).mask(whole, held_out, seed=1)) or target == 1


def test_held_out_columns_are_masked_at_target_rate_jointly():
    """Columns 0 and 1 go together in the target; column 2 less often; column 3 is always known."""
    own, target = drawn(torch.tensor([0.2, 0.2, 0.6, 0.0]), 0), drawn(torch.tensor([0.7, 0, 0.3, 0.0]), 1)
    target[:, 1] = target[:, 0]
    whole = graph(torch.where(LABELED[:, None], own, target))
    mask = Target.estimate(whole).mask(whole, LABELED)
    after = mask_features(whole, mask).missing
    torch.testing.assert_close(shares(after, LABELED)[:2], torch.tensor([0.7, 0.7]), atol=0.03, rtol=0)
    assert torch.equal(after[:, 2:], whole.missing[:, 2:]), "what the target does not lack stays"
    assert not (mask & whole.missing).any()
    free = LABELED & ~whole.missing[:, :2].any(1)
    assert (mask[free][:, 0] == mask[free][:, 1]).float().mean() > 0.97


def test_small_difference_of_missing_rates_is_masked():
    own, target = drawn(torch.tensor([0.2, 0.0, 0.0, 0.0]), 0), drawn(torch.tensor([0.3, 0.0, 0.0, 0.1]), 1)
    whole = graph(torch.where(LABELED[:, None], own, target))
    after = mask_features(whole, Target.estimate(whole).mask(whole, LABELED)).missing
    torch.testing.assert_close(shares(after, LABELED), shares(whole.missing, ~LABELED), atol=0.02, rtol=0)


@pytest.mark.parametrize("own", [0, 1000])
def test_vectors_and_columns_are_masked_together(own):
    """Held-out nodes that lack their whole vector, ``own`` of them, say nothing about single columns."""
    target = drawn(torch.tensor([0.5, 0.5, 0.5, 0.0]), 0)
    target[torch.arange(NODES) % 2 == 0] = True
    whole = graph(torch.where(LABELED, torch.arange(NODES) < own, target.T).T)
    after = mask_features(whole, Target.estimate(whole).mask(whole, LABELED))
    assert shares(after.missing_vectors, LABELED) == pytest.approx(0.5, abs=0.01)
    torch.testing.assert_close(
        shares(after.missing, LABELED), shares(whole.missing, ~LABELED), atol=0.02, rtol=0
    )


def test_column_masks_do_not_depend_on_masked_vectors():
    """Without those nodes, and with a target that has no missing vectors, the same gaps are drawn."""
    target = drawn(torch.tensor([0.5, 0.5, 0.5, 0.0]), 0)
    target[torch.arange(NODES) % 2 == 0] = True
    whole = graph(target & ~LABELED[:, None])
    population = Target.estimate(whole)
    mask = population.mask(whole, LABELED)
    rest = LABELED & ~mask.all(1)
    assert 900 < int(rest.sum()) < 1100
    partly = replace(population, missing=population.missing[~population.missing_vectors])
    assert torch.equal(partly.mask(whole, rest)[rest], mask[rest])


def test_nothing_is_masked_if_target_is_as_complete():
    same = graph(drawn(torch.tensor([0.3, 0.3, 0.5, 0.1]), 0))
    assert Target.estimate(same).mask(same, LABELED) is None
    more = graph(drawn(torch.tensor([0.3, 0.3, 0.5, 0.1]), 0) & LABELED[:, None])
    assert Target.estimate(more).mask(more, LABELED) is None


def test_target_is_unlabeled_nodes_then_test_nodes(raises):
    whole = graph(~LABELED)
    assert torch.equal(Target.estimate(whole).nodes, ~LABELED)
    assert Target.estimate(whole, "labeled") is None
    known = whole.replace(labels=torch.arange(NODES) % 2)
    assert Target.estimate(known) is None
    assert torch.equal(Target.estimate(known.replace(test=~LABELED)).nodes, ~LABELED)
    mask = Target.estimate(known, 0.25).mask(known, LABELED)
    assert int(mask.sum()) == 500
    for wrong in ("test", 1.5, True):
        with raises("unknown-choice", value=wrong):
            Target.estimate(whole, wrong)


@pytest.mark.parametrize("entries", [False, True])
def test_masked_features_are_zero_in_dense_and_sparse(entries):
    features = torch.arange(1.0, 13).view(4, 3)
    mask = torch.tensor([True, False, True, False])
    if entries:
        mask = mask[:, None] & torch.tensor([True, False, True])
    dense = zero_masked(features, mask)
    assert torch.equal(dense, features * ~(mask if entries else mask[:, None]))
    assert torch.equal(zero_masked(features.to_sparse_csr(), mask).to_dense(), dense)


def test_strata_encode_distance_to_labels_and_features():
    whole = graph(torch.arange(NODES) > 3)
    result = strata(whole, torch.arange(NODES) == 0)
    assert result[:7].tolist() == [0, 5, 10, 15, 21, 22, 23]
    assert (result[7:] == 24).all(), "distances beyond three hops are one stratum"
    assert not strata(whole, torch.arange(NODES) >= 0)[:4].any()
    pair = Graph.from_edges([[0], [1]], torch.ones(4, 1), missing=torch.arange(4) == 3, num_nodes=4)
    assert strata(pair, torch.arange(4) == 0).tolist() == [0, 5, 20, 24], "unreachable counts as far"


def test_node_is_incomplete_if_half_its_features_are_missing():
    missing = torch.zeros(NODES, 5, dtype=torch.bool)
    missing[0], missing[1, :3], missing[2, :2] = True, True, True
    assert incomplete_nodes(graph(missing, 5))[:4].tolist() == [True, True, False, False]


def test_standardize_weights_accuracy_by_target_strata():
    right = np.array([True] * 80 + [False] * 20 + [True] * 5 + [False] * 5)
    held_out = np.array([0] * 100 + [1] * 10)
    result = standardize(right, held_out, np.array([0] * 10 + [1] * 30))
    assert result.accuracy == pytest.approx(0.25 * 0.8 + 0.75 * 0.5)
    assert result.interval[0] < result.accuracy < result.interval[1]
    assert result.unmatched == 0
    far = standardize(right, held_out, np.array([0] * 10 + [2] * 30))
    assert (far.accuracy, far.unmatched) == (pytest.approx(0.8), 0.75)
    assert np.isnan(standardize(right, held_out, np.array([2])).accuracy)


def test_standardized_interval_has_nominal_coverage():
    random, truth, covered = np.random.default_rng(0), np.array([0.9, 0.6]), 0
    for _ in range(2000):
        held_out = np.repeat([0, 1], [150, 40])
        result = standardize(random.random(190) < truth[held_out], held_out, np.repeat([0, 1], [10, 30]))
        low, high = result.interval
        covered += low <= truth @ [0.25, 0.75] <= high
    assert 0.94 <= covered / 2000 <= 0.97
