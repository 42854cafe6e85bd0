"""GraphNormv2: centering removes a learned direction within the dominant eigenspace of the graph."""

from typing import Self

import torch
from torch import Tensor, nn

from pairnorm.base.errors import PairNormError, whole_number
from pairnorm.nn.norms.base import ParametricNorm
from pairnorm.nn.ops.moments import Groups, to_accumulation_dtype
from pairnorm.nn.propagate import dominant_eigenvectors, normalized_adjacency
from pairnorm.nn.sparse import SparseMatrix


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
        self.weight, self.bias = nn.Parameter(torch.ones(self.shape)), nn.Parameter(torch.zeros(self.shape))
        self.tau = nn.Parameter(torch.zeros(*self.shape[:-1], num_eigenvectors + 1, in_channels))
        self.basis: Tensor | None = None  # no buffer: it is the graph's, and half precision would round it

    def reset_parameters(self, seeds: object = None) -> None:
        """Set the scale to one, the offset and the change of direction to zero."""
        super().reset_parameters()
        nn.init.zeros_(self.tau)

    def bind(self, basis: Tensor) -> Self:
        """Take V of the graph, ``[nodes, num_eigenvectors + 1]``, and return the norm."""
        if basis.dim() != 2 or basis.size(1) != self.num_eigenvectors + 1:
            problem, expected = (
                f"basis has shape {list(basis.shape)}",
                f"[nodes, {self.num_eigenvectors + 1}]",
            )
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
        self.check(x)
        if self.basis is None or len(self.basis) != len(x):
            known = "none" if self.basis is None else f"those of {len(self.basis)} nodes"
            problem = f"x has {len(x)} nodes, and the eigenvectors known are {known}"
            hint = "Call .bind_graph(adjacency) with that of this graph."
            raise PairNormError(problem, code="not-fitted", value=len(x), hint=hint)
        self.basis = self.basis.to(x.device)
        groups, wide = Groups.of(x, batch, batch_size), to_accumulation_dtype(x)
        with torch.autocast(x.device.type, enabled=False):
            change = torch.einsum("nk,...kf->n...f", self.basis.to(wide.dtype), self.tau.to(wide.dtype))
        root = groups.to_nodes(groups.counts(groups.mean(wide)).sqrt()).to(wide.dtype)
        # About the mean, which a large common offset would hide otherwise.
        centered, mean = groups.center(wide), groups.mean_of_each(wide)
        product = groups.to_nodes(groups.sum(change * centered) + groups.sum(change) * groups.mean(wide))
        z = centered - product / root - change * (root * mean + product)
        variance = groups.mean_of_each(z.square())
        return torch.addcmul(self.bias, z, self.weight * (variance + self.eps).rsqrt()).to(x.dtype)
