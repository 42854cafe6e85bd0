"""PairNorm for the symmetric adjacency: centered about its stationary direction, √degree."""

from dataclasses import dataclass, field
from typing import Literal, Self

import torch
from torch import Tensor

from pairnorm.base.errors import one_of, real_number
from pairnorm.nn.norms.standardize import BaseNorm, bound_to
from pairnorm.nn.ops.pair_norm import Groups, check_states, normalize
from pairnorm.nn.propagate import check_degrees, degrees
from pairnorm.nn.sparse import SparseMatrix

MODES = ("PN", "PN-SI")


class DegreePairNorm(BaseNorm):
    r"""PairNorm with degree-weighted centering, for propagation by the symmetric adjacency.

    Of a connected graph, $\mathbf{D}^{-1/2} \mathbf{A} \mathbf{D}^{-1/2}$ has the dominant eigenvector
    $\mathbf{D}^{1/2} \mathbf{1}$. The states of a deep network converge to its multiples. There nodes
    differ by the root of their degree, and a plain mean does not remove it. Its projection is subtracted:

    $$
    \begin{aligned}
    \mathbf{x}^c_i &= \mathbf{x}_i
        - \sqrt{d_i} \, \tfrac{\sum_j \sqrt{d_j} \, \mathbf{x}_j}{\sum_j d_j} \\
    \text{PN:} \quad
        & s \, \mathbf{x}^c_i
        \Big/ \sqrt{\tfrac{1}{n} \textstyle\sum_j \|\mathbf{x}^c_j\|_2^2 + \epsilon} \\
    \text{PN-SI:} \quad & s \, \mathbf{x}^c_i \Big/ \sqrt{\|\mathbf{x}^c_i\|_2^2 + \epsilon}
    \end{aligned}
    $$

    After ``PN`` the total pairwise squared distance of $\mathbf{z}_i = \mathbf{x}_i / \sqrt{d_i}$, nodes
    weighted by degree, is constant: $\sum_{ij} d_i d_j \|\mathbf{z}_i - \mathbf{z}_j\|_2^2 = 2 n s^2
    \sum_j d_j$. Equal degrees give PairNorm.

    A graph of several components has one such eigenvector each: with the components as ``batch``, every one
    is normalized on its own, and all of them are removed.

    Args:
        scale: The paper's s.
        mode: ``"PN"`` or ``"PN-SI"`` (every row scaled individually).
        eps: Added inside the root.

    Example:
        >>> import torch
        >>> degree = torch.tensor([1.0, 4.0])
        >>> DegreePairNorm().bind(degree)(degree.sqrt().unsqueeze(1)).round(decimals=6)
        tensor([[0.],
                [0.]])
    """

    def __init__(self, scale: float = 1.0, mode: Literal["PN", "PN-SI"] = "PN", eps: float = 1e-6) -> None:
        super().__init__()
        self.scale, self.eps = real_number("scale", scale, above=0), real_number("eps", eps, above=0)
        self.mode = one_of("mode", mode, MODES)
        self.degree: Tensor | None = None  # no buffer: it is the graph's, and half precision would round it

    def bind(self, degree: Tensor) -> Self:
        """Set the graph's degrees, and return the norm.

        Args:
            degree: The row sums of the adjacency, self-loops included where it has them, ``[nodes]``.
        """
        self.degree = check_degrees(degree)
        return self

    def bind_graph(self, adjacency: Tensor | SparseMatrix) -> Self:
        """Take the degrees of a graph, self-loops included, and return the norm."""
        return self.bind(degrees(adjacency))

    def forward(self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None) -> Tensor:
        """Normalize ``x``; see ``Norm`` for the arguments."""
        check_states(x)
        self.degree = bound_to(self.degree, x, "degrees")
        plain = Groups.of(x, batch, batch_size)
        groups = _Weighted(plain.num_nodes, plain.batch, plain.size, degree=self.degree)
        return normalize(x, groups, self.scale, self.eps, self.mode)


@dataclass(frozen=True)
class _Weighted(Groups):
    """Graphs that are centered by the projection onto the root of the degrees, which is its own adjoint."""

    degree: Tensor = field(kw_only=True)

    def project(self, x: Tensor) -> Tensor:
        """Return Σ √d x / Σ d over the nodes of each graph."""
        root = self._root(x)
        if self.batch is not None:
            return self.mean(root * x) / self.mean(root.square()).clamp(min=torch.finfo(x.dtype).tiny)
        # A product of matrices, which creates no tensor of the size of x.
        total = (root.view(1, -1) @ x.flatten(1)).view(1, *x.shape[1:])
        return total / root.square().sum().clamp(min=torch.finfo(x.dtype).tiny)

    def expand(self, projection: Tensor) -> Tensor:
        """Return for each node the projection of its graph times the root of its degree."""
        return self._root(projection) * self.to_nodes(projection)

    def _root(self, like: Tensor) -> Tensor:
        return self.degree.to(like.dtype).sqrt().view(-1, *[1] * (like.dim() - 1))
