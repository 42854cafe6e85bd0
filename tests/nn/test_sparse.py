import copy
import pickle

import pytest
import torch

from pairnorm.nn import GAT, GCN, SGC, SparseMatrix, normalized_adjacency
from pairnorm.nn.ops.sparse_product import Pattern

KINDS = {"GCN": GCN, "GAT": GAT, "SGC": SGC}
models = pytest.mark.parametrize("kind", KINDS.values(), ids=[*KINDS])


def broken_csr(column=10**6, crow=(0, 1, 2, 2)):
    """A sparse tensor that torch does not check; a kernel would read beyond the memory."""
    return torch.sparse_csr_tensor(
        torch.tensor(crow), torch.tensor([1, column]), torch.ones(2), (3, 3), check_invariants=False
    )


@pytest.mark.parametrize("column", [3, -1, 10**6, 2**32 + 1])
@pytest.mark.parametrize("layout", ["csr", "coo"])
def test_columns_out_of_range_raise(column, layout, raises):
    tensor = broken_csr(column)
    if layout == "coo":
        tensor = torch.sparse_coo_tensor(
            torch.tensor([[0, 1], [1, column]]), torch.ones(2), (3, 3), check_invariants=False
        )
    for read in (SparseMatrix.from_torch, normalized_adjacency, lambda a: GCN(2, 2)(torch.ones(3, 2), a)):
        with raises("out-of-range"):
            read(tensor)


@pytest.mark.parametrize("crow", [(0, 1, 2, 9), (0, 2, 1, 2), (1, 1, 2, 2), (0, -5, 2, 2)])
def test_unordered_row_starts_raise(crow, raises):
    with raises("out-of-range"):
        SparseMatrix.from_torch(broken_csr(1, crow))


def test_unvalidated_pattern_is_checked_at_first_use(raises):
    pattern = Pattern(torch.tensor([0, 1]), torch.tensor([9], dtype=torch.int32), (1, 1))
    with raises("out-of-range"):
        SparseMatrix(pattern, torch.ones(1)) @ torch.ones(1, 4)


@models
def test_pattern_changed_in_place_raises(kind, edge_index, raises):
    matrix, model = normalized_adjacency(edge_index, num_nodes=20), kind(4, 2).eval()
    model(torch.randn(20, 4), matrix)
    matrix.pattern.column[3] = 2**30
    with raises("changed-in-place"):
        model(torch.randn(20, 4), matrix)
    with raises("changed-in-place"):
        normalized_adjacency(matrix)


def test_matrix_does_not_share_memory_with_its_source():
    dense = torch.eye(4)
    csr = dense.to_sparse_csr()
    csr = torch.sparse_csr_tensor(csr.crow_indices().int(), csr.col_indices().int(), csr.values())
    matrix = SparseMatrix.from_torch(csr)
    csr.col_indices().fill_(2**30)
    torch.testing.assert_close(matrix @ torch.ones(4, 2), torch.ones(4, 2))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda matrix: pickle.loads(pickle.dumps(matrix))])
def test_copies_are_valid(copied, edge_index):
    matrix, x = normalized_adjacency(edge_index, num_nodes=20), torch.randn(20, 3)
    expected = matrix @ x
    torch.testing.assert_close(copied(matrix) @ x, expected)


def test_values_may_change_in_place(adjacency):
    """The backward pass multiplied by a transpose of the values before."""
    x = torch.randn(20, 3, requires_grad=True)
    (adjacency @ x).sum().backward()
    before, x.grad = x.grad, None
    expected = 2 * (adjacency @ x).detach()
    adjacency.values.mul_(2)
    y = adjacency @ x
    y.sum().backward()
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(x.grad, 2 * before)


@models
def test_training_after_inference_mode(kind, edge_index):
    """What was derived from the adjacency under inference_mode could not be saved for the backward pass."""
    model, x = kind(4, 2, norm="PN"), torch.randn(20, 4)
    with torch.inference_mode():
        adjacency = normalized_adjacency(edge_index, num_nodes=20)
        model.eval()(x, adjacency)
    model.train()(x, adjacency).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@models
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_models_under_torch_func(kind, dropout, adjacency):
    """Custom functions without setup_context were refused by torch.func."""
    torch.manual_seed(0)
    model, x = kind(4, 2, norm="PN-SI", dropout=dropout), torch.randn(20, 4)
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    keys = torch.randint(-9, 9, (model.num_keys, 2, 1), dtype=torch.int32)

    def loss(parameters, x):
        return torch.func.functional_call(model, parameters, (x, adjacency, keys)).square().sum()

    expected = torch.autograd.grad(loss(dict(model.named_parameters()), x), [*model.parameters()])
    actual = torch.func.grad(loss)(parameters, x)
    for name, gradient in zip(parameters, expected, strict=True):
        torch.testing.assert_close(actual[name], gradient, rtol=1e-3, atol=1e-4)
    both = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, torch.stack([x, 2 * x]))
    torch.testing.assert_close(
        both["bias" if kind is SGC else "convolutions.0.bias"][0],
        actual[next(name for name in actual if name in ("bias", "convolutions.0.bias"))],
        rtol=1e-3,
        atol=1e-4,
    )
    _, tangent = torch.func.jvp(lambda x: loss(parameters, x), (x,), (torch.ones_like(x),))
    assert tangent.isfinite()


def test_products_under_torch_func(adjacency):
    x = torch.randn(20, 3)
    per_model = SparseMatrix(adjacency.pattern, torch.rand(2, adjacency.pattern.num_entries))
    for matrix, given in ((adjacency, x), (per_model, torch.randn(20, 2, 3))):
        expected = matrix @ given
        torch.testing.assert_close(torch.func.vmap(lambda x, m=matrix: m @ x)(given[None])[0], expected)
        _, tangent = torch.func.jvp(lambda x, m=matrix: m @ x, (given,), (given,))
        torch.testing.assert_close(tangent, expected)


class TestNormalizedAdjacency:
    @pytest.mark.parametrize("normalization", ["rw", "sym"])
    def test_gradients_of_the_weights(self, normalization):
        dense = (torch.rand(6, 6, dtype=torch.float64) < 0.5).double() * (1 + torch.rand(6, 6).double())
        sparse = dense.to_sparse_csr()
        x = torch.randn(6, 3, dtype=torch.float64)

        def output(values):
            matrix = torch.sparse_csr_tensor(sparse.crow_indices(), sparse.col_indices(), values, (6, 6))
            return normalized_adjacency(matrix, normalization) @ x

        values = sparse.values().clone().requires_grad_()
        assert torch.autograd.gradcheck(output, values)

    def test_double_precision_is_kept(self):
        dense = torch.rand(5, 5, dtype=torch.float64)
        matrix = normalized_adjacency(dense)
        assert matrix.values.dtype == torch.float64
        looped = dense + torch.diag((dense.diagonal() == 0).double())
        torch.testing.assert_close(
            matrix.to_dense(), looped / looped.sum(1, keepdim=True), rtol=1e-14, atol=0
        )
        assert normalized_adjacency(dense.half()).values.dtype == torch.float32
        x = torch.randn(5, 4)
        model = GCN(4, 2, norm="PN").eval()
        torch.testing.assert_close(model(x, matrix), model(x, normalized_adjacency(dense.float())))

    def test_pyg_edge_index_is_accepted(self, edge_index):
        from torch_geometric import EdgeIndex

        given = EdgeIndex(edge_index.contiguous(), sparse_size=(20, 20))
        expected = normalized_adjacency(edge_index, num_nodes=20).to_dense()
        torch.testing.assert_close(normalized_adjacency(given, num_nodes=20).to_dense(), expected)
