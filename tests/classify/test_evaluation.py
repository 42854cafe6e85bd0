from math import isnan

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, roc_auc_score

from pairnorm.classify import NodeClassifier, Scores
from pairnorm.classify.evaluation import (
    MIN_TEMPERATURE_NODES,
    comparable_scores,
    expected_average_precision,
    fit_temperature,
    mean_probabilities,
    metric_difference,
    paired_difference,
    rankings,
    weighted_rankings,
)
from pairnorm.data import Graph

LABELS = np.array([0, 0, 0, 0, 1, 1, 2])
PREDICTED = np.array([0, 0, 0, 1, 1, 0, 2])


def draw_rare(seed: int) -> tuple[Graph, NDArray[np.int64]]:
    """Draw 2,000 nodes, 10% of them positive, of which 300 are labeled; and the true classes."""
    random = np.random.default_rng(seed)
    truth = (random.random(2000) < 0.1).astype(np.int64)
    features = random.normal(size=(2000, 8)) + truth[:, None] * [1.2, 0.6, 0, 0, 0, 0, 0, 0]
    labels = np.where(np.arange(2000) < 300, truth, -1)
    return Graph.from_edges(random.integers(0, 2000, (2, 4000)), features, labels), truth


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_cross_fitted_average_precision_is_not_optimistic():
    """Over 40 data sets it errs little, and to the low side: models of folds are fitted to fewer labels."""
    errors, test_errors, covered = [], [], 0
    for seed in range(40):
        graph, truth = draw_rare(seed)
        classifier = NodeClassifier("logistic regression", scale=[1, 10, 100], metric="average-precision")
        stated = classifier.fit(graph).cross_fitted_
        assert stated.count == 300
        true = rankings(truth[300:], classifier.probabilities_[300:])[1]
        low, high = stated.interval_of("average-precision")
        covered += low <= true <= high
        errors.append(stated.average_precision - true)
        test_errors.append(classifier.held_out_.average_precision - true)
    assert -0.06 < np.mean(errors) < 2 * np.std(errors) / 40**0.5
    assert np.mean(errors) < np.mean(test_errors)
    assert np.std(errors) < 0.8 * np.std(test_errors)
    assert covered >= 34


@pytest.mark.parametrize("metric", ["accuracy", "balanced-accuracy", "macro-f1"])
def test_metric_difference_equals_difference_of_scores(metric):
    """With a thousand classes, a matrix per node would take gigabytes."""
    random = np.random.default_rng(0)
    labels = np.arange(2000) % 1000
    models = [
        np.where(random.random(2000) < share, labels, random.integers(0, 1000, 2000)) for share in (0.8, 0.6)
    ]
    probabilities = np.zeros((2000, 1000), dtype=np.float32)
    gain, low, high = metric_difference(metric, labels, *((one, probabilities) for one in models))
    ours, theirs = (Scores.of(labels, one, 1000).value(metric) for one in models)
    assert gain == pytest.approx(ours - theirs)
    assert low < gain < high


def test_scores_equal_hand_computed_values():
    scores = Scores.of(LABELS, PREDICTED, 4)
    assert scores.confusion.tolist() == [[3, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    assert (scores.count, scores.right) == (7, 5)
    assert scores.accuracy == pytest.approx(5 / 7)
    np.testing.assert_allclose(scores.recall, [3 / 4, 1 / 2, 1, np.nan])
    np.testing.assert_allclose(scores.precision, [3 / 4, 1 / 2, 1, np.nan])
    np.testing.assert_allclose(scores.f1, [3 / 4, 1 / 2, 1, np.nan])
    assert scores.value("balanced-accuracy") == pytest.approx((3 / 4 + 1 / 2 + 1) / 3)
    assert scores.value("macro-f1") == pytest.approx((3 / 4 + 1 / 2 + 1) / 3)


def test_absent_predicted_class_lowers_f1_only():
    scores = Scores.of(np.array([0, 0]), np.array([0, 1]), 2)
    assert scores.value("balanced-accuracy") == 0.5
    assert scores.value("macro-f1") == pytest.approx((2 / 3 + 0) / 2)


def test_metrics_of_zero_nodes_are_nan():
    scores = Scores.of(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), 2)
    assert isnan(scores.accuracy)
    assert isnan(scores.value("macro-f1"))
    assert scores.interval == (0.0, 1.0)


def interval(right: int, count: int) -> tuple[float, float]:
    return Scores(np.array([[right, count - right], [0, 0]])).interval


@pytest.mark.parametrize(("right", "count", "low", "high"), [(81, 263, 0.2553, 0.3662), (0, 20, 0.0, 0.1611)])
def test_wilson_interval_equals_published_values(right, count, low, high):
    """Newcombe (1998), Table I: method 3."""
    assert interval(right, count) == pytest.approx((low, high), abs=1e-4)


def test_wilson_interval_has_nominal_coverage():
    draws = np.random.default_rng(0).binomial(50, 0.8, 1000)
    covered = [low <= 0.8 <= high for low, high in (interval(int(right), 50) for right in draws)]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.02)


def test_paired_interval_is_narrower_for_shared_errors():
    ours = np.array([True] * 80 + [False] * 20)
    theirs = np.array([True] * 75 + [False] * 25)
    mean, low, high = paired_difference(ours, theirs)
    assert mean == pytest.approx(0.05)
    assert (low, high) == pytest.approx((5 / 102 - 0.0466, 5 / 102 + 0.0466), abs=1e-3)
    assert 0.8 - interval(80, 100)[0] > mean - low


def test_paired_interval_of_equal_predictions_has_width():
    """Bug: two models that were right on the same 60 nodes had an interval from 0 to 0."""
    for count in (5, 60, 2000):
        right = np.arange(count) % 3 > 0
        assert paired_difference(right, right) == pytest.approx(
            (0, -1.96 / (count + 2) * 1, 1.96 / (count + 2)), rel=1e-3
        )
    assert paired_difference(np.ones(7), np.zeros(7))[2] == 1
    draws = np.random.default_rng(0).multinomial(60, (0.8, 0.09, 0.03, 0.08), 2000)
    pairs = [(np.repeat((1, 1, 0, 0), draw), np.repeat((1, 0, 1, 0), draw)) for draw in draws]
    covered = [low <= 0.06 <= high for _, low, high in (paired_difference(*pair) for pair in pairs)]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.02)


def draw(nodes: int, positives: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels of two classes, the second rare, and probabilities that separate them moderately well."""
    random = np.random.default_rng(seed)
    labels = (random.random(nodes) < positives).astype(np.int64)
    scores = 1 / (1 + np.exp(-(random.normal(size=nodes) + 1.5 * labels)))
    return labels, np.stack([1 - scores, scores], 1)


@pytest.mark.parametrize("digits", [1, 8])
def test_rankings_equal_scikit_learn_with_ties_and_weights(digits):
    labels, probabilities = draw(300, 0.2, 0)
    probabilities = probabilities.round(digits)
    expected = (
        roc_auc_score(labels, probabilities[:, 1]),
        average_precision_score(labels, probabilities[:, 1]),
    )
    assert rankings(labels, probabilities) == pytest.approx(expected)
    weights = np.random.default_rng(1).integers(0, 3, (2, 300)).astype(float)
    auc, precision = weighted_rankings(labels == 1, probabilities[:, 1], weights)
    for row, one, other in zip(weights, auc, precision, strict=True):
        assert one == pytest.approx(roc_auc_score(labels, probabilities[:, 1], sample_weight=row))
        assert other == pytest.approx(average_precision_score(labels, probabilities[:, 1], sample_weight=row))
    one_kind = np.stack([labels == 0, labels == 1]).astype(float)
    assert np.isnan(weighted_rankings(labels == 1, probabilities[:, 1], one_kind)).all()


@pytest.mark.parametrize("metric", ["accuracy", "balanced-accuracy", "macro-f1", "average-precision", "auc"])
@pytest.mark.parametrize("nodes", [60, 400])
def test_metric_intervals_have_nominal_coverage(metric, nodes):
    labels, probabilities = draw(200_000, 0.15, 0)
    truth = Scores.of(labels, (probabilities[:, 1] > 0.6).astype(int), 2, probabilities).value(metric)
    covered = []
    for seed in range(1, 301):
        labels, probabilities = draw(nodes, 0.15, seed)
        scores = Scores.of(labels, (probabilities[:, 1] > 0.6).astype(int), 2, probabilities)
        low, high = scores.interval_of(metric)
        assert 0 <= low <= scores.value(metric) <= high <= 1
        covered.append(low <= truth <= high)
    assert 0.89 <= np.mean(covered) <= 0.995, np.mean(covered)


def test_unavailable_metrics_have_nan_intervals():
    scores = Scores.of(LABELS, PREDICTED, 4)
    assert np.isnan(scores.interval_of("auc")).all()
    assert np.isnan(scores.interval_of("loss")).all()


@pytest.mark.parametrize("metric", ["balanced-accuracy", "macro-f1", "average-precision", "auc"])
def test_metric_difference_uses_the_requested_metric(metric):
    labels, probabilities = draw(500, 0.15, 0)
    ours = (probabilities[:, 1] > 0.6).astype(int), probabilities
    frequent = np.zeros(500, dtype=np.int64), np.tile([0.85, 0.15], (500, 1))
    gain, low, high = metric_difference(metric, labels, ours, frequent)
    assert 0 < low < gain < high
    assert metric_difference(metric, labels, ours, ours) == (0.0, 0.0, 0.0)
    ours_scores, others = (Scores.of(labels, one[0], 2, one[1]).value(metric) for one in (ours, frequent))
    assert gain == pytest.approx(ours_scores - others)


def test_loss_metric_compares_accuracy():
    ours, theirs = (LABELS, np.ones((7, 3))), (PREDICTED, np.ones((7, 3)))
    expected = paired_difference(np.ones(7), LABELS == PREDICTED)
    assert metric_difference("loss", LABELS, ours, theirs) == expected


@pytest.mark.parametrize("true", [1.0, 4.0])
def test_temperature_recovers_true_calibration(true):
    generator = torch.Generator().manual_seed(0)
    honest = torch.randn(4000, 1, 3, generator=generator)
    labels = torch.multinomial(honest[:, 0].softmax(-1), 1, generator=generator).squeeze(1)
    assert fit_temperature(true * honest, labels) == pytest.approx(true, rel=0.15)


def test_temperature_stays_one_if_all_correct_or_few_nodes():
    labels = torch.arange(60) % 3
    logits = torch.nn.functional.one_hot(labels).float()[:, None]
    assert fit_temperature(logits, labels) == 1.0
    assert 1.5 < fit_temperature(20 * logits, labels) < 10  # certain beyond what sixty nodes can show
    wrong = (labels + 1) % 3
    assert fit_temperature(logits, wrong) > 10
    assert fit_temperature(logits[: MIN_TEMPERATURE_NODES - 1], wrong[: MIN_TEMPERATURE_NODES - 1]) == 1.0


def test_mean_probabilities_averages_after_softmax():
    logits = torch.tensor([[[2.0, 0.0], [0.0, 4.0]]])
    probabilities = (
        torch.softmax(torch.tensor([1.0, 0.0]), 0) + torch.softmax(torch.tensor([0.0, 2.0]), 0)
    ) / 2
    torch.testing.assert_close(mean_probabilities(logits, 2.0)[0], probabilities)


def test_non_finite_probabilities_raise(raises):
    for logits, temperature in ((torch.tensor([[[1.0, float("nan")]]]), 1.0), (torch.ones(1, 1, 2), 0.0)):
        with raises("not-finite"):
            mean_probabilities(logits, temperature)


@pytest.mark.parametrize("metric", ["average-precision", "auc"])
@pytest.mark.parametrize(("positives", "most"), [(6, 0.8), (60, 0.98)])
def test_perfect_ranking_of_few_nodes_has_wide_interval(metric, positives, most):
    """The interval is neither a point nor everything, and shrinks with the number of positive nodes."""
    confusion = np.array([[10 * positives, 0], [0, positives]])
    low, high = Scores(confusion, auc=1.0, average_precision=1.0).interval_of(metric)
    assert high == 1
    assert 0.3 < low < most + 0.15 * (metric == "auc")
    worst, best = Scores(confusion, auc=0.0, average_precision=0.0).interval_of(metric)
    assert worst == 0
    assert 0 < best < 0.7


def test_average_precision_ranks_the_rarer_class():
    random = np.random.default_rng(0)
    labels = (np.arange(200) >= 30).astype(np.int64)  # class 0 is rarer
    first = np.clip(0.3 + 0.3 * (labels == 0) + random.normal(0, 0.2, 200), 0, 1)
    scores = Scores.of(labels, labels, 2, np.stack([first, 1 - first], 1))
    assert scores.average_precision == pytest.approx(average_precision_score(labels == 0, first))
    assert scores.average_precision < average_precision_score(labels == 1, 1 - first) - 0.1


def test_expected_average_precision_is_nearly_unbiased():
    """On samples with few positive nodes, its mean is nearer to the value on very many than the usual one."""
    random = np.random.default_rng(0)

    def draw(count: int) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        positive = np.arange(count) < count / 10
        return positive, random.normal(size=count) + 1.6 * positive

    def usual(positive: NDArray[np.bool_], scores: NDArray[np.float64]) -> float:
        return float(average_precision_score(positive, scores))

    positive, scores = draw(200_000)
    expected = usual(positive, scores)
    assert expected_average_precision(positive, scores) == pytest.approx(expected, abs=1e-3)
    samples = [draw(120) for _ in range(500)]
    errors = [np.mean([f(*one) for one in samples]) - expected for f in (usual, expected_average_precision)]
    assert errors[0] > 0.03
    assert abs(errors[1]) < 0.6 * errors[0]


def test_expected_average_precision_of_ties_is_class_share():
    positive = np.arange(20) < 4
    assert expected_average_precision(positive, np.zeros(20)) == pytest.approx(0.2)
    assert expected_average_precision(positive, positive.astype(float)) == 1
    assert expected_average_precision(positive, -positive.astype(float)) == pytest.approx(0.2, abs=0.1)


def test_comparable_scores_remove_shift_and_scale():
    random = np.random.default_rng(0)
    logits = random.normal(size=500)
    scores = [
        comparable_scores(np.stack([1 - p, p], 1))
        for p in (1 / (1 + np.exp(-(shift + factor * logits))) for shift, factor in ((0, 1), (-2, 0.1)))
    ]
    np.testing.assert_allclose(*scores, atol=1e-6)
    assert not comparable_scores(np.full((5, 2), 0.5)).any()
