"""Graphs to classify."""

import sys
from pathlib import Path

import pytest
import torch

from pairnorm.classify import Scaling, Task
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
    """Two classes, bags of words, 20 labelled training nodes of each class."""
    return csbm(300, classes=2, seed=1).with_split("per-class-20")


@pytest.fixture(scope="session")
def task(small: Graph) -> Task:
    """What candidates are trained on: the small graph, its features scaled."""
    return Task(small, Scaling.of(small)(small), "rw", torch.device("cpu"))
