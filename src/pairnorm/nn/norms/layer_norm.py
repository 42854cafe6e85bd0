"""LayerNorm: one mean and one variance for all features of a graph, or of a node."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pairnorm.base.errors import one_of
from pairnorm.nn.norms.base import ParametricNorm
from pairnorm.nn.ops.moments import Groups, to_accumulation_dtype

MODES = ("graph", "node")


class LayerNorm(ParametricNorm):
    r"""Standardize all features of a graph, or of a node, together (Ba et al. 2016, "Layer Normalization").

    $$
    \boldsymbol\gamma \odot (\mathbf{x}_i - \mu) \big/ \sqrt{\sigma^2 + \epsilon} + \boldsymbol\beta
    $$

    - ``"graph"``: $\mu$ and $\sigma^2$ are over all nodes and features of a graph, as is PyG's default.
    - ``"node"``: over the features of one node, as in ``torch.nn.LayerNorm``.

    PyG adds eps to $\sigma$ instead where it is given no ``batch``; here it is always in the root.

    Args:
        in_channels: The width of a node's representation.
        mode: ``"graph"`` or ``"node"``.
        eps: Added to the variance.
        num_models: Train this many models side by side; None for an ordinary module.
    """

    def __init__(
        self,
        in_channels: int,
        mode: Literal["graph", "node"] = "node",
        eps: float = 1e-5,
        num_models: int | None = None,
    ) -> None:
        super().__init__(in_channels, eps, num_models)
        self.mode = one_of("mode", mode, MODES)
        self.weight, self.bias = nn.Parameter(torch.ones(self.shape)), nn.Parameter(torch.zeros(self.shape))

    def forward(self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None) -> Tensor:
        """Normalize ``x``; see ``Norm`` for the arguments."""
        self.check(x)
        wide = to_accumulation_dtype(x)
        factor: Tensor = self.weight
        if self.mode == "node":
            y = F.layer_norm(wide, wide.shape[-1:], eps=self.eps)
        else:
            groups = Groups.of(x, batch, batch_size)
            for _ in range(2):  # as in Groups.center: the second mean is the rounding of the first
                wide = wide - groups.spread(groups.mean(wide).mean(-1, keepdim=True))
            variance = groups.spread(groups.mean(wide.square()).mean(-1, keepdim=True))
            y, factor = wide, self.weight * (variance + self.eps).rsqrt()
        return torch.addcmul(self.bias, y, factor).to(x.dtype)
