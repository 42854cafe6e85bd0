import importlib.util

import pytest
import torch

from pairnorm.nn import backends
from pairnorm.nn.backends import kernels

OPERATIONS = ["activate", "attention", "convolve", "dropout", "features", "linear", "pair_norm", "sparse"]
needs_numba = pytest.mark.skipif(not importlib.util.find_spec("numba"), reason="numba is not installed")


@needs_numba
@pytest.mark.parametrize("operation", OPERATIONS)
def test_single_precision_on_a_cpu_is_served_by_numba(operation):
    assert kernels(operation, torch.ones(3)).__name__ == f"pairnorm.nn.cpu.{operation}"


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    "x",
    [
        torch.ones(3, dtype=torch.float64),
        torch.ones(3, dtype=torch.float16),
        torch.ones(0),
        torch.ones(3, device="meta"),
    ],
    ids=["double", "half", "empty", "meta"],
)
def test_what_no_kernel_serves(operation, x):
    assert kernels(operation, x) is None


def test_an_operation_without_a_kernel():
    assert kernels("no such operation", torch.ones(3)) is None


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_without_the_compiler_the_plain_form_serves(device, monkeypatch):
    monkeypatch.setattr(backends, "find_spec", lambda name: None)
    assert backends._module.__wrapped__(device, "pair_norm") is None
