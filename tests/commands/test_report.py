import re
from pathlib import Path

import pytest

from helpers import make_trial
from pairnorm.train import Spec, Store


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "paper.sqlite"
    with Store(path) as opened:
        opened.add(Spec("cora", "SGC", 1, epochs=500), [make_trial(0, 0.8, 0.8)], seconds=1.0)
    return path


def test_report_is_written_from_the_store_alone(store, tmp_path, pairnorm):
    before = store.read_bytes()
    words = ["--runs", "1", "--depth", "1", "--dataset", "cora"]
    printed = pairnorm("report", "--store", store, "--out", tmp_path / "out", *words).out
    assert "table1-rows: 1 of 12 cells filled" in printed
    assert f"Next: read {tmp_path / 'out' / 'report.html'}" in printed
    assert "not run" in (tmp_path / "out" / "report.md").read_text()
    assert store.read_bytes() == before


def test_help_example_names_an_existing_store(pairnorm):
    [store] = re.findall(r"pairnorm report --store (\S+) --out", pairnorm("report", "--help").out)
    assert (Path(__file__).parents[2] / store).is_file()
