import re
import warnings

import numpy as np
import pytest
import torch

from pairnorm.classify import ClassifierWarning, NodeClassifier, Task, complete_split, holdout
from pairnorm.classify.holdout import (
    NUM_FOLDS,
    draw_folds,
    fingerprints,
    needs_cross_fitting,
    unseen,
    warn_label_predictors,
)
from pairnorm.data import Graph
from pairnorm.data.encoder import Column, Encoder


def graph(labels: list[int], **parts: list[int]) -> Graph:
    nodes = len(labels)
    masks = {name: torch.zeros(nodes, dtype=torch.bool) for name in parts}
    for name, chosen in parts.items():
        masks[name][chosen] = True
    return Graph.from_edges([[0], [1]], torch.ones(nodes, 1), labels, **masks)


def sizes(graph: Graph, seed: int = 0) -> list[list[int]]:
    """Count the nodes of each class in train, validation and test, which must be disjoint."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ClassifierWarning)
        split = complete_split(graph, seed)
    assert int(sum(mask.int() for mask in split).max()) <= 1
    assert not any((mask & ~graph.labeled).any() for mask in split)
    return [torch.bincount(graph.labels[mask], minlength=graph.num_classes).tolist() for mask in split]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((100, 50), [[60, 30], [20, 10], [20, 10]]),
        ((1, 1), [[1, 1], [0, 0], [0, 0]]),
        ((2, 2), [[1, 1], [1, 1], [0, 0]]),
        ((3, 3), [[1, 1], [1, 1], [1, 1]]),
        ((1, 10), [[1, 6], [0, 2], [0, 2]]),
    ],
)
def test_split_is_stratified_by_class(counts, expected):
    labels = [0] * counts[0] + [1] * counts[1] + [-1] * 7
    assert sizes(graph(labels)) == expected


def test_given_test_nodes_stay_and_validation_is_drawn():
    labels = [0, 1] * 20
    assert sizes(graph(labels, test=[0, 1, 2, 3])) == [[14, 14], [4, 4], [2, 2]]


@pytest.mark.parametrize(
    ("counts", "metric", "given", "expected"),
    [
        ((270, 30), "loss", False, True),
        ((270, 30), "loss", True, False),
        ((200, 100), "loss", False, False),
        ((200, 100), "average-precision", False, True),
        ((300, 300), "auc", False, False),
        ((100, 100, 10), "loss", False, False),
        ((100, 100, 10), "auc", False, True),
    ],
)
def test_few_test_nodes_require_cross_fitting(counts, metric, given, expected):
    labels = [number for number, count in enumerate(counts) for _ in range(count)]
    whole = graph(labels)
    split = complete_split(whole)
    parts = split if given else whole.split
    assert needs_cross_fitting(whole.with_split(split), parts, metric) is expected


def test_given_parts_stay_and_missing_parts_are_drawn():
    labels = [0, 1] * 10 + [-1]
    given = graph(labels, train=[0, 1, 2, 3])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ClassifierWarning)
        split = complete_split(given)
    assert torch.equal(split.train, given.train)
    assert sizes(given) == [[2, 2], [4, 4], [4, 4]]
    assert sizes(graph(labels, train=[0, 1], validation=[2, 3])) == [[1, 1], [1, 1], [8, 8]]
    assert sizes(graph(labels, train=[0, 1], test=[2, 3])) == [[1, 1], [8, 8], [1, 1]]
    assert sizes(graph(labels, validation=[0, 1], test=[2, 3])) == [[8, 8], [1, 1], [1, 1]]


def test_validation_is_drawn_from_train_if_nothing_else_is_labeled():
    assert sizes(graph([0, 1] * 10, train=list(range(20)))) == [[8, 8], [2, 2], [0, 0]]


def test_seed_determines_split():
    labeled = graph([0, 1] * 100)
    first, again, other = (complete_split(labeled, seed).train for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_unlearnable_labels_raise(raises):
    with raises("no-labels"):
        complete_split(graph([-1, -1]))
    with raises("one-class", value="1"):
        complete_split(graph([1, 1, -1]))
    with raises("class-without-training", value="1"):
        complete_split(graph([0, 0, 1, 1], train=[0], validation=[1, 2], test=[3]))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1], "no labeled node is left to select a model"),
        ([0, 1], "no labeled node is left to test on"),
        ([0, 0, 0, 1, 1, 1], "only 2 labeled nodes are left to test on: the interval .* is wide"),
        ([0] * 20 + [1], "no test node is of class '1'"),
    ],
)
def test_few_labels_warn(labels, message):
    with pytest.warns(ClassifierWarning) as caught:
        complete_split(graph(labels))
    assert any(re.search(message, str(warning.message)) for warning in caught)


def test_fingerprints_of_names_are_stable():
    named = graph([0, 1]).replace(node_names=np.array(["c1", "7"]))
    assert fingerprints(named).tolist() == [5653263758500360259, -9038873097560174361]
    again = graph([0, 1, -1, 1]).replace(node_names=np.array([7, 8, 9, 10]))
    assert unseen(again, fingerprints(named)).tolist() == [False, True, False, True]


def test_unnamed_nodes_are_identified_by_edges():
    first, second = graph([0, 1, 0]), Graph.from_edges([[0], [2]], torch.ones(3, 1), [0, 1, 0])
    assert fingerprints(first).tolist() == fingerprints(first.replace(labels=[1, 1, 0])).tolist()
    assert not np.isin(fingerprints(second), fingerprints(first)).any()
    assert len(set(fingerprints(first).tolist())) == 3
    given = second.replace(node_names=np.arange(3))
    assert not np.isin(fingerprints(given), fingerprints(second)).any()
    assert fingerprints(given.replace(labels=[1, 1, 1])).tolist() == fingerprints(given).tolist()


def test_folds_hold_out_each_label_once_and_keep_all_classes():
    whole = graph([0] * 37 + [1] * 14 + [2] + [-1] * 5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ClassifierWarning)
        split = complete_split(whole)
    result = draw_folds(whole, split)
    learnable = split.train | split.validation
    often = torch.stack(result).sum(0)
    assert len(result) == NUM_FOLDS
    assert torch.equal(often, (learnable & (whole.labels < 2)).long())
    for held in result:
        counts = torch.bincount(whole.labels[held], minlength=3)
        assert ((counts - torch.bincount(whole.labels[learnable], minlength=3) / NUM_FOLDS).abs() <= 1).all()
        assert len(torch.unique(whole.labels[learnable & ~held])) == 3


def test_too_many_classes_for_memory_raise(raises, monkeypatch):
    many = graph([number % 8000 for number in range(16_000)] + [-1] * 8000)
    monkeypatch.setattr(holdout, "free_memory", lambda: 8 * 2**30)
    with raises("too-many-classes", "8,000 classes of 24,000 nodes take about", value=8000):
        NodeClassifier().fit(many)
    holdout.check_num_classes(graph([number % 200 for number in range(400)] + [-1] * 2000))


def test_unreachable_nodes_of_a_fold_get_its_class_shares():
    """Of six nodes of class 0 and four of class 1, the folds hold out 2 + 1, 4 + 0 and 0 + 3."""
    whole = graph([0] * 6 + [1] * 4)
    masks = [
        torch.tensor([number in held for number in range(10)])
        for held in ({0, 1, 6}, {2, 3, 4, 5}, {7, 8, 9})
    ]
    train = torch.ones(10, dtype=torch.bool)
    whole = whole.replace(train=train, validation=~train, missing=train)
    task = Task(whole, whole.features, "rw", torch.device("cpu"), fold_masks=masks)
    # One node of each class is added to the counts 4 + 3, 2 + 4 and 6 + 1 that are left.
    expected = [[5 / 9, 4 / 9]] * 3 + [[3 / 8, 5 / 8]] * 4 + [[7 / 9, 2 / 9]] * 3
    assert torch.allclose(task.held_out_fallback, torch.tensor(expected))


def test_given_validation_nodes_disable_folds():
    given = graph([0, 1] * 50, train=list(range(40)), validation=list(range(40, 60)))
    assert draw_folds(given, complete_split(given)) == []
    drawn = graph([0, 1] * 50, train=list(range(40)), test=list(range(60, 100)))
    assert len(draw_folds(drawn, complete_split(drawn))) == NUM_FOLDS
    many = graph([0, 1] * 1000)
    assert len(draw_folds(many, complete_split(many))) == NUM_FOLDS


@pytest.mark.filterwarnings("ignore:only 15 labeled nodes are left to test on")
def test_time_split_counts_labeled_nodes_and_keeps_ties_together():
    """Two labeled nodes without a time count as the first; 50 later ones without a label do not count."""
    node = torch.arange(150)
    day = torch.where(node < 100, node // 7, 1000)
    labels, missing = torch.where(node < 100, node % 2, -1), (node == 40) | (node == 90)
    options = {"missing": missing, "feature_names": ("day",), "num_nodes": 150}
    split = complete_split(Graph.from_edges([[0], [1]], day[:, None].float(), labels, **options), time="day")
    # Two times are missing: the 60th and the 80th of the 100 times are those of nodes 58 and 78.
    assert torch.equal(split.train, (day <= 58 // 7) | missing)
    assert torch.equal(split.validation, (day > 58 // 7) & (day <= 78 // 7) & ~missing)
    assert torch.equal(split.test, (day > 78 // 7) & (node < 100) & ~missing)


def test_columns_that_predict_the_label_warn():
    """A code of the label, a category that is one, and a threshold; neither noise nor a rare class counts."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, 400)
    shuffled = np.array([2, 0, 1])[labels]
    noise = random.normal(size=(400, 2))
    nearly = labels + 0.05 * random.normal(size=400)
    features = np.column_stack([labels, noise, nearly, np.eye(3)[shuffled]])
    kinds = [Column(name, "number") for name in ("code", "first", "second", "nearly")]
    columns = (*kinds, Column("status", "category", ("open", "paid", "late")))
    edges = random.integers(0, 400, (2, 400))
    leaky = Graph.from_edges(edges, features, labels, encoder=Encoder(columns))
    all_nodes = torch.ones(400, dtype=torch.bool)
    gaps = torch.zeros(400, 7, dtype=torch.bool)
    gaps[:, 0] = torch.arange(400) % 2 == 0
    rare = leaky.replace(labels=np.where(np.arange(400) < 20, 1, 0))
    for graph_, nodes, expected in (
        (leaky, all_nodes, ["code", "nearly", "status"]),
        (leaky, torch.arange(400) < 60, ["code", "nearly", "status"]),
        (leaky, torch.arange(400) < 40, []),  # too few nodes
        (rare, all_nodes, []),
        (leaky.replace(missing=gaps), all_nodes, ["code", "nearly", "status"]),
    ):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warn_label_predictors(graph_, nodes)
        assert [re.findall("column '(.*)' alone predicts", str(one.message))[0] for one in caught] == expected


@pytest.mark.parametrize(
    ("positive", "right", "named"), [(28, 1.0, True), (28, 0.96, False), (6, 1.0, False)]
)
def test_column_that_predicts_a_rare_class_warns(positive, right, named):
    """Bug: where one class had more than 90% of the labels, no column was named, as of frauds."""
    random = np.random.default_rng(0)
    labels = random.permutation(np.arange(400) < positive).astype(np.int64)
    code = np.where(random.random(400) < right, labels, 1 - labels)
    features = np.column_stack([code, random.normal(size=400)])
    graph_ = Graph.from_edges(random.integers(0, 400, (2, 400)), features, labels)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_label_predictors(graph_, torch.ones(400, dtype=torch.bool))
    assert ["column '0' alone predicts" in str(one.message) for one in caught] == [True] * named


def test_column_missing_for_one_class_warns():
    """Not one that is missing at random, or with all other columns of a node."""
    random = np.random.default_rng(0)
    labels, missing = np.arange(300) % 2, random.random((300, 3)) < 0.3
    missing[:, 0] = labels == 1
    missing[labels == 1, 2] |= random.random(150) < 0.3
    columns = tuple(Column(name, "number") for name in ("outcome", "age", "income"))
    graph_ = Graph.from_edges(
        random.integers(0, 300, (2, 300)),
        random.normal(size=(300, 3)),
        labels,
        encoder=Encoder(columns),
        missing=missing,
    )
    all_nodes = torch.ones(300, dtype=torch.bool)
    with pytest.warns(
        ClassifierWarning, match="column 'outcome' alone predicts the label of 100.0%"
    ) as caught:
        warn_label_predictors(graph_, all_nodes)
    assert len(caught) == 1
    missing[labels == 1] = True
    with warnings.catch_warnings():
        warnings.simplefilter("error", ClassifierWarning)
        warn_label_predictors(graph_.replace(missing=torch.tensor(missing)), all_nodes)


def test_numeric_label_with_many_values_warns():
    ages = graph([number % 60 for number in range(600)])
    with pytest.warns(ClassifierWarning, match="the label has 60 different numbers"):
        complete_split(ages)
