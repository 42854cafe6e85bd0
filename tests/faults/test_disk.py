"""Full disks, file size limits and missing permissions end in a short message, and old files stay."""

import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pairnorm import cli
from pairnorm.train.propagation import _new_file


@contextmanager
def limited(folder: Path, most: int = 2_000) -> Iterator[Path]:
    """No file may grow beyond two thousand bytes, as after ``ulimit -f``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield folder
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def full(folder: Path) -> Iterator[Path]:
    """A small disk without free space."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no disk can be mounted here")
    try:
        (folder / "ballast").write_bytes(bytes(64 << 10))
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def words(name: str, files: Path, out: Path) -> list[str]:
    graph = ["--nodes", str(files / "nodes.csv"), "--edges", str(files / "edges.csv")]
    small = ["--dataset", "cora", "--runs", "1", "--epochs", "2", "--depth", "1"]
    return {
        "fit": ["fit", *graph, "--label", "risk", "--depth", "1", "--norm", "none", "--out", f"{out}/run"],
        "checkpoint": [
            *("fit", *graph, "--label", "risk", "--model", "GCN", "--depth", "2", "--norm", "none"),
            *("--epochs", "20", "--seeds", "1", "--checkpoint", f"{out}/checkpoints", "--out", f"{out}/run"),
        ],
        "predict": ["predict", "--run", f"{files}/run", *graph, "--out", f"{out}/p.csv"],
        "parquet": ["predict", "--run", f"{files}/run", *graph, "--out", f"{out}/p.parquet"],
        "diagnose": ["diagnose", *graph, "--label", "risk", "--out", f"{out}/d.png"],
        "reproduce": ["reproduce", "table1", *small, "--workers", "1", "--out", f"{out}/out"],
        "pack": ["pack", *graph, "--label", "risk", "--memory", "300MB", "--out", f"{out}/packed"],
        "packed": [
            "fit",
            "--graph",
            f"{files}/packed",
            "--depth",
            "1",
            "--norm",
            "PN",
            "--out",
            f"{out}/run",
        ],
        "report": ["report", "--store", f"{files}/store.sqlite", "--out", f"{out}/report"],
    }[name]


COMMANDS = ("checkpoint", "predict", "parquet", "diagnose", "pack", "packed", "reproduce", "report")


@pytest.mark.parametrize(
    ("disk", "name"), [(limited, "fit"), *((disk, name) for disk in (limited, full) for name in COMMANDS)]
)
def test_full_disk_raises_and_keeps_old_files(fails, corpus, tmp_path, disk, name):
    folder = tmp_path / "disk"
    folder.mkdir()
    with disk(folder):
        message = fails(*words(name, corpus, folder))
        assert "cannot be" in message
        left = [path for path in folder.rglob("*") if path.is_file() and path.name != "ballast"]
        assert not [path for path in left if ".partial" in str(path)]
        left = [path for path in left if path.stat().st_size]
    # A report is many files: such as had room are there, and whole.
    whole = tmp_path / "whole"
    assert not left or (name == "report" and cli.main(words(name, corpus, whole)) == 0)
    assert all(path.read_bytes() == (whole / path.relative_to(folder)).read_bytes() for path in left)


@pytest.mark.parametrize("most", [0, 120, 500])
def test_last_bytes_of_an_array_are_not_lost(fails, corpus, tmp_path, most):
    """The packed arrays of 100 nodes have less than the 4 KiB that C writes only when a file is closed."""
    with limited(tmp_path, most):
        message = fails(*words("pack", corpus, tmp_path / "out"))
    assert "cannot be" in message
    assert not (tmp_path / "out" / "packed").exists()


def test_mapped_file_reserves_disk_space_first(tmp_path):
    """Writing to pages for which a full disk has no room ends a process with SIGBUS."""
    with full(tmp_path), pytest.raises(OSError, match="No space left"):
        _new_file(tmp_path / "logits", 1000, 100)


@pytest.fixture
def anybody(corpus: Path) -> Iterator[Path]:
    """The files, owned by a user without root privileges."""
    folder = Path(tempfile.mkdtemp())
    files = shutil.copytree(corpus, folder / "files")
    assert cli.main(words("predict", files, folder)) == 0  # imports all libraries
    (folder / "p.csv").unlink()
    is_root = os.geteuid() == 0
    if is_root:
        folder.chmod(0o755)
        for path in (folder, *folder.rglob("*")):
            os.chown(path, 65534, 65534)
        os.seteuid(65534)
    try:
        yield folder
    finally:
        if is_root:
            os.seteuid(0)
        subprocess.run(["chmod", "-R", "u+rwx", folder], check=True)
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("closed", "mode", "path"),
    [
        ("files/nodes.csv", 0o000, "nodes.csv"),
        ("files/edges.csv", 0o000, "edges.csv"),
        ("files/run/model.json", 0o000, "model.json"),
        ("files/run/model.safetensors", 0o000, "model.safetensors"),
        ("files/run", 0o000, "run"),
        ("files", 0o000, "files"),
        ("out", 0o555, "out/p.csv"),
        ("out", 0o000, "out/p.csv"),
    ],
)
def test_unreadable_or_unwritable_path_is_named(fails, anybody, closed, mode, path):
    (anybody / "out").mkdir()
    (anybody / closed).chmod(mode)
    message = fails(*words("predict", anybody / "files", anybody / "out"))
    assert path in message
    assert ("out/p.csv" in message) == (closed == "out")
