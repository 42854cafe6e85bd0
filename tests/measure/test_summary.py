from math import inf, nan

import matplotlib.colors
import pandas
import pytest
import torch

from pairnorm.measure import Probe
from pairnorm.measure.diagnosis import Record, form_verdict
from pairnorm.measure.probe import draw
from pairnorm.nn import GCN


def record(layer, angle=1.0, rank=3.0, response=None, *, forward=0, kind="", nodes=5, norm=1.0):
    measures = {"mean_average_distance": torch.tensor([angle]), "numerical_rank": torch.tensor([rank])}
    if response is not None:
        measures["gradient_norm"] = torch.tensor([response])
    return Record(forward, layer, f"conv{layer}", kind, nodes, torch.tensor([norm]), measures, {})


def test_collapse_must_last_to_the_last_but_one_layer():
    angles = [1.0, 0.01, 1.0, 0.04, 0.01, 1.0]  # the last layer gives the logits
    verdict = form_verdict([record(layer, angle) for layer, angle in enumerate(angles, 1)])
    assert (verdict.kind, verdict.layer) == ("states-collapse", 4)
    assert "(conv4) on, all nodes point the same way (mean average distance 0.04)" in verdict.text
    assert form_verdict([record(1, 0.01), record(2), record(3)]).kind == "no-sign"


def test_node_type_that_collapsed_is_named():
    for order in (["author", "paper"], ["paper", "author"]):
        actual = [record(layer, rank=1.0 if kind == "author" else 3.0, kind=kind)
                 for layer in (1, 2) for kind in order]  # fmt: skip
        verdict = form_verdict(actual)
        assert "(conv1, author) on, all nodes lie on one line (numerical rank 1)" in verdict.text


def test_verdict_uses_the_last_forward_pass():
    assert (
        form_verdict([record(1, 0.01), record(2, 0.01), record(1, forward=1), record(2, forward=1)]).layer
        is None
    )


def test_gradients_vanish_up_to_the_last_weak_layer():
    responses = [1e-9, 1e-5, 0.5, 1.0]
    verdict = form_verdict([record(layer, response=response) for layer, response in enumerate(responses, 1)])
    assert (verdict.kind, verdict.layer) == ("gradients-vanish", 2)


def test_not_finite_is_reported_first():
    states = [record(1, 0.01), record(2, nan, nan, nan, norm=inf), record(3, nan, nan, nan, norm=nan)]
    assert form_verdict(states)[:2] == ("not-finite", 2)
    verdict = form_verdict(
        [record(layer, response=response) for layer, response in enumerate([nan, inf, 1.0], 1)]
    )
    assert verdict == ("not-finite", 2, "Gradients are not finite from layer 2 (conv2) down.")


def test_single_node_gives_no_verdict():
    for nodes in (0, 1):
        verdict = form_verdict([record(layer, 0.0, 1.0, nodes=nodes) for layer in (1, 2)])
        assert verdict.kind == "no-sign"
        assert "fewer than two nodes" in verdict.text


def frame(trials=1, **columns):
    rows = len(next(iter(columns.values()))) // trials
    place = {
        "forward": 0,
        "layer": [layer for layer in range(1, rows + 1) for _ in range(trials)],
        "name": "c",
    }
    return pandas.DataFrame(place | {"trial": list(range(trials)) * rows} | columns)


def visible(figure):
    return [axis for axis in figure.axes if axis.get_visible()]


def test_one_panel_per_quantity_and_one_line_per_kind_of_pairs():
    measures = {
        name: [3.0, 2.0, 1.5]
        for name in (
            *("row_diff", "row_diff_standard_error", "col_diff", "apd_connected"),
            *("apsd_connected", "apsd_random", "effective_rank", "my_own"),
        )
    }
    panels = visible(draw(frame(**measures)))
    assert [axis.get_title(loc="left") for axis in panels] == [
        *("pairwise distance", "pairwise squared distance", "col-diff", "effective rank", "my own"),
    ]
    labels = [[line.get_label() for line in axis.lines] for axis in panels]
    assert labels[:2] == [["all pairs (row-diff)", "connected"], ["all pairs", "connected"]]
    colors = [[line.get_color() for line in axis.lines] for axis in panels[:2]]
    assert colors[0] == colors[1]
    # Distinguishable without color: by lightness and by marker.
    first, second = (matplotlib.colors.rgb_to_hsv(matplotlib.colors.to_rgb(color)) for color in colors[0])
    assert abs(first[2] - second[2]) > 0.1
    assert len({line.get_marker() for line in panels[0].lines}) == 2


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ([1.0, 0.1, 0.001], "log"),
        ([1.0, 0.9, 0.5], "linear"),
        ([1.0, 0.0, 0.0], "linear"),
        ([0.0] * 3, "linear"),
    ],
)
def test_axis_scale_follows_the_values(values, scale):
    (axis,) = visible(draw(frame(row_diff=values)))
    assert axis.get_yscale() == scale
    if scale == "linear":
        bottom, top = axis.get_ylim()
        assert bottom <= 0
        assert top > max(values)


def test_trials_are_a_mean_and_a_band():
    (axis,) = visible(draw(frame(trials=2, row_diff=[1.0, 3.0, 2.0, 2.0])))
    assert axis.lines[0].get_ydata().tolist() == [2.0, 2.0]
    band = axis.collections[0].get_paths()[0].vertices
    assert set(band[band[:, 0] == 1][:, 1]) == {1.0, 3.0}


def test_plot_shows_the_chosen_forward_pass(raises, adjacency, tmp_path):
    model = GCN(5, 3, num_layers=3, hidden_channels=4).eval()
    x = torch.randn(40, 5)
    with Probe(model, ["row_diff", "effective_rank"]) as probe:
        for scale in (1, 10):
            model(scale * x, adjacency.to_sparse_csr())
    for forward in (-1, 0):
        figure = probe.plot(forward)
        expected = probe.frame().query(f"forward == {forward % 2}")["row_diff"].tolist()
        assert figure.axes[0].lines[0].get_ydata().tolist() == expected
    figure.savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5000
    with raises("out-of-range", value=2):
        probe.plot(2)


@pytest.mark.parametrize("ask", [Probe.plot, Probe.frame, Probe.verdict])
def test_empty_probe_raises_with_hint(raises, ask):
    with raises("no-records"):
        ask(Probe(GCN(5, 3)))
