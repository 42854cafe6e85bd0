import itertools

import pytest
import torch

from pairnorm import measure
from pairnorm.measure import MEASURES as REGISTERED
from pairnorm.measure import mean_average_distance, row_diff, tpsd
from pairnorm.measure.distances import BLOCK_BYTES, block_length, centered, edges
from pairnorm.measure.probe import is_sparse_adjacency
from pairnorm.nn import SparseMatrix, normalized_adjacency
from pairnorm.nn.propagate import is_edge_index

MEASURES = [measure.function for measure in REGISTERED.values()]


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("middle", [(), (3,), (2, 3), (0,)])
def test_trial_axes_equal_a_loop(measure, middle):
    x = torch.randn(17, *middle, 5)
    values = measure(x)
    assert values.shape == middle
    for index in itertools.product(*map(range, middle)):
        torch.testing.assert_close(values[index], measure(x[:, *index]), rtol=0, atol=0)


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_half_precision_accumulates_in_float64(measure, dtype):
    x = (torch.randn(50, 2, 8) * 1e4).to(dtype)  # squares overflow float16
    value = measure(x)
    assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(value.double(), measure(x.double()), rtol=1e-6, atol=0)


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0), (0, 2, 4), (4, 2, 0)])
def test_empty_states_measure_zero(measure, shape):
    assert torch.equal(measure(torch.randn(shape)), torch.zeros(shape[1:-1]))


@pytest.mark.parametrize("measure", [row_diff, tpsd, mean_average_distance])
@pytest.mark.parametrize("n", [1, 7])
def test_equal_rows_are_exactly_zero(measure, n):
    assert measure(torch.full((n, 3), 0.1) * torch.tensor([1.0, -3.0, 1e6])) == 0


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("scale", [1e-30, 1e-18, 1e18, 1e30])
def test_extreme_scales_stay_finite(measure, scale):
    x = torch.randn(20, 4) * scale
    exact = measure(x.double()).float()
    torch.testing.assert_close(measure(x), exact, rtol=1e-6, atol=0)
    assert measure is tpsd or (exact.isfinite() and exact > 0)


@pytest.mark.parametrize("measure", MEASURES)
def test_nan_gives_nan(measure):
    x = torch.randn(6, 2, 4)
    x[3, 1, 2] = torch.nan
    value = measure(x)
    assert value[0].isfinite()
    assert value[1].isnan()


@pytest.mark.parametrize("measure", MEASURES)
def test_measures_save_no_autograd_graph(measure):
    assert not measure(torch.randn(5, 3, requires_grad=True)).requires_grad


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize(
    ("x", "code"),
    [
        (torch.ones(3, 2, dtype=torch.int64), "wrong-dtype"),
        (torch.ones(3), "wrong-shape"),
        (torch.eye(3).to_sparse_csr(), "wrong-layout"),
        ([[1.0]], "wrong-type"),
    ],
)
def test_invalid_states_raise(raises, measure, x, code):
    with raises(code):
        measure(x)


def test_centered_rows_sum_to_zero_under_a_large_offset():
    x = 1e8 + torch.randn(1000, 3, dtype=torch.float64)
    rows = centered(x)
    assert rows.sum(0).abs().max() < 1e-11
    torch.testing.assert_close(rows[0] - rows[1], x[0] - x[1], rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize(
    ("values", "device", "length"),
    [
        (1, "cpu", BLOCK_BYTES // 8),
        (0, "cpu", BLOCK_BYTES // 8),
        (1000, "cuda", BLOCK_BYTES // 1000),
        (2**40, "cpu", 1),
    ],
)
def test_block_length_respects_the_budget(values, device, length):
    assert block_length(values, torch.device(device)) == length


DENSE = torch.tensor([[5.0, 2.0, 0.0], [0.0, 0.0, 3.0], [1.0, 0.0, 0.0]])


@pytest.mark.parametrize(
    "convert",
    [torch.clone, torch.Tensor.to_sparse_csr, torch.Tensor.to_sparse_coo, SparseMatrix.from_torch],
)
def test_every_layout_gives_the_same_edges_without_self_loops(convert):
    index, weight = edges(convert(DENSE))
    assert torch.equal(index, torch.tensor([[0, 1, 2], [1, 2, 0]]))
    assert torch.equal(weight, torch.tensor([2.0, 3.0, 1.0]))


def test_stored_zeros_are_not_edges():
    matrix = torch.sparse_coo_tensor([[0, 1], [1, 0]], [0.0, 1.0], (2, 2), check_invariants=True)
    index, weight = edges(matrix)
    assert index.tolist() == [[1], [0]]
    assert weight.tolist() == [1.0]


def test_edge_index_has_unit_weights():
    index, weight = edges(torch.tensor([[0, 1, 1, 0], [1, 1, 2, 1]], dtype=torch.int32))
    assert index.tolist() == [[1, 2, 1], [0, 1, 0]]
    assert weight.tolist() == [1, 1, 1]


def test_directed_edges_follow_propagation():
    """Bug: sources were taken as rows here, targets there."""
    edge_index = torch.tensor([[0, 0, 2, 3], [1, 2, 1, 0]])
    index, _ = edges(edge_index)
    pattern = normalized_adjacency(edge_index).pattern
    joins = pattern.row != pattern.column
    expected = torch.stack([pattern.row[joins], pattern.column[joins]])
    assert set(map(tuple, index.T.tolist())) == set(map(tuple, expected.T.tolist()))


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (torch.ones(3, 4), "wrong-shape"),
        (torch.ones(3, 3, dtype=torch.int64), "wrong-shape"),
        (SparseMatrix(SparseMatrix.from_torch(torch.eye(2)).pattern, torch.ones(3, 2)), "wrong-shape"),
        (torch.tensor([[0, -1], [1, 0]]), "out-of-range"),
        ("cora", "wrong-shape"),
    ],
)
def test_invalid_graphs_raise(value, code, raises):
    with raises(code):
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
def test_graphs_are_distinguished_from_features(value, index, sparse):
    assert is_edge_index(value) is index
    assert is_sparse_adjacency(value) is sparse


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_inference_tensors_are_measured(dtype):
    plain = torch.randn(6, 2, 4, dtype=dtype)
    edge_index = torch.tensor([[0, 1, 2, 1], [1, 0, 1, 2]])
    with torch.inference_mode():
        x, graph = plain.clone(), edge_index.clone()
    functions = [function for function, _ in measure.MEASURES.values()]
    for function in functions:
        torch.testing.assert_close(function(x), function(plain))
    for function in (measure.apd, measure.apsd, measure.dirichlet_energy, measure.mean_average_distance):
        torch.testing.assert_close(function(x, graph), function(plain, edge_index))
    torch.testing.assert_close(measure.estimate_row_diff(x, 5), measure.estimate_row_diff(plain, 5))
