from dataclasses import replace

import pytest
import torch

from pairnorm.classify import ClassifierWarning, NodeClassifier, Scaling
from pairnorm.classify import search as module
from pairnorm.classify.candidates import Task, sgc_candidates
from pairnorm.classify.plan import Plan
from pairnorm.classify.search import search
from pairnorm.data import Graph
from pairnorm.errors import PairNormError


@pytest.fixture
def task(small: Graph) -> Task:
    return Task(small, Scaling.of(small)(small), "rw", torch.device("cpu"))


def test_the_best_of_all_is_kept_and_every_step_told(task: Task) -> None:
    plan = Plan.of(NodeClassifier(["SGC", "GCN"], [2, 3], scale=[1, 10], epochs=5, seeds=2), task.graph)
    told: list[str] = []
    tried, best, network = search(task, plan, told.append)
    assert len(told) == plan.steps
    assert len(tried) == 2 * 2 * 2 + 2 * (1 + 2)
    assert best.rank == max(candidate.rank for candidate in tried)
    assert type(network).__name__ == best.model


def test_a_spent_budget_stops_gnns_but_never_leaves_nothing(task: Task) -> None:
    plan = replace(Plan.of(NodeClassifier(["SGC", "GCN"], 2, epochs=10_000), task.graph), seconds=0.0)
    with pytest.warns(ClassifierWarning, match="budget of 0 s was spent when 2 of 2 GCNs and GATs were left"):
        tried, best, _ = search(task, plan)
    assert {candidate.model for candidate in tried} == {"SGC"}
    only_gnns = replace(Plan.of(NodeClassifier("GCN", [2, 3], epochs=5), task.graph), seconds=0.0)
    with pytest.warns(ClassifierWarning, match="3 of 4 GCNs"):
        tried, best, _ = search(task, only_gnns)
    assert [candidate.depth for candidate in tried] == [2]
    assert best.model == "GCN"


def test_nothing_to_try_is_an_error(task: Task) -> None:
    with pytest.raises(PairNormError, match="nothing to try"):
        search(task, Plan(sgc=[], sgc_depths=[1], scales=[1.0], gnns=[], seeds=[0]))


def test_many_training_nodes_choose_by_a_share_of_them_and_learn_from_all(task: Task, monkeypatch) -> None:
    plan = Plan.of(NodeClassifier(depth=(1, 4), scale=(3.0, 30.0)), task.graph)
    monkeypatch.setattr(module, "ENOUGH", 10)
    few = module._fewer(task)
    counts = torch.bincount(task.graph.labels[few.graph.train])
    assert counts.tolist() == [5, 6]  # ten, and the first of each class
    assert not (few.graph.train & ~task.graph.train).any()
    tried, best, network = search(task, plan)
    assert len(tried) == 8
    ((whole, build),) = sgc_candidates(task, best.norm, [best.depth], [best.scale], lambda done: None)
    assert whole == best
    assert torch.equal(network.weight, build().weight)


def test_the_rarest_class_keeps_a_node(task: Task, monkeypatch) -> None:
    first = int((task.graph.labels == 1).nonzero()[0])
    rare = (task.graph.labels == 0) & ~task.graph.validation & ~task.graph.test
    rare[first] = True
    graph = task.graph.replace(
        train=rare, validation=task.graph.validation & ~rare, test=task.graph.test & ~rare
    )
    monkeypatch.setattr(module, "ENOUGH", 5)
    few = module._fewer(replace(task, graph=graph)).graph
    assert few.train[first]
    assert int(few.train.sum()) <= 7
