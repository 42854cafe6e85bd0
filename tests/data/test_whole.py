import pickle
from pathlib import Path

import networkx
import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch_geometric.data import Data

from pairnorm.data import Graph
from pairnorm.errors import PairNormError


def pieces(prefix: str, matrix: scipy.sparse.csr_array) -> dict[str, np.ndarray]:
    return {
        f"{prefix}_data": matrix.data,
        f"{prefix}_indices": matrix.indices,
        f"{prefix}_indptr": matrix.indptr,
        f"{prefix}_shape": np.array(matrix.shape),
    }


def test_npz(tmp_path: Path, cora: Graph) -> None:
    adjacency, features = cora.to_scipy()
    path = tmp_path / "cora.npz"
    np.savez(path, **pieces("adj", adjacency), **pieces("attr", features), labels=cora.labels.numpy())
    graph = Graph.from_files(path)
    assert graph.name == "cora"
    assert torch.equal(graph.edge_index, cora.edge_index)
    assert torch.equal(graph.features.to_dense(), cora.features.to_dense())
    assert torch.equal(graph.labels, cora.labels)


def test_npz_as_scipy_saves_a_matrix(tmp_path: Path, cora: Graph) -> None:
    scipy.sparse.save_npz(tmp_path / "cora.npz", cora.to_scipy()[0])
    assert torch.equal(Graph.from_files(tmp_path / "cora.npz").edge_index, cora.edge_index)


def dense(graph: Graph) -> Data:
    return graph.replace(features=graph.features.to_dense()).to_pyg()


@pytest.mark.parametrize("kind", ["safetensors", "pt", "pt-dict"])
def test_pyg_data(tmp_path: Path, cora: Graph, kind: str) -> None:
    path, data = tmp_path / f"cora.{kind.removesuffix('-dict')}", dense(cora)
    if kind == "safetensors":
        tensors = {key: value.contiguous() for key, value in data.to_dict().items() if torch.is_tensor(value)}
        save_file(tensors, path)
    else:
        torch.save(data if kind == "pt" else data.to_dict(), path)
    graph = Graph.from_files(path)
    for part in ("edge_index", "labels", "train", "validation", "test"):
        assert torch.equal(getattr(graph, part), getattr(cora, part))
    assert torch.equal(graph.features, cora.features.to_dense())


def test_a_broken_value_is_named_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "graph.pt"
    edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    torch.save(Data(x=torch.tensor([[1.0, 2], [2, torch.inf], [3, 3]]), edge_index=edges), path)
    with pytest.raises(PairNormError, match=r"graph\.pt: feature 1 of node 1 is infinite"):
        Graph.from_files(path)


def test_graphml(tmp_path: Path) -> None:
    graph = networkx.path_graph(["a", "b", "c", "d"])
    networkx.set_node_attributes(graph, {"a": 1.5, "b": 2.0, "d": 4.0}, "size")
    networkx.set_node_attributes(graph, {"a": "red", "b": "blue", "c": "red"}, "colour")
    networkx.write_graphml(graph, tmp_path / "path.graphml")
    found = Graph.from_files(tmp_path / "path.graphml", label="colour")
    assert found.node_names.tolist() == ["a", "b", "c", "d"]
    assert found.features.tolist() == [[1.5], [2.0], [0.0], [4.0]]
    assert found.missing.tolist() == [False, False, True, False]
    assert found.class_names == ("blue", "red")
    assert found.num_edges == 3


def test_graphml_takes_weights_from_the_attribute_that_is_named(tmp_path: Path) -> None:
    graph = networkx.Graph()
    graph.add_nodes_from("abc", age=1)
    graph.add_edge("a", "b", amount=2.5, weight=9.0)
    graph.add_edge("b", "c", amount=0.5, weight=9.0)
    path = tmp_path / "graph.graphml"
    networkx.write_graphml(graph, path)
    found = Graph.from_files(path, weight="amount")
    assert found.adjacency.to_dense().tolist() == [[0, 2.5, 0], [2.5, 0, 0.5], [0, 0.5, 0]]
    with pytest.raises(PairNormError, match=r"no column 'amout' \(weight\).*Did you mean 'amount'"):
        Graph.from_files(path, weight="amout")


def test_graphml_from_a_tool_that_lays_out_graphs(tmp_path: Path) -> None:
    graph = networkx.path_graph(["a", "b"])
    networkx.set_node_attributes(graph, {"a": 1.5, "b": -2.0}, "x")
    networkx.set_node_attributes(graph, {"a": 3.0, "b": 4.0}, "y")
    path = tmp_path / "graph.graphml"
    networkx.write_graphml(graph, path)
    found = Graph.from_files(path)
    assert found.feature_names == ("x", "y")
    assert found.features.tolist() == [[1.5, 3.0], [-2.0, 4.0]]
    assert Graph.from_files(path, ignore=["x"]).feature_names == ("y",)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"y": torch.zeros(3, dtype=torch.int64)}, "the labels hold one class only"),
        (
            {"y": torch.tensor([0, 1, 1]), "train_mask": torch.tensor([False, True, False])},
            "class '0' has no training node",
        ),
        (
            {
                "y": torch.tensor([0, 1, 1]),
                "train_mask": torch.tensor([True, True, False]),
                "val_mask": torch.tensor([False, True, False]),
            },
            "overlap: 1 nodes of validation",
        ),
    ],
)
def test_labels_and_masks_that_do_not_fit_are_named(
    tmp_path: Path, parts: dict[str, torch.Tensor], message: str
) -> None:
    data = Data(x=torch.ones(3, 1), edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), **parts)
    torch.save(data, tmp_path / "graph.pt")
    with pytest.raises(PairNormError, match=rf"graph\.pt: .*{message}"):
        Graph.from_files(tmp_path / "graph.pt")


class Harm:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("raise SystemExit('unpickled')",))


@pytest.mark.parametrize("name", ["graph.pt", "graph.npz"])
def test_nothing_is_unpickled(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.endswith("npz"):
        np.savez(path, adj_data=np.array([Harm()], dtype=object))
    else:
        path.write_bytes(pickle.dumps(Harm()))
    with pytest.raises(PairNormError, match=name):
        Graph.from_files(path)


@pytest.mark.parametrize("kind", ["npz", "safetensors", "pt", "graphml", "parquet"])
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(contents=st.binary(max_size=200))
def test_broken_files_are_named(tmp_path: Path, kind: str, contents: bytes) -> None:
    path = tmp_path / f"broken.{kind}"
    path.write_bytes(contents)
    with pytest.raises(PairNormError, match=r"broken\."):
        Graph.from_files(path, path if kind == "parquet" else None)


def test_indices_out_of_range_are_an_error(tmp_path: Path) -> None:
    matrix = scipy.sparse.csr_array(np.eye(3))
    broken = pieces("adj", matrix) | {"adj_indices": np.array([0, 1, 99])}
    np.savez(tmp_path / "broken.npz", **broken)
    with pytest.raises(PairNormError, match=r"broken\.npz"):
        Graph.from_files(tmp_path / "broken.npz")


@pytest.mark.parametrize("kind", ["npz", "safetensors", "pt", "graphml"])
@pytest.mark.parametrize(
    "option",
    [
        {name: "y"}
        for name in (
            "id",
            "source",
            "target",
            "delimiter",
            "weight",
            "label",
            "split",
            "categorical",
            "ignore",
        )
    ],
    ids=lambda option: next(iter(option)),
)
def test_an_option_that_does_not_apply_is_refused(tmp_path: Path, kind: str, option: dict[str, str]) -> None:
    (name,) = option
    path = tmp_path / f"graph.{kind}"
    networkx.write_graphml(networkx.path_graph(3), path)  # what it holds does not matter to the others
    message = rf"graph\.{kind}: {name}='y' does not apply to \.{kind} files"
    if kind == "graphml" and name in ("weight", "label", "split", "categorical", "ignore"):
        message = rf"graph\.{kind}: .* there is no column 'y' \({name}\)"
    with pytest.raises(PairNormError, match=message):
        Graph.from_files(path, **option)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "graph.npz", other=np.ones(3))
    with pytest.raises(PairNormError, match=r"graph\.npz: there is no 'adj_data'.* it holds other"):
        Graph.from_files(tmp_path / "graph.npz")
    (tmp_path / "graph.doc").touch()
    with pytest.raises(PairNormError, match=r"files of type '\.doc' are not known; expected one of \.csv"):
        Graph.from_files(tmp_path / "graph.doc")
    with pytest.raises(PairNormError, match="there is no such file"):
        Graph.from_files(tmp_path / "none.npz")
