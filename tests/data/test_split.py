from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pairnorm.data import Graph, load, per_class, random_split
from pairnorm.data.masks import of_development

Labels = st.lists(st.integers(-1, 3), min_size=1, max_size=60).map(torch.tensor)


@given(Labels, st.floats(0, 0.5), st.floats(0, 0.5), st.integers(0, 99))
def test_random_parts_have_their_sizes_and_cover_the_labeled_nodes_once(
    labels: torch.Tensor, train: float, validation: float, seed: int
) -> None:
    split = random_split(labels, train, validation, seed)
    known = int((labels >= 0).sum())
    assert torch.equal(torch.stack(split).sum(0), (labels >= 0).long())
    assert int(split.train.sum()) == round(train * known)
    assert int((split.train | split.validation).sum()) == round((train + validation) * known)


def test_random_is_the_papers_three_ten_eightyseven(cora: Graph) -> None:
    graph = cora.with_split("random")
    assert [int(mask.sum()) for mask in graph.split] == [81, 271, 2356]


def test_the_random_split_is_pinned() -> None:
    # "Keep the same split for all experiments": it must not move with a new numpy or another machine.
    assert random_split(torch.zeros(100, dtype=torch.int64)).train.nonzero().flatten().tolist() == [
        28,
        60,
        73,
    ]


def test_seeds_differ_and_repeat() -> None:
    labels = torch.zeros(200, dtype=torch.int64)
    assert torch.equal(random_split(labels, seed=4).train, random_split(labels, seed=4).train)
    assert not torch.equal(random_split(labels, seed=4).train, random_split(labels, seed=5).train)


@pytest.mark.parametrize("count", [1, 5, 20])
def test_per_class_draws_as_many_from_each_class(cora: Graph, count: int) -> None:
    split = per_class(cora.labels, count, seed=3)
    assert torch.bincount(cora.labels[split.train]).tolist() == [count] * 7
    assert int(split.validation.sum()) == 500
    assert torch.equal(torch.stack(split).sum(0), torch.ones(2708, dtype=torch.int64))


def test_per_class_asks_for_what_is_there(raises: Callable) -> None:
    labels = torch.tensor([0, 0, 0, 1, -1])
    with raises("too-few-labels", value=2):
        per_class(labels, 2)
    with raises("too-few-labels", value=1):
        per_class(torch.tensor([-1, -1]), 1)
    with raises("not-a-whole-number", value=0):
        per_class(labels, 0)
    with raises("not-a-whole-number", value=9):
        per_class(labels, 1, validation=9)
    with raises("out-of-range", value=(0.8, 0.4)):
        random_split(labels, 0.8, 0.4)


@pytest.mark.parametrize("seed", [0, 7])
def test_development_nodes_train_and_validate_and_all_others_test(cora: Graph, seed: int) -> None:
    split = of_development(cora.labels, 20, 1500, seed)
    assert torch.bincount(cora.labels[split.train]).tolist() == [20] * 7
    assert int((split.train | split.validation).sum()) == 1500
    assert torch.equal(torch.stack(split).sum(0), torch.ones(2708, dtype=torch.int64))
    named = cora.with_split(f"per-class-20-of-1500@{seed}", seed=99).split
    assert all(map(torch.equal, split, named))


def test_development_nodes_depend_on_the_seed_and_are_uniform() -> None:
    labels = torch.arange(60) % 2
    drawn = torch.stack(
        [~of_development(labels, 2, 30, seed).test for seed in range(400)]
    )  # a node is drawn with probability 1/2: of 400 draws, 200 ± 10
    assert drawn.sum(0).sub(200).abs().max() < 50
    trained = torch.stack([of_development(labels, 2, 30, seed).train for seed in range(400)]).sum(0)
    assert trained.sub(400 * 4 / 60).abs().max() < 25


def test_too_few_development_nodes_are_refused(raises) -> None:
    labels = torch.tensor([0, 0, 0, 1, -1])
    with raises("too-few-labels", value=2):
        of_development(labels, 2, 4)
    with raises("not-a-whole-number", value=5):
        of_development(labels, 1, 5)


def test_the_public_split_tests_on_all_the_rest() -> None:
    graph = load("cora")
    assert graph.train.nonzero().flatten().tolist() == list(range(140))
    assert graph.validation.nonzero().flatten().tolist() == list(range(140, 640))
    assert torch.equal(graph.test, ~graph.train & ~graph.validation)
