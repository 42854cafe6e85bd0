"""Small graphs, the real ones where they are at hand, and a tester that compares readers of tables."""

import os
import re
import shutil
import warnings
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch
from hypothesis import settings

from pairnorm.base.errors import PairNormError
from pairnorm.data import Graph, PackedGraph, load, pack

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


def assert_same_graph(first: Graph, second: Graph) -> None:
    """Compare all parts of two graphs; notes may name files of different endings."""
    for piece in ("crow_indices", "col_indices", "values"):
        assert torch.equal(getattr(first.adjacency, piece)(), getattr(second.adjacency, piece)()), piece
    for part in ("labels", "train", "validation", "test", "missing_vectors"):
        assert torch.equal(getattr(first, part), getattr(second, part)), part
    assert torch.equal(first.features.to_dense(), second.features.to_dense())
    entries = (
        graph.missing if graph.missing.dim() == 2 else graph.missing[:, None] for graph in (first, second)
    )
    assert torch.equal(*(part.expand(first.features.shape) for part in entries))
    for part in ("node_names", "classes"):
        assert repr(getattr(first, part).tolist()) == repr(getattr(second, part).tolist()), part
    assert first.class_names == second.class_names
    assert first.feature_names == second.feature_names
    assert sorted(map(astuple, first.encoder.columns)) == sorted(map(astuple, second.encoder.columns))
    notes = ([re.sub(r" \S+[.](csv|parquet)", "", note) for note in graph.notes] for graph in (first, second))
    assert next(notes) == next(notes)


class ReaderTester:
    """Read tables into memory and by ``pack``: both give the same graph, or refuse with the same code."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.packed = folder, folder / "graph"

    def write(
        self, nodes: pandas.DataFrame, edges: pandas.DataFrame, ending: str = "csv"
    ) -> tuple[Path, Path]:
        """Write two tables as files of a type."""
        paths = self.folder / f"nodes.{ending}", self.folder / f"edges.{ending}"
        for frame, path in zip((nodes, edges), paths, strict=True):
            frame.to_csv(path, index=False) if ending == "csv" else frame.to_parquet(path, index=False)
        return paths

    def write_nodes(self, **columns: Any) -> tuple[Path, Path]:
        """Write a table of nodes n0, n1, ... with these columns, and a path through the first ten."""
        count = len(next(iter(columns.values())))
        nodes = pandas.DataFrame({"node": [f"n{row}" for row in range(count)]} | columns)
        edges = [(f"n{row}", f"n{row + 1}") for row in range(9)]
        return self.write(nodes, pandas.DataFrame(edges, columns=["source", "target"]))

    def pack(self, *files: Any, memory: str = "256MB", **options: Any) -> PackedGraph:
        """Pack tables into a folder that is created again."""
        shutil.rmtree(self.packed, ignore_errors=True)
        return pack(*files, self.packed, memory=memory, **options)

    def read(self, *files: Any, **options: Any) -> Graph:
        """Return the graph that both readers give."""
        graph = Graph.from_files(*files, **options)
        assert_same_graph(Graph.from_packed(self.pack(*files, **options)), graph)
        return graph

    def check_refused(self, *files: Any, code: str, **options: Any) -> list[PairNormError]:
        """Return the errors, which have the same code."""
        errors = []
        for reader in (Graph.from_files, self.pack):
            with pytest.raises(PairNormError) as caught:
                reader(*files, **options)
            assert caught.value.code == code, caught.value
            errors.append(caught.value)
        assert not self.packed.exists()
        return errors


@pytest.fixture
def readers(tmp_path: Path) -> ReaderTester:
    return ReaderTester(tmp_path)


@pytest.fixture(name="assert_same_graph")
def assert_same_graph_fixture() -> Callable[[Graph, Graph], None]:
    return assert_same_graph
