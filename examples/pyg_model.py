"""Add PairNorm to a PyG model with one line, and measure its layers with a Probe."""

import sys

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GCN

import pairnorm

epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 30
cora = pairnorm.load("cora")
x, edge_index = cora.features.to_dense(), cora.edge_index


def train(model: torch.nn.Module) -> float:
    """Train on the 140 papers of the training set; return the accuracy on the test papers."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=5e-4)
    for _ in range(epochs):
        optimizer.zero_grad()
        cross_entropy(model(x, edge_index)[cora.train], cora.labels[cora.train]).backward()
        optimizer.step()
    right = model(x, edge_index).argmax(1) == cora.labels
    return float(right[cora.test].float().mean())


for with_pair_norm in (False, True):
    torch.manual_seed(0)
    model = GCN(cora.num_features, hidden_channels=32, num_layers=15, out_channels=cora.num_classes)
    if with_pair_norm:
        pairnorm.add_pair_norm(model, mode="PN-SI")  # after every convolution but the last
    accuracy = train(model)
    with pairnorm.Probe(model) as probe, torch.no_grad():
        model(x, edge_index)
    print(f"\n{'With' if with_pair_norm else 'Without'} PairNorm: {accuracy:.1%} of the test papers right")
    print(probe.verdict())
    print(probe.frame()[["layer", "effective_rank", "mean_average_distance"]].round(4).to_string(index=False))
