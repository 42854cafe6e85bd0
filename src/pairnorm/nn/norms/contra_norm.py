"""ContraNorm: every node is pushed away from similar nodes, without a matrix of all pairs."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pairnorm.base.errors import real_number, whole_number
from pairnorm.nn.norms.standardize import BaseNorm
from pairnorm.nn.ops.pair_norm import Groups

# The largest number of similarities in memory where no fused attention kernel takes the input. A GPU takes
# sixteen times that, so that it does not wait for launches.
BLOCK_PAIRS = 2**24


class ContraNorm(BaseNorm):
    r"""Push every node away from those it resembles.

    Guo et al. (2023, "ContraNorm: A Contrastive Learning Perspective on Oversmoothing and Beyond").

    With $\hat{\mathbf{x}}_i = \mathbf{x}_i / \sqrt{\|\mathbf{x}_i\|_2^2 + \epsilon}$:

    $$
    \mathbf{x}_i - s \textstyle\sum_j p_{ij} \mathbf{x}_j, \qquad
    p_{ij} = \text{softmax}_j(\hat{\mathbf{x}}_i^\top \hat{\mathbf{x}}_j / \tau)
    $$

    Exact in O(n² d) time and, a block of rows at a time, in memory linear in n: the sum is an attention of
    the nodes to themselves, whose fused kernels take the softmax as they go; blocks are computed again for
    the gradient. The paper puts a LayerNorm after it; some of its code has (1 + s) before the first term.

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

    def forward(self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None) -> Tensor:
        """Normalize ``x``; see ``Norm`` for the arguments."""
        wide, groups = self.prepare(x), Groups.of(x, batch, batch_size)
        if groups.batch is None:
            similar = self._mean_of_similar(wide)
        else:
            order = groups.batch.argsort(stable=True)
            parts = wide[order].split(groups.count(x.device).tolist())
            similar = torch.cat([self._mean_of_similar(part) for part in parts])[order.argsort()]
        return (wide - self.scale * similar).to(x.dtype)

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
        blocks = [
            self._attend(block, keys, values)
            if rows >= nodes or not torch.is_grad_enabled()
            else checkpoint(self._attend, block, keys, values, use_reentrant=False, preserve_rng_state=False)
            for block in queries.split(rows, 2)
        ]
        return torch.cat(blocks, 2)[..., :features].squeeze(1).transpose(0, 1).reshape(x.shape)

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        with torch.autocast(queries.device.type, enabled=False):
            return F.scaled_dot_product_attention(queries, keys, values, scale=1 / self.temperature)
