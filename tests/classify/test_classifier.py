import os
import pickle
import warnings
from copy import deepcopy
from itertools import product
from pathlib import Path
from time import perf_counter

import numpy as np
import pandas
import pytest
import torch
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import (
    check_estimator_cloneable,
    check_estimator_repr,
    check_get_params_invariance,
    check_no_attributes_set_in_init,
    check_parameters_default_constructible,
    check_set_params,
)

from helpers import run_python
from pairnorm.classify import ClassifierWarning, NodeClassifier, scaling
from pairnorm.classify.evaluation import fit_temperature, mean_probabilities
from pairnorm.classify.holdout import remove_nodes
from pairnorm.classify.predictions import prediction_table
from pairnorm.classify.search import FitProgress
from pairnorm.data import Graph, Split, csbm, features_after, load, missing_vectors, pack
from pairnorm.data.adjacency import reachable

QUICK = {"depth": (10, 20, 40), "scale": (30.0, 100.0, 300.0), "norm": "PN"}


def test_cora_without_features_reaches_the_papers_accuracy(blanked_cora):
    classifier = NodeClassifier(**QUICK, impute="zero", simple=True, refit=False, metric="accuracy").fit(
        blanked_cora
    )
    assert classifier.held_out_ is not None
    assert classifier.held_out_.count == 2068
    # 126 nodes, half of them of the most frequent class, are reachable from neither a feature nor a label.
    assert classifier.held_out_.accuracy >= 0.755
    assert classifier.score(blanked_cora) == classifier.held_out_.accuracy
    assert classifier.best_.depth >= 20
    assert np.array_equal(classifier.probabilities_, classifier.predict_proba(blanked_cora))


@pytest.mark.skipif("PAIRNORM_DATA" not in os.environ, reason="PAIRNORM_DATA is not set")
def test_citeseer_without_features_needs_depth_or_imputation():
    graph = load("citeseer", os.environ["PAIRNORM_DATA"])
    missing = missing_vectors(graph, 1.0)
    graph = graph.replace(features=features_after(graph, missing).trial(0), missing=missing.mask[:, 0])
    plain = {"norm": "PN", "impute": "zero", "refit": False}
    deep, flat = (NodeClassifier(depth=depth, **plain).fit(graph).score(graph) for depth in (20, 2))
    assert deep > flat + 0.1
    filled = NodeClassifier(depth=2, norm="PN", impute="fp", refit=False).fit(graph).score(graph)
    assert filled > flat + 0.1, "imputation matters as much as depth"


def test_test_labels_do_not_affect_fit(small):
    flipped = small.replace(labels=torch.where(small.test, 1 - small.labels, small.labels))
    first, second = (NodeClassifier(depth=(1, 4)).fit(graph) for graph in (small, flipped))
    assert first.best_ == second.best_
    assert np.array_equal(first.predict_proba(small), second.predict_proba(small))
    assert first.score(small) == pytest.approx(1 - second.score(flipped))


def test_set_params_updates_and_validates():
    classifier = NodeClassifier()
    assert classifier.set_params(depth=7, norm="PN") is classifier
    assert (classifier.depth, classifier.norm) == (7, "PN")
    with pytest.raises(ValueError, match="Invalid parameter 'depht'"):
        classifier.set_params(depht=3)


def test_repr_shows_non_default_parameters():
    assert repr(NodeClassifier()) == "NodeClassifier()"
    assert repr(NodeClassifier("GCN", seeds=2)) == "NodeClassifier(model='GCN', seeds=2)"
    assert repr(NodeClassifier(depth=np.arange(2))) == "NodeClassifier(depth=array([0, 1]))"


def test_fit_is_repeatable_and_keeps_parameters(small):
    classifier = NodeClassifier(depth=(2, 4), random_state=3)
    before = classifier.get_params()
    first = classifier.fit(small).predict_proba(small)
    assert classifier.get_params() == before
    assert np.array_equal(classifier.fit(small).predict_proba(small), first)
    assert np.array_equal(clone(classifier).fit(small).predict_proba(small), first)


@pytest.mark.parametrize("model", ["SGC", "GCN"])
def test_predict_is_the_most_probable_class(small, model):
    graph = small.replace(class_names=("low", "high"))
    classifier = NodeClassifier(model, 2, seeds=2, epochs=20).fit(graph)
    result = classifier.predict_proba(graph)
    np.testing.assert_allclose(result.sum(1), 1, atol=1e-5)
    assert np.array_equal(classifier.predict(graph), np.array(["low", "high"])[result.argmax(1)])
    right = classifier.predict(graph)[graph.test] == np.array(["low", "high"])[graph.labels[graph.test]]
    assert classifier.score(graph) == pytest.approx(right.mean())


def test_probabilities_use_held_out_temperature(small):
    classifier = NodeClassifier("SGC", depth=1, norm="PN", scale=1e4, refit=False).fit(small)
    logits = classifier.choice_.probabilities.log().unsqueeze(1)
    assert classifier.temperature_ == fit_temperature(logits, classifier.task_.held_out_labels) > 1.5
    logits = classifier.model_.logits(classifier.task_.prepared)
    expected = mean_probabilities(logits, classifier.temperature_)
    np.testing.assert_allclose(classifier.probabilities_, expected, atol=1e-6)


def test_progress_reports_steps_score_and_time_left(small):
    seen: list[tuple[float, FitProgress]] = []
    classifier = NodeClassifier(depth=(1, 2))
    classifier.fit(small, progress=lambda now: seen.append((perf_counter(), now)))
    progress, last = [now for _, now in seen], seen[-1][0]
    # Nothing is smoothed or self-trained in a search of one family.
    assert [(now.done, now.total) for now in progress] == [(step, 9) for step in (1, 2, 3, 4, 7, 8, 9)]
    names = [now.step for now in progress[3:]]
    assert names == ["SGC-PN-SI, depth 2", "averaged", "evaluated", "fitted to all labels"]
    best = max(classifier.choice_.results, key=lambda one: one.rank)
    assert progress[-1].best_score == best.candidate.validation_accuracy
    assert progress[-1].seconds_left == 0
    for when, now in seen[1:]:
        assert now.seconds_left < 3 * (last - when) + 1


def test_unreachable_cora_nodes_get_the_largest_class(blanked_cora):
    """20 labels per class say nothing about the 126 test nodes that neither a feature nor a label reaches."""
    graph = blanked_cora
    unreached = (~reachable(graph.adjacency, graph.train) & graph.test).numpy()
    classifier = NodeClassifier(**QUICK, impute="fp", simple=True, refit=False).fit(graph)
    predicted = classifier.decide(classifier.evaluation_probabilities_)[unreached]
    assert len(predicted) == 126
    assert (predicted == graph.labels.numpy()[unreached]).mean() > 0.55


def without_split(graph: Graph) -> Graph:
    no_nodes = torch.zeros_like(graph.train)
    return graph.replace(train=no_nodes, validation=no_nodes, test=no_nodes)


def test_graph_without_split_is_split_and_scored_on_held_out_nodes(small):
    graph = without_split(small)
    classifier = NodeClassifier(depth=(1, 4)).fit(graph)
    assert [int(mask.sum()) for mask in classifier.split_] == [180, 60, 60]
    assert classifier.held_out_ is not None
    assert classifier.score(graph) == classifier.held_out_.accuracy
    other = graph.replace(node_names=np.arange(1000, 1300))
    assert classifier.score(other) == pytest.approx(
        (classifier.predict(graph) == graph.labels.numpy()).mean()
    )


CONTAINERS = {"array": np.array, "list": list, "tensor": torch.tensor}


def graph_with(small: Graph, labels: object, given: str, folder: Path) -> Graph:
    """Read labels and one feature from frames, another container, files or a packed graph."""
    nodes = pandas.DataFrame({"id": np.arange(300), "x": small.features.to_dense()[:, 0], "y": labels})
    edges = pandas.DataFrame(small.edge_index.T.numpy(), columns=["source", "target"])
    if given == "frame":
        return Graph.from_frames(nodes, edges, label="y")
    if given in CONTAINERS:
        return Graph.from_edges(small.edge_index, nodes[["x"]], CONTAINERS[given](labels))
    *packed, kind = given.split()
    paths = [folder / f"{name}.{kind}" for name in ("nodes", "edges")]
    for frame, path in zip((nodes, edges), paths, strict=True):
        (frame.to_csv if kind == "csv" else frame.to_parquet)(path, index=False)
    if packed:
        pytest.importorskip("duckdb", reason="needs duckdb: pip install pairnorm[all]")
        return Graph.from_packed(pack(*paths, folder / "packed", label="y", memory="256MB"))
    return Graph.from_files(*paths, label="y")


@pytest.mark.filterwarnings("ignore::pairnorm.data.GraphWarning")
@pytest.mark.parametrize("given", ["integers", "floats", "nullable", "texts", "csv", "parquet"])
def test_classes_keep_their_type(tmp_path, small, given):
    """As scikit-learn does; what is written to files are names."""
    values = 5 * small.labels.numpy() - 5
    labels = pandas.Series(values).where(np.arange(300) % 3 > 0)
    labels = {"floats": labels, "texts": pandas.Series(values).astype(str)}.get(given, labels.astype("Int64"))
    labels = pandas.Series(values) if given == "integers" else labels
    graph = graph_with(small, labels, given if given in ("csv", "parquet") else "frame", tmp_path)
    classifier = NodeClassifier("label propagation").fit(graph)
    expected = np.unique(values.astype(str) if given == "texts" else values)
    assert classifier.predict(graph).dtype.kind == ("U" if given == "texts" else "i")
    assert sorted(classifier.classes_.tolist()) == expected.tolist()
    assert classifier.score(graph.replace(test=graph.labeled)) > 0.5
    classifier.save(tmp_path / "model")
    again = NodeClassifier.load(tmp_path / "model")
    assert again.classes_.dtype == classifier.classes_.dtype
    assert np.array_equal(again.predict(graph), classifier.predict(graph))
    table = prediction_table(graph, classifier.predict_proba(graph), classifier)
    assert set(table["predicted"]) <= set(map(str, expected))
    assert {f"p_{value}" for value in expected} <= set(table)


@pytest.mark.filterwarnings("ignore::pairnorm.data.GraphWarning")
@pytest.mark.parametrize(
    "given", ["frame", "array", "list", "tensor", "csv", "parquet", "packed csv", "packed parquet"]
)
@pytest.mark.parametrize("unknown", [False, True])
def test_boolean_labels_stay_boolean(tmp_path, small, given, unknown):
    values = pandas.Series(small.labels.numpy() > 0)
    unknown = unknown and given != "tensor"  # a tensor has no unknown booleans
    labels = values.astype(object).where(np.arange(300) % 3 > 0, None) if unknown else values
    graph = graph_with(small, labels, given, tmp_path)
    classifier = NodeClassifier("label propagation").fit(graph)
    assert classifier.predict(graph).dtype == bool
    assert classifier.classes_.tolist() == [False, True]
    assert graph.class_names == ("False", "True")
    known = graph.labeled.numpy()
    assert np.array_equal(graph.classes[graph.labels.numpy()][known], values[known])
    assert classifier.score(graph.replace(test=graph.labeled)) > 0.5
    classifier.save(tmp_path / "model")
    assert NodeClassifier.load(tmp_path / "model").predict(graph).dtype == bool


def test_renamed_classes_are_text(small):
    assert small.classes.tolist() == [0, 1]
    assert small.replace(class_names=("low", "7")).classes.tolist() == ["low", "7"]
    assert small.replace(class_names=("3", "7")).classes.tolist() == ["3", "7"]
    assert small.replace(name="other").classes.tolist() == [0, 1]


def test_score_excludes_fitted_nodes(small):
    """Also if only the test part is missing, or labels or nodes have changed since."""
    small = small.replace(node_names=np.arange(300))
    no_nodes = torch.zeros_like(small.test)
    classifier = NodeClassifier(depth=(1, 4), refit=False).fit(small.replace(test=no_nodes))
    assert classifier.held_out_ is not None
    assert classifier.held_out_.count == 174
    right = classifier.predict(small) == small.labels.numpy()
    held_out = small.test.numpy()
    assert classifier.score(small.replace(test=no_nodes)) == pytest.approx(right[held_out].mean())
    labeled = held_out & (np.arange(300) % 2 == 0)
    labels = torch.where(torch.from_numpy(held_out & ~labeled), -1, small.labels)
    fewer = without_split(small).replace(labels=labels, class_names=small.class_names)
    assert classifier.score(fewer) == pytest.approx(right[labeled].mean())
    as_text = without_split(small).replace(node_names=small.node_names.astype(str))
    assert classifier.score(as_text) == pytest.approx(right[held_out].mean())


def test_refit_uses_all_labels_except_a_given_test_part(small):
    graph = without_split(small)
    before, after = (NodeClassifier(depth=(1, 4), refit=refit).fit(graph) for refit in (False, True))
    assert before.held_out_ is not None
    assert after.held_out_ is not None
    assert np.array_equal(before.held_out_.confusion, after.held_out_.confusion), (
        "the held-out accuracy is reported"
    )
    assert np.array_equal(before.evaluation_probabilities_, after.evaluation_probabilities_)
    assert not np.array_equal(before.probabilities_, after.probabilities_)
    assert not after.unseen(graph).any()
    assert after.score(graph) == after.held_out_.accuracy, "nodes learned from are not evaluated again"
    own = NodeClassifier(depth=(1, 4)).fit(small)
    assert np.array_equal(own.unseen(small), small.test.numpy()), "a test part that is given stays unseen"


def rare(small: Graph) -> Graph:
    """One node in seven is of class 1, and the features are weakly informative."""
    keep = (small.labels == 0) | (torch.arange(300) % 6 == 0)
    labels = torch.where(keep, small.labels, -1)
    noise = torch.rand(small.features.shape, generator=torch.Generator().manual_seed(0))
    return without_split(small).replace(labels=labels, features=small.features.to_dense() + 0.5 * noise)


def test_metric_and_class_weight_raise_recall_of_rare_class(small):
    graph, result = rare(small), {}
    for name, options in {
        "plain": {},
        "metric": {"metric": "balanced-accuracy"},
        "weight": {"class_weight": "balanced"},
    }.items():
        classifier = NodeClassifier("SGC", depth=1, norm="PN", scale=10.0, **options).fit(graph)
        assert classifier.held_out_ is not None
        result[name] = classifier.held_out_
        predicted = classifier.probabilities_ / classifier.prior_**classifier.tilt_
        assert np.array_equal(classifier.predict(graph), classifier.classes_[predicted.argmax(1)])
        if name == "weight":
            share = classifier.prior_[1] / classifier.prior_.sum()
            assert classifier.threshold(1) == pytest.approx(share)
    assert result["weight"].recall[1] > result["plain"].recall[1]
    assert result["metric"].recall[1] >= result["plain"].recall[1]


def test_average_has_no_larger_validation_loss_than_its_parts(small):
    classifier = NodeClassifier().fit(small)
    assert classifier.best_.validation_loss <= min(one.validation_loss for _, one in classifier.parts_) + 1e-6
    assert classifier.best_.validation_loss <= min(one.validation_loss for one in classifier.search_) + 1e-6
    single = NodeClassifier(simple=True).fit(small)
    assert [(weight, one) for weight, one in single.parts_] == [(1, single.best_)]


@pytest.mark.parametrize(
    ("parameter", "value", "code"),
    [
        ("metric", "f1", "unknown-choice"),
        ("class_weight", "heavy", "unknown-choice"),
        ("impute", "median", "unknown-choice"),
        ("adjacency", "row", "unknown-choice"),
        ("directed", True, "unknown-choice"),
        ("random_state", None, "not-a-whole-number"),
        ("random_state", 2**64, "not-a-whole-number"),
        ("hidden", -1, "not-a-whole-number"),
        ("epochs", 0, "not-a-whole-number"),
        ("dropout", 1.0, "not-a-number"),
    ],
)
def test_invalid_parameter_raises(small, raises, parameter, value, code):
    with raises(code, value=value) as caught:
        NodeClassifier("SGC", **{parameter: value}).fit(small)
    assert str(caught.value).startswith(f"{parameter} is {value!r}; expected ")


def test_separate_labels_raise(small, raises):
    with raises("conflicting-options"):
        NodeClassifier("SGC").fit(small, small.labels)


def test_model_names_accept_hyphens(small):
    result = [NodeClassifier(name).fit(small) for name in ("label propagation", "label-propagation")]
    assert result[0].best_ == result[1].best_


def test_ring_without_features_is_fitted():
    """In a ring all nodes have the same structure, so that only labels are informative."""
    ring = torch.arange(60)
    labels = torch.arange(60) // 30
    graph = Graph.from_edges(torch.stack([ring, ring.roll(1)]), labels=labels)
    with pytest.warns(ClassifierWarning, match="only 12 labeled nodes are left to test on"):
        classifier = NodeClassifier().fit(graph)
    assert classifier.score(graph) > 0.8


def test_score_without_unseen_labels_raises(small, raises):
    classifier = NodeClassifier(depth=2, norm="PN").fit(small)
    labels = torch.where(small.test, -1, small.labels)
    with raises("nothing-to-evaluate"):
        classifier.score(without_split(small).replace(labels=labels))


@pytest.mark.parametrize(
    "parameters", [{}, {"scaling": "columns"}, {"model": "GCN", "scaling": "columns"}, {"time_limit": "5m"}]
)
def test_too_large_features_raise_before_densification(small, monkeypatch, raises, parameters):
    monkeypatch.setattr(scaling, "MAX_DENSE_BYTES", 1000)
    monkeypatch.setattr(torch.Tensor, "to_dense", lambda self: pytest.fail("this takes too much memory"))
    with raises("too-large"):
        NodeClassifier(**parameters).fit(small)


@pytest.mark.parametrize("each", [1, 2, 3])
def test_few_labels_per_class_are_enough(small, each):
    rank = sum(((small.labels == k).cumsum(0) * (small.labels == k)) for k in (0, 1))
    graph = without_split(
        small.replace(
            labels=torch.where(rank <= each, small.labels, -1),
            **{part: torch.zeros_like(small.train) for part in ("train", "validation", "test")},
        )
    )
    with pytest.warns(ClassifierWarning):
        classifier = NodeClassifier().fit(graph)
    assert (classifier.predict(graph) == small.labels.numpy()).mean() > 0.6
    assert (classifier.held_out_ is None) == (each < 3)


def test_unfitted_classifier_raises(small, tmp_path, raises):
    classifier, p = NodeClassifier(), np.ones((small.num_nodes, 2), np.float32)
    for use in (
        classifier.predict,
        classifier.score,
        classifier.unseen,
        classifier.explain,
        lambda graph: classifier.predict_set(graph),
        lambda graph: classifier.prediction_sets(graph, p, 0.9),
        lambda graph: classifier.evaluate(graph, graph.test.numpy(), p),
        lambda graph: classifier.decide(p),
        lambda graph: classifier.threshold(0),
        lambda graph: classifier.save(tmp_path),
        lambda graph: classifier.classes_,
    ):
        with raises("not-fitted"):
            use(small)
    assert not any(tmp_path.iterdir())
    assert not hasattr(classifier, "classes_")
    with pytest.raises(AttributeError, match="has no attribute 'predcit'"):
        classifier.predcit  # type: ignore[attr-defined]
    NodeClassifier(depth=2, norm="PN").fit(small).save(tmp_path)
    with pytest.raises(NotFittedError, match="a loaded NodeClassifier has no probabilities_"):
        NodeClassifier.load(tmp_path).probabilities_


def test_invalid_or_unlabeled_graph_raises(small, raises):
    with raises("wrong-type", value="ndarray") as caught:
        NodeClassifier().fit(np.ones((3, 2)))
    assert "from_frames" in caught.value.hint
    classifier = NodeClassifier(depth=2, norm="PN").fit(small)
    for use in (classifier.predict, classifier.score):
        with raises("wrong-type", value="list"):
            use([1, 2])
    no_nodes = torch.zeros_like(small.train)
    bare = small.with_split(Split(no_nodes, no_nodes, no_nodes)).replace(
        labels=torch.full_like(small.labels, -1)
    )
    with raises("no-labels"):
        classifier.score(bare)


def test_larger_graph_is_predicted(small):
    classifier = NodeClassifier(depth=4, norm="PN").fit(small)
    keep = torch.arange(small.num_nodes) < 250
    ends = small.edge_index[:, keep[small.edge_index].all(0)]
    smaller = Graph.from_edges(ends, small.features.to_dense()[keep], small.labels[keep])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agreement = (classifier.predict(smaller) == classifier.predict(small)[:250]).mean()
    assert agreement > 0.85


def test_fit_does_not_need_pydantic():
    """So that ``fit`` can be evaluated on a machine on which nothing can be installed."""
    program = """
import sys
sys.modules["pydantic"] = None
from pairnorm.classify import NodeClassifier
from pairnorm.data import csbm
graph = csbm(200, classes=2).with_split("per-class-20")
assert NodeClassifier("SGC", 2).fit(graph).score(graph) > 0.7
"""
    run_python("-c", program)


def test_rows_of_unrelated_graphs_share_no_labels(small):
    """Graphs without names: what is known of row 7 of one graph says nothing about row 7 of another."""
    classifier = NodeClassifier("label propagation").fit(without_split(small))
    again = classifier.predict_proba(small)
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0))
    ends = torch.argsort(order)[small.edge_index]
    other = Graph.from_edges(ends, small.features.to_dense()[order], small.labels[order])
    result = classifier.predict_proba(other)
    assert np.array_equal(again, classifier.probabilities_)
    assert (result == result[0]).all(), "no label is known there"
    assert classifier.score(other) == pytest.approx(
        (small.labels[order].numpy() == result[0].argmax()).mean()
    )


def test_time_column_is_not_a_feature():
    """The day says the class of early nodes, and the opposite of later ones."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(300) % 2
    features = torch.stack([torch.arange(300.0), labels + 0.5 * torch.randn(300, generator=generator)], 1)
    edges = torch.randint(0, 300, (2, 100), generator=generator)
    graph = Graph.from_edges(edges, features, labels, feature_names=("day", "sign"), num_nodes=300)
    classifier = NodeClassifier("logistic regression", time="day").fit(graph)
    assert classifier.n_features_in_ == 1
    assert classifier.feature_names_in_ == ("sign",)
    later = graph.replace(features=features + torch.tensor([1000.0, 0.0]))
    np.testing.assert_allclose(classifier.predict_proba(later), classifier.probabilities_, atol=1e-6)
    few = graph.replace(labels=labels.where(torch.arange(300) < 280, -1))  # 28 test nodes of each class
    ranked = NodeClassifier("logistic regression", time="day", metric="auc").fit(few)
    assert ranked.cross_fitted_ is None, "folds would mix times"


def test_scikit_learn_contract(small):
    for check in (
        check_estimator_cloneable,
        check_estimator_repr,
        check_get_params_invariance,
        check_no_attributes_set_in_init,
        check_parameters_default_constructible,
        check_set_params,
    ):
        check("NodeClassifier", NodeClassifier())
    assert is_classifier(NodeClassifier())
    with pytest.raises(NotFittedError, match="not fitted yet"):
        NodeClassifier().predict(small)
    fitted = NodeClassifier(depth=(1, 2), norm="PN").fit(small)
    assert np.array_equal(deepcopy(fitted).predict_proba(small), fitted.predict_proba(small))


def test_pickle_size_is_unchanged_by_other_graphs(small):
    classifier = NodeClassifier(depth=[2, 4], scale=10.0).fit(small)
    before, copied = (len(pickle.dumps(one)) for one in (classifier, deepcopy(classifier)))
    other = csbm(2000, classes=2, seed=2)
    classifier.predict_proba(other)
    assert len(pickle.dumps(classifier)) == before
    assert len(pickle.dumps(deepcopy(classifier))) == copied
    assert len(pickle.dumps(classifier.model_)) < 100_000


def with_strangers(graph: Graph, count: int) -> Graph:
    """Return a graph with more nodes, which have other features and edges among themselves only."""
    generator, nodes = torch.Generator().manual_seed(0), graph.num_nodes
    edges = nodes + torch.randint(0, count, (2, 3 * count), generator=generator)
    features = 20 + 5 * torch.randn(count, graph.num_features, generator=generator)
    return Graph.from_edges(
        torch.cat([graph.edge_index, edges], 1),
        torch.cat([graph.features.to_dense(), features]),
        torch.cat([graph.labels, torch.full((count,), -1)]),
        node_names=[*graph.node_names, *(f"new {number}" for number in range(count))],
    )


@pytest.mark.filterwarnings("ignore::pairnorm.data.GraphWarning")
@pytest.mark.parametrize(
    ("model", "norm"),
    [*product(("GCN", "GAT", "SGC"), ("PN", "PN-SI")), ("residual GCN", "none"), ("hop network", "none")],
)
def test_unconnected_later_nodes_change_no_prediction(small, model, norm, tmp_path):
    named = small.replace(
        node_names=[f"old {number}" for number in range(300)], features=small.features.to_dense()
    )
    settings = {"epochs": 20, "seeds": 1, "scaling": "none", "dropout": 0.0}
    classifier = NodeClassifier(model, depth=3, norm=norm, scale=10.0, **settings).fit(named)
    classifier.save(tmp_path)
    loaded, before = NodeClassifier.load(tmp_path), classifier.probabilities_
    np.testing.assert_allclose(loaded.predict_proba(named), before, atol=1e-5)
    for count in (40, 4000):
        grown = with_strangers(named, count)
        np.testing.assert_allclose(loaded.predict_proba(grown)[:300], before, atol=1e-5)


def test_deep_model_predicts_a_graph_with_fewer_nodes():
    """Bug: below nine tenths of the fitted nodes, stored statistics turned all labels into one class."""
    whole = csbm(400, classes=2, features=8, signal=0.0, seed=0)
    whole = whole.replace(node_names=[f"n{number}" for number in range(400)])
    settings = {"depth": 40, "norm": "PN-SI", "scaling": "columns", "time_limit": 0}
    classifier = NodeClassifier("SGC", **settings).fit(whole)
    kept = torch.rand(400, generator=torch.Generator().manual_seed(0)) < 2 / 3
    part = remove_nodes(whole, ~kept)
    same = classifier.predict(part) == classifier.predict(whole)[kept.numpy()]
    assert same.mean() > 0.65  # by stored statistics: 0.51


@pytest.mark.filterwarnings("ignore::pairnorm.data.GraphWarning")
@pytest.mark.parametrize("model", ["GCN", "SGC", "logistic regression"])
def test_component_is_predicted_as_in_whole_graph(model):
    """Two components: one alone is normalized by the stored statistics of both."""
    halves = [csbm(200, classes=2, seed=seed) for seed in (1, 2)]
    shift = torch.tensor([[0.0], [1.0]]) * torch.ones(1, halves[0].num_features)
    features = torch.cat([half.features.to_dense() + one for half, one in zip(halves, shift, strict=True)])
    edges = torch.cat([halves[0].edge_index, 200 + halves[1].edge_index], 1)
    labels, names = (
        torch.cat([half.labels for half in halves]),
        np.array([f"n{number}" for number in range(400)]),
    )
    whole = Graph.from_edges(edges, features, labels, node_names=names)
    settings = {"epochs": 20, "seeds": 1, "scaling": "none", "time_limit": 0}
    classifier = NodeClassifier(model, depth=2, norm="PN-SI", scale=10.0, **settings).fit(whole)
    part = Graph.from_edges(halves[1].edge_index, features[200:], node_names=names[200:])
    np.testing.assert_allclose(classifier.predict_proba(part), classifier.probabilities_[200:], atol=1e-4)
