import dataclasses

import numpy as np
import pytest
import torch

from pairnorm.data import Graph, Split
from pairnorm.errors import PairNormError


def test_counts(small: Graph) -> None:
    assert (small.num_nodes, small.num_edges, small.num_features, small.num_classes) == (5, 4, 3, 2)
    assert small.labelled.tolist() == [True] * 4 + [False]
    assert small.density == 8 / 15


def test_homophily_counts_edges_whose_two_ends_are_labelled(small: Graph) -> None:
    assert small.homophily == 2 / 3


def test_homophily_agrees_with_pyg(cora: Graph) -> None:
    from torch_geometric.utils import homophily

    assert cora.homophily == pytest.approx(homophily(cora.edge_index, cora.labels), abs=1e-6)


def test_it_cannot_be_changed(small: Graph) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        small.name = "other"  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        small.node_names[0] = 7
    other = small.replace(name="other")
    assert (small.name, other.name) == ("small", "other")


def test_to_moves_every_tensor(small: Graph) -> None:
    moved = small.to(torch.device("cpu"))
    assert all(getattr(moved, field).device.type == "cpu" for field in ("adjacency", "features", "missing"))
    torch.testing.assert_close(moved.features, small.features)


def test_with_split_takes_masks_and_names(cora: Graph) -> None:
    masks = Split(*(torch.arange(2708) % 3 == part for part in range(3)))
    assert torch.equal(cora.with_split(masks).validation, masks.validation)
    assert cora.with_split("per-class-5").train.sum() == 35
    assert cora.with_split("random").train.sum() == 81
    with pytest.raises(PairNormError, match="split is 'rando'; expected 'random' or 'per-class-20'"):
        cora.with_split("rando")


def test_parts_that_are_not_given_are_empty() -> None:
    graph = Graph.from_edges([[0], [2]])
    assert graph.num_nodes == 3
    assert graph.num_classes == 0
    assert not torch.cat([graph.train, graph.validation, graph.test, graph.missing, graph.labelled]).any()
    assert graph.node_names.tolist() == [0, 1, 2]
    assert graph.notes == (
        "1 edge was listed in one direction only and is taken as undirected",
        "1 node has no edge",
    )


def test_missing_vectors_are_rows_all_of_whose_entries_are_missing(small: Graph) -> None:
    entries = torch.zeros(5, 3, dtype=torch.bool)
    entries[1], entries[2, 0] = True, True
    assert small.replace(missing=entries).missing_vectors.tolist() == [False, True, False, False, False]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"edge_index": [[0, 1]]}, r"edge_index is int64 of shape \(1, 2\)"),
        ({"edge_index": [[0.5], [1.0]]}, "edge_index is float64"),
        (
            {"edge_index": [[0], [9]], "num_nodes": 3},
            "edge_index names node 9, but the graph has nodes 0 to 2",
        ),
        ({"edge_index": [[0], [-1]], "num_nodes": 3}, "edge_index names node -1"),
        ({"edge_index": [[0], [1]], "weights": [0.0]}, r"weights\[0\] is 0.0; expected a positive"),
        ({"edge_index": [[0, 1], [1, 2]], "weights": [1, torch.inf]}, r"weights\[1\] is inf"),
        ({"edge_index": [[0, 1], [1, 2]], "weights": [1, torch.nan]}, r"weights\[1\] is nan"),
        ({"edge_index": [[0], [1]], "weights": [1.0, 2.0]}, r"weights have shape \(2,\)"),
    ],
)
def test_bad_edges_are_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(PairNormError, match=message):
        Graph.from_edges(**arguments)  # type: ignore[arg-type]


def test_numpy_and_torch_edges_are_the_same() -> None:
    edges = np.array([[0, 1], [1, 2]])
    first, second = Graph.from_edges(edges), Graph.from_edges(torch.from_numpy(edges))
    assert torch.equal(first.edge_index, second.edge_index)
    assert first.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
