import networkx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pairnorm.data import Graph
from pairnorm.data.structure import STRUCTURE, core_numbers, structural_features


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
    found = bare.with_structure()
    assert found.feature_names == STRUCTURE
    assert not found.missing.any()
    other = Graph.from_edges([[0, 1, 2], [1, 2, 3]])
    assert torch.equal(other.aligned(found.encoder, 5).features, other.with_structure().features)


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
