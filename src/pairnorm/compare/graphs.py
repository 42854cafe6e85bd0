"""Graphs of the comparisons that ``load`` does not have: tables, components, and graphs that need depth."""

import csv
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pairnorm.base.errors import PairNormError, real_number, whole_number
from pairnorm.data import Graph, Split, load
from pairnorm.data.adjacency import components, mark_validated, reachable, symmetric_adjacency
from pairnorm.data.labels import UNKNOWN
from pairnorm.data.named import data_folder
from pairnorm.data.split import Stream, rest_is_test

MINESWEEPER = "minesweeper"
CHAINS = {f"chains-{distance}": distance for distance in (2, 4, 8, 16, 32)}
"""Generated graphs by name, with the number of edges between a label and the features that decide it."""
LONG_RANGE = (MINESWEEPER, *CHAINS)
"""Graphs on which depth matters with all features."""
REACHED = {"cora-reached": "cora", "citeseer-reached": "citeseer"}
"""Graphs tested only on nodes in a component with a training node: no feature or label reaches the others."""
_CODES = ("status", "major", "second_major", "dorm", "high_school")
TABLES: dict[str, dict[str, Any]] = {
    "amherst41": {"label": "year", "classes": "each", "categorical": _CODES},
    "german": {"label": "GoodCustomer"},
    "reed98": {"label": "year", "classes": "each", "categorical": _CODES},
    MINESWEEPER: {"label": "label"},
    "mim_air": {"label": "label", "classes": "each"},
    "mim_electric": {"label": "label", "classes": "each"},
    "mim_synthetic": {"label": "label", "classes": "each"},
}
"""Tables such as users have, with the options of ``Graph.from_files``."""
MIN_CLASS_SIZE = 50


def chains(distance: int, *, count: int = 400, classes: int = 4, seed: int = 0) -> Graph:
    """Generate paths whose last node has the class that the first node, ``distance`` edges away, shows.

    The features of the first node are the one-hot class, those of all other nodes are zero. Only last nodes
    have labels. A model with fewer than ``distance`` graph convolutions sees the same input for all of them,
    so that its accuracy is 1 / ``classes``; with as many, it can label all.

    >>> graph = chains(8)
    >>> graph.num_nodes, graph.num_edges, int(graph.test.sum())
    (3600, 3200, 200)

    Args:
        distance: edges between a label and the features that decide it.
        count: number of paths; a quarter each for training and validation, the rest for testing.
        classes: number of classes, equally frequent in every part of the split.
        seed: of the order of the classes.
    """
    distance, classes = whole_number("distance", distance, least=1), whole_number("classes", classes, least=2)
    count = whole_number("count", count, least=4 * classes)
    length = distance + 1
    first = np.arange(count) * length
    source = np.arange(count * length).reshape(count, length)[:, :-1].reshape(-1)
    rank = Stream(seed, "chains").order(count)
    shown = rank % classes
    features = np.zeros((count * length, classes), dtype=np.float32)
    features[first, shown] = 1
    labels = np.full(count * length, UNKNOWN)
    labels[first + distance] = shown
    quarter = count // 4
    train, validation = np.zeros((2, count * length), dtype=bool)
    train[(first + distance)[rank < quarter]] = True
    validation[(first + distance)[(rank >= quarter) & (rank < 2 * quarter)]] = True
    known = torch.from_numpy(labels)
    adjacency, _ = symmetric_adjacency(source, source + 1, count * length)
    split = rest_is_test(known, torch.from_numpy(train), torch.from_numpy(validation))
    return Graph(
        mark_validated(adjacency), torch.from_numpy(features), known, *split, name=f"chains-{distance}"
    )


def long_range_graph(name: str, root: Path | None = None) -> Graph:
    """Return one of ``LONG_RANGE``, with its split."""
    return chains(CHAINS[name]) if name in CHAINS else _minesweeper(data_folder(root) / "tables" / name)


def _minesweeper(folder: Path) -> Graph:
    """Read the board with the first of its ten published splits, without pandas."""
    for name in ("nodes.csv", "edges.csv", "splits.csv"):
        if not (folder / name).is_file():
            problem = f"{folder / name}: this file is missing"
            hint = "Name the folder above 'tables' ({root}, or PAIRNORM_DATA)."
            raise PairNormError(problem, code="file-missing", value=name, hint=hint, root=...)
    with (folder / "nodes.csv").open(newline="") as nodes, (folder / "splits.csv").open(newline="") as splits:
        rows, parts = list(csv.DictReader(nodes)), [row["split0"] for row in csv.DictReader(splits)]
    columns = [name for name in rows[0] if name not in ("id", "label")]
    features = np.array([[float(row[name]) for name in columns] for row in rows], dtype=np.float32)
    edges = np.loadtxt(folder / "edges.csv", dtype=np.int64, delimiter=",", skiprows=1).T
    classes = ("safe", "mine")  # the AUC is that of the second class
    labels = np.array([classes.index(row["label"]) for row in rows])
    graph = Graph.from_edges(edges, features, labels, class_names=classes, name=MINESWEEPER)
    masks = (torch.tensor([part == name for part in parts]) for name in Split._fields)
    return graph.with_split(Split(*masks))


@cache
def read_table(name: str, root: Path | None = None) -> Graph:
    """Read one of ``TABLES``; years with fewer than 50 students are not used as classes."""
    folder, options = data_folder(root) / "tables" / name, TABLES[name]
    graph = Graph.from_files(folder / "nodes.csv", folder / "edges.csv", name=name, **options)
    counts = graph.labels[graph.labeled].bincount(minlength=graph.num_classes)
    frequent = (counts >= MIN_CLASS_SIZE).nonzero().squeeze(1)
    number = torch.full((graph.num_classes + 1,), -1)
    number[frequent] = torch.arange(len(frequent))
    names = tuple(graph.class_names[position] for position in frequent.tolist())
    return graph.replace(labels=number[graph.labels], class_names=names)


def hold_out_labels(labels: Tensor, share: float, seed: int = 0) -> Split:
    """Split labels into test and training nodes, a share of every class each; nothing validates.

    Args:
        labels: int64 [n]; nodes with -1 are in no part.
        share: of test nodes, from 0 to 1.
        seed: the same seed gives the same split on every machine.
    """
    given = labels.cpu().numpy()
    rank = np.full(len(given), np.inf)
    order = Stream(seed, "hidden labels").order(len(given))
    for number in range(int(given.max(initial=-1)) + 1):
        nodes = order[given[order] == number]
        rank[nodes] = np.arange(len(nodes)) / len(nodes)
    seen = rank < 1 - real_number("share", share, least=0, below=1)
    masks = (seen, np.zeros_like(seen), ~seen & (given >= 0))
    return Split(*(torch.from_numpy(mask).to(labels.device) for mask in masks))


def reached(graph: Graph) -> Tensor:
    """Return bool [n]: the nodes that share a component with a training node."""
    return reachable(graph.adjacency, graph.train)


def reached_graph(name: str, root: Path | None = None) -> Graph:
    """Return one of ``REACHED``."""
    graph = load(REACHED[name], root)
    return graph.replace(test=graph.test & reached(graph), name=name)


@cache
def largest_graph(name: str, root: Path | None = None) -> Graph:
    """Return the largest connected component of a named graph."""
    return largest_component(load(name, root))


def largest_component(graph: Graph) -> Graph:
    """Return the largest connected component, with dense features and without a split."""
    members = components(graph.adjacency)
    largest = (members == members.bincount().argmax()).numpy()
    adjacency, features = graph.replace(features=graph.features.to_dense()).to_scipy()
    return Graph.from_scipy(
        adjacency[largest][:, largest],
        features[largest],
        labels=graph.labels[torch.from_numpy(largest)],
        name=f"{graph.name}-largest",
    )
