"""Small graphs, and the real ones where they are at hand."""

import os
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from pairnorm.data import Graph, load

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its own doing: PyG scripts a class when it is imported
    import torch_geometric  # noqa: F401

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


@pytest.fixture(scope="session")
def data_root() -> Path:
    root = os.environ.get("PAIRNORM_DATA")
    if not root:
        pytest.skip("PAIRNORM_DATA is not set: the raw files of the real graphs are not at hand")
    return Path(root)


@pytest.fixture(scope="session")
def cora() -> Graph:
    return load("cora")


@pytest.fixture
def small() -> Graph:
    """A path of five nodes: two classes, one unknown label, a zero row, a negative feature."""
    return Graph.from_edges(
        [[0, 1, 2, 3], [1, 2, 3, 4]],
        [[1.0, 3.0, 0.0], [0.0, 0.0, 0.0], [2.0, 0.0, -2.0], [0.0, 5.0, 0.0], [1.0, 1.0, 2.0]],
        [0, 0, 1, 1, -1],
        train=torch.tensor([True, False, True, False, False]),
        validation=torch.tensor([False, True, False, False, False]),
        test=torch.tensor([False, False, False, True, False]),
        class_names=("cat", "dog"),
        name="small",
    )


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write
