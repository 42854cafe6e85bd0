import json

import pytest
import torch

from pairnorm.classify.candidates import (
    KINDS,
    Candidate,
    LabelPropagation,
    LogisticRegression,
    MostFrequent,
    Task,
)
from pairnorm.classify.candidates import base as module
from pairnorm.classify.candidates.base import Family, Saved, check_size
from pairnorm.data import Graph

CPU = torch.device("cpu")


def test_accuracy_decides_then_loss_then_depth() -> None:
    best = Candidate("SGC", "PN", 4, 1.0, 0.9, 0.1)
    assert best.rank > Candidate("SGC", "none", 4, 1.0, 0.8, 0.01).rank
    assert best.rank > Candidate("SGC", "none", 4, 1.0, 0.9, 0.5).rank
    assert Candidate("SGC", "none", 4, 1.0, 0.9, 0.05).rank > best.rank
    assert Candidate("SGC", "none", 2, 1.0, 0.9, 0.1).rank > best.rank
    assert Candidate("GCN", "none", 2, 1.0, 0.9, float("nan")).rank < best.rank


def test_what_has_no_layers_is_called_by_its_name() -> None:
    assert Candidate("label propagation").name == "label propagation"
    assert Candidate("GCN", "none", 2).name == "GCN without PairNorm, depth 2"


@pytest.mark.parametrize(
    "family", [LabelPropagation(), LogisticRegression(), MostFrequent()], ids=lambda f: f.name
)
def test_every_family_keeps_the_contract(task: Task, family: Family) -> None:
    """It ticks as often as it says; its candidates are as good as they say, also restored."""
    told: list[str] = []
    found = list(family.fit(task, told.append))
    assert len(told) == family.steps
    validation = task.graph.validation
    for candidate, build in found:
        assert build is not None
        fitted = build()
        logits = fitted.logits(task.graph, task.features, CPU)
        assert logits.shape == (300, 1, 2)
        right = (logits[:, 0].argmax(1) == task.graph.labels)[validation].double().mean()
        assert candidate.validation_accuracy == pytest.approx(float(right), abs=1e-6)
        loss = torch.nn.functional.cross_entropy(logits[validation, 0], task.graph.labels[validation])
        assert candidate.validation_loss == pytest.approx(float(loss), rel=1e-4)
        settings, tensors = fitted.state()
        saved = Saved(candidate, json.loads(json.dumps(settings)), tensors, 500, 2)
        again = KINDS[candidate.model].restore(saved)
        assert torch.equal(again.logits(task.graph, task.features, CPU), logits)
        with pytest.raises((ValueError, RuntimeError)):
            KINDS[candidate.model].restore(saved._replace(classes=1))


def test_features_too_large_to_propagate_are_refused(small: Graph, monkeypatch, raises) -> None:
    monkeypatch.setattr(module, "LARGEST_STATE", 1000)
    with raises("too-large", value=4 * 500 * 300) as caught:
        check_size(small)
    assert caught.value.typed().endswith("Keep fewer columns, or pass --model GCN and --scaling rows.")
