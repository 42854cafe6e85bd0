from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pairnorm.data import Graph, Missing, features_after
from pairnorm.data.patterns import _quantiles, missing_by_class, missing_by_degree, missing_by_value

Draw = Callable[..., Missing]
DRAWS = [missing_by_class, missing_by_degree, missing_by_value]


def pairs_and_rings(half: int = 400) -> Graph:
    """Pairs and rings of four: half the nodes have one neighbour, half have two."""
    pairs = [(i, i + 1) for i in range(0, half, 2)]
    rings = [(half + i, half + i // 4 * 4 + (i + 1) % 4) for i in range(half)]
    labels = torch.arange(2 * half) % 2
    features = torch.stack([labels.float(), torch.ones(2 * half)], 1)
    none = torch.zeros(2 * half, dtype=torch.bool)
    return Graph.from_edges(
        torch.tensor(pairs + rings).T, features, labels, train=none, validation=none, test=none
    )


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("rate", [0.0, 0.3, 0.75, 1.0])
def test_the_rate_is_kept_over_all(cora: Graph, draw: Draw, rate: float) -> None:
    missing = draw(cora, rate, trials=3)
    among = 49216 if draw is missing_by_value else 2708 - 140
    assert missing.mask.sum(0).tolist() == [round(rate * among)] * 3
    if draw is not missing_by_value:
        assert not missing.mask[cora.train].any()


@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 50), st.sampled_from(DRAWS), st.floats(0.1, 30))
def test_a_lower_rate_misses_a_part_of_what_a_higher_one_does(
    first: float, second: float, seed: int, draw: Draw, ratio: float
) -> None:
    graph = pairs_and_rings(8)
    low, high = (draw(graph, rate, seed=seed, ratio=ratio).mask for rate in sorted((first, second)))
    assert not (low & ~high).any()


@pytest.mark.parametrize("draw", DRAWS)
def test_a_trial_depends_on_its_own_seed_alone(cora: Graph, draw: Draw) -> None:
    together = draw(cora, 0.4, trials=3, seed=10).mask
    for trial in range(3):
        assert torch.equal(together[:, trial], draw(cora, 0.4, seed=10 + trial).mask[:, 0])
    assert len({tuple(mask) for mask in together.T.tolist()}) == 3


@pytest.mark.parametrize(("ratio", "expected"), [(4.0, 2.0), (1.0, 1.0), (0.25, 0.5)])
def test_nodes_of_low_degree_are_drawn_more_often(ratio: float, expected: float) -> None:
    # The quantiles of degrees 2 and 1 are 1/4 and 3/4: the root of the ratio lies between them.
    mask = missing_by_degree(pairs_and_rings(), 0.02, trials=500, ratio=ratio).mask
    assert mask[:400].sum() / mask[400:].sum() == pytest.approx(expected, rel=0.08)


def test_the_last_class_is_drawn_ratio_times_as_often_and_not_always_the_same() -> None:
    graph = pairs_and_rings()
    mask = missing_by_class(graph, 0.01, trials=600, ratio=6).mask
    counts = torch.stack([mask[graph.labels == label].sum(0) for label in (0, 1)]).double()
    # With 8 of 800 missing in a trial the class of more weight has nearly always more of them.
    assert counts.max(0).values.sum() / counts.min(0).values.sum() == pytest.approx(6, rel=0.1)
    assert counts[0].sum() / counts[1].sum() == pytest.approx(1, rel=0.15)


def test_unknown_classes_have_the_weight_in_the_middle() -> None:
    graph = pairs_and_rings()
    unknown = torch.arange(800) < 400
    graph = graph.replace(labels=graph.labels.masked_fill(unknown, -1))
    mask = missing_by_class(graph, 0.02, trials=600, ratio=4).mask
    # The mean of 1 and 4 is 2.5, the middle between them 2.
    assert mask[400:].sum() / mask[:400].sum() == pytest.approx(1.25, rel=0.08)


@pytest.mark.parametrize("sparse", [False, True])
def test_large_values_are_drawn_more_often(sparse: bool) -> None:
    values = torch.arange(1.0, 1001.0).reshape(500, 2)[
        torch.randperm(500, generator=torch.Generator().manual_seed(0))
    ]
    values[:, 1] *= -1e6  # the size of another column does not matter
    graph = Graph.from_edges([[0], [1]], values.to_sparse_csr() if sparse else values, num_nodes=500)
    mask = missing_by_value(graph, 0.02, trials=300, ratio=9).mask.sum(1).view(500, 2).double()
    for column in (0, 1):
        order = values[:, column].argsort()
        low, high = mask[order[:50], column].mean(), mask[order[-50:], column].mean()
        assert high / low == pytest.approx(9**0.9, rel=0.2)
    assert mask[:, 0].sum() / mask[:, 1].sum() == pytest.approx(1, rel=0.1)


def test_masks_erase_features(cora: Graph) -> None:
    for draw in DRAWS:
        missing = draw(cora, 0.5)
        kept = int(features_after(cora, missing).keep.sum())
        assert 0 < kept < 49216


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 2)), max_size=12))
def test_quantiles_counts_who_is_below(pairs: list[tuple[int, int]]) -> None:
    groups, values = (np.array([pair[i] for pair in pairs], dtype=np.int64) for i in (0, 1))
    expected = []
    for group, value in pairs:
        rivals = [other for rival, other in pairs if rival == group]
        below, equal = sum(other < value for other in rivals), sum(other == value for other in rivals)
        expected.append((below + equal / 2) / len(rivals))
    assert _quantiles(values, groups).tolist() == pytest.approx(expected)


def test_masks_are_pinned(cora: Graph) -> None:
    # The same seed must give the same mask on every machine.
    drawn = [draw(cora, 0.002).mask[:, 0].nonzero().flatten().tolist()[:5] for draw in DRAWS]
    assert drawn == [[409, 679, 1709, 1909, 2010], [518, 572, 1444, 1861, 2562], [593, 615, 968, 1304, 1527]]


@pytest.mark.parametrize("draw", DRAWS)
def test_what_is_no_rate_is_refused(small: Graph, draw: Draw, raises) -> None:
    for rate in (-0.1, 1.1, float("nan")):
        with raises("not-a-number"):
            draw(small, rate)
    with raises("not-a-number", value=0):
        draw(small, 0.5, ratio=0)
    with raises("not-a-whole-number", value=0):
        draw(small, 0.5, trials=0)
