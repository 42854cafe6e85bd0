"""GraphNorm: every feature is standardized over its graph, with a learned share of the mean left in."""

import torch
from torch import Tensor, nn

from pairnorm.nn.norms.base import ParametricNorm
from pairnorm.nn.ops.moments import Groups, to_accumulation_dtype


class GraphNorm(ParametricNorm):
    r"""Standardize every feature over its graph (Cai et al. 2021, "GraphNorm").

    With $\boldsymbol\mu$ the mean of the graph and
    $\mathbf{z}_i = \mathbf{x}_i - \boldsymbol\alpha \odot \boldsymbol\mu$:

    $$
    \boldsymbol\gamma \odot \mathbf{z}_i \Big/ \sqrt{\tfrac{1}{n} \textstyle\sum_j \mathbf{z}_j^2 + \epsilon}
        + \boldsymbol\beta
    $$

    Args:
        in_channels: The width of a node's representation.
        eps: Added to the variance.
        num_models: Train this many models side by side; None for an ordinary module.
    """

    def __init__(self, in_channels: int, eps: float = 1e-5, num_models: int | None = None) -> None:
        super().__init__(in_channels, eps, num_models)
        self.weight, self.bias = nn.Parameter(torch.ones(self.shape)), nn.Parameter(torch.zeros(self.shape))
        self.mean_scale = nn.Parameter(torch.ones(self.shape))

    def forward(self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None) -> Tensor:
        """Normalize ``x``; see ``Norm`` for the arguments."""
        self.check(x)
        groups, wide = Groups.of(x, batch, batch_size), to_accumulation_dtype(x)
        # Exact where the mean goes altogether: x − αμ would keep its rounding. The mean square of what is
        # left is the variance and the square of the share of the mean.
        centered, left = groups.center(wide), (1 - self.mean_scale) * groups.mean_of_each(wide)
        variance = groups.mean_of_each(centered.square()) + left.square()
        factor = self.weight * (variance + self.eps).rsqrt()
        return torch.addcmul(left * factor + self.bias, centered, factor).to(x.dtype)
