from dataclasses import replace

import numpy as np
import pytest
import torch

from pairnorm.classify import NodeClassifier
from pairnorm.classify.baselines import Baseline
from pairnorm.classify.findings import STEPS, Findings
from pairnorm.data import Graph


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
