import json
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from written import write_customers

from pairnorm.classify import NodeClassifier
from pairnorm.data import Graph, GraphWarning
from pairnorm.errors import PairNormError

SETTINGS = {
    "SGC": {"model": "SGC", "depth": [2, 5]},
    "GCN": {"model": "GCN", "depth": 3, "norm": "PN-SI", "hidden": 8, "seeds": 2, "epochs": 5},
    "GAT": {"model": "GAT", "depth": 2, "norm": "none", "seeds": 2, "epochs": 5},
    "GCN of one layer": {"model": "GCN", "depth": 1, "seeds": 1, "epochs": 5},
    "columns": {"model": "SGC", "depth": 2, "scaling": "columns", "adjacency": "sym", "norm": "PN-SCS"},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=list(SETTINGS))
def test_what_is_loaded_predicts_the_same(small: Graph, tmp_path: Path, settings: dict[str, object]) -> None:
    fitted = NodeClassifier(**settings).fit(small)
    fitted.save(tmp_path / "run")
    loaded = NodeClassifier.load(tmp_path / "run")
    assert np.array_equal(loaded.predict_proba(small), fitted.predict_proba(small))
    assert loaded.get_params() == fitted.get_params()
    assert loaded.best_ == fitted.best_
    assert loaded.classes_.tolist() == fitted.classes_.tolist()
    nobody = torch.zeros_like(small.test)
    assert loaded.score(small.replace(test=nobody)) == fitted.held_out_.accuracy
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["model.json", "model.safetensors"]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"depth": range(1, 4)}, {"depth": [1, 2, 3]}),
        ({"depth": np.arange(1, 4)}, {"depth": [1, 2, 3]}),
        ({"depth": np.int64(2), "scale": np.float32(0.5)}, {"depth": 2, "scale": 0.5}),
        ({"depth": 2, "random_state": np.int64(3)}, {"depth": 2, "random_state": 3}),
    ],
)
def test_numpys_parameters_are_saved(
    small: Graph, tmp_path: Path, given: dict[str, object], kept: dict[str, object]
) -> None:
    NodeClassifier(**given, norm="PN").fit(small).save(tmp_path)
    found = NodeClassifier.load(tmp_path).get_params()
    assert {name: found[name] for name in kept} == kept


def test_what_cannot_be_saved_leaves_no_half_behind(small: Graph, tmp_path: Path) -> None:
    fitted = NodeClassifier(depth=2, norm="PN").fit(small).set_params(device=object())
    with pytest.raises((TypeError, ValueError)):
        fitted.save(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_names_of_classes_and_features_are_kept(small: Graph, tmp_path: Path) -> None:
    named = small.replace(
        class_names=("niedrig", "hoch, sehr"), feature_names=tuple(f"Wörter {n}" for n in range(500))
    )
    NodeClassifier(depth=2, norm="PN").fit(named).save(tmp_path)
    loaded = NodeClassifier.load(tmp_path)
    assert loaded.classes_.tolist() == ["niedrig", "hoch, sehr"]
    assert loaded.feature_names_in_ == named.feature_names
    assert set(loaded.predict(named)) == {"niedrig", "hoch, sehr"}


def test_what_is_no_saved_model_is_named(small: Graph, tmp_path: Path) -> None:
    with pytest.raises(PairNormError, match=r"there is no model.json"):
        NodeClassifier.load(tmp_path)
    NodeClassifier(depth=2, norm="PN").fit(small).save(tmp_path)
    facts = json.loads((tmp_path / "model.json").read_text())
    for damage, message in (
        ("{", "is damaged"),
        ("[]", "format None is not known"),
        (json.dumps(facts | {"format": 99}), "format 99 is not known; expected 3"),
        (json.dumps(facts | {"features": 3}), "is damaged"),
        (json.dumps({name: value for name, value in facts.items() if name != "network"}), "is damaged"),
    ):
        (tmp_path / "model.json").write_text(damage)
        with pytest.raises(PairNormError, match=message):
            NodeClassifier.load(tmp_path)
    (tmp_path / "model.json").write_text(json.dumps(facts))
    (tmp_path / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(PairNormError, match="is damaged"):
        NodeClassifier.load(tmp_path)


def test_a_loaded_model_reads_a_later_file_as_fit_read_the_first(tmp_path: Path) -> None:
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


def test_a_model_of_an_older_format_is_refused_by_name(small: Graph, tmp_path: Path) -> None:
    NodeClassifier(depth=2, norm="PN").fit(small).save(tmp_path)
    facts = json.loads((tmp_path / "model.json").read_text())
    (tmp_path / "model.json").write_text(json.dumps(facts | {"format": 2}))
    with pytest.raises(PairNormError, match="format 2 is not known; expected 3"):
        NodeClassifier.load(tmp_path)
