import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch


@pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="triton is not installed")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels are tested on the GPU")
def test_kernels_in_the_interpreter():
    folder = Path(__file__).parent
    files = [str(folder / "test_backends.py"), *map(str, sorted(folder.glob("_triton/test_*.py")))]
    process = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", "triton", *files],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout[-20000:] + process.stderr[-2000:]
    assert " passed" in process.stdout
