"""Kernels are called as they are, and held against the plain torch forms that define them.

Those in Triton run on a GPU where there is one; elsewhere in Triton's interpreter, which must be chosen
before Triton is imported: ``test_interpreter.py`` runs every ``test_cuda.py`` in a process of its own.
"""

import importlib.util
import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
RUNS = importlib.util.find_spec("triton") is not None and (INTERPRETED or torch.cuda.is_available())

collect_ignore_glob = [] if RUNS else ["*/test_cuda.py"]
if importlib.util.find_spec("numba") is None:
    collect_ignore_glob += ["*/test_cpu.py", "*/test_large.py", "test_simd.py", "test_threads.py"]


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cpu" if INTERPRETED else "cuda")
