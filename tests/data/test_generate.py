import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from pairnorm.data import Graph, csbm, row_normalize
from pairnorm.data.masks import Stream
from pairnorm.data.named import _WeightedDraw


@pytest.mark.parametrize("nodes", [100, 1000, 20_000])
@pytest.mark.parametrize(("degree", "homophily"), [(4, 0.9), (8, 0.2), (6, 0.0), (3, 1.0)])
def test_degree_and_homophily_are_exact(nodes: int, degree: float, homophily: float) -> None:
    graph = csbm(nodes, degree=degree, homophily=homophily)
    assert graph.num_edges == round(nodes * degree / 2)
    assert graph.homophily == pytest.approx(homophily, abs=1 / graph.num_edges)
    adjacency, _ = graph.to_scipy()
    assert (adjacency != adjacency.T).nnz == 0


def test_classes_are_equally_large_and_every_one_has_training_nodes() -> None:
    graph = csbm(1000, classes=7)
    sizes = torch.bincount(graph.labels)
    assert sizes.max() - sizes.min() <= 1
    assert torch.bincount(graph.labels[graph.train]).tolist() == [14] * 7


def degrees(graph: Graph) -> torch.Tensor:
    return graph.adjacency.crow_indices().diff().double()


def test_degrees_are_as_uneven_as_the_exponent_says() -> None:
    even, uneven = (degrees(csbm(20_000, exponent=exponent)) for exponent in (math.inf, 2.5))
    # All weights equal: degrees are nearly Poisson, so variance and mean agree.
    assert float(even.var()) == pytest.approx(float(even.mean()), rel=0.05)
    assert uneven.var() > 10 * uneven.mean()


def centroid_accuracy(graph: Graph) -> float:
    x = row_normalize(graph.features).to_dense()
    centroids = torch.stack([x[graph.train & (graph.labels == c)].mean(0) for c in range(graph.num_classes)])
    guess = torch.cdist(x[graph.test], centroids).argmin(1)
    return float((guess == graph.labels[graph.test]).double().mean())


def test_features_depend_on_the_class_more_with_more_signal() -> None:
    accuracies = [centroid_accuracy(csbm(2000, signal=signal)) for signal in (0.0, 0.2, 0.5, 1.0)]
    assert accuracies == sorted(accuracies)
    assert accuracies[0] == pytest.approx(0.2, abs=0.05)
    assert accuracies[-1] > 0.95


def test_at_full_signal_every_word_is_of_the_nodes_class() -> None:
    graph = csbm(500, classes=7, features=100, signal=1.0)
    rows = torch.repeat_interleave(torch.arange(500), graph.features.crow_indices().diff())
    assert torch.equal(graph.features.col_indices() % 7, graph.labels[rows])
    assert torch.unique(graph.features.col_indices()).numel() == 100


def test_a_small_vocabulary_needs_no_other_setting() -> None:
    assert csbm(100, classes=3, features=4).num_features == 4
    default, explicit = (csbm(100, features=40, **words) for words in ({}, {"words": 16}))
    assert torch.equal(default.features.to_dense(), explicit.features.to_dense())


def test_features_are_a_sparse_bag_of_words() -> None:
    graph = csbm(300, features=200, words=12)
    counts = graph.features.crow_indices().diff()
    assert graph.features.layout == torch.sparse_csr
    assert set(graph.features.values().tolist()) == {1.0}
    assert counts.min() >= 1
    assert counts.max() <= 12
    torch.sparse_csr_tensor(
        graph.features.crow_indices(),
        graph.features.col_indices(),
        graph.features.values(),
        size=(300, 200),
        check_invariants=True,
    )


def test_the_seed_decides_everything() -> None:
    first, again, other = csbm(500, seed=3), csbm(500, seed=3), csbm(500, seed=4)
    for part in ("labels", "edge_index", "train"):
        assert torch.equal(getattr(first, part), getattr(again, part))
    assert torch.equal(first.features.to_dense(), again.features.to_dense())
    assert not torch.equal(first.labels, other.labels)
    assert not torch.equal(first.edge_index, other.edge_index)


def test_nodes_are_drawn_by_weight() -> None:
    members, sizes = np.arange(60), np.array([20, 40])
    draw = _WeightedDraw(Stream(0, "test"), members, sizes, 2.5)
    weights = np.diff(draw.ends, prepend=0)
    result = np.bincount(draw.any(400_000), minlength=60) / 400_000
    np.testing.assert_allclose(result, weights / 2, atol=5e-3)
    second = draw.of(np.ones(200_000, dtype=np.int64))
    assert second.min() >= 20
    np.testing.assert_allclose(np.bincount(second, minlength=60)[20:] / 200_000, weights[20:], atol=5e-3)


@pytest.mark.parametrize(
    ("options", "code", "value"),
    [
        ({"nodes": 99}, "out-of-range", 99),
        ({"nodes": 10_000_001}, "out-of-range", 10000001),
        ({"classes": 1}, "out-of-range", 1),
        ({"nodes": 100, "classes": 50}, "out-of-range", 50),
        ({"homophily": 1.5}, "out-of-range", 1.5),
        ({"nodes": 100, "degree": 60}, "out-of-range", 60),
        ({"features": 3}, "out-of-range", 3),
        ({"words": 0}, "out-of-range", 0),
        ({"signal": -1}, "out-of-range", -1),
        ({"exponent": 2}, "out-of-range", 2),
    ],
)
def test_invalid_arguments_of_csbm_are_refused(
    options: dict[str, float], code: str, value: object, raises: Callable
) -> None:
    with raises(code, value=value):
        csbm(**options)  # type: ignore[arg-type]
