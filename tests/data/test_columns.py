import pandas
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pairnorm.data import columns
from pairnorm.data.columns import read_features, read_labels, read_split
from pairnorm.data.tables import Source
from pairnorm.errors import PairNormError

Cell = st.one_of(st.none(), st.integers(-9, 9))
Word = st.one_of(st.none(), st.sampled_from(["red", "green", "NA"]))


def source(frame: pandas.DataFrame) -> Source:
    return Source("nodes.csv", tuple(frame.columns))


@given(st.lists(st.tuples(Cell, Cell, Word), min_size=1, max_size=12), st.booleans())
def test_features_are_those_written_by_hand_dense_and_sparse(
    rows: list[tuple[int | None, int | None, str | None]], sparse: bool
) -> None:
    frame = pandas.DataFrame(rows, columns=["a", "b", "c"]).astype({"a": float, "b": float, "c": object})
    words = sorted({word for *_, word in rows if word is not None})
    kept = columns.SPARSE_BELOW
    columns.SPARSE_BELOW = 2.0 if sparse else 0.0
    try:
        found = read_features(source(frame), frame, ["a", "b", "c"], ["c"])
    finally:
        columns.SPARSE_BELOW = kept
    assert found.names == ("a", "b", *(f"c={word}" for word in words))
    expected = [[a or 0, b or 0, *(float(c == word) for word in words)] for a, b, c in rows]
    assert found.values.to_dense().tolist() == expected

    empty = [[a is None, b is None, *(c is None for _ in words)] for a, b, c in rows]
    whole = [(a, b, c) == (None, None, None) for a, b, c in rows]
    partly = any(None in row for row, all_empty in zip(rows, whole, strict=True) if not all_empty)
    assert found.missing.tolist() == (empty if partly else whole)


def test_wide_and_empty_features_are_kept_sparse() -> None:
    frame = pandas.DataFrame({f"w{i}": [float(i == row) for row in range(20)] for i in range(20)})
    assert read_features(source(frame), frame, list(frame)).values.layout == torch.sparse_csr
    assert read_features(source(frame), frame, ["w1", "w2"]).values.layout == torch.sparse_csr
    assert read_features(source(frame[:4]), frame[:4], ["w1", "w2"]).values.layout == torch.strided


def test_numbers_can_be_categories() -> None:
    frame = pandas.DataFrame({"zip": ["007", "7", None]})
    found = read_features(source(frame), frame, ["zip"], ["zip"])
    assert found.names == ("zip=007", "zip=7")
    assert found.missing.tolist() == [False, False, True]


def test_free_text_is_refused() -> None:
    frame = pandas.DataFrame({"name": [f"n{i}" for i in range(1001)]})
    with pytest.raises(PairNormError, match=r"column 'name' holds 1,001 different texts.*ignore=\['name'\]"):
        read_features(source(frame), frame, ["name"])
    assert read_features(source(frame), frame, ["name"], ["name"]).values.shape == (1001, 1001)


def test_no_columns_are_no_features() -> None:
    frame = pandas.DataFrame({"id": ["a", "b"]})
    found = read_features(source(frame), frame, [])
    assert found.values.shape == (2, 0)
    assert found.missing.tolist() == [False, False]


def test_classes_are_sorted_numbers_as_numbers() -> None:
    frame = pandas.DataFrame({"y": ["10", "9", None, "x", "9"]})
    labels, names = read_labels(source(frame), "y", frame["y"])
    assert names == ("9", "10", "x")
    assert labels.tolist() == [1, 0, -1, 2, 0]


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ([None, None], r"nodes\.csv: no node has a label: column 'y' is empty throughout"),
        (["a", None, "a"], r"nodes\.csv: column 'y' holds one class only, 'a'"),
    ],
)
def test_labels_that_teach_nothing_are_refused(cells: list[object], message: str) -> None:
    frame = pandas.DataFrame({"y": cells})
    with pytest.raises(PairNormError, match=message):
        read_labels(source(frame), "y", frame["y"])


def test_a_split_column_may_say_val() -> None:
    frame = pandas.DataFrame({"s": ["train", "TRAIN", "val", None, "test"]})
    masks = read_split(source(frame), "s", frame["s"], torch.tensor([0, 1, 0, -1, 1]), ("a", "b"))
    assert masks["train"].tolist() == [True, True, False, False, False]
    assert masks["validation"].tolist() == [False, False, True, False, False]
    assert masks["test"].tolist() == [False, False, False, False, True]


@pytest.mark.parametrize(
    ("cells", "labels", "message"),
    [
        (["train", "trian"], [0, 1], "row 2: 'trian' in column 's'; expected 'train', 'validation', 'test'"),
        (["train", "test"], [0, -1], "row 2: the node is in 'test' but has no label"),
        (["train", "test"], [0, 1], "class 'b' has no training node"),
    ],
)
def test_a_split_that_does_not_fit_is_named(cells: list[str], labels: list[int], message: str) -> None:
    frame = pandas.DataFrame({"s": cells})
    with pytest.raises(PairNormError, match=message):
        read_split(source(frame), "s", frame["s"], torch.tensor(labels), ("a", "b"))
