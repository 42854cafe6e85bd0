import itertools
import warnings
from copy import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

import pairnorm.classify.findings as findings_module
from pairnorm.classify import Candidate, NodeClassifier, Scores, Task
from pairnorm.classify import search_space as search_module
from pairnorm.classify.candidates.ensemble import Average
from pairnorm.classify.candidates.sgc import FittedSGC
from pairnorm.classify.evaluation import Standardized
from pairnorm.classify.findings import (
    CROSS_FITTED,
    LATER,
    STEPS,
    UNMASKED,
    Baseline,
    Findings,
    _target_remarks,
    headline,
    verdict,
)
from pairnorm.classify.holdout import MAX_HOPS, remove_nodes
from pairnorm.classify.search import Choice
from pairnorm.classify.search_space import baselines
from pairnorm.data import Graph, csbm
from pairnorm.report.document import render_markdown
from pairnorm.report.fit_report import fit_page, write_document


@pytest.fixture(scope="module")
def findings(small: Graph) -> Findings:
    missing = torch.arange(small.num_nodes) % 3 == 0
    graph = small.replace(features=small.features.to_dense() * ~missing[:, None], missing=missing)
    messages: list[str] = []
    result = Findings.of(NodeClassifier(depth=(1, 4), time_limit=0).fit(graph), graph, messages.append)
    assert len(messages) == STEPS
    return result


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that do not check the accuracy of baselines."""
    monkeypatch.setattr(search_module, "BASELINE_EPOCHS", 5)


def test_groups_partition_the_held_out_nodes(findings):
    groups = findings.groups()
    assert list(groups) == ["all held-out nodes", "with features", "without features", LATER]
    all_nodes, *parts, _ = (scores.confusion for scores in groups.values())
    assert np.array_equal(sum(parts), all_nodes)
    assert groups["all held-out nodes"].count == 174
    test = findings.test & findings.graph.missing_vectors.numpy()
    assert groups["without features"].count == test.sum()


def test_complete_features_give_one_group(findings):
    classifier = copy(findings.classifier)
    complete = findings.graph.replace(missing=torch.zeros_like(findings.graph.train))
    classifier.task_ = replace(classifier.task_, graph=complete)
    assert list(replace(findings, classifier=classifier).groups()) == ["all held-out nodes", LATER]


def test_groups_of_nodes_with_some_features_are_not_called_without_features(findings):
    """Bug: nodes without most features were listed as nodes without features."""
    classifier, graph = copy(findings.classifier), findings.classifier.task_.graph
    entries = graph.missing[:, None].repeat(1, graph.num_features)
    entries[:, 0] = False
    classifier.task_ = replace(classifier.task_, graph=graph.replace(missing=entries))
    names = list(replace(findings, classifier=classifier).groups())
    assert names == ["all held-out nodes", "with most features", "without most features", LATER]


def test_weighted_accuracy_names_the_share_of_nodes_that_it_describes(findings):
    """Bug: the accuracy over 25% of the unlabeled nodes was stated as that of all."""
    result = replace(findings)
    result.__dict__["standardized"] = Standardized(0.5, (0.4, 0.6), 0.75)
    remarks = " ".join(_target_remarks(result))
    assert "50.0% of the 25% of them that held-out nodes resemble are right" in remarks
    result.__dict__["standardized"] = Standardized(0.5, (0.4, 0.6), 0.0)
    assert "50.0% are right" in " ".join(_target_remarks(result))


@pytest.mark.filterwarnings("ignore:column .* alone predicts")
@pytest.mark.usefixtures("brief")
def test_masked_and_unmasked_accuracies_are_stated(small):
    """The same nodes have labels and features, and the features determine the class."""
    known = torch.arange(300) % 3 > 0
    no_nodes = torch.zeros_like(known)
    features = 5.0 * torch.nn.functional.one_hot(small.labels, 2) * known[:, None]
    parts = {"labels": small.labels.where(known, -1), "missing": ~known, "features": features.float()}
    graph = small.replace(**parts, train=no_nodes, validation=no_nodes, test=no_nodes)
    classifier = NodeClassifier("logistic regression", scale=10.0, refit=False).fit(graph)
    assert classifier.held_out_ is not None
    assert classifier.held_out_.accuracy < 0.7
    assert classifier.best_.validation_accuracy < 0.7
    assert classifier.calibration_.incomplete.all()
    masked = classifier.scaling_.fitted_to(classifier.task_.graph)
    assert torch.equal(classifier.scaling_.mean, masked.mean)
    result = Findings.of(classifier, graph)
    scores = result.checks[UNMASKED]
    assert scores.count == classifier.held_out_.count
    assert scores.accuracy > 0.99
    assert "100% of whose features are missing; with all features they have, 100.0% are right" in (
        verdict(result)
    )
    wrong = classifier.predict(graph)[~known.numpy()] == small.labels[~known].numpy()
    low, high = classifier.held_out_.interval
    assert low <= wrong.mean() <= high


@pytest.mark.usefixtures("brief")
def test_later_nodes_are_predicted_without_retraining(small, monkeypatch):
    """Features, labels and edges of later nodes do not change the fitted model."""
    classifier = NodeClassifier("SGC", depth=4, norm="PN", scale=10.0, refit=False).fit(small)
    fit, fitted = Choice.fit, []
    monkeypatch.setattr(Choice, "fit", lambda *given: fitted.append(given[1].graph.num_nodes) or fit(*given))
    scores = Findings.of(classifier, small).checks[LATER]
    assert scores.count == 60  # a fifth of all nodes, of 174 held out
    assert 240 in fitted
    assert 0.6 < scores.accuracy <= 1
    kept = remove_nodes(small, small.test)
    dense = small.adjacency.to_dense()
    assert torch.equal(kept.adjacency.to_dense(), dense[~small.test][:, ~small.test])
    assert torch.equal(kept.features.to_dense(), small.features.to_dense()[~small.test])
    assert torch.equal(kept.labels, small.labels[~small.test])


@pytest.mark.usefixtures("brief")
def test_later_features_do_not_affect_scaling(small, monkeypatch):
    learned, fit = [], Choice.fit

    def record(choice: Choice, task: Task) -> Average:
        learned.append(fit(choice, task).parts[0][2].weight)
        return fit(choice, task)

    monkeypatch.setattr("pairnorm.classify.findings.MAX_LATER_SHARE", 1.0)
    for factor in (1, 1000):
        features = small.features.to_dense() * torch.where(small.test, factor, 1)[:, None]
        graph = small.replace(features=features)
        settings = {"scale": 10.0, "scaling": "columns", "refit": False}
        classifier = NodeClassifier("logistic regression", **settings).fit(graph)
        with monkeypatch.context() as context:
            context.setattr(Choice, "fit", record)
            Findings.of(classifier, graph, compare=False)
    assert torch.equal(*learned)


@pytest.mark.usefixtures("brief")
def test_metric_is_stated_without_baselines(small):
    classifier = NodeClassifier("logistic regression", metric="average-precision", refit=False).fit(small)
    stated = headline(Findings.of(classifier, small, compare=False))
    assert stated.startswith("**Not compared with baselines.** The model")
    assert "reaches an average precision of" in stated
    assert "95% interval" in stated


@pytest.mark.usefixtures("brief")
def test_selected_directions_are_reported(flow, tmp_path):
    classifier = NodeClassifier("boosted trees", refit=False).fit(flow)
    assert classifier.held_out_ is not None
    assert classifier.held_out_.accuracy > 0.85
    findings = Findings.of(classifier, flow)
    assert findings.checks[LATER].accuracy > 0.75  # directions were known of the nodes before, and after
    write_document(fit_page(findings), tmp_path)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "in- from out-neighbors were evaluated, and selected; all other models take edges as" in text
    plain = NodeClassifier("boosted trees", directed="no", refit=False).fit(flow)
    assert plain.held_out_ is not None
    assert plain.held_out_.accuracy < 0.65


def test_remove_nodes_keeps_directions(flow):
    before = remove_nodes(flow, flow.test)
    assert flow.directed is not None
    assert before.directed is not None
    kept = (~flow.test).nonzero().squeeze(1)
    along = torch.zeros(600, 600, dtype=torch.bool)
    along[tuple(flow.edge_index[:, flow.directed])] = True
    result = torch.zeros(len(kept), len(kept), dtype=torch.bool)
    result[tuple(before.edge_index[:, before.directed])] = True
    assert torch.equal(result, along[kept][:, kept])


@pytest.mark.filterwarnings("ignore:column .* alone predicts")
@pytest.mark.usefixtures("brief")
def test_time_column_determines_held_out_nodes(raises, tmp_path):
    """Classes drift: the sign of the informative feature is reversed late."""
    generator = torch.Generator().manual_seed(0)
    labels, day = torch.arange(400) % 2, torch.arange(400.0)
    sign = (2.0 * labels - 1) * torch.where(day < 320, 1, -1)
    features = torch.stack([day, sign + 0.3 * torch.randn(400, generator=generator)], 1)
    edges = torch.randint(0, 400, (2, 50), generator=generator)
    graph = Graph.from_edges(edges, features, labels, feature_names=("day", "sign"), num_nodes=400)
    classifier = NodeClassifier("logistic regression", time="day").fit(graph)
    split = classifier.split_
    assert [int(mask.sum()) for mask in split] == [240, 80, 80]
    assert day[split.train].max() < day[split.validation].min()
    assert day[split.validation].max() < day[split.test].min()
    result = Findings.of(classifier, graph)
    write_document(fit_page(result), tmp_path)
    assert "| tested on | the latest nodes by day |" in (tmp_path / "report.md").read_text(encoding="utf-8")
    with raises("unknown-choice", value="week"):
        NodeClassifier(time="week").fit(graph)
    with raises("conflicting-options"):
        NodeClassifier(time="day").fit(graph.with_split("per-class-20"))
    words = graph.replace(feature_names=("day=1", "day=2"))
    with raises("not-a-time", "time is 'day', a column that is read as categories", value="day"):
        NodeClassifier(time="day").fit(words)
    with raises("not-a-time", value="day"):
        NodeClassifier(time="day").fit(graph.replace(feature_names=None))


def test_comparison_starts_with_the_model(findings):
    baselines = findings.comparison()
    assert next(iter(baselines)) == findings.classifier.best_.name
    assert baselines[findings.classifier.best_.name].accuracy == findings.classifier.held_out_.accuracy
    assert len(baselines) == 5


def guess(findings: Findings, name: str, predicted: np.ndarray) -> Baseline:
    probabilities = np.eye(findings.graph.num_classes, dtype=np.float32)[predicted]
    return Baseline(name, Candidate(name), 1, predicted, probabilities)


def baseline(findings: Findings, wrong: float) -> Findings:
    """The findings with one baseline, which is wrong on a share of the test nodes."""
    labels = findings.graph.labels.numpy().copy()
    test_nodes = np.flatnonzero(findings.test)
    labels[test_nodes[: round(wrong * len(test_nodes))]] ^= 1
    return replace(findings, baselines=[guess(findings, "a guess", labels)])


@pytest.mark.parametrize(
    ("wrong", "opening"), [(0.9, "**The model beats the baselines.**"), (0.0, "**A baseline does better.**")]
)
def test_verdict_follows_the_interval(findings, wrong, opening):
    text = verdict(baseline(findings, wrong))
    assert text.startswith(opening)
    assert "a guess" in text
    assert f"{100 * findings.classifier.held_out_.accuracy:.1f}%" in text


def test_verdict_of_equal_models_is_a_draw(findings):
    same = replace(findings, baselines=[guess(findings, "a twin", findings.predicted)])
    assert verdict(same).startswith("**A twin does as well.** Its predictions are the same.")
    twin, test_nodes = findings.predicted.copy(), np.flatnonzero(findings.test)
    right = (findings.predicted == findings.graph.labels.numpy())[test_nodes]
    twin[[test_nodes[right][0], test_nodes[~right][0]]] ^= 1
    other = replace(findings, baselines=[guess(findings, "a twin", twin)])
    assert verdict(other).startswith("**No significant difference from a baseline.**")
    assert "The difference is +0.0 points" in verdict(other)
    twin[test_nodes[right][1]] ^= 1
    ahead = verdict(replace(findings, baselines=[guess(findings, "a twin", twin)]))
    assert ahead.startswith("**No significant difference from a baseline.**")
    assert "The difference is +0.6 points" in ahead


def test_target_strata_ignore_target_labels(findings, monkeypatch):
    strata: list[np.ndarray] = []
    monkeypatch.setattr("pairnorm.classify.findings.standardize", lambda *given: strata.extend(given[1:]))
    assert replace(findings).standardized is None  # the target are the test nodes, as all nodes are labeled
    assert (strata[1] // (MAX_HOPS + 2) > 0).all()


def test_large_insignificant_loss_is_reported(findings):
    """Of 40 nodes the model is right on the first 20, the baseline on the last 24."""
    nodes = findings.graph.test.nonzero()[:40].squeeze(1)
    few = torch.zeros_like(findings.graph.test)
    few[nodes] = True
    ours, theirs = (findings.graph.labels.numpy().copy() for _ in range(2))
    ours[nodes[20:]] ^= 1
    theirs[nodes[:16]] ^= 1
    other = replace(
        findings,
        graph=findings.graph.replace(test=few),
        probabilities=np.eye(2, dtype=np.float32)[ours],
        baselines=[guess(findings, "a guess", theirs)],
    )
    text = verdict(other)
    assert text.startswith("**A baseline may do better.**")
    assert "10.0 points less than a guess" in text


def test_never_predicted_class_is_reported(findings):
    assert "never predicts" not in verdict(findings)
    probabilities = np.tile(np.float32([0.7, 0.3]), (300, 1))
    text = verdict(replace(findings, probabilities=probabilities))
    assert "It never predicts '1'; selecting by macro F1 (`--metric macro-f1`)" in text


def test_two_classes_report_ranking_and_threshold(findings):
    scores = findings.classifier.held_out_
    low, high = scores.interval_of("average-precision")
    text, average = verdict(findings), 100 * scores.average_precision
    assert f"with an AUC of {100 * scores.auc:.1f}% on 174 held-out nodes (95% interval" in text
    assert (
        f"an average precision of {average:.1f}% on 174 held-out nodes (95% interval {100 * low:.1f} to"
        in text
    )
    assert f"{100 * high:.1f}%); a random ranking has 50% and 46%." in text
    assert "from a probability of 0.50." in text


def test_cross_fitted_scores_replace_few_test_nodes(findings):
    classifier = copy(findings.classifier)
    classifier.cross_fitted_ = Scores(np.array([[180, 0], [10, 10]]), auc=0.7, average_precision=0.4)
    classifier.metric = "average-precision"
    result = replace(findings, classifier=classifier)
    text = verdict(result)
    assert "reaches an average precision of 40.0% on 200 labeled nodes, cross-fitted (95% interval" in text
    assert "an AUC of 70.0% on 200 labeled nodes, cross-fitted" in text
    held_out = 100 * findings.classifier.held_out_.average_precision
    assert f"On the 174 held-out nodes it reaches {held_out:.1f}%" in text
    assert result.groups()[CROSS_FITTED] is result.best_scores


@pytest.mark.parametrize(
    "metric", ["loss", "accuracy", "balanced-accuracy", "macro-f1", "average-precision", "auc"]
)
def test_gain_is_over_best_baseline_by_metric(findings, metric):
    classifier = copy(findings.classifier)
    classifier.metric = metric
    result = replace(findings, classifier=classifier)
    metric = "accuracy" if metric == "loss" else metric
    values = {name: scores.value(metric) for name, scores in result.comparison().items()}
    ours = values.pop(classifier.best_.name)
    assert (result.gain.ours, result.gain.theirs) == (ours, max(values.values()))
    assert values[result.gain.baseline.name] == max(values.values())
    difference, low, high = result.gain.difference
    assert difference == pytest.approx(100 * (ours - max(values.values())))
    assert low < difference < high
    page = fit_page(result)
    [(_, gain, meaning)] = [card for card in page.cards if card[0].startswith("Gain")]
    assert gain == f"{difference:+.1f} points"
    assert f"over {result.gain.baseline.name} ({100 * max(values.values()):.1f}%)" in meaning
    assert (page.cards[0][1] == f"{100 * ours:.1f}%") == (
        metric in page.cards[0][0].lower().replace(" ", "-")
    )


def test_one_held_out_class_compares_accuracy(findings):
    """A ranking of nodes of one class has no value."""
    classifier = copy(findings.classifier)
    classifier.metric = "auc"
    only = findings.graph.replace(test=findings.graph.test & (findings.graph.labels == 0))
    result = replace(findings, classifier=classifier, graph=only)
    assert result.metric == "accuracy"
    assert "is right on" in verdict(result)
    assert "nan" not in render_markdown(fit_page(result))


def test_too_few_held_out_nodes_are_reported(findings):
    few = torch.zeros_like(findings.graph.test)
    few[findings.graph.test.nonzero()[:5].squeeze(1)] = True
    assert "is right on " in (result := verdict(replace(findings, graph=findings.graph.replace(test=few))))
    assert result.startswith("**Too few nodes are held out for a verdict.**")
    no_nodes = findings.graph.replace(test=torch.zeros_like(few))
    assert "they selected the model: expect less" in verdict(replace(findings, graph=no_nodes))


def test_baselines_learn_an_easy_graph(findings):
    accuracy = {
        baseline.name: findings.comparison()[baseline.name].accuracy for baseline in findings.baselines
    }
    assert accuracy.pop("most frequent class") < 0.6
    assert min(accuracy.values()) > 0.6, accuracy
    candidates = {baseline.name: baseline.num_candidates for baseline in findings.baselines}
    assert candidates == {
        "most frequent class": 1,
        "label propagation": 3,
        "logistic regression": 8,
        "GCN, 2 layers": 4,
    }


def test_gcn_without_features_uses_one_hot_ids():
    """Two communities: degrees are uninformative, neighborhoods determine the class."""
    graph = csbm(300, classes=2, seed=3).with_split("per-class-20")
    bare = Graph.from_edges(
        graph.edge_index, labels=graph.labels.where(graph.train | graph.validation | graph.test, -1),
        num_nodes=300, **graph.split._asdict(),
    )  # fmt: skip
    classifier = NodeClassifier("most frequent class", refit=False).fit(bare)
    result = Findings.of(classifier, bare)
    gcn = {one.name: one for one in result.baselines}["GCN, 2 layers, one-hot ids"]
    assert result.comparison()[gcn.name].accuracy > 0.75


@pytest.mark.usefixtures("brief")
def test_baselines_are_tuned_after_an_expired_search(small):
    classifier = NodeClassifier("most frequent class", refit=False).fit(small)
    classifier.task_ = replace(classifier.task_, started=classifier.task_.started - 1000, time_limit=900.0)
    counts = {one.name: one.num_candidates for one in Findings.of(classifier, small).baselines}
    assert counts == {
        "most frequent class": 1, "label propagation": 3, "logistic regression": 8, "GCN, 2 layers": 4
    }  # fmt: skip


def test_gcn_baseline_stops_at_its_time_limit(small, monkeypatch):
    """A GCN of 100,000 epochs stops when that time is up, with its best weights so far."""
    monkeypatch.setattr(search_module, "BASELINE_EPOCHS", 100_000)
    monkeypatch.setattr(search_module, "MIN_NETWORK_SECONDS", 1.0)
    classifier = NodeClassifier("most frequent class", refit=False, time_limit=0).fit(small)
    classifier.task_ = replace(classifier.task_, time_limit=8.0)
    clock = itertools.count(step=0.02)  # each look at it takes 20 ms, on a busy machine too
    monkeypatch.setattr("pairnorm.classify.candidates.task.time.perf_counter", lambda: next(clock))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        findings = Findings.of(classifier, small)
    (gcn,) = [one for one in findings.baselines if one.name == "GCN, 2 layers"]
    assert gcn.num_candidates == 1
    assert findings.comparison()[gcn.name].accuracy > 0.7


@pytest.mark.usefixtures("brief")
def test_model_predicts_the_graph_once(small, monkeypatch):
    calls, logits = [], FittedSGC.logits

    def count(self: FittedSGC, *arguments: object) -> torch.Tensor:
        calls.append(self.depth > 0)  # a logistic regression has none
        return logits(self, *arguments)

    monkeypatch.setattr(FittedSGC, "logits", count)
    classifier = NodeClassifier(depth=(1, 4), simple=True, refit=False).fit(small)
    findings = Findings.of(classifier, small)
    assert calls.count(True) == 2  # and the model fitted without later nodes
    assert np.array_equal(findings.probabilities, classifier.predict_proba(small))


def test_findings_of_a_loaded_model_raise(small, tmp_path, raises):
    NodeClassifier(depth=1, norm="PN").fit(small).save(tmp_path)
    with raises("not-fitted", value="csbm"):
        Findings.of(NodeClassifier.load(tmp_path), small)


@pytest.mark.usefixtures("brief")
def test_baselines_evaluated_by_fit_are_not_refitted(small, monkeypatch):
    classifier = NodeClassifier(model=["SGC", "label propagation", "logistic regression"], depth=(1, 4))
    classifier.fit(small)
    searched = []

    def search(task, families, tick):
        searched.extend(family.name for family in families)
        return original(task, families, tick)

    original = findings_module.search
    monkeypatch.setattr(findings_module, "search", search)
    result = {baseline.name: baseline for baseline in Findings.of(classifier, small).baselines}
    assert searched == ["most frequent class", "GCN, 2 layers"]
    (alone,) = [one for one in baselines(small) if one.name == "label propagation"]
    expected = original(classifier.task_, [alone])
    assert result["label propagation"].best == expected.best
    assert result["label propagation"].num_candidates == len(expected.results)
