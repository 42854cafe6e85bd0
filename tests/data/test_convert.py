import networkx
import numpy as np
import pytest
import scipy.sparse
import torch
from torch_geometric.data import Data

from pairnorm.data import Graph
from pairnorm.errors import PairNormError


def assert_same(first: Graph, second: Graph, *, names: bool = False) -> None:
    for part in ("labels", "train", "validation", "test", "missing", "edge_index"):
        assert torch.equal(getattr(first, part), getattr(second, part)), part
    assert torch.equal(first.adjacency.values(), second.adjacency.values())
    assert torch.equal(first.features.to_dense(), second.features.to_dense())
    if names:
        assert first.node_names.tolist() == second.node_names.tolist()
        assert first.class_names == second.class_names


@pytest.fixture
def weighted(small: Graph) -> Graph:
    source, target = small.edge_index
    weights = 1 + torch.minimum(source, target).float() / 4
    return Graph.from_edges(small.edge_index, weights=weights, **{k: getattr(small, k) for k in KEPT})


KEPT = ("features", "labels", "train", "validation", "test", "class_names")


HOLES = [[1, torch.nan], [2, 3], [torch.nan, torch.nan]]


def as_networkx(features: list[list[float]]) -> Graph:
    graph = networkx.path_graph(3)
    networkx.set_node_attributes(graph, dict(enumerate(features)), "x")
    return Graph.from_networkx(graph)


WAYS_IN = {
    "edges": lambda features: Graph.from_edges([[0, 1], [1, 2]], features),
    "pyg": lambda features: Graph.from_pyg(
        Data(x=torch.tensor(features), edge_index=torch.tensor([[0, 1], [1, 2]]))
    ),
    "sparse pyg": lambda features: Graph.from_pyg(
        Data(x=torch.tensor(features).to_sparse_csr(), edge_index=torch.tensor([[0, 1], [1, 2]]))
    ),
    "scipy": lambda features: Graph.from_scipy(scipy.sparse.eye_array(3), np.array(features)),
    "sparse scipy": lambda features: Graph.from_scipy(
        scipy.sparse.eye_array(3), scipy.sparse.csr_array(np.array(features))
    ),
    "networkx": as_networkx,
    "replace": lambda features: Graph.from_edges([[0, 1], [1, 2]]).replace(features=torch.tensor(features)),
}


@pytest.mark.parametrize("way", WAYS_IN)
class TestEveryWayIn:
    def test_nan_is_missing(self, way: str) -> None:
        graph = WAYS_IN[way](HOLES)
        assert graph.features.to_dense().tolist() == [[1, 0], [2, 3], [0, 0]]
        assert graph.missing.tolist() == [[False, True], [False, False], [True, True]]

    def test_rows_of_nan_are_missing_vectors(self, way: str) -> None:
        graph = WAYS_IN[way]([[1.0, 0.0], [torch.nan, torch.nan], [2.0, 3.0]])
        assert graph.missing.tolist() == [False, True, False]

    def test_infinity_is_an_error(self, way: str) -> None:
        with pytest.raises(PairNormError, match="feature 1 of node 2 is infinite"):
            WAYS_IN[way]([[1.0, 0.0], [torch.nan, torch.nan], [2.0, -torch.inf]])


class TestPyG:
    def test_round_trip(self, weighted: Graph) -> None:
        missing = torch.tensor([False, True, False, False, False])
        graph = weighted.replace(missing=missing)
        assert_same(Graph.from_pyg(graph.to_pyg()), graph)

    def test_round_trip_of_cora_keeps_features_sparse(self, cora: Graph) -> None:
        graph = Graph.from_pyg(cora.to_pyg())
        assert graph.features.layout == torch.sparse_csr
        assert_same(graph, cora)

    def test_pyg_finds_the_data_valid(self, cora: Graph) -> None:
        data = cora.to_pyg()
        assert data.validate()
        assert data.is_undirected()
        assert (data.num_nodes, data.num_edges, data.num_features) == (2708, 2 * 5278, 1433)

    def test_labels_of_other_shapes(self) -> None:
        edges = torch.tensor([[0, 1], [1, 2]])
        column = Data(edge_index=edges, y=torch.tensor([[0], [1], [0]]), num_nodes=3)
        assert Graph.from_pyg(column).labels.tolist() == [0, 1, 0]
        floats = Data(edge_index=edges, y=torch.tensor([0.0, float("nan"), 1.0]), num_nodes=3)
        assert Graph.from_pyg(floats).labels.tolist() == [0, -1, 1]

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (Data(x=torch.ones(3, 1)), "has no edge_index; it has 'x'"),
            (
                Data(edge_index=torch.tensor([[0], [1]]), train_mask=torch.ones(2, 10, dtype=torch.bool)),
                r"train_mask has shape \(2, 10\): several splits",
            ),
            (Data(edge_index=torch.tensor([[0], [1]]), y=torch.ones(2, 3)), r"y has shape \(2, 3\)"),
            (Data(edge_index=torch.tensor([[0], [1]]), y=torch.tensor([0.5, 1])), "y holds fractions"),
        ],
    )
    def test_what_does_not_fit_is_named(self, data: Data, message: str) -> None:
        with pytest.raises(PairNormError, match=message):
            Graph.from_pyg(data)


class TestSciPy:
    @pytest.mark.parametrize("sparse", [True, False])
    def test_round_trip(self, weighted: Graph, sparse: bool) -> None:
        graph = weighted.replace(features=weighted.features.to_sparse_csr()) if sparse else weighted
        adjacency, features = graph.to_scipy()
        assert scipy.sparse.issparse(features) == sparse
        parts = {part: getattr(graph, part) for part in KEPT if part != "features"}
        assert_same(Graph.from_scipy(adjacency, features, **parts), graph, names=True)

    def test_a_directed_matrix_with_loops_becomes_undirected(self) -> None:
        graph = Graph.from_scipy(scipy.sparse.csr_array(np.array([[5.0, 2, 0], [1, 0, 0], [0, 3, 0]])))
        assert graph.adjacency.to_dense().tolist() == [[0, 2, 0], [2, 0, 3], [0, 3, 0]]
        assert "1 self-loop was dropped" in graph.notes

    def test_the_callers_matrix_is_left_alone(self) -> None:
        matrix = scipy.sparse.csr_array((np.ones(3), [1, 1, 0], [0, 2, 3]), shape=(2, 2))
        Graph.from_scipy(matrix, matrix)
        assert matrix.nnz == 3

    def test_a_matrix_that_is_not_square_is_refused(self) -> None:
        with pytest.raises(PairNormError, match=r"adjacency has shape \(2, 3\); expected a square matrix"):
            Graph.from_scipy(scipy.sparse.csr_array((2, 3)))


class TestNetworkX:
    def test_round_trip(self, weighted: Graph) -> None:
        graph = weighted.replace(
            node_names=np.array(["a", "b", "c", "d", "e"]),
            missing=torch.tensor([False, True, False, False, False]),
        )
        assert_same(Graph.from_networkx(graph.to_networkx()), graph, names=True)

    def test_cora_has_the_same_neighbours(self, cora: Graph) -> None:
        theirs = cora.to_networkx()
        assert theirs.number_of_edges() == 5278
        degrees = dict(theirs.degree)
        ours = cora.adjacency.crow_indices().diff().tolist()
        assert [degrees[name] for name in cora.node_names.tolist()] == ours

    def test_attributes_become_features(self) -> None:
        graph = networkx.Graph()
        graph.add_node("a", age=3, city="Rome", label="x")
        graph.add_node("b", age=4, city="Oslo", label="y")
        graph.add_node("c", city="Rome")
        graph.add_edge("a", "b", weight=2.5)
        graph.add_edge("b", "c")
        found = Graph.from_networkx(graph)
        assert found.feature_names == ("age", "city=Oslo", "city=Rome")
        assert found.features.tolist() == [[3, 0, 1], [4, 1, 0], [0, 0, 1]]
        assert found.missing.tolist() == [[False] * 3, [False] * 3, [True, False, False]]
        assert found.labels.tolist() == [0, 1, -1]
        assert found.adjacency.to_dense()[0, 1] == 2.5
        assert found.notes == ()

    def test_an_edge_without_the_weight_that_is_named_is_an_error(self) -> None:
        graph = networkx.Graph()
        graph.add_edge("a", "b", amount=2.5)
        graph.add_edge("b", "c")
        with pytest.raises(PairNormError, match="row 2: the weight in column 'amount' is None"):
            Graph.from_networkx(graph, weight="amount")

    def test_a_label_can_be_left_out(self) -> None:
        graph = networkx.Graph()
        graph.add_node("a", label="Ann", split="north", age=3)
        graph.add_node("b", label="Bob", split="south", age=4)
        found = Graph.from_networkx(graph, ignore=["label", "split"])
        assert not found.labelled.any()
        assert found.feature_names == ("age",)

    def test_vectors_can_be_left_out(self) -> None:
        graph = networkx.Graph()
        graph.add_node("a", x=[1.0, 2.0], age=3)
        graph.add_node("b", x=[1.0, 2.0], age=4)
        assert Graph.from_networkx(graph).num_features == 2
        assert Graph.from_networkx(graph, ignore=["x"]).feature_names == ("age",)

    @pytest.mark.parametrize("other", [[1.0], 1.0, "text"])
    @pytest.mark.parametrize("first", [True, False])
    def test_vectors_that_differ_are_named(self, other: object, first: bool) -> None:
        vectors = [np.array([1.0, 2.0]), other]
        graph = networkx.Graph()
        for node, vector in enumerate(vectors[::-1] if first else vectors):
            graph.add_node(node, x=vector)
        with pytest.raises(PairNormError, match=r"attribute 'x' is not \d numbers on every node"):
            Graph.from_networkx(graph)
