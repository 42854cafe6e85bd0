"""A small sound file of every format that is read, and what reads it; the fuzzers damage these."""

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import networkx
import numpy as np
import pandas
import scipy.sparse
import torch
from safetensors.torch import save_file

from pairnorm.classify import NodeClassifier
from pairnorm.data import Graph, csbm
from pairnorm.paper import report
from pairnorm.paper.case_study import (
    BINS,
    PAIRS,
    Layers,
    distributions,
    file_beside,
    mean_distances,
    read_layers,
    write_layers,
)
from pairnorm.paper.experiments import Selection
from pairnorm.paper.results import opened
from pairnorm.train import Spec, Store, Trial

NODES, CLASSES = 100, ("low", "high")


class Format(NamedTuple):
    """One format: the folder's file that is damaged, and what reads the folder."""

    file: str
    read: Callable[[Path], object]


def _tables(nodes: str, edges: str) -> Callable[[Path], object]:
    return lambda folder: Graph.from_files(folder / nodes, folder / edges, label="risk").describe()


def _whole(name: str) -> Callable[[Path], object]:
    return lambda folder: Graph.from_files(folder / name).describe()


def _model(folder: Path) -> object:
    classifier = NodeClassifier.load(folder / "run")
    graph = Graph.from_files(folder / "nodes.csv", folder / "edges.csv", encoder=classifier.encoder_)
    probabilities = classifier.predict_proba(graph)
    assert np.isfinite(probabilities).all(), "probabilities that are no numbers"
    return probabilities


def _store(name: str) -> Callable[[Path], object]:
    def read(folder: Path) -> object:
        """Read all that the report reads of a store."""
        with opened(folder / name) as store:
            cells = store.cells()
            origins = report._origins(store, cells)
        return report._what_was_run(cells, origins, Selection(("table1",)), name)

    return read


def _case_study(folder: Path) -> object:
    found = read_layers(file_beside(folder / "store.sqlite"))
    return [draw({"PN": one}, "SGC") for one in found.values() for draw in (mean_distances, distributions)]


def _writing(folder: Path) -> object:
    with Store(folder / "store.sqlite") as store:
        before = len(store)
        added = store.add(Spec("cora", "GCN", 3), [_trial(7)], seconds=1.0)
        assert len(store) == before + added, "a trial was lost"
        return store.frame()


FORMATS = {
    "csv nodes": Format("nodes.csv", _tables("nodes.csv", "edges.csv")),
    "csv edges": Format("edges.csv", _tables("nodes.csv", "edges.csv")),
    "tsv": Format("nodes.tsv", _tables("nodes.tsv", "edges.csv")),
    "parquet": Format("nodes.parquet", _tables("nodes.parquet", "edges.csv")),
    "npz": Format("graph.npz", _whole("graph.npz")),
    "npz of scipy": Format("scipy.npz", _whole("scipy.npz")),
    "pt": Format("graph.pt", _whole("graph.pt")),
    "pt sparse": Format("sparse.pt", _whole("sparse.pt")),
    "safetensors": Format("graph.safetensors", _whole("graph.safetensors")),
    "graphml": Format("graph.graphml", _whole("graph.graphml")),
    "model.json": Format("run/model.json", _model),
    "model.safetensors": Format("run/model.safetensors", _model),
    "store": Format("store.sqlite", _store("store.sqlite")),
    "store written to": Format("store.sqlite", _writing),
    "case study": Format("store.case-study.json", _case_study),
    "export": Format("export.csv", _store("export.csv")),
    "export packed": Format("export.csv.gz", _store("export.csv.gz")),
}


def _trial(seed: int) -> Trial:
    metrics = dict.fromkeys(("train_loss", "validation_loss", "test_loss"), 1.5)
    metrics |= dict.fromkeys(("train_accuracy", "validation_accuracy", "test_accuracy"), 0.5)
    curves = {"validation_loss": [1.5, 1.4]}
    return Trial(seed=seed, best_epoch=3, **metrics, measures={"row_diff": 0.1 * seed}, curves=curves)


def write_corpus(folder: Path) -> Path:
    """Write one sound file of every format into a folder."""
    graph, random = csbm(NODES, classes=2, features=3, seed=0), np.random.default_rng(0)
    labels, edges = graph.labels, graph.edge_index
    nodes = pandas.DataFrame(
        {
            "id": [f"c{number:03}" for number in range(NODES)],
            "age": random.integers(20, 70, NODES),
            "job": random.choice(["clerk", "nurse", "=1+1"], NODES),
            "risk": [CLASSES[label] for label in labels.tolist()],
        }
    )
    nodes.loc[::5, "age"] = None
    ends = [[f"c{node:03}" for node in end] for end in edges.tolist()]
    nodes.to_csv(folder / "nodes.csv", index=False)
    nodes.to_csv(folder / "nodes.tsv", index=False, sep="\t")
    nodes.to_parquet(folder / "nodes.parquet", index=False)
    pandas.DataFrame({"source": ends[0], "target": ends[1]}).to_csv(folder / "edges.csv", index=False)

    adjacency = scipy.sparse.coo_array((np.ones(edges.shape[1]), edges.numpy()), shape=(NODES, NODES)).tocsr()
    features = scipy.sparse.csr_array(graph.features.to_dense().numpy())
    pieces = {
        f"{prefix}_{name}": getattr(matrix, name)
        for prefix, matrix in (("adj", adjacency), ("attr", features))
        for name in ("data", "indices", "indptr", "shape")
    }
    np.savez(folder / "graph.npz", **pieces, labels=labels.numpy())
    scipy.sparse.save_npz(folder / "scipy.npz", adjacency.tocsc())

    tensors = {"x": graph.features.to_dense(), "edge_index": edges.contiguous(), "y": labels}
    torch.save(tensors, folder / "graph.pt")
    torch.save(tensors | {"x": tensors["x"].to_sparse()}, folder / "sparse.pt")
    save_file(tensors, folder / "graph.safetensors")
    drawn = networkx.Graph(list(map(tuple, edges.T.tolist())))
    for node, row in enumerate(nodes.itertuples()):
        drawn.add_node(node, age=float(np.nan_to_num(row.age)), job=row.job, label=row.risk)
    networkx.write_graphml(drawn, folder / "graph.graphml")

    labelled = Graph.from_files(folder / "nodes.csv", folder / "edges.csv", label="risk")
    NodeClassifier(model="SGC", depth=2, norm="PN", scale=1.0).fit(labelled).save(folder / "run")

    with Store(folder / "store.sqlite") as store:
        for depth in (2, 4):
            store.add(Spec("cora", "GCN", depth), map(_trial, range(3)), seconds=1.0)
        store.export(folder / "export.csv")
    distances = {kind: [0.5, 0.25] for kind in PAIRS}
    edges = {kind: [bin_ / BINS for bin_ in range(BINS + 1)] for kind in PAIRS}
    counts = {kind: [[1] * BINS] * 2 for kind in PAIRS}
    layers = Layers(0.7, distances, distances, edges, counts)
    write_layers(file_beside(folder / "store.sqlite"), {Spec("cora", "SGC", 2, norm="PN"): layers})
    with (folder / "export.csv").open("rb") as plain, gzip.open(folder / "export.csv.gz", "wb") as packed:
        shutil.copyfileobj(plain, packed)
    return folder
