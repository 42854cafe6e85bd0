from dataclasses import replace
from math import inf

import numpy as np
import pytest
import torch

from pairnorm.classify import ClassifierWarning, NodeClassifier, Scaling
from pairnorm.classify import search as module
from pairnorm.classify.candidates import Task, sgc_candidates
from pairnorm.classify.diagnosis import suggest_depth
from pairnorm.classify.search import SGC_DEPTHS, Plan, parse_budget, search
from pairnorm.data import Graph
from pairnorm.errors import PairNormError


def test_by_default_sgc_at_all_depths_with_and_without_pair_norm(small: Graph) -> None:
    plan = Plan.of(NodeClassifier(), small)
    assert plan.sgc == ["none", "PN"]
    assert plan.sgc_depths == SGC_DEPTHS
    assert SGC_DEPTHS[:11] == (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 15)
    assert plan.gnns == []
    assert plan.seconds == inf
    assert plan.steps == 2 * len(SGC_DEPTHS)


def test_a_budget_brings_in_gcn_and_gat_shallow_ones_first(small: Graph) -> None:
    plan = Plan.of(NodeClassifier(budget="2m", seeds=3, random_state=7), small)
    assert {spec.model for spec in plan.gnns} == {"GCN", "GAT"}
    assert {spec.norm for spec in plan.gnns} == {"none", "PN-SI"}
    assert [spec.depth for spec in plan.gnns] == sorted(spec.depth for spec in plan.gnns)
    assert list(plan.seeds) == [7, 8, 9]
    assert plan.seconds == 120


def test_what_is_asked_for_is_planned(small: Graph) -> None:
    wanted = NodeClassifier("GCN", [4, 2], "PN", 3.0, hidden=8, dropout=0.1, epochs=11, adjacency="sym")
    plan = Plan.of(wanted, small)
    assert plan.sgc == []
    shown = [(spec.model, spec.depth, spec.norm, spec.scale) for spec in plan.gnns]
    assert shown == [("GCN", 2, "PN", 3.0), ("GCN", 4, "PN", 3.0)]
    spec = plan.gnns[0]
    assert (spec.hidden, spec.dropout, spec.epochs, spec.adjacency) == (8, 0.1, 11, "sym")


@pytest.mark.parametrize(
    ("given", "depths"),
    [
        (np.int64(2), [2]),
        (np.array(2), [2]),
        (range(1, 4), [1, 2, 3]),
        (np.arange(1, 4), [1, 2, 3]),
        ((4, np.int32(2)), [4, 2]),
    ],
)
def test_numbers_may_be_numpys_and_in_anything_that_holds_them(
    small: Graph, given: object, depths: list[int]
) -> None:
    plan = Plan.of(NodeClassifier(depth=given, norm=np.array(["PN"]), scale=np.float32(0.5)), small)
    assert (plan.sgc_depths, plan.sgc, plan.scales) == (depths, ["PN"], [0.5])
    assert {type(depth) for depth in plan.sgc_depths} == {int}


def test_without_validation_one_model_is_set_by_rule(small: Graph) -> None:
    graph = small.replace(validation=torch.zeros_like(small.validation))
    plan = Plan.of(NodeClassifier(), graph)
    assert (plan.sgc, plan.sgc_depths, plan.scales) == (["PN"], [suggest_depth(graph).depth], [30.0])
    assert Plan.of(NodeClassifier(depth=[3, 5], scale=2), graph).sgc_depths == [3]
    with pytest.raises(PairNormError, match="model 'GCN' is chosen by validation"):
        Plan.of(NodeClassifier("GCN"), graph)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"model": "GNC"}, "model is 'GNC'; expected one of 'auto', 'SGC', 'GCN', 'GAT'"),
        ({"norm": ["PN", "PNSI"]}, "norm is 'PNSI'"),
        ({"depth": 0}, "depth is 0; expected a whole number"),
        ({"depth": [2, "four"]}, "depth is 'four'"),
        ({"scale": -1.0}, "scale is -1.0; expected a number above 0"),
        ({"scale": "large"}, "scale is 'large'"),
        ({"scale": None}, "scale is None"),
        ({"seeds": 0}, "seeds is 0"),
        ({"random_state": None}, "random_state is None; expected a whole number, 0 or more"),
        ({"budget": "soon"}, "budget is 'soon'; expected a time such as"),
        ({"model": "GCN", "epochs": 0}, "epochs is 0"),
    ],
)
def test_what_cannot_be_planned_is_named(small: Graph, parameters: dict[str, object], message: str) -> None:
    with pytest.raises(PairNormError, match=message):
        Plan.of(NodeClassifier(**parameters), small)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("5m", 300), ("1.5 h", 5400), (12, 12), ("0.5", 0.5), (None, None)]
)
def test_times_are_read(text: object, seconds: float | None) -> None:
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["0", "-5", "5 d", "m", ""])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(PairNormError, match="budget is"):
        parse_budget(text)


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
