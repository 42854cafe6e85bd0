"""What the tests of the core share: seeds, random graphs, and a switch to the plain torch forms."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from pairnorm.nn import SparseMatrix, backends, propagation

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # importing PyG calls torch.jit.script
    import torch_geometric.nn  # noqa: F401


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Small tensors are done sooner by one thread, above all where cores are shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Iterator[None]]:
    """A context in which every operation takes its plain torch form, which defines it."""

    @contextmanager
    def plain() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(backends, "_module", lambda device, operation: None)
            yield

    return plain


@pytest.fixture(params=["kernels", "plain"])
def either_form(request: pytest.FixtureRequest, without_kernels: Callable) -> Iterator[str]:
    """Run the test twice: as this machine would, and in the plain torch forms."""
    if request.param == "kernels":
        yield request.param
        return
    with without_kernels():
        yield request.param


@pytest.fixture
def edge_index() -> Tensor:
    """An undirected graph of 20 nodes: a hub, random edges, and two isolated nodes at the end."""
    random = torch.randint(0, 18, (2, 25), generator=torch.Generator().manual_seed(1))
    hub = torch.stack([torch.zeros(12, dtype=torch.long), torch.arange(1, 13)])
    edges = torch.cat([random[:, random[0] != random[1]], hub], 1)
    return torch.unique(torch.cat([edges, edges.flip(0)], 1), dim=1)


@pytest.fixture
def adjacency(edge_index: Tensor) -> SparseMatrix:
    return propagation(edge_index, num_nodes=20)
