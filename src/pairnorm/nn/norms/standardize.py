"""Norms that center or scale features by their mean and variance: over nodes, graphs or the node itself."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pairnorm.base.errors import PairNormError, one_of, real_number
from pairnorm.nn.norms.base import BaseNorm, ParametricNorm
from pairnorm.nn.ops.moments import Groups, check_states, to_accumulation_dtype


class MeanSubtraction(BaseNorm):
    r"""Subtract from every node the mean of its graph.

    Yang et al. (2020, "Revisiting Over-smoothing in Deep GCNs").

    $$
    \mathbf{x}_i - \tfrac{1}{n} \textstyle\sum_j \mathbf{x}_j
    $$
    """

    def forward(self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None) -> Tensor:
        """Normalize ``x``; see ``Norm`` for the arguments."""
        check_states(x)
        return Groups.of(x, batch, batch_size).center(to_accumulation_dtype(x)).to(x.dtype)


class NodeNorm(BaseNorm):
    r"""Divide every node by a root of its own standard deviation.

    Zhou et al. (2021, "Understanding and Resolving Performance Degradation in Deep Graph Convolutional
    Networks").

    With $\sigma_i^2$ the (biased) variance of the features of node i:

    $$
    \mathbf{x}_i \big/ (\sigma_i^2 + \epsilon)^{1 / 2p}
    $$

    Nothing is centered, and no statistic runs over nodes: ``batch`` makes no difference.

    Args:
        p: The paper's p: 1 gives every node a variance of one, larger values change less.
        eps: Added to the variance.
    """

    def __init__(self, p: float = 2.0, eps: float = 1e-5) -> None:
        super().__init__()
        self.p, self.eps = real_number("p", p, above=0), real_number("eps", eps, above=0)

    def forward(self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None) -> Tensor:
        """Normalize ``x``; see ``Norm`` for the arguments."""
        check_states(x)
        wide = to_accumulation_dtype(x)
        # Not Tensor.var, which takes twice the time for rows as short as these.
        variance = (wide - wide.mean(-1, keepdim=True)).square().mean(-1, keepdim=True)
        return (wide * (variance + self.eps).pow(-0.5 / self.p)).to(x.dtype)


class BatchNorm(ParametricNorm):
    r"""Standardize every feature over the nodes (Ioffe & Szegedy 2015, "Batch Normalization").

    $$
    \boldsymbol\gamma \odot (\mathbf{x}_i - \boldsymbol\mu) \big/ \sqrt{\boldsymbol\sigma^2 + \epsilon}
        + \boldsymbol\beta
    $$

    In training, mean and biased variance are those of the nodes at hand, of all graphs together: that is what
    it is named for, so ``batch`` makes no difference. In evaluation they are the running ones, as in
    ``torch.nn.BatchNorm1d``.

    Args:
        in_channels: The width of a node's representation.
        eps: Added to the variance.
        momentum: The share of new statistics in the running ones.
        num_models: Train this many models side by side; None for an ordinary module.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(
        self, in_channels: int, eps: float = 1e-5, momentum: float = 0.1, num_models: int | None = None
    ) -> None:
        super().__init__(in_channels, eps, num_models)
        self.momentum = real_number("momentum", momentum, least=0, most=1)
        self.weight, self.bias = nn.Parameter(torch.ones(self.shape)), nn.Parameter(torch.zeros(self.shape))
        self.register_buffer("running_mean", torch.zeros(self.shape))
        self.register_buffer("running_var", torch.ones(self.shape))

    def reset_parameters(self, seeds: object = None) -> None:
        """Set the scale to one, the offset to zero, and forget the running statistics."""
        super().reset_parameters()
        self.running_mean.zero_()
        self.running_var.fill_(1)

    def forward(self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None) -> Tensor:
        """Normalize ``x``; see ``Norm`` for the arguments."""
        self.check(x)
        if self.training:
            check_several(x)
        wide = to_accumulation_dtype(x)
        running = (self.running_mean, self.running_var)
        mean, variance = (statistic.flatten().to(wide.dtype) for statistic in running)
        y = F.batch_norm(wide.flatten(1), mean, variance, None, None, self.training, self.momentum, self.eps)
        if self.training and mean.dtype != self.running_mean.dtype:  # else they were updated in place
            for statistic, new in zip(running, (mean, variance), strict=True):
                statistic.copy_(new.view_as(statistic))
        return torch.addcmul(self.bias, y.view_as(x), self.weight).to(x.dtype)


def check_several(x: Tensor) -> None:
    """Raise an error unless there are nodes enough for a variance."""
    if len(x) < 2:
        problem = f"x has {len(x)} nodes in training"
        expected = "at least 2, for a variance"
        hint = "Call .eval() to use the running statistics."
        raise PairNormError(problem, code="too-few-nodes", value=len(x), expected=expected, hint=hint)


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
        self.mode = one_of("mode", mode, ("graph", "node"))
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
                wide = wide - groups.to_nodes(groups.mean(wide).mean(-1, keepdim=True))
            variance = groups.to_nodes(groups.mean(wide.square()).mean(-1, keepdim=True))
            y, factor = wide, self.weight * (variance + self.eps).rsqrt()
        return torch.addcmul(self.bias, y, factor).to(x.dtype)


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
        # Exact where α is 1, where x − αμ would keep its rounding error. The mean square of the rest
        # is the variance plus the square of the remaining share of the mean.
        centered, rest = groups.center(wide), (1 - self.mean_scale) * groups.mean_of_each(wide)
        variance = groups.mean_of_each(centered.square()) + rest.square()
        factor = self.weight * (variance + self.eps).rsqrt()
        return torch.addcmul(rest * factor + self.bias, centered, factor).to(x.dtype)
