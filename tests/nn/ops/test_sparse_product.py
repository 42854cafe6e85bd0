import copy
import pickle

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from pairnorm.nn.ops.sparse_product import Pattern
from pairnorm.nn.sparse import SparseMatrix


def random_matrix(rows=7, columns=9, trials=None, dtype=torch.float64):
    """A third of the entries, an empty row and an empty column."""
    dense = torch.rand(rows, columns, dtype=dtype) * (torch.rand(rows, columns) < 0.35)
    dense[2], dense[:, 3] = 0, 0
    matrix = SparseMatrix.from_torch(dense)
    if trials is None:
        return matrix
    return SparseMatrix(matrix.pattern, torch.randn(trials, matrix.pattern.num_entries, dtype=dtype))


def dense_product(dense_matrix, x):
    """Every trial by its own matrix, or by the shared one."""
    if x.dim() == 2:
        return dense_matrix @ x
    matrices = dense_matrix if dense_matrix.dim() == 3 else dense_matrix.expand(x.size(1), -1, -1)
    return torch.stack([matrix @ x[:, trial] for trial, matrix in enumerate(matrices)], 1)


OPERANDS = [(None, (9, 4)), (None, (9, 3, 4)), (3, (9, 3, 4)), (1, (9, 1, 2))]
operands = pytest.mark.parametrize(
    ("trials", "shape"), OPERANDS, ids=["2-d", "shared values", "values per trial", "one trial"]
)


class TestProduct:
    @operands
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_equals_dense(self, trials, shape, dtype, either_form, assert_equal_with_gradients):
        matrix = random_matrix(trials=trials, dtype=dtype)
        values, x = matrix.values.clone().requires_grad_(), torch.randn(shape, dtype=dtype).requires_grad_()
        matrix = SparseMatrix(matrix.pattern, values)
        assert_equal_with_gradients(matrix @ x, dense_product(matrix.to_dense(), x), (values, x), rtol=1.3e-6)

    @operands
    def test_gradcheck(self, trials, shape):
        matrix = random_matrix(trials=trials)
        inputs = (
            matrix.values.clone().requires_grad_(),
            torch.randn(shape, dtype=torch.float64, requires_grad=True),
        )

        def function(values, x):
            return SparseMatrix(matrix.pattern, values) @ x

        assert gradcheck(function, inputs)
        assert gradgradcheck(function, inputs)

    def test_second_derivative_in_float32(self, either_form):
        matrix = random_matrix(trials=2, dtype=torch.float32)
        values, x = matrix.values.clone().requires_grad_(), torch.randn(9, 2, 3, requires_grad=True)
        matrix = SparseMatrix(matrix.pattern, values)

        def second(y):
            first = torch.autograd.grad(y.pow(2).sum(), (values, x), create_graph=True)
            return torch.autograd.grad(sum(gradient.pow(2).sum() for gradient in first), (values, x))

        for sparse, dense in zip(
            second(matrix @ x), second(dense_product(matrix.to_dense(), x)), strict=True
        ):
            torch.testing.assert_close(sparse, dense, rtol=1e-4, atol=1e-3)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
    def test_result_has_the_dtype_of_the_features(self, dtype):
        matrix, x = random_matrix(dtype=torch.float32), torch.randn(9, 2, 3).to(dtype).requires_grad_()
        y = matrix @ x
        expected = dense_product(matrix.to_dense().double(), x.detach().double())
        torch.testing.assert_close(y.double(), expected, rtol=torch.finfo(dtype).eps, atol=1e-7)
        y.sum().backward()
        assert x.grad.dtype == y.dtype == dtype

    @pytest.mark.parametrize("shape", [(0, 0), (3, 0), (0, 3), (3, 3)], ids=str)
    @pytest.mark.parametrize("trials", [None, 2])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_no_entries_give_zeros(self, shape, trials, dtype):
        pattern = Pattern(
            torch.zeros(shape[0] + 1, dtype=torch.int32), torch.zeros(0, dtype=torch.int32), shape
        )
        values = torch.zeros((0,) if trials is None else (trials, 0), dtype=dtype, requires_grad=True)
        x = torch.randn(shape[1], 2, 4, dtype=dtype, requires_grad=True)
        y = SparseMatrix(pattern, values) @ x
        assert torch.equal(y, torch.zeros(shape[0], 2, 4, dtype=dtype))
        y.sum().backward()
        assert torch.equal(x.grad, torch.zeros_like(x))
        assert values.grad.shape == values.shape

    def test_zero_features_are_accepted(self, either_form):
        assert (random_matrix(dtype=torch.float32) @ torch.zeros(9, 2, 0)).shape == (7, 2, 0)


class TestTranspose:
    @pytest.mark.parametrize("trials", [None, 3])
    def test_equals_dense(self, trials):
        matrix = random_matrix(trials=trials)
        assert torch.equal(matrix.transposed.to_dense(), matrix.to_dense().mT)
        assert torch.equal(matrix.transposed.transposed.to_dense(), matrix.to_dense())

    def test_fixed_values_are_transposed_once(self):
        matrix = random_matrix()
        assert matrix.transposed is matrix.transposed

    def test_learned_values_are_transposed_again(self):
        matrix, x = random_matrix(), torch.randn(9, 2, dtype=torch.float64, requires_grad=True)
        values = matrix.values.clone().requires_grad_()
        matrix = SparseMatrix(matrix.pattern, values)
        (matrix @ x).sum().backward()
        with torch.no_grad():
            values.mul_(3)
        y = torch.randn(7, 2, dtype=torch.float64)
        torch.testing.assert_close(matrix.transposed @ y, matrix.to_dense().mT @ y)
        torch.testing.assert_close(matrix @ x, matrix.to_dense() @ x)
        (gradient,) = torch.autograd.grad((matrix.transposed @ y).sum(), values)
        (expected,) = torch.autograd.grad((matrix.to_dense().mT @ y).sum(), values)
        torch.testing.assert_close(gradient, expected)


class TestPattern:
    def test_rows_and_order_of_the_transpose(self):
        matrix = random_matrix()
        pattern = matrix.pattern
        row, column = matrix.to_dense().nonzero(as_tuple=True)
        assert torch.equal(pattern.row.long(), row)
        assert torch.equal(pattern.column.long(), column)
        assert torch.equal(pattern.transposed.row, pattern.column[pattern.order])


class TestConversion:
    @pytest.mark.parametrize("layout", [torch.strided, torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
    def test_from_torch(self, layout):
        dense = random_matrix().to_dense()
        tensor = dense if layout == torch.strided else dense.to_sparse(layout=layout)
        assert torch.equal(SparseMatrix.from_torch(tensor).to_dense(), dense)

    @pytest.mark.filterwarnings("ignore:Sparse BSR tensor support is in beta")
    def test_from_torch_in_blocks(self):
        tensor = torch.eye(4).to_sparse(layout=torch.sparse_bsr, blocksize=(2, 2))
        assert torch.equal(SparseMatrix.from_torch(tensor).to_dense(), torch.eye(4))

    def test_repeated_entries_are_summed(self):
        tensor = torch.sparse_coo_tensor([[0, 0], [1, 1]], [2.0, 3.0], (2, 2))
        assert torch.equal(SparseMatrix.from_torch(tensor).to_dense(), torch.tensor([[0.0, 5.0], [0.0, 0.0]]))

    @pytest.mark.parametrize("copied", [copy.deepcopy, lambda matrix: pickle.loads(pickle.dumps(matrix))])
    def test_copies_keep_the_product(self, copied):
        matrix = random_matrix(trials=2)
        assert torch.equal(copied(matrix).to_dense(), matrix.to_dense())

    def test_matrix_moves_to_a_device(self):
        matrix = random_matrix().to("meta")
        assert matrix.values.device.type == matrix.pattern.crow.device.type == "meta"

    def test_repr(self):
        matrix = random_matrix()
        assert repr(matrix) == f"SparseMatrix(7 x 9, entries={matrix.pattern.num_entries})"
        assert repr(random_matrix(trials=3)).endswith(", num_models=3)")


class TestErrors:
    def test_three_dimensional_tensor_raises(self, raises):
        with raises("wrong-shape", value=[2, 2, 2]):
            SparseMatrix.from_torch(torch.ones(2, 2, 2).to_sparse())

    def test_wrong_number_of_rows_raises(self, raises):
        with raises("wrong-shape", value=[8, 2]):
            random_matrix() @ torch.ones(8, 2)

    @pytest.mark.parametrize("shape", [(9, 2), (9, 2, 4)])
    def test_wrong_number_of_models_raises(self, shape, raises):
        with raises("wrong-shape", expected="floating-point [9, 3, features]"):
            random_matrix(trials=3) @ torch.ones(shape)

    @pytest.mark.parametrize("x", [torch.ones(9), torch.ones(9, 2, 2, 2), torch.ones(9, 2, dtype=torch.long)])
    def test_integer_features_raise(self, x, raises):
        with raises("wrong-shape", value=list(x.shape)):
            random_matrix() @ x

    def test_compiled_product_raises(self):
        torch.compiler.reset()
        multiply = torch.compile(lambda matrix, x: matrix @ x, backend="eager")
        with pytest.raises(RuntimeError, match=r"torch\.compile cannot trace the product"):
            multiply(random_matrix(trials=1), torch.ones(9, 1, 2))
