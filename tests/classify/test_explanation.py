"""Contributions of features and neighbors to predicted classes."""

import lightgbm
import numpy as np
import pytest
import torch

from pairnorm.base.errors import PairNormError
from pairnorm.classify import NodeClassifier, Task
from pairnorm.classify.candidates import (
    Average,
    BoostedTrees,
    LabelPropagation,
    LogisticRegression,
    PreparedGraph,
    SGCFamily,
)
from pairnorm.classify.candidates.ensemble import PropagatedLabels
from pairnorm.classify.candidates.sgc import FittedSGC, Propagation
from pairnorm.classify.candidates.task import KnownLabels
from pairnorm.classify.explanation import explain_member, explain_predictions
from pairnorm.data import Graph, csbm

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def three_classes() -> Task:
    graph = csbm(200, classes=3, seed=2).with_split("per-class-20")
    return Task(graph, PreparedGraph(graph, graph.features.to_dense(), CPU))


def test_linear_contributions_are_products_of_feature_and_weight():
    """By hand: the margin of a class is its logit minus the mean logit of the other two."""
    graph = Graph.from_edges([[0], [1]], [[2.0, 3.0], [1.0, 0.0]], [0, 1], feature_names=("age", "income"))
    weight, bias = torch.tensor([[6.0, 3.0, 0.0], [1.0, 2.0, 3.0]]), torch.tensor([1.0, 0.0, -1.0])
    fitted = FittedSGC(Propagation("zero", "rw", None), 0, weight, bias, None)
    member = explain_member(fitted, PreparedGraph(graph, graph.features, CPU), "abc")
    values, rest = member.explain(np.array([0, 1]), np.array([0, 2]))
    assert member.keys == [("node", "age"), ("node", "income")]
    # Node 0, class 0: 2 · (6 − 1.5) and 3 · (1 − 2.5). Node 1, class 2: 1 · (0 − 4.5) and 0.
    assert values.tolist() == [[9.0, -4.5], [-4.5, 0.0]]
    assert rest.tolist() == [1.5, -1.5]


@pytest.mark.parametrize(
    "family",
    [
        LogisticRegression([10.0]),
        SGCFamily(["none"], [2], [3.0]),
        SGCFamily(["PN"], [3], [10.0]),
        SGCFamily(["PN-SI"], [2], [10.0]),
        SGCFamily(["PN-SCS"], [2], [3.0]),
        BoostedTrees([1], [4]),
        BoostedTrees([2], [4], [True]),
    ],
    ids=lambda family: f"{family.name} {getattr(family, 'norms', '')}",
)
def test_contributions_sum_to_the_margin(three_classes, family):
    task = three_classes
    [result] = family.fit(task, lambda done: None)
    fitted = result.fit(task)
    nodes, classes = np.arange(0, 200, 3), np.arange(67) % 3
    member = explain_member(fitted, task.prepared, "abc")
    values, rest = member.explain(nodes, classes)
    logits = fitted.logits(task.prepared)[nodes, 0]
    others = (logits.sum(1) - logits[range(67), classes]) / 2
    margins = logits[range(67), classes] - others
    assert values.shape == (67, len(member.keys))
    assert values.sum(1) + rest == pytest.approx(margins.numpy(), abs=1e-4)


def test_tree_contributions_equal_lightgbm(small):
    """With two classes, a margin is the raw score of the second one, or minus it."""
    graph = small.replace(features=small.features.to_dense()[:, :5])
    task = Task(graph, PreparedGraph(graph, graph.features, CPU))
    [result] = BoostedTrees([1], [4]).fit(task, lambda done: None)
    trees = result.fit(task)
    nodes = np.arange(20)
    rows = trees.columns.table(task.prepared).take(torch.from_numpy(nodes)).rows()
    expected = lightgbm.Booster(model_str=trees.ensemble.text).predict(rows, pred_contrib=True)
    member = explain_member(trees, task.prepared, "ab")
    for number, sign in ((0, -1), (1, 1)):
        values, rest = member.explain(nodes, np.full(20, number))
        assert values == pytest.approx(sign * expected[:, :-1], abs=1e-5)
        assert rest == pytest.approx(sign * expected[:, -1], abs=1e-5)
    assert np.abs(expected[:, :-1]).max() > 0.1
    assert ("node", "number of neighbors") in member.keys
    assert ("labels", "neighbors labeled b") in member.keys


def test_label_propagation_is_explained_by_labeled_neighbors():
    """A star: node 0 between two nodes labeled a and one labeled b. All three send the same amount."""
    graph = Graph.from_edges([[0, 0, 0], [1, 2, 3]], np.eye(4), [-1, 0, 0, 1], node_names=list("xuvw"))
    prepared = PreparedGraph(graph, graph.features, CPU)
    known = KnownLabels.of(Task(graph.replace(train=graph.labeled), prepared))
    model = Average([(1, None, PropagatedLabels(0.5, known, 2))], known, torch.tensor([0.6, 0.4]))
    predicted = np.zeros(4, dtype=np.int64)
    explanation = explain_predictions(model, prepared, predicted, "ab", np.array([0]))
    table = explanation.table(graph.node_names, np.array(["a"] * 4))
    assert table["source"].tolist() == ["neighbor"] * 3
    assert sorted(table["name"][:2]) == ["u", "v"]
    # What u and v send of class a is the same, and more than w, at which it arrives by way of x only.
    assert table["value"][0] == pytest.approx(table["value"][1])
    assert table["value"][0] > 3 * table["value"][2] > 0
    assert table["value"].sum() < 1, "the rest is what the node sends to itself"


@pytest.fixture(scope="module")
def aged() -> Graph:
    """The class is mostly whether age is above its mean; ten other columns are noise."""
    random = np.random.default_rng(0)
    features = random.normal(size=(300, 11))
    names = ("age", *(f"noise {number}" for number in range(10)))
    labels = (features[:, 0] + random.normal(0, 0.2, 300) > 0).astype(int)
    labels[200:] = -1
    edges = random.integers(0, 300, (2, 400))
    return Graph.from_edges(
        edges, features, labels, feature_names=names, node_names=[f"n{i}" for i in range(300)]
    )


@pytest.mark.parametrize("model", ["logistic regression", "boosted trees"])
def test_decisive_feature_comes_first(aged, model, tmp_path):
    classifier = NodeClassifier(model, simple=True).fit(aged)
    table = classifier.explain(aged, top=2)
    first = table.groupby("id", sort=False).first()
    assert (first["name"] == "age").mean() > 0.85
    assert (first["value"] > 0).mean() > 0.9, "it speaks for the predicted class"
    classifier.save(tmp_path / "model")
    again = NodeClassifier.load(tmp_path / "model").explain(aged, top=2)
    assert again["name"].tolist() == table["name"].tolist()
    assert again["value"].tolist() == pytest.approx(table["value"].tolist(), abs=1e-5)


def test_members_without_additive_form_are_not_explained(small):
    classifier = NodeClassifier("GCN", depth=2, norm="none", epochs=3, seeds=1).fit(small)
    explanation = classifier.explain_nodes(small, classifier.decide(classifier.probabilities_))
    assert explanation.explained == 0
    assert len(explanation.nodes) == 0


@pytest.mark.parametrize("metric", ["loss", "balanced-accuracy"])
def test_prediction_sets_reach_the_requested_coverage(aged, metric, tmp_path):
    random = np.random.default_rng(1)
    truth = (aged.features[:, 0] + torch.from_numpy(random.normal(0, 0.7, 300)) > 0.8).long()
    graph = aged.replace(labels=truth.where(aged.labeled, -1))
    classifier = NodeClassifier("logistic regression", metric=metric).fit(graph)
    sizes = []
    for coverage in (0.5, 0.9, 0.99):
        inside = classifier.predict_set(graph, coverage)
        assert inside.shape == (300, 2)
        assert inside[np.arange(300), classifier.decide(classifier.predict_proba(graph))].all()
        new = ~graph.labeled.numpy()
        covered = inside[np.arange(300), truth.numpy()][new].mean()
        assert covered > coverage - 2 * (coverage * (1 - coverage) * (1 / 100 + 1 / 40)) ** 0.5
        sizes.append(inside.sum())
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]
    classifier.save(tmp_path / "model")
    assert np.array_equal(
        NodeClassifier.load(tmp_path / "model").predict_set(graph, 0.9), classifier.predict_set(graph)
    )


@pytest.mark.filterwarnings("ignore:no labeled node is left")
def test_prediction_sets_need_held_out_nodes(aged):
    labels = torch.full_like(aged.labels, -1)
    labels[:2] = torch.tensor([0, 1])
    classifier = NodeClassifier("logistic regression").fit(aged.replace(labels=labels))
    with pytest.raises(PairNormError, match="need held-out nodes"):
        classifier.predict_set(aged)
    with pytest.raises(PairNormError, match=r"coverage is 1\.5"):
        classifier.predict_set(aged, 1.5)


def test_label_propagation_has_no_features_to_explain(three_classes):
    result, *_ = LabelPropagation().fit(three_classes, lambda done: None)
    member = explain_member(result.fit(three_classes), three_classes.prepared, "abc")
    assert member.keys == []
    assert member.sent.shape == (200, 3)
