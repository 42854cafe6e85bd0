from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pairnorm.data import Graph, missing_entries, missing_nodes
from pairnorm.errors import PairNormError
from pairnorm.nn import SparseMatrix
from pairnorm.train import Spec
from pairnorm.train.problem import Problem

CPU = torch.device("cpu")


def seen(problem: Problem, trials: int) -> Tensor:
    """What every trial sees, [nodes, trials, features]."""
    features = problem.features
    if isinstance(features, SparseMatrix):
        features = features.to_dense()
        features = features if features.dim() == 2 else features.transpose(0, 1)
    return features.unsqueeze(1).expand(-1, trials, -1) if features.dim() == 2 else features


def in_another_layout(graph: Graph, layout: str) -> Graph:
    return graph if layout == "sparse" else graph.replace(features=graph.features.to_dense())


@pytest.mark.parametrize("layout", ["sparse", "dense"])
@pytest.mark.parametrize(
    "trials",
    [[(0.0, 1), (0.0, 2)], [(1.0, 1), (1.0, 2)], [(0.5, 1), (0.5, 2)], [(0.0, 1), (0.3, 1), (1.0, 4)]],
)
def test_every_trial_sees_what_its_own_rate_and_seed_leave(
    graph: Graph, features: Callable[..., Tensor], layout: str, trials: list[tuple[float, int]]
) -> None:
    pairs = [(Spec("csbm", "GCN", 2, missing_rate=rate), seed) for rate, seed in trials]
    problem = Problem.of(in_another_layout(graph, layout), pairs, CPU)
    assert isinstance(problem.features, SparseMatrix) == (layout == "sparse")
    expected = torch.stack([features(graph, spec, seed) for spec, seed in pairs], 1)
    torch.testing.assert_close(seen(problem, len(pairs)), expected)


@pytest.mark.parametrize("layout", ["sparse", "dense"])
@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_features_as_they_are(graph: Graph, layout: str, rate: float) -> None:
    pairs = [(Spec("csbm", "GCN", 2, missing_rate=rate, scaling=scaling), 1) for scaling in ("rows", "none")]
    graph = in_another_layout(graph, layout)
    scaled, raw = (seen(Problem.of(graph, [pair], CPU), 1)[:, 0] for pair in pairs)
    sums = graph.features.to_dense().sum(1, keepdim=True)
    torch.testing.assert_close(raw, scaled * sums)
    assert (raw.sum(1) > 1.5).any()


@pytest.mark.parametrize("layout", ["sparse", "dense"])
def test_other_kinds_of_missing(graph: Graph, layout: str) -> None:
    graph = in_another_layout(graph, layout)
    whole = graph.features.to_dense()
    whole = whole / whole.sum(1, keepdim=True)
    spec = Spec("csbm", "GCN", 2, missing_rate=0.4, missing_kind="nodes")
    x = seen(Problem.of(graph, [(spec, 3)], CPU), 1)[:, 0]
    lost = missing_nodes(graph, 0.4, seed=3).mask[:, 0]
    torch.testing.assert_close(x, whole * ~lost[:, None])
    assert lost[graph.train].any()

    spec = Spec("csbm", "GCN", 2, missing_rate=0.4, missing_kind="entries")
    x = seen(Problem.of(graph, [(spec, 3), (spec, 4)], CPU), 2)
    for trial, seed in enumerate((3, 4)):
        lost = missing_entries(graph, 0.4, seed=seed).mask[:, 0]
        there = whole != 0 if layout == "sparse" else torch.ones_like(whole, dtype=torch.bool)
        expected = whole.clone()
        expected[there] = torch.where(lost, 0, expected[there])
        torch.testing.assert_close(x[:, trial], expected)

    lost = torch.arange(graph.num_nodes) % 3 == 0
    spec = Spec("csbm", "GCN", 2, missing_kind="given")
    x = seen(Problem.of(graph.replace(missing=lost), [(spec, 3)], CPU), 1)[:, 0]
    torch.testing.assert_close(x, whole * ~lost[:, None])


def test_losses_and_accuracies_equal_cross_entropy_and_counting(graph: Graph) -> None:
    spec = Spec("csbm", "GCN", 2)
    problem = Problem.of(graph, [(spec, 0)], CPU)
    logits = 3 * torch.randn(
        graph.num_nodes, 5, graph.num_classes, generator=torch.Generator().manual_seed(0)
    )
    metrics = problem.metrics(logits)
    assert set(metrics) == {f"{part}_{what}" for part in problem.parts for what in ("loss", "accuracy")}
    for part in ("train", "validation", "test"):
        mask = getattr(graph, part)
        for trial in range(5):
            own, labels = logits[mask][:, trial].double(), graph.labels[mask]
            assert float(metrics[f"{part}_loss"][trial]) == pytest.approx(float(cross_entropy(own, labels)))
            right = np.mean(own.argmax(1).numpy() == labels.numpy())
            assert float(metrics[f"{part}_accuracy"][trial]) == pytest.approx(right)


def test_a_model_that_gives_nan_is_never_right(graph: Graph) -> None:
    problem = Problem.of(graph, [(Spec("csbm", "GCN", 2), 0)], CPU)
    logits = torch.full((graph.num_nodes, 2, graph.num_classes), torch.nan)
    logits[:, 1] = torch.nn.functional.one_hot(graph.labels).float()
    assert problem.accuracies(logits, "test").tolist() == [0.0, 1.0]


@pytest.mark.parametrize("kind", ["rw", "sym"])
def test_the_adjacency_is_the_one_the_spec_names(graph: Graph, kind: str) -> None:
    problem = Problem.of(graph, [(Spec("csbm", "GCN", 2, adjacency=kind), 0)], CPU)
    looped = graph.adjacency.to_dense().double() + torch.eye(graph.num_nodes)
    degree = looped.sum(1)
    left, right = (1 / degree, torch.ones(())) if kind == "rw" else (degree.rsqrt(), degree.rsqrt())
    expected = left[:, None] * looped * right
    torch.testing.assert_close(problem.adjacency.to_dense().double(), expected, rtol=1e-6, atol=1e-7)


def test_trials_that_cannot_train_side_by_side_and_graphs_without_a_split_are_refused(graph: Graph) -> None:
    spec = Spec("csbm", "GCN", 2, missing_rate=0.5)
    with pytest.raises(PairNormError, match="cannot train side by side"):
        Problem.of(graph, [(spec, 0), (spec.replace(missing_kind="entries"), 0)], CPU)
    none = torch.zeros(graph.num_nodes, dtype=torch.bool)
    with pytest.raises(PairNormError, match="graph 'csbm' has 0 training and 60 validation nodes; expected"):
        Problem.of(graph.replace(train=none), [(spec, 0)], CPU)
    with pytest.raises(PairNormError, match="graph 'csbm' has 20 training and 0 validation nodes; expected"):
        Problem.of(graph.replace(validation=none), [(spec, 0)], CPU)
