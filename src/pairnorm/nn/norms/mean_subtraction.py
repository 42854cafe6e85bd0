"""Mean subtraction: PairNorm's first half alone."""

from torch import Tensor

from pairnorm.nn.norms.base import BaseNorm
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
