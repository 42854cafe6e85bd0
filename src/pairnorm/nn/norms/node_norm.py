"""NodeNorm: every node is divided by a root of the standard deviation of its own features."""

from torch import Tensor

from pairnorm.base.errors import real_number
from pairnorm.nn.norms.base import BaseNorm
from pairnorm.nn.ops.moments import check_states, to_accumulation_dtype


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
