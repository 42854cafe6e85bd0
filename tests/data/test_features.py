import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pairnorm.data import Graph, row_normalise
from pairnorm.data.features import all_finite, nan_as_missing, take_columns


def brute_force(features: torch.Tensor) -> torch.Tensor:
    rows = [row / row.abs().sum() if row.abs().sum() > 0 else row for row in features.double()]
    return torch.stack(rows)


@given(st.lists(st.lists(st.floats(-8, 8, width=16), min_size=4, max_size=4), min_size=1, max_size=9))
def test_rows_have_length_one_or_zero_dense_and_sparse(rows: list[list[float]]) -> None:
    features = torch.tensor(rows)
    torch.testing.assert_close(row_normalise(features).double(), brute_force(features))
    sparse = row_normalise(features.to_sparse_csr())
    assert sparse.layout == torch.sparse_csr
    torch.testing.assert_close(sparse.to_dense().double(), brute_force(features))


def test_it_agrees_with_pyg(cora: Graph) -> None:
    from torch_geometric.transforms import NormalizeFeatures

    data = NormalizeFeatures()(cora.replace(features=cora.features.to_dense()).to_pyg())
    torch.testing.assert_close(row_normalise(cora.features).to_dense(), data.x)


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ([False, True, False], [[True, False], [True, True], [False, False]]),
        (
            [[False, False], [False, False], [False, True]],
            [[True, False], [False, False], [False, True]],
        ),
        ([[False, True], [False, False], [False, False]], [True, False, False]),
    ],
)
def test_nan_adds_to_what_is_known_to_be_missing(
    sparse: bool, known: list[object], expected: list[object]
) -> None:
    given_features = torch.tensor([[torch.nan, 0.0], [0.0, 0.0], [3.0, 0.0]])
    features = given_features.to_sparse_csr() if sparse else given_features
    filled, missing = nan_as_missing(features, torch.tensor(known))
    assert filled.layout == features.layout
    assert filled.to_dense().tolist() == [[0, 0], [0, 0], [3, 0]]
    assert missing.tolist() == expected
    assert given_features[0, 0].isnan(), "the caller's features are left alone"


def test_large_features_whose_sum_overflows_are_finite() -> None:
    assert all_finite(torch.full((3, 2), 3e38))
    assert not all_finite(torch.tensor([[torch.inf, -torch.inf]]))
    assert all_finite(torch.zeros(3, 0))


@pytest.mark.parametrize("sparse", [True, False])
def test_columns_are_taken_in_any_order_and_absent_ones_are_zero(sparse: bool) -> None:
    features = torch.tensor([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]])
    found = take_columns(features.to_sparse_csr() if sparse else features, [2, -1, 0])
    assert found.layout == (torch.sparse_csr if sparse else torch.strided)
    assert found.to_dense().tolist() == [[2, 0, 1], [0, 0, 0]]
