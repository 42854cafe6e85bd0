from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from synthetic import SMALL, accuracy, fill, narrowed

from pairnorm.base import plotting
from pairnorm.base.plotting import GREEN
from pairnorm.paper import figures
from pairnorm.paper.experiments import BARS, FIGURE1, FIGURE3, FIGURE4, Selection
from pairnorm.paper.figures import CLASSES, against_depth, bars, figure1, figure2, pair_norm_steps
from pairnorm.sweep.grid import TableCell
from pairnorm.sweep.index import ResultIndex
from pairnorm.train import Store


def test_pair_norm_steps_center_and_rescale():
    points, labels = pair_norm_steps()
    before, centered, rescaled = points.values()
    assert float(before.mean(0).norm()) > 0.5
    torch.testing.assert_close(centered.mean(0), torch.zeros(2).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(before - before.mean(0), centered)
    assert abs(float(rescaled.square().sum(1).mean()) - 1) < 1e-4
    # Rescaling only stretches: every point keeps its direction.
    cosine = torch.nn.functional.cosine_similarity(centered, rescaled)
    torch.testing.assert_close(cosine, torch.ones_like(cosine), atol=1e-4, rtol=0)
    assert set(labels.tolist()) == set(range(len(CLASSES)))


def test_figure_2_draws_the_steps():
    figure = figure2()
    points, labels = pair_norm_steps()
    for axis, plane in zip(figure.axes, points.values(), strict=True):
        drawn = [line for line in axis.lines if len(line.get_xdata()) == int((labels == 0).sum())]
        expected = plane[labels == 0][:, 0]
        torch.testing.assert_close(torch.as_tensor(drawn[0].get_xdata()), expected, atol=1e-6, rtol=0)


CORA = narrowed(replace(SMALL, datasets=["cora"]))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> ResultIndex:
    names = ("figure1", "figure3", "figure4", "bars")
    experiments = [experiment for experiment in CORA if experiment.name in names]
    return ResultIndex.read(fill(tmp_path_factory.mktemp("store") / "s.sqlite", experiments))


def small(experiment: object):  # type: ignore[no-untyped-def]
    return SMALL.narrow(experiment)  # type: ignore[arg-type]


def test_figure_4_draws_means_dashed_or_solid(results):
    experiment = small(FIGURE4)
    figure = against_depth(results, experiment, "cora", ("SGC", "GCN", "GAT"), 100, test_only=True)
    assert figure is not None
    for axis, model in zip(figure.axes, ("SGC", "GCN", "GAT"), strict=True):
        assert axis.get_title() == model
        curves = [line for line in axis.lines if len(line.get_xdata()) > 1]
        assert [line.get_linestyle() for line in curves] == ["--", "-"]
        for style, method in (("--", model), ("-", f"{model}-PN")):
            expected = [
                result.mean("test_accuracy")
                for result in results.by_depth(experiment, TableCell("cora", method, 100))
            ]
            drawn = [line for line in curves if line.get_linestyle() == style][-1]
            np.testing.assert_array_equal(drawn.get_xdata(), [2, 4, 8])
            np.testing.assert_array_equal(drawn.get_ydata(), expected)


def test_figure_4_marks_the_depth_of_best_validation(results):
    experiment = small(FIGURE4)
    figure = against_depth(results, experiment, "cora", ("GCN",), 100, test_only=True)
    assert figure is not None
    diamonds = [line for line in figure.axes[0].lines if line.get_marker() == "D"]
    expected = [results.chosen(experiment, TableCell("cora", name, 100)) for name in ("GCN", "GCN-PN")]
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in diamonds] == [
        (chosen.layers, chosen.accuracy) for chosen in expected if chosen is not None
    ]
    assert [line.get_xdata()[0] for line in diamonds] == [2, 8]
    assert {to_hex(line.get_color()) for line in diamonds} == {GREEN.lower()}


def test_figure_1_has_losses_accuracies_and_measures(results):
    figure = figure1(results, small(FIGURE1), "cora")
    assert figure is not None
    assert [axis.get_title() for axis in figure.axes] == ["Loss", "Accuracy", "Row-diff", "Col-diff"]
    plain, normalized = figure.axes[2].lines
    np.testing.assert_allclose(plain.get_ydata(), [0.9**2, 0.9**4, 0.9**8])
    assert len(set(normalized.get_ydata())) == 1  # one scale at all depths


def test_bars_show_accuracy_and_depth(results):
    experiment = small(BARS)
    figure = bars(results, experiment, "GCN")
    assert figure is not None
    left, right = figure.axes  # only Cora was run
    assert len(left.patches) == len(right.patches) == 6 * 5
    result = results.chosen(experiment, TableCell("cora", "GCN", 0))
    assert result is not None
    assert left.patches[0].get_height() == result.accuracy
    assert right.patches[0].get_height() == result.layers == 2
    hatched = [bar.get_hatch() is not None for bar in left.patches]
    assert hatched == ([True] * 5 + [False] * 5) * 3  # plain hatched, PairNorm filled


def test_empty_index_draws_nothing():
    nothing = ResultIndex({})
    assert figure1(nothing, FIGURE1, "cora") is None
    assert against_depth(nothing, FIGURE3, "cora", ("GCN", "GAT"), 0) is None
    assert bars(nothing, BARS, "GAT") is None


def test_figure_texts_are_inside_the_canvas(results, tmp_path):
    figures = [
        against_depth(results, small(FIGURE4), "cora", models, 100, test_only=True)
        for models in (("SGC",), ("SGC", "GCN"), ("SGC", "GCN", "GAT"))
    ]
    for figure in (*figures, figure1(results, small(FIGURE1), "cora"), bars(results, small(BARS), "GAT")):
        assert figure is not None
        figure.savefig(tmp_path / "f.png")  # lays it out
        width, height = figure.bbox.size
        for part in (*figure.legends, *(axis for axis in figure.axes)):
            box = part.get_tightbbox()
            assert box.x0 >= -1
            assert box.y0 >= -1
            assert box.x1 <= width + 1
            assert box.y1 <= height + 1


def test_synthetic_accuracy_grows_with_depth_under_pair_norm():
    [experiment] = [result for result in CORA if result.name == "figure4"]
    [shallow, *_, deep] = experiment.candidates(TableCell("cora", "GCN-PN", 100))
    assert accuracy(deep) > accuracy(shallow)


def test_missing_results_get_no_empty_axes(tmp_path):
    experiments = [Selection(datasets=["cora"]).narrow(small(experiment)) for experiment in (FIGURE4, BARS)]
    path = fill(tmp_path / "s.sqlite", [experiment for experiment in experiments if experiment])
    with Store(path) as store:
        cells = store.trials_by_spec(missing_rate=[0.0, 1.0])
    part = ResultIndex({spec: trials for spec, trials in cells.items() if spec.model != "GAT"})
    figure = against_depth(part, small(FIGURE4), "cora", ("SGC", "GCN", "GAT"), 100)
    assert figure is not None
    assert [axis.get_title() for axis in figure.axes] == ["SGC", "GCN"]
    figure = bars(part, small(BARS), "GCN")
    assert figure is not None
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["0%", "100%"]


def test_figure_2_bytes_ignore_rounding_errors(tmp_path, monkeypatch):
    """Bug: processors disagree on the last digit of a coordinate, which the PDF shows."""
    points, labels = pair_norm_steps()
    for name, error in (("one", 0.0), ("other", 1e-12)):
        moved = {title: plane * (1 + error) for title, plane in points.items()}
        monkeypatch.setattr(figures, "pair_norm_steps", lambda moved=moved: (moved, labels))
        plotting.save(figure2(), tmp_path, name)
    assert (tmp_path / "one.pdf").read_bytes() == (tmp_path / "other.pdf").read_bytes()
