"""Norms that center or scale features by their mean and variance: over nodes, graphs or the node itself."""

from typing import Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pairnorm.base.errors import PairNormError, one_of, real_number, whole_number
from pairnorm.nn.norms.base import BaseNorm, ParametricNorm, RunningNorm, bound_to
from pairnorm.nn.ops.moments import Groups
from pairnorm.nn.propagate import dominant_eigenvectors, normalized_adjacency
from pairnorm.nn.sparse import SparseMatrix


class MeanSubtraction(BaseNorm):
    r"""Subtract from every node the mean of its graph.

    Yang et al. (2020, "Revisiting Over-smoothing in Deep GCNs").

    $$
    \mathbf{x}_i - \tfrac{1}{n} \textstyle\sum_j \mathbf{x}_j
    $$
    """

    def forward(self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None) -> Tensor:
        """Normalize ``x``; see ``Norm`` for the arguments."""
        wide, groups = self.prepare(x), Groups.of(x, batch, batch_size)
        return groups.center(wide).to(x.dtype)


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
        wide = self.prepare(x)
        # Not Tensor.var, which takes twice the time for rows as short as these.
        variance = (wide - wide.mean(-1, keepdim=True)).square().mean(-1, keepdim=True)
        return (wide * (variance + self.eps).pow(-0.5 / self.p)).to(x.dtype)


class BatchNorm(RunningNorm):
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

    def __init__(
        self, in_channels: int, eps: float = 1e-5, momentum: float = 0.1, num_models: int | None = None
    ) -> None:
        super().__init__(in_channels, eps, momentum, num_models)

    def forward(self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None) -> Tensor:
        """Normalize ``x``; see ``Norm`` for the arguments."""
        wide = self.prepare(x)
        running = (self.running_mean, self.running_var)
        mean, variance = (statistic.flatten().to(wide.dtype) for statistic in running)
        y = F.batch_norm(wide.flatten(1), mean, variance, None, None, self.training, self.momentum, self.eps)
        if self.training and mean.dtype != self.running_mean.dtype:  # else they were updated in place
            for statistic, new in zip(running, (mean, variance), strict=True):
                statistic.copy_(new.view_as(statistic))
        return torch.addcmul(self.bias, y.view_as(x), self.weight).to(x.dtype)


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

    def forward(self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None) -> Tensor:
        """Normalize ``x``; see ``Norm`` for the arguments."""
        wide = self.prepare(x)
        if self.mode == "node":
            y = F.layer_norm(wide, wide.shape[-1:], eps=self.eps)
            return torch.addcmul(self.bias, y, self.weight).to(x.dtype)
        groups = Groups.of(x, batch, batch_size)
        for _ in range(2):  # as in Groups.center: the second mean is the rounding of the first
            wide = wide - groups.to_nodes(groups.mean(wide).mean(-1, keepdim=True))
        variance = groups.to_nodes(groups.mean(wide.square()).mean(-1, keepdim=True))
        return torch.addcmul(self.bias, wide, self.weight * (variance + self.eps).rsqrt()).to(x.dtype)


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
        self.mean_scale = nn.Parameter(torch.ones(self.shape))

    def forward(self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None) -> Tensor:
        """Normalize ``x``; see ``Norm`` for the arguments."""
        wide, groups = self.prepare(x), Groups.of(x, batch, batch_size)
        # Exact where α is 1, where x − αμ would keep its rounding error. The mean square of the rest
        # is the variance plus the square of the remaining share of the mean.
        centered, rest = groups.center(wide), (1 - self.mean_scale) * groups.mean_of_each(wide)
        variance = groups.mean_of_each(centered.square()) + rest.square()
        factor = self.weight * (variance + self.eps).rsqrt()
        return torch.addcmul(rest * factor + self.bias, centered, factor).to(x.dtype)


class GraphNormV2(ParametricNorm):
    r"""Standardize every feature over its graph, with a learned centering.

    Scholkemper et al. (2025, "Residual Connections and Normalization Can Provably Prevent Oversmoothing in
    GNNs", arXiv 2406.02997). Centering is the projection $\mathbf{x} - \mathbf{u} \mathbf{u}^\top \mathbf{x}$
    with $\mathbf{u} = \mathbf{1} / \sqrt{n}$, which changes the signal that propagation amplifies. Here every
    feature has a learned $\mathbf{u}$. With $\mathbf{V}$ the k dominant eigenvectors of the symmetric
    adjacency and the normalized rest of $\mathbf{1}$ outside their span:

    $$
    \mathbf{u} = \tfrac{1}{\sqrt{n}} \mathbf{1} + \mathbf{V} \boldsymbol\tau, \qquad
    \mathbf{z} = \mathbf{x} - \mathbf{u} \mathbf{u}^\top \mathbf{x}, \qquad
    \mathbf{y} = \gamma \, \mathbf{z} \Big/ \sqrt{\tfrac{1}{n} \textstyle\sum_i z_i^2 + \epsilon} + \beta
    $$

    $\boldsymbol\tau$ starts at zero, where centering is exact and this is ``GraphNorm`` at its start.
    Written from the abstract and two public implementations, which differ: this one has one direction per
    feature.

    Args:
        in_channels: The width of a node's representation.
        num_eigenvectors: The number k of eigenvectors.
        eps: Added to the variance.
        num_models: Train this many models side by side; None for an ordinary module.
    """

    def __init__(
        self, in_channels: int, num_eigenvectors: int = 8, eps: float = 1e-5, num_models: int | None = None
    ) -> None:
        super().__init__(in_channels, eps, num_models)
        self.num_eigenvectors = whole_number("num_eigenvectors", num_eigenvectors, least=1)
        self.tau = nn.Parameter(torch.zeros(*self.shape[:-1], num_eigenvectors + 1, in_channels))
        self.basis: Tensor | None = None  # no buffer: it is the graph's, and half precision would round it

    def reset_parameters(self, seeds: object = None) -> None:
        """Set the scale to one, the offset and the change of direction to zero."""
        super().reset_parameters()
        nn.init.zeros_(self.tau)

    def bind(self, basis: Tensor) -> Self:
        """Take V of the graph, ``[nodes, num_eigenvectors + 1]``, and return the norm."""
        if basis.dim() != 2 or basis.size(1) != self.num_eigenvectors + 1:
            problem = f"basis has shape {list(basis.shape)}"
            expected = f"[nodes, {self.num_eigenvectors + 1}]"
            raise PairNormError(problem, code="wrong-shape", value=list(basis.shape), expected=expected)
        self.basis = basis
        return self

    def bind_graph(self, adjacency: Tensor | SparseMatrix) -> Self:
        """Compute V of a graph, take it, and return the norm; see ``normalized_adjacency`` for its forms."""
        vectors = dominant_eigenvectors(normalized_adjacency(adjacency, "sym"), self.num_eigenvectors)
        ones = torch.full((len(vectors), 1), max(len(vectors), 1) ** -0.5, dtype=vectors.dtype)
        rest = ones.to(vectors) - vectors @ (vectors.T @ ones.to(vectors))
        length = rest.norm()
        return self.bind(torch.cat([vectors, rest / length if length > 1e-6 else 0 * rest], 1))

    def forward(self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None) -> Tensor:
        """Normalize ``x``; see ``Norm`` for the arguments."""
        wide, groups = self.prepare(x), Groups.of(x, batch, batch_size)
        self.basis = bound_to(self.basis, x, "eigenvectors")
        with torch.autocast(x.device.type, enabled=False):
            change = torch.einsum("nk,...kf->n...f", self.basis.to(wide.dtype), self.tau.to(wide.dtype))
        centered, mean = groups.center(wide), groups.mean(wide)
        root = groups.to_nodes(groups.counts(mean).sqrt()).to(wide.dtype)
        # About the mean, which a large common offset would hide otherwise.
        product = groups.to_nodes(groups.sum(change * centered) + groups.sum(change) * mean)
        z = centered - product / root - change * (root * groups.to_nodes(mean) + product)
        variance = groups.mean_of_each(z.square())
        return torch.addcmul(self.bias, z, self.weight * (variance + self.eps).rsqrt()).to(x.dtype)
