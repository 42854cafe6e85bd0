from math import sqrt

import numpy as np
import pytest
from scipy.stats import ttest_ind

from pairnorm.compare.ranking import critical_difference, leaders, ranking, told_apart


def test_mean_ranks_by_hand() -> None:
    situations = [
        {"a": [0.9, 0.9], "b": [0.8, 0.8], "c": [0.8, 0.8]},  # 1, 2.5, 2.5
        {"a": [0.1, 0.3], "b": [0.2, 0.4], "c": [0.5, 0.9]},  # 3, 2, 1
    ]
    found = {one.method: one.rank for one in ranking(situations)}
    assert found == {"c": 1.75, "a": 2.0, "b": 2.25}
    assert [one.method for one in ranking(situations)] == ["c", "a", "b"]


def test_intervals_hold_the_rank_and_widen_with_noise() -> None:
    generator = np.random.default_rng(3)

    def drawn(noise: float) -> dict[str, tuple[float, float]]:
        situations = [
            {
                name: 0.5 + 0.1 * place + noise * generator.standard_normal(5)
                for place, name in enumerate("abc")
            }
            for _ in range(12)
        ]
        found = ranking(situations)
        assert all(one.low <= one.rank <= one.high for one in found)
        return {one.method: (one.low, one.high) for one in found}

    assert drawn(0.001) == {"c": (1, 1), "b": (2, 2), "a": (3, 3)}
    low, high = drawn(0.3)["b"]
    assert high - low > 0.5


def test_the_critical_difference_is_that_of_the_tables() -> None:
    # Demšar (2006), table 5: q is 2.728 for five methods and 3.164 for ten.
    assert critical_difference(5, 30) == pytest.approx(2.728 * sqrt(5 * 6 / (6 * 30)), rel=1e-3)
    assert critical_difference(10, 12) == pytest.approx(3.164 * sqrt(10 * 11 / (6 * 12)), rel=1e-3)


def test_told_apart_is_a_statistic_of_two() -> None:
    generator = np.random.default_rng(0)
    for _ in range(50):
        one, other = generator.normal(0, 1, 6).tolist(), generator.normal(1, 2, 6).tolist()
        statistic = ttest_ind(one, other, equal_var=False).statistic
        assert told_apart(one, other) == told_apart(other, one) == (abs(statistic) > 2)
    assert told_apart([0.5, 0.5], [0.6, 0.6])
    assert not told_apart([0.5, 0.5], [0.5, 0.5])
    assert not told_apart([0.1], [0.9])  # of one run nothing is known


def test_leaders() -> None:
    scores = {"low": [0.1, 0.12], "near": [0.88, 0.91], "best": [0.9, 0.92], "also": [0.9, 0.9]}
    assert list(leaders(scores)) == ["best", "also", "near"]
