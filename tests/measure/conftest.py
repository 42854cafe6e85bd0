"""Graphs and brute force in float64 that the measures are tested against."""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # importing PyG calls torch.jit.script
    import torch_geometric.nn  # noqa: F401


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def adjacency() -> Tensor:
    """A connected undirected graph of 40 nodes, dense: a ring and random chords."""
    generator = torch.Generator().manual_seed(0)
    n = 40
    dense = (torch.rand(n, n, generator=generator) < 0.08).float()
    ring = torch.roll(torch.eye(n), 1, dims=1)
    return ((dense + dense.T + ring + ring.T) > 0).float().fill_diagonal_(0)


@pytest.fixture
def brute_force() -> Callable[[Tensor], Tensor]:
    """All n² distances between the rows of [n, d], each from its own difference, in float64."""

    def distances(rows: Tensor) -> Tensor:
        rows = rows.double()
        return (rows[:, None] - rows[None]).square().sum(-1).sqrt()

    return distances
