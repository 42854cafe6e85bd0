import pickle
import platform
import re
import shutil
import subprocess
from math import isnan, nan
from pathlib import Path

import numpy as np
import pytest
import torch

import pairnorm
from pairnorm.errors import PairNormError
from pairnorm.train.result import Origin, Trial, device_name, git_commit

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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": -1}, "seed is -1; expected"),
        ({"seed": 2**63}, "seed is 9223372036854775808; expected"),
        ({"best_epoch": -2}, "best_epoch is -2; expected"),
    ],
)
def test_impossible_numbers_are_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(PairNormError, match=message):
        Trial(**METRICS | {"seed": 0, "best_epoch": 1} | change)


def test_it_names_versions_device_and_time() -> None:
    origin = Origin.here(seconds=2, shared_by=5, device="cpu")
    assert (origin.seconds, origin.shared_by) == (2.0, 5)
    assert origin.pairnorm_version == pairnorm.__version__
    assert origin.torch_version == torch.__version__
    assert origin.python_version == platform.python_version()
    assert re.fullmatch(r".+, \d+ cores", origin.device)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", origin.finished)
    assert device_name("meta") == "meta"


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_only_a_checkout_that_tracks_the_file_has_a_commit(tmp_path: Path) -> None:
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
