import json

import numpy as np
import pytest

from pairnorm.base import plotting
from pairnorm.report import charts
from pairnorm.report.charts import (
    Line,
    confusion,
    differences,
    draw_charts,
    intervals,
    lines,
    plain,
    reliability,
    save_charts,
)
from pairnorm.sweep.significance import paired_difference


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<b>x</b>", "&lt;b&gt;x&lt;/b&gt;"),
        ("$x$", "&#36;x&#36;"),
        ("R&D", "R&amp;D"),
        ("a" * 30, "a" * 21 + "…"),
    ],
)
def test_plotly_markup_is_escaped(text, shown):
    assert plain(text, 22) == shown


def test_non_finite_points_are_gaps():
    chart = lines(
        "t", [Line("a", [1, 2, 3], [0.5, float("nan"), float("inf")], "--blue", dashed=True)], "x", "y"
    )
    [trace] = chart.traces
    assert trace["y"] == [0.5, None, None]
    assert trace["line"]["dash"] == "dash"


def test_star_marks_a_point_without_legend():
    [trace] = lines("t", [], "x", "y", star=(1, 2)).traces
    assert (trace["x"], trace["y"], trace["showlegend"]) == ([1], [2], False)


def test_intervals_reach_from_low_to_high():
    [trace] = intervals("t", ["ours", "theirs"], [(80, 75, 86), (50, 40, 60)], "x").traces
    bars = trace["error_x"]
    assert [value + more for value, more in zip(trace["x"], bars["array"], strict=True)] == [86, 60]
    assert [value - less for value, less in zip(trace["x"], bars["arrayminus"], strict=True)] == [75, 40]


def test_confusion_shade_is_share_of_true_class():
    [trace] = confusion("t", np.array([[8, 2], [0, 0]]), ["<b>", "b"]).traces
    assert trace["z"] == [[0.8, 0.2], [0, 0]]
    assert trace["customdata"][0][1] == "truly &lt;b&gt;<br>predicted b<br>2 nodes, 20.0% of the class"


def test_long_class_names_are_rotated():
    for classes, angle in ((("low", "high"), 0), (("a rather long name", "another", "and a third"), -40)):
        counts = np.eye(len(classes), dtype=int)
        assert confusion("x", counts, classes).layout["xaxis"]["tickangle"] == angle


def test_reliability_is_accuracy_per_confidence_bin():
    _, trace = reliability("t", [0.55, 0.57, 0.95, 1.0], [True, False, True, True]).traces
    assert trace["x"] == pytest.approx([56, 97.5])
    assert trace["y"] == [50, 100]
    assert trace["customdata"] == [2, 2]


def test_accuracy_axes_start_near_smallest_value():
    assert intervals("t", ["ours"], [(90, 85, 95)], "x").layout["xaxis"]["range"][0] == 80
    assert reliability("t", [0.95, 0.99], [True, True]).layout["yaxis"]["range"][0] == 80
    assert reliability("t", [0.3, 0.99], [False, True]).layout["yaxis"]["range"][0] == 0


def test_interval_names_are_annotations():
    layout = intervals("t", ["ours", "a $ name"], [(80, 75, 86), (50, 40, 60)], "x").layout
    assert [note["text"] for note in layout["annotations"]] == ["ours", "a &#36; name"]
    assert not layout["yaxis"]["showticklabels"]


def test_lines_keep_points_style_and_mark():
    curves = [
        Line("SGC", [1, 2, 4], [50, 60, 40], charts.VERMILLION, True),
        Line("SGC-PN", [1, 2], [50, 70], charts.BLUE),
    ]
    chart = lines("t", curves, "depth", "accuracy (%)", star=(2, 70), vertical=(3, "here"))
    [axis] = draw_charts([chart]).axes
    plain, normalized, mark, vertical = axis.lines
    assert plain.get_xydata().tolist() == [[1, 50], [2, 60], [4, 40]]
    assert (plain.get_linestyle(), normalized.get_linestyle()) == ("--", "-")
    assert normalized.get_color() == plotting.BLUE
    assert mark.get_xydata().tolist() == [[2, 70]]
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["SGC", "SGC-PN", "here"]
    assert vertical.get_xdata() == [3, 3]
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("depth", "accuracy (%)")


def test_charts_share_a_figure_and_a_legend():
    chart = lines("t", [Line("with", [0, 1], [1, 2], charts.BLUE)], "depth", "%", from_zero=True)
    figure = draw_charts([chart] * 3)
    assert len(figure.axes) == 3
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["with"]
    assert figure.axes[0].get_ylim()[0] == 0


def test_confusion_matrix_has_counts_and_short_names():
    counts = np.array([[8, 2], [1, 9]])
    [axis] = draw_charts([confusion("t", counts, ["a" * 30, "b"])]).axes
    assert [text.get_text() for text in axis.texts] == ["8", "2", "1", "9"]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["a" * 21 + "…", "b"]


@pytest.mark.parametrize("name", ["$x_$", "a$b", "<b>&", "日本"])
def test_any_class_name_is_drawn_literally(tmp_path, name):
    chart = confusion("t", np.eye(2, dtype=int), [name, "b"])
    [axis] = draw_charts([chart]).axes
    assert axis.get_yticklabels()[0].get_text() == name
    save_charts([chart], tmp_path / "confusion.png")


def test_interval_axis_starts_near_the_values():
    chart = intervals("t", ["ours", "theirs"], [(91.0, 88.0, 93.0), (85.0, 82.0, 88.0)], "accuracy (%)")
    [axis] = draw_charts([chart]).axes
    assert axis.get_xlim()[0] == 70
    assert [label.get_text() for label in axis.get_yticklabels()] == ["ours", "theirs"]
    assert [text.get_text() for text in axis.texts] == ["91.0", "85.0"]


def test_difference_of_single_run_has_no_interval():
    """Bug: its infinite ends are no JSON, and the page of a report with one run could not be written."""
    value = paired_difference({0: 0.8}, {0: 0.7})
    chart = differences("t", ["Cora, SGC"], [value], [(charts.BLUE, "circle")], "gain", "gains")
    assert json.loads(json.dumps(chart.data, allow_nan=False))["traces"][0]["error_x"]["array"] == [0]
