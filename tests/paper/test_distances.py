from pathlib import Path

import numpy as np
import pytest
from synthetic import layers

from pairnorm.paper.distances import distributions, mean_distances, studied, write_tensorboard
from pairnorm.paper.grids import CASE_STUDY
from pairnorm.paper.layers import Layers
from pairnorm.train import Spec

SPECS = [spec for place in CASE_STUDY.places() for spec in CASE_STUDY.candidates(place)]


@pytest.fixture
def found() -> dict[str, Layers]:
    return studied({spec: layers(spec) for spec in SPECS}, CASE_STUDY, "GCN")


def test_the_papers_setting() -> None:
    gcn = [spec for spec in SPECS if spec.model == "GCN"]
    assert [spec.norm for spec in gcn] == ["none", "PN", "PN-SI"]
    assert {(spec.depth, spec.hidden, spec.dropout, spec.epochs) for spec in gcn} == {(12, 128, 0.6, 1000)}
    assert {spec.split for spec in SPECS} == {"random"}


def test_means_by_layer(found: dict[str, Layers]) -> None:
    figure = mean_distances(found, "GCN")
    assert figure is not None
    assert len(figure.axes) == 6
    assert [axis.get_title() for axis in figure.axes[:3]] == [
        "without PairNorm (accuracy 0.300)", "PairNorm (accuracy 0.750)", "PairNorm-SI (accuracy 0.750)"
    ]  # fmt: skip
    random = next(line for line in figure.axes[3].lines if line.get_label() == "random")
    np.testing.assert_array_equal(random.get_xdata(), range(1, 12))
    np.testing.assert_array_equal(random.get_ydata(), found["none"].apd["random"])


def test_distributions_show_some_layers_the_first_on_top(found: dict[str, Layers]) -> None:
    figure = distributions(found, "GCN")
    assert figure is not None
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == ["11", "9", "7", "5", "3", "1"]


def test_a_part_of_the_study_is_drawn_and_nothing_is_none() -> None:
    spec = next(spec for spec in SPECS if spec.norm == "PN")
    some = studied({spec: layers(spec), Spec("cora", "SGC", 2): layers(spec)}, CASE_STUDY, "SGC")
    assert list(some) == ["PN"]
    assert mean_distances(some, "SGC") is not None
    assert mean_distances({}, "SGC") is None
    assert distributions({}, "SGC") is None


def test_tensorboard_reads_it(found: dict[str, Layers], tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write_tensorboard(found, "GCN", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["GCN-PN", "GCN-PN-SI", "GCN-none"]
    events = EventAccumulator(str(tmp_path / "GCN-none"), size_guidance={"histograms": 0}).Reload()
    assert [event.step for event in events.Histograms("distance_random")] == list(range(1, 12))
    assert events.Histograms("distance_random")[0].histogram_value.num == 10
    assert events.Scalars("apd_random")[1].value == pytest.approx(found["none"].apd["random"][1])
