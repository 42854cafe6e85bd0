import time

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

from pairnorm import PairNorm, Probe
from pairnorm.measure import Influence, influence_by_hop
from pairnorm.measure.diagnosis import form_verdict
from pairnorm.nn import GCN


def hops(adjacency):
    """All distances of a dense graph by matrix powers; infinite where there is no path."""
    distances = torch.full(adjacency.shape, torch.inf)
    reached = torch.eye(len(adjacency))
    for hop in range(len(adjacency)):
        distances[(reached > 0) & (distances > hop)] = hop
        reached = reached + reached @ adjacency
    return distances


def path(length):
    nodes = torch.arange(length - 1)
    return torch.stack([nodes, nodes + 1])


class Net(nn.Module):
    """Convolutions of a fixed matrix with an activation between them."""

    def __init__(self, matrix, depth, act, norm=None):
        super().__init__()
        self.matrix, self.act, self.norm = matrix, act, norm or nn.Identity()
        self.linears = nn.ModuleList(nn.Linear(3, 3) for _ in range(depth)).double()

    def forward(self, x):
        for linear in self.linears:
            x = self.norm(self.act(linear(self.matrix @ x)))
        return x


@pytest.mark.parametrize("norm", [None, PairNorm()])
@pytest.mark.parametrize("act", [nn.Identity(), nn.Tanh()])
def test_equals_brute_force_jacobians(adjacency, act, norm):
    adjacency = torch.block_diag(adjacency, torch.zeros(1, 1)).double()  # and a node without edges
    x, nodes = torch.randn(41, 3, dtype=torch.float64), torch.tensor([0, 7, 40])
    model = Net(torch.rand_like(adjacency) * (adjacency + torch.eye(41)), 2, act, norm)
    actual = influence_by_hop(model, x, adjacency, steps=2, nodes=nodes)
    jacobian = torch.autograd.functional.jacobian(model, x).abs().sum((1, 3))  # [node, other]
    distances = hops(adjacency.float())
    for row, node in enumerate(nodes):
        for hop in range(3):
            at = distances[node] == hop
            assert actual.counts[row, hop] == at.sum()
            torch.testing.assert_close(actual.totals[row, hop], jacobian[node, at].sum())
        torch.testing.assert_close(actual.totals[row, 3], jacobian[node, distances[node] > 2].sum())
    assert bool(actual.totals[:, 3].any()) == (norm is not None)  # the mean runs over all nodes


def test_baseline_is_a_random_walk(adjacency):
    walk = (adjacency + torch.eye(40)).double()
    walk = torch.linalg.matrix_power(walk / walk.sum(1, keepdim=True), 3)
    actual = influence_by_hop(lambda x: walk @ x, torch.rand(40, 2).double(), adjacency, steps=3, nodes=40)
    torch.testing.assert_close(actual.shares, actual.baseline)  # a linear model with the same weights
    assert float(actual.baseline.sum()) == pytest.approx(1)
    assert actual.breadth == pytest.approx(float((actual.baseline[:-1] * torch.arange(4)).sum()))


def influence_with(shares, baseline, counts=(1, 2, 2, 2, 2, 0)):
    return Influence(
        torch.tensor([0]), 4, torch.tensor([shares]), torch.tensor([counts]), torch.tensor(baseline)
    )


def test_bottlenecks_are_distinguished():
    far, near = [0.1, 0.2, 0.3, 0.2, 0.2, 0.0], [0.7, 0.29, 0.005, 0.005, 0.0, 0.0]
    nearest = [0.9, 0.099, 0.001, 0.0, 0.0, 0.0]
    record = record_of_a_healthy_layer()
    computational = form_verdict([record], influence_with(nearest, far))
    assert computational.kind == "short-range"
    assert "beyond 1 hops" in computational.text
    assert "computational bottleneck: propagation alone would take 70%" in computational.text
    topological = form_verdict([record], influence_with(nearest, [0.8, 0.195, 0.005, 0.0, 0.0, 0.0]))
    assert "topological bottleneck" in topological.text
    assert form_verdict([record], influence_with(far, far)).kind == "no-sign"
    assert form_verdict([record], influence_with(near, far)).kind == "short-range"
    assert form_verdict([record], influence_with(nearest, far, (1, 2, 0, 0, 0, 0))).kind == "no-sign"


def record_of_a_healthy_layer():
    model = Net(torch.eye(5, dtype=torch.float64), 1, nn.Identity())
    model.conv = pyg.GCNConv(3, 3)
    with Probe(model) as probe:
        model.conv(torch.randn(20, 3), path(20))
    return probe.records[0]


def test_probe_uses_the_last_inputs():
    edge_index, x = path(30), torch.randn(30, 5)
    both = torch.cat([edge_index, edge_index.flip(0)], 1)
    model = pyg.GCN(5, 8, 6, 2, dropout=0.5)
    with Probe(model) as probe:
        model(x, both)
    actual = probe.influence(nodes=torch.arange(30))
    assert model.training
    model.eval()
    expected = influence_by_hop(lambda h: model(h, both), x, both, steps=6, nodes=torch.arange(30))
    torch.testing.assert_close(actual.totals, expected.totals)
    frame = actual.frame()
    assert frame["hop"].tolist() == [0, 1, 2, 3, 4, 5, 6, float("inf")]
    assert frame["share"].sum() == pytest.approx(1)
    assert frame["total"].tolist() == pytest.approx(actual.totals.mean(0).tolist())
    [axis] = actual.plot().axes
    assert len(axis.patches) == 7
    assert f"{actual.breadth:.1f} hops" in axis.get_title("left")
    assert probe.verdict().kind in ("no-sign", "short-range", "states-collapse")


def test_model_that_ignores_far_nodes_has_a_computational_bottleneck():
    class Muted(nn.Module):
        def __init__(self):
            super().__init__()
            self.convs = nn.ModuleList(pyg.SAGEConv(4, 4, bias=False) for _ in range(4))
            for conv in self.convs:
                nn.init.eye_(conv.lin_r.weight)  # the node itself
                nn.init.eye_(conv.lin_l.weight).mul_(1e-4)

        def forward(self, x, edge_index):
            for conv in self.convs:
                x = conv(x, edge_index)
            return x

    with torch.no_grad():
        model = Muted()
    edge_index = torch.cat([path(40), path(40).flip(0)], 1)
    with Probe(model) as probe:
        model(torch.randn(40, 4), edge_index)
    probe.influence()
    verdict = probe.verdict()
    assert verdict.kind == "short-range"
    assert "beyond 0 hops" in verdict.text
    assert "computational bottleneck" in verdict.text


def test_features_may_be_sparse_or_in_an_object(adjacency):
    graph, x = adjacency.to_sparse_csr(), (torch.rand(40, 5) > 0.5).float()
    model = GCN(5, 3, num_layers=2, hidden_channels=4)
    results = []
    for given in (x, x.to_sparse_csr()):
        with Probe(model) as probe:
            model(given, graph)
        results.append(probe.influence(nodes=3).totals)
    torch.testing.assert_close(*results)


def test_invalid_arguments_raise(raises, adjacency):
    model = Net(adjacency.double(), 1, nn.Identity())
    with raises("wrong-shape"):
        influence_by_hop(lambda x: x.sum(0, keepdim=True), torch.rand(40, 3), adjacency, steps=1)
    with raises("out-of-range", value=40):
        influence_by_hop(model, torch.rand(40, 3).double(), adjacency, steps=1, nodes=torch.tensor([40]))


def test_ten_thousand_nodes_take_seconds():
    edge_index, x = torch.randint(10_000, (2, 40_000)), torch.randn(10_000, 32)
    model = pyg.GCN(32, 32, 4, 7)
    with Probe(model, ["mean_average_distance", "numerical_rank"]) as probe:
        model(x, edge_index)
    start = time.process_time()
    assert float(probe.influence().shares.sum()) == pytest.approx(1)
    assert time.process_time() - start < 30
