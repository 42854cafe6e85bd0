"""Every way of computing PairNorm gives the formula, over the same extreme inputs."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from pairnorm import PairNorm, pair_norm
from pairnorm.nn.norms import DegreePairNorm
from pairnorm.nn.pair_norm import MODES

sys.path.insert(0, str(Path(__file__).parent))
import pair_norm_tester as tester

modes = pytest.mark.parametrize("mode", MODES)
extremes = pytest.mark.parametrize("name", tester.EXTREMES)


def batched(x, scale, mode):
    """As the middle one of three graphs, in an order of its own."""
    others = torch.randn(7, *x.shape[1:]).to(x.dtype)
    batch = torch.cat([torch.zeros(3), torch.ones(len(x)), torch.full((4,), 2.0)]).long()
    order = torch.randperm(len(batch))
    y = pair_norm(
        torch.cat([others[:3], x, others[3:]])[order], scale, mode, batch=batch[order], batch_size=3
    )
    return y[order.argsort()][3:-4]


def by_running_statistics(x, scale, mode):
    """In eval, by the statistics of the same rows."""
    norm = PairNorm(scale, mode, track_running_stats=True)
    with torch.no_grad():
        for part in x.split(max(1, len(x) // 3)):
            norm(part)
    return norm.eval()(x) if len(x) else x.clone()


def with_equal_degrees(x, scale, mode):
    return DegreePairNorm(scale, mode).bind(torch.full((len(x),), 4.0))(x)


def without_gradient(x, scale, mode):
    with torch.no_grad():
        return pair_norm(x, scale, mode)


def under_transform(x, scale, mode):
    return torch.func.vmap(lambda x: pair_norm(x, scale, mode))(x.unsqueeze(0))[0]


PATHS = {
    "kernels": lambda x, scale, mode: pair_norm(x, scale, mode),
    "batch": batched,
    "running statistics": by_running_statistics,
    "degrees": with_equal_degrees,
    "torch.func": under_transform,
    "no gradient": without_gradient,
}


@modes
@extremes
@pytest.mark.parametrize("path", PATHS)
def test_path_equals_float64_formula(path, name, mode):
    if path == "degrees" and mode == "PN-SCS":
        return
    if path in ("running statistics", "torch.func") and name == "largest":
        return  # they center in float32, where the difference of the largest numbers is infinite
    x = tester.EXTREMES[name]()
    gradient = path not in ("running statistics", "no gradient")  # the statistics of the first are constants
    tester.check(PATHS[path], x, mode, gradient)


@modes
@extremes
def test_reference_equals_float64_formula(name, mode, without_kernels):
    with without_kernels():
        tester.check(PATHS["kernels"], tester.EXTREMES[name](), mode)


@modes
@extremes
@pytest.mark.skipif(not importlib.util.find_spec("numba"), reason="numba is not installed")
def test_several_threads(name, mode, monkeypatch):
    from pairnorm.nn.ops._numba import pair_norm as kernels

    monkeypatch.setattr(kernels, "MIN_ELEMENTS_FOR_THREADS", 0)
    monkeypatch.setattr(kernels, "BLOCK_ELEMENTS", 64)
    monkeypatch.setattr(kernels, "BLOCKS_PER_TASK", 2)
    tester.check(PATHS["kernels"], tester.EXTREMES[name](), mode)


@modes
def test_inputs_are_unchanged(mode):
    x, grad = torch.randn(5, 3, requires_grad=True), torch.randn(5, 3)
    before = x.detach().clone(), grad.clone()
    torch.autograd.grad(pair_norm(x, mode=mode), x, grad)
    assert torch.equal(x, before[0])
    assert torch.equal(grad, before[1])


@modes
@pytest.mark.parametrize("path", ["kernels", "batch", "degrees"])
def test_autocast(path, mode):
    """The statistics of an oversmoothed state in bfloat16 would be off by several percent."""
    if path == "degrees" and mode == "PN-SCS":
        return
    x = tester.EXTREMES["oversmoothed"]()
    with torch.autocast("cpu", torch.bfloat16):
        tester.check(PATHS[path], x, mode)


@modes
def test_in_place_operations_afterwards(mode):
    """As after BatchNorm1d: Output 0 of a custom Function was a view, and the output was saved."""
    x = torch.randn(12, 3, 4, requires_grad=True)
    for given in (x, x.double(), x[:, 0], x.half()):
        expected = torch.autograd.grad(pair_norm(given, mode=mode).relu().sum(), x)[0]
        y = torch.relu_(pair_norm(given, mode=mode))
        torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], expected)
        expected = torch.autograd.grad((pair_norm(given, mode=mode) + given).square().sum(), x)[0]
        y = pair_norm(given, mode=mode)
        y += given
        torch.testing.assert_close(torch.autograd.grad(y.square().sum(), x)[0], expected)


def test_empty_first_batch_leaves_statistics_empty(raises):
    norm = PairNorm(track_running_stats=True)
    assert norm(torch.randn(0, 4)).shape == (0, 4)
    with raises("not-fitted"):
        norm.eval()(torch.randn(3, 4))
    norm.train()(torch.randn(5, 4))
    assert int(norm.statistics.count) == 5
