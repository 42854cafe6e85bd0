"""A graph with all that is odd about graphs, and what may be known of its features."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pairnorm.nn import SparseMatrix, normalized_adjacency

NODES, WIDTH = 14, 5


@pytest.fixture
def edge_index() -> Tensor:
    """A hub, a cycle and a long tail; a component of two, 11 and 12; and 13 without an edge."""
    pairs = [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (3, 4), (5, 6), (6, 7), (7, 8), (8, 9), (9, 10), (10, 6)]
    one_way = torch.tensor([*pairs, (11, 12)]).T
    return torch.cat([one_way, one_way.flip(0)], 1)


@pytest.fixture(params=["rw", "sym"])
def matrix(edge_index: Tensor, request: pytest.FixtureRequest) -> SparseMatrix:
    return normalized_adjacency(edge_index, request.param, num_nodes=NODES)


@pytest.fixture
def walk(edge_index: Tensor) -> SparseMatrix:
    return normalized_adjacency(edge_index, "rw", num_nodes=NODES)


@pytest.fixture
def features() -> Tensor:
    return torch.randn(NODES, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def _vectors() -> Tensor:
    return torch.zeros(NODES, dtype=torch.bool).index_fill_(0, torch.tensor([4, 8]), True)


def _entries() -> Tensor:
    """A third of the entries; nothing of the last column, all of the first."""
    known = torch.rand(NODES, WIDTH, generator=torch.Generator().manual_seed(2)) < 0.3
    known[:, 0], known[:, -1] = True, False
    known[11:, 1:] = False  # a component without a known entry in most columns
    return known


KNOWN: dict[str, Callable[[], Tensor]] = {
    "vectors": _vectors,
    "most vectors": lambda: torch.arange(NODES) > 5,
    "entries": _entries,
    "nothing": lambda: torch.zeros(NODES, dtype=torch.bool),
    "everything": lambda: torch.ones(NODES, WIDTH, dtype=torch.bool),
}


@pytest.fixture(params=KNOWN)
def known(request: pytest.FixtureRequest) -> Tensor:
    return KNOWN[request.param]()
