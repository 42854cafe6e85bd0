"""What one writes with PyG alone: GCN, GAT and SGC with its PairNorm, one trial at a time."""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import GATConv, GCNConv, PairNorm
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import spmm

from pairnorm.data import Graph

DROPOUT = 0.6


class DeepGNN(nn.Module):
    """Convolutions with PairNorm-SI after each activation but the last.

    GCN caches its normalized adjacency, or, with ``normalized``, is given it.
    """

    def __init__(
        self, model: str, features: int, hidden: int, classes: int, depth: int, normalized: bool = False
    ) -> None:
        super().__init__()
        widths = [features, *[hidden] * (depth - 1), classes]
        self.activation = torch.relu if model == "GCN" else functional.elu
        self.norm = PairNorm(scale_individually=True)
        self.convolutions = nn.ModuleList(
            GCNConv(before, after, cached=not normalized, normalize=not normalized)
            if model == "GCN"
            else GATConv(before, after, dropout=DROPOUT)
            for before, after in pairwise(widths)
        )

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        """Return logits."""
        for convolution in self.convolutions[:-1]:
            x = functional.dropout(x, DROPOUT, self.training)
            x = self.norm(self.activation(convolution(x, adjacency)))
        x = functional.dropout(x, DROPOUT, self.training)
        result: Tensor = self.convolutions[-1](x, adjacency)
        return result


class DeepSGC(nn.Module):
    """Propagation with PairNorm after each step, in every forward pass, then a linear map."""

    def __init__(self, features: int, classes: int, depth: int) -> None:
        super().__init__()
        self.depth, self.norm, self.linear = depth, PairNorm(), nn.Linear(features, classes)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        """Return logits, from an adjacency that is normalized already."""
        x = self.norm(x)
        for _ in range(self.depth):
            x = self.norm(spmm(adjacency, x))
        result: Tensor = self.linear(functional.dropout(x, DROPOUT, self.training))
        return result


def dense_features(graph: Graph) -> Tensor:
    """Return the features as PyG's datasets have them: dense, each row divided by its sum."""
    x = graph.features.to_dense()
    return x / x.sum(1, keepdim=True).clamp(min=1e-12)


def edge_index(graph: Graph) -> Tensor:
    """Return the edges in PyG's usual form."""
    return graph.adjacency.to_sparse_coo().indices()


def normalized_adjacency(graph: Graph) -> Tensor:
    """Return the normalized adjacency as a sparse matrix, which PyG can multiply with in one go."""
    edges, weights = gcn_norm(edge_index(graph), num_nodes=graph.num_nodes)
    return torch.sparse_coo_tensor(edges, weights, graph.adjacency.shape).coalesce().to_sparse_csr()


def epoch_of(model: nn.Module, graph: Graph, x: Tensor, adjacency: Tensor) -> Callable[[], float]:
    """Return a function that trains one epoch and validates, as a plain loop does."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=5e-4)
    train, validation, labels = graph.train, graph.validation, graph.labels

    def epoch() -> float:
        model.train()
        optimizer.zero_grad()
        functional.cross_entropy(model(x, adjacency)[train], labels[train]).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            right = model(x, adjacency)[validation].argmax(1) == labels[validation]
            return float(right.float().mean())

    return epoch
