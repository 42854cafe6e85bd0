"""What holds for every fill."""

import pytest
import torch
from torch import Tensor

from pairnorm.impute import FILLS, feature_propagation, fill_missing
from pairnorm.nn import normalized_adjacency

WITH_COLUMNS_APART = [name for name in FILLS if name not in ("pcfi", "mask")]


@pytest.fixture(params=FILLS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def test_known_entries_are_left_alone(name: str, edge_index: Tensor, features: Tensor, known: Tensor) -> None:
    mask = (known if known.dim() == 2 else known[:, None]).expand_as(features)
    shown = torch.where(mask, features, torch.nan)
    filled = fill_missing(name, edge_index, shown, known)
    assert filled.isfinite().all()
    assert torch.equal(filled[:, :5][mask], features[mask])


@pytest.mark.parametrize("entries", [False, True])
def test_trials_are_what_each_would_be_alone(
    name: str, edge_index: Tensor, features: Tensor, entries: bool
) -> None:
    known = torch.rand(14, 3, 5 if entries else 1, generator=torch.Generator().manual_seed(4)) < 0.3
    together = fill_missing(name, edge_index, features, known)
    for trial in range(3):
        alone = fill_missing(name, edge_index, features, known[:, trial])
        torch.testing.assert_close(together[:, trial], alone)


def test_nodes_may_be_numbered_otherwise(
    name: str, edge_index: Tensor, features: Tensor, known: Tensor
) -> None:
    order = torch.randperm(14, generator=torch.Generator().manual_seed(5))
    number = order.argsort()
    expected = fill_missing(name, edge_index, features, known)[order]
    filled = fill_missing(name, number[edge_index], features[order], known[order])
    torch.testing.assert_close(filled, expected)


def test_whole_vectors_are_vectors_of_entries(
    name: str, edge_index: Tensor, features: Tensor, known: Tensor
) -> None:
    if known.dim() == 1:
        entries = known[:, None].expand(-1, 5)
        torch.testing.assert_close(
            fill_missing(name, edge_index, features, known)[:, :5],
            fill_missing(name, edge_index, features, entries)[:, :5],
        )


def test_sparse_and_single_precision_features_give_the_same(
    name: str, edge_index: Tensor, features: Tensor, known: Tensor
) -> None:
    expected = fill_missing(name, edge_index, features, known)
    single = fill_missing(name, edge_index, features.float().to_sparse_csr(), known)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", WITH_COLUMNS_APART)
def test_columns_can_be_filled_in_blocks(
    name: str, edge_index: Tensor, features: Tensor, known: Tensor
) -> None:
    fill, kind = FILLS[name]
    matrix = normalized_adjacency(edge_index, kind, num_nodes=14)
    blocks = [
        fill(matrix, features[:, columns], known if known.dim() == 1 else known[:, columns])
        for columns in (slice(0, 2), slice(2, 5))
    ]
    torch.testing.assert_close(torch.cat(blocks, 1), fill(matrix, features, known))


def test_no_edges_no_columns_and_no_nodes(name: str) -> None:
    no_edges = torch.zeros(2, 0, dtype=torch.long)
    features, known = torch.tensor([[1.0, 2.0], [3.0, 5.0]]), torch.tensor([True, False])
    stands_in = [1.0, 2.0] if name == "mean" else [0.0, 0.0]
    assert fill_missing(name, no_edges, features, known)[:, :2].tolist() == [[1.0, 2.0], stands_in]
    for shape in ((2, 0), (0, 3)):
        filled = fill_missing(name, no_edges, torch.zeros(shape), torch.ones(shape[0], dtype=torch.bool))
        assert len(filled) == shape[0]


def test_feature_propagation_goes_by_its_short_name_with_its_own_adjacency(
    edge_index: Tensor, features: Tensor, known: Tensor
) -> None:
    matrix = normalized_adjacency(edge_index, "sym", num_nodes=14)
    assert torch.equal(
        fill_missing("fp", edge_index, features, known), feature_propagation(matrix, features, known)
    )


def test_an_unknown_name_is_refused(edge_index: Tensor, features: Tensor, raises) -> None:
    with raises("unknown-choice", value="pfci") as caught:
        fill_missing("pfci", edge_index, features, torch.ones(14, dtype=torch.bool))
    assert caught.value.hint == "Did you mean 'pcfi'?"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_on_cuda_it_is_the_same(
    name: str, edge_index: Tensor, features: Tensor, known: Tensor, dtype: torch.dtype
) -> None:
    expected = fill_missing(name, edge_index, features.to(dtype), known)
    filled = fill_missing(name, edge_index.cuda(), features.to(dtype).cuda(), known.cuda())
    torch.testing.assert_close(filled.cpu(), expected, rtol=1e-4, atol=1e-5)
