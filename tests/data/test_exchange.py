from collections.abc import Callable

import networkx
import numpy as np
import pandas
import pyarrow
import pytest
import scipy.sparse
import torch
from torch_geometric.data import Data, HeteroData

from pairnorm.data import Graph, GraphWarning


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


PARTLY_NAN = [[1, torch.nan], [2, 3], [torch.nan, torch.nan]]


def as_networkx(features: list[list[float]]) -> Graph:
    graph = networkx.path_graph(3)
    networkx.set_node_attributes(graph, dict(enumerate(features)), "x")
    return Graph.from_networkx(graph)


CONSTRUCTORS = {
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


@pytest.mark.parametrize("constructor", CONSTRUCTORS)
class TestEveryWayIn:
    def test_nan_is_missing(self, constructor: str) -> None:
        graph = CONSTRUCTORS[constructor](PARTLY_NAN)
        assert graph.features.to_dense().tolist() == [[1, 0], [2, 3], [0, 0]]
        assert graph.missing.tolist() == [[False, True], [False, False], [True, True]]

    def test_rows_of_nan_are_missing_vectors(self, constructor: str) -> None:
        graph = CONSTRUCTORS[constructor]([[1.0, 0.0], [torch.nan, torch.nan], [2.0, 3.0]])
        assert graph.missing.tolist() == [False, True, False]

    def test_infinity_is_an_error(self, constructor: str, raises: Callable) -> None:
        with raises("not-finite", value=(2, 1)):
            CONSTRUCTORS[constructor]([[1.0, 0.0], [torch.nan, torch.nan], [2.0, -torch.inf]])


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
        ("data", "code", "value"),
        [
            (Data(x=torch.ones(3, 1)), "edges-missing", None),
            (
                Data(edge_index=torch.tensor([[0], [1]]), train_mask=torch.ones(2, 10, dtype=torch.bool)),
                "wrong-shape",
                "train_mask",
            ),
            (Data(edge_index=torch.tensor([[0], [1]]), y=torch.ones(2, 3)), "wrong-shape", None),
            (Data(edge_index=torch.tensor([[0], [1]]), y=torch.tensor([0.5, 1])), "not-a-whole-number", None),
        ],
    )
    def test_what_does_not_fit_is_named(self, data: Data, code: str, value: object, raises: Callable) -> None:
        with raises(code, value=value):
            Graph.from_pyg(data)

    def test_attributes_of_edges_are_noted(self) -> None:
        edges = torch.tensor([[0, 1], [1, 0]])
        (note,) = Graph.from_pyg(Data(edge_index=edges, edge_attr=torch.ones(2, 3), num_nodes=2)).notes
        assert note.startswith("edge_attr of the PyG data: not used")

    def test_graphs_with_types_are_to_be_made_one(self, raises: Callable) -> None:
        data = HeteroData()
        data["a"].x, data["b"].x = torch.ones(2, 1), torch.zeros(1, 1)
        data["a", "to", "b"].edge_index = torch.tensor([[0, 1], [0, 0]])
        for one in (HeteroData(), data):
            with raises("wrong-type", value="HeteroData", hint="data.to_homogeneous() makes one."):
                Graph.from_pyg(one)
        assert Graph.from_pyg(data.to_homogeneous()).num_edges == 2


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

    def test_a_matrix_that_is_not_square_is_refused(self, raises: Callable) -> None:
        with raises("wrong-shape"):
            Graph.from_scipy(scipy.sparse.csr_array((2, 3)))


class TestNetworkX:
    def test_round_trip(self, weighted: Graph) -> None:
        graph = weighted.replace(
            node_names=np.array(["a", "b", "c", "d", "e"]),
            missing=torch.tensor([False, True, False, False, False]),
        )
        assert_same(Graph.from_networkx(graph.to_networkx()), graph, names=True)

    def test_attributes_become_features(self) -> None:
        graph = networkx.Graph()
        graph.add_node("a", age=3, city="Rome", label="x")
        graph.add_node("b", age=4, city="Oslo", label="y")
        graph.add_node("c", city="Rome")
        graph.add_edge("a", "b", weight=2.5)
        graph.add_edge("b", "c")
        result = Graph.from_networkx(graph)
        assert result.feature_names == ("age", "city=Oslo", "city=Rome")
        assert result.features.tolist() == [[3, 0, 1], [4, 1, 0], [0, 0, 1]]
        assert result.missing.tolist() == [[False] * 3, [False] * 3, [True, False, False]]
        assert result.labels.tolist() == [0, 1, -1]
        assert result.adjacency.to_dense()[0, 1] == 2.5
        assert result.notes == ()

    def test_an_edge_without_the_weight_that_is_named_is_an_error(self, raises: Callable) -> None:
        graph = networkx.Graph()
        graph.add_edge("a", "b", amount=2.5)
        graph.add_edge("b", "c")
        with raises("bad-weight"):
            Graph.from_networkx(graph, weight="amount")

    def test_weights_that_were_only_found_are_not_asked_for_again(self) -> None:
        graph = networkx.Graph()
        graph.add_nodes_from([("a", {"age": 1}), ("b", {"age": 2})])
        graph.add_edge("a", "b", weight=2.5)
        first = Graph.from_networkx(graph)
        del graph.edges["a", "b"]["weight"]
        assert Graph.from_networkx(graph, encoder=first.encoder).adjacency.values().tolist() == [1, 1]

    def test_a_label_can_be_left_out(self) -> None:
        graph = networkx.Graph()
        graph.add_node("a", label="Ann", split="north", age=3)
        graph.add_node("b", label="Bob", split="south", age=4)
        result = Graph.from_networkx(graph, ignore=["label", "split"])
        assert not result.labeled.any()
        assert result.feature_names == ("age",)

    def test_vectors_can_be_left_out(self) -> None:
        graph = networkx.Graph()
        graph.add_node("a", x=[1.0, 2.0], age=3)
        graph.add_node("b", x=[1.0, 2.0], age=4)
        assert Graph.from_networkx(graph).num_features == 2
        assert Graph.from_networkx(graph, ignore=["x"]).feature_names == ("age",)

    @pytest.mark.parametrize("other", [[1.0], 1.0, "text"])
    @pytest.mark.parametrize("first", [True, False])
    def test_vectors_that_differ_are_named(self, other: object, first: bool, raises: Callable) -> None:
        vectors = [np.array([1.0, 2.0]), other]
        graph = networkx.Graph()
        for node, vector in enumerate(vectors[::-1] if first else vectors):
            graph.add_node(node, x=vector)
        with raises("wrong-shape", value="x"):
            Graph.from_networkx(graph)


PEOPLE = {"id": ["a", "b", "c"], "age": [31.0, None, 25.0], "risk": ["low", None, "high"]}
PAYMENTS = {"from": ["a", "b", "b", "c"], "to": ["b", "a", "c", "b"], "amount": [1.0, 1.0, 2.0, 2.0]}


def interchange(columns: dict[str, list[object]]) -> object:
    """Return a frame that offers the interchange protocol and nothing else."""
    frame = pyarrow.table(columns)
    return type("Other", (), {"__dataframe__": lambda self, *args, **options: frame.__dataframe__()})()


@pytest.mark.parametrize("kind", ["pandas", "index", "dictionary", "arrow", "interchange", "polars"])
def test_frames_of_every_library_are_the_same_graph(kind: str) -> None:
    make = {
        "pandas": pandas.DataFrame,
        "index": lambda columns: pandas.DataFrame(columns).set_index(next(iter(columns))),
        "dictionary": dict,
        "arrow": pyarrow.table,
        "interchange": interchange,
        "polars": lambda columns: pytest.importorskip("polars").DataFrame(columns),
    }[kind]
    graph = Graph.from_frames(make(PEOPLE), make(PAYMENTS), label="risk", weight="amount")
    assert graph.node_names.tolist() == ["a", "b", "c"]
    assert graph.features.tolist() == [[31], [0], [25]]
    assert graph.missing.tolist() == [False, True, False]
    assert [graph.class_names[label] for label in graph.labels if label >= 0] == ["low", "high"]
    assert graph.adjacency.to_dense().tolist() == [[0, 1, 0], [1, 0, 2], [0, 2, 0]]
    again = Graph.from_frames(make(PEOPLE), make(PAYMENTS), encoder=graph.encoder)
    assert torch.equal(again.labels, graph.labels)


def test_other_types_than_frames_are_refused(raises: Callable) -> None:
    with raises("wrong-type", value="int"):
        Graph.from_frames(3, PAYMENTS)
    with raises("wrong-type", "the frame of nodes", value="NoneType"):
        Graph.from_frames(None, PAYMENTS)
    with raises("wrong-type", "the frame of edges", value="NoneType"):
        Graph.from_frames(PEOPLE, None)


def test_an_option_of_another_name_suggests_the_closest(raises: Callable) -> None:
    with raises("unknown-choice", value="lable", hint="Did you mean 'label'?"):
        Graph.from_frames(PEOPLE, PAYMENTS, lable="risk")


def test_ids_in_an_unnamed_index_are_suggested(raises: Callable) -> None:
    people = pandas.DataFrame({"age": [31, 25, 7]}, index=["a", "b", "c"])
    with raises("unknown-node", value="a") as caught:
        Graph.from_frames(people, PAYMENTS)
    assert "only one with a name, such as 'id', is read" in caught.value.hint
    assert Graph.from_frames(people.rename_axis("id"), PAYMENTS, weight="amount").num_edges == 2
    with raises("unknown-node", value="a") as caught:
        Graph.from_frames(people.reset_index(drop=True), PAYMENTS)
    assert "index" not in caught.value.hint


def test_a_long_frame_is_features() -> None:
    words = {"node": ["a", "c"], "word": ["red", "blue"], "count": [2, 3]}
    nodes = {"id": PEOPLE["id"]}
    with pytest.warns(GraphWarning, match="1 nodes have no row"):
        graph = Graph.from_frames(nodes, PAYMENTS, features=words, weight="amount")
    assert graph.feature_names == ("blue", "red")
    assert graph.features.to_dense().tolist() == [[0, 2], [0, 0], [3, 0]]
    assert graph.missing.tolist() == [False, True, False]


def test_labels_may_be_texts(raises: Callable) -> None:
    texts = ["low", "", "high", ""]
    for labels in (texts, np.array(texts), ["low", None, "high", None], ["low", np.nan, "high", None]):
        graph = Graph.from_edges([[0, 1], [1, 2]], labels=labels)
        assert graph.class_names == ("high", "low")
        assert graph.labels.tolist() == [1, -1, 0, -1]
    graph = Graph.from_edges([[0], [1]], labels=["low", "high"], class_names=("low", "middle", "high"))
    assert graph.labels.tolist() == [0, 2]
    with raises("unknown-class", value="other"):
        Graph.from_edges([[0], [1]], labels=["low", "other"], class_names=("low", "high"))


def test_graphml_defaults_replace_absent_attributes(tmp_path):
    key = '<key id="{0}" for="{1}" attr.name="{0}" attr.type="{2}"><default>{3}</default></key>'
    (tmp_path / "g.graphml").write_text(
        '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">'
        + key.format("color", "node", "string", "yellow")
        + key.format("weight", "edge", "double", "2.5")
        + '<graph edgedefault="undirected"><node id="x"/><node id="y"><data key="color">red</data></node>'
        '<edge source="x" target="y"/></graph></graphml>'
    )
    graph = Graph.from_files(tmp_path / "g.graphml")
    assert graph.feature_names == ("color=red", "color=yellow")
    assert graph.features.tolist() == [[0, 1], [1, 0]]
    assert not graph.missing.any()
    assert graph.adjacency.values().tolist() == [2.5, 2.5]
