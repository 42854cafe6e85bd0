from collections.abc import Callable

import networkx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from pairnorm.data import Graph, row_normalize
from pairnorm.data.features import (
    STRUCTURAL_FEATURES,
    all_finite,
    core_numbers,
    nan_as_missing,
    structural_features,
    take_columns,
)


def brute_force(features: torch.Tensor) -> torch.Tensor:
    rows = [row / row.abs().sum() if row.abs().sum() > 0 else row for row in features.double()]
    return torch.stack(rows)


@given(st.lists(st.lists(st.floats(-8, 8, width=16), min_size=4, max_size=4), min_size=1, max_size=9))
def test_rows_have_length_one_or_zero_dense_and_sparse(rows: list[list[float]]) -> None:
    features = torch.tensor(rows)
    torch.testing.assert_close(row_normalize(features).double(), brute_force(features))
    sparse = row_normalize(features.to_sparse_csr())
    assert sparse.layout == torch.sparse_csr
    torch.testing.assert_close(sparse.to_dense().double(), brute_force(features))


def test_it_agrees_with_pyg(cora: Graph) -> None:
    from torch_geometric.transforms import NormalizeFeatures

    data = NormalizeFeatures()(cora.replace(features=cora.features.to_dense()).to_pyg())
    torch.testing.assert_close(row_normalize(cora.features).to_dense(), data.x)


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
def test_columns_are_taken_in_any_order(sparse: bool) -> None:
    features = torch.tensor([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]])
    result = take_columns(features.to_sparse_csr() if sparse else features, [2, 0])
    assert result.layout == (torch.sparse_csr if sparse else torch.strided)
    assert result.to_dense().tolist() == [[2, 1], [0, 0]]


@given(st.integers(1, 30), st.floats(0, 0.5), st.integers(0, 5))
def test_the_columns_are_those_of_networkx(nodes: int, share: float, seed: int) -> None:
    known = networkx.gnp_random_graph(nodes, share, seed=seed)
    edges = np.array(list(known.edges), dtype=np.int64).reshape(-1, 2).T
    graph = Graph.from_edges(edges, num_nodes=nodes)
    log = {node: np.log1p(degree) for node, degree in known.degree}
    around = [[log[other] for other in known[node]] or [0] for node in known]
    size = {node: len(part) for part in networkx.connected_components(known) for node in part}
    cores = networkx.core_number(known)
    expected = [
        [log[node], np.mean(near), np.std(near), np.log1p(cores[node]), np.log1p(size[node])]
        for node, near in zip(known, around, strict=True)
    ]
    np.testing.assert_allclose(structural_features(graph.adjacency).numpy(), expected, atol=1e-6)


def test_core_numbers_of_a_large_graph_take_moments() -> None:
    known = networkx.barabasi_albert_graph(20_000, 5, seed=0)
    matrix = networkx.to_scipy_sparse_array(known, format="csr")
    assert core_numbers(matrix).tolist() == list(networkx.core_number(known).values())


def test_only_a_graph_without_features_gets_them(small: Graph, raises) -> None:
    assert small.with_structure() is small
    bare = Graph.from_edges([[0, 1], [1, 2]], labels=["a", "b", None])
    result = bare.with_structure()
    assert result.feature_names == STRUCTURAL_FEATURES
    assert not result.missing.any()
    other = Graph.from_edges([[0, 1, 2], [1, 2, 3]])
    assert torch.equal(other.aligned(result.encoder, 5).features, other.with_structure().features)


@pytest.mark.parametrize("changed", ["features", "labels", "train", "missing"])
def test_a_fingerprint_tells_graphs_apart(small: Graph, changed: str) -> None:
    assert small.fingerprint == small.replace(name="other").fingerprint
    part = getattr(small, changed).clone()
    part[-1] = 1 - part[-1].int() if part.dtype == torch.bool else part[-1] + 1
    others = {"validation": torch.zeros_like(small.train), "test": torch.zeros_like(small.train)}
    more = others if changed == "train" else {}
    if changed == "train":
        more |= {"labels": small.labels.clamp(min=0)}
    assert small.replace(**{changed: part} | more).fingerprint != small.fingerprint
    edge = Graph.from_edges([[0], [1]], num_nodes=5)
    assert edge.fingerprint != Graph.from_edges([[0], [2]], num_nodes=5).fingerprint


@pytest.mark.parametrize(
    "kind", [np.array, csr_array, torch.tensor, lambda values: torch.tensor(values).double()]
)
def test_a_feature_may_be_too_large(kind: Callable, raises: Callable) -> None:
    with raises("not-finite", "feature 0 of node 1 is not finite or beyond float32", value=(1, 0)):
        Graph.from_edges([[0], [1]], kind([[1.0], [1e39]]))
