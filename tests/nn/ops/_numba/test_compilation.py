import runpy
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from numba.core.caching import CacheImpl

from pairnorm.nn.ops._numba import vectors

MODULE = """
from pairnorm.nn.ops._numba.vectors import kernel

@kernel
def double(x):
    return 2 * x

result, hits = double(21), sum(double.stats.cache_hits.values())
print(result, hits)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A module with a kernel; it says what that returned and how often the cache had it."""
    script = tmp_path / "module.py"
    script.write_text(MODULE)
    return script


def run(script: Path) -> tuple[int, int]:
    """Run the kernel in this process; it is compiled where the cache has nothing."""
    actual = runpy.run_path(str(script), run_name="__main__")
    return actual["result"], actual["hits"]


def run_alone(script: Path) -> tuple[int, int]:
    """Call the kernel in a process of its own."""
    actual = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert actual.returncode == 0, actual.stderr
    assert not actual.stderr
    result, hits = actual.stdout.split()
    return int(result), int(hits)


def test_truncated_cache_file_is_compiled_again(script: Path, tmp_path: Path) -> None:
    assert run(script) == (42, 0)
    for suffix, share in product(("nbi", "nbc"), (0, 0.5)):
        file = next(tmp_path.rglob(f"*.{suffix}"))
        file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])
        assert run(script) == (42, 0)
    assert run_alone(script) == (42, 1)


def test_full_disk_does_not_raise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    double = vectors.kernel(lambda x: 2 * x)
    monkeypatch.setattr(double._cache._cache_file, "_open_for_write", full)
    assert double(np.float32(1.5)) == 3
    assert double(2) == 4


def test_unwritable_cache_warns_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CacheImpl, "_locator_classes", [])
    vectors._warn_no_cache.cache_clear()
    with pytest.warns(vectors.KernelWarning, match="NUMBA_CACHE_DIR") as warnings:
        kernels = [vectors.kernel(lambda x: x + 1), vectors.kernel(lambda x: x + 2)]
    assert [kernel(1) for kernel in kernels] == [2, 3]
    assert len(warnings) == 1


def test_removed_cache_folder_is_created_again(script: Path, tmp_path: Path) -> None:
    assert run_alone(script) == (42, 0)
    shutil.rmtree(tmp_path / "__pycache__")
    assert run(script) == (42, 0)
    assert run_alone(script) == (42, 1)
