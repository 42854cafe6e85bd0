"""Reports are written about graphs and stores that modules of other test folders make."""

import sys
from pathlib import Path

import pytest

from pairnorm.data import Graph, csbm

for folder in ("classify", "paper", "report"):  # for written.py, synthetic.py and depth_table.py
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))


@pytest.fixture(scope="session")
def small() -> Graph:
    """Return two classes with bags of words and 20 labeled training nodes of each class."""
    return csbm(300, classes=2, seed=1).with_split("per-class-20")
