import pytest
import torch
from torch_geometric.nn import LayerNorm as PeerLayerNorm

from pairnorm.nn.norms import LayerNorm


@pytest.mark.parametrize("mode", ["graph", "node"])
def test_equals_pyg(mode, batch, near):
    peer = PeerLayerNorm(5, mode=mode).double()
    torch.nn.init.normal_(peer.weight)
    torch.nn.init.normal_(peer.bias)
    ours = LayerNorm(5, mode).double()
    ours.load_state_dict(peer.state_dict())
    x = torch.randn(12, 5, dtype=torch.float64) * 2 + 3
    # Without a batch PyG adds eps outside the root.
    near(ours(x, batch), peer(x, torch.zeros(12, dtype=torch.long) if batch is None else batch))


def test_a_common_offset_does_not_hide_differences(near):
    x = 1e4 + torch.randn(300, 16)
    near(LayerNorm(16, "graph")(x), LayerNorm(16, "graph")(x.double()), 1e-4)


def test_unknown_mode(raises):
    with raises("unknown-choice", value="graphs"):
        LayerNorm(5, "graphs")
