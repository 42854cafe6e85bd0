import importlib
import importlib.util
import itertools

import pytest
import torch

from pairnorm.nn.ops import kernels

OPERATIONS = ["convolution", "dropout", "linear", "pair_norm", "sparse_product"]
needs_numba = pytest.mark.skipif(not importlib.util.find_spec("numba"), reason="numba is not installed")


def find(operation, x):
    others = [torch.ones(1, 2, 2)] if operation == "linear" else []
    return kernels.find_kernels(operation, x, *others)


@needs_numba
@pytest.mark.parametrize("operation", OPERATIONS)
def test_numba_supports_single_precision_on_a_cpu(operation):
    assert find(operation, torch.ones(3)).__name__ == f"pairnorm.nn.ops._numba.{operation}"


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
def test_unsupported_inputs_use_the_reference(operation, x):
    assert find(operation, x) is None


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_missing_compiler_falls_back_to_the_reference(device, monkeypatch):
    monkeypatch.setattr(kernels, "find_spec", lambda name: None)
    assert not kernels.is_installed.__wrapped__(device)


def test_torch_transforms_see_the_reference():
    seen = []

    def function(x):
        seen.append(kernels.in_transform())
        return x.sum()

    torch.func.grad(function)(torch.ones(3))
    torch.func.jvp(function, (torch.ones(3),), (torch.ones(3),))
    with torch.autograd.forward_ad.dual_level():
        function(torch.ones(3))
    assert seen == [True, True, True]
    assert not kernels.in_transform()


def test_kernels_launch_on_the_device_of_their_tensors(monkeypatch):
    entered = []

    class DeviceOf:
        def __init__(self, tensor):
            self.tensor = tensor

        def __enter__(self):
            entered.append(self.tensor)

        def __exit__(self, *_):
            entered.append(None)

    monkeypatch.setattr(torch.cuda, "device_of", DeviceOf)
    x = torch.ones(3)
    assert kernels.on_device(lambda scale, x: scale * len(entered))(2, x) == 2
    assert entered[0] is x
    assert entered[1] is None


@pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="triton is not installed")
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_triton_launch_sets_its_device(operation):
    """Bug: with ``device="cuda:1"`` kernels went to device 0, the current one."""
    cuda = importlib.import_module(f"pairnorm.nn.ops._triton.{operation}")
    source = importlib.util.find_spec(cuda.__name__).loader.get_source(cuda.__name__)
    functions = source.split("\ndef ")
    for before, function in itertools.pairwise(functions):
        launches = "](" in function and "num_warps=" in function
        name = function.split("(")[0]
        assert not launches or before.endswith("@on_device") or name == "join", name


@pytest.mark.parametrize("nodes", [1, 31, 32, 33, 1000])
@pytest.mark.parametrize(("across", "most"), [(1, 1), (3, 8), (40, 8)])
def test_partition_covers_every_node_once(nodes, across, most):
    programs, share = kernels.partition_nodes(nodes, across, 32, most)
    assert share % 32 == 0
    assert (programs - 1) * share < nodes <= programs * share
    assert programs * across <= max(most, across)
