"""A few hundred damaged files of every format, and commands that are killed; ``make fuzz`` takes an hour."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from corpus import FORMATS
from watchdog import campaign


@pytest.mark.filterwarnings("ignore::pairnorm.classify.ClassifierWarning")  # few nodes to test on
@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_is_read_where_nothing_is_damaged(kind: str, corpus: Path, tmp_path: Path) -> None:
    assert FORMATS[kind].read(shutil.copytree(corpus, tmp_path / "files")) is not None


@pytest.mark.slow
def test_no_damaged_file_crashes_hangs_or_eats_memory(corpus: Path, tmp_path: Path) -> None:
    tally = campaign(corpus, tmp_path / "scratch", list(FORMATS), "tests", 12 * len(FORMATS), seconds=60)
    assert not tally.failures
    assert tally.tried >= 2 * len(FORMATS)
    assert min(tally.outcomes["read"], tally.outcomes["refused"]) > 0


@pytest.mark.slow
def test_what_is_killed_loses_nothing_and_leaves_nothing(corpus: Path, tmp_path: Path) -> None:
    files = shutil.copytree(corpus, tmp_path / "files")  # the reference results are added to it
    words = [Path(__file__).with_name("stage.py"), files, tmp_path / "stage", "tests", "10"]
    found = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, timeout=400)
    assert found.returncode == 0, found.stderr
    outcome = json.loads(found.stdout)
    assert outcome["lost"] == []
    assert not any("failed" in what for what in outcome["killed"]), outcome
