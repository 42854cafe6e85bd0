import copy
import dataclasses
import inspect
import re
from collections.abc import Callable
from pathlib import Path

import networkx
import numpy as np
import pytest
import torch

from pairnorm.data import Graph, GraphWarning, Split
from pairnorm.data import adjacency as adjacency_module


def mask(*nodes: int) -> torch.Tensor:
    return torch.isin(torch.arange(5), torch.tensor(nodes))


@pytest.mark.parametrize(
    ("part", "code", "value"),
    [
        ({"adjacency": torch.eye(5)}, "wrong-shape", None),
        ({"features": torch.ones(5, 3, dtype=torch.int64)}, "wrong-type", "torch.int64"),
        ({"features": torch.ones(4, 3)}, "wrong-shape", "features"),
        ({"labels": torch.full((5,), 0.5)}, "not-a-whole-number", None),
        ({"labels": torch.tensor([0, 1, 2, 0, 0])}, "out-of-range", 2),
        ({"labels": torch.tensor([0, 1, -2, 0, 0])}, "out-of-range", -2),
        ({"train": torch.zeros(5)}, "wrong-type", "torch.float32"),
        ({"validation": mask(1, 2)}, "parts-overlap", "validation"),
        ({"test": mask(0, 3)}, "parts-overlap", "test"),
        ({"test": mask(4)}, "label-missing", None),
        (
            {"missing": torch.zeros(5, 2, dtype=torch.bool)},
            "wrong-shape",
            "missing",
        ),
        ({"features": torch.ones(5, 3).fill_diagonal_(torch.inf)}, "not-finite", (0, 0)),
        (
            {"features": torch.diag(torch.tensor([0, -torch.inf, 0, 0, 1])).to_sparse_csr()},
            "not-finite",
            (1, 1),
        ),
        (
            {"features": torch.full((5, 2), -torch.inf), "feature_names": ("age", "income")},
            "not-finite",
            (0, 0),
        ),
        ({"node_names": np.array(["a"])}, "wrong-shape", "node_names"),
        ({"feature_names": ("a",)}, "wrong-shape", "feature_names"),
    ],
)
def test_invalid_parts_are_refused(
    small: Graph, part: dict[str, object], code: str, value: object, raises: Callable
) -> None:
    with raises(code, value=value):
        small.replace(**part)


def test_errors_name_nodes_by_their_names(small: Graph, raises: Callable) -> None:
    with raises("parts-overlap", value="test") as caught:
        small.replace(node_names=np.array(["ann", "bob", "cy", "di", "ed"]), test=mask(0))
    assert caught.value.problem.endswith("first 'ann'")


def test_describe_counts_the_parts_of_cora(cora: Graph) -> None:
    assert repr(cora).splitlines() == [
        "Graph 'cora'",
        "  nodes      2,708",
        "  edges      5,278 undirected, 3.9 per node",
        "  features   1,433 sparse, 1.27% non-zero",
        "  classes    7 (Theory, Reinforcement_Learning, Genetic_Algorithms, Neural_Networks, "
        "Probabilistic_Methods, Case_Based, Rule_Learning)",
        "  labeled    2,708 (100%)",
        "  split      train 140, validation 500, test 2,068",
        "  missing    no vector",
        "  homophily  0.810: 4,275 of 5,278 edges between labeled nodes join one class",
        "  note       5,429 edges are listed, 5,278 of them distinct and undirected",
    ]


def test_describe_counts_missing_features(small: Graph) -> None:
    entries = torch.zeros(5, 3, dtype=torch.bool)
    entries[1], entries[2, 0] = True, True
    text = repr(small.replace(missing=entries))
    assert "labeled    4 (80%)" in text
    assert "missing    1 (20%) vectors, 1 single entries" in text
    assert "missing    1 (20%) vectors\n" in repr(small.replace(missing=entries[:, 1]))


def test_an_empty_graph_has_a_description_too() -> None:
    text = repr(Graph.from_edges([[], []], num_nodes=0))
    assert "nodes      0" in text
    assert "classes    none" in text
    assert "homophily  unknown" in text


def test_counts(small: Graph) -> None:
    assert (small.num_nodes, small.num_edges, small.num_features, small.num_classes) == (5, 4, 3, 2)
    assert small.labeled.tolist() == [True] * 4 + [False]
    assert small.density == 8 / 15


def test_homophily_agrees_with_pyg(cora: Graph) -> None:
    from torch_geometric.utils import homophily

    assert cora.homophily == pytest.approx(homophily(cora.edge_index, cora.labels), abs=1e-6)


def test_graphs_are_immutable(small: Graph) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        small.name = "other"  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        small.node_names[0] = 7
    other = small.replace(name="other")
    assert (small.name, other.name) == ("small", "other")


def test_a_copy_is_the_graph_itself(cora: Graph) -> None:
    assert copy.deepcopy({"graph": cora})["graph"] is cora


def test_repeated_node_names_are_refused(small: Graph, raises: Callable) -> None:
    with raises("duplicate-id", value="a"):
        Graph.from_edges([[0, 1], [1, 2]], node_names=["a", "b", "a"])
    with raises("duplicate-id", value=7):
        small.replace(node_names=np.array([7, 8, 7, 9, 0]))


def test_to_moves_every_tensor(small: Graph) -> None:
    moved = small.to(torch.device("cpu"))
    assert all(getattr(moved, field).device.type == "cpu" for field in ("adjacency", "features", "missing"))
    torch.testing.assert_close(moved.features, small.features)


def test_with_split_takes_masks_and_names(cora: Graph, raises: Callable) -> None:
    masks = Split(*(torch.arange(2708) % 3 == part for part in range(3)))
    assert torch.equal(cora.with_split(masks).validation, masks.validation)
    assert cora.with_split("per-class-5").train.sum() == 35
    assert cora.with_split("random").train.sum() == 81
    with raises("unknown-choice", value="rando"):
        cora.with_split("rando")


def test_parts_that_are_not_given_are_empty() -> None:
    graph = Graph.from_edges([[0], [2]])
    assert graph.num_nodes == 3
    assert graph.num_classes == 0
    assert not torch.cat([graph.train, graph.validation, graph.test, graph.missing, graph.labeled]).any()
    assert graph.node_names.tolist() == [0, 1, 2]
    assert graph.notes == (
        "1 edge was listed in one direction only and is taken as undirected",
        "1 node has no edge",
    )


@pytest.mark.parametrize(
    ("arguments", "code", "value"),
    [
        ({"edge_index": [[0, 1]]}, "wrong-shape", None),
        ({"edge_index": [[0.5], [1.0]]}, "wrong-shape", None),
        (
            {"edge_index": [[0], [9]], "num_nodes": 3},
            "unknown-node",
            9,
        ),
        ({"edge_index": [[0], [-1]], "num_nodes": 3}, "unknown-node", -1),
        ({"edge_index": [[0], [1]], "weights": [0.0]}, "bad-weight", 0.0),
        ({"edge_index": [[0, 1], [1, 2]], "weights": [1, torch.inf]}, "bad-weight", torch.inf),
        ({"edge_index": [[0, 1], [1, 2]], "weights": [1, -1.5]}, "bad-weight", -1.5),
        ({"edge_index": [[0], [1]], "weights": [1.0, 2.0]}, "wrong-shape", None),
    ],
)
def test_invalid_edges_are_refused(
    arguments: dict[str, object], code: str, value: object, raises: Callable
) -> None:
    with raises(code, value=value):
        Graph.from_edges(**arguments)  # type: ignore[arg-type]


def test_asymmetric_matrices_and_self_loops_are_refused(small: Graph, raises: Callable) -> None:
    one_way = torch.triu(torch.ones(5, 5), 1).to_sparse_csr()
    with raises("not-symmetric"):
        Graph(one_way, torch.ones(5, 1))
    with raises("not-symmetric"):
        small.replace(adjacency=one_way)
    with raises("self-loop"):
        Graph(torch.eye(5).to_sparse_csr(), torch.ones(5, 1))


def test_an_adjacency_is_checked_once(small: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(adjacency_module, "check_csr", lambda what, *rest: calls.append(what))
    for same in (small.replace(name="b"), small.with_split(small.split), small.to("cpu")):
        assert same.num_edges == 4
    assert not calls
    other = small.adjacency.clone()
    for _ in range(2):
        Graph(other, small.features)
    assert calls == ["adjacency"]


def test_every_argument_is_documented() -> None:
    documented = set(re.findall(r"^ {8}(\w+): ", Graph.__doc__ or "", re.MULTILINE))
    assert set(inspect.signature(Graph).parameters) == documented


@pytest.mark.parametrize(
    "arguments",
    [
        {"edge_index": [[0], [10**12]]},
        {"edge_index": [[0], [1]], "num_nodes": 10**12},
        {"edge_index": [[0], [1]], "labels": [0, 1, 1, 10**12]},
        {"edge_index": [[0], [1]], "labels": [0, 10**18]},
    ],
)
def test_sizes_far_above_the_contents_are_refused(arguments: dict[str, object], raises: Callable) -> None:
    with raises("out-of-range"):
        Graph.from_edges(**arguments)  # type: ignore[arg-type]


def test_other_names_need_another_encoder(small: Graph) -> None:
    named = small.replace(feature_names=("a", "b", "c"))
    assert [column.name for column in named.encoder.columns] == ["a", "b", "c"]
    assert named.replace(feature_names=None).encoder is None
    assert named.replace(feature_names=("x", "y", "z")).encoder.feature_names == ("x", "y", "z")
    assert named.with_split(small.split).encoder is named.encoder


class TestDirections:
    """Edges are undirected; which way they were listed is kept beside them."""

    EDGES = torch.tensor([[0, 1, 2, 3, 3], [1, 0, 1, 2, 3]])

    def listed(self, graph: Graph) -> set[tuple[int, int]]:
        assert graph.directed is not None
        return set(map(tuple, graph.edge_index[:, graph.directed].T.tolist()))

    def test_they_are_kept_where_some_edge_goes_one_way(self) -> None:
        graph = Graph.from_edges(self.EDGES, num_nodes=4)
        assert self.listed(graph) == {(0, 1), (1, 0), (2, 1), (3, 2)}
        assert Graph.from_edges(graph.edge_index).directed is None

    def test_nothing_else_is_changed_by_them(self) -> None:
        graph = Graph.from_edges(self.EDGES, num_nodes=4)
        both = Graph.from_edges(graph.edge_index)
        assert torch.equal(graph.edge_index, both.edge_index)
        assert graph.fingerprint == both.fingerprint

    def test_they_go_with_the_edges_they_are_of(self) -> None:
        graph = Graph.from_edges(self.EDGES, num_nodes=4)
        assert self.listed(graph.replace(name="other").to("cpu")) == self.listed(graph)
        other = Graph.from_edges([[0, 1], [1, 2]], num_nodes=4).adjacency
        assert graph.replace(adjacency=other).directed is None

    @pytest.mark.parametrize(
        ("wrong", "code"),
        [(torch.ones(2, dtype=torch.bool), "wrong-shape"), (torch.ones(6), "wrong-type")],
    )
    def test_others_are_refused(self, wrong: torch.Tensor, code: str, raises: Callable) -> None:
        with raises(code):
            Graph.from_edges(self.EDGES, num_nodes=4).replace(directed=wrong)

    def test_they_are_read_from_files_and_other_libraries(self, tmp_path: Path) -> None:
        from scipy.sparse import coo_array
        from torch_geometric.data import Data

        ends = self.EDGES.numpy()
        (tmp_path / "nodes.csv").write_text("id,x\n0,1\n1,2\n2,3\n3,4\n")
        (tmp_path / "edges.csv").write_text("source,target\n" + "\n".join(f"{a},{b}" for a, b in ends.T))
        np.savez(tmp_path / "graph.npz", edge_index=ends, x=np.ones((4, 1), np.float32))
        with pytest.warns(GraphWarning):
            files = [
                Graph.from_files(tmp_path / "nodes.csv", tmp_path / "edges.csv"),
                Graph.from_files(tmp_path / "graph.npz"),
            ]
        matrix = coo_array((np.ones(5), ends), shape=(4, 4))
        for graph in (
            *files,
            Graph.from_scipy(matrix),
            Graph.from_pyg(Data(edge_index=self.EDGES, num_nodes=4)),
            Graph.from_networkx(networkx.DiGraph(self.EDGES.T.tolist())),
        ):
            assert self.listed(graph) == {(0, 1), (1, 0), (2, 1), (3, 2)}
        assert Graph.from_networkx(networkx.Graph(self.EDGES.T.tolist())).directed is None
