"""A few hundred damaged files of every format, and commands that are killed; ``make fuzz`` takes an hour."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import mutate
import numpy as np
import pytest
from corpus import FORMATS
from safetensors.numpy import save
from watchdog import campaign

from pairnorm.base.errors import PairNormError


@pytest.mark.filterwarnings("ignore::pairnorm.classify.ClassifierWarning")  # few nodes to test on
@pytest.mark.parametrize("kind", FORMATS)
def test_undamaged_files_are_read(kind, corpus, tmp_path):
    assert FORMATS[kind].read(shutil.copytree(corpus, tmp_path / "files")) is not None


DAMAGE = (
    *(
        ("csv.gz", "_bomb"),
        ("csv.zst", "_bomb"),
        ("xlsx", "_bomb"),
        ("xlsx", "_far_cell"),
        ("parquet", "_bomb"),
    ),
    *(("graphml", "_bomb"), ("duckdb", "_duckdb"), ("model.safetensors", "_tensors"), ("csv nodes", "_cell")),
    *(("model.json", "_json"), ("packed facts", "_json"), ("parquet", "_parquet")),
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "damage"), DAMAGE)
def test_damaged_files_are_read_or_refused(corpus, tmp_path, monkeypatch, kind, damage):
    monkeypatch.setattr(mutate, "BOMB_BYTES", 2**28)
    monkeypatch.setattr(mutate, "BOMB_KEYS", 200)
    outcomes = set()
    for seed in range(1 if "bomb" in damage else 6):
        folder = shutil.copytree(corpus, tmp_path / str(seed))
        path = folder / str(FORMATS[kind].files)
        path.write_bytes(getattr(mutate, damage)(path.read_bytes(), Random(seed)))
        try:
            FORMATS[kind].read(folder)
            outcomes.add("read")
        except PairNormError:
            outcomes.add("refused")
    assert "refused" in outcomes or kind in ("csv nodes", "graphml")


def test_every_change_of_a_parquet_column_can_be_written(corpus):
    data = (corpus / str(FORMATS["parquet"].files)).read_bytes()
    assert len({mutate._parquet(data, Random(seed)) for seed in range(200)}) > 50


def test_tensors_of_every_dtype_can_be_damaged():
    for dtype in (np.float32, np.uint8, np.bool_, np.int64):
        data = save({"value": np.ones((2, 3), dtype)})
        assert len({mutate._tensors(data, Random(seed)) for seed in range(30)}) > 5


def test_hostile_environments_end_in_a_message(corpus, tmp_path):
    words = [Path(__file__).with_name("hostile.py"), corpus, tmp_path / "case", "tests", 16, 100]
    result = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, timeout=400)
    assert result.returncode == 0, result.stderr
    outcome = json.loads(result.stdout)
    assert outcome["failures"] == []
    assert set(outcome["outcomes"]) == {"read", "refused"}


@pytest.mark.slow
def test_fuzzed_files_never_crash_hang_or_exhaust_memory(corpus, tmp_path):
    tally = campaign(corpus, tmp_path / "scratch", list(FORMATS), "tests", 12 * len(FORMATS), seconds=60)
    assert not tally.failures
    assert tally.attempts >= 2 * len(FORMATS)
    assert min(tally.outcomes["read"], tally.outcomes["refused"]) > 0


@pytest.mark.slow
def test_killed_commands_lose_nothing_and_leave_no_drafts(corpus, tmp_path):
    files = shutil.copytree(corpus, tmp_path / "files")  # the reference results are added to it
    words = [Path(__file__).with_name("stage.py"), files, tmp_path / "stage", "tests", "10"]
    result = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, timeout=400)
    assert result.returncode == 0, result.stderr
    outcome = json.loads(result.stdout)
    assert outcome["lost"] == []
    assert not any("failed" in what for what in outcome["killed"]), outcome
