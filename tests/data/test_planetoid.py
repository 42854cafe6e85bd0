import io
import pickle
from pathlib import Path

import numpy as np
import pytest

from pairnorm.data import Graph, load
from pairnorm.data.checksums import verified_bytes
from pairnorm.data.planetoid import PIECES, _Unpickler, read_planetoid


def read(root: Path, name: str) -> dict[str, np.ndarray]:
    files = (f"Planetoid/{name}/raw/ind.{name.lower()}.{piece}" for piece in PIECES)
    return read_planetoid(
        {piece: verified_bytes(root, file) for piece, file in zip(PIECES, files, strict=True)}
    )


@pytest.mark.parametrize("name", ["Cora", "CiteSeer", "PubMed"])
def test_it_reads_what_pyg_reads(data_root: Path, name: str) -> None:
    from torch_geometric.io import read_planetoid_data

    theirs = read_planetoid_data(str(data_root / "Planetoid" / name / "raw"), name.lower())
    ours = read(data_root, name)
    np.testing.assert_array_equal(ours["features"].toarray(), theirs.x.numpy())
    np.testing.assert_array_equal(ours["labels"], theirs.y.numpy())
    assert ours["train"] == int(theirs.train_mask.sum())
    graph = Graph.from_edges(ours["edges"], num_nodes=len(ours["labels"]))
    edges = {tuple(edge) for edge in theirs.edge_index.T.tolist()}
    assert {tuple(edge) for edge in graph.edge_index.T.tolist()} == edges


def test_the_bundled_cora_is_the_planetoid_one(data_root: Path, cora: Graph) -> None:
    raw = read(data_root, "Cora")
    np.testing.assert_array_equal(raw["features"].toarray(), cora.features.to_dense().numpy())
    np.testing.assert_array_equal(raw["labels"], cora.labels.numpy())
    assert Graph.from_edges(raw["edges"]).edge_index.tolist() == cora.edge_index.tolist()


def test_citeseer_keeps_its_isolated_nodes(data_root: Path) -> None:
    graph = load("citeseer", data_root)
    assert int((graph.adjacency.crow_indices().diff() == 0).sum()) == 48
    assert int((graph.features.crow_indices().diff() == 0).sum()) == 15


def test_other_classes_are_not_unpickled() -> None:
    harmful = pickle.dumps(io.BytesIO)
    with pytest.raises(pickle.UnpicklingError, match="has no business in a Planetoid file"):
        _Unpickler(io.BytesIO(harmful)).load()
