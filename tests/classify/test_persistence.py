import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import safetensors.torch
import torch
from written import write_customers

from pairnorm.base.errors import PairNormError
from pairnorm.base.files import CHANGE
from pairnorm.classify import ClassifierWarning, NodeClassifier
from pairnorm.classify.persistence import FORMAT, Facts, holds_model, verify
from pairnorm.data import Graph, GraphWarning

FACTS_OF_A_MODEL = Facts.model_fields.keys() - {"format"}

SETTINGS = {
    "SGC": {"model": "SGC", "depth": [2, 5]},
    "an average": {"model": ["SGC", "boosted trees", "label propagation"], "depth": 2, "metric": "macro-f1"},
    "GCN": {"model": "GCN", "depth": 3, "norm": "PN-SI", "hidden": 8, "seeds": 2, "epochs": 5},
    "GAT": {"model": "GAT", "depth": 2, "norm": "none", "seeds": 2, "epochs": 5},
    "GCN of one layer": {"model": "GCN", "depth": 1, "seeds": 1, "epochs": 5},
    "GCNII": {"model": "GCNII", "depth": 3, "hidden": 8, "seeds": 2, "epochs": 5},
    "APPNP": {"model": "APPNP", "depth": 4, "hidden": 8, "seeds": 2, "epochs": 5},
    "residual GCN": {"model": "residual GCN", "depth": 2, "hidden": 8},
    "hop network": {"model": "hop network", "depth": 2, "hidden": 8},
    "columns": {"model": "SGC", "depth": 2, "scaling": "columns", "adjacency": "sym", "norm": "PN-SCS"},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=list(SETTINGS))
def test_loaded_model_predicts_the_same(small, tmp_path, settings):
    fitted = NodeClassifier(**settings).fit(small)
    fitted.save(tmp_path / "run")
    loaded = NodeClassifier.load(tmp_path / "run")
    assert np.array_equal(loaded.predict_proba(small), fitted.predict_proba(small))
    assert loaded.get_params() == fitted.get_params()
    assert loaded.best_ == fitted.best_
    assert loaded.classes_.tolist() == fitted.classes_.tolist()
    no_nodes = torch.zeros_like(small.test)
    assert loaded.score(small.replace(test=no_nodes)) == fitted.score(small)
    assert np.array_equal(loaded.held_out_.confusion, fitted.held_out_.confusion)
    assert (loaded.held_out_.auc, loaded.parts_) == (fitted.held_out_.auc, fitted.parts_)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["model.json", "model.safetensors"]


def test_loaded_model_keeps_edge_directions(flow, tmp_path):
    fitted = NodeClassifier("boosted trees", simple=True).fit(flow)
    fitted.save(tmp_path)
    loaded = NodeClassifier.load(tmp_path)
    result = loaded.predict_proba(flow)
    assert np.array_equal(result, fitted.predict_proba(flow))
    with pytest.warns(ClassifierWarning, match="graph 'graph' has no directions"):
        assert not np.array_equal(loaded.predict_proba(flow.replace(directed=None)), result)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"depth": range(1, 4)}, {"depth": [1, 2, 3]}),
        ({"depth": np.arange(1, 4)}, {"depth": [1, 2, 3]}),
        ({"depth": np.int64(2), "scale": np.float32(0.5)}, {"depth": 2, "scale": 0.5}),
        ({"depth": 2, "random_state": np.int64(3)}, {"depth": 2, "random_state": 3}),
    ],
)
def test_numpy_parameters_are_saved(small, tmp_path, given, kept):
    NodeClassifier(**given, norm="PN").fit(small).save(tmp_path)
    result = NodeClassifier.load(tmp_path).get_params()
    assert {name: result[name] for name in kept} == kept


def test_failed_save_leaves_no_folder(small, tmp_path):
    fitted = NodeClassifier(depth=2, norm="PN").fit(small).set_params(device=object())
    with pytest.raises((TypeError, ValueError)):
        fitted.save(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_class_and_feature_names_are_saved(small, tmp_path):
    named = small.replace(
        class_names=("niedrig", "hoch, sehr"), feature_names=tuple(f"Wörter {n}" for n in range(500))
    )
    NodeClassifier(depth=2, norm="PN").fit(named).save(tmp_path)
    loaded = NodeClassifier.load(tmp_path)
    assert loaded.classes_.tolist() == ["niedrig", "hoch, sehr"]
    assert loaded.feature_names_in_ == named.feature_names
    assert set(loaded.predict(named)) == {"niedrig", "hoch, sehr"}


@pytest.fixture(scope="module")
def saved(small: Graph, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], bytes]:
    """The facts and the tensors of a saved model."""
    folder = tmp_path_factory.mktemp("saved")
    NodeClassifier(depth=2, norm="PN", scaling="columns", simple=True).fit(small).save(folder)
    return json.loads((folder / "model.json").read_text()), (folder / "model.safetensors").read_bytes()


def write(folder: Path, facts: dict[str, Any] | str, tensors: bytes) -> None:
    (folder / "model.json").write_text(facts if isinstance(facts, str) else json.dumps(facts))
    (folder / "model.safetensors").write_bytes(tensors)


def test_saving_over_a_file_raises(small, tmp_path, raises):
    classifier = NodeClassifier("most frequent class").fit(small)
    (tmp_path / "model").write_text("mine")
    with raises("is-a-file"):
        classifier.save(tmp_path / "model")
    assert (tmp_path / "model").read_text() == "mine"


def test_missing_or_damaged_model_raises(tmp_path, saved, raises):
    with raises("file-missing"):
        NodeClassifier.load(tmp_path)
    facts, tensors = saved
    write(tmp_path, facts | {"format": 99}, tensors)
    with raises("wrong-version", value=99, expected=str(FORMAT)):
        NodeClassifier.load(tmp_path)
    write(tmp_path, facts, b"no tensors")
    with raises("file-damaged"):
        NodeClassifier.load(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, '{"a":' * 100_000])
def test_invalid_json_raises(tmp_path, saved, raises, text):
    write(tmp_path, text, saved[1])
    with raises("file-damaged"):
        NodeClassifier.load(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("encoder", [1]),
        ("encoder", {"columns": None}),
        ("encoder", {"columns": [{"name": 1, "kind": "number", "categories": []}]}),
        ("encoder", {"columns": []}),
        ("features", 3),
        ("features", 10**12),
        ("classes", "ab"),
        ("classes", ["a", "b", "c"]),
        ("temperature", 0),
        ("held_out", {"confusion": [[2**70]], "auc": None, "average_precision": None}),
        ("temperature", 0.0),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("scaling", "diagonals"),
        ("parameters", []),
        ("parameters", {"depht": 1}),
        ("parts.0.settings", {}),
        ("parts.0.settings", {"adjacency": "left"}),
        ("parts.0.weight", 0),
        ("parts.0.candidate.imputation", "concrete"),
        ("parts", []),
        ("smooth", [0.5]),
        ("smooth", [1.0, 2.0]),
        ("tilt", 2.0),
        ("held_out", {"confusion": [[1]], "auc": None, "average_precision": None}),
        ("surplus", 1),
        ("parts.0.candidate.depth", 1.5),
        ("parts.0.candidate.depth", -1),
        ("parts.0.candidate.depth", 0),
        ("parts.0.candidate.depth", 10**9),
        ("parts.0.candidate.depth", True),
        ("parts.0.candidate.model", "GCN"),
        ("parts.0.candidate.model", "label propagation"),
        ("parts.0.candidate.model", "BERT"),
        ("parts.0.candidate.norm", None),
        ("parts.0.candidate.scale", 1e300),
        ("parts.0.candidate.scale", "1"),
        ("parts.0.candidate.scale", 0),
    ],
)
def test_invalid_field_raises(tmp_path, saved, raises, field, value):
    facts = json.loads(json.dumps(saved[0]))
    *parents, last = field.split(".")
    within = facts
    for parent in parents:
        within = within[int(parent) if parent.isdigit() else parent]
    within[last] = value
    write(tmp_path, facts, saved[1])
    with raises("file-damaged"):
        NodeClassifier.load(tmp_path)


@pytest.mark.parametrize("name", sorted(FACTS_OF_A_MODEL))
def test_missing_field_raises(tmp_path, saved, raises, name):
    facts, tensors = saved
    assert set(facts) == {"format", *FACTS_OF_A_MODEL}
    write(tmp_path, {key: value for key, value in facts.items() if key != name}, tensors)
    with raises("file-damaged"):
        NodeClassifier.load(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "model.0.weight",
            "model.0.bias",
            "scaling.mean",
            "scaling.deviation",
            "known.names",
            "known.labels",
        ),
        *("fallback", "prior", "seen", "tested", "calibration.scores", "calibration.incomplete"),
    ],
)
def test_invalid_tensor_raises(tmp_path, saved, raises, name):
    before = safetensors.torch.load(saved[1])
    tensor = before[name]
    changed = [None, tensor[:0], tensor[None]]
    changed += [] if name.startswith("model.") else [tensor.to(torch.float16)]  # members convert theirs
    if tensor.is_floating_point():
        changed += [tensor.index_fill(0, torch.tensor(0), bad) for bad in (torch.nan, torch.inf)]
    for other in changed:
        if name in ("seen", "tested", "known.names") and other is not None and not len(other):
            continue  # a model may have seen none
        tensors = {key: value for key, value in (before | {name: other}).items() if value is not None}
        write(tmp_path, saved[0], safetensors.torch.save(tensors))
        with raises("file-damaged"):
            NodeClassifier.load(tmp_path)


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
@pytest.mark.parametrize("target", ["pipe", "/dev/zero", "/proc/kmsg"])
def test_pipe_or_device_raises_without_blocking(tmp_path, saved, name, target):
    write(tmp_path, *saved)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / name).symlink_to(target)
    with pytest.raises(PairNormError) as caught:
        NodeClassifier.load(tmp_path)
    assert caught.value.code in ("file-missing", "file-damaged")
    assert not holds_model(tmp_path) or name == "model.safetensors"


def test_interrupted_save_is_completed_by_load(small, tmp_path, saved):
    """The killed run had decided: its files are those that count."""
    write(tmp_path, *saved)
    change = tmp_path / CHANGE
    NodeClassifier(depth=3, norm="PN", simple=True).fit(small).save(change)
    (change / "report.md.gone").touch()
    (tmp_path / "report.md").write_text("old")
    assert NodeClassifier.load(tmp_path).best_.depth == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.json", "model.safetensors"]


def test_loaded_encoder_reads_later_files_like_fit(tmp_path):
    files = write_customers(tmp_path)
    read = {"label": "risk", "ignore": ["abroad"]}
    with pytest.warns(GraphWarning):
        graph = Graph.from_files(files.nodes, files.edges, **read)
    fitted = NodeClassifier(depth=2, norm="PN").fit(graph)
    fitted.save(tmp_path / "run")
    loaded = NodeClassifier.load(tmp_path / "run")
    assert loaded.encoder_ == graph.encoder
    # Another order and no classes: still the same features.
    frame = pandas.read_csv(files.nodes, dtype=str, keep_default_na=False)
    frame[["job", "customer", "income", "age"]].to_csv(tmp_path / "new.csv", index=False)
    with pytest.warns(GraphWarning):
        later = Graph.from_files(tmp_path / "new.csv", files.edges, encoder=loaded.encoder_)
    assert np.array_equal(loaded.predict_proba(later), fitted.predict_proba(graph))


def test_trees_with_infinite_thresholds_are_saved(tmp_path):
    """A column that is empty for one class gives thresholds that are infinite."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(600) % 2
    features = torch.randn(600, 2, generator=generator)
    features[labels == 1, 0] = torch.nan
    edges = torch.randint(600, (2, 900), generator=generator)
    graph = Graph.from_edges(edges, features, labels)
    with pytest.warns(ClassifierWarning, match="column '0' alone predicts the label"):
        classifier = NodeClassifier("boosted trees").fit(graph)
    classifier.save(tmp_path)
    verify(classifier, tmp_path)
    assert NodeClassifier.load(tmp_path).score(graph) > 0.95


def test_verify_raises_if_predictions_differ(tmp_path, small, raises):
    classifier = NodeClassifier("SGC", depth=(1, 2), scale=(3.0, 10.0), norm="PN").fit(small)
    classifier.save(tmp_path)
    verify(classifier, tmp_path)
    classifier.probabilities_ = classifier.probabilities_[:, ::-1]
    with raises("not-reproduced", value=str(tmp_path)):
        verify(classifier, tmp_path)


def test_loaded_parameters_equal_those_saved(tmp_path, small):
    given = {"depth": (1, 2), "scale": [3.0, 10.0], "norm": "PN"}
    NodeClassifier(**given).fit(small).save(tmp_path)
    loaded = NodeClassifier.load(tmp_path)
    assert {name: loaded.get_params()[name] for name in given} == given


def test_parts_sharing_statistics_are_saved(tmp_path, small):
    classifier = NodeClassifier("SGC", depth=2, scale=(3.0, 10.0), norm="PN").fit(small)
    classifier.model_ = replace(classifier.model_, parts=[*classifier.model_.parts] * 2)
    classifier.save(tmp_path)
    verify(classifier, tmp_path)
