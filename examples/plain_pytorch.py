"""Use PairNorm in your own PyTorch model: a deep GCN on Cora, without and with the layer."""

import sys
from itertools import pairwise

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import pairnorm


class DeepGCN(nn.Module):
    """Graph convolutions with PairNorm after the activation, in one line."""

    def __init__(
        self, features: int, classes: int, depth: int = 10, hidden: int = 32, norm: bool = True
    ) -> None:
        super().__init__()
        widths = [features, *[hidden] * (depth - 1), classes]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.norm = pairnorm.PairNorm(mode="PN-SI") if norm else nn.Identity()

    def forward(self, x, adjacency):
        """Return logits; ``adjacency`` is from ``pairnorm.nn.normalized_adjacency``."""
        for layer in self.layers[:-1]:
            x = self.norm(torch.relu(adjacency @ layer(x)))
        return adjacency @ self.layers[-1](x)


def train(model: nn.Module, graph: pairnorm.Graph, epochs: int) -> float:
    """Return the accuracy on the test nodes."""
    x, adjacency = graph.features.to_dense(), pairnorm.nn.normalized_adjacency(graph.adjacency)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=5e-4)
    for _ in range(epochs):
        optimizer.zero_grad()
        loss = cross_entropy(model(x, adjacency)[graph.train], graph.labels[graph.train])
        loss.backward()
        optimizer.step()
    right = model(x, adjacency).argmax(1) == graph.labels
    return float(right[graph.test].float().mean())


if __name__ == "__main__":
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    cora = pairnorm.load("cora")
    for norm in (False, True):
        torch.manual_seed(0)
        model = DeepGCN(cora.num_features, cora.num_classes, norm=norm)
        accuracy = train(model, cora, epochs)
        print(f"10 layers {'with' if norm else 'without'} PairNorm: {accuracy:.1%} of the test papers right")
