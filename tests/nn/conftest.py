"""What the tests of the core share: seeds, random graphs, and a switch to the plain torch forms."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pairnorm.nn import SparseMatrix, normalized_adjacency
from pairnorm.nn.layers import GATConvolution, GCNConvolution
from pairnorm.nn.ops import kernels


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Iterator[None]]:
    """A context in which every operation takes its plain torch form, which defines it."""

    @contextmanager
    def plain() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(kernels, "installed", lambda device: False)
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


@pytest.fixture(scope="session")
def check_ranks() -> Iterator[Callable[[str, int], None]]:
    """Have processes of one gloo group check something; see ``ranks.py``."""
    program = [sys.executable, "-W", "error", str(Path(__file__).with_name("ranks.py"))]
    server = subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, start_new_session=True
    )

    def check(name: str, size: int) -> None:
        server.stdin.write(f"{name} {size}\n")
        answers, *_ = select.select([server.stdout], [], [], 120)
        assert answers, "the ranks hang"
        assert json.loads(server.stdout.readline()) == ""

    yield check
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.communicate()


@pytest.fixture
def edge_index() -> Tensor:
    """An undirected graph of 20 nodes: a hub, random edges, and two isolated nodes at the end."""
    random = torch.randint(0, 18, (2, 25), generator=torch.Generator().manual_seed(1))
    hub = torch.stack([torch.zeros(12, dtype=torch.long), torch.arange(1, 13)])
    edges = torch.cat([random[:, random[0] != random[1]], hub], 1)
    return torch.unique(torch.cat([edges, edges.flip(0)], 1), dim=1)


@pytest.fixture
def adjacency(edge_index: Tensor) -> SparseMatrix:
    return normalized_adjacency(edge_index, num_nodes=20)


@pytest.fixture
def peer_of() -> Callable[..., nn.Module]:
    """Give the PyG layer with the weights that one of our layers has for a trial."""
    from torch_geometric.nn import GATConv, GCNConv

    def peer(layer: GCNConvolution | GATConvolution, trial: int = 0, **settings: bool) -> nn.Module:
        _, width, out = layer.weight.shape
        if isinstance(layer, GATConvolution):
            other: nn.Module = GATConv(width, layer.source.size(-1), layer.heads, layer.concat)
            other.att_src.data = layer.source.data[trial : trial + 1].clone()
            other.att_dst.data = layer.target.data[trial : trial + 1].clone()
        else:
            other = GCNConv(width, out, **settings)
        other.lin.weight.data = layer.weight.data[trial].T.clone()
        other.bias.data = layer.bias.data[trial].clone()
        return other

    return peer


@pytest.fixture
def assert_gradients_equal() -> Callable[..., None]:
    """Compare a layer's gradients with those of the PyG layers of its trials."""

    def check(layer: GCNConvolution | GATConvolution, peers: list[nn.Module]) -> None:
        pairs = [
            (layer.weight.grad, torch.stack([peer.lin.weight.grad.T for peer in peers])),
            (layer.bias.grad, torch.stack([peer.bias.grad for peer in peers])),
        ]
        if isinstance(layer, GATConvolution):
            pairs += [
                (layer.source.grad, torch.cat([peer.att_src.grad for peer in peers])),
                (layer.target.grad, torch.cat([peer.att_dst.grad for peer in peers])),
            ]
        for ours, theirs in pairs:
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)

    return check
