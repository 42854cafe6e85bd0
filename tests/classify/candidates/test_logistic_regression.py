from dataclasses import replace

import pytest
import torch

from pairnorm.classify.candidates import LogisticRegression, PreparedGraph, SGCFamily, Task, sgc
from pairnorm.classify.search import search
from pairnorm.data import Graph

CPU = torch.device("cpu")


def test_logistic_regression_ignores_edges(small, task):
    alone = Graph.from_edges([[0], [1]], small.features, small.labels, **small.split._asdict())
    tasks = [Task(graph, PreparedGraph(graph, task.features, CPU), "rw") for graph in (small, alone)]
    fitted, other = (search(one, [LogisticRegression()]).fit(one) for one in tasks)
    assert torch.equal(
        fitted.logits(PreparedGraph(small, task.features, CPU)),
        other.logits(PreparedGraph(alone, task.features, CPU)),
    )


def test_validation_loss_selects_the_scale(task):
    choice = search(task, [LogisticRegression((1.0, 10.0, 100.0))])
    candidates, best = choice.results, choice.best
    assert {one.candidate.setting for one in candidates} == {"scale 1", "scale 10", "scale 100"}
    assert best.validation_loss == min(one.candidate.validation_loss for one in candidates)
    assert best.validation_accuracy > 0.7


@pytest.mark.parametrize("family", [LogisticRegression(), SGCFamily(["none"], [2])])
def test_scales_beyond_the_time_limit_are_skipped(task, monkeypatch, family):
    """Many classes and few columns: the last scales can take a minute each."""
    monkeypatch.setattr("pairnorm.classify.candidates.sgc.MIN_SWEEP_SECONDS", 0.0)
    monkeypatch.setattr(Task, "allows", lambda self, share, seconds=0.0: seconds == 0)
    assert len(list(family.fit(task, lambda step: None))) == 1
    monkeypatch.undo()
    assert len(list(family.fit(task, lambda step: None))) > 1


@pytest.mark.parametrize("family", [LogisticRegression(), SGCFamily(["none"], [2])])
def test_sweep_leaves_time_for_other_families(task, monkeypatch, family):
    """Bug: with 56 classes and two columns, the first sweep took all of the search: trees had no turn."""
    clock, solve = [task.started], sgc.fold_regressions

    def slow(*args):
        for number, solution in enumerate(solve(*args)):
            clock[0] += 2.0**number  # 1, 2, 4, 8, ... seconds
            yield solution

    monkeypatch.setattr(sgc, "fold_regressions", slow)
    monkeypatch.setattr(sgc.time, "perf_counter", lambda: clock[0])
    results = list(family.fit(replace(task, time_limit=64.0), lambda step: None))
    assert len(results) == 3  # 1 + 2 + 4 seconds of at most 8
