import re
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch

from helpers import contents
from pairnorm.base.errors import PairNormError
from pairnorm.classify import ClassifierWarning, NodeClassifier, scaling
from pairnorm.classify.findings import Findings
from pairnorm.classify.persistence import check_folder, result_folder
from pairnorm.classify.predictions import prediction_table, write_table
from pairnorm.data import Graph
from pairnorm.report.fit_report import fit_page, write_document

pytestmark = pytest.mark.usefixtures("brief_baselines")


@pytest.fixture(scope="module")
def findings(small: Graph) -> Findings:
    graph = small.replace(class_names=("a|b", "c"), name="shop")
    return Findings.of(NodeClassifier(depth=(1, 4), time_limit=0).fit(graph), graph)


def written(findings: Findings, folder: Path) -> str:
    write_document(fit_page(findings, ["mind the gap."]), folder)
    return (folder / "report.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def text(findings: Findings, folder: Path) -> str:
    return written(findings, folder)


def test_markdown_tables_and_figures_are_valid(text, folder):
    assert text.startswith("# Labels for shop\n\n**")
    assert "\nMind the gap.\n" in text
    for block in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1, block
    figures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", text)
    assert sorted(figures) == ["comparison.png", "confusion.png", "depth.png", "smoothing.png"]
    assert all((folder / figure).stat().st_size > 5000 for figure in figures)


def test_report_numbers_equal_findings(findings, text):
    scores = findings.classifier.held_out_
    assert f"| all held-out nodes | 174 | {100 * scores.accuracy:.1f}% (" in text
    assert f"| a\\|b | {scores.confusion[0].sum()} | {100 * scores.recall[0]:.1f}% |" in text
    assert "| nodes | 300 |" in text
    assert "| split | train 40, validation 86, test 174 |" in text


def test_report_states_how_methods_were_tuned(findings, text):
    assert (
        f"{findings.classifier.best_.name}: {len(findings.classifier.search_)}; label propagation: 3 (α"
        in text
    )
    assert "training and validation nodes" not in text  # the split was given
    assert "The GCN trains on the 40 training nodes alone" in text
    for baseline in findings.baselines[1:]:
        assert f"{baseline.name}: {baseline.num_candidates} ({baseline.best.setting})" in text


def test_report_counts_training_nodes_of_folds(small, tmp_path):
    """Bug: all methods were said to be trained on the training nodes, whose number the page shows."""
    no_nodes = torch.zeros_like(small.train)
    labels = torch.where(torch.arange(small.num_nodes) < 150, small.labels, -1)
    graph = small.replace(labels=labels, train=no_nodes, validation=no_nodes, test=no_nodes)
    result = Findings.of(NodeClassifier("SGC", 1, norm="PN", scale=10).fit(graph), graph)
    task, split = result.classifier.task_, result.graph.split
    count = int(task.with_all_folds.graph.train.sum())
    assert len(task.fold_masks) > 1
    assert count > int(split.train.sum())
    text = written(result, tmp_path)
    assert f"were then trained on all {count} training and validation nodes." in text
    assert f"The GCN trains on the {int(split.train.sum())} training nodes alone" in text


def test_report_does_not_densify_large_features(small, tmp_path, monkeypatch):
    monkeypatch.setattr(scaling, "MAX_DENSE_BYTES", 1000)
    monkeypatch.setattr(torch.Tensor, "to_dense", lambda self: pytest.fail("this takes too much memory"))
    classifier = NodeClassifier("GCN", 2, scaling="rows", epochs=5, seeds=1).fit(small)
    with pytest.warns(ClassifierWarning, match="logistic regression and the measures .* are left out"):
        result = Findings.of(classifier, small)
    assert [each.name for each in result.baselines] == [
        "most frequent class",
        "label propagation",
        "GCN, 2 layers",
    ]
    text = written(result, tmp_path)
    assert "Oversmoothing" not in text
    assert not (tmp_path / "smoothing.png").exists()


def test_no_held_out_nodes_give_no_accuracy(small, tmp_path):
    chosen = torch.zeros_like(small.train)
    chosen[[int((small.labels == label).nonzero()[0]) for label in (0, 1)]] = True
    no_nodes = torch.zeros_like(chosen)
    labels = torch.where(chosen, small.labels, -1)
    graph = small.replace(labels=labels, train=no_nodes, validation=no_nodes, test=no_nodes)
    with pytest.warns(ClassifierWarning):
        classifier = NodeClassifier(depth=2, norm="PN").fit(graph)
    text = written(Findings.of(classifier, graph), tmp_path)
    assert "There are no held-out nodes" in text
    assert "Comparison with baselines" not in text
    assert not (tmp_path / "confusion.png").exists()


def test_result_folder_appears_atomically(tmp_path):
    out = tmp_path / "deep" / "run"
    with result_folder(out) as folder:
        (folder / "model.json").write_text("new")
        assert not out.exists()
    assert contents(tmp_path) == {"deep/run/model.json": "new"}


def earlier_run(folder: Path) -> dict[str, str]:
    """Write what a run may have left, and return it."""
    folder.mkdir(parents=True)
    files = {"model.json": '{"format": 1, "pairnorm": "0.1"}', "report.md": "old", "confusion.png": "old"}
    for name, text in files.items():
        (folder / name).write_text(text)
    return files


def test_result_folder_replaces_own_files_only(tmp_path):
    out = tmp_path / "run"
    old = earlier_run(out) | {"march.csv": "theirs", "src/thesis.tex": "theirs"}
    (out / "src").mkdir()
    (out / "src" / "thesis.tex").write_text("theirs")
    (out / "march.csv").write_text("theirs")
    with result_folder(out) as folder:
        (folder / "model.json").write_text("new")
        (folder / "report.md").write_text("new")
        assert {name: (out / name).read_text() for name in old} == old
    theirs = {"march.csv": "theirs", "src/thesis.tex": "theirs"}
    assert contents(out) == {"model.json": "new", "report.md": "new"} | theirs
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("there", [True, False])
def test_result_folder_can_be_a_link_or_current_folder(tmp_path, monkeypatch, there):
    real, link = tmp_path / "real", tmp_path / "run"
    link.symlink_to(real)
    if there:
        earlier_run(real)
    with result_folder(link) as folder:
        (folder / "model.json").write_text('{"format": 1, "pairnorm": "0.1"}')
    assert list(contents(real)) == ["model.json"]
    assert link.is_symlink()
    monkeypatch.chdir(real)
    with result_folder(Path()) as folder:
        (folder / "report.md").write_text("new")
    assert contents(real) == {"report.md": "new"}


@pytest.mark.parametrize("error", [PairNormError("bad input"), KeyboardInterrupt()])
@pytest.mark.parametrize("before", [True, False])
def test_error_keeps_the_old_folder(tmp_path, error, before):
    out = tmp_path / "deep" / "run"
    old = earlier_run(out) if before else {}
    with pytest.raises(type(error)), result_folder(out) as folder:  # noqa: PT012
        (folder / "model.json").write_text("new")
        raise error
    assert contents(tmp_path) == {f"deep/run/{name}": text for name, text in old.items()}
    assert (tmp_path / "deep").exists() == before


def test_unwritable_folder_raises_early(tmp_path, raises):
    (tmp_path / "thesis.tex").write_text("x")
    with (
        raises("not-writable", value=str(tmp_path / "thesis.tex" / "run")),
        result_folder(tmp_path / "thesis.tex" / "run"),
    ):
        pytest.fail("nothing can be written there")


@pytest.mark.parametrize("model", [None, "old", "[]", '{"name": "bert", "format": 1}'])
def test_foreign_folder_raises(tmp_path, raises, model):
    (tmp_path / "thesis.tex").write_text("x")
    if model is not None:
        (tmp_path / "model.json").write_text(model)
    with raises("foreign-folder", value=str(tmp_path)):
        check_folder(tmp_path)
    with raises("is-a-file"):
        check_folder(tmp_path / "thesis.tex")
    (tmp_path / "empty").mkdir()
    check_folder(tmp_path / "empty")


def test_leftovers_of_a_killed_run_are_removed(tmp_path):
    (tmp_path / f".{tmp_path.name[:40]}.0badcafe.partial").mkdir()
    (tmp_path / f".{tmp_path.name[:40]}.0badcafe.partial" / "model.json").write_text("half")
    with result_folder(tmp_path) as folder:
        (folder / "model.json").write_text("new")
    assert contents(tmp_path) == {"model.json": "new"}
    assert [path.name for path in tmp_path.iterdir()] == ["model.json"]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_prediction_table_has_one_row_per_node(tmp_path, suffix):
    graph = Graph.from_edges(
        [[0, 1], [1, 2]],
        torch.ones(3, 1),
        [0, -1, 1],
        missing=torch.tensor([False, True, False]),
        node_names=["007", "b", "c"],
        class_names=("low", "high risk"),
    )
    probabilities = np.array([[0.75, 0.25], [0.5, 0.5], [0.0, 1.0]], dtype=np.float32)
    classifier = NodeClassifier()
    classifier.classes_ = np.array(graph.class_names)
    classifier.prior_, classifier.tilt_ = np.float32([0.5, 0.5]), 0.0
    frame = prediction_table(graph, probabilities, classifier)
    path = tmp_path / f"table.{suffix}"
    write_table(frame, path)
    result = pandas.read_csv(path, dtype={"id": str}) if suffix == "csv" else pandas.read_parquet(path)
    assert list(result) == ["id", "predicted", "p_low", "p_high risk", "features_missing", "labeled"]
    assert result["id"].tolist() == ["007", "b", "c"]
    assert result["predicted"].tolist() == ["low", "low", "high risk"]
    assert result["p_high risk"].tolist() == [0.25, 0.5, 1.0]
    assert result["features_missing"].tolist() == [False, True, False]
    assert result["labeled"].tolist() == [True, False, True]
