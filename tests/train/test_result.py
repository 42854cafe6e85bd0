import csv
import pickle
import platform
import re
import shutil
import subprocess
from math import isnan, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pairnorm
from pairnorm.train.result import Origin, Result, Trial, device_name, git_commit, read_csv, write_csv
from pairnorm.train.spec import ADDED_FIELDS, STORED_NAMES, Spec

METRICS = dict.fromkeys(
    ("train_loss", "train_accuracy", "validation_loss", "validation_accuracy", "test_loss", "test_accuracy"),
    0.5,
)


def test_tensors_become_plain_numbers() -> None:
    trial = Trial(
        **METRICS | {"test_loss": torch.tensor(0.25), "test_accuracy": np.float32(0.5)},
        seed=np.int64(3),
        best_epoch=torch.tensor(7),
        diverged=torch.tensor(True),
        measures={"row_diff": torch.tensor(1.5)},
        curves={"train_loss": torch.tensor([2.0, nan])},
    )
    assert (trial.seed, trial.best_epoch, trial.diverged, trial.test_loss) == (3, 7, True, 0.25)
    plain = (trial.seed, trial.best_epoch, trial.diverged, trial.test_loss, trial.measures["row_diff"])
    assert [type(value) for value in plain] == [int, int, bool, float, float]
    assert trial.curves is not None
    assert trial.curves["train_loss"][0] == 2.0
    assert isnan(trial.curves["train_loss"][1])
    assert pickle.loads(pickle.dumps(trial)).measures == {"row_diff": 1.5}


@pytest.mark.parametrize("change", [{"seed": -1}, {"seed": 2**63}, {"best_epoch": -2}])
def test_impossible_numbers_raise(raises: Any, change: dict[str, int]) -> None:
    with raises("not-a-whole-number"):
        Trial(**METRICS | {"seed": 0, "best_epoch": 1} | change)


def test_origin_has_versions_device_and_time() -> None:
    origin = Origin.here(seconds=2, shared_by=5, device="cpu")
    assert (origin.seconds, origin.shared_by) == (2.0, 5)
    assert origin.pairnorm_version == pairnorm.__version__
    assert origin.torch_version == torch.__version__
    assert origin.python_version == platform.python_version()
    assert re.fullmatch(r".+, \d+ cores", origin.device)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", origin.finished)
    assert device_name("meta") == "meta"


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_commit_only_if_checkout_tracks_the_file(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", "-C", str(tmp_path), *identity, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def commit_of(name: str) -> str | None:
        git_commit.cache_clear()
        return git_commit(tmp_path / name)

    for name in ("tracked.py", "installed.py"):
        (tmp_path / name).write_text("1\n")
    assert commit_of("tracked.py") is None
    git("init", "-q")
    git("add", "tracked.py")
    git("commit", "-q", "-m", "first", "--no-verify")
    git("tag", "v1")
    head = git("rev-parse", "HEAD")
    assert commit_of("tracked.py") == head
    assert commit_of("installed.py") is None
    (tmp_path / "tracked.py").write_text("2\n")
    assert commit_of("tracked.py") == f"{head}-dirty"
    git_commit.cache_clear()


def a_result(**more: object) -> Result:
    metrics = dict.fromkeys(("train_loss", "validation_loss", "test_loss"), 1 / 3)
    metrics |= dict.fromkeys(("train_accuracy", "validation_accuracy", "test_accuracy"), 1e-300)
    trial = Trial(seed=5, best_epoch=7, **metrics, **more)  # type: ignore[arg-type]
    origin = Origin.here(seconds=1.5, shared_by=1, device="cpu")
    return Result(Spec('a "graph", mine', "GCN", 2), trial, origin)


def test_csv_round_trip_with_long_curves_and_odd_names(tmp_path: Path) -> None:
    rows = [
        a_result(measures={"row_diff": 0.1}, curves={"test_loss": [1 / epoch for epoch in range(1, 20_000)]}),
        a_result(measures={"col_diff": float("inf")}),
    ]
    write_csv(rows, tmp_path / "rows.csv")
    assert read_csv(tmp_path / "rows.csv") == rows


def test_csv_without_added_field_has_its_default(tmp_path: Path) -> None:
    path, given = tmp_path / "rows.csv", a_result()
    write_csv([given], path)
    with path.open(newline="") as file:
        [values] = csv.DictReader(file)
    for name, default in ADDED_FIELDS.items():
        assert values.pop(STORED_NAMES.get(name, name)) == str(default)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, values)
        writer.writeheader()
        writer.writerow(values)
    assert read_csv(path) == [given]


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("depth", "layers", "unknown-column"),
        (",GCN,2,", ",GCN,4,", "wrong-hash"),
        (",GCN,2,", ",GCN,two,", "wrong-value"),
        (",False,", ",no,", "wrong-value"),
        (",GCN,", ",GXN,", "unknown-choice"),
        (",GCN,", ",GCN,GCN,", "file-damaged"),
        (",GCN,2,", "\n", "file-damaged"),
        ("cores", 'cores"', "file-damaged"),
        (",5,False,", f",{2**70},False,", "not-a-whole-number"),
        (",5,False,", ",-1,False,", "not-a-whole-number"),
        (",1.5,1,", ",nan,1,", "not-a-number"),
        (",1.5,1,", f",1.5,{2**70},", "not-a-whole-number"),
    ],
)
def test_csv_that_is_no_export_raises(raises: Any, tmp_path: Path, old: str, new: str, code: str) -> None:
    path = tmp_path / "rows.csv"
    write_csv([a_result()], path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with raises(code) as caught:
        read_csv(path)
    assert caught.value.problem.startswith(str(path))


def test_binary_file_raises(raises: Any, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes(b"\xff\xfe\x00")
    with raises("file-damaged"):
        read_csv(tmp_path / "rows.csv")
