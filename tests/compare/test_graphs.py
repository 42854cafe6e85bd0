import pytest
import torch

from pairnorm.compare.depth import CHAINS, LONG_RANGE, MINESWEEPER, chains, long_range_graph
from pairnorm.data.adjacency import hops
from pairnorm.data.named import data_folder
from pairnorm.train.spec import FINGERPRINTS

has_minesweeper = (data_folder() / "tables" / MINESWEEPER).is_dir()


@pytest.mark.parametrize("name", LONG_RANGE)
def test_long_range_graphs_keep_their_fingerprints(name):
    if name == MINESWEEPER and not has_minesweeper:
        pytest.skip("its files are not part of the package")
    assert long_range_graph(name).fingerprint == FINGERPRINTS[name]


@pytest.mark.parametrize("name", CHAINS)
def test_chain_labels_have_the_stated_distance(name):
    graph = long_range_graph(name)
    shown = graph.features.any(1)
    away = torch.from_numpy(hops(graph.adjacency, shown.numpy()))
    assert (away[graph.labeled] == CHAINS[name]).all()
    for mask in graph.split:
        assert graph.labels[mask].bincount().unique().numel() == 1  # classes are equally frequent


def test_missing_minesweeper_files_raise(raises, tmp_path):
    with raises("file-missing", value="nodes.csv"):
        long_range_graph(MINESWEEPER, tmp_path)


def test_last_node_of_chain_has_class_of_first_node():
    graph = chains(3, count=40, classes=5, seed=1)
    assert (graph.num_nodes, graph.num_edges) == (160, 120)
    first, last = torch.arange(40) * 4, torch.arange(40) * 4 + 3
    assert torch.equal(graph.features[first].argmax(1), graph.labels[last])
    assert graph.features.sum() == 40
    assert torch.equal(graph.labeled.nonzero().squeeze(1), last)
    assert [int(mask.sum()) for mask in graph.split] == [10, 10, 20]
    assert graph.fingerprint != chains(3, count=40, classes=5, seed=2).fingerprint
