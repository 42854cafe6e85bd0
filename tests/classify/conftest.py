"""Graphs to classify."""

import sys
from pathlib import Path

import pytest
import torch

from pairnorm.classify import Scaling, Task
from pairnorm.classify.candidates import PreparedGraph
from pairnorm.data import Graph, csbm, features_after, load, missing_vectors

sys.path.insert(0, str(Path(__file__).parent))  # for written.py


@pytest.fixture(scope="session")
def blanked_cora() -> Graph:
    """Cora, all vectors outside the training set missing."""
    cora = load("cora")
    missing = missing_vectors(cora, 1.0)
    return cora.replace(features=features_after(cora, missing).trial(0), missing=missing.mask[:, 0])


@pytest.fixture(scope="session")
def small() -> Graph:
    """Two classes, bags of words, 20 labeled training nodes of each class."""
    return csbm(300, classes=2, seed=1).with_split("per-class-20")


@pytest.fixture(scope="session")
def task(small: Graph) -> Task:
    """What candidates are trained on: the small graph, its features scaled."""
    return Task(small, PreparedGraph(small, Scaling.of(small)(small), torch.device("cpu")), "rw")


@pytest.fixture(scope="session")
def flow() -> Graph:
    """The class says whether the nodes that edges lead to have more than those that edges come from."""
    generator = torch.Generator().manual_seed(0)
    amount = torch.randn(600, 1, generator=generator)
    edges = torch.randint(600, (2, 3000), generator=generator)
    edges = torch.cat([edges, edges[:, :100].flip(0)], 1)  # some go both ways
    along = torch.zeros(600, 600).index_put_(tuple(edges), torch.ones(())).fill_diagonal_(0)
    to, origin = (way @ amount / way.sum(1, keepdim=True).clamp(min=1) for way in (along, along.T))
    labels = (to > origin).squeeze(1).long()
    return Graph.from_edges(edges, amount, labels).with_split("per-class-100")
