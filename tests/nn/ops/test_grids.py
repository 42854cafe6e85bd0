"""A grid of CUDA has 2³¹ - 1 places along its first axis and 65,535 along the others: checked without one."""

import pytest
import torch

pytest.importorskip("triton")

from pairnorm.nn.ops._triton import dropout as dropout
from pairnorm.nn.ops._triton import linear as linear
from pairnorm.nn.ops._triton import pair_norm as pair_norm
from pairnorm.nn.ops._triton import sparse_product as sparse_product

NODES = 10_000_000


@pytest.fixture
def grids(monkeypatch):
    """Put in place of every kernel something that takes down the grid it is launched with."""
    actual = []

    class Recorder:
        def __getitem__(self, grid):
            actual.append(grid)
            return lambda *args, **settings: None

    for module in (dropout, linear, pair_norm, sparse_product):
        for name, value in vars(module).items():
            if type(value).__module__.startswith("triton"):
                monkeypatch.setattr(module, name, Recorder())
    return actual


@pytest.mark.parametrize(("trials", "features"), [(1, 32), (1, 2000), (50, 32), (1, 1)])
def test_grids_of_ten_million_nodes_are_within_limits(grids, trials, features):
    x = torch.empty(NODES, trials, features, device="meta")
    keys = torch.empty(trials, dtype=torch.int32, device="meta")
    dropout.forward(x, 0.5, keys)
    sparse_product.activation_backward(x, x, "relu")
    for mode in ("PN", "PN-SI"):
        _, saved = pair_norm.forward(x, None, 1.0, 1e-6, mode, True)
        pair_norm.backward(saved, (x,), (None, 1.0, 1e-6, mode), (x,), (True,))
    weight = torch.empty(trials, features, 32, device="meta")
    linear.forward(x, weight, None, 0.5, keys, True)
    assert len(grids) > 10
    for first, *others in grids:
        assert 0 < first < 2**31
        assert all(0 < other < 2**16 for other in others)
