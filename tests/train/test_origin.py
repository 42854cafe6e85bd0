import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import pairnorm
from pairnorm.train.origin import Origin, device_name, git_commit


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
