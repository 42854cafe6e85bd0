"""Graphs written to files as a user would write them."""

import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pairnorm.data import Graph, csbm

JOBS = (("clerk", "nurse", "pilot"), ("clerk", "baker", "judge"))


class Files(NamedTuple):
    """A graph's two tables."""

    nodes: Path
    edges: Path

    @property
    def options(self) -> list[str]:
        return ["--nodes", str(self.nodes), "--edges", str(self.edges)]


def write_customers(folder: Path, nodes: int = 400, labeled: int = 200, seed: int = 0) -> Files:
    """Write age, income, job and a flag, which are weakly informative; 4 in 10 customers have no features."""
    graph, random = csbm(nodes, classes=2, seed=seed), np.random.default_rng(seed)
    classes = graph.labels.numpy()
    path = Files(folder / "customers.csv", folder / "payments.csv")
    with open(path.nodes, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["customer", "age", "income", "job", "abroad", "risk"])
        for number, group in enumerate(classes):
            label = ("low", "high")[group] if number < labeled else ""
            cells = [
                f"{random.normal(45 - 10 * group, 8):.0f}",
                f"{random.lognormal(10.5 - 0.5 * group, 0.5):.2f}",
                JOBS[group][random.integers(3)],
                "yes" if random.random() < 0.3 + 0.3 * group else "no",
            ]
            if random.random() < 0.4:
                cells = [""] * 4
            elif random.random() < 0.2:
                cells[random.integers(4)] = ""
            table.writerow([f"c{number:04}", *cells, label])
    write_edges(graph, path.edges, [f"c{number:04}" for number in range(nodes)])
    return path


def write_papers(graph: Graph, folder: Path) -> Files:
    """Write a citation graph with string ids and a split; what is missing becomes empty cells."""
    words, missing = graph.features.to_dense().numpy(), graph.missing_vectors.numpy()
    parts = np.select([graph.train, graph.validation, graph.test], ["train", "validation", "test"], "")
    names = [f"paper-{name}" for name in graph.node_names]
    path = Files(folder / "papers.csv", folder / "citations.csv")
    with open(path.nodes, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["paper", "subject", "part", *(f"word {number}" for number in range(words.shape[1]))])
        for node, label in enumerate(graph.labels.tolist()):
            cells = [""] * words.shape[1] if missing[node] else [f"{word:g}" for word in words[node]]
            table.writerow([names[node], graph.class_names[label], parts[node], *cells])
    write_edges(graph, path.edges, names)
    return path


def write_edges(graph: Graph, path: Path, names: list[str]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["source", "target"])
        table.writerows((names[a], names[b]) for a, b in graph.edge_index.T.tolist() if a < b)
