import json
from dataclasses import replace

import pytest
import torch
from sklearn import metrics

from pairnorm.classify import scaling as module
from pairnorm.classify.candidates import (
    KINDS,
    BoostedTrees,
    Candidate,
    LabelPropagation,
    LogisticRegression,
    MostFrequent,
    PreparedGraph,
    SGCFamily,
)
from pairnorm.classify.candidates.task import CandidateResult, SavedState
from pairnorm.classify.evaluation import METRICS
from pairnorm.classify.scaling import check_size

CPU = torch.device("cpu")


def test_rank_orders_by_score_then_loss_then_depth():
    def evaluate(score: float, loss: float, depth: int) -> tuple[float, float, int]:
        candidate = Candidate("SGC", "PN", depth, validation_loss=loss)
        return CandidateResult(
            candidate, torch.zeros(0, 2), score, lambda task: pytest.fail("not asked for")
        ).rank

    best = evaluate(0.9, 0.1, 4)
    assert best > evaluate(0.8, 0.01, 4)
    assert best > evaluate(0.9, 0.5, 4)
    assert best < evaluate(0.9, 0.05, 4)
    assert best < evaluate(0.9, 0.1, 2)
    assert best > evaluate(0.9, float("nan"), 2)
    assert Candidate("SGC", "PN", 4, validation_accuracy=0.9, validation_loss=0.1).rank == best


def test_candidate_names_state_norm_and_depth():
    assert Candidate("label propagation").name == "label propagation"
    assert Candidate("GCN", "none", 2).name == "GCN without PairNorm, depth 2"
    assert (
        Candidate("SGC", "PN", 2, imputation="fp").name == "SGC-PN over feature propagation, depth 2, scale 1"
    )


@pytest.mark.parametrize("metric", METRICS)
def test_score_equals_scikit_learn_metric(task, metric):
    """Against scikit-learn's own, of the classes it predicts."""
    labels = task.held_out_labels.numpy()
    for one in SGCFamily(["PN"], (2,), (1.0, 100.0)).fit(replace(task, metric=metric), lambda done: None):
        probabilities = one.probabilities.double().numpy()
        likeliest = probabilities.argmax(1)
        reference = {
            "loss": -metrics.log_loss(labels, probabilities / probabilities.sum(1, keepdims=True)),
            "accuracy": metrics.accuracy_score(labels, likeliest),
            "balanced-accuracy": metrics.balanced_accuracy_score(labels, likeliest),
            "macro-f1": metrics.f1_score(labels, likeliest, average="macro"),
            "average-precision": metrics.average_precision_score(labels == 0, probabilities[:, 0]),
            "auc": metrics.roc_auc_score(labels, probabilities[:, 1]),
        }[metric]
        assert (labels == 0).sum() < (labels == 1).sum()
        # Training classes have equal size: no tilt changes the predictions.
        assert one.score == pytest.approx(reference, abs=1e-5)


@pytest.mark.parametrize(
    "family",
    [LabelPropagation(), LogisticRegression((1.0, 10.0, 100.0)), MostFrequent(), BoostedTrees((1, 2), (4,))],
    ids=lambda family: family.name,
)
def test_family_contract(task, family):
    """A family reports its announced steps; candidates reach their stated scores, also when restored."""
    messages: list[str] = []
    result = list(family.fit(task, messages.append))
    assert len(messages) == family.steps
    validation = task.graph.validation
    for candidate, probabilities, _, fit in result:
        fitted = fit(task)
        logits = fitted.logits(task.prepared)
        assert logits.shape == (300, 1, 2)
        right = (logits[:, 0].argmax(1) == task.graph.labels)[validation].double().mean()
        assert candidate.validation_accuracy == pytest.approx(float(right), abs=1e-6)
        loss = torch.nn.functional.cross_entropy(logits[validation, 0], task.graph.labels[validation])
        assert candidate.validation_loss == pytest.approx(float(loss), rel=1e-3)
        torch.testing.assert_close(logits[validation, 0].softmax(-1), probabilities, atol=1e-2, rtol=0)
        settings, tensors = fitted.state()
        saved = SavedState(candidate, json.loads(json.dumps(settings)), tensors, 500, 2)
        again = KINDS[candidate.model].restore(saved)
        assert torch.equal(again.logits(task.prepared), logits)
        with pytest.raises((ValueError, RuntimeError)):
            KINDS[candidate.model].restore(saved._replace(classes=1))


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize(
    "family",
    [SGCFamily(["PN"], (2,), (30.0,), ("zero", "fp")), LogisticRegression((10.0,)), BoostedTrees((1,), (4,))],
    ids=lambda family: family.name,
)
def test_masked_features_do_not_change_held_out_predictions(task, family, dense, folded):
    """Held-out predictions do not depend on masked features."""
    selection_nodes = task.graph.train | task.graph.validation
    feature_mask = selection_nodes & (torch.arange(300) % 2 == 0)
    held_out = [selection_nodes & (torch.arange(300) % 3 == number) for number in range(3)] if folded else []
    features = task.features.to_dense()
    held = held_out[0] if folded else task.graph.validation
    others = torch.where((feature_mask & held)[:, None], 7.0, features)
    result = []
    for columns in (features, others):
        columns = columns if dense else columns.to_sparse_csr()
        prepared = PreparedGraph(task.graph, columns, CPU)
        one = replace(task, prepared=prepared, feature_mask=feature_mask, fold_masks=held_out)
        assert torch.equal(one.with_all_folds.features.to_dense(), columns.to_dense())
        assert len(one.folds) == len(held_out or [0])
        result.append([candidates.probabilities for candidates in family.fit(one, lambda done: None)])
    if folded and family.name == "boosted trees":  # whose number of rounds is chosen by all that is held out
        return
    evaluated = feature_mask[held]
    for one, other in zip(*result, strict=True):
        torch.testing.assert_close(one[: len(evaluated)][evaluated], other[: len(evaluated)][evaluated])


@pytest.mark.parametrize(
    "family",
    [
        SGCFamily(["PN"], (2,), (3.0, 30.0)),
        LabelPropagation(),
        LogisticRegression((10.0,)),
        MostFrequent(),
        BoostedTrees((1,), (4,)),
    ],
    ids=lambda family: family.name,
)
def test_folds_are_predicted_without_their_labels(task, family):
    """Each fold equals a separate task; held-out labels do not change its predictions."""
    graph = task.graph
    selection_nodes = graph.train | graph.validation
    held_out = [selection_nodes & (torch.arange(300) % 3 == number) for number in range(3)]
    folded = replace(task, fold_masks=held_out)
    assert torch.equal(folded.with_all_folds.graph.train, selection_nodes)
    labels = graph.labels.clone()
    labels[held_out[0]] = 1 - labels[held_out[0]]
    lied = replace(folded, graph=graph.replace(labels=labels))
    results, others = (list(family.fit(one, lambda done: None)) for one in (folded, lied))
    # Candidates of one depth come with the best first, which the labels decide.
    ranked = [
        sorted(evaluated, key=lambda one: (one.candidate.depth, one.candidate.scale))
        for evaluated in (results, others)
    ]
    for one, other in zip(*ranked, strict=True):
        assert (one.candidate.name, one.candidate.setting) == (other.candidate.name, other.candidate.setting)
        assert len(one.probabilities) == len(folded.held_out_labels) == int(selection_nodes.sum())
        if family.name != "boosted trees":  # whose number of rounds is chosen by all that is held out
            count = int(held_out[0].sum())
            assert torch.equal(one.probabilities[:count], other.probabilities[:count])
        parts = []
        for held in held_out:
            alone = replace(task, graph=graph.replace(train=selection_nodes & ~held, validation=held))
            logits = one.fit(alone).logits(PreparedGraph(graph, task.features, CPU))
            parts.append(logits[held, 0].softmax(-1))
        # Candidates are compared with a looser tolerance than the delivered model is solved with.
        torch.testing.assert_close(one.probabilities, torch.cat(parts), atol=5e-3, rtol=0)


def test_too_large_features_raise(small, monkeypatch, raises):
    monkeypatch.setattr(module, "MAX_DENSE_BYTES", 1000)
    with raises("too-large", value=4 * 500 * 300) as caught:
        check_size(small)
    assert caught.value.typed().endswith("Keep fewer columns, or pass --model GCN and --scaling rows.")


def test_average_of_one_has_the_name_of_its_member():
    one = Candidate("average", parts=("SGC-PN, depth 4, scale 3",), smoothed=True)
    assert one.name == "SGC-PN, depth 4, scale 3, smoothed over the graph"
    assert Candidate("average", parts=("a", "b")).name == "average of 2 models"


def test_fold_fallback_is_class_shares_of_training_labels(task):
    """The labels that a fold holds out have no part in it: here each fold holds out one class."""
    selection = task.graph.train | task.graph.validation
    masks = [selection & (task.graph.labels == number) for number in range(2)]
    folded = replace(task, fold_masks=masks)
    expected = []
    for mask in masks:
        counts = torch.bincount(task.graph.labels[selection & ~mask], minlength=2) + 1.0
        expected.append((counts / counts.sum()).expand(int(mask.sum()), -1))
    torch.testing.assert_close(folded.held_out_fallback, torch.cat(expected))
    assert folded.held_out_fallback[0].argmax() == 1, "the class that is held out is the rare one"
