import re
from pathlib import Path

import pytest
import torch

from pairnorm.classify import ClassifierWarning, NodeClassifier, candidates
from pairnorm.classify.findings import Findings
from pairnorm.classify.report import write_report
from pairnorm.data import Graph


@pytest.fixture(scope="module")
def findings(small: Graph) -> Findings:
    graph = small.replace(class_names=("a|b", "c"), name="shop")
    return Findings.of(NodeClassifier(depth=(1, 4)).fit(graph), graph)


def test_every_table_is_a_table_and_every_figure_is_there(findings: Findings, tmp_path: Path) -> None:
    write_report(findings, tmp_path, ["mind the gap."])
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert text.startswith("# Labels for shop\n\n**")
    assert "- mind the gap." in text
    for block in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1, block
    figures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", text)
    assert sorted(figures) == ["comparison.png", "confusion.png", "depth.png", "smoothing.png"]
    assert all((tmp_path / figure).stat().st_size > 5000 for figure in figures)


def test_the_numbers_are_those_of_the_findings(findings: Findings, tmp_path: Path) -> None:
    write_report(findings, tmp_path)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    scores = findings.classifier.held_out_
    assert f"| all held-out nodes | 174 | {100 * scores.accuracy:.1f}% |" in text
    assert f"| a\\|b | {scores.confusion[0].sum()} | {100 * scores.recall[0]:.1f}% |" in text
    assert "| nodes | 300, 1,500 edges |" in text
    assert "40 train, 86 validation, 174 test" in text


def test_features_too_large_to_be_dense_are_not_made_so_for_the_report(
    small: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidates, "LARGEST_STATE", 1000)
    monkeypatch.setattr(torch.Tensor, "to_dense", lambda self: pytest.fail("this takes too much memory"))
    classifier = NodeClassifier("GCN", 2, scaling="rows", epochs=5, seeds=1).fit(small)
    with pytest.warns(ClassifierWarning, match="logistic regression and what depth does .* are left out"):
        found = Findings.of(classifier, small)
    assert [each.name for each in found.baselines] == [
        "most frequent class",
        "label propagation",
        "GCN, 2 layers",
    ]
    write_report(found, tmp_path)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "What depth does to the features" not in text
    assert not (tmp_path / "smoothing.png").exists()


def test_without_held_out_nodes_nothing_is_said_about_accuracy(small: Graph, tmp_path: Path) -> None:
    chosen = torch.zeros_like(small.train)
    chosen[[int((small.labels == label).nonzero()[0]) for label in (0, 1)]] = True
    nobody = torch.zeros_like(chosen)
    labels = torch.where(chosen, small.labels, -1)
    graph = small.replace(labels=labels, train=nobody, validation=nobody, test=nobody)
    with pytest.warns(ClassifierWarning):
        classifier = NodeClassifier(depth=2, norm="PN").fit(graph)
    write_report(Findings.of(classifier, graph), tmp_path)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "There are no held-out nodes" in text
    assert "Against simpler methods" not in text
    assert not (tmp_path / "confusion.png").exists()
