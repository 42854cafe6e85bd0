import pytest
import torch

from pairnorm.errors import PairNormError
from pairnorm.measure.edges import edges, is_edge_index, is_sparse_adjacency
from pairnorm.nn import SparseMatrix

DENSE = torch.tensor([[5.0, 2.0, 0.0], [0.0, 0.0, 3.0], [1.0, 0.0, 0.0]])


@pytest.mark.parametrize(
    "convert",
    [torch.clone, torch.Tensor.to_sparse_csr, torch.Tensor.to_sparse_coo, SparseMatrix.from_torch],
)
def test_every_layout_gives_the_same_edges_without_self_loops(convert):
    index, weight = edges(convert(DENSE))
    assert torch.equal(index, torch.tensor([[0, 1, 2], [1, 2, 0]]))
    assert torch.equal(weight, torch.tensor([2.0, 3.0, 1.0]))


def test_stored_zeros_are_no_edges():
    matrix = torch.sparse_coo_tensor([[0, 1], [1, 0]], [0.0, 1.0], (2, 2), check_invariants=True)
    index, weight = edges(matrix)
    assert index.tolist() == [[1], [0]]
    assert weight.tolist() == [1.0]


def test_an_edge_index_weighs_one_per_edge():
    index, weight = edges(torch.tensor([[0, 1, 1, 0], [1, 1, 2, 1]], dtype=torch.int32))
    assert index.tolist() == [[0, 1, 0], [1, 2, 1]]
    assert weight.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.ones(3, 4), r"adjacency is \[3, 4\] of torch.float32; expected"),
        (torch.ones(3, 3, dtype=torch.int64), r"adjacency is \[3, 3\] of torch.int64; expected"),
        (torch.tensor([[0, -1], [1, 0]]), "holds the node -1"),
        ("cora", "adjacency is cora; expected a floating-point matrix"),
    ],
)
def test_unusable_graphs_are_named(value, message):
    with pytest.raises(PairNormError, match=message):
        edges(value)


@pytest.mark.parametrize(
    ("value", "index", "sparse"),
    [
        (torch.zeros(2, 5, dtype=torch.int64), True, False),
        (torch.zeros(2, 2), False, False),
        (torch.eye(2).to_sparse_csr(), False, True),
        (torch.ones(2, 3).to_sparse_csr(), False, False),
        (SparseMatrix.from_torch(torch.eye(2)), False, True),
        (SparseMatrix.from_torch(torch.ones(2, 3)), False, False),
        (None, False, False),
    ],
)
def test_graphs_are_told_from_features(value, index, sparse):
    assert is_edge_index(value) is index
    assert is_sparse_adjacency(value) is sparse
