from collections.abc import Callable

import numpy as np
import pytest

from pairnorm.data.masks import Stream


def test_the_stream_is_pinned() -> None:
    # Should these ever change, every split and mask that was ever reported changes with them.
    assert Stream(0, "split").keys(2).tolist() == [2528659360018663308, 1948793138670453584]
    assert Stream(7, "missing vectors").order(8).tolist() == [6, 1, 3, 7, 0, 4, 5, 2]


def test_order_is_a_permutation() -> None:
    assert sorted(Stream(3, "x").order(1000).tolist()) == list(range(1000))


def test_purposes_and_seeds_give_unrelated_streams() -> None:
    first = Stream(0, "split").uniform(10_000)
    for other in (Stream(1, "split"), Stream(0, "missing vectors")):
        assert abs(np.corrcoef(first, other.uniform(10_000))[0, 1]) < 0.05


def test_uniform_is_uniform() -> None:
    values = Stream(0, "x").uniform(100_000)
    assert values.min() >= 0
    assert values.max() < 1
    np.testing.assert_allclose(np.histogram(values, bins=10, range=(0, 1))[0], 10_000, rtol=0.05)


@pytest.mark.parametrize("seed", [-1, 1.5, "a", True, None])
def test_an_invalid_seed_is_refused(seed: object, raises: Callable) -> None:
    with raises("not-a-whole-number"):
        Stream(seed, "x")  # type: ignore[arg-type]
