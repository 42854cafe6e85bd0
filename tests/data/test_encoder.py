import numpy as np
import pandas
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pairnorm.data import Graph
from pairnorm.data import encoder as columns
from pairnorm.data.encoder import align_features, align_labels, read_features, read_labels, read_split
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


NAMES = ("age", "job=clerk", "job=nurse", "job=pilot")
VALUES = torch.tensor([[30.0, 1, 0, 0], [40.0, 0, 1, 0], [0.0, 0, 0, 0]])
MISSING = torch.tensor([[False] * 4, [False] * 4, [True, False, False, False]])


def graph(
    names: tuple[str, ...] | None = NAMES, columns: tuple[int, ...] = (0, 1, 2, 3), **parts: object
) -> Graph:
    picked = VALUES[:, list(columns)]
    return Graph.from_edges([[0, 1], [1, 2]], picked, feature_names=names, name="new", **parts)


@pytest.mark.parametrize("sparse", [False, True])
def test_columns_are_brought_into_the_models_order_and_absent_categories_are_zero(sparse: bool) -> None:
    given = graph(("job=nurse", "job=clerk", "age"), (2, 1, 0), missing=MISSING[:, [2, 1, 0]])
    if sparse:
        given = given.replace(features=given.features.to_sparse_csr())
    found = align_features(given, NAMES, 4)
    assert found.features.layout == given.features.layout
    assert torch.equal(found.features.to_dense(), VALUES)
    assert torch.equal(found.missing, MISSING)
    assert found.feature_names == NAMES


def test_an_absent_category_is_missing_where_its_column_is() -> None:
    lost = torch.tensor([[False, False], [True, True], [False, False]])
    given = graph(("job=nurse", "job=clerk"), (2, 1), missing=lost)
    found = align_features(given, ("job=clerk", "job=nurse", "job=pilot"), 3)
    assert found.missing.tolist() == [[False] * 3, [True] * 3, [False] * 3]


@pytest.mark.parametrize("sparse", [False, True])
def test_a_column_of_categories_may_be_empty_throughout(sparse: bool) -> None:
    """Nothing tells that it was text: it comes as a column of numbers, all of them missing."""
    lost = torch.tensor([[True, False], [True, False], [True, True]])
    given = graph(("job", "age"), (3, 0), missing=lost)
    if sparse:
        given = given.replace(features=given.features.to_sparse_csr())
    found = align_features(given, NAMES, 4)
    assert found.features.to_dense().tolist() == [[30, 0, 0, 0], [40, 0, 0, 0], [0, 0, 0, 0]]
    assert found.missing.tolist() == [[False] + [True] * 3, [False] + [True] * 3, [True] * 4]
    nothing = graph(("job", "age"), (3, 3), missing=torch.ones(3, dtype=torch.bool))
    assert align_features(nothing, NAMES, 4).missing_vectors.all()


def test_the_same_columns_are_left_alone() -> None:
    given = graph()
    assert align_features(given, NAMES, 4) is given
    assert align_features(graph(None), NAMES, 4).feature_names is None


@pytest.mark.parametrize(
    ("names", "columns", "message"),
    [
        (NAMES[1:], (1, 2, 3), "has no column 'age', which the model uses. Add it"),
        (("ages", *NAMES[1:]), (0, 1, 2, 3), "no column 'age', .* Did you mean 'ages'"),
        (NAMES[:1], (0,), "has no column 'job'"),
        (
            (*NAMES, "job=judge"),
            (0, 1, 2, 3, 0),
            "category 'judge' in column 'job', unknown .* Empty those cells",
        ),
        (("age", "job"), (0, 1), "numbers in column 'job', where the model knows categories. Empty those"),
        (("age=old", *NAMES[1:]), (0, 1, 2, 3), "text such as 'old' in column 'age', where .* numbers"),
        ((*NAMES, "pet=cat"), (0, 1, 2, 3, 0), r"column 'pet', unknown .* Pass ignore=\['pet'\]"),
        ((*NAMES, "income"), (0, 1, 2, 3, 0), r"column 'income', unknown .* Pass ignore=\['income'\]"),
    ],
)
def test_a_difference_is_named(names: tuple[str, ...], columns: tuple[int, ...], message: str) -> None:
    with pytest.raises(PairNormError, match=message):
        align_features(graph(names, columns), NAMES, 4)


def test_without_names_the_number_must_agree() -> None:
    with pytest.raises(PairNormError, match="has 3 features; the model was fitted on 4"):
        align_features(graph(None, (0, 1, 2)), NAMES, 4)


def test_labels_are_matched_by_name() -> None:
    given = graph(labels=[1, -1, 0], class_names=("high", "low"))
    assert align_labels(given, np.array(["low", "middle", "high"])).tolist() == [0, -1, 2]
    with pytest.raises(PairNormError, match="nodes of class 'high'; the model knows 'low', 'middle'"):
        align_labels(given, np.array(["low", "middle"]))
