"""Compare your own model: a deep GraphSAGE with initial residual connections, in plain PyG.

To compare it with other methods: pairnorm compare --dataset cora --method own_model:DeepSAGE
"""

import sys

from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

from pairnorm import load
from pairnorm.train import Spec, register, train


class DeepSAGE(nn.Module):
    """Takes features [nodes, features] and edges [2, edges], returns logits."""

    kind, version, grid = "model", "1", (0.1, 0.5)  # validation selects one of two strengths

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        num_layers: int,
        hidden_channels: int,
        dropout: float,
        strength: float,
    ) -> None:
        super().__init__()
        self.first, self.last = (
            nn.Linear(in_channels, hidden_channels),
            nn.Linear(hidden_channels, out_channels),
        )
        self.convolutions = nn.ModuleList(
            SAGEConv(hidden_channels, hidden_channels) for _ in range(num_layers)
        )
        self.dropout, self.strength = nn.Dropout(dropout), strength

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return logits, ``[nodes, out_channels]``."""
        h = first = self.first(x).relu()
        for convolution in self.convolutions:
            h = convolution(self.dropout(h), edge_index).relu().lerp(first, self.strength)
        return self.last(h)


register("DeepSAGE", DeepSAGE)

if __name__ == "__main__":
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    spec = Spec("cora", "GCN", 4, method="DeepSAGE", scaling="none", epochs=epochs)
    for trial in train(load("cora"), spec, seeds=[0, 1], device="cpu"):
        print(f"{100 * trial.test_accuracy:.1f}% of the test papers right: {spec}, seed {trial.seed}")
