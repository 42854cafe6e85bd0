from pathlib import Path

import numpy as np
import pytest

from pairnorm.base.plotting import BLUE
from pairnorm.report.charts import BLUE as BLUE_NAME
from pairnorm.report.charts import VERMILLION, Line, confusion, intervals, lines
from pairnorm.report.figures import draw_charts, save_charts


def test_lines_keep_points_style_and_mark() -> None:
    curves = [
        Line("SGC", [1, 2, 4], [50, 60, 40], VERMILLION, True),
        Line("SGC-PN", [1, 2], [50, 70], BLUE_NAME),
    ]
    chart = lines(
        "t", curves, "depth", "accuracy (%)", marks=[(2, 70, "best: depth 2")], vertical=(3, "here")
    )
    [axis] = draw_charts([chart]).axes
    plain, normalized, mark, vertical = axis.lines
    assert plain.get_xydata().tolist() == [[1, 50], [2, 60], [4, 40]]
    assert (plain.get_linestyle(), normalized.get_linestyle()) == ("--", "-")
    assert normalized.get_color() == BLUE
    assert (mark.get_xydata().tolist(), mark.get_label()) == ([[2, 70]], "best: depth 2")
    assert vertical.get_xdata() == [3, 3]
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("depth", "accuracy (%)")


def test_charts_share_a_figure_and_a_legend() -> None:
    chart = lines("t", [Line("with", [0, 1], [1, 2], BLUE_NAME)], "depth", "%", from_zero=True)
    figure = draw_charts([chart] * 3)
    assert len(figure.axes) == 3
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["with"]
    assert figure.axes[0].get_ylim()[0] == 0


def test_a_confusion_matrix_has_counts_and_short_names() -> None:
    counts = np.array([[8, 2], [1, 9]])
    [axis] = draw_charts([confusion("t", counts, ["a" * 30, "b"])]).axes
    assert [text.get_text() for text in axis.texts] == ["8", "2", "1", "9"]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["a" * 21 + "…", "b"]


@pytest.mark.parametrize("name", ["$x_$", "a$b", "<b>&", "日本"])
def test_a_class_with_any_name_is_drawn_as_it_is(tmp_path: Path, name: str) -> None:
    chart = confusion("t", np.eye(2, dtype=int), [name, "b"])
    [axis] = draw_charts([chart]).axes
    assert axis.get_yticklabels()[0].get_text() == name
    save_charts([chart], tmp_path / "confusion.png")


def test_baselines_are_drawn_with_their_intervals_from_a_useful_start() -> None:
    chart = intervals("t", ["ours", "theirs"], [(91.0, 88.0, 93.0), (85.0, 82.0, 88.0)], "accuracy (%)")
    [axis] = draw_charts([chart]).axes
    assert axis.get_xlim()[0] == 70
    assert [label.get_text() for label in axis.get_yticklabels()] == ["ours", "theirs"]
    assert [text.get_text() for text in axis.texts] == ["91.0", "85.0"]
