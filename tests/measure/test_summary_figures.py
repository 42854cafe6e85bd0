import matplotlib.colors
import pandas
import pytest

from pairnorm.measure import Probe
from pairnorm.measure.summary import draw
from pairnorm.nn import GCN


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
    # Told apart without color: by lightness and by marker.
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
def test_the_scale_suits_the_values(values, scale):
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


def test_a_probe_draws_the_chosen_forward(raises, adjacency, tmp_path):
    import torch

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
def test_nothing_recorded_says_what_to_do(raises, ask):
    with raises("no-records"):
        ask(Probe(GCN(5, 3)))
