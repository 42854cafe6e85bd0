import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier

from pairnorm.classify import NodeClassifier, register_candidate
from pairnorm.classify.candidates import boosted_trees as module


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(module, "FACTORIES", dict(module.FACTORIES))
    for module_name in ("pairnorm.classify.search_space",):
        monkeypatch.setattr(f"{module_name}.FACTORIES", module.FACTORIES)
    register_candidate("Mine", HistGradientBoostingClassifier)
    return "Mine"


@pytest.mark.parametrize("missing", [False, True])
def test_registered_classifier_is_fitted_and_saved(small, registered, tmp_path, missing):
    graph = small
    if missing:
        missing_nodes = small.labels * 0 + 1 > 0
        missing_nodes[::2] = False
        graph = small.replace(
            features=small.features.to_dense() * ~missing_nodes[:, None], missing=missing_nodes
        )
    classifier = NodeClassifier(registered).fit(graph)
    assert classifier.best_.model == "Mine"
    assert classifier.score(graph) > 0.6
    classifier.save(tmp_path)
    again = NodeClassifier.load(tmp_path).predict_proba(graph)
    np.testing.assert_allclose(again, classifier.predict_proba(graph), atol=1e-6)


def test_loading_never_imports_a_classifier(small, registered, tmp_path, raises, monkeypatch):
    NodeClassifier(registered).fit(small).save(tmp_path)
    module.FACTORIES.clear()
    monkeypatch.setattr(module, "entry_points", lambda **_: pytest.fail("looks for code"))
    with raises("not-imported", value="Mine"):
        NodeClassifier.load(tmp_path)


def test_entry_point_is_loaded_by_name(monkeypatch, registered):
    class Entry:
        def load(self) -> type:
            return HistGradientBoostingClassifier

    monkeypatch.setattr(module, "entry_points", lambda group, name: [Entry()] if name == "Tab" else [])
    assert module.find_candidate("Tab") == "Tab"
    assert module.find_candidate("Other") is None


@pytest.mark.parametrize("name", ["", " ", "a,b", "a\nb", 3])
def test_invalid_candidate_name_raises(name, raises):
    with raises("not-a-name", value=name):
        register_candidate(name, HistGradientBoostingClassifier)
