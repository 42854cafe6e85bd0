import warnings

import pytest
import torch

from pairnorm.compare.baselines import correct_and_smooth
from pairnorm.data import csbm
from pairnorm.nn import normalized_adjacency

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # importing PyG calls torch.jit.script
    from torch_geometric.nn import CorrectAndSmooth


@pytest.mark.parametrize(("correct", "smooth"), [(0.5, 0.8), (0.99, 0.5)])
def test_it_agrees_with_pyg(correct: float, smooth: float) -> None:
    graph = csbm(150, classes=3, degree=3, seed=2).with_split("per-class-10")
    matrix = normalized_adjacency(graph.adjacency, "sym")
    generator = torch.Generator().manual_seed(1)
    chances = torch.randn(graph.num_nodes, 3, generator=generator).softmax(1)
    found = correct_and_smooth(matrix, chances, graph.labels, graph.train, correct, smooth)

    peer = CorrectAndSmooth(50, correct, 50, smooth, autoscale=True)
    edges = torch.stack([matrix.pattern.column.long(), matrix.pattern.row.long()])
    truth = graph.labels[graph.train]
    expected = peer.correct(chances, truth, graph.train, edges, matrix.values)
    expected = peer.smooth(expected, truth, graph.train, edges, matrix.values)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_it_looks_at_no_other_labels() -> None:
    graph = csbm(100, classes=2, seed=3).with_split("per-class-10")
    matrix, chances = normalized_adjacency(graph.adjacency, "sym"), torch.full((100, 2), 0.5)
    others = torch.where(graph.train, graph.labels, 1 - graph.labels)
    found, same = (
        correct_and_smooth(matrix, chances, labels, graph.train, 0.8, 0.8)
        for labels in (graph.labels, others)
    )
    assert torch.equal(found, same)
    right = (found.argmax(1) == graph.labels)[graph.test].float().mean()
    assert right > 0.6
