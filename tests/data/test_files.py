import bz2
import gzip
import io
import json
import lzma
import pickle
import sqlite3
import warnings
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import networkx
import numpy as np
import pandas
import pytest
import scipy.sparse
import torch
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch_geometric.data import Data

from pairnorm.base.errors import PairNormError
from pairnorm.data import Graph, GraphWarning


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


def test_npz_with_names_of_classes_and_nodes(tmp_path: Path, cora: Graph) -> None:
    adjacency, features = cora.to_scipy()
    classes, names = [f"class {n}" for n in range(7)], [f"paper {n}" for n in range(cora.num_nodes)]
    arrays = pieces("adj", adjacency) | pieces("attr", features) | {"labels": cora.labels.numpy()}
    np.savez(tmp_path / "cora.npz", **arrays, class_names=classes, node_names=names)
    graph = Graph.from_files(tmp_path / "cora.npz")
    assert graph.class_names == tuple(classes)
    assert graph.node_names.tolist() == names
    assert torch.equal(graph.labels, cora.labels)


def test_npz_with_a_row_per_edge(tmp_path: Path, cora: Graph) -> None:
    edges, features = cora.edge_index.T.numpy(), cora.features.to_dense().numpy()
    path, masks = tmp_path / "cora.npz", np.ones((10, cora.num_nodes), bool)
    arrays = {"node_features": features, "node_labels": cora.labels.numpy(), "train_masks": masks}
    np.savez(path, edges=edges, **arrays)
    graph = Graph.from_files(path)
    assert torch.equal(graph.edge_index, cora.edge_index)
    assert torch.equal(graph.features, cora.features.to_dense())
    assert torch.equal(graph.labels, cora.labels)


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


def test_an_infinite_feature_is_reported_with_its_file(tmp_path: Path, raises: Callable) -> None:
    path = tmp_path / "graph.pt"
    edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    torch.save(Data(x=torch.tensor([[1.0, 2], [2, torch.inf], [3, 3]]), edge_index=edges), path)
    with raises("not-finite", "graph.pt", value=(1, 1)):
        Graph.from_files(path)


def test_graphml(tmp_path: Path) -> None:
    graph = networkx.path_graph(["a", "b", "c", "d"])
    networkx.set_node_attributes(graph, {"a": 1.5, "b": 2.0, "d": 4.0}, "size")
    networkx.set_node_attributes(graph, {"a": "red", "b": "blue", "c": "red"}, "color")
    networkx.write_graphml(graph, tmp_path / "path.graphml")
    result = Graph.from_files(tmp_path / "path.graphml", label="color")
    assert result.node_names.tolist() == ["a", "b", "c", "d"]
    assert result.features.tolist() == [[1.5], [2.0], [0.0], [4.0]]
    assert result.missing.tolist() == [False, False, True, False]
    assert result.class_names == ("blue", "red")
    assert result.num_edges == 3


@pytest.mark.filterwarnings("ignore::pairnorm.data.GraphWarning")  # it has no features
@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz", ".zst", ".zip"])
def test_graph_files_may_be_compressed(tmp_path: Path, ending: str, raises: Callable) -> None:
    graph = networkx.path_graph(["a", "b", "c", "d"])
    networkx.set_node_attributes(graph, {"a": "red", "b": "blue", "c": "red"}, "color")
    networkx.write_graphml(graph, tmp_path / "path.graphml")
    packed, data = tmp_path / f"path.graphml{ending}", (tmp_path / "path.graphml").read_bytes()
    if ending == ".zip":
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("path.graphml", data)
    else:
        pack = {".gz": gzip, ".bz2": bz2, ".xz": lzma, ".zst": zstandard}[ending].compress
        packed.write_bytes(pack(data))
    read = [Graph.from_files(path, label="color") for path in (tmp_path / "path.graphml", packed)]
    assert read[0].fingerprint == read[1].fingerprint
    assert read[1].name == "path"
    with raises("memory-limit", packed.name):
        Graph.from_files(packed, memory=len(data))


def test_graphml_takes_weights_from_the_attribute_that_is_named(tmp_path: Path, raises: Callable) -> None:
    graph = networkx.Graph()
    graph.add_nodes_from("abc", age=1)
    graph.add_edge("a", "b", amount=2.5, weight=9.0)
    graph.add_edge("b", "c", amount=0.5, weight=9.0)
    path = tmp_path / "graph.graphml"
    networkx.write_graphml(graph, path)
    result = Graph.from_files(path, weight="amount")
    assert result.adjacency.to_dense().tolist() == [[0, 2.5, 0], [2.5, 0, 0.5], [0, 0.5, 0]]
    with raises("unknown-column", "graph.graphml", value="amout"):
        Graph.from_files(path, weight="amout")


def test_graphml_from_a_tool_that_lays_out_graphs(tmp_path: Path) -> None:
    graph = networkx.path_graph(["a", "b"])
    networkx.set_node_attributes(graph, {"a": 1.5, "b": -2.0}, "x")
    networkx.set_node_attributes(graph, {"a": 3.0, "b": 4.0}, "y")
    path = tmp_path / "graph.graphml"
    networkx.write_graphml(graph, path)
    result = Graph.from_files(path)
    assert result.feature_names == ("x", "y")
    assert result.features.tolist() == [[1.5, 3.0], [-2.0, 4.0]]
    assert Graph.from_files(path, ignore=["x"]).feature_names == ("y",)


@pytest.mark.parametrize(
    ("parts", "code", "value"),
    [
        ({"y": torch.tensor([0, -2, 1])}, "out-of-range", -2),
        (
            {
                "y": torch.tensor([0, 1, 1]),
                "train_mask": torch.tensor([True, True, False]),
                "val_mask": torch.tensor([False, True, False]),
            },
            "parts-overlap",
            "validation",
        ),
    ],
)
def test_invalid_labels_and_masks_are_reported_with_their_file(
    tmp_path: Path, parts: dict[str, torch.Tensor], code: str, value: object, raises: Callable
) -> None:
    data = Data(x=torch.ones(3, 1), edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), **parts)
    torch.save(data, tmp_path / "graph.pt")
    with raises(code, "graph.pt", value=value):
        Graph.from_files(tmp_path / "graph.pt")


class Harm:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("raise SystemExit('unpickled')",))


@pytest.mark.parametrize("name", ["graph.pt", "graph.npz"])
def test_nothing_is_unpickled(tmp_path: Path, name: str, raises: Callable) -> None:
    path = tmp_path / name
    if name.endswith("npz"):
        np.savez(path, adj_data=np.array([Harm()], dtype=object))
    else:
        path.write_bytes(pickle.dumps(Harm()))
    with raises("file-damaged", name):
        Graph.from_files(path)


@pytest.mark.parametrize("kind", ["npz", "safetensors", "pt", "graphml", "gml", "gexf", "parquet"])
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(contents=st.binary(max_size=200))
def test_random_bytes_are_reported_with_their_file(tmp_path: Path, kind: str, contents: bytes) -> None:
    path = tmp_path / f"broken.{kind}"
    path.write_bytes(contents)
    with pytest.raises(PairNormError, match=r"broken\."):
        Graph.from_files(path, path if kind == "parquet" else None)


INVALID_ARRAYS = {
    "indices": {"indices": np.array([0, 1, 99])},
    "negative": {"indices": np.array([0, 1, -7])},
    "starts": {"indptr": np.array([0, 10**9, -1, 3])},
    "too few starts": {"indptr": np.array([0, 3])},
    "too few values": {"data": np.ones(2)},
    "fractions": {"indptr": np.array([0.0, 1, 2, 3])},
}


@pytest.mark.parametrize("case", INVALID_ARRAYS)
@pytest.mark.parametrize("place", ["adj", "attr", "csr", "csc", "bsr"])
def test_invalid_sparse_arrays_are_refused(tmp_path: Path, case: str, place: str, raises: Callable) -> None:
    matrix = scipy.sparse.csr_array(np.eye(3))
    path = tmp_path / "broken.npz"
    if place in ("adj", "attr"):
        wrong = {f"{place}_{name}": value for name, value in INVALID_ARRAYS[case].items()}
        np.savez(path, **(pieces("adj", matrix) | pieces("attr", matrix) | wrong))
    else:
        one_by_one = matrix.tobsr(blocksize=(1, 1))
        scipy.sparse.save_npz(path, one_by_one if place == "bsr" else matrix.asformat(place))
        with np.load(path) as archive:
            held = dict(archive)
        wrong = {
            name: value.reshape(-1, *held[name].shape[1:]) for name, value in INVALID_ARRAYS[case].items()
        }
        np.savez(path, **(held | wrong))
    with raises("broken-matrix") as caught:
        Graph.from_files(path)
    assert caught.value.problem.startswith("broken.npz: ")


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "bsr", "dia"])
def test_every_format_of_save_npz_is_read(tmp_path: Path, kind: str) -> None:
    matrix = scipy.sparse.csr_array(np.array([[0.0, 1, 0, 0], [1, 0, 2, 0], [0, 2, 0, 3], [0, 0, 3, 0]]))
    scipy.sparse.save_npz(tmp_path / "g.npz", matrix.asformat(kind))
    assert Graph.from_files(tmp_path / "g.npz").adjacency.to_dense().tolist() == matrix.toarray().tolist()


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"labels": np.array([0, 1, 10**12])}, "out-of-range"),
        ({"labels": np.array([0, 1, 0.5])}, "not-a-whole-number"),
        ({"attr_shape": np.array([3, 10**15])}, "broken-matrix"),
        ({"adj_shape": np.array([10**12, 10**12])}, "broken-matrix"),
        ({"adj_shape": np.array([-3, 3])}, "broken-matrix"),
        ({"adj_data": np.array(["a", "b", "c"])}, "wrong-shape"),
    ],
)
def test_declared_sizes_far_above_the_contents_are_refused(
    tmp_path: Path, changed: dict[str, np.ndarray], code: str, raises: Callable
) -> None:
    matrix = scipy.sparse.csr_array(np.eye(3))
    np.savez(tmp_path / "bomb.npz", **(pieces("adj", matrix) | pieces("attr", matrix) | changed))
    with raises(code):
        Graph.from_files(tmp_path / "bomb.npz")


def test_coordinates_beyond_memory_are_refused(tmp_path: Path, raises: Callable) -> None:
    size = 10**13
    matrix = scipy.sparse.coo_array((np.ones(1), ([0], [size - 1])), shape=(size, size))
    scipy.sparse.save_npz(tmp_path / "bomb.npz", matrix)
    with raises("broken-matrix"):
        Graph.from_files(tmp_path / "bomb.npz")


@pytest.mark.parametrize("shape", [(10**12,), (2**31,), (10**5, 10**4), (11,), (9,)])
@pytest.mark.parametrize("version", [1, 2])
def test_a_header_that_claims_another_size_is_refused(
    tmp_path: Path, shape: tuple[int, ...], version: int, raises: Callable
) -> None:
    path, header = tmp_path / "bomb.npz", io.BytesIO()
    claim = {"descr": "<f8", "fortran_order": False, "shape": shape}
    write = np.lib.format.write_array_header_1_0 if version == 1 else np.lib.format.write_array_header_2_0
    write(header, claim)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("adj_data.npy", header.getvalue() + bytes(80))
    with raises("file-damaged", "bomb.npz: 'adj_data.npy'"):
        Graph.from_files(path)


def sparse_x(kind: str) -> torch.Tensor:
    """Return a tensor whose indices lead outside of it."""
    values, unchecked = torch.ones(2), {"check_invariants": False}
    if kind == "coo":
        return torch.sparse_coo_tensor(torch.tensor([[0, 9], [0, 1]]), values, (2, 2), **unchecked)
    make = torch.sparse_csr_tensor if kind.startswith("csr") else torch.sparse_csc_tensor
    if kind.endswith("starts"):
        return make(torch.tensor([0, 10**9, -1]), torch.tensor([0, 1]), values, (2, 2), **unchecked)
    return make(torch.tensor([0, 1, 2]), torch.tensor([0, 10**9]), values, (2, 2), **unchecked)


@pytest.mark.parametrize("kind", ["coo", "csr", "csc", "csr starts", "csc starts"])
def test_invalid_sparse_tensors_are_refused(tmp_path: Path, kind: str, raises: Callable) -> None:
    torch.save({"x": sparse_x(kind), "edge_index": torch.tensor([[0], [1]])}, tmp_path / "broken.pt")
    with raises("broken-matrix"):
        Graph.from_files(tmp_path / "broken.pt")


@pytest.mark.parametrize(
    ("result", "code"),
    [
        ({"num_nodes": 10**12}, "out-of-range"),
        ({"num_nodes": -1}, "not-a-whole-number"),
        ({"edge_index": torch.tensor([[0], [10**12]])}, "out-of-range"),
        ({"y": torch.tensor([0, 10**12])}, "out-of-range"),
        ({"y": torch.zeros(1, dtype=torch.int64).expand(10**13)}, "file-damaged"),
    ],
)
def test_tensors_of_declared_sizes_beyond_memory_are_refused(
    tmp_path: Path, result: dict[str, object], code: str, raises: Callable
) -> None:
    torch.save({"edge_index": torch.tensor([[0], [1]])} | result, tmp_path / "bomb.pt")
    with raises(code):
        Graph.from_files(tmp_path / "bomb.pt")


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
def test_an_option_that_does_not_apply_is_refused(
    tmp_path: Path, kind: str, option: dict[str, str], raises: Callable
) -> None:
    (name,) = option
    path = tmp_path / f"graph.{kind}"
    networkx.write_graphml(networkx.path_graph(3), path)  # what it holds does not matter to the others
    attribute = kind == "graphml" and name in ("weight", "label", "split", "categorical", "ignore")
    code = "unknown-column" if attribute else "option-does-not-apply"
    with raises(code, value="y" if attribute else name) as caught:
        Graph.from_files(path, **option)
    assert caught.value.problem.startswith(f"graph.{kind}: ")


def test_unreadable_paths_are_reported(tmp_path: Path, raises: Callable) -> None:
    np.savez(tmp_path / "graph.npz", other=np.ones(3))
    with raises("edges-missing", "graph.npz"):
        Graph.from_files(tmp_path / "graph.npz")
    (tmp_path / "graph.doc").touch()
    with raises("unknown-file-type", "graph.doc", value=".doc"):
        Graph.from_files(tmp_path / "graph.doc")
    nodes = tmp_path / "nodes.csv"
    nodes.write_text(NODES)
    for absent, *more in ((tmp_path / "none.npz",), (tmp_path / "none.csv", nodes)):
        with raises("file-missing", value=str(absent)):
            Graph.from_files(absent, *more)
    with raises("option-missing", "nodes.csv"):
        Graph.from_files(nodes)


Write = Callable[[str, str], Path]
NODES = """customer,risk,age,city,part
ann,low,31,Rome,train
bob,high,,Oslo,train
cy,low,25,Rome,val
di,,,,
ed,high,44,Oslo,test
"""
EDGES = "from,to,amount\nann,bob,2\nbob,ann,2\nbob,cy,1\ncy,cy,1\ncy,di,1\nbob,cy,3\n"


def test_tables_become_a_graph(write: Write) -> None:
    nodes, edges = write("nodes.csv", NODES), write("edges.csv", EDGES)
    with pytest.warns(GraphWarning) as warned:
        graph = Graph.from_files(nodes, edges, label="risk", split="part", weight="amount")
    (warning,) = (warning for warning in warned if warning.category is GraphWarning)
    assert warning.filename == __file__
    assert graph.node_names.tolist() == ["ann", "bob", "cy", "di", "ed"]
    assert graph.class_names == ("high", "low")
    assert graph.labels.tolist() == [1, 0, 1, -1, 0]
    assert [mask.nonzero().flatten().tolist() for mask in graph.split] == [[0, 1], [2], [4]]
    assert graph.feature_names == ("age", "city=Oslo", "city=Rome")
    assert graph.features.tolist() == [[31, 0, 1], [0, 1, 0], [25, 0, 1], [0, 0, 0], [44, 1, 0]]
    assert graph.missing[:, 0].tolist() == [False, True, False, True, False]
    assert graph.missing_vectors.tolist() == [False, False, False, True, False]
    assert graph.adjacency.to_dense()[1].tolist() == [2, 0, 4, 0, 0]
    assert graph.name == "nodes"
    assert graph.notes == (
        "1 self-loop was dropped",
        "1 repeated edge was merged, adding up the weights",
        "2 edges were listed in one direction only and are taken as undirected",
        "1 node has no edge",
    )
    assert all(note in str(warning.message) for note in graph.notes)


def test_a_graph_written_as_tables_is_read_back(tmp_path: Path, cora: Graph) -> None:
    frame = pandas.DataFrame(cora.features.to_dense().numpy()).add_prefix("word")
    frame.insert(0, "paper", [f"p{name}" for name in cora.node_names])
    frame.insert(1, "subject", [cora.class_names[label] for label in cora.labels])
    blank = cora.missing.numpy() | (torch.arange(2708) >= 140).numpy()
    frame.loc[blank, frame.columns[2:]] = None
    frame.to_csv(tmp_path / "nodes.csv", index=False)
    source, target = cora.node_names[cora.edge_index.numpy()]
    ends = pandas.DataFrame({"citing": source, "cited": target}).map("p{}".format)
    ends.to_csv(tmp_path / "edges.csv", index=False)

    graph = Graph.from_files(tmp_path / "nodes.csv", tmp_path / "edges.csv", label="subject")
    assert graph.notes == ()
    assert torch.equal(graph.edge_index, cora.edge_index)
    assert graph.features.layout == torch.sparse_csr
    assert torch.equal(graph.features.to_dense()[:140], cora.features.to_dense()[:140])
    assert torch.equal(graph.missing, torch.arange(2708) >= 140)
    assert graph.class_names == tuple(sorted(cora.class_names))
    assert [graph.class_names[label] for label in graph.labels] == [
        cora.class_names[label] for label in cora.labels
    ]


@pytest.mark.parametrize(
    ("nodes", "edges", "options", "code", "where", "value"),
    [
        (
            NODES,
            "from,to\nann,zed\n",
            {},
            "unknown-node",
            "edges.csv, line 2",
            "zed",
        ),
        (NODES + "ann,low,1,Rome,\n", EDGES, {}, "duplicate-id", "nodes.csv, line 7", "ann"),
        (NODES.replace("25", "old"), EDGES, {}, "not-a-number", "nodes.csv, line 4", "old"),
        (NODES.replace("25", "inf"), EDGES, {}, "not-finite", "nodes.csv, line 4", np.inf),
        (NODES.replace("high", "low"), EDGES, {}, "too-few-classes", "nodes.csv", 1),
        (NODES.replace("high", "").replace("low", ""), EDGES, {}, "too-few-classes", "nodes.csv", 0),
        (
            NODES.replace("Oslo,train", "Oslo,"),
            EDGES,
            {"split": "part"},
            "class-without-training",
            "nodes.csv",
            "high",
        ),
        (NODES, EDGES, {"label": "risc"}, "unknown-column", "nodes.csv", "risc"),
        (NODES, EDGES, {"id": "costumer"}, "unknown-column", "nodes.csv", "costumer"),
        (NODES, EDGES, {"source": "form"}, "unknown-column", "edges.csv", "form"),
        (NODES, EDGES, {"weight": "amout"}, "unknown-column", "edges.csv", "amout"),
        (NODES, EDGES, {"ignore": ["ag"]}, "unknown-column", "nodes.csv", "ag"),
        (NODES, EDGES, {"source": "from", "target": "from"}, "same-column", "edges.csv", "from"),
        (NODES, EDGES, {"label": None, "split": "part"}, "option-missing", "", None),
        ("", EDGES, {}, "file-empty", "nodes.csv", None),
        (NODES, "", {}, "file-empty", "edges.csv", None),
        ("customer,risk\n", EDGES, {}, "no-rows", "nodes.csv", None),
        (NODES.replace(",", ";"), EDGES, {"delimiter": ":"}, "wrong-delimiter", "nodes.csv", ":"),
        (NODES, "from\nann\n", {}, "too-few-columns", "edges.csv", None),
    ],
)
def test_invalid_tables_are_reported_by_line_and_value(
    write: Write,
    nodes: str,
    edges: str,
    options: dict[str, object],
    code: str,
    where: str,
    value: object,
    raises: Callable,
) -> None:
    paths = write("nodes.csv", nodes), write("edges.csv", edges)
    with raises(code, where, value=value):
        Graph.from_files(*paths, **({"label": "risk"} | options))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_na_is_a_country_and_no_number(write: Write, tmp_path: Path, kind: str) -> None:
    nodes = write(
        "nodes.csv", "id,country,age,member\na,NA,31,TRUE\nb,DE,NA,FALSE\nc,,?,NA\nd,None,40,TRUE\n"
    )
    edges = write("edges.csv", "source,target\na,b\nb,a\nc,d\nd,c\n")
    if kind == "parquet":
        frame = pandas.read_csv(nodes, dtype=str, keep_default_na=False)
        nodes = tmp_path / "nodes.parquet"
        frame.to_parquet(nodes)
    with pytest.warns(GraphWarning, match="'NA' in column 'country' is read as a category; .*'None' in"):
        graph = Graph.from_files(nodes, edges)
    assert graph.feature_names == ("country=DE", "country=NA", "country=None", "age", "member")
    assert graph.features.tolist() == [
        [0, 1, 0, 31, 1],
        [1, 0, 0, 0, 0],
        [0, 0, 0, 0, 0],
        [0, 0, 1, 40, 1],
    ]
    assert graph.missing.tolist() == [
        [False] * 5,
        [False, False, False, True, False],
        [True] * 5,
        [False] * 5,
    ]


Text = st.text(alphabet=st.sampled_from("ab1,;\"'\n\t.-é \0∞einfxNA"), max_size=60)
Cells = st.one_of(st.sampled_from(["", "a", "b", "c", "1", "2.5", "inf", "nan", "train", "x y"]), Text)


def table(header: list[str]) -> st.SearchStrategy[str]:
    row = st.lists(Cells, min_size=1, max_size=len(header) + 1).map(",".join)
    return st.lists(row, max_size=6).map(lambda rows: "\n".join([",".join(header), *rows]))


@pytest.mark.filterwarnings("ignore::pairnorm.data.GraphWarning")
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(table(["id", "y", "x", "s"]), Text),
    st.one_of(table(["source", "target", "w"]), Text),
    st.fixed_dictionaries(
        {},
        optional={
            "label": st.sampled_from(["y", "Y", ""]),
            "split": st.just("s"),
            "weight": st.just("w"),
            "categorical": st.just(["x"]),
            "delimiter": st.sampled_from([",", ";", "\t"]),
        },
    ),
)
def test_random_tables_raise_no_other_error(
    tmp_path: Path, nodes: str, edges: str, options: dict[str, object]
) -> None:
    paths = tmp_path / "nodes.csv", tmp_path / "edges.csv"
    for path, text in zip(paths, (nodes, edges), strict=True):
        path.write_text(text, encoding="utf-8", newline="")
    try:
        graph = Graph.from_files(*paths, **options)  # type: ignore[arg-type]
    except PairNormError:
        return
    assert torch.isfinite(graph.features.to_dense()).all()
    assert len(set(graph.node_names.tolist())) == graph.num_nodes > 0


Name = st.text(alphabet="abcé01 _-", min_size=1, max_size=5).map(str.strip).filter(bool)


@pytest.mark.filterwarnings("ignore::pairnorm.data.GraphWarning")
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_valid_random_tables_are_read_exactly(tmp_path: Path, data: st.DataObject) -> None:
    names = data.draw(st.lists(Name, min_size=2, max_size=9, unique=True))
    values = data.draw(st.lists(st.integers(-99, 99), min_size=len(names), max_size=len(names)))
    pairs = data.draw(st.lists(st.tuples(st.sampled_from(names), st.sampled_from(names)), max_size=20))
    pandas.DataFrame({"id": names, "x": values}).to_csv(tmp_path / "n.csv", index=False)
    pandas.DataFrame(pairs, columns=["source", "target"]).to_csv(tmp_path / "e.csv", index=False)
    graph = Graph.from_files(tmp_path / "n.csv", tmp_path / "e.csv")
    assert [str(name) for name in graph.node_names.tolist()] == names
    assert graph.features.to_dense().flatten().tolist() == values
    result = {frozenset(str(graph.node_names[end]) for end in edge) for edge in graph.edge_index.T.tolist()}
    assert result == {frozenset(pair) for pair in pairs if pair[0] != pair[1]}


@pytest.mark.parametrize("y", [[0, 1, -1], ["b", "c", ""]])
def test_npz_with_the_names_of_pyg(tmp_path: Path, y: list[object]) -> None:
    arrays = {
        "edge_index": [[0, 1, 1, 2], [1, 0, 2, 1]],
        "x": np.eye(3),
        "train_mask": np.array([True, True, False]),
    }
    np.savez(tmp_path / "g.npz", y=np.array(y), **arrays)
    graph = Graph.from_files(tmp_path / "g.npz") if y[0] == 0 else Graph.from_files([tmp_path / "g.npz"])
    assert graph.features.tolist() == np.eye(3).tolist()
    assert graph.labels.tolist() == [0, 1, -1]
    assert graph.train.tolist() == [True, True, False]
    assert graph.num_edges == 2


def test_files_of_edges_are_all_read_and_unused_columns_noted(write: Write) -> None:
    nodes = write("nodes.csv", "id,x\n1,1\n2,2\n3,3\n")
    first = write("edges-1.csv", "source,target,time\n1,2,5\n2,1,5\n")
    second = write("edges-2.csv", "source,target\n2,3\n3,2\n")
    note = r"column 'time' of edges-1.csv: not used; --weight \(weight=\) takes edge weights from a column"
    for edges in ([first, second], first.parent / "edges-*.csv"):
        with pytest.warns(GraphWarning, match=note):
            assert Graph.from_files(nodes, edges).num_edges == 2


def test_edges_with_unknown_endpoints_are_dropped_with_the_encoder_too(write: Write) -> None:
    nodes, edges = write("nodes.csv", "id,x\n1,1\n2,2\n"), write("edges.csv", "a,b\n1,2\n2,1\n2,9\n")
    with pytest.warns(GraphWarning, match="1 of 3 edges in edges.csv were dropped, .* such as 9"):
        graph = Graph.from_files(nodes, edges, unknown_edges="drop")
    with pytest.warns(GraphWarning, match="1 of 3 edges"):
        assert Graph.from_files(nodes, edges, encoder=graph.encoder).num_edges == 1


def test_nodes_of_edges_only_are_added_with_the_encoder_too(write: Write) -> None:
    nodes = write("labels.csv", "id,x,ok,risk\n1,1,True,low\n2,2,False,high\n")
    edges = write("edges.csv", "a,b\n1,2\n2,9\n9,07\n9,\n")
    with pytest.warns(GraphWarning, match="2 nodes that only edges name were added, unlabeled; 1 of 4 edges"):
        graph = Graph.from_files(nodes, edges, label="risk", unknown_edges="add")
    assert graph.node_names.tolist() == ["1", "2", "9", "07"]
    assert graph.labels.tolist() == [1, 0, -1, -1]
    assert graph.missing_vectors.tolist() == [False, False, True, True]
    with pytest.warns(GraphWarning, match="2 nodes that only edges name"):
        again = Graph.from_files(nodes, edges, encoder=graph.encoder)
    assert torch.equal(again.features, graph.features)


def test_numeric_labels_are_cut_alike_with_the_encoder(write: Write) -> None:
    edges = write("edges.csv", "a,b\n1,2\n2,1\n")
    nodes = write("nodes.csv", "id,x,pay\n" + "".join(f"{i},{i},{i}.5\n" for i in range(1, 41)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphWarning)
        graph = Graph.from_files(nodes, edges, label="pay", classes=2)
        assert graph.class_names == ("below 21", "21 or more")
        later = write("later.csv", "id,x,pay\n1,1,99\n2,1,\n3,1,0\n")
        assert Graph.from_files(later, edges, encoder=graph.encoder).labels.tolist() == [1, -1, 0]


PEOPLE = {"id": ["a", "b", "c"], "age": [31.0, None, 25.0], "risk": ["low", None, "high"]}
PAYMENTS = {"from": ["a", "b", "b", "c"], "to": ["b", "a", "c", "b"], "amount": [1.0, 1.0, 2.0, 2.0]}


@pytest.mark.filterwarnings("ignore::pairnorm.data.GraphWarning")
def test_nodes_of_networkx_json_have_the_key_id_as_id(tmp_path: Path) -> None:
    file = tmp_path / "graph.json"
    nodes = [{"club": "a", "id": 7}, {"club": "b", "id": 9}]
    file.write_text(json.dumps({"nodes": nodes, "links": [{"source": 7, "target": 9}]}))
    for files in ((file, file), (file,)):
        graph = Graph.from_files(*files, label="club")
        assert graph.node_names.tolist() == [7, 9]


@pytest.mark.filterwarnings("ignore::pairnorm.data.GraphWarning")
def test_edges_of_d3_json_may_refer_to_nodes_by_position(tmp_path: Path) -> None:
    file = tmp_path / "graph.json"
    nodes = [{"name": "Myriel", "group": 1, "index": 0}, {"name": "Napoleon", "group": 2, "index": 1}]
    nodes.append({"name": "Valjean", "group": None, "index": 2})
    file.write_text(json.dumps({"nodes": nodes, "links": [{"source": 1, "target": 0, "value": 8}]}))
    graph = Graph.from_files(file, label="group", weight="value")
    assert graph.node_names.tolist() == [0, 1, 2]
    assert graph.labels.tolist() == [0, 1, -1]
    assert "index" not in graph.feature_names
    file.write_text(json.dumps({"nodes": nodes}))
    with pytest.raises(PairNormError, match="needs a table of edges"):
        Graph.from_files(file)


def test_a_database_whose_column_names_are_not_text_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "bank.db")) as connection:
        connection.executescript("CREATE TABLE nodes (aaaa, b); INSERT INTO nodes VALUES (1, 2)")
    file = tmp_path / "bank.db"
    file.write_bytes(file.read_bytes().replace(b"aaaa", b"\x8aaaa"))
    with pytest.raises(PairNormError, match="can't decode byte") as refused:
        Graph.from_files("nodes", "nodes", database=f"sqlite:///{file}")
    assert refused.value.code == "database-error"


def test_a_database_is_a_graph(tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy", reason="needs sqlalchemy: pip install pairnorm[all]")
    connection = sqlite3.connect(tmp_path / "bank.db")
    for name, columns in (("people", PEOPLE), ("payments", PAYMENTS)):
        pandas.DataFrame(columns).to_sql(name, connection, index=False)
    connection.close()
    url = f"sqlite:///{tmp_path}/bank.db"
    options = {"database": url, "label": "risk", "weight": "amount"}
    graph = Graph.from_files("people", 'SELECT "from", "to", amount FROM payments', **options)
    assert (graph.name, graph.num_edges, graph.class_names) == ("graph", 2, ("high", "low"))


def test_from_files_suggests_from_frames(raises: Callable) -> None:
    frame = pandas.DataFrame({"id": ["a", "b"]})
    for arguments in ((frame, frame), ("nodes.csv", frame), (frame,)):
        with raises("wrong-type", value="DataFrame", hint="Graph.from_frames takes frames."):
            Graph.from_files(*arguments)


@pytest.mark.filterwarnings("ignore::pairnorm.data.GraphWarning")
def test_gml_is_read_as_graphml_is(tmp_path: Path) -> None:
    graph = networkx.DiGraph()
    graph.add_nodes_from(
        [("a", {"age": 3, "risk": "low"}), ("b", {"age": 5, "risk": "high"}), ("c", {"age": 4})]
    )
    graph.add_edges_from([("a", "b", {"weight": 2.0}), ("b", "c", {"weight": 1.0})])
    networkx.write_gml(graph, tmp_path / "g.gml")
    networkx.write_graphml(graph, tmp_path / "g.graphml")
    first, second = (Graph.from_files(tmp_path / f"g.{kind}", label="risk") for kind in ("gml", "graphml"))
    assert first.fingerprint == second.fingerprint
    assert first.node_names.tolist() == ["a", "b", "c"]
    assert first.feature_names == ("age",)


@pytest.mark.filterwarnings("ignore::pairnorm.data.GraphWarning")
@pytest.mark.parametrize("second", ["Bob", "Ann"])
def test_nodes_of_gexf_are_called_by_their_labels_if_these_differ(tmp_path: Path, second: str) -> None:
    nodes = "".join(
        f'<node id="{n}" label="{name}"><attvalues><attvalue for="0" value="{risk}"/></attvalues>'
        f'<viz:color r="1" g="2" b="{n}"/></node>'
        for n, (name, risk) in enumerate((("Ann", "low"), (second, "high"), ("Cem", "low")))
    )
    (tmp_path / "g.gexf").write_text(
        '<gexf xmlns="http://www.gexf.net/1.2draft" '
        'xmlns:viz="http://www.gexf.net/1.2draft/viz" version="1.2">'
        '<graph defaultedgetype="undirected"><attributes class="node"><attribute id="0" title="risk" '
        f'type="string"/></attributes><nodes>{nodes}</nodes><edges><edge id="0" source="0" target="1" '
        'weight="2.0"/></edges></graph></gexf>'
    )
    graph = Graph.from_files(tmp_path / "g.gexf", label="risk")
    assert graph.node_names.tolist() == (["Ann", "Bob", "Cem"] if second == "Bob" else [0, 1, 2])
    assert graph.class_names == ("high", "low")
    assert graph.adjacency.values().tolist() == [2.0, 2.0]
    assert graph.num_features == 0


def test_unknown_kinds_of_files_name_those_that_are_read(tmp_path: Path, raises: Callable) -> None:
    (tmp_path / "people.xls").write_bytes(b"\xd0\xcf\x11\xe0")
    for edges in (None, tmp_path / "people.xls"):
        with raises("unknown-file-type", "people.xls: ", value=".xls") as caught:
            Graph.from_files(tmp_path / "people.xls", edges)
        assert ".xlsx" in caught.value.expected
        assert "Convert it" in caught.value.hint


@pytest.mark.filterwarnings("ignore::pairnorm.data.GraphWarning")
def test_gml_as_other_tools_write_it(tmp_path: Path) -> None:
    """Without labels, with an edge that is listed twice, and with letters that are not ASCII."""
    nodes = "".join(f'node [ id {n} city "{city}" ] ' for n, city in ((7, "Köln"), (8, "Bonn"), (9, "Köln")))
    edges = "".join(f"edge [ source {a} target {b} ] " for a, b in ((7, 8), (7, 8), (8, 9)))
    (tmp_path / "g.gml").write_text(f'Creator "x"\ngraph\n[\n{nodes}{edges}]', encoding="utf-8")
    graph = Graph.from_files(tmp_path / "g.gml", label="city")
    assert graph.node_names.tolist() == [7, 8, 9]
    assert graph.class_names == ("Bonn", "Köln")
    assert graph.num_edges == 2


@pytest.mark.filterwarnings("ignore::pairnorm.data.GraphWarning")
@pytest.mark.parametrize(
    ("nodes", "label", "columns"),
    [
        ("a,1.5,low\nb,2,high\nc,3,low\n", None, ("column 2", "column 3=high", "column 3=low")),
        ("a,0,0,low\nb,2,3,high\nc,3,1,low\n", "column 4", ("column 2", "column 3")),
    ],
)
def test_nodes_without_a_header_are_read(
    tmp_path: Path, nodes: str, label: str | None, columns: tuple[str, ...]
) -> None:
    (tmp_path / "nodes.csv").write_text(nodes)
    (tmp_path / "edges.csv").write_text("source,target\na,b\nb,c\n")
    graph = Graph.from_files(tmp_path / "nodes.csv", tmp_path / "edges.csv", label=label)
    assert graph.node_names.tolist() == ["a", "b", "c"]
    assert graph.feature_names == columns
    assert graph.num_classes == (2 if label else 0)
    assert [note for note in graph.notes if "header" in note] == [
        "line 1 of nodes.csv is a node, not a header"
    ]


def test_the_header_of_a_frame_is_no_node(raises: Callable) -> None:
    nodes, edges = {"a": ["x", "y"], "z": [1, 2]}, {"source": ["x"], "target": ["a"]}
    for options in ({}, {"id": "a"}):
        with raises("unknown-node", value="a"):
            Graph.from_frames(nodes, edges, **options)


@pytest.mark.filterwarnings("ignore::pairnorm.data.GraphWarning")
@pytest.mark.parametrize(
    ("nodes_name", "nodes", "edges_name", "edges", "label"),
    [
        ("n.txt", "0 1\n1 1\n2 0\n", "e.txt", "0 1\n1 2\n", "1"),  # SNAP
        ("n.txt", "0 1\n1 1\n2 0\n", "e.txt", "# a\n# From\tTo\n0\t1\n1\t2\n", "column 2"),
        ("n.content", "2\t0\t1\tx\n0\t1\t0\ty\n1\t1\t1\tx\n", "e.cites", "1\t0\n1\t2\n", "column 4"),
        ("n.dat", "7,Ann,x\n0,Bob,y\n1,Cy,x\n2,Di,y\n", "e.edgelist", "0 1\n1 2\n", "column 3"),
        ("n.csv", "id,2019,2020\n0,1,a\n1,2,b\n2,2,a\n", "e.tsv", "# a\n0\t1\n1\t2\n", "2020"),
    ],
)
def test_no_row_of_a_file_without_a_header_is_lost(
    tmp_path: Path, nodes_name: str, nodes: str, edges_name: str, edges: str, label: str
) -> None:
    (tmp_path / nodes_name).write_text(nodes)
    (tmp_path / edges_name).write_text(edges)
    graph = Graph.from_files(tmp_path / nodes_name, tmp_path / edges_name, label=label)
    assert graph.num_nodes == nodes.count("\n") - nodes.startswith("id")
    assert (graph.num_edges, graph.num_classes) == (2, 2)


@pytest.mark.filterwarnings("ignore::pairnorm.data.GraphWarning")
def test_naming_the_columns_of_a_list_separated_by_spaces_keeps_its_first_edge(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("id,x\n0,1\n1,2\n2,3\n")
    (tmp_path / "e.txt").write_text("0 1\n1 2\n")
    graph = Graph.from_files(tmp_path / "n.csv", tmp_path / "e.txt", source="0", target="1")
    assert graph.num_edges == 2


@pytest.mark.filterwarnings("ignore::pairnorm.data.GraphWarning")
def test_the_null_of_databases_is_missing_in_every_column(tmp_path: Path, raises: Callable) -> None:
    (tmp_path / "n.csv").write_text("id,zone,risk\na,1,low\nb,\\N,high\nc,3,\\N\n")
    (tmp_path / "e.csv").write_text("source,target\na,b\nb,\\N\n")
    files = tmp_path / "n.csv", tmp_path / "e.csv"
    graph = Graph.from_files(*files, label="risk", unknown_edges="drop")
    assert graph.class_names == ("high", "low")
    assert graph.feature_names == ("zone",)
    assert graph.missing.tolist() == [False, True, False]
    assert any(r"\N is read as an empty cell" in note for note in graph.notes)
    assert any("an endpoint is not a node, such as an empty cell" in note for note in graph.notes)
    with raises("empty-cell", "e.csv, line 3"):
        Graph.from_files(*files, label="risk")


@pytest.mark.filterwarnings("ignore::pairnorm.data.GraphWarning")
def test_the_columns_that_hold_the_ids_are_named(tmp_path: Path, raises: Callable) -> None:
    """As for airports and routes, where a route begins with its airline, and ids are the fourth column."""
    nodes = "".join(f"{n},Airport {n},A{n - 100:02},airport\n" for n in range(100, 120))
    edges = "".join(f"AB,7,A{n - 100:02},{n},A{n - 99:02},{n + 1},0\n" for n in range(100, 119))
    (tmp_path / "n.dat").write_text(nodes)
    (tmp_path / "e.dat").write_text(edges)
    with raises("unknown-node", "e.dat, line 1") as caught:
        Graph.from_files(tmp_path / "n.dat", tmp_path / "e.dat")
    assert "e.dat has such ids in 'column 4', 'column 6'" in str(caught.value)
    with raises("unknown-node", value="A00") as caught:
        Graph.from_files(tmp_path / "n.dat", tmp_path / "e.dat", source="column 3", target="column 5")
    assert "n.dat has such ids in 'column 3'" in str(caught.value)
    with raises("unknown-node", value="AB") as caught:
        Graph.from_files(tmp_path / "n.dat", tmp_path / "e.dat", id="column 2")
    assert "has such ids" not in str(caught.value)
