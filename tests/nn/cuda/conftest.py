"""The kernels in Triton are called as they are, and held against the plain torch forms.

They run on a GPU where there is one; elsewhere in Triton's interpreter, which must be chosen before Triton is
imported: ``test_interpreter.py`` runs the files of this folder in a process of its own.
"""

import importlib.util
import os
from pathlib import Path

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
RUNS = importlib.util.find_spec("triton") is not None and (INTERPRETED or torch.cuda.is_available())

if not RUNS:
    collect_ignore = [
        path.name for path in Path(__file__).parent.glob("test_*.py") if path.stem != "test_interpreter"
    ]
elif INTERPRETED:
    collect_ignore = ["test_interpreter.py"]


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cpu" if INTERPRETED else "cuda")
