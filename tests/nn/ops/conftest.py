"""Kernels are called as they are, and compared with the torch references that define them.

Those in Triton run on a GPU where there is one; elsewhere in Triton's interpreter, which must be chosen
before Triton is imported: ``test_interpreter.py`` runs them in a process of its own.
"""

import importlib.util
import os
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from pairnorm.nn import SparseMatrix, normalized_adjacency

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
RUNS = importlib.util.find_spec("triton") is not None and (INTERPRETED or torch.cuda.is_available())

collect_ignore_glob = [] if RUNS else ["_triton/*"]
if importlib.util.find_spec("numba") is None:
    collect_ignore_glob += ["_numba/*", "test_threads.py"]


@pytest.fixture(scope="session")
def runs_triton() -> bool:
    return RUNS


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cpu" if INTERPRETED else "cuda")


@pytest.fixture
def assert_equal_with_gradients() -> Callable[..., None]:
    """Compare two outputs and, for one random cotangent, their gradients."""

    def check(
        ours: Tensor, expected: Tensor, tensors: Sequence[Tensor], wide: Sequence[Tensor] | None = None,
        rtol: float = 1e-4, atol: float = 1e-5,
    ) -> None:  # fmt: skip
        """``wide`` are the inputs of ``expected``, where they are not ``tensors`` themselves."""
        grad = torch.randn(ours.shape, device=ours.device)
        pairs = [(ours, expected)]
        pairs += zip(
            torch.autograd.grad(ours, tensors, grad.to(ours.dtype), retain_graph=True),
            torch.autograd.grad(expected, tensors if wide is None else wide, grad.to(expected.dtype)),
            strict=True,
        )
        for one, other in pairs:
            torch.testing.assert_close(one.to(other.dtype), other, rtol=rtol, atol=atol)

    return check


@pytest.fixture
def second_gradients() -> Callable[..., tuple[Tensor, ...]]:
    """Differentiate a function of the gradients of a function of an output."""

    def compute(y: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        first = torch.autograd.grad(y.pow(3).sum(), tensors, create_graph=True)
        return torch.autograd.grad(sum(gradient.pow(2).sum() for gradient in first), tensors)

    return compute


@pytest.fixture
def few_nodes() -> SparseMatrix:
    """Eight nodes: a hub, a triangle, a node alone. The interpreter takes rows and entries one by one."""
    edges = torch.tensor([[0, 0, 0, 0, 0, 1, 5], [1, 2, 3, 4, 5, 2, 6]])
    return normalized_adjacency(torch.cat([edges, edges.flip(0)], 1), num_nodes=8)
