from dataclasses import replace
from typing import Any

import pytest
import torch

from pairnorm.classify import Scaling, regression, scaling
from pairnorm.classify.candidates import PreparedGraph, SGCFamily, Task
from pairnorm.classify.candidates import sgc as module
from pairnorm.classify.candidates import task as task_module
from pairnorm.classify.candidates.sgc import FittedSGC
from pairnorm.classify.candidates.task import SavedState
from pairnorm.classify.holdout import remove_nodes
from pairnorm.classify.search import search
from pairnorm.data import Graph
from pairnorm.impute import impute

CPU = torch.device("cpu")
SCALES = (1.0, 10.0)


def on(graph: Graph, adjacency: str = "rw") -> Task:
    return Task(graph, PreparedGraph(graph, Scaling.of(graph)(graph), CPU), adjacency)


def nothing(_: object) -> None:
    pass


@pytest.mark.parametrize("norm", ["none", "PN", "PN-SI", "PN-SCS"])
@pytest.mark.parametrize("adjacency", ["rw", "sym"])
def test_fitted_sgc_reaches_stated_validation_accuracy(small, norm, adjacency):
    task, messages = on(small, adjacency), []
    family = SGCFamily([norm], (1, 4), SCALES)
    result = list(family.fit(task, messages.append))
    assert len(messages) == family.steps
    candidates = {(candidate.depth, candidate.scale) for candidate, *_ in result}
    assert candidates == {(depth, scale) for depth in (1, 4) for scale in SCALES}
    for candidate, _, _, fit in result:
        fitted = fit(task)
        assert fitted.depth == candidate.depth
        predicted = fitted.logits(PreparedGraph(small, task.features, CPU))[:, 0].argmax(1)
        accuracy = float((predicted == small.labels)[small.validation].double().mean())
        assert accuracy == pytest.approx(candidate.validation_accuracy, abs=1e-6)


@pytest.mark.parametrize("imputation", ["zero", "fp", "mass"])
def test_reduced_coordinates_give_the_same_logits(blanked_cora, monkeypatch, imputation):
    task, family = on(blanked_cora), SGCFamily(["PN"], (5,), (10.0,), (imputation,))
    ((reduced, _, _, fit),) = family.fit(task, nothing)
    logits = fit(task).logits(PreparedGraph(blanked_cora, task.features, CPU))
    monkeypatch.setattr(scaling, "span", lambda features: (None, features))
    task = on(blanked_cora)
    ((full, _, _, fit),) = family.fit(task, nothing)
    full_logits = fit(task).logits(PreparedGraph(blanked_cora, task.features, CPU))
    assert reduced.validation_accuracy == pytest.approx(full.validation_accuracy, abs=0.005)
    assert (logits - full_logits).abs().max() < 0.01


def test_depth_helps_with_pair_norm_if_vectors_are_missing(blanked_cora):
    best = {}
    for norm in ("none", "PN"):
        family = SGCFamily([norm], (2, 30), (30.0, 100.0))
        result = [candidate for candidate, *_ in family.fit(on(blanked_cora), nothing)]
        for depth in (2, 30):
            best[norm, depth] = max(one.validation_accuracy for one in result if one.depth == depth)
    assert best["PN", 30] > best["PN", 2] + 0.1
    assert best["PN", 30] > best["none", 30] + 0.1


def test_many_training_nodes_select_on_subsample_and_refit_on_all(task, monkeypatch):
    monkeypatch.setattr(module, "MAX_SELECTION_ROWS", 10)
    few = task_module.limit_training_nodes(task, module.MAX_SELECTION_ROWS)
    counts = torch.bincount(task.graph.labels[few.graph.train])
    assert counts.tolist() == [5, 6]  # ten, and the first of each class
    assert not (few.graph.train & ~task.graph.train).any()
    choice = search(task, [SGCFamily(["none", "PN"], (1, 4), (3.0, 30.0))])
    best = choice.best
    assert len(choice.results) == 8
    assert best == max(choice.results, key=lambda one: one.rank).candidate
    ((_, _, fitted),) = choice.fit(task).parts
    monkeypatch.setattr(module, "MAX_SELECTION_ROWS", 4000)
    ((*_, fit),) = SGCFamily([best.norm], [best.depth], [best.scale]).fit(task, nothing)
    assert torch.equal(fitted.weight, fit(task).weight)


def test_subsample_keeps_the_rarest_class(task, monkeypatch):
    first = int((task.graph.labels == 1).nonzero()[0])
    rare = (task.graph.labels == 0) & ~task.graph.validation & ~task.graph.test
    rare[first] = True
    graph = task.graph.replace(
        train=rare, validation=task.graph.validation & ~rare, test=task.graph.test & ~rare
    )
    monkeypatch.setattr(module, "MAX_SELECTION_ROWS", 5)
    few = task_module.limit_training_nodes(replace(task, graph=graph), module.MAX_SELECTION_ROWS).graph
    assert few.train[first]
    assert int(few.train.sum()) <= 7


@pytest.mark.parametrize("norm", ["none", "PN"])
def test_large_graph_stops_depth_search_without_gain(small, monkeypatch, norm):
    task, family = on(small), SGCFamily([norm], tuple(range(1, 30)), SCALES)
    whole, messages = [one.candidate for one in family.fit(task, nothing)], []
    monkeypatch.setattr(scaling, "MANY_NODES", 1)
    short = [one.candidate for one in family.fit(task, messages.append)]
    assert len(messages) == family.steps
    for scale in SCALES:
        losses = [one.validation_loss for one in short if one.scale == scale]
        assert len(losses) < 29
        expected = [one.validation_loss for one in whole if one.scale == scale][: len(losses)]
        assert losses == pytest.approx(expected, abs=1e-5)
    depths = range(1, len(losses) + 1)
    least = [min(one.validation_loss for one in short if one.depth == depth) for depth in depths]
    assert min(least) == min(least[: -regression.PATIENCE])


def test_features_are_imputed_once(blanked_cora, monkeypatch):
    calls = []

    def counted(*arguments, method):
        calls.append(method)
        return impute(*arguments, method=method)

    monkeypatch.setattr(scaling, "impute", counted)
    task = on(blanked_cora)
    results = list(SGCFamily(["none", "PN"], (1, 2), (10.0,), ("zero", "mass")).fit(task, nothing))
    results[-1].fit(task)
    assert calls == ["mass"]
    graph = task.graph.replace(adjacency=task.graph.adjacency.clone())
    results[-1].fit(replace(task, graph=graph, prepared=PreparedGraph(graph, task.features, CPU)))
    assert calls == ["mass", "mass"]


def test_large_rank_is_restricted_to_leading_axes(task, monkeypatch):
    restricted = []

    def record(*arguments: Any) -> Any:
        restricted.append(arguments[-1] is not None)
        return solve(*arguments)

    solve = module.fold_regressions
    monkeypatch.setattr(module, "fold_regressions", record)
    result = next(iter(SGCFamily(["PN"], [2], [10.0]).fit(task, nothing)))
    limited = replace(task, time_limit=1000.0)
    for candidate, expected in ((task, False), (limited, False)):
        result.fit(candidate)
        assert restricted[-1] is expected, "a small rank is solved to convergence"
    monkeypatch.setattr(module, "MAX_EXACT_RANK", 5)
    exact = result.fit(task)
    assert restricted[-1] is False, "an exhaustive search has time"
    quick = result.fit(limited)
    assert restricted[-1] is True
    same = exact.logits(task.prepared).argmax(-1) == quick.logits(task.prepared).argmax(-1)
    assert same.float().mean() > 0.95


def test_wide_features_are_projected_on_leading_axes_unless_exhaustive(task, monkeypatch):
    for place in (scaling, module):
        monkeypatch.setattr(place, "MAX_AXES", 16)
    monkeypatch.setattr(scaling, "MAX_STATE_SIZE", 0)
    family = SGCFamily(["PN-SI"], (3,), (10.0,))
    ((exact, _, _, fit_exact),) = family.fit(replace(task, prepared=on(task.graph).prepared), nothing)
    limited = replace(on(task.graph), time_limit=60.0)
    ((candidate, _, _, fit),) = family.fit(limited, nothing)
    assert candidate.validation_accuracy == pytest.approx(exact.validation_accuracy, abs=0.05)
    fitted, prepared = fit(limited), limited.prepared
    assert fit_exact(task).axes is None
    assert fitted.axes.shape == (task.graph.num_features, 16)
    logits = fitted.logits(prepared)
    settings, tensors = fitted.state()
    saved = SavedState(candidate, settings, tensors, task.graph.num_features, task.classes)
    assert torch.equal(FittedSGC.restore(saved).logits(prepared), logits)
    # In a graph without some of the fitted nodes, statistics are measured in the same coordinates.
    others = remove_nodes(task.graph, torch.arange(task.graph.num_nodes) < 3)
    later = fitted.logits(PreparedGraph(others, Scaling.of(others)(others), CPU))
    assert (later - logits[3:]).abs().median() < 0.05
    with pytest.raises(ValueError, match="axes has the shape"):
        FittedSGC.restore(saved._replace(tensors={**tensors, "axes": fitted.axes[1:]}))


def test_every_imputation_and_norm_has_one_depth_before_any_has_two(blanked_cora):
    task = replace(on(blanked_cora), time_limit=60.0)
    family = SGCFamily(["PN", "PN-SI"], (1, 2, 3, 4, 5), (10.0,), ("zero", "mass"), exhaustive=False)
    settings = [(each.norm, each.imputation, each.depth) for each, *_ in family.fit(task, nothing)]
    assert {setting[2] for setting in settings[:4]} == {3}
    assert len({setting[:2] for setting in settings[:4]}) == 4
