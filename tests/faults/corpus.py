"""A small undamaged file of each format and its reader; the fuzzers damage these files."""

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import duckdb
import networkx
import numpy as np
import pandas
import scipy.sparse
import torch
from safetensors.torch import save_file

from pairnorm.classify import NodeClassifier
from pairnorm.classify.streaming import Streaming
from pairnorm.data import Graph, csbm
from pairnorm.data.packing import pack
from pairnorm.paper.evidence import PAIRS, Layers, read_layers, write_layers
from pairnorm.paper.experiments import Selection
from pairnorm.paper.figures import case_study
from pairnorm.paper.runner import BINS
from pairnorm.report import paper_report as report
from pairnorm.sweep.index import ResultIndex, open_results
from pairnorm.train import Spec, Store, Trial
from pairnorm.train.result import Result

NODES, CLASSES = 100, ("low", "high")
READING = "500MB"
PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")
ARRAYS = ("crow", "column", "weight", "features-0000", "missing", "labels", "split", "ids.parquet")


class Format(NamedTuple):
    """One format: the folder's files, of which one is damaged, and what reads the folder."""

    files: str | tuple[str, ...]
    read: Callable[[Path], object]


def _tables(nodes: str, edges: str) -> Callable[[Path], object]:
    return lambda folder: Graph.from_files(
        folder / nodes, folder / edges, label="risk", memory=READING
    ).describe()


def _whole(name: str) -> Callable[[Path], object]:
    return lambda folder: Graph.from_files(folder / name, memory=READING).describe()


def _queries(name: str) -> Callable[[Path], object]:
    def read(folder: Path) -> object:
        url = f"{name.rpartition('.')[2]}:///{folder / name}"
        return Graph.from_files("nodes", "edges", database=url, label="risk", memory=READING).describe()

    return read


def _long_table(folder: Path) -> object:
    tables = (folder / "nodes.csv", folder / "edges.csv")
    return Graph.from_files(*tables, features=folder / "words.csv", memory=READING).describe()


def _pack(nodes: str, edges: str) -> Callable[[Path], object]:
    def read(folder: Path) -> object:
        shutil.rmtree(folder / "new", ignore_errors=True)
        graph = pack(folder / nodes, folder / edges, folder / "new", label="risk", memory="300MB")
        return Graph.from_packed(graph).describe()

    return read


def _packed(folder: Path) -> object:
    """Run all steps of ``fit --graph``, and read the graph into memory."""
    graph = Graph.open(folder / "packed")
    search = Streaming(graph, folder / "work", 10**9, depths=[1], scales=[1.0], norms=["none", "PN", "PN-SI"])
    outcome = search.run()
    assert np.isfinite(outcome.logits).all(), "logits that are no numbers"
    outcome.write(folder)
    return Graph.from_packed(graph).describe()


def _model(name: str) -> Callable[[Path], object]:
    def read(folder: Path) -> object:
        classifier = NodeClassifier.load(folder / name)
        graph = Graph.from_files(folder / "nodes.csv", folder / "edges.csv", encoder=classifier.encoder_)
        probabilities = classifier.predict_proba(graph)
        assert np.isfinite(probabilities).all(), "probabilities that are no numbers"
        return probabilities

    return read


def _store(name: str) -> Callable[[Path], object]:
    def read(folder: Path) -> object:
        """Read from a store everything that the report uses."""
        with open_results(folder / name) as store:
            stored: dict[Spec, list[Result]] = {}
            for one in store.results():
                stored.setdefault(one.spec, []).append(one)
        return report._provenance(stored, ResultIndex({}), Selection(("table1",)), name)

    return read


def _case_study(folder: Path) -> object:
    with Store(folder / "store.sqlite", read_only=True) as store:
        result = read_layers(store)
    return [case_study({"PN": one}, "SGC") for one in result.values()]


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
    "xlsx": Format("nodes.xlsx", _tables("nodes.xlsx", "edges.csv")),
    "json": Format("both.json", _tables("both.json", "both.json")),
    "json lines": Format("nodes.jsonl", _tables("nodes.jsonl", "edges.csv")),
    "long table": Format("words.csv", _long_table),
    "utf-16": Format("wide.csv", _tables("wide.csv", "edges.csv")),
    **{
        f"csv{ending}": Format(f"nodes.csv{ending}", _tables(f"nodes.csv{ending}", "edges.csv"))
        for ending in PACKED
    },
    "sqlite": Format("tables.sqlite", _queries("tables.sqlite")),
    "duckdb": Format("tables.duckdb", _queries("tables.duckdb")),
    "pack": Format(("nodes.csv", "edges.csv"), _pack("nodes.csv", "edges.csv")),
    "pack parquet": Format("nodes.parquet", _pack("nodes.parquet", "edges.csv")),
    "packed facts": Format("packed/graph.json", _packed),
    "packed arrays": Format(tuple(f"packed/{name}" for name in ARRAYS), _packed),
    "npz": Format("graph.npz", _whole("graph.npz")),
    "npz of scipy": Format("scipy.npz", _whole("scipy.npz")),
    "pt": Format("graph.pt", _whole("graph.pt")),
    "pt sparse": Format("sparse.pt", _whole("sparse.pt")),
    "safetensors": Format("graph.safetensors", _whole("graph.safetensors")),
    "graphml": Format("graph.graphml", _whole("graph.graphml")),
    "gml": Format("graph.gml", _whole("graph.gml")),
    "gexf": Format("graph.gexf", _whole("graph.gexf")),
    "model.json": Format("run/model.json", _model("run")),
    "model.safetensors": Format("run/model.safetensors", _model("run")),
    "average": Format(("average/model.json", "average/model.safetensors"), _model("average")),
    "store": Format("store.sqlite", _store("store.sqlite")),
    "store written to": Format("store.sqlite", _writing),
    "case study": Format("store.sqlite", _case_study),
    "export": Format("export.csv", _store("export.csv")),
}


def _trial(seed: int) -> Trial:
    metrics = dict.fromkeys(("train_loss", "validation_loss", "test_loss"), 1.5)
    metrics |= dict.fromkeys(("train_accuracy", "validation_accuracy", "test_accuracy"), 0.5)
    curves = {"validation_loss": [1.5, 1.4]}
    return Trial(seed=seed, best_epoch=3, **metrics, measures={"row_diff": 0.1 * seed}, curves=curves)


def _write_tables(folder: Path, nodes: pandas.DataFrame, links: pandas.DataFrame) -> None:
    """Write the tables once more, in all other forms that can be read."""
    nodes.to_excel(folder / "nodes.xlsx", index=False)
    rows = {"nodes": nodes, "edges": links}
    both = {name: json.loads(frame.to_json(orient="records")) for name, frame in rows.items()}
    (folder / "both.json").write_text(json.dumps(both))
    nodes.to_json(folder / "nodes.jsonl", orient="records", lines=True)
    nodes.to_csv(folder / "wide.csv", index=False, encoding="utf-16")
    words = pandas.DataFrame({"node": nodes["id"], "word": nodes["job"], "value": range(len(nodes))})
    words.to_csv(folder / "words.csv", index=False)
    for ending in PACKED:
        nodes.to_csv(folder / f"nodes.csv{ending}", index=False)
    with sqlite3.connect(folder / "tables.sqlite") as connection:
        for name, frame in rows.items():
            frame.to_sql(name, connection, index=False)
    connection.close()
    with duckdb.connect(folder / "tables.duckdb") as base:
        for name, frame in rows.items():
            base.register("given", frame)
            base.execute(f"CREATE TABLE {name} AS SELECT * FROM given")
    nodes.loc[::3, ["age", "job"]] = None  # whole vectors, as imputations of a packed graph require
    nodes["age"] = nodes["age"].mask(nodes["job"].notna(), 30.0)
    nodes.to_csv(folder / "gaps.csv", index=False)
    links.assign(weight=2.0).to_csv(folder / "weighted.csv", index=False)
    pack(folder / "gaps.csv", folder / "weighted.csv", folder / "packed", label="risk", weight="weight")


def write_corpus(folder: Path) -> Path:
    """Write one undamaged file of each format into a folder."""
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
    links = pandas.DataFrame({"source": ends[0], "target": ends[1]})
    links.to_csv(folder / "edges.csv", index=False)
    _write_tables(folder, nodes, links)

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
    for _, attributes in drawn.nodes(data=True):
        attributes["risk"] = attributes.pop("label")  # networkx writes the name of a node as its label
    networkx.write_gml(drawn, folder / "graph.gml")
    for node, job in drawn.nodes(data="job"):
        if job != job:  # networkx writes it as a number
            del drawn.nodes[node]["job"]
    networkx.write_gexf(drawn, folder / "graph.gexf")

    labeled = Graph.from_files(folder / "nodes.csv", folder / "edges.csv", label="risk")
    NodeClassifier(model="SGC", depth=2, norm="PN", scale=1.0).fit(labeled).save(folder / "run")
    models = ["SGC", "label propagation", "logistic regression", "boosted trees", "GCN"]
    NodeClassifier(model=models, depth=1, seeds=1, epochs=2, time_limit="20s").fit(labeled).save(
        folder / "average"
    )

    with Store(folder / "store.sqlite") as store:
        for depth in (2, 4):
            store.add(Spec("cora", "GCN", depth), map(_trial, range(3)), seconds=1.0)
        store.export(folder / "export.csv")
    distances = {kind: [0.5, 0.25] for kind in PAIRS}
    edges = {kind: [bin_ / BINS for bin_ in range(BINS + 1)] for kind in PAIRS}
    counts = {kind: [[1] * BINS] * 2 for kind in PAIRS}
    layers = Layers(0.7, distances, distances, edges, counts)
    with Store(folder / "store.sqlite") as store:
        write_layers(store, {Spec("cora", "SGC", 2, norm="PN"): layers})
    return folder
