from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.nn.functional import cross_entropy

from pairnorm.data import (
    Graph,
    missing_by_class,
    missing_by_degree,
    missing_by_value,
    missing_entries,
    missing_nodes,
    missing_vectors,
)
from pairnorm.impute.methods import STORED_IMPUTATIONS
from pairnorm.nn import SparseMatrix
from pairnorm.train import Spec
from pairnorm.train.problem import Problem, aucs

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
def test_trials_have_features_masked_by_rate_and_seed(
    graph: Graph, features: Callable[..., Tensor], layout: str, trials: list[tuple[float, int]]
) -> None:
    pairs = [(Spec("csbm", "GCN", 2, missing_rate=rate), seed) for rate, seed in trials]
    problem = Problem.of(in_another_layout(graph, layout), pairs, CPU)
    assert isinstance(problem.features, SparseMatrix) == (layout == "sparse")
    expected = torch.stack([features(graph, spec, seed) for spec, seed in pairs], 1)
    torch.testing.assert_close(seen(problem, len(pairs)), expected)


@pytest.mark.parametrize("layout", ["sparse", "dense"])
@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_unscaled_features(graph: Graph, layout: str, rate: float) -> None:
    pairs = [(Spec("csbm", "GCN", 2, missing_rate=rate, scaling=scaling), 1) for scaling in ("rows", "none")]
    graph = in_another_layout(graph, layout)
    scaled, raw = (seen(Problem.of(graph, [pair], CPU), 1)[:, 0] for pair in pairs)
    sums = graph.features.to_dense().sum(1, keepdim=True)
    torch.testing.assert_close(raw, scaled * sums)
    assert (raw.sum(1) > 1.5).any()


@pytest.mark.parametrize("layout", ["sparse", "dense"])
def test_other_missing_kinds(graph: Graph, layout: str) -> None:
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


@pytest.mark.parametrize("kind", ["class", "degree", "value"])
def test_missing_by_class_and_degree(graph: Graph, kind: str) -> None:
    graph = in_another_layout(graph, "dense")
    draw = {"class": missing_by_class, "degree": missing_by_degree, "value": missing_by_value}[kind]
    spec = Spec("csbm", "GCN", 2, missing_rate=0.4, missing_kind=kind, scaling="none")
    x = seen(Problem.of(graph, [(spec, 3), (spec, 4)], CPU), 2)
    for trial, seed in enumerate((3, 4)):
        lost = draw(graph, 0.4, seed=seed).mask[:, 0].view(graph.num_nodes, -1)
        torch.testing.assert_close(x[:, trial], graph.features * ~lost)


@pytest.mark.parametrize("fill", [name for name in STORED_IMPUTATIONS if name != "zero"])
@pytest.mark.parametrize("kind", ["vectors", "nodes", "entries"])
def test_imputation_per_trial(graph: Graph, fill: str, kind: str) -> None:
    graph = in_another_layout(graph, "dense" if kind == "entries" else "sparse")
    specs = [
        Spec("csbm", "GCN", 2, missing_rate=rate, missing_kind=kind, imputation=fill, scaling="none")
        for rate in (0.9, 0.5)
    ]
    problem = Problem.of(graph, [(spec, seed) for spec in specs for seed in (3, 4)], CPU)
    result, values = seen(problem, 4), graph.features.to_dense()
    assert (
        problem.num_features
        == result.size(2)
        == values.size(1) + (0 if fill != "mask" else values.size(1) if kind == "entries" else 1)
    )
    draw = {"vectors": missing_vectors, "nodes": missing_nodes, "entries": missing_entries}[kind]
    for trial, (rate, seed) in enumerate([(0.9, 3), (0.9, 4), (0.5, 3), (0.5, 4)]):
        known = ~draw(graph, rate, seed=seed).mask[:, 0].view(graph.num_nodes, -1).expand_as(values)
        expected = filled_by_hand(fill, graph, values.double(), known, kind)
        torch.testing.assert_close(result[:, trial].double(), expected, rtol=1e-4, atol=1e-5)


def filled_by_hand(fill: str, graph: Graph, values: Tensor, known: Tensor, kind: str) -> Tensor:
    """What a trial sees, densely and in double precision."""
    shown, looped = values * known, graph.adjacency.to_dense().double() + torch.eye(graph.num_nodes)
    walk, root = looped / looped.sum(1, keepdim=True), looped.sum(1).rsqrt()
    if fill == "mask":
        missing = ~known if kind == "entries" else ~known[:, :1]
        return torch.cat([shown, missing.double()], 1)
    if fill == "mean":
        return torch.where(known, values, (shown.sum(0) / known.sum(0)).nan_to_num())
    if fill == "mass":
        power = torch.linalg.matrix_power(walk, 10)
        return torch.where(known, values, (power @ shown / (power @ known.double())).nan_to_num())
    if fill == "fp":
        result = shown
        for _ in range(40):
            result = torch.where(known, values, root[:, None] * looped * root @ result)
        return result
    hops, before = torch.where(known, 0.0, torch.inf).double(), None
    while before is None or not torch.equal(hops, before):
        nearest = torch.where(looped.bool()[:, :, None], hops[None], torch.inf).amin(1)
        hops, before = torch.minimum(hops, nearest + 1), hops
    confidence = 0.9**hops
    result = shown
    for _ in range(100):
        arrived = (walk @ (confidence * result) / (walk @ confidence)).nan_to_num()
        result = torch.where(known, values, arrived)
    correlation = torch.corrcoef(result.T).nan_to_num().fill_diagonal_(0)
    return result + (1 - confidence) * ((confidence * (result - result.mean(0))) @ correlation)


def test_values_missing_in_the_data_are_imputed(graph: Graph) -> None:
    lost = torch.arange(graph.num_nodes) % 3 == 0
    spec = Spec("csbm", "GCN", 2, missing_kind="given", imputation="mean", scaling="none")
    x = seen(Problem.of(graph.replace(missing=lost), [(spec, 3)], CPU), 1)[:, 0]
    whole = graph.features.to_dense()
    torch.testing.assert_close(x[lost], whole[~lost].mean(0).expand(int(lost.sum()), -1))
    torch.testing.assert_close(x[~lost], whole[~lost])


def test_sparse_features_impute_vectors_only(graph: Graph, raises) -> None:
    spec = Spec("csbm", "GCN", 2, missing_rate=0.5, missing_kind="entries", imputation="fp")
    with raises("sparse-entries"):
        Problem.of(graph, [(spec, 0)], CPU)


def test_losses_and_accuracies_equal_reference(graph: Graph) -> None:
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


def test_nan_logits_count_as_wrong(graph: Graph) -> None:
    problem = Problem.of(graph, [(Spec("csbm", "GCN", 2), 0)], CPU)
    logits = torch.full((graph.num_nodes, 2, graph.num_classes), torch.nan)
    logits[:, 1] = torch.nn.functional.one_hot(graph.labels).float()
    assert problem.scores(logits, "test").tolist() == [0.0, 1.0]


@pytest.mark.parametrize("kind", ["rw", "sym"])
def test_adjacency_of_the_spec(graph: Graph, kind: str) -> None:
    problem = Problem.of(graph, [(Spec("csbm", "GCN", 2, adjacency=kind), 0)], CPU)
    looped = graph.adjacency.to_dense().double() + torch.eye(graph.num_nodes)
    degree = looped.sum(1)
    left, right = (1 / degree, torch.ones(())) if kind == "rw" else (degree.rsqrt(), degree.rsqrt())
    expected = left[:, None] * looped * right
    torch.testing.assert_close(problem.adjacency.to_dense().double(), expected, rtol=1e-6, atol=1e-7)


def test_mixed_kinds_and_missing_split_raise(raises: Any, graph: Graph) -> None:
    spec = Spec("csbm", "GCN", 2, missing_rate=0.5)
    with raises("mixed-kinds"):
        Problem.of(graph, [(spec, 0), (spec.replace(missing_kind="entries"), 0)], CPU)
    none = torch.zeros(graph.num_nodes, dtype=torch.bool)
    with raises("no-split"):
        Problem.of(graph.replace(train=none), [(spec, 0)], CPU)
    with raises("no-split"):
        Problem.of(graph.replace(validation=none), [(spec, 0)], CPU)


@pytest.mark.parametrize("ties", [False, True])
def test_auc_equals_scikit_learn(ties: bool) -> None:
    labels = torch.randint(2, (200,), generator=torch.Generator().manual_seed(0))
    logits = torch.randn(3, 2, 2, 200, generator=torch.Generator().manual_seed(1))
    logits = logits.round() if ties else logits
    result = aucs(logits, labels)
    margins = (logits[:, :, 1] - logits[:, :, 0]).reshape(6, 200)
    expected = [roc_auc_score(labels.numpy(), margin.numpy()) for margin in margins]
    torch.testing.assert_close(result.flatten(), torch.tensor(expected, dtype=torch.float32))
    logits[0, 0, 1, 7] = torch.nan
    assert aucs(logits, labels)[0, 0] == 0


def test_auc_of_three_classes_raises(raises: Any) -> None:
    with raises("not-together", value="auc"):
        aucs(torch.zeros(3, 10), torch.zeros(10, dtype=torch.int64))
