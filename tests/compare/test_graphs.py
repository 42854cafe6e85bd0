from pathlib import Path
from typing import Any

import pytest
import torch

from pairnorm.compare.depth import CHAINS, LONG_RANGE, MINESWEEPER, chains, long_range_graph
from pairnorm.data.adjacency import hops
from pairnorm.data.named import data_folder
from pairnorm.train.spec import FINGERPRINTS

has_minesweeper = (data_folder() / "tables" / MINESWEEPER).is_dir()


@pytest.mark.parametrize("name", LONG_RANGE)
def test_graphs_are_the_ones_whose_trials_are_stored(name: str) -> None:
    if name == MINESWEEPER and not has_minesweeper:
        pytest.skip("its files are not part of the package")
    assert long_range_graph(name).fingerprint == FINGERPRINTS[name]


@pytest.mark.parametrize("name", CHAINS)
def test_labels_of_chains_lie_as_far_away_as_the_name_tells(name: str) -> None:
    graph = long_range_graph(name)
    shown = graph.features.any(1)
    away = torch.from_numpy(hops(graph.adjacency, shown.numpy()))
    assert (away[graph.labeled] == CHAINS[name]).all()
    for mask in graph.split:
        assert graph.labels[mask].bincount().unique().numel() == 1  # classes are equally frequent


def test_minesweeper_needs_its_files(raises: Any, tmp_path: Path) -> None:
    with raises("file-missing", value="nodes.csv"):
        long_range_graph(MINESWEEPER, tmp_path)


def test_a_chain_ends_in_the_class_that_its_first_node_shows() -> None:
    graph = chains(3, count=40, classes=5, seed=1)
    assert (graph.num_nodes, graph.num_edges) == (160, 120)
    first, last = torch.arange(40) * 4, torch.arange(40) * 4 + 3
    assert torch.equal(graph.features[first].argmax(1), graph.labels[last])
    assert graph.features.sum() == 40
    assert torch.equal(graph.labeled.nonzero().squeeze(1), last)
    assert [int(mask.sum()) for mask in graph.split] == [10, 10, 20]
    assert graph.fingerprint != chains(3, count=40, classes=5, seed=2).fingerprint
