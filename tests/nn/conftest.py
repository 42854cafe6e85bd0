"""What the tests of the core share: seeds, random graphs, and a switch to the reference forms."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
    """A context in which every operation takes its reference form in torch."""

    @contextmanager
    def reference_forms() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(kernels, "is_installed", lambda device: False)
            yield

    return reference_forms


@pytest.fixture(params=["kernels", "reference"])
def either_form(request: pytest.FixtureRequest, without_kernels: Callable) -> Iterator[str]:
    """Run the test twice: as this machine would, and in the reference forms."""
    if request.param == "kernels":
        yield request.param
        return
    with without_kernels():
        yield request.param


@pytest.fixture
def double_by_default() -> Iterator[Callable[[], None]]:
    """A function that makes float64 torch's default dtype until the end of the test."""
    yield lambda: torch.set_default_dtype(torch.float64)
    torch.set_default_dtype(torch.float32)


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
