"""Lists, and arrays of numpy, pandas, scipy and torch, make the same graph."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas
import pytest
import scipy.sparse
import torch

from pairnorm.data import Graph, Split
from pairnorm.data.features import as_tensor

EDGES = [[0, 1, 1, 2], [1, 0, 2, 1]]
VALUES = [[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]]


@pytest.mark.parametrize(
    "kind", [list, tuple, np.array, torch.tensor, pandas.Series, lambda mask: pandas.Series(mask).to_numpy()]
)
def test_masks_of_every_type_are_accepted(kind: Callable) -> None:
    graph = Graph.from_edges(EDGES, labels=[0, 1, 1], train=kind([True, False, False]))
    assert graph.train.tolist() == [True, False, False]
    masks = Split(*(kind(one) for one in ([False, True, False], [True, False, False], [False, False, True])))
    assert [mask.tolist() for mask in graph.with_split(masks).split] == [list(mask) for mask in masks]
    assert graph.replace(missing=kind([True, False, True])).missing_vectors.tolist() == [True, False, True]


def test_a_mask_of_numbers_is_refused(raises: Callable) -> None:
    with raises("wrong-type", "missing is a torch.int64", expected="booleans"):
        Graph.from_edges(EDGES, VALUES, missing=[0, 1, 1])
    with raises("wrong-type", "train is a torch.int64", expected="booleans"):
        Graph.from_edges(EDGES, labels=[0, 1, 1], train=[0, 1, 1])


@pytest.mark.parametrize(
    "labels",
    [
        [1, None, 0],
        [1.0, np.nan, 0.0],
        np.array([1, -1, 0], np.int32),
        torch.tensor([1, -1, 0], dtype=torch.int8),
        np.array([[1], [-1], [0]]),
        pandas.Series([1, None, 0], index=[7, 8, 9]),
        pandas.Series([1, pandas.NA, 0], dtype="Int64"),
        pandas.Series([1, None, 0], dtype="category"),
    ],
)
def test_labels_of_every_type_are_accepted(labels: Any) -> None:
    graph = Graph.from_edges(EDGES, labels=labels)
    assert graph.labels.tolist() == [1, -1, 0]
    assert graph.labels.dtype == torch.int64
    assert graph.replace(labels=labels).class_names == ("0", "1")


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.uint64, bool, ">i4"])
def test_labels_may_be_unsigned_or_booleans(kind: Any) -> None:
    assert Graph.from_edges(EDGES, labels=np.array([1, 0, 1], kind)).labels.tolist() == [1, 0, 1]


@pytest.mark.parametrize("nothing", [None, np.nan, np.float32("nan"), pandas.NA, pandas.NaT, ""])
def test_labels_may_be_texts_and_missing(nothing: Any) -> None:
    graph = Graph.from_edges(EDGES, labels=pandas.Series(["b", nothing, "a"], dtype=object))
    assert (graph.labels.tolist(), graph.class_names) == ([1, -1, 0], ("a", "b"))
    assert graph.replace(labels=[["a"], ["a"], [nothing]]).labels.tolist() == [0, 0, -1]


@pytest.mark.parametrize(
    "labels", [[True, None, False], pandas.Series([True, pandas.NA, False], dtype="boolean")]
)
def test_booleans_are_classes(labels: Any) -> None:
    graph = Graph.from_edges(EDGES, labels=labels)
    assert (graph.labels.tolist(), graph.class_names) == ([1, -1, 0], ("False", "True"))
    assert graph.replace(name="other").classes.tolist() == [False, True]
    numbers = Graph.from_edges(EDGES, labels=[0, 1, 1])
    assert numbers.replace(labels=labels).classes.tolist() == [0, 1]


@pytest.mark.parametrize("labels", [np.zeros(3, complex), np.zeros(3, "M8[s]"), [{}, 1, 2], zip("abc")])
def test_invalid_labels_are_refused(labels: Any, raises: Callable) -> None:
    with raises("wrong-type", "labels is a ", value="labels"):
        Graph.from_edges(EDGES, labels=labels)


@pytest.mark.parametrize(
    "kind",
    [
        list,
        np.array,
        np.float64,
        torch.tensor,
        pandas.DataFrame,
        lambda values: pandas.DataFrame(values, dtype="Int64"),
        lambda values: np.array(values, dtype=object),
        scipy.sparse.csr_array,
        scipy.sparse.coo_matrix,
        lambda values: torch.tensor(values).to_sparse_coo(),
        lambda values: torch.tensor(values).to_sparse_csc(),
        lambda values: np.array(values, ">f8"),
        lambda values: np.array(values)[::-1, ::-1][::-1, ::-1],
    ],
)
def test_features_of_every_type_are_accepted(kind: Callable) -> None:
    graph = Graph.from_edges(EDGES, kind(VALUES))
    assert graph.features.dtype == torch.float32
    assert graph.features.layout in (torch.strided, torch.sparse_csr)
    for one in (graph, graph.replace(features=kind(VALUES))):
        assert one.features.to_dense().tolist() == VALUES
        assert "50% non-zero" in repr(one)


def test_repeated_entries_of_a_scipy_matrix_are_added_in_a_copy() -> None:
    matrix = scipy.sparse.csr_array((np.array([1.0, 2.0]), np.array([0, 0]), np.array([0, 2])), shape=(1, 1))
    assert as_tensor("features", matrix).to_dense().tolist() == [[3.0]]
    assert matrix.nnz == 2


@pytest.mark.parametrize("nothing", [None, np.nan, pandas.NA])
def test_none_and_nan_are_missing_features(nothing: Any) -> None:
    frame = pandas.DataFrame({"a": [1, nothing, 3], "b": [1, nothing, nothing]}, dtype=object)
    assert Graph.from_edges(EDGES, frame).missing.tolist() == [[False, False], [True, True], [False, True]]


def test_features_that_are_not_numbers_are_refused(raises: Callable) -> None:
    with raises("wrong-type", "features holds 'low'") as caught:
        Graph.from_edges(EDGES, pandas.DataFrame({"a": [1, 2, 3], "b": ["low", "high", "low"]}))
    assert "from_frames" in caught.value.hint
    with raises("wrong-shape", "features is a list whose rows differ", value="features"):
        Graph.from_edges(EDGES, [[1.0], [2.0, 3.0], [4.0]])


@pytest.mark.parametrize("kind", [np.uint8, np.uint64, np.int32])
def test_endpoints_of_every_integer_type_are_accepted(kind: Any) -> None:
    assert Graph.from_edges(np.array(EDGES, kind)).edge_index.tolist() == EDGES


@pytest.mark.parametrize(
    ("edges", "shown", "hint"),
    [
        ([["a", "b"], ["b", "c"]], "<U1 of shape (2, 2)", "from_frames"),
        (pandas.DataFrame({"source": ["a"], "target": ["b"]}), "object of shape (1, 2)", "from_frames"),
        ([(0, 1), (1, 2), (2, 0)], "int64 of shape (3, 2)", "Transpose"),
        (scipy.sparse.eye_array(3), "a dia_array", "from_scipy"),
        (np.eye(3), "float64 of shape (3, 3)", "from_scipy"),
        (torch.eye(3).to_sparse(), "a Tensor", "from_scipy"),
        (torch.eye(3).to_sparse_csr(), "a Tensor", "from_scipy"),
        (None, "a NoneType", ""),
        (zip([0], [1], strict=True), "a zip", ""),
        ([[0.5], [1.0]], "float64 of shape (2, 1)", "astype(int)"),
        ([[0.0, 1.0], [1.0, 2.0]], "float64 of shape (2, 2)", "astype(int)"),
    ],
)
def test_invalid_edges_are_described(edges: Any, shown: str, hint: str, raises: Callable) -> None:
    with raises("wrong-shape", f"edge_index is {shown}", expected="whole numbers, [2, edges]") as caught:
        Graph.from_edges(edges)
    assert hint in caught.value.hint


def test_an_empty_list_means_no_edges() -> None:
    assert Graph.from_edges([], num_nodes=3).num_edges == 0


def test_ragged_edges_are_refused(raises: Callable) -> None:
    with raises("wrong-shape", "edge_index is a list whose rows differ"):
        Graph.from_edges([[0, 1], [1]])


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor, pandas.Series])
def test_weights_of_every_type_are_accepted(kind: Callable) -> None:
    graph = Graph.from_edges(EDGES, weights=kind([2, 2, 5, 5]))
    assert graph.adjacency.values().tolist() == [2, 2, 5, 5]
