import torch
from torch_geometric.nn import BatchNorm as PeerBatchNorm

from pairnorm.nn.norms import BatchNorm


def pair(momentum=0.1):
    peer = PeerBatchNorm(5, momentum=momentum).double()
    torch.nn.init.normal_(peer.module.weight)
    torch.nn.init.normal_(peer.module.bias)
    ours = BatchNorm(5, momentum=momentum).double()
    ours.load_state_dict(peer.module.state_dict(), strict=False)
    return ours, peer


def test_equals_pyg_in_training_and_evaluation(near):
    for momentum in (0.1, 1.0):
        ours, peer = pair(momentum)
        for _ in range(3):
            x = torch.randn(12, 5, dtype=torch.float64) * 2 + 3
            near(ours(x), peer(x))
        near(ours.running_mean, peer.module.running_mean)
        near(ours.running_var, peer.module.running_var)
        near(ours.eval()(x), peer.eval()(x))


def test_graphs_are_one_batch(near):
    x = torch.randn(12, 5, dtype=torch.float64)
    near(BatchNorm(5)(x, torch.arange(12) % 3), BatchNorm(5)(x))


def test_reset_forgets(near):
    norm = BatchNorm(5)
    x = torch.randn(12, 5)
    norm(x)
    norm.reset_parameters()
    near(norm.eval()(x), x, 1e-4)


def test_one_node_has_no_variance(raises):
    with raises("too-few-nodes", value=1):
        BatchNorm(3)(torch.randn(1, 3))
    BatchNorm(3).eval()(torch.randn(1, 3))
