"""Nodes to predict have fewer features than labeled nodes: stated figures must hold for the former."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pairnorm.classify import NodeClassifier
from pairnorm.classify import search_space as search_module
from pairnorm.classify.findings import UNMASKED, Findings, verdict
from pairnorm.classify.holdout import mask_features
from pairnorm.classify.predictions import fallback_shares
from pairnorm.data import Graph

NODES, LABELED, CLASSES, COLUMNS = 1500, 433, 3, 6
CHEAP = {
    "model": ["SGC", "label propagation", "logistic regression"],
    "depth": (1, 3),
    "scale": (3.0, 30.0),
    "norm": "PN",
    "impute": "mass",
    # Every candidate is evaluated on a busy machine too.
    "time_limit": 3600,
}


def situation(
    seed: int, *, single_columns: bool = False, strong: bool = False
) -> tuple[Graph, NDArray[np.int64]]:
    """Draw a graph of 1,500 nodes; 433 are labeled, with all features, and most others have few or none.

    Args:
        seed: of the draw.
        single_columns: unlabeled nodes lack five of six columns, and one is never empty. Otherwise 80% of
            them lack all features.
        strong: features separate the classes better than edges do.
    """
    random = np.random.default_rng(seed)
    classes = random.integers(0, CLASSES, NODES)
    features = random.normal(size=(NODES, COLUMNS))
    features[np.arange(NODES), classes] += 4.0 if strong else 2.0
    sources = random.integers(0, NODES, 2 * NODES)
    members = [np.flatnonzero(classes == number) for number in range(CLASSES)]
    within = np.array([random.choice(members[number]) for number in classes[sources]])
    homophilous = random.random(2 * NODES) < (0.45 if strong else 0.7)
    targets = np.where(homophilous, within, random.integers(0, NODES, 2 * NODES))
    labeled = np.arange(NODES) < LABELED
    missing = np.zeros((NODES, COLUMNS), dtype=bool)
    missing[:, 1:] = True
    missing = missing if single_columns else random.random(NODES) < 0.8
    missing[labeled] = False
    graph = Graph.from_edges(np.stack([sources, targets]), features, np.where(labeled, classes, -1))
    return mask_features(graph, torch.from_numpy(missing)), classes


@pytest.mark.parametrize(
    "setting",
    [{}, {"single_columns": True}, {"strong": True}, {"strong": True, "single_columns": True}],
    ids=["vectors", "columns", "strong-vectors", "strong-columns"],
)
def test_stated_accuracy_and_coverage_hold_for_nodes_without_features(monkeypatch, setting):
    monkeypatch.setattr(search_module, "BASELINE_EPOCHS", 30)
    graph, classes = situation(0, **setting)
    classifier = NodeClassifier(**CHEAP).fit(graph)
    findings = Findings.of(classifier, graph)
    unlabeled = np.arange(NODES) >= LABELED
    right = (findings.delivered == classes)[unlabeled].mean()
    assert classifier.held_out_ is not None
    low, high = classifier.held_out_.interval
    assert low <= right <= high, "the stated accuracy is true for the nodes to predict"
    assert findings.checks[UNMASKED].accuracy > classifier.held_out_.accuracy, "both are stated"
    accuracy = {one.name: (one.predicted == classes)[unlabeled].mean() for one in findings.baselines}
    if "A baseline does better" in verdict(findings):
        assert max(accuracy.values()) > right, "the verdict must not recommend a worse model"
    if "The model beats the baselines" in verdict(findings):
        assert max(accuracy.values()) < right
    rank = (np.argsort(-classifier.probabilities_, 1) == classes[:, None]).argmax(1)
    for sets in findings.prediction_sets():
        assert (sets.sizes >= 1).all()
        if sets.rate in (0.05, 0.1):
            covered = (rank < sets.sizes)[unlabeled].mean()
            # The threshold of m held-out nodes varies by sqrt(rate (1 - rate) / m).
            error = np.sqrt(sets.rate * (1 - sets.rate) / classifier.held_out_.count)
            assert covered >= 1 - sets.rate - 2 * error
            assert sets.coverage["all held-out nodes"].mean == pytest.approx(covered, abs=3 * error)


def test_unreachable_nodes_are_predicted_from_training_labels_only():
    """Labels of validation nodes change no probability of a node that neither feature nor label reaches."""
    graph, _ = situation(2)
    lonely = torch.arange(NODES) >= NODES - 50
    edges = graph.edge_index[:, ~lonely[graph.edge_index].any(0)]
    labels = graph.labels.clone()
    labels[-50:-25] = 0  # validation nodes that nothing reaches
    train = torch.arange(NODES) < 300
    test = (torch.arange(NODES) >= 380) & graph.labeled
    validation = ((torch.arange(NODES) >= 300) & graph.labeled & ~test) | (labels != graph.labels)
    parts = {"missing": graph.missing | lonely, "train": train, "validation": validation, "test": test}
    graph_with_unreachable = Graph.from_edges(edges, graph.features * ~lonely[:, None], labels, **parts)
    result = NodeClassifier(**CHEAP, refit=False).fit(graph_with_unreachable)
    model, task = result.model_, result.task_
    known = task.graph.labels.where(task.graph.train, -1)
    sources, predicted = ~task.graph.missing_vectors | (known >= 0), model.logits(task.prepared)[:, 0].exp()
    shares = fallback_shares(task.graph.adjacency, sources, predicted, known, torch.ones(CLASSES))
    torch.testing.assert_close(model.fallback_probabilities, shares, rtol=1e-4, atol=1e-5)
    nodes = result.evaluation_probabilities_[-50:]
    assert (nodes == nodes[0]).all()


@pytest.mark.parametrize("single_columns", [False, True])
def test_masked_held_out_features_change_no_result(single_columns):
    """Neither the scaling nor the selection nor any score depends on masked features."""
    graph, _ = situation(1, single_columns=single_columns)
    first = NodeClassifier(**CHEAP, refit=False).fit(graph)
    masked = first.task_.graph.missing & ~graph.missing
    nodes = masked.any(1) if single_columns else masked
    assert (nodes & first.split_.test).any()
    cells = masked if single_columns else masked[:, None]
    other = graph.replace(features=torch.where(cells, graph.features + 100, graph.features))
    second = NodeClassifier(**CHEAP, refit=False).fit(other)
    assert second.best_ == first.best_
    assert second.temperature_ == first.temperature_
    np.testing.assert_array_equal(first.evaluation_probabilities_, second.evaluation_probabilities_)
