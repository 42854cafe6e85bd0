import re
import warnings

import numpy as np
import pytest
import torch

from pairnorm.classify import ClassifierWarning, complete_split
from pairnorm.classify.holdout import ENOUGH, FOLDS, fingerprints, folds, unseen, without_features
from pairnorm.data import Graph


def graph(labels: list[int], **parts: list[int]) -> Graph:
    nodes = len(labels)
    masks = {name: torch.zeros(nodes, dtype=torch.bool) for name in parts}
    for name, chosen in parts.items():
        masks[name][chosen] = True
    return Graph.from_edges([[0], [1]], torch.ones(nodes, 1), labels, **masks)


def sizes(graph: Graph, seed: int = 0) -> list[list[int]]:
    """How many nodes of each class are in train, validation and test; nobody is in two of them."""
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
def test_every_class_is_dealt_out_on_its_own(counts: tuple[int, int], expected: list[list[int]]) -> None:
    labels = [0] * counts[0] + [1] * counts[1] + [-1] * 7
    assert sizes(graph(labels)) == expected


def test_a_users_parts_stay_and_lacking_ones_come_from_the_other_labeled_nodes() -> None:
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


def test_validation_is_taken_from_train_where_nothing_else_is_labeled() -> None:
    assert sizes(graph([0, 1] * 10, train=list(range(20)))) == [[8, 8], [2, 2], [0, 0]]


def test_the_seed_decides() -> None:
    labeled = graph([0, 1] * 100)
    first, again, other = (complete_split(labeled, seed).train for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_what_cannot_be_learned_from_is_refused(raises) -> None:
    with raises("no-labels"):
        complete_split(graph([-1, -1]))
    with raises("one-class", value="1"):
        complete_split(graph([1, 1, -1]))
    with raises("class-without-training", value="1"):
        complete_split(graph([0, 0, 1, 1], train=[0], validation=[1, 2], test=[3]))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1], "no labeled node is left to choose a model by"),
        ([0, 1], "no labeled node is left to test on"),
        ([0, 0, 0, 1, 1, 1], "only 2 labeled nodes are left to test on: the interval .* is wide"),
        ([0] * 20 + [1], "no test node is of class '1'"),
    ],
)
def test_few_labels_are_a_warning(labels: list[int], message: str) -> None:
    with pytest.warns(ClassifierWarning) as caught:
        complete_split(graph(labels))
    assert any(re.search(message, str(warning.message)) for warning in caught)


def test_nodes_are_known_again_by_name_on_every_machine() -> None:
    assert fingerprints(np.array(["c1", "7"])).tolist() == [5653263758500360259, -9038873097560174361]
    again = graph([0, 1, -1, 1]).replace(node_names=np.array([7, 8, 9, 10]))
    assert unseen(again, fingerprints(np.array(["c1", "7"]))).tolist() == [False, True, False, True]


def test_folds_hold_every_label_out_once_and_leave_none_without_its_class() -> None:
    whole = graph([0] * 37 + [1] * 14 + [2] + [-1] * 5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ClassifierWarning)
        split = complete_split(whole)
    found = folds(whole, split)
    learnable = split.train | split.validation
    often = torch.stack(found).sum(0)
    assert len(found) == FOLDS
    assert torch.equal(often, (learnable & (whole.labels < 2)).long())
    for held in found:
        counts = torch.bincount(whole.labels[held], minlength=3)
        assert ((counts - torch.bincount(whole.labels[learnable], minlength=3) / FOLDS).abs() <= 1).all()
        assert len(torch.unique(whole.labels[learnable & ~held])) == 3


def test_who_gives_validation_nodes_or_enough_labels_gets_no_folds() -> None:
    given = graph([0, 1] * 50, train=list(range(40)), validation=list(range(40, 60)))
    assert folds(given, complete_split(given)) == []
    drawn = graph([0, 1] * 50, train=list(range(40)), test=list(range(60, 100)))
    assert len(folds(drawn, complete_split(drawn))) == FOLDS
    many = graph([0, 1] * (5 * ENOUGH // 2))
    assert folds(many, complete_split(many)) == []


def test_judges_miss_features_as_often_as_those_to_predict() -> None:
    """Here one in ten of the labeled nodes, and four in five of the others; the same seed hides the same."""
    nobody = torch.zeros(200, dtype=torch.bool)
    labeled = torch.arange(200) < 100
    missing = torch.where(labeled, torch.arange(200) % 10 == 0, torch.arange(200) % 5 != 0)
    whole = graph([0, 1] * 50 + [-1] * 100).replace(missing=missing)
    judges = labeled & (torch.arange(200) % 2 == 0)
    hidden = without_features(whole, judges)
    assert hidden is not None
    assert not (hidden & ~judges).any()
    assert abs(float((missing | hidden)[judges].float().mean()) - 0.8) < 0.02
    assert torch.equal(hidden, without_features(whole, judges))
    assert without_features(whole.replace(missing=nobody), judges) is None
    assert without_features(whole.replace(missing=~missing), judges) is None  # who has more cannot be helped
    tested = whole.replace(labels=torch.arange(200) % 2, test=~labeled)
    assert torch.equal(without_features(tested, judges), hidden)
