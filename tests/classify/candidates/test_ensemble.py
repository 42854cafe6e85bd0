import pickle
from dataclasses import replace

import pytest
import torch

from pairnorm.classify.candidates import Average, Candidate, CandidateResult, PreparedGraph, SGCFamily, Task
from pairnorm.classify.candidates.ensemble import beats_prior, best_per_model, improves, select_members
from pairnorm.classify.candidates.task import KnownLabels
from pairnorm.classify.predictions import fallback_shares, unreachable
from pairnorm.classify.search import search
from pairnorm.data import Graph

CPU = torch.device("cpu")


def evaluate(task: Task, probabilities: torch.Tensor) -> CandidateResult:
    return task.evaluate(Candidate("SGC"), probabilities.log().unsqueeze(1), lambda task: None)


def test_members_are_selected_by_gain(task):
    """Two that are wrong on different nodes are better together; a fallback_probabilities adds nothing."""
    truth = torch.nn.functional.one_hot(task.held_out_labels, 2).float()
    first, second = (torch.arange(len(truth)) % 2 == rest for rest in (0, 1))
    good, bad = 0.9 * truth + 0.05, 0.3 * truth + 0.35
    halves = [evaluate(task, torch.where(half[:, None], good, bad)) for half in (first, second)]
    uniform = evaluate(task, torch.full_like(truth, 0.5))
    assert dict(select_members(task, [uniform, *halves])).keys() == {1, 2}
    assert dict(select_members(task, [evaluate(task, good), *halves, uniform])) == {0: 1}
    shift = 1e-3 * (2 * truth - 1)
    similar = [evaluate(task, good + torch.where(half[:, None], shift, -shift)) for half in (first, second)]
    assert len(select_members(task, similar)) == 1, "a gain of a millionth is not worth another fit"


@pytest.mark.parametrize("metric", ["loss", "accuracy", "balanced-accuracy", "auc"])
def test_gain_must_exceed_paired_standard_error(task, metric):
    now = replace(task, metric=metric)
    truth = torch.nn.functional.one_hot(task.held_out_labels, 2).float()
    nodes = torch.arange(len(truth))[:, None]
    before = torch.where(nodes % 3 == 0, 0.2 * truth.flip(1) + 0.4, 0.2 * truth + 0.4)
    swapped = (nodes == 0) | (nodes == 3) | (nodes == 6) | (nodes == 1) | (nodes == 2)
    one_better = torch.where(swapped, before.flip(1), before)  # three better, two worse
    much_better = torch.where(nodes % 6 == 0, 0.2 * truth + 0.4, before)
    assert improves(now, much_better, before)
    assert not improves(now, one_better, before), "one node is less than a standard error"
    assert not improves(now, before, much_better)
    assert not improves(now, before, before)


def test_loss_gain_equals_textbook_standard_error_rule(task):
    generator, truth = torch.Generator().manual_seed(0), torch.nn.functional.one_hot(task.held_out_labels, 2)
    result = set()
    for shift in (0.0, 0.01, 0.02, 0.04, 0.08):
        noise = torch.randn(2, len(truth), generator=generator).clamp(-3, 3)
        before, after = 0.5 + 0.1 * noise
        after = after + shift
        both = [torch.where(truth > 0, one[:, None], 1 - one[:, None]) for one in (after, before)]
        difference = (after.double().log() - before.double().log()).numpy()
        expected = difference.mean() > difference.std() / len(difference) ** 0.5
        assert improves(task, *both) == expected
        result.add(bool(expected))
    assert result == {False, True}


def test_average_is_weighted_mean_of_probabilities(task):
    choice = search(task, [SGCFamily(["PN"], (1, 3), (3.0,))])
    parts = [
        (weight, one.candidate, one.fit(task)) for weight, one in zip((1, 3), choice.results, strict=True)
    ]
    result = Average(parts, KnownLabels.of(task), task.prior).logits(task.prepared).softmax(-1)[:, 0]
    one, three = (part.logits(task.prepared).softmax(-1)[:, 0] for *_, part in parts)
    torch.testing.assert_close(result, (one + 3 * three) / 4, atol=1e-5, rtol=1e-4)


def test_metric_decides_selected_member(task):
    """Accuracy selects the candidate that is correct most often, even if unsure; loss selects the other."""
    truth = torch.nn.functional.one_hot(task.held_out_labels, 2).float()
    unsure, sure = 0.02 * truth + 0.49, 0.98 * truth + 0.01
    sure[:5] = torch.tensor([0.4, 0.6]).where(task.held_out_labels[:5, None] == 0, torch.tensor([0.6, 0.4]))
    for metric, expected in (("accuracy", 0), ("loss", 1)):
        now = replace(task, metric=metric)
        assert (
            select_members(now, [evaluate(now, unsure), evaluate(now, sure)]).most_common(1)[0][0] == expected
        )


def test_beats_prior_requires_two_standard_errors(task):
    """Compared with the paired differences of losses by the textbook formula."""
    truth = torch.nn.functional.one_hot(task.held_out_labels, 2).float()
    noise = torch.rand(len(truth), generator=torch.Generator().manual_seed(0))[:, None]
    for strength in (0.0, 0.02, 0.05, 0.1, 0.2, 0.5):
        probabilities = (1 - strength) * torch.cat([noise, 1 - noise], 1) + strength * truth
        losses = [
            -torch.log(p[torch.arange(len(truth)), task.held_out_labels])
            for p in (probabilities, task.prior.expand_as(truth))
        ]
        gains = (losses[1] - losses[0]).double().numpy()
        expected = gains.mean() / (gains.std(ddof=1) / len(gains) ** 0.5) > 2
        assert beats_prior(task, probabilities) == expected, strength
    assert beats_prior(task, 0.9 * truth + 0.05)
    assert not beats_prior(task, task.prior.expand_as(truth))


def test_best_per_model_excludes_most_frequent_class(task):
    truth = torch.nn.functional.one_hot(task.held_out_labels, 2).float()
    results = [
        task.evaluate(Candidate(model), (share * truth + (1 - share) / 2).log()[:, None], lambda task: None)
        for model, share in [
            ("SGC", 0.2), ("most frequent class", 0.9), ("SGC", 0.4), ("boosted trees", 0.1), ("SGC", 0.3)
        ]
    ]  # fmt: skip
    assert dict(best_per_model(results)) == {2: 1, 3: 1}
    assert dict(best_per_model(results[1:2])) == {0: 1}  # when time is up before another


def test_unreachable_nodes_share_one_prediction(task):
    """Nodes without edges and features select no candidate, and all have the same probabilities."""
    graph = task.graph
    alone = torch.arange(300) % 3 == 0
    labels = graph.labels.where(~alone | graph.train, 1)
    row, column = graph.edge_index
    kept = ~alone[row] & ~alone[column]
    edges = Graph.from_edges(torch.stack([row, column])[:, kept], num_nodes=300)
    missing = alone & ~graph.train
    features = task.features.to_dense() * ~missing[:, None]
    graph = graph.replace(adjacency=edges.adjacency, features=features, missing=missing, labels=labels)
    blank = Task(graph, PreparedGraph(graph, features, CPU), "rw")
    unreachable_nodes = unreachable(graph, graph.train)
    assert torch.equal(unreachable_nodes & alone, missing)
    choice = search(blank, [SGCFamily(["PN"], (2,), (1.0, 100.0))])
    result = choice.fit(blank).logits(PreparedGraph(graph, features, CPU)).softmax(-1)[:, 0]
    assert (result[unreachable_nodes] == result[unreachable_nodes][0]).all()
    counts, isolated = (graph.labels[nodes].bincount() for nodes in (graph.train, graph.train & alone))
    share = isolated.sum() / counts.sum()
    odds = (isolated + 2) / (share * counts + 2) * ((1 - share) * counts + 2) / (counts - isolated + 2)
    expected = result[~unreachable_nodes & ~graph.train].mean(0) * odds
    torch.testing.assert_close(result[unreachable_nodes][0], expected / expected.sum())
    held = unreachable_nodes[graph.validation]
    first, second = (one.probabilities[held] for one in choice.results)
    torch.testing.assert_close(first, second)


def test_pickle_size_is_unchanged_by_predictions(task):
    family = SGCFamily(["PN"], (2,), (10.0,))
    fitted = search(task, [family]).fit(task)
    before = len(pickle.dumps(fitted))
    fitted.logits(task.prepared)
    assert len(pickle.dumps(fitted)) == before
    again = pickle.loads(pickle.dumps(fitted))
    logits = [one.logits(task.prepared) for one in (fitted, again)]
    assert torch.equal(*logits)


def test_isolated_nodes_get_shares_of_isolated_labeled_nodes():
    """Pairs of nodes have either class; of the isolated nodes, nine in ten are of class 1."""
    pairs = torch.arange(400).view(200, 2).T
    labels = torch.cat([torch.arange(400) // 2 % 2, (torch.arange(100) % 10 > 0).long()])
    train = torch.arange(500) % 4 < 2
    missing = (torch.arange(500) >= 400) & ~train
    graph = Graph.from_edges(pairs, torch.ones(500, 1), labels=labels, missing=missing)
    predicted, default = torch.full((500, 2), 0.5), torch.tensor([0.5, 0.5])
    known, sources = labels.where(train, -1), ~graph.missing_vectors | train
    assert fallback_shares(graph.adjacency, sources, predicted, known, default)[1] > 0.75
    none_isolated = known.where(torch.arange(500) < 400, -1)
    shares = fallback_shares(graph.adjacency, sources, predicted, none_isolated, default)
    torch.testing.assert_close(shares, default)
