"""Streamed candidates equal those of ``SGCFamily`` on the same graph in memory."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pairnorm.classify.candidates import PreparedGraph, SGCFamily, Task
from pairnorm.classify.evaluation import METRICS, fit_tilt
from pairnorm.classify.scaling import Scaling
from pairnorm.data import Graph
from pairnorm.data.packed import PackedGraph

pytest.importorskip("numba")
sys.path.insert(0, str(Path(__file__).parents[1] / "train"))
from test_propagation import packed_graph

from pairnorm.classify import streaming
from pairnorm.classify.regression import PATIENCE
from pairnorm.classify.streaming import Rows, Streaming
from pairnorm.report.document import render_markdown
from pairnorm.report.fit_report import streamed_page


def test_streaming_equals_sgc_in_memory(tmp_path):
    packed = packed_graph(tmp_path / "graph", nodes=600, degree=8)
    norms = ("none", "PN", "PN-SI")
    search = Streaming(packed, tmp_path / "work", 10**9, depths=(1, 3), norms=norms, scales=(1.0, 30.0))
    outcome = search.run()
    candidates = [one.candidate for one in outcome.results]
    assert {(one.setting, one.norm) for one in candidates if one.model == "SGC"} == {
        *(("", norm) for norm in norms),
        ("imputed by mass", "none"),
        ("imputed by fp", "PN"),
        ("imputed by fp", "PN-SI"),
    }
    masks = {}
    for part in ("train", "validation", "test"):
        masks[part] = torch.zeros(600, dtype=torch.bool)
        masks[part][getattr(search.rows, part)] = True
    graph = Graph.from_packed(packed).replace(**masks)
    task = Task(graph, PreparedGraph(graph, Scaling.of(graph, "columns")(graph), torch.device("cpu")), "rw")
    family = SGCFamily(norms, (1, 3), (1.0, 30.0))
    expected = [one for one, *_ in family.fit(task, lambda done: None)]
    result = {(one.norm, one.depth, one.scale): one for one in candidates if not one.setting}
    assert len(expected) == 12
    for one in expected:
        same = result[one.norm, one.depth, one.scale]
        assert same.validation_loss == pytest.approx(one.validation_loss, rel=1e-3)
        assert same.validation_accuracy == pytest.approx(one.validation_accuracy, abs=0.011)
    assert outcome.best == max(outcome.results, key=lambda one: one.rank).candidate
    assert outcome.scores.count == int(masks["test"].sum())


@pytest.mark.parametrize("many", [False, True])
def test_norms_and_propagations_equal_search_in_memory(tmp_path, monkeypatch, many):
    packed = packed_graph(tmp_path / "graph", nodes=600)
    monkeypatch.setattr(streaming, "MANY_NODES", 600 if many else 601)
    steps = []
    search = Streaming(
        packed, tmp_path / "work", 10**9, depths=range(1, 30), scales=[10.0], on_progress=steps.append
    )
    over = [("zero", "PN"), ("zero", "PN-SI"), ("mass", "none"), ("fp", "PN"), ("fp", "PN-SI")]
    assert [(propagation.imputation, propagation.norm) for propagation in search.propagations] == [
        one for one in over if not many or one[1] != "PN-SI"
    ]
    assert any("PN-SI" in what for what in search.left_out) == many
    candidates = [one.candidate for one in search.run().results]
    assert sum("SGC" in what for what in steps) == 29 * len(search.propagations)
    for propagation in search.propagations:
        losses = {
            one.depth: one.validation_loss
            for one in candidates
            if one.model == "SGC"
            and (one.norm, one.setting == "") == (propagation.norm, propagation.imputation == "zero")
        }
        best = min(losses, key=lambda depth: losses[depth])
        assert (max(losses) == 29) or (many and max(losses) == best + PATIENCE)
    assert any("left out" in what for what in steps) == many


def test_impossible_requested_imputation_raises(raises, tmp_path):
    partly = packed_graph(tmp_path / "single", nodes=600, entries=True)
    vectors = packed_graph(tmp_path / "vectors", nodes=600)
    for imputation in ("fp", "mass"):
        with raises("not-together", f"imputation '{imputation}'", value=imputation):
            Streaming(partly, tmp_path / "work", 10**9, imputations=["zero", imputation])
        with raises("not-together", f"imputation '{imputation}'", value=imputation):
            norms = ["PN"] if imputation == "mass" else ["none"]
            Streaming(vectors, tmp_path / "work", 10**9, imputations=[imputation], norms=norms)
    by_itself = Streaming(partly, tmp_path / "work", 10**9)
    assert {propagation.imputation for propagation in by_itself.propagations} == {"zero"}
    assert any("single features" in what for what in by_itself.left_out)
    named = Streaming(vectors, tmp_path / "work", 10**9, imputations=["fp", "mass"], norms=["none", "PN"])
    assert [(propagation.imputation, propagation.norm) for propagation in named.propagations] == [
        ("mass", "none"),
        ("fp", "PN"),
    ]


@pytest.mark.parametrize("metric", METRICS)
def test_metric_selects_and_predicts_as_in_memory(tmp_path, metric):
    packed = packed_graph(tmp_path / "graph", nodes=600, degree=8)
    settings = {"depths": (1, 3), "norms": ["PN"], "scales": (0.1, 1.0, 30.0)}
    search = Streaming(packed, tmp_path / "work", 10**9, metric=metric, **settings)
    outcome = search.run()
    rows = search.rows
    shares = np.bincount(rows.train_labels[rows.train_labels >= 0])
    np.testing.assert_allclose(rows.prior, shares / shares.sum())
    labels = torch.from_numpy(packed.labels[rows.validation].astype(np.int64))
    held = torch.from_numpy(outcome.logits[rows.validation])
    probabilities = (held / outcome.temperature).softmax(1)
    _, tilt = fit_tilt(metric, labels, probabilities, torch.from_numpy(rows.prior))
    assert outcome.tilt == tilt
    assert search.metric == metric
    losses = [one.validation_loss for one in outcome.results]
    if metric == "loss":
        assert outcome.best.validation_loss == min(losses)
    elif metric == "accuracy":
        accuracies = [one.candidate.validation_accuracy for one in outcome.results]
        assert outcome.best.validation_accuracy == max(accuracies)
    page = render_markdown(streamed_page(outcome))
    assert f"| {metric.replace('-', ' ')} |" in page
    assert outcome.results[0].score == max(one.score for one in outcome.results)
    test = torch.from_numpy(outcome.logits[rows.test]) / outcome.temperature
    weighted = test.softmax(1).numpy() / rows.prior**tilt
    message = np.bincount(weighted.argmax(1), minlength=len(shares))
    assert np.array_equal(outcome.scores.confusion.sum(0), message)
    assert f"by its {metric.replace('-', ' ')} on" in page
    assert f"{100 * outcome.scores.accuracy:.1f}%" in page


def test_rows_split_the_labeled_nodes(tmp_path):
    packed = packed_graph(tmp_path / "graph", nodes=600)
    rows = Rows.of(packed, 0)
    parts = np.concatenate([rows.train, rows.validation, rows.test])
    assert sorted(parts) == np.flatnonzero(packed.labels >= 0).tolist()
    assert np.array_equal(np.flatnonzero(rows.train_labels >= 0), np.sort(rows.train))


def test_single_validation_node_stays_an_array(tmp_path):
    """To numpy a tensor of one number is a place, not an array of one."""
    packed = packed_graph(tmp_path / "graph", nodes=600)
    labeled = np.flatnonzero(packed.labels >= 0)
    split = np.full(600, -1, "i1")
    split[labeled] = np.arange(len(labeled)) % 2 * 2  # to train on and to test on, by turns
    split[labeled[0]] = 1
    split.tofile(packed.folder / "split")
    assert Rows.of(PackedGraph.open(packed.folder), 0).validation.tolist() == [labeled[0]]


@pytest.mark.parametrize(("name", "code"), [("features-0000", "file-damaged"), ("weight", "not-finite")])
def test_extreme_stored_values_raise(tmp_path, raises, name, code):
    packed = packed_graph(tmp_path / "graph", nodes=600)
    values = np.fromfile(packed.folder / name, "<f4")
    values[np.isfinite(values)] = 3e38
    values.tofile(packed.folder / name)
    search = Streaming(packed, tmp_path / "work", 10**9, depths=[1], norms=["none"], scales=[1.0])
    with raises(code):
        search.run().write(tmp_path)


def test_predictions_are_written_in_small_batches(tmp_path, monkeypatch):
    packed = packed_graph(tmp_path / "graph", nodes=600)
    outcome = Streaming(packed, tmp_path / "work", 10**9, depths=[1], norms=["none"], scales=[1.0]).run()
    outcome.write(tmp_path)
    whole = (tmp_path / "predictions.csv").read_bytes()
    monkeypatch.setattr(streaming, "BATCH_ENTRIES", 100)
    outcome.write(tmp_path)
    assert (tmp_path / "predictions.csv").read_bytes() == whole


def test_more_complete_test_nodes_add_a_caveat(tmp_path):
    packed = packed_graph(tmp_path / "graph", nodes=600)
    settings = {"depths": [1], "norms": ["none"], "scales": [1.0]}
    outcome = Streaming(packed, tmp_path / "work", 10**9, **settings).run()
    missing = np.where(packed.labels >= 0, 0, 2).astype(packed.missing.dtype)
    rows = outcome.search.rows
    shifted = SimpleNamespace(missing=missing, labels=packed.labels)
    assert replace(outcome, search=SimpleNamespace(graph=shifted, rows=rows)).caveat.startswith(
        "The accuracy is optimistic: 100% of the unlabeled nodes have no features, and 0% of the test nodes."
    )
    even = SimpleNamespace(missing=missing * 0, labels=packed.labels)
    assert replace(outcome, search=SimpleNamespace(graph=even, rows=rows)).caveat == ""


def test_time_limit_keeps_first_depth_of_first_propagation(tmp_path):
    packed = packed_graph(tmp_path / "graph", nodes=600, degree=8)
    settings = {"depths": (1, 3), "norms": ("none", "PN"), "scales": (1.0, 30.0)}
    hurried = Streaming(packed, tmp_path / "hurried", 10**9, time_limit=0.0001, **settings)
    candidates = {
        (one.candidate.model, one.candidate.norm, one.candidate.depth) for one in hurried.run().results
    }
    assert candidates == {("label propagation", "none", 0), ("SGC", "none", 1)}
    pending = [what for what in hurried.left_out if "time was up" in what]
    assert len(pending) == len(hurried.propagations) - 1 > 0
    patient = Streaming(packed, tmp_path / "patient", 10**9, time_limit="1h", **settings).run().results
    assert len(patient) == len(Streaming(packed, tmp_path / "work", 10**9, **settings).run().results)
