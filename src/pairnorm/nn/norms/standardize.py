"""Base classes of norms, and the norms by mean and variance: over nodes, graphs or the node itself."""

import inspect
from collections.abc import Sequence
from typing import Literal, Protocol, Self, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pairnorm.base.errors import PairNormError, one_of, real_number, whole_number, wrong_shape
from pairnorm.nn.ops.pair_norm import Groups, check_states, to_accumulation_dtype
from pairnorm.nn.propagate import dominant_eigenvectors, normalized_adjacency
from pairnorm.nn.sparse import SparseMatrix


@runtime_checkable
class Norm(Protocol):
    """A norm of node representations: those of this package, PyG's that take ``batch``, or your own."""

    def __call__(self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None) -> Tensor:
        """Return ``x`` normalized.

        Args:
            x: ``[nodes, features]``, or ``[nodes, models, features]``: every model is normalized on its own.
            batch: the graph of each node, in any order; None for one graph.
            batch_size: the number of graphs; given, it saves a device synchronization.
        """
        ...


class BaseNorm(nn.Module):
    """A norm whose ``repr`` is the call that makes it: each argument is an attribute."""

    def __init__(self) -> None:  # whose own takes anything, which would be shown
        super().__init__()

    def __repr__(self) -> str:
        settings = (f"{name}={getattr(self, name)!r}" for name in inspect.signature(type(self)).parameters)
        return f"{type(self).__name__}({', '.join(settings)})"

    def check(self, x: Tensor) -> None:
        """Raise an error unless ``x`` holds what this norm was made for."""
        check_states(x)

    def forward(self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None) -> Tensor:
        """Normalize ``x``; see ``Norm`` for the arguments."""
        self.check(x)
        return self.normalize(to_accumulation_dtype(x), Groups.of(x, batch, batch_size)).to(x.dtype)

    def normalize(self, x: Tensor, groups: Groups) -> Tensor:
        """Normalize ``x``, which is in the dtype that statistics accumulate in; the formula of the norm."""
        raise NotImplementedError


class ParametricNorm(BaseNorm):
    """A norm with parameters: ``[features]``, or ``[models, features]`` where models have their own."""

    groups: int | None = None
    """Number of weights and biases for each feature; None for one, without an axis of its own."""

    def __init__(self, in_channels: int, eps: float = 1e-5, num_models: int | None = None) -> None:
        super().__init__()
        self.in_channels = whole_number("in_channels", in_channels, least=1)
        self.eps = real_number("eps", eps, above=0)
        self.num_models = None if num_models is None else whole_number("num_models", num_models, least=1)
        # What one node has: [features] or [models, features].
        self.shape = (in_channels,) if num_models is None else (num_models, in_channels)
        shape = self.shape if self.groups is None else (*self.shape[:-1], self.groups, in_channels)
        self.weight, self.bias = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.zeros(shape))

    def reset_parameters(self, seeds: Sequence[int] | None = None) -> None:
        """Set every ``bias`` to zero and every other parameter to one; norms that draw use ``seeds``."""
        for name, parameter in self.named_parameters():
            nn.init.constant_(parameter, 0.0 if name.endswith("bias") else 1.0)

    def check(self, x: Tensor) -> None:
        """Raise an error unless ``x`` holds what this norm was made for."""
        check_states(x)
        if x.shape[1:] != self.shape:
            sizes = {"in_channels": x.shape[-1], "num_models": x.shape[1] if x.dim() == 3 else None}
            expected = f"[nodes, {', '.join(map(str, self.shape))}]"
            hint = "Make the norm with {in_channels} and {num_models} of the states it is given."
            raise wrong_shape("x", x.shape, expected, hint=hint, **sizes)


class RunningNorm(ParametricNorm):
    """A norm by statistics over all nodes of a call in training, and by running ones in evaluation."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(
        self, in_channels: int, eps: float = 1e-5, momentum: float = 0.1, num_models: int | None = None
    ) -> None:
        super().__init__(in_channels, eps, num_models)
        self.momentum = real_number("momentum", momentum, least=0, most=1)
        self.register_buffer("running_mean", torch.zeros_like(self.weight))
        self.register_buffer("running_var", torch.ones_like(self.weight))

    def reset_parameters(self, seeds: Sequence[int] | None = None) -> None:
        """Set the scale to one, the offset to zero, and reset the running statistics."""
        super().reset_parameters()
        self.running_mean.zero_()
        self.running_var.fill_(1)

    def check(self, x: Tensor) -> None:
        """Raise an error unless ``x`` has the right shape and, in training, nodes enough for a variance."""
        super().check(x)
        if self.training and len(x) < 2:
            problem = f"x has {len(x)} nodes in training"
            expected = "at least 2, for a variance"
            hint = "Call .eval() to use the running statistics."
            raise PairNormError(problem, code="too-few-nodes", value=len(x), expected=expected, hint=hint)


def bound_to(known: Tensor | None, x: Tensor, what: str) -> Tensor:
    """Return the values per node that a norm was bound to, on the device of ``x``; check their number."""
    if known is not None and len(known) == len(x):
        return known.to(x.device)
    nodes = "none" if known is None else f"those of {len(known)} nodes"
    problem = f"x has {len(x)} nodes, and the {what} known are {nodes}"
    hint = "Call .bind_graph(adjacency) with that of this graph."
    raise PairNormError(problem, code="not-fitted", value=len(x), hint=hint)


class MeanSubtraction(BaseNorm):
    r"""Subtract from every node the mean of its graph.

    Yang et al. (2020, "Revisiting Over-smoothing in Deep GCNs").

    $$
    \mathbf{x}_i - \tfrac{1}{n} \textstyle\sum_j \mathbf{x}_j
    $$
    """

    def normalize(self, x: Tensor, groups: Groups) -> Tensor:
        """Center every graph."""
        return groups.center(x)


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

    def normalize(self, x: Tensor, groups: Groups) -> Tensor:
        """Divide every node."""
        # Not Tensor.var, which takes twice the time for rows as short as these.
        variance = (x - x.mean(-1, keepdim=True)).square().mean(-1, keepdim=True)
        return x * (variance + self.eps).pow(-0.5 / self.p)


class BatchNorm(RunningNorm):
    r"""Standardize every feature over the nodes (Ioffe & Szegedy 2015, "Batch Normalization").

    $$
    \boldsymbol\gamma \odot (\mathbf{x}_i - \boldsymbol\mu) \big/ \sqrt{\boldsymbol\sigma^2 + \epsilon}
        + \boldsymbol\beta
    $$

    In training, mean and biased variance are over all nodes of a call, of all graphs together, so that
    ``batch`` makes no difference. In evaluation they are the running ones, as in
    ``torch.nn.BatchNorm1d``.

    Args:
        in_channels: The width of a node's representation.
        eps: Added to the variance.
        momentum: The share of new statistics in the running ones.
        num_models: Train this many models side by side; None for an ordinary module.
    """

    def normalize(self, x: Tensor, groups: Groups) -> Tensor:
        """Standardize every feature."""
        running = (self.running_mean, self.running_var)
        mean, variance = (statistic.flatten().to(x.dtype) for statistic in running)
        y = F.batch_norm(x.flatten(1), mean, variance, None, None, self.training, self.momentum, self.eps)
        if self.training and mean.dtype != self.running_mean.dtype:  # else they were updated in place
            for statistic, new in zip(running, (mean, variance), strict=True):
                statistic.copy_(new.view_as(statistic))
        return torch.addcmul(self.bias, y.view_as(x), self.weight)


class LayerNorm(ParametricNorm):
    r"""Standardize all features of a graph, or of a node, together (Ba et al. 2016, "Layer Normalization").

    $$
    \boldsymbol\gamma \odot (\mathbf{x}_i - \mu) \big/ \sqrt{\sigma^2 + \epsilon} + \boldsymbol\beta
    $$

    - ``"graph"``: $\mu$ and $\sigma^2$ are over all nodes and features of a graph, as is PyG's default.
    - ``"node"``: over the features of one node, as in ``torch.nn.LayerNorm``.

    PyG adds eps to $\sigma$ instead where it is given no ``batch``; here it is always in the root. Arguments
    that are not listed are those of ``BatchNorm``.

    Args:
        mode: ``"graph"`` or ``"node"``.
    """

    def __init__(
        self, in_channels: int, mode: Literal["graph", "node"] = "node", eps: float = 1e-5,
        num_models: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(in_channels, eps, num_models)
        self.mode = one_of("mode", mode, ("graph", "node"))

    def normalize(self, x: Tensor, groups: Groups) -> Tensor:
        """Standardize every graph or node."""
        if self.mode == "node":
            return torch.addcmul(self.bias, F.layer_norm(x, x.shape[-1:], eps=self.eps), self.weight)
        for _ in range(2):  # as in Groups.center: the second mean is the rounding of the first
            x = x - groups.to_nodes(groups.mean(x).mean(-1, keepdim=True))
        variance = groups.to_nodes(groups.mean(x.square()).mean(-1, keepdim=True))
        return torch.addcmul(self.bias, x, self.weight * (variance + self.eps).rsqrt())


class GraphNorm(ParametricNorm):
    r"""Standardize every feature over its graph (Cai et al. 2021, "GraphNorm").

    With $\boldsymbol\mu$ the mean of the graph and
    $\mathbf{z}_i = \mathbf{x}_i - \boldsymbol\alpha \odot \boldsymbol\mu$:

    $$
    \boldsymbol\gamma \odot \mathbf{z}_i \Big/ \sqrt{\tfrac{1}{n} \textstyle\sum_j \mathbf{z}_j^2 + \epsilon}
        + \boldsymbol\beta
    $$

    Arguments are those of ``BatchNorm``, without ``momentum``.
    """

    def __init__(self, in_channels: int, eps: float = 1e-5, num_models: int | None = None) -> None:
        super().__init__(in_channels, eps, num_models)
        self.mean_scale = nn.Parameter(torch.ones(self.shape))

    def normalize(self, x: Tensor, groups: Groups) -> Tensor:
        """Standardize every feature of each graph."""
        # Exact where α is 1, where x − αμ would keep its rounding error. The mean square of the rest
        # is the variance plus the square of the remaining share of the mean.
        centered, kept_mean = groups.center(x), (1 - self.mean_scale) * groups.mean_of_each(x)
        variance = groups.mean_of_each(centered.square()) + kept_mean.square()
        factor = self.weight * (variance + self.eps).rsqrt()
        return torch.addcmul(kept_mean * factor + self.bias, centered, factor)


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
    feature. Arguments that are not listed are those of ``BatchNorm``.

    Args:
        num_eigenvectors: The number k of eigenvectors.
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
        """Set the graph's eigenvectors V, ``[nodes, num_eigenvectors + 1]``, and return the norm."""
        if basis.dim() != 2 or basis.size(1) != self.num_eigenvectors + 1:
            raise wrong_shape("basis", basis.shape, f"[nodes, {self.num_eigenvectors + 1}]")
        self.basis = basis
        return self

    def bind_graph(self, adjacency: Tensor | SparseMatrix) -> Self:
        """Compute and set a graph's eigenvectors V; see ``normalized_adjacency`` for forms of a graph."""
        vectors = dominant_eigenvectors(normalized_adjacency(adjacency, "sym"), self.num_eigenvectors)
        ones = torch.full((len(vectors), 1), max(len(vectors), 1) ** -0.5, dtype=vectors.dtype)
        remainder = ones.to(vectors) - vectors @ (vectors.T @ ones.to(vectors))
        length = remainder.norm()
        return self.bind(torch.cat([vectors, remainder / length if length > 1e-6 else 0 * remainder], 1))

    def normalize(self, x: Tensor, groups: Groups) -> Tensor:
        """Standardize every feature of each graph about its learned direction."""
        self.basis = bound_to(self.basis, x, "eigenvectors")
        with torch.autocast(x.device.type, enabled=False):
            change = torch.einsum("nk,...kf->n...f", self.basis.to(x.dtype), self.tau.to(x.dtype))
        centered, mean = groups.center(x), groups.mean(x)
        root = groups.to_nodes(groups.counts(mean).sqrt()).to(x.dtype)
        # About the mean, which a large common offset would hide otherwise.
        product = groups.to_nodes(groups.sum(change * centered) + groups.sum(change) * mean)
        z = centered - product / root - change * (root * groups.to_nodes(mean) + product)
        variance = groups.mean_of_each(z.square())
        return torch.addcmul(self.bias, z, self.weight * (variance + self.eps).rsqrt())
