import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from math import nan
from pathlib import Path

import pytest
import torch

from pairnorm.classify import NodeClassifier
from pairnorm.compare import missing
from pairnorm.compare.fsd_cap import fsd_cap
from pairnorm.compare.missing import FIT, FSD_CAP, FSD_CAP_RELEASED, REFITTED, SSNC, Cell, Protocol, hide
from pairnorm.compare.missing_runs import (
    Found,
    Judged,
    _in_order,
    _to_judge,
    compare,
    count_pending,
    file_beside,
    judge,
    read_judged,
    write_judged,
)
from pairnorm.data import Graph, csbm, load, missing_nodes, missing_vectors
from pairnorm.train import Spec, Store, Trial, train
from pairnorm.train.schedule import Running

SMALL = replace(
    SSNC,
    datasets=("cora",),
    missing=(100,),
    runs=2,
    fills=("zero", "fp"),
    trained={"SGC": {"model": "SGC", "depth": (1, 3), "epochs": 3, "learning_rate": 0.2}},
    judged=("label propagation",),
)
CELL = Cell("ssnc-mv", "cora", "fp", "SGC", 100)


def a_trial(seed: int, validation: float, test: float = 0.5) -> Trial:
    parts = {f"{part}_loss": 1.0 for part in ("train", "validation", "test")}
    accuracies = {"train_accuracy": 1.0, "validation_accuracy": validation, "test_accuracy": test}
    return Trial(seed=seed, best_epoch=1, **parts, **accuracies)


def a_judgement(**changes: object) -> Judged:
    row = Judged("ssnc-mv", "cora", "", "label propagation", 99.5, 3, 0.7, 0.6, nan, 1.5, "abc", "2026")
    return row._replace(**changes)  # type: ignore[arg-type]


def test_it_trains_judges_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "missing.sqlite"
    assert count_pending([SMALL], Found.read(path)) == 4 + 1  # of the second runs nobody knows which yet
    assert compare([SMALL], path, Running("cpu", workers=1, minutes=0)) == 5
    assert not path.exists()
    assert compare([SMALL], path, Running("cpu", workers=1)) == 0
    with Store(path, read_only=True) as store:
        assert len(store) == 4 + 2
    found, seconds = Found.read(path), file_beside(path).stat().st_mtime_ns
    best = found.best(SMALL, CELL)
    assert best is not None
    spec = SMALL.candidates(CELL, 0)[best]
    assert found.runs(SMALL, CELL) == train(load("cora"), spec, [0, 1], "cpu")
    [row] = found.judged.values()
    assert row.cell == Cell("ssnc-mv", "cora", "", "label propagation", 100)
    assert compare([SMALL], path, Running("cpu", workers=1)) == 0
    assert file_beside(path).stat().st_mtime_ns == seconds


def test_the_first_run_of_everything_is_judged_before_the_second_of_anything() -> None:
    protocols = [replace(SMALL, missing=(80, 40)), replace(SMALL, missing=(20,), judged=("fit",))]
    jobs = [(cell.missing_percent, seed) for _, cell, seed in _in_order(protocols, Found({}))]
    assert jobs == [(80, 0), (40, 0), (20, 0), (80, 1), (40, 1), (20, 1)]


def test_the_first_run_chooses_and_a_fingerprint_is_not_looked_at() -> None:
    first, second = SMALL.candidates(CELL, 0)
    own = second.replace(dataset="cora@0123456789abcdef")
    found = Found({first: [a_trial(0, 0.7), a_trial(1, 0.9)], own: [a_trial(0, 0.8, 0.6)]})
    assert found.best(SMALL, CELL) == 1
    assert [trial.test_accuracy for trial in found.runs(SMALL, CELL)] == [0.6]
    assert found.lacking(SMALL, "cora", first=False) == [(second, 1)]
    assert Found({first: [a_trial(0, 0.7)], second: [a_trial(0, nan)]}).best(SMALL, CELL) == 0
    assert Found({first: [a_trial(0, 0.7)], second: [a_trial(0, 0.7)]}).best(SMALL, CELL) == 0
    assert Found({first: [a_trial(0, 0.7)]}).best(SMALL, CELL) is None


def test_with_one_candidate_all_runs_are_trained_at_once() -> None:
    alone = replace(SMALL, trained={"SGC": {"model": "SGC", "depth": 2}}, fills=("zero",), runs=3)
    spec = Spec("cora", "SGC", 2, missing_rate=1)
    assert Found({}).lacking(alone, "cora", first=True) == [(spec, seed) for seed in range(3)]


def test_what_is_judged_is_read_again(tmp_path: Path, raises) -> None:
    path = tmp_path / "judged.csv"
    rows = [a_judgement(), a_judgement(seed=1, accuracy=0.123456)]
    write_judged(path, rows)
    assert repr(read_judged(path)) == repr(rows[::-1])
    path.write_text(path.read_text().replace("0.123456", "much"))
    with raises("file-damaged", value=path):
        read_judged(path)
    assert read_judged(tmp_path / "nothing.csv") == []


@pytest.mark.parametrize("model", ["label propagation", "logistic regression", "Correct & Smooth"])
def test_a_method_is_judged_by_the_test_nodes_of_a_graph_that_lacks_what_is_missing(model: str) -> None:
    protocol = replace(SMALL, datasets=("csbm",), missing=(60,), judged=(model,))
    [cell] = protocol.judged_cells()
    [row] = judge(protocol, cell, 1)
    graph = load("csbm")
    graph = hide(graph, missing_vectors(graph, 0.6, seed=1))
    assert (row.cell, row.seed) == (cell, 1)
    if model != "Correct & Smooth":
        expected = NodeClassifier(model, simple=True, refit=False, random_state=1, device="cpu").fit(graph)
        assert row.accuracy == pytest.approx(expected.held_out_.accuracy, abs=1e-6)
        assert row.macro_f1 == pytest.approx(expected.held_out_.macro_f1, abs=1e-6)
    else:
        counts = torch.bincount(graph.labels[graph.test])
        assert row.accuracy > float(counts.max() / counts.sum()) + 0.1


@pytest.mark.parametrize("model", [FSD_CAP, FSD_CAP_RELEASED])
def test_fsd_cap_sees_validation_labels_by_name(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(missing.FSD_CAP_GCN, "epochs", 5)
    protocol = replace(SMALL, datasets=("cora-small",), missing=(90,), judged=(model,), kind="nodes")
    graph = csbm(200, classes=3, seed=3).with_split("per-class-10-of-100@0")
    graph = graph.replace(features=graph.features.to_dense())
    monkeypatch.setattr(Protocol, "graph", lambda *_: graph)
    [cell] = protocol.judged_cells()
    [row] = judge(protocol, cell, 1)
    hidden = hide(graph, missing_nodes(graph, 0.9, seed=1))
    spec = Spec(graph.name, **missing.FSD_CAP_GCN)
    chances = fsd_cap(hidden, spec, 1, validation_labels=model == FSD_CAP_RELEASED)
    right = (chances.argmax(1) == graph.labels)[graph.test].float().mean()
    assert row.cell == cell == Cell("ssnc-mv", "cora-small", "fsd-cap", model, 90)
    assert row.accuracy == pytest.approx(float(right), abs=1e-6)


TRIED = ("SGC alone", "label propagation", "boosted trees")
OF_FIT = replace(SMALL, datasets=("small",), missing=(90,), judged=(*TRIED, FIT), runs=1)


@pytest.fixture(scope="module")
def small() -> Iterator[Graph]:
    """The one graph of a protocol, on which `fit` takes seconds."""
    graph = csbm(200, classes=3, features=60, seed=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Protocol, "graph", lambda *_: graph)
        yield graph


@pytest.fixture(scope="module")
def rows(small: Graph) -> dict[Cell, Judged]:
    """What comes of `fit`, and of all that it tries."""
    *_, cell = OF_FIT.judged_cells()
    return {row.cell: row for row in judge(OF_FIT, cell, 0)}


def test_what_fit_tries_is_judged_along_with_it_as_if_alone(rows: dict[Cell, Judged]) -> None:
    *others, cell = OF_FIT.judged_cells()
    assert list(_to_judge(OF_FIT, Found({}))) == [(cell, 0)]
    assert list(_to_judge(OF_FIT, Found({}, [rows[cell]]))) == [(other, 0) for other in others]
    for other in others:
        [alone] = judge(OF_FIT, other, 0)
        assert rows[other][6:9] == pytest.approx(alone[6:9], abs=2e-6)


def test_fit_learns_from_training_labels_and_what_more_labels_add_is_another_row(
    small: Graph, rows: dict[Cell, Judged]
) -> None:
    found = {row.model: row.accuracy for row in rows.values()}
    assert found.keys() == {FIT, REFITTED, *TRIED}
    classifier = NodeClassifier(device="cpu").fit(hide(small, missing_vectors(small, 0.9, seed=0)))
    assert found[FIT] == pytest.approx(classifier.held_out_.accuracy, abs=1e-6)
    test = small.test.numpy()
    predicted = classifier.probabilities_.argmax(1)[test]
    assert found[REFITTED] == pytest.approx((predicted == small.labels.numpy()[test]).mean(), abs=1e-6)


def test_it_needs_little_but_torch(tmp_path: Path) -> None:
    """Bug: a function borrowed from ``classify`` brought pydantic, which the GPU machine has not."""
    blocked = ["typer", "rich", "pandas", "matplotlib", "pyarrow", "pydantic", "sklearn", "torch_geometric"]
    program = f"""
import sys
sys.modules.update(dict.fromkeys({blocked!r}))
from pairnorm.cli import main
sys.argv = ["pairnorm", "reproduce", "missing", "--dataset", "cora", "--protocol", "ssnc-mv",
    "--missing", "100", "--model", "SGC", "--runs", "1", "--time-limit", "0",
    "--out", {str(tmp_path / "out")!r}]
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "missing.md").exists()
