from collections.abc import Iterator

import pytest
import torch

from pairnorm.classify.candidates import Candidate
from pairnorm.classify.regression import MIN_PARALLEL_SIZE, PATIENCE, SearchLimits, subsample


def of(losses: Iterator[float]) -> Iterator[Candidate]:
    return (Candidate("SGC", validation_loss=loss) for loss in losses)


@pytest.mark.parametrize(
    ("numbers", "metric", "last"),
    [
        (MIN_PARALLEL_SIZE, "loss", 1.1),
        (MIN_PARALLEL_SIZE, "accuracy", 3.0),
        (MIN_PARALLEL_SIZE - 1, "loss", 3.0),
    ],
)
def test_expensive_scales_that_overfit_are_skipped(numbers, metric, last):
    losses = iter([1.0, 0.5, 0.9, 1.1, 3.0])
    *_, result = SearchLimits(True, numbers, metric).scales(of(losses))
    assert result.validation_loss == last
    assert next(losses, None) == (3.0 if last == 1.1 else None)  # what is left out is not even solved


@pytest.mark.parametrize(
    ("many_nodes", "numbers", "ends"), [(True, 1, True), (False, MIN_PARALLEL_SIZE, True), (False, 1, False)]
)
def test_depths_end_after_patience_without_gain(many_nodes, numbers, ends):
    losses, ticks = [3.0, 2.0, 2.0, 2.5, 1.0, 1.5, 1.0, 4.0, 0.1], []
    results = (of(iter([9.0, loss])) for loss in losses)
    by_depth = list(SearchLimits(many_nodes, numbers).depths(range(1, 10), results, ticks.append, "SGC"))
    evaluated = losses[: 5 + PATIENCE] if ends else losses
    assert [depth for depth, _ in by_depth] == [*range(1, len(evaluated) + 1)]
    assert [[one.validation_loss for one in sample] for _, sample in by_depth] == [
        [9.0, loss] for loss in evaluated
    ]
    assert ticks[-1] == ("SGC, depth 9: left out" if ends else "SGC, depth 9")
    assert len(ticks) == len(losses)


def test_subsample_keeps_every_class():
    labels = torch.tensor([1, 2] + [0] * 5000 + [1] * 4)
    sample = subsample(labels, 100)
    assert len(sample) <= 100 + 3
    assert labels[sample].unique().tolist() == [0, 1, 2]
    assert torch.equal(sample, sample.sort().values)
    others = sample[labels[sample] == 0]
    assert int(others.diff().max()) <= 52  # evenly, not the first hundred
    assert torch.equal(subsample(labels, 10_000), torch.arange(len(labels)))
