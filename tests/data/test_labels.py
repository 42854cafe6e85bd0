from collections.abc import Callable
from io import BytesIO

import pandas
import pytest
import torch

from pairnorm.data.encoder import ColumnOptions
from pairnorm.data.files import TextFile
from pairnorm.data.labels import bin_codes, bin_names, find_bins, read_labels, read_split
from pairnorm.data.tables import Table


def table(frame: pandas.DataFrame) -> Table:
    return Table("nodes.csv", tuple(frame.columns), frame)


def test_classes_are_sorted_numbers_as_numbers() -> None:
    frame = pandas.DataFrame({"y": ["10", "9", None, "x", "9"]})
    labels, names = read_labels(table(frame), "y", frame["y"], ColumnOptions())
    assert names == ("9", "10", "x")
    assert labels.tolist() == [1, 0, -1, 2, 0]


@pytest.mark.parametrize(
    ("cells", "known", "names", "codes"),
    [
        (["10.0", "9.0", None, "9.00"], None, ("9", "10"), [1, 0, -1, 0]),  # as pandas writes them
        (["10.0", "9", "-1.0"], None, ("9", "10", "-1"), [1, 0, 2]),
        (["1,0", "0,0"], None, ("0", "1"), [1, 0]),  # where a comma is the decimal point
        (["1.0", "1.5"], None, ("1.0", "1.5"), [0, 1]),
        (["1.0", "x"], None, ("1.0", "x"), [0, 1]),
        (["1.0", "0.0"], ("0", "1"), ("0", "1"), [1, 0]),
        (["1.0", "0.0"], ("0.0", "1.0"), ("0.0", "1.0"), [1, 0]),  # a model that learned them so
    ],
)
def test_whole_numbers_of_a_text_file_have_no_point(
    cells: list[str | None], known: tuple[str, ...] | None, names: tuple[str, ...], codes: list[int]
) -> None:
    frame = pandas.DataFrame({"y": cells})
    source = Table("nodes.csv", ("y",), frame, TextFile(BytesIO))
    labels, result = read_labels(source, "y", frame["y"], ColumnOptions(strict=True), known)
    assert (result, labels.tolist()) == (names, codes)


def test_whole_numbers_among_others_have_no_point_either() -> None:
    """Bug: of JSON, which has empty cells and numbers side by side, they were '0.0' and '1.0'."""
    frame = pandas.DataFrame({"y": [1.0, None, 0.0]}, dtype=object)
    assert read_labels(table(frame), "y", frame["y"], ColumnOptions())[1] == ("0", "1")


def test_typed_texts_stay_texts() -> None:
    frame = pandas.DataFrame({"y": ["1.0", "0.0"]})
    assert read_labels(table(frame), "y", frame["y"], ColumnOptions())[1] == ("0.0", "1.0")


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ([None, None], "nodes.csv: no node has a label: column 'y' is empty throughout. Label some nodes."),
        (["a", None, "a"], "nodes.csv: column 'y' holds one class only, 'a'. Label some of another."),
    ],
)
def test_labels_with_fewer_than_two_classes_are_refused(
    cells: list[object], message: str, raises: Callable
) -> None:
    frame = pandas.DataFrame({"y": cells})
    with raises("too-few-classes") as caught:
        read_labels(table(frame), "y", frame["y"], ColumnOptions())
    assert str(caught.value) == message


def test_a_split_column_may_say_val() -> None:
    frame = pandas.DataFrame({"s": ["train", "TRAIN", "val", None, "test"]})
    masks = read_split(table(frame), "s", frame["s"], torch.tensor([0, 1, 0, -1, 1]), ("a", "b"))
    assert masks.train.tolist() == [True, True, False, False, False]
    assert masks.validation.tolist() == [False, False, True, False, False]
    assert masks.test.tolist() == [False, False, False, False, True]


@pytest.mark.parametrize(
    ("cells", "labels", "code", "problem"),
    [
        (["train", "trian"], [0, 1], "unknown-part", "nodes.csv, row 2: 'trian' in column 's'"),
        (["train", "test"], [0, -1], "label-missing", "row 2: the node is in 'test' but has no label"),
        (["train", "test"], [0, 1], "class-without-training", "class 'b' has no training node"),
    ],
)
def test_an_invalid_split_column_is_refused(
    cells: list[str], labels: list[int], code: str, problem: str, raises: Callable
) -> None:
    frame = pandas.DataFrame({"s": cells})
    with raises(code) as caught:
        read_split(table(frame), "s", frame["s"], torch.tensor(labels), ("a", "b"))
    assert problem in caught.value.problem


def labels(cells: list[object], **options: object) -> tuple[list[int], tuple[str, ...]]:
    frame = pandas.DataFrame({"y": cells})
    codes, names = read_labels(table(frame), "y", frame["y"], ColumnOptions(**options))
    return codes.tolist(), names


@pytest.mark.parametrize(
    "cells", [[i / 7 for i in range(30)], [str(i) for i in range(150)], ["1,5", *range(25)]]
)
def test_many_numbers_are_no_classes(cells: list[object], raises: Callable) -> None:
    with raises("numeric-label", value=len(cells), options={"classes": 5}):
        labels(cells)
    assert len(labels(cells, classes="each")[1]) == len(cells)


def test_numbers_that_many_nodes_share_are_classes() -> None:
    assert len(labels([str(i % 150) for i in range(3000)])[1]) == 150
    assert len(labels([i % 5 + 0.5 for i in range(100)])[1]) == 5
    assert len(labels([f"word {i % 300}" for i in range(600)])[1]) == 300


def test_a_number_beyond_float64_may_be_a_class() -> None:
    assert labels(["0", "1e310"])[1] == ("0", "1e310")


def test_numbers_are_cut_into_classes_of_equal_size() -> None:
    frame = pandas.DataFrame({"y": [*map(str, range(9)), None]})
    bins = find_bins(table(frame), "y", frame["y"], 3)
    assert bins == pytest.approx((8 / 3, 16 / 3), rel=1e-5)
    codes = bin_codes(table(frame).numbers("y", frame["y"]), bins)
    assert codes.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, -1]
    assert len(bin_names(bins)) == 3
