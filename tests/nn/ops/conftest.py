"""Kernels are called as they are, and held against the plain torch forms that define them.

Those in Triton run on a GPU where there is one; elsewhere in Triton's interpreter, which must be chosen
before Triton is imported: ``test_interpreter.py`` runs ``_triton/`` in a process of its own.
"""

import importlib.util
import os

import pytest
import torch

from pairnorm.nn import SparseMatrix, normalized_adjacency

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
RUNS = importlib.util.find_spec("triton") is not None and (INTERPRETED or torch.cuda.is_available())

collect_ignore_glob = [] if RUNS else ["_triton/*"]
if importlib.util.find_spec("numba") is None:
    collect_ignore_glob += ["_numba/*", "test_threads.py"]


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cpu" if INTERPRETED else "cuda")


@pytest.fixture
def few_nodes() -> SparseMatrix:
    """Eight nodes: a hub, a triangle, a node alone. The interpreter takes rows and entries one by one."""
    edges = torch.tensor([[0, 0, 0, 0, 0, 1, 5], [1, 2, 3, 4, 5, 2, 6]])
    return normalized_adjacency(torch.cat([edges, edges.flip(0)], 1), num_nodes=8)
