"""BatchNorm: every feature gets mean zero and variance one over the nodes, and a learned scale and offset."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pairnorm.base.errors import PairNormError, real_number
from pairnorm.nn.norms.base import ParametricNorm
from pairnorm.nn.ops.moments import to_accumulation_dtype


class BatchNorm(ParametricNorm):
    r"""Standardize every feature over the nodes (Ioffe & Szegedy 2015, "Batch Normalization").

    $$
    \boldsymbol\gamma \odot (\mathbf{x}_i - \boldsymbol\mu) \big/ \sqrt{\boldsymbol\sigma^2 + \epsilon}
        + \boldsymbol\beta
    $$

    In training, mean and biased variance are those of the nodes at hand, of all graphs together: that is what
    it is named for, so ``batch`` makes no difference. In evaluation they are the running ones, kept as
    ``torch.nn.BatchNorm1d`` does.

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
        expected = "at least 2: the variance of fewer says nothing"
        hint = "Call .eval() to use the running statistics."
        raise PairNormError(problem, code="too-few-nodes", value=len(x), expected=expected, hint=hint)
