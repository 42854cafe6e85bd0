import numpy as np
import pytest
import torch

from pairnorm.classify.align import align_features, align_labels
from pairnorm.data import Graph
from pairnorm.errors import PairNormError

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
