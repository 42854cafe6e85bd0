"""Train PairNorm on batches of a graph, then calibrate it: predictions do not depend on the batch size.

Batches come from PyG's NeighborLoader if pyg-lib or torch-sparse is installed, otherwise from a class here.
"""

import sys
from collections.abc import Iterator
from itertools import pairwise

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import SAGEConv
from torch_geometric.typing import WITH_PYG_LIB, WITH_TORCH_SPARSE
from torch_geometric.utils import k_hop_subgraph

import pairnorm
from pairnorm.nn import calibrate

epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
torch.manual_seed(0)
cora = pairnorm.load("cora")
data = Data(x=cora.features.to_dense(), edge_index=cora.edge_index, y=cora.labels)
DEPTH = 3


class Net(torch.nn.Module):
    """A GraphSAGE whose layers each have a PairNorm."""

    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        widths = [cora.num_features, hidden, hidden, cora.num_classes]
        self.convolutions = torch.nn.ModuleList(SAGEConv(*pair) for pair in pairwise(widths))
        self.norms = torch.nn.ModuleList(
            pairnorm.PairNorm(mode="PN-SI", track_running_stats=True) for _ in range(DEPTH - 1)
        )

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        """Return the logits of the nodes."""
        for convolution, norm in zip(self.convolutions, self.norms, strict=False):
            x = norm(convolution(x, edge_index).relu())
        return self.convolutions[-1](x, edge_index)


class Batches:
    """Batches of ``size`` nodes, which come first, followed by all nodes that their logits depend on."""

    def __init__(self, nodes: torch.Tensor, size: int) -> None:
        self.nodes, self.size = nodes, size

    def __iter__(self) -> Iterator[Data]:
        for seeds in self.nodes[torch.randperm(len(self.nodes))].split(self.size):
            near = k_hop_subgraph(seeds, DEPTH, data.edge_index)[0]
            nodes = torch.cat([seeds, near[~torch.isin(near, seeds)]])
            position = torch.full((cora.num_nodes,), -1)
            position[nodes] = torch.arange(len(nodes))
            edges = position[data.edge_index]
            inside = (edges >= 0).all(0)
            yield Data(
                x=data.x[nodes],
                y=data.y[nodes],
                edge_index=edges[:, inside],
                n_id=nodes,
                batch_size=len(seeds),
            )


def batches(nodes: torch.Tensor, size: int) -> NeighborLoader | Batches:
    """Return batches with complete neighborhoods; with sampled ones, PairNorm's statistics are estimates."""
    if WITH_PYG_LIB or WITH_TORCH_SPARSE:
        return NeighborLoader(data, [-1] * DEPTH, nodes, batch_size=size, shuffle=True)
    return Batches(nodes, size)


def infer(model: Net, size: int) -> torch.Tensor:
    """Return the logits of all nodes, computed in batches of ``size`` nodes."""
    model.eval()
    result = torch.empty(cora.num_nodes, cora.num_classes)
    with torch.no_grad():
        for batch in batches(torch.arange(cora.num_nodes), size):
            own = slice(batch.batch_size)
            result[batch.n_id[own]] = model(batch.x, batch.edge_index)[own]
    return result


model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
for _ in range(epochs):
    model.train()
    for norm in model.norms:
        norm.statistics.reset()  # forget the statistics of earlier weights
    for batch in batches(cora.train.nonzero()[:, 0], 70):
        optimizer.zero_grad()
        own = slice(batch.batch_size)
        cross_entropy(model(batch.x, batch.edge_index)[own], batch.y[own]).backward()
        optimizer.step()

calibrate(model, batches(torch.arange(cora.num_nodes), 500))
logits = {size: infer(model, size) for size in (200, 1000)}
model.train()  # PairNorm then uses the statistics of its input, the whole graph
with torch.no_grad():
    whole = model(data.x, data.edge_index)
difference = max(float((one - whole).abs().max()) for one in logits.values())
print(f"Largest difference from the whole graph: {difference:.1e}")
accuracy = (whole.argmax(1) == data.y)[cora.test].float().mean()
print(f"{accuracy:.1%} of the test papers right")
