import warnings

import pytest
import torch
from torch import Tensor

from pairnorm.compare.baselines import (
    class_aware,
    correct_and_smooth,
    fractional,
    fsd_cap,
    subgraph_diffusion,
)
from pairnorm.compare.missing import mask_features
from pairnorm.data import Graph, csbm, missing_nodes
from pairnorm.nn import normalized_adjacency
from pairnorm.train import Spec

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # importing PyG calls torch.jit.script
    from torch_geometric.nn import CorrectAndSmooth


@pytest.fixture
def graph() -> Graph:
    graph = csbm(100, classes=3, degree=3, features=20, words=8, seed=4)
    return graph.replace(features=graph.features.to_dense().double())


def looped(graph: Graph) -> Tensor:
    return graph.adjacency.to_dense().double() + torch.eye(graph.num_nodes, dtype=torch.float64)


def dense_fractional(adjacency: Tensor, inside: Tensor, gamma: float) -> Tensor:
    part = adjacency * torch.outer(inside, inside)
    degree = part.sum(1).clamp(min=1)
    powers = (part / torch.outer(degree, degree).sqrt()) ** gamma
    return powers / powers.sum(1, keepdim=True).clamp(min=1e-300)


def dense_diffusion(
    adjacency: Tensor, features: Tensor, known: Tensor, gamma: float, memory: float, steps: int
) -> Tensor:
    """Follow the formula node by node: all columns, distances by powers of the adjacency."""
    state = features * known[:, None]
    memories, inside, hops = torch.zeros_like(state), known, 0
    sizes = [0]
    while sizes[-1] != int(inside.sum()):
        sizes.append(int(inside.sum()))
        hops += 1
        inside = torch.linalg.matrix_power(adjacency, hops)[:, inside].sum(1) > 0
        matrix = dense_fractional(adjacency, inside, gamma)
        for _ in range(steps):
            state = matrix @ state + memory * memories
            state[known] = features[known]
        memories = state / state.pow(2).sum().sqrt()
    return state


@pytest.mark.parametrize("gamma", [1.0, 1.2, 2.0])
def test_fractional_adjacency_equals_dense_reference(graph, gamma):
    inside = torch.arange(100) % 3 > 0
    result = fractional(
        normalized_adjacency(graph.adjacency).pattern, inside, gamma, torch.float64
    ).to_dense()
    torch.testing.assert_close(result, dense_fractional(looped(graph), inside, gamma))


@pytest.mark.parametrize("known", [5, 60], ids=["few", "more than columns"])
def test_subgraph_diffusion_equals_dense_reference(graph, known):
    mask = torch.randperm(100, generator=torch.Generator().manual_seed(2)) < known
    wrong = torch.where(mask[:, None], graph.features, torch.nan)  # unknown vectors are not looked at
    result = subgraph_diffusion(graph.adjacency, wrong, mask, gamma=1.2, memory=0.2, steps=30)
    expected = dense_diffusion(looped(graph), graph.features, mask, 1.2, 0.2, 30)
    torch.testing.assert_close(result, expected)
    assert torch.equal(result[mask], graph.features[mask])


def test_unreachable_vectors_stay_zero():
    graph = Graph.from_edges(torch.tensor([[0, 1, 3], [1, 2, 4]]), torch.ones(5, 2))
    result = subgraph_diffusion(graph.adjacency, graph.features, torch.arange(5) == 0)
    assert (result[:3] > 0).all()
    assert not result[3:].any()


def test_class_aware_weighs_nodes_by_neighborhood_entropy(graph):
    generator = torch.Generator().manual_seed(3)
    classes = torch.randint(3, (100,), generator=generator)
    confidence = torch.rand(100, generator=generator, dtype=torch.float64)
    weights = []
    for around in looped(graph).bool():
        shares = classes[around].bincount(minlength=3).double() / around.sum()
        entropy = -sum(float(share * share.log()) for share in shares if share)
        weights.append(1 - entropy / max(float(around.sum().double().log()), 1e-9))
    weight = torch.tensor(weights, dtype=torch.float64)
    assert weight.min() < 0.5 < weight.max()
    expected = torch.stack(
        [
            confidence[node] * graph.features[node]
            + (1 - confidence[node])
            * (weight * (classes == classes[node]))
            @ graph.features
            / weight[classes == classes[node]].sum()
            for node in range(100)
        ]
    )
    result = class_aware(graph.adjacency, graph.features, classes, confidence)
    torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-6)  # shares have single precision


@pytest.mark.parametrize("rate", [0.5, 0.99], ids=["dense", "sparse"])
def test_fsd_cap_uses_validation_labels_only_on_request(rate):
    graph = csbm(300, classes=3, seed=3).with_split("per-class-10-of-150@0")
    graph = graph.replace(features=graph.features.to_dense())
    graph = mask_features(graph, missing_nodes(graph, rate, seed=1))
    spec = Spec(graph.name, "GCN", 2, hidden=8, adjacency="sym", scaling="none", epochs=1)

    def predicted(given: Graph, validation_labels: bool) -> Tensor:
        return fsd_cap(given, spec, 0, validation_labels=validation_labels)

    def with_other_labels(nodes: Tensor) -> Graph:
        return graph.replace(labels=torch.where(nodes, (graph.labels + 1) % 3, graph.labels))

    for validation_labels in (False, True):  # of a single epoch, validation chooses nothing
        expected = predicted(graph, validation_labels)
        assert torch.equal(predicted(with_other_labels(graph.test), validation_labels), expected)
        other = predicted(with_other_labels(graph.validation), validation_labels)
        assert torch.equal(other, expected) is not validation_labels


@pytest.mark.parametrize(("correct", "smooth"), [(0.5, 0.8), (0.99, 0.5)])
def test_correct_and_smooth_equals_pyg(correct, smooth):
    graph = csbm(150, classes=3, degree=3, seed=2).with_split("per-class-10")
    matrix = normalized_adjacency(graph.adjacency, "sym")
    generator = torch.Generator().manual_seed(1)
    probabilities = torch.randn(graph.num_nodes, 3, generator=generator).softmax(1)
    result = correct_and_smooth(matrix, probabilities, graph.labels, graph.train, correct, smooth)

    peer = CorrectAndSmooth(50, correct, 50, smooth, autoscale=True)
    edges = torch.stack([matrix.pattern.column.long(), matrix.pattern.row.long()])
    truth = graph.labels[graph.train]
    expected = peer.correct(probabilities, truth, graph.train, edges, matrix.values)
    expected = peer.smooth(expected, truth, graph.train, edges, matrix.values)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)


def test_correct_and_smooth_uses_training_labels_only():
    graph = csbm(100, classes=2, seed=3).with_split("per-class-10")
    matrix, probabilities = normalized_adjacency(graph.adjacency, "sym"), torch.full((100, 2), 0.5)
    others = torch.where(graph.train, graph.labels, 1 - graph.labels)
    result, same = (
        correct_and_smooth(matrix, probabilities, labels, graph.train, 0.8, 0.8)
        for labels in (graph.labels, others)
    )
    assert torch.equal(result, same)
    right = (result.argmax(1) == graph.labels)[graph.test].float().mean()
    assert right > 0.6
