from pathlib import Path

import numpy as np
import pytest

from pairnorm.classify import Candidate, Scores
from pairnorm.classify.diagnosis import Smoothing
from pairnorm.report.fit_figures import draw_baselines, draw_confusion, draw_depths, draw_smoothing

ROWS = [
    Smoothing(norm, depth, row_diff=start / (depth + 1), col_diff=2 * start, effective_rank=5.0)
    for norm, start in (("none", 4.0), ("PN", 0.5))
    for depth in (0, 1, 3)
]
SCORES = Scores(np.array([[8, 2], [1, 9]]))


def test_smoothing_is_drawn_as_a_share_of_the_start() -> None:
    figure = draw_smoothing(ROWS, depth=3)
    plain, normed, mark = figure.axes[0].lines
    assert list(plain.get_xdata()) == [0, 1, 3]
    assert list(plain.get_ydata()) == list(normed.get_ydata()) == [1, 0.5, 0.25]
    assert (plain.get_linestyle(), normed.get_linestyle()) == ("--", "-")
    assert list(mark.get_xdata()) == [3, 3]
    assert list(figure.axes[2].lines[0].get_ydata()) == [5, 5, 5]


def test_the_best_scale_of_each_depth_is_drawn_and_the_choice_marked() -> None:
    tried = [
        Candidate("SGC", norm, depth, scale, accuracy + scale / 100)
        for norm, accuracy in (("none", 0.5), ("PN", 0.7))
        for depth in (2, 1)
        for scale in (10.0, 1.0)
    ]
    best = max(tried, key=lambda one: one.validation_accuracy)
    plain, normed, star = draw_depths(tried, best).axes[0].lines
    assert sorted(plain.get_xdata()) == [1, 2]
    assert plain.get_ydata() == pytest.approx([60, 60])
    assert normed.get_ydata() == pytest.approx([80, 80])
    assert (star.get_xdata(), star.get_ydata()) == ([2], pytest.approx([80]))
    assert plain.get_label() == "SGC"
    assert normed.get_label() == "SGC-PN"


def test_the_confusion_matrix_shows_counts_and_shortens_long_names() -> None:
    axis = draw_confusion(SCORES, ["low", "very high indeed, and then some"]).axes[0]
    assert [text.get_text() for text in axis.texts] == ["8", "2", "1", "9"]
    np.testing.assert_allclose(axis.images[0].get_array(), [[0.8, 0.2], [0.1, 0.9]])
    assert [label.get_text() for label in axis.get_yticklabels()] == ["low", "very high indeed, and…"]


@pytest.mark.parametrize("name", ["$", "$$", "$x_$", "a $\\frac$"])
def test_a_class_that_looks_like_a_formula_is_drawn_as_it_is(tmp_path: Path, name: str) -> None:
    draw_confusion(SCORES, [name, "b"]).savefig(tmp_path / "confusion.png")
    assert (tmp_path / "confusion.png").stat().st_size > 1000


def test_rivals_are_drawn_with_their_intervals() -> None:
    axis = draw_baselines({"ours": SCORES, "theirs": Scores(np.array([[5, 5], [5, 5]]))}).axes[0]
    interval, point = axis.lines[:2]
    assert list(interval.get_xdata()) == pytest.approx([100 * end for end in SCORES.interval])
    assert point.get_xdata() == pytest.approx([85])
    assert [label.get_text() for label in axis.get_yticklabels()] == ["ours", "theirs"]
