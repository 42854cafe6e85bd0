"""DiffGroupNorm: nodes are softly assigned to groups, and each group is batch-normalized."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pairnorm.base.errors import real_number, whole_number
from pairnorm.nn.models import generators_of
from pairnorm.nn.norms.standardize import RunningNorm
from pairnorm.nn.ops.linear import stacked_linear

ROWS_OF_SUMS = 512
"""The number of nodes per partial sum: a GPU takes long for one sum over all of them."""


class DiffGroupNorm(RunningNorm):
    r"""Normalize soft groups of nodes separately.

    Zhou et al. (2020, "Towards Deeper Graph Neural Networks with Differentiable Group Normalization").

    $$
    \mathbf{X} + \lambda \textstyle\sum_g \text{BatchNorm}_g(\mathbf{u}_g \odot \mathbf{X}), \qquad
    \mathbf{U} = \text{softmax}(\mathbf{X} \mathbf{W})
    $$

    As in ``BatchNorm``, statistics are over all nodes at hand in training and the running ones in evaluation;
    ``batch`` makes no difference. The products $\mathbf{u}_g \odot \mathbf{X}$ are never formed: with
    $\boldsymbol\delta = \mathbf{X} - \bar{\mathbf{x}}$ and
    $\boldsymbol\upsilon = \mathbf{U} - \bar{\mathbf{u}}$ their means and variances are matrix products of
    $\boldsymbol\upsilon, \boldsymbol\upsilon^2$ with $\boldsymbol\delta, \boldsymbol\delta^2$, so that memory
    grows with features plus groups, not their product. About the means, because a variance from raw squares
    cancels on an oversmoothed state. Arguments that are not listed are those of ``BatchNorm``.

    Args:
        groups: The number of groups.
        balance: The paper's λ.
    """

    def __init__(
        self,
        in_channels: int,
        groups: int = 10,
        balance: float = 0.01,
        eps: float = 1e-5,
        momentum: float = 0.1,
        num_models: int | None = None,
    ) -> None:
        self.groups = whole_number("groups", groups, least=1)
        super().__init__(in_channels, eps, momentum, num_models, groups)
        self.balance = real_number("balance", balance, least=0)
        self.assignment = nn.Parameter(torch.empty(*self.shape, self.groups))
        self.reset_parameters()

    def reset_parameters(self, seeds: Sequence[int] | None = None) -> None:
        """Draw the assignment from ±1/√features, as ``torch.nn.Linear`` does, and forget the statistics.

        Args:
            seeds: One for each model, which its assignment then depends on alone; without them, torch's
                generator draws.
        """
        super().reset_parameters()
        bound, stacked = (
            1 / math.sqrt(self.in_channels),
            self.assignment.view(-1, *self.assignment.shape[-2:]),
        )
        with torch.no_grad():
            for model, generator in enumerate(generators_of(seeds, len(stacked))):
                weights = torch.empty(self.in_channels, self.groups)
                stacked[model] = weights.uniform_(-bound, bound, generator=generator)

    def forward(self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None) -> Tensor:
        """Normalize ``x``; see ``Norm`` for the arguments."""
        num_models = self.num_models or 1
        with torch.autocast(x.device.type, enabled=False):
            wide = self.prepare(x).view(len(x), num_models, self.in_channels)
            assignment, weight, bias, running_mean, running_var = (
                tensor.to(wide.dtype).view(num_models, *tensor.shape[-2:])
                for tensor in (self.assignment, self.weight, self.bias, self.running_mean, self.running_var)
            )
            share = stacked_linear(wide, assignment).softmax(-1)
            if self.training:
                normalized = self._in_training(wide, share, weight)
            else:
                scale = weight * (running_var + self.eps).rsqrt()
                normalized = wide * stacked_linear(share, scale) - (running_mean * scale).sum(1)
            return (wide + self.balance * (normalized + bias.sum(1))).view_as(x).to(x.dtype)

    def _in_training(self, x: Tensor, share: Tensor, weight: Tensor) -> Tensor:
        """Normalize by batch statistics, Σ_g γ_g (u_g ⊙ x − mean) / deviation; update the running ones."""
        nodes, _, features = x.shape
        x_mean, share_mean = x.mean(0), share.mean(0).unsqueeze(-1)
        delta, upsilon = x - x_mean, share - share_mean.squeeze(-1)
        groups, states = (torch.cat([one, one.square()], -1) for one in (upsilon, delta))
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
            for running, new in (
                (self.running_mean, mean),
                (self.running_var, variance * (nodes / (nodes - 1))),
            ):
                running.lerp_(new.view_as(running).to(running.dtype), self.momentum)
        by_feature, by_group = delta * stacked_linear(share, scale), x_mean * stacked_linear(upsilon, scale)
        normalized: Tensor = by_feature + by_group - (covariance * scale).sum(1)
        return normalized


def _sum_of_products(a: Tensor, b: Tensor) -> Tensor:
    """Return Σ_n a_n b_nᵀ of every model, ``[models, columns of a, columns of b]``."""
    whole = len(a) // ROWS_OF_SUMS * ROWS_OF_SUMS
    parts = (one[:whole].unflatten(0, (-1, ROWS_OF_SUMS)) for one in (a, b))
    rest: Tensor = torch.einsum("nti,ntj->tij", a[whole:], b[whole:])
    return torch.einsum("pnti,pntj->ptij", *parts).sum(0) + rest
