import numpy as np
import pandas
import pytest

from pairnorm.data.numeric import EMPTY, numbers
from pairnorm.data.tables import Source
from pairnorm.errors import PairNormError


def test_numbers_keep_what_is_empty_apart() -> None:
    source = Source("t", ("x",))
    for column in ([1, None, 3.5], ["1", None, "3.5"], pandas.array([1, None, 3.5], dtype="Float64")):
        np.testing.assert_array_equal(numbers(source, "x", pandas.Series(column)), [1, np.nan, 3.5])
    np.testing.assert_array_equal(numbers(source, "x", pandas.Series([True, False, None])), [1, 0, np.nan])
    assert numbers(source, "x", pandas.Series(["red", None])) is None


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["1", "2", "three"], "row 13: 'three' in column 'x' is not a number.*categorical="),
        ([1.0, np.inf], "row 12: inf in column 'x' is not finite"),
        ([1.0, 1e39], r"row 12: 1e\+39 in column 'x' is not finite"),
        (pandas.to_datetime(["2020-01-01"]), "column 'x' holds dates.*ignore="),
    ],
)
def test_what_is_no_number_is_named(cells: object, message: str) -> None:
    with pytest.raises(PairNormError, match=message):
        numbers(Source("t", ("x",)), "x", pandas.Series(cells), first=10)  # type: ignore[call-overload]


@pytest.mark.parametrize("empty", EMPTY)
def test_words_for_nothing_are_empty_among_numbers_only(empty: str) -> None:
    source = Source("t", ("x",))
    np.testing.assert_array_equal(numbers(source, "x", pandas.Series(["1.5", empty])), [1.5, np.nan])
    np.testing.assert_array_equal(numbers(source, "x", pandas.Series([empty, None])), [np.nan, np.nan])
    assert numbers(source, "x", pandas.Series(["red", empty])) is None


def test_truths_are_numbers_however_they_are_written() -> None:
    source = Source("t", ("x",))
    for column in (["TRUE", "FALSE", "NA"], ["true", "false", None], [True, False, None]):
        np.testing.assert_array_equal(numbers(source, "x", pandas.Series(column)), [1, 0, np.nan])
    assert numbers(source, "x", pandas.Series(["true", "false", "unknown"])) is None


def test_cells_that_are_lists_are_named() -> None:
    for cells in ([[1, 2], [3, 4]], [1.0, np.ones(2)], ["1", {"a": 1}]):
        with pytest.raises(PairNormError, match=r"t, row .: column 'x' holds a \w+; expected a number"):
            numbers(Source("t", ("x",)), "x", pandas.Series(cells))
