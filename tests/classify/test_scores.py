from math import isnan

import numpy as np
import pytest

from pairnorm.classify import Scores
from pairnorm.classify.scores import paired_difference, wilson_interval

LABELS = np.array([0, 0, 0, 0, 1, 1, 2])
PREDICTED = np.array([0, 0, 0, 1, 1, 0, 2])


def test_numbers_counted_by_hand() -> None:
    scores = Scores.of(LABELS, PREDICTED, 4)
    assert scores.confusion.tolist() == [[3, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    assert (scores.count, scores.right) == (7, 5)
    assert scores.accuracy == pytest.approx(5 / 7)
    np.testing.assert_allclose(scores.recall, [3 / 4, 1 / 2, 1, np.nan])
    np.testing.assert_allclose(scores.precision, [3 / 4, 1 / 2, 1, np.nan])
    np.testing.assert_allclose(scores.f1, [3 / 4, 1 / 2, 1, np.nan])
    assert scores.balanced_accuracy == pytest.approx((3 / 4 + 1 / 2 + 1) / 3)
    assert scores.macro_f1 == pytest.approx((3 / 4 + 1 / 2 + 1) / 3)


def test_a_class_that_is_predicted_but_not_there_counts_against_f1_only() -> None:
    scores = Scores.of(np.array([0, 0]), np.array([0, 1]), 2)
    assert scores.balanced_accuracy == 0.5
    assert scores.macro_f1 == pytest.approx((2 / 3 + 0) / 2)


def test_nobody_judged_is_not_a_number() -> None:
    scores = Scores.of(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), 2)
    assert isnan(scores.accuracy)
    assert isnan(scores.macro_f1)
    assert scores.interval == (0.0, 1.0)


@pytest.mark.parametrize(("right", "count", "low", "high"), [(81, 263, 0.2553, 0.3662), (0, 20, 0.0, 0.1611)])
def test_wilsons_interval_as_published(right: int, count: int, low: float, high: float) -> None:
    """Newcombe (1998), Table I: method 3."""
    assert wilson_interval(right, count) == pytest.approx((low, high), abs=1e-4)


def test_wilsons_interval_covers_the_truth_nineteen_times_in_twenty() -> None:
    draws = np.random.default_rng(0).binomial(50, 0.8, 4000)
    covered = [low <= 0.8 <= high for low, high in (wilson_interval(int(right), 50) for right in draws)]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.02)


def test_a_paired_difference_is_narrower_than_two_intervals_when_errors_are_shared() -> None:
    ours = np.array([True] * 80 + [False] * 20)
    theirs = np.array([True] * 75 + [False] * 25)
    mean, low, high = paired_difference(ours, theirs)
    assert mean == pytest.approx(0.05)
    assert low == pytest.approx(0.05 - 1.96 * np.sqrt(0.05 * 0.95 / 100), abs=1e-4)
    assert high - mean == pytest.approx(mean - low)
    assert paired_difference(ours, ours) == (0.0, 0.0, 0.0)
