from dataclasses import replace
from math import isnan

import numpy as np
import pytest
import torch

from pairnorm.classify import NodeClassifier, Scaling, Scores
from pairnorm.classify.candidates import Task
from pairnorm.classify.evaluation import (
    FEWEST,
    Baseline,
    baselines,
    fit_temperature,
    mean_probabilities,
    paired_difference,
    wilson_interval,
)
from pairnorm.classify.findings import STEPS, Findings
from pairnorm.data import Graph

LABELS = np.array([0, 0, 0, 0, 1, 1, 2])
PREDICTED = np.array([0, 0, 0, 1, 1, 0, 2])


def test_numbers_counted_by_hand() -> None:
    scores = Scores.of(LABELS, PREDICTED, 4)
    assert scores.confusion.tolist() == [[3, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    assert (scores.count, scores.right) == (7, 5)
    assert scores.accuracy == pytest.approx(5 / 7)
    np.testing.assert_allclose(scores.recall, [3 / 4, 1 / 2, 1, np.nan])
    np.testing.assert_allclose(scores.precision, [3 / 4, 1 / 2, 1, np.nan])
    np.testing.assert_allclose(scores.f1, [3 / 4, 1 / 2, 1, np.nan])
    assert scores.balanced_accuracy == pytest.approx((3 / 4 + 1 / 2 + 1) / 3)
    assert scores.macro_f1 == pytest.approx((3 / 4 + 1 / 2 + 1) / 3)


def test_a_class_that_is_predicted_but_not_there_counts_against_f1_only() -> None:
    scores = Scores.of(np.array([0, 0]), np.array([0, 1]), 2)
    assert scores.balanced_accuracy == 0.5
    assert scores.macro_f1 == pytest.approx((2 / 3 + 0) / 2)


def test_nobody_judged_is_not_a_number() -> None:
    scores = Scores.of(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), 2)
    assert isnan(scores.accuracy)
    assert isnan(scores.macro_f1)
    assert scores.interval == (0.0, 1.0)


@pytest.mark.parametrize(("right", "count", "low", "high"), [(81, 263, 0.2553, 0.3662), (0, 20, 0.0, 0.1611)])
def test_wilsons_interval_as_published(right: int, count: int, low: float, high: float) -> None:
    """Newcombe (1998), Table I: method 3."""
    assert wilson_interval(right, count) == pytest.approx((low, high), abs=1e-4)


def test_wilsons_interval_covers_the_truth_nineteen_times_in_twenty() -> None:
    draws = np.random.default_rng(0).binomial(50, 0.8, 4000)
    covered = [low <= 0.8 <= high for low, high in (wilson_interval(int(right), 50) for right in draws)]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.02)


def test_a_paired_difference_is_narrower_than_two_intervals_when_errors_are_shared() -> None:
    ours = np.array([True] * 80 + [False] * 20)
    theirs = np.array([True] * 75 + [False] * 25)
    mean, low, high = paired_difference(ours, theirs)
    assert mean == pytest.approx(0.05)
    assert low == pytest.approx(0.05 - 1.96 * np.sqrt(0.05 * 0.95 / 100), abs=1e-4)
    assert high - mean == pytest.approx(mean - low)
    assert paired_difference(ours, ours) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("true", [1.0, 4.0])
def test_an_overconfident_model_is_cooled_to_the_truth(true: float) -> None:
    generator = torch.Generator().manual_seed(0)
    honest = torch.randn(4000, 1, 3, generator=generator)
    labels = torch.multinomial(honest[:, 0].softmax(-1), 1, generator=generator).squeeze(1)
    assert fit_temperature(true * honest, labels) == pytest.approx(true, rel=0.15)


def test_a_model_that_is_always_right_and_one_judged_by_few_stay_as_they_are() -> None:
    labels = torch.arange(60) % 3
    logits = torch.nn.functional.one_hot(labels).float()[:, None]
    assert fit_temperature(logits, labels) == 1.0
    assert 1.5 < fit_temperature(20 * logits, labels) < 10  # certain beyond what sixty nodes can show
    wrong = (labels + 1) % 3
    assert fit_temperature(logits, wrong) > 10
    assert fit_temperature(logits[: FEWEST - 1], wrong[: FEWEST - 1]) == 1.0


def test_trials_are_averaged_as_probabilities() -> None:
    logits = torch.tensor([[[2.0, 0.0], [0.0, 4.0]]])
    chances = (torch.softmax(torch.tensor([1.0, 0.0]), 0) + torch.softmax(torch.tensor([0.0, 2.0]), 0)) / 2
    torch.testing.assert_close(mean_probabilities(logits, 2.0)[0], chances)


def run(graph: Graph) -> dict[str, np.ndarray]:
    task = Task(graph, Scaling.of(graph)(graph), "rw", torch.device("cpu"))
    return {found.name: found.predicted for found in baselines(task)}


@pytest.fixture(scope="module")
def found(small: Graph) -> dict[str, np.ndarray]:
    return run(small)


def share(graph: Graph, predicted: np.ndarray) -> float:
    test = graph.test.numpy()
    return float((predicted == graph.labels.numpy())[test].mean())


def test_all_learn_something_on_an_easy_graph(small: Graph, found: dict[str, np.ndarray]) -> None:
    assert list(found) == ["most frequent class", "label propagation", "logistic regression", "GCN, 2 layers"]
    for name in list(found)[1:]:
        assert share(small, found[name]) > 0.75, name


def test_label_propagation_sees_no_features(small: Graph, found: dict[str, np.ndarray]) -> None:
    noise = small.replace(features=torch.rand(300, 500, generator=torch.Generator().manual_seed(0)))
    assert np.array_equal(run(noise)["label propagation"], found["label propagation"])


def test_label_propagation_solves_its_fixed_point(small: Graph, found: dict[str, np.ndarray]) -> None:
    """F = (1 - α) (I - α S)⁻¹ Y, for the α that does best on the validation nodes."""
    adjacency = small.adjacency.to_dense().double() + torch.eye(300)
    degree = adjacency.sum(1)
    matrix = adjacency / (degree[:, None] * degree).sqrt()
    given = torch.nn.functional.one_hot(small.labels, 2).double() * small.train[:, None]
    exact = [
        torch.linalg.solve(torch.eye(300) - alpha * matrix, given).argmax(1) for alpha in (0.5, 0.9, 0.99)
    ]
    agreement = [(one.numpy() == found["label propagation"]).mean() for one in exact]
    assert max(agreement) > 0.97


def test_logistic_regression_sees_no_edges(small: Graph, found: dict[str, np.ndarray]) -> None:
    alone = Graph.from_edges([[0], [1]], small.features, small.labels, **small.split._asdict())
    assert np.array_equal(run(alone)["logistic regression"], found["logistic regression"])


def test_the_most_frequent_class_is_that_of_the_training_nodes(small: Graph) -> None:
    ones = (small.labels == 1) & small.train
    first = small.train & ~ones & (torch.cumsum((small.train & ~ones).int(), 0) <= 5)
    assert set(run(small.replace(train=ones | first))["most frequent class"]) == {1}


def test_without_validation_there_is_no_gcn(small: Graph) -> None:
    assert "GCN, 2 layers" not in run(small.replace(validation=torch.zeros_like(small.validation)))


@pytest.fixture(scope="module")
def findings(small: Graph) -> Findings:
    missing = torch.arange(small.num_nodes) % 3 == 0
    graph = small.replace(features=small.features.to_dense() * ~missing[:, None], missing=missing)
    told: list[str] = []
    found = Findings.of(NodeClassifier(depth=(1, 4)).fit(graph), graph, told.append)
    assert len(told) == STEPS
    return found


def test_groups_with_and_without_features_make_up_the_held_out_nodes(findings: Findings) -> None:
    groups = findings.groups()
    assert list(groups) == ["all held-out nodes", "with features", "without features"]
    everyone, *parts = (scores.confusion for scores in groups.values())
    assert np.array_equal(sum(parts), everyone)
    assert groups["all held-out nodes"].count == 174
    test = findings.test & findings.graph.missing_vectors.numpy()
    assert groups["without features"].count == test.sum()


def test_without_missing_vectors_there_is_one_group(findings: Findings) -> None:
    nobody = torch.zeros_like(findings.graph.train)
    assert list(replace(findings, graph=findings.graph.replace(missing=nobody)).groups()) == [
        "all held-out nodes"
    ]


def test_rivals_start_with_the_model_itself(findings: Findings) -> None:
    rivals = findings.rivals()
    assert next(iter(rivals)) == findings.classifier.best_.name
    assert rivals[findings.classifier.best_.name].accuracy == findings.classifier.held_out_.accuracy
    assert len(rivals) == 5


def test_who_is_sure_is_mostly_right(findings: Findings) -> None:
    sure = findings.test & (findings.probabilities.max(1) >= 0.9)
    count, right = findings.sureness()
    assert count == sure.sum() > 20
    assert right == (findings.predicted == findings.graph.labels.numpy())[sure].mean()
    assert right > 0.8


def rival(findings: Findings, wrong: float) -> Findings:
    """The findings with one baseline, which is wrong on a share of the test nodes."""
    labels = findings.graph.labels.numpy().copy()
    places = np.flatnonzero(findings.test)
    labels[places[: round(wrong * len(places))]] ^= 1
    return replace(findings, baselines=[Baseline("a guess", labels)])


@pytest.mark.parametrize(
    ("wrong", "opening"), [(0.9, "**It earns its keep.**"), (0.0, "**A simpler method does better.**")]
)
def test_the_verdict_follows_the_interval(findings: Findings, wrong: float, opening: str) -> None:
    verdict = rival(findings, wrong).verdict()
    assert verdict.startswith(opening)
    assert "a guess" in verdict
    assert f"{100 * findings.classifier.held_out_.accuracy:.1f}%" in verdict


def test_a_draw_is_called_a_draw(findings: Findings) -> None:
    same = replace(findings, baselines=[Baseline("a twin", findings.predicted)])
    assert same.verdict().startswith("**No clear gain.**")
    assert "The difference of +0.0 points" in same.verdict()


def test_too_little_held_out_is_said(findings: Findings) -> None:
    few = torch.zeros_like(findings.graph.test)
    few[findings.graph.test.nonzero()[:5].squeeze(1)] = True
    assert "is right on " in (found := replace(findings, graph=findings.graph.replace(test=few)).verdict())
    assert found.startswith("**Too little is held out to tell.**")
    nobody = findings.graph.replace(test=torch.zeros_like(few))
    assert "the model was chosen by them: expect less" in replace(findings, graph=nobody).verdict()
