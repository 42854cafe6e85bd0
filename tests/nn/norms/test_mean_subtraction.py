import torch
from torch_geometric.nn import MeanSubtractionNorm

from pairnorm.nn.norms import MeanSubtraction


def test_equals_pyg(batch, near):
    x = torch.randn(12, 5, dtype=torch.float64)
    near(MeanSubtraction()(x, batch), MeanSubtractionNorm()(x, batch))
