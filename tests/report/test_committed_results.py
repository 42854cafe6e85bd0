"""The committed tables and reports are what the commands write from the committed stores."""

import shutil
from pathlib import Path

import pytest

from pairnorm.cli import main

RESULTS = Path(__file__).parents[2] / "results"
# Both comparisons also write to their store, which is a copy.
COMMANDS = {
    "report": (["report", "--store", "store.sqlite"], ("*.tex", "report.md", "[!dm]*.csv", "deep-gcn.csv")),
    "depth": (["reproduce", "depth", "--time-limit", "0s"], ("depth.*",)),
    "missing": (["reproduce", "missing", "--time-limit", "0s"], ("missing.*",)),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_committed_reports_are_written_from_the_committed_stores(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    command, patterns = COMMANDS[name]
    for file in ("notes.md", f"{'store' if name == 'report' else name}.sqlite"):
        shutil.copy(RESULTS / file, tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main([*command, "--out", ".", "--quiet"]) == 0
    committed = {file.name for pattern in patterns for file in RESULTS.glob(pattern)}
    assert len(committed) > 1
    for file in sorted(committed - {"depth.sqlite", "missing.sqlite"}):
        assert (tmp_path / file).read_bytes() == (RESULTS / file).read_bytes(), file
