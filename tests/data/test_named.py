import io
import pickle
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import torch

from pairnorm.base.errors import PairNormError
from pairnorm.data import Graph, Split, load
from pairnorm.data import named as module
from pairnorm.data.named import (
    BUNDLED,
    PLANETOID_PIECES,
    SHA256,
    Dataset,
    PlanetoidUnpickler,
    data_folder,
    datasets,
    fetch,
    read_planetoid,
    verified_bytes,
)


def test_every_raw_file_is_pinned() -> None:
    assert {file for dataset in datasets() for file in dataset.files} <= set(SHA256)
    assert all(len(digest) == 64 for digest in SHA256.values())


def test_the_bundled_file_is_the_pinned_one() -> None:
    assert len(verified_bytes(BUNDLED, "cora.npz")) == (BUNDLED / "cora.npz").stat().st_size


def test_a_file_with_another_checksum_is_refused(tmp_path: Path, raises: Callable) -> None:
    (tmp_path / "cora.npz").write_bytes(b"another")
    with raises("file-damaged"):
        verified_bytes(tmp_path, "cora.npz")


def test_the_real_files_are_the_pinned_ones(data_root: Path) -> None:
    for name in SHA256:
        if name != "cora.npz":
            verified_bytes(data_root, name)


NAME = "Coauthor/CS/raw/ms_academic_cs.npz"


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise URLError("Name or service not known")

    monkeypatch.setattr(module, "urlopen", refuse)


@pytest.mark.usefixtures("offline")
def test_without_a_network_the_error_lists_the_missing_files(tmp_path: Path) -> None:
    with pytest.raises(PairNormError) as caught:
        load("citeseer", tmp_path)
    message = str(caught.value)
    assert str(tmp_path / "Planetoid" / "CiteSeer" / "raw") in message
    assert all(f"ind.citeseer.{piece}" in message for piece in ("x", "allx", "graph", "test.index"))
    assert "Name or service not known" in message
    assert "PAIRNORM_DATA" in message
    assert message.count("\n") <= 2
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


class Reply:
    def __init__(self, contents: bytes) -> None:
        self.contents = contents

    def __enter__(self) -> "Reply":
        return self

    def __exit__(self, *_: object) -> None: ...

    def read1(self, most: int) -> bytes:
        part, self.contents = self.contents[:most], self.contents[most:]
        return part


def test_downloads_with_another_checksum_are_discarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "urlopen", lambda *_, **__: Reply(b"graph"))
    with pytest.raises(PairNormError, match="the file is damaged or another one"):
        fetch(tmp_path, [NAME], "https://example.org")
    assert not (tmp_path / NAME).exists()
    monkeypatch.setitem(SHA256, NAME, sha256(b"graph").hexdigest())
    fetch(tmp_path, [NAME], "https://example.org")
    assert [path.name for path in (tmp_path / NAME).parent.iterdir()] == ["ms_academic_cs.npz"]
    assert (tmp_path / NAME).read_bytes() == b"graph"


def test_an_endless_download_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 3)
    monkeypatch.setattr(module, "urlopen", lambda *_, **__: Reply(b"graph"))
    with pytest.raises(PairNormError, match="larger than 3 bytes"):
        fetch(tmp_path, [NAME], "https://example.org")


def test_a_slow_download_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SECONDS", 0)
    monkeypatch.setattr(module, "urlopen", lambda *_, **__: Reply(b"graph"))
    with pytest.raises(PairNormError, match="not done within 0 seconds"):
        fetch(tmp_path, [NAME], "https://example.org")


@pytest.mark.usefixtures("offline")
def test_existing_files_are_not_fetched(tmp_path: Path) -> None:
    (tmp_path / NAME).parent.mkdir(parents=True)
    (tmp_path / NAME).touch()
    fetch(tmp_path, [NAME], "https://example.org")


def test_a_folder_that_cannot_be_written_leads_to_the_same_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "urlopen", lambda *_, **__: Reply(b"graph"))
    monkeypatch.setitem(SHA256, NAME, sha256(b"graph").hexdigest())
    (tmp_path / "Coauthor").touch()
    with pytest.raises(PairNormError, match=r"(?s)Not a directory.*PAIRNORM_DATA"):
        fetch(tmp_path, [NAME], "https://example.org")


def read(root: Path, name: str) -> dict[str, np.ndarray]:
    files = (f"Planetoid/{name}/raw/ind.{name.lower()}.{piece}" for piece in PLANETOID_PIECES)
    return read_planetoid(
        {piece: verified_bytes(root, file) for piece, file in zip(PLANETOID_PIECES, files, strict=True)}
    )


@pytest.mark.parametrize("name", ["Cora", "CiteSeer", "PubMed"])
def test_planetoid_equals_that_of_pyg(data_root: Path, name: str) -> None:
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
    with pytest.raises(pickle.UnpicklingError, match="does not belong in a Planetoid file"):
        PlanetoidUnpickler(io.BytesIO(harmful)).load()


# The paper's appendix: nodes, edges, features, classes, label rate.
PAPER = {
    "cora": (2708, 5429, 1433, 7, 0.052),
    "citeseer": (3327, 4732, 3703, 6, 0.036),
    "pubmed": (19717, 44338, 500, 3, 0.003),
    "coauthor-cs": (18333, 81894, 6805, 15, 0.030),
}
DISTINCT = {"cora": 5278, "citeseer": 4552, "pubmed": 44324, "coauthor-cs": 81894}
SPLIT = {
    "cora": [140, 500, 2068],
    "citeseer": [120, 500, 2707],
    "pubmed": [60, 500, 19157],
    "coauthor-cs": [550, 1833, 15950],
}


@pytest.mark.parametrize("facts", datasets(), ids=lambda facts: facts.name)
def test_datasets_equal_the_table_of_the_paper(facts: Dataset) -> None:
    result = (facts.nodes, facts.listed_edges, facts.features, facts.classes, facts.label_rate)
    assert result == PAPER[facts.name]


@pytest.mark.parametrize("facts", datasets(), ids=lambda facts: facts.name)
def test_graphs_match_their_dataset_facts(facts: Dataset, request: pytest.FixtureRequest) -> None:
    root = request.getfixturevalue("data_root") if facts.files else None
    graph = load(facts.name, root)
    assert (graph.num_nodes, graph.num_features, graph.num_classes) == (
        facts.nodes,
        facts.features,
        facts.classes,
    )
    assert graph.num_edges == facts.edges == DISTINCT[facts.name]
    assert int(graph.train.sum()) / graph.num_nodes == pytest.approx(facts.label_rate, abs=5e-4)
    assert [int(mask.sum()) for mask in graph.split] == SPLIT[facts.name]
    assert torch.equal(graph.test, ~graph.train & ~graph.validation)
    adjacency, _ = graph.to_scipy()
    assert (adjacency != adjacency.T).nnz == 0
    assert not adjacency.diagonal().any()


def test_coauthor_equals_that_of_pyg(data_root: Path) -> None:
    from torch_geometric.io import read_npz

    theirs, ours = (
        read_npz(str(data_root / "Coauthor/CS/raw/ms_academic_cs.npz")),
        load("coauthor-cs", data_root),
    )
    assert ours.features.values().numel() == 1_092_079
    assert torch.equal(ours.features.to_dense(), theirs.x)
    assert torch.equal(ours.labels, theirs.y)
    assert torch.equal(ours.edge_index, theirs.edge_index)


def test_coauthor_has_one_split_for_all_experiments(data_root: Path, raises: Callable) -> None:
    first, second = load("coauthor-cs", data_root), load("coauthor-cs", data_root, split="random", seed=0)
    assert torch.equal(first.train, second.train)
    with raises("no-public-split", value="coauthor-cs"):
        load("coauthor-cs", data_root, split="public")


def test_a_read_only_root_works(data_root: Path, tmp_path: Path) -> None:
    root = tmp_path / "data"
    shutil.copytree(data_root / "Planetoid" / "CiteSeer", root / "Planetoid" / "CiteSeer")
    folders = [root, *(path for path in root.rglob("*") if path.is_dir())]
    before = sorted(root.rglob("*"))
    for folder in folders:
        folder.chmod(0o555)
    try:
        assert load("citeseer", root).num_nodes == 3327
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert sorted(root.rglob("*")) == before


def test_a_damaged_file_is_named_and_not_unpickled(data_root: Path, tmp_path: Path, raises: Callable) -> None:
    folder = tmp_path / "Planetoid" / "CiteSeer" / "raw"
    shutil.copytree(data_root / "Planetoid" / "CiteSeer" / "raw", folder)
    (folder / "ind.citeseer.allx").chmod(0o644)
    (folder / "ind.citeseer.allx").write_bytes(b"cos\nsystem\n(S'touch /tmp/harm'\ntR.")
    with raises("file-damaged"):
        load("citeseer", tmp_path)


def test_names_ignore_case_and_suggest_the_closest(raises: Callable) -> None:
    assert load("Cora").name == "cora"
    with raises("unknown-choice", value="pubmd"):
        load("pubmd")


def test_cora_has_names_of_nodes_and_classes(cora: Graph) -> None:
    assert cora.class_names[3] == "Neural_Networks"
    assert len(np.unique(cora.node_names)) == 2708


def test_splits_can_be_chosen() -> None:
    assert load("cora", split="random").train.sum() == 81
    assert load("cora", split="public").train.sum() == 140
    assert load("cora", split="per-class-7").train.sum() == 49
    masks = Split(*(torch.arange(2708) % 3 == part for part in range(3)))
    assert torch.equal(load("cora", split=masks).test, masks.test)
    assert not torch.equal(load("cora", split="random").train, load("cora", split="random", seed=1).train)


def test_generated_graphs_have_a_name_too(raises: Callable) -> None:
    graph = load("csbm", nodes=200, classes=3, seed=4)
    assert (graph.num_nodes, graph.num_classes) == (200, 3)
    assert not torch.equal(graph.labels, load("csbm", nodes=200, classes=3, seed=5).labels)
    with raises("unknown-option", value="size"):
        load("csbm", size=3)
    with raises("unknown-option", value="nodes"):
        load("cora", nodes=3)


def test_the_folder_is_root_or_environment_or_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAIRNORM_DATA", "/from/environment")
    assert data_folder("/given") == Path("/given")
    assert data_folder() == Path("/from/environment")
    monkeypatch.delenv("PAIRNORM_DATA")
    assert data_folder().name == "pairnorm"


def test_absent_files_are_listed(tmp_path: Path) -> None:
    cora, citeseer, *_ = datasets()
    assert cora.absent(tmp_path) == ()
    assert len(citeseer.absent(tmp_path)) == 8
