import re
from pathlib import Path

import pytest

from pairnorm.paper.evidence import Layers, write_layers
from pairnorm.paper.experiments import CASE_STUDY
from pairnorm.paper.runner import BINS
from pairnorm.train import Spec, Store, Trial


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "paper.sqlite"
    rest = dict.fromkeys(("train_loss", "train_accuracy", "validation_loss", "test_loss"), 1.0)
    trial = Trial(seed=0, best_epoch=1, validation_accuracy=0.8, test_accuracy=0.8, **rest)
    with Store(path) as opened:
        opened.add(Spec("cora", "SGC", 1, epochs=500), [trial], seconds=1.0)
    return path


def test_report_is_written_from_the_store_alone(store: Path, tmp_path: Path, pairnorm) -> None:
    before = store.read_bytes()
    words = ["--runs", "1", "--depth", "1", "--dataset", "cora"]
    printed = pairnorm("report", "--store", str(store), "--out", str(tmp_path / "out"), *words).out
    assert "table1-rows: 1 of 12 cells filled" in printed
    assert f"Next: read {tmp_path / 'out' / 'report.html'}" in printed
    assert "not run" in (tmp_path / "out" / "report.md").read_text()
    assert store.read_bytes() == before


def write_study(store: Path) -> None:
    [spec, *_] = [CASE_STUDY.candidates(cell)[0] for cell in CASE_STUDY.cells()]
    both = {"connected": [1.0], "random": [2.0]}
    counts = {kind: [[1] * BINS] for kind in both}
    edges = {kind: [float(edge) for edge in range(BINS + 1)] for kind in both}
    layers = Layers(None, both, both, edges, counts)
    with Store(store) as results:
        write_layers(results, {spec: layers})


def test_missing_store_raises(tmp_path: Path, pairnorm) -> None:
    assert (
        "there is no store at"
        in pairnorm(
            "report", "--store", str(tmp_path / "no.sqlite"), "--out", str(tmp_path / "out"), code=1
        ).err
    )
    assert not (tmp_path / "out").exists()


def test_help_example_names_an_existing_store(pairnorm) -> None:
    [store] = re.findall(r"pairnorm report --store (\S+) --out", pairnorm("report", "--help").out)
    assert (Path(__file__).parents[2] / store).is_file()
