from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pairnorm.data import (
    Graph,
    Missing,
    features_after,
    given_missing,
    missing_entries,
    missing_nodes,
    missing_vectors,
)
from pairnorm.data.features import stored_rows
from pairnorm.data.masks import _quantiles, missing_by_class, missing_by_degree, missing_by_value


def brute_force(features: torch.Tensor) -> torch.Tensor:
    rows = [row / row.abs().sum() if row.abs().sum() > 0 else row for row in features.double()]
    return torch.stack(rows)


@pytest.fixture(params=["dense", "sparse"])
def graph(small: Graph, request: pytest.FixtureRequest) -> Graph:
    return small if request.param == "dense" else small.replace(features=small.features.to_sparse_csr())


def test_features_as_they_are(graph: Graph, raises: Callable) -> None:
    missing = missing_vectors(graph, 0.5, trials=2)
    result = features_after(graph, missing, scaling="none").dense()
    torch.testing.assert_close(result, graph.features.to_dense()[:, None] * ~missing.mask[..., None])
    with raises("unknown-choice", value="columns"):
        features_after(graph, scaling="columns")


def test_rows_are_normalized_before_they_are_erased(graph: Graph) -> None:
    missing = missing_vectors(graph, 0.67, trials=4)
    result = features_after(graph, missing)
    expected = brute_force(graph.features.to_dense())[:, None] * ~missing.mask[..., None]
    torch.testing.assert_close(result.dense().double(), expected)
    for trial in range(4):
        seen = result.trial(trial)
        assert seen.layout == graph.features.layout
        torch.testing.assert_close(seen.to_dense().double(), expected[:, trial])


def test_remaining_entries_of_a_row_keep_their_values(graph: Graph) -> None:
    missing = missing_entries(graph, 0.5, trials=3)
    result = features_after(graph, missing)
    whole = brute_force(graph.features.to_dense())[:, None].expand(-1, 3, -1)
    dense = result.dense().double()
    assert ((dense == 0) | torch.isclose(dense, whole)).all()
    stored = 8 if graph.features.layout == torch.sparse_csr else 15
    assert missing.mask.sum(0).tolist() == [round(0.5 * stored)] * 3
    assert result.trials == 3


def test_sparse_features_share_one_matrix_and_mask_its_entries(cora: Graph) -> None:
    missing = missing_vectors(cora, 1.0, trials=2)
    result = features_after(cora, missing)
    assert result.keep.shape == (cora.features.values().numel(), 2)
    assert torch.equal(result.keep[:, 0], cora.train[stored_rows(cora.features)])


def test_no_mask_gives_one_complete_trial(graph: Graph) -> None:
    result = features_after(graph)
    torch.testing.assert_close(result.dense()[:, 0].double(), brute_force(graph.features.to_dense()))


def test_the_graph_is_not_edited(graph: Graph) -> None:
    before = graph.features.to_dense().clone()
    features_after(graph, missing_vectors(graph, 1.0)).dense()
    assert torch.equal(graph.features.to_dense(), before)


def test_a_mask_of_another_graph_is_refused(graph: Graph, raises: Callable) -> None:
    other = Missing("vectors", 0.5, 0, torch.zeros(7, 1, dtype=torch.bool))
    with raises("wrong-shape", value=7):
        features_after(graph, other)


RATES = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]


@pytest.mark.parametrize("rate", RATES)
def test_exactly_the_rate_of_nodes_outside_train_lose_their_vectors(cora: Graph, rate: float) -> None:
    missing = missing_vectors(cora, rate, trials=3)
    assert missing.mask.sum(0).tolist() == [round(rate * (2708 - 140))] * 3
    assert not missing.mask[cora.train].any()


def test_masks_are_pinned(cora: Graph) -> None:
    # The same seed must give the same mask on every machine, under every numpy.
    assert missing_vectors(cora, 0.003).mask[:, 0].nonzero().flatten().tolist() == [
        623,
        846,
        900,
        1190,
        1713,
        2349,
        2524,
        2601,
    ]


def test_masks_are_independent_of_the_random_split(cora: Graph) -> None:
    graph = cora.with_split("random", seed=0)
    mask = missing_vectors(graph, 0.5, seed=0).mask[:, 0]
    share = mask[graph.validation].double().mean()
    assert abs(share - 0.5) < 0.1


def test_nodes_are_drawn_from_all(cora: Graph) -> None:
    missing = missing_nodes(cora, 0.5, trials=2)
    assert missing.mask.sum(0).tolist() == [1354, 1354]
    assert missing.mask[cora.train].any()


def test_entries_are_the_stored_ones_of_sparse_features(cora: Graph) -> None:
    missing = missing_entries(cora, 0.25)
    assert missing.mask.shape == (49216, 1)
    assert int(missing.mask.sum()) == 12304


def test_given_missing_is_the_mask_of_the_data(small: Graph) -> None:
    lacking = torch.tensor([False, True, False, False, True])
    missing = given_missing(small.replace(missing=lacking), trials=3)
    assert torch.equal(missing.mask, lacking[:, None].expand(-1, 3))
    assert missing.rate == 0.4
    assert missing.seed is None


def test_repr_states_kind_rate_and_counts(cora: Graph) -> None:
    assert repr(missing_vectors(cora, 0.6, trials=5, seed=3)) == (
        "Missing(kind='vectors', rate=0.6, seed=3, trials=5: 1,541 of 2,708 nodes)"
    )


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_a_rate_is_a_fraction(small: Graph, rate: float, raises: Callable) -> None:
    with raises("not-a-number"):
        missing_vectors(small, rate)


Draw = Callable[..., Missing]
DRAWS = [missing_by_class, missing_by_degree, missing_by_value]
ALL_DRAWS = [missing_vectors, missing_nodes, missing_entries, *DRAWS]


def pairs_and_rings(half: int = 400) -> Graph:
    """Pairs and rings of four: half the nodes have one neighbor, half have two."""
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
def test_the_overall_rate_is_exact(cora: Graph, draw: Draw, rate: float) -> None:
    missing = draw(cora, rate, trials=3)
    among = 49216 if draw is missing_by_value else 2708 - 140
    assert missing.mask.sum(0).tolist() == [round(rate * among)] * 3
    if draw is not missing_by_value:
        assert not missing.mask[cora.train].any()


@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 50), st.sampled_from(ALL_DRAWS), st.floats(0.1, 30))
def test_masks_of_lower_rates_are_subsets(
    first: float, second: float, seed: int, draw: Draw, ratio: float
) -> None:
    graph, options = pairs_and_rings(8), {"ratio": ratio} if draw in DRAWS else {}
    low, high = (draw(graph, rate, seed=seed, **options).mask for rate in sorted((first, second)))
    assert not (low & ~high).any()


@pytest.mark.parametrize("draw", ALL_DRAWS)
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


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 2)), max_size=12))
def test_quantiles_are_shares_of_smaller_values(pairs: list[tuple[int, int]]) -> None:
    groups, values = (np.array([pair[i] for pair in pairs], dtype=np.int64) for i in (0, 1))
    expected = []
    for group, value in pairs:
        peers = [other for label, other in pairs if label == group]
        below, equal = sum(other < value for other in peers), sum(other == value for other in peers)
        expected.append((below + equal / 2) / len(peers))
    assert _quantiles(values, groups).tolist() == pytest.approx(expected)


def test_masks_by_weight_are_pinned(cora: Graph) -> None:
    # The same seed must give the same mask on every machine.
    drawn = [draw(cora, 0.002).mask[:, 0].nonzero().flatten().tolist()[:5] for draw in DRAWS]
    assert drawn == [[409, 679, 1709, 1909, 2010], [518, 572, 1444, 1861, 2562], [593, 615, 968, 1304, 1527]]


@pytest.mark.parametrize("draw", DRAWS)
def test_invalid_rates_and_ratios_are_refused(small: Graph, draw: Draw, raises) -> None:
    for rate in (-0.1, 1.1, float("nan")):
        with raises("not-a-number"):
            draw(small, rate)
    with raises("not-a-number", value=0):
        draw(small, 0.5, ratio=0)
    with raises("not-a-whole-number", value=0):
        draw(small, 0.5, trials=0)
