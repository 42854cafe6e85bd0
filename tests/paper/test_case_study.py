from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from synthetic import layers

from pairnorm.base.errors import PairNormError
from pairnorm.data import Graph, csbm, features_after
from pairnorm.paper.evidence import PAIRS, Layers, read_layers, studied, write_layers
from pairnorm.paper.experiments import CASE_STUDY
from pairnorm.paper.figures import case_study
from pairnorm.paper.runner import BINS, measure_layers
from pairnorm.train import Spec, Store, train

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def graph() -> Graph:
    return csbm(120, classes=3, degree=4, features=20, words=4, seed=1).with_split("per-class-5", 0)


def states(graph: Graph, depth: int, normalize: bool) -> list[torch.Tensor]:
    """Return the states of SGC in float64, by dense matrices."""
    adjacency = graph.adjacency.to_dense().double() + torch.eye(graph.num_nodes, dtype=torch.float64)
    adjacency /= adjacency.sum(1, keepdim=True)
    values = features_after(graph).values
    h = (values.to_dense() if values.layout != torch.strided else values).double()

    def norm(h: torch.Tensor) -> torch.Tensor:
        h = h - h.mean(0)
        return h / h.square().sum(1).mean().sqrt() if normalize else h

    result = []
    h = norm(h) if normalize else h
    for _ in range(depth):
        h = adjacency @ h
        h = norm(h) if normalize else h
        result.append(h)
    return result


@pytest.mark.parametrize("norm", ["none", "PN"])
def test_sgc_layers_equal_dense_reference(graph, norm):
    result = measure_layers(graph, Spec("csbm", "SGC", 3, norm=norm), 0, CPU)
    assert result.test_accuracy is None
    source, target = graph.adjacency.to_dense().triu(1).nonzero().T
    for layer, h in enumerate(states(graph, 3, norm == "PN")):
        distance = (h[source] - h[target]).norm(dim=1)
        assert result.apd["connected"][layer] == pytest.approx(float(distance.mean()), rel=1e-4)
        assert result.apsd["connected"][layer] == pytest.approx(float(distance.square().mean()), rel=1e-4)
        everything = torch.cdist(h, h)
        assert result.apsd["random"][layer] == pytest.approx(float(everything.square().mean()), rel=1e-4)
        assert result.apd["random"][layer] == pytest.approx(float(everything.mean()), rel=0.05)
        assert sum(result.histograms["connected"][layer]) == len(source)
        edges = result.edges["connected"]
        inside = [int(((distance >= low) & (distance < high)).sum())
                  for low, high in pairwise(edges[:-1])]  # fmt: skip
        off = [
            abs(one - two) for one, two in zip(inside, result.histograms["connected"][layer], strict=False)
        ]
        assert sum(off) <= 4  # a distance may lie within rounding of an edge


def test_measured_gcn_equals_trained_gcn(graph):
    spec = Spec("csbm", "GCN", 3, norm="PN-SI", hidden=8, epochs=15)
    result = measure_layers(graph, spec, 4, CPU)
    [trial] = train(graph, spec, [4], "cpu")
    assert result.test_accuracy == pytest.approx(trial.test_accuracy, abs=1e-6)
    assert len(result.apd["random"]) == len(result.histograms["random"]) == 2  # the logits do not count
    # PN-SI puts every hidden state on the unit sphere.
    assert all(apsd <= 2.0001 for apsd in result.apsd["random"])


LAYERS = Layers(
    0.5,
    *({kind: [value] for kind in PAIRS} for value in (1.0, 2.0)),
    edges={kind: [float(edge) for edge in range(BINS + 1)] for kind in PAIRS},
    histograms={kind: [[3] * BINS] for kind in PAIRS},
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "results.sqlite") as store:
        yield store


def test_layers_round_trip_through_the_store(store):
    first, second = Spec("cora", "SGC", 2), Spec("cora", "GCN", 2)
    assert read_layers(store) == {}
    write_layers(store, {first: LAYERS})
    write_layers(store, {second: LAYERS})
    assert read_layers(store) == {first: LAYERS, second: LAYERS}


@pytest.mark.parametrize("records", [{"cora SGC depth=2": {"other": 1}}, {"cora SGC depth=2": 3}, {"x": {}}])
def test_invalid_records_raise(raises, store, records):
    store.write_records("case-study", records)
    with raises("file-damaged", value=store.path):
        read_layers(store)


SPECS = [spec for cell in CASE_STUDY.cells() for spec in CASE_STUDY.candidates(cell)]


@pytest.fixture
def layers_by_norm() -> dict[str, Layers]:
    return studied({spec: layers(spec) for spec in SPECS}, CASE_STUDY, "GCN")


def test_case_study_uses_the_papers_settings():
    gcn = [spec for spec in SPECS if spec.model == "GCN"]
    assert [spec.norm for spec in gcn] == ["none", "PN", "PN-SI"]
    assert {(spec.depth, spec.hidden, spec.dropout, spec.epochs) for spec in gcn} == {(12, 128, 0.6, 1000)}
    assert {spec.split for spec in SPECS} == {"random"}


def test_case_study_figure_shows_means_and_distributions(layers_by_norm):
    figure = case_study(layers_by_norm, "GCN")
    assert figure is not None
    assert len(figure.axes) == 12
    assert [axis.get_title() for axis in figure.axes[:3]] == [
        "without PairNorm\n(accuracy 0.300)", "PairNorm\n(accuracy 0.750)", "PairNorm-SI\n(accuracy 0.750)"
    ]  # fmt: skip
    random = next(line for line in figure.axes[3].lines if line.get_label() == "random pairs")
    np.testing.assert_array_equal(random.get_xdata(), range(1, 12))
    np.testing.assert_array_equal(random.get_ydata(), layers_by_norm["none"].apd["random"])
    # Some layers, the first on top.
    labels = [label.get_text() for label in figure.axes[6].get_yticklabels()]
    assert labels == ["11", "9", "7", "5", "3", "1"]


def test_partial_case_study_is_drawn_and_empty_is_none():
    spec = next(spec for spec in SPECS if spec.norm == "PN")
    part = studied({spec: layers(spec), Spec("cora", "SGC", 2): layers(spec)}, CASE_STUDY, "SGC")
    assert list(part) == ["PN"]
    assert case_study(part, "SGC") is not None
    assert case_study({}, "SGC") is None


@pytest.mark.parametrize("change", [{"test_accuracy": []}, {"apd": {kind: [float("nan")] for kind in PAIRS}}])
def test_layers_with_invalid_values_raise(store, change):
    write_layers(store, {Spec("cora", "SGC", 2): replace(LAYERS, **change)})  # type: ignore[arg-type]
    with pytest.raises(PairNormError):
        read_layers(store)
