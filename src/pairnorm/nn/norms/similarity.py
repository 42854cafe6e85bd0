"""Norms that compare nodes with each other: soft groups (DiffGroupNorm), and similar nodes (ContraNorm)."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pairnorm.base.errors import real_number, whole_number
from pairnorm.nn.models import generators_of
from pairnorm.nn.norms.standardize import BaseNorm, RunningNorm
from pairnorm.nn.ops.linear import stacked_linear
from pairnorm.nn.ops.pair_norm import Groups

ROWS_OF_SUMS = 512
"""The number of nodes per partial sum: a GPU takes long for one sum over all of them."""
# The largest number of similarities in memory where no fused attention kernel takes the input. A GPU takes
# sixteen times that, so that it does not wait for launches.
BLOCK_PAIRS = 2**24


class DiffGroupNorm(RunningNorm):
    r"""Normalize soft groups of nodes separately.

    Zhou et al. (2020, "Towards Deeper Graph Neural Networks with Differentiable Group Normalization").

    $$
    \mathbf{X} + \lambda \textstyle\sum_g \text{BatchNorm}_g(\mathbf{u}_g \odot \mathbf{X}), \qquad
    \mathbf{U} = \text{softmax}(\mathbf{X} \mathbf{W})
    $$

    As in ``BatchNorm``, statistics are over all nodes of a call in training and running ones in evaluation;
    ``batch`` makes no difference. Memory grows with features plus groups, not their product. Arguments that
    are not listed are those of ``BatchNorm``.

    Args:
        groups: The number of groups.
        balance: The paper's λ.
    """

    groups: int

    def __init__(
        self, in_channels: int, groups: int = 10, balance: float = 0.01, eps: float = 1e-5,
        momentum: float = 0.1, num_models: int | None = None,
    ) -> None:  # fmt: skip
        self.groups = whole_number("groups", groups, least=1)
        super().__init__(in_channels, eps, momentum, num_models)
        self.balance = real_number("balance", balance, least=0)
        self.assignment = nn.Parameter(torch.empty(*self.shape, self.groups))
        self.reset_parameters()

    def reset_parameters(self, seeds: Sequence[int] | None = None) -> None:
        """Draw each model's assignment from ±1/√features, by its seed if given; forget the statistics."""
        super().reset_parameters()
        bound = 1 / math.sqrt(self.in_channels)
        stacked = self.assignment.view(-1, *self.assignment.shape[-2:])
        with torch.no_grad():
            for model, generator in enumerate(generators_of(seeds, len(stacked))):
                weights = torch.empty(self.in_channels, self.groups)
                stacked[model] = weights.uniform_(-bound, bound, generator=generator)

    def normalize(self, x: Tensor, groups: Groups) -> Tensor:
        """Add the normalized groups of nodes."""
        num_models = self.num_models or 1
        with torch.autocast(x.device.type, enabled=False):
            states = x.view(len(x), num_models, self.in_channels)
            assignment, weight, bias, running_mean, running_var = (
                tensor.to(x.dtype).view(num_models, *tensor.shape[-2:])
                for tensor in (self.assignment, self.weight, self.bias, self.running_mean, self.running_var)
            )
            share = stacked_linear(states, assignment).softmax(-1)
            if self.training:
                normalized = self._in_training(states, share, weight)
            else:
                scale = weight * (running_var + self.eps).rsqrt()
                normalized = states * stacked_linear(share, scale) - (running_mean * scale).sum(1)
            return (states + self.balance * (normalized + bias.sum(1))).view_as(x)

    def _in_training(self, x: Tensor, share: Tensor, weight: Tensor) -> Tensor:
        """Normalize by batch statistics, Σ_g γ_g (u_g ⊙ x − mean) / deviation; update the running ones."""
        # From products of δ = x − x̄ and υ = u − ū and their squares: u_g ⊙ x is never formed, and a variance
        # from raw squares would cancel on an oversmoothed state.
        nodes, _, features = x.shape
        x_mean, share_mean = x.mean(0), share.mean(0).unsqueeze(-1)
        delta, upsilon = x - x_mean, share - share_mean.squeeze(-1)
        groups, states = (torch.cat([part, part.square()], -1) for part in (upsilon, delta))
        moments = _sum_of_products(groups, states).div(nodes)
        first, second = moments.split(self.groups, 1)
        covariance, with_square = first.split(features, -1)
        of_square, squares = second.split(features, -1)
        by_x = x_mean.unsqueeze(1)
        variance = (
            share_mean.square() * delta.square().mean(0).unsqueeze(1)
            + by_x.square() * upsilon.square().mean(0).unsqueeze(-1)
            + 2 * share_mean * by_x * covariance
            + 2 * share_mean * with_square
            + 2 * by_x * of_square
            + squares
            - covariance.square()
        ).clamp(min=0)
        scale = weight * (variance + self.eps).rsqrt()
        with torch.no_grad():
            mean = share_mean * by_x + covariance
            unbiased, running = variance * (nodes / (nodes - 1)), (self.running_mean, self.running_var)
            for statistic, new in zip(running, (mean, unbiased), strict=True):
                statistic.lerp_(new.view_as(statistic).to(statistic.dtype), self.momentum)
        by_feature, by_group = delta * stacked_linear(share, scale), x_mean * stacked_linear(upsilon, scale)
        normalized: Tensor = by_feature + by_group - (covariance * scale).sum(1)
        return normalized


def _sum_of_products(a: Tensor, b: Tensor) -> Tensor:
    """Return Σ_n a_n b_nᵀ of every model, ``[models, columns of a, columns of b]``."""
    stop = len(a) // ROWS_OF_SUMS * ROWS_OF_SUMS
    parts = (rows[:stop].unflatten(0, (-1, ROWS_OF_SUMS)) for rows in (a, b))
    remainder: Tensor = torch.einsum("nti,ntj->tij", a[stop:], b[stop:])
    return torch.einsum("pnti,pntj->ptij", *parts).sum(0) + remainder


class ContraNorm(BaseNorm):
    r"""Push every node away from those it resembles.

    Guo et al. (2023, "ContraNorm: A Contrastive Learning Perspective on Oversmoothing and Beyond").

    With $\hat{\mathbf{x}}_i = \mathbf{x}_i / \sqrt{\|\mathbf{x}_i\|_2^2 + \epsilon}$:

    $$
    \mathbf{x}_i - s \textstyle\sum_j p_{ij} \mathbf{x}_j, \qquad
    p_{ij} = \text{softmax}_j(\hat{\mathbf{x}}_i^\top \hat{\mathbf{x}}_j / \tau)
    $$

    Exact in O(n² d) time and in memory linear in n: fused attention of the nodes to themselves, by blocks
    that are computed again for the gradient. The paper puts a LayerNorm after it.

    Args:
        scale: The paper's s.
        temperature: The paper's τ.
        sample: Sum over this number of nodes of a graph instead, drawn without replacement at every call by
            torch's generator, in O(n m d). The root mean square of a row's error is, to first order in 1/m,
            at most $s \, e^{1/\tau} \sigma_i \sqrt{1/m - 1/n}$, where
            $\sigma_i^2 = \sum_j p_{ij} \|\mathbf{x}_j - \sum_k p_{ik} \mathbf{x}_k\|_2^2$.
        eps: Added inside the root: the gradient at a zero row, common after ReLU, stays bounded.
    """

    def __init__(
        self, scale: float = 0.5, temperature: float = 1.0, sample: int | None = None, eps: float = 1e-6
    ) -> None:
        super().__init__()
        self.scale = real_number("scale", scale, least=0)
        self.temperature = real_number("temperature", temperature, above=0)
        self.sample = None if sample is None else whole_number("sample", sample, least=1)
        self.eps = real_number("eps", eps, above=0)

    def normalize(self, x: Tensor, groups: Groups) -> Tensor:
        """Push nodes away from the mean of those they resemble."""
        if groups.batch is None:
            similar = self._mean_of_similar(x)
        else:
            order = groups.batch.argsort(stable=True)
            parts = x[order].split(groups.count(x.device).tolist())
            similar = torch.cat([self._mean_of_similar(part) for part in parts])[order.argsort()]
        return x - self.scale * similar

    def _mean_of_similar(self, x: Tensor) -> Tensor:
        """Return for every node of a graph the mean of the nodes that resemble it."""
        nodes, features = len(x), x.size(-1)
        values = x.reshape(nodes, math.prod(x.shape[1:-1]), features).transpose(0, 1).unsqueeze(1)
        # Fused kernels of a GPU want rows of whole vectors; zeros change no product.
        values = F.pad(values, (0, -features % 8))
        queries = keys = values * (values.square().sum(-1, keepdim=True) + self.eps).rsqrt()
        if self.sample is not None and self.sample < nodes:
            sample = torch.randperm(nodes, device=x.device)[: self.sample]
            keys, values = keys[:, :, sample], values[:, :, sample]
        pairs = 16 * BLOCK_PAIRS if x.is_cuda else BLOCK_PAIRS
        rows = max(1, pairs // max(1, keys.size(0) * keys.size(2)))
        attend: Callable[..., Tensor] = self._attend
        if rows < nodes and torch.is_grad_enabled():
            attend = partial(checkpoint, attend, use_reentrant=False, preserve_rng_state=False)
        blocks = [attend(block, keys, values) for block in queries.split(rows, 2)]
        return torch.cat(blocks, 2)[..., :features].squeeze(1).transpose(0, 1).reshape(x.shape)

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        with torch.autocast(queries.device.type, enabled=False):
            return F.scaled_dot_product_attention(queries, keys, values, scale=1 / self.temperature)
