import torch
from torch_geometric.nn import GraphNorm as PeerGraphNorm

from pairnorm.nn.norms import GraphNorm


def test_equals_pyg(batch, near):
    peer = PeerGraphNorm(5).double()
    for parameter in peer.parameters():
        torch.nn.init.normal_(parameter)
    ours = GraphNorm(5).double()
    ours.load_state_dict(peer.state_dict())
    x = torch.randn(12, 5, dtype=torch.float64) * 2 + 3
    near(ours(x, batch), peer(x, batch))


def test_a_common_offset_does_not_hide_differences(near):
    x = 1e4 + torch.randn(300, 16)
    near(GraphNorm(16)(x), GraphNorm(16)(x.double()), 1e-4)
