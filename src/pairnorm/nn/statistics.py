"""Sums over the nodes of each graph: the one reduction that PairNorm is made of."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pairnorm.errors import PairNormError


@dataclass(frozen=True)
class Groups:
    """Which graph each node belongs to; without ``batch`` all nodes are one graph.

    ``mean`` reduces ``[nodes, ...]`` to ``[graphs, ...]`` and ``spread`` hands every node its graph's value
    back, so a formula written with the two serves one graph and a batch of graphs alike. Sums add up over
    parts of a graph, hence also over machines that hold a part each.
    """

    num_nodes: int
    batch: Tensor | None = None
    size: int = 1

    @classmethod
    def of(cls, x: Tensor, batch: Tensor | None, batch_size: int | None) -> "Groups":
        """Read the graphs of the nodes of ``x`` from a PyG-style ``batch`` vector, checked."""
        if batch is None:
            return cls(x.size(0))
        if batch.dim() != 1 or batch.size(0) != x.size(0):
            raise PairNormError(
                f"batch has shape {list(batch.shape)}; expected [{x.size(0)}], "
                f"the graph of each of the {x.size(0)} nodes"
            )
        if batch.dtype not in (torch.int64, torch.int32):
            raise PairNormError(f"batch has dtype {batch.dtype}; expected torch.int64")
        if batch_size is None:
            # A device sync: callers that compile, or care, pass batch_size.
            batch_size = int(batch.max()) + 1 if batch.numel() else 0
        return cls(x.size(0), batch, batch_size)

    def sum(self, x: Tensor) -> Tensor:
        """Sum ``[nodes, ...]`` over the nodes of each graph: ``[graphs, ...]``."""
        if self.batch is None:
            return x.sum(0, keepdim=True)
        flat = x.flatten(1)
        graph = self.batch.long().unsqueeze(1).expand_as(flat)
        # scatter_add, because for its gradient index_add would keep x.
        return x.new_zeros(self.size, flat.size(1)).scatter_add(0, graph, flat).view(self.size, *x.shape[1:])

    def mean(self, x: Tensor) -> Tensor:
        """Average over the nodes of each graph; a graph without nodes has mean zero."""
        if self.batch is None:
            return self.sum(x) / max(self.num_nodes, 1)
        ones = torch.ones_like(self.batch).unsqueeze(1)  # integers: exact beyond 2²⁴ nodes
        count = self.sum(ones).clamp(min=1)
        return self.sum(x) / count.view(-1, *[1] * (x.dim() - 1))

    def spread(self, statistic: Tensor) -> Tensor:
        """Hand each node its graph's statistic: ``[graphs, ...]`` to what fits ``[nodes, ...]``."""
        return statistic if self.batch is None else statistic.index_select(0, self.batch)

    def centre(self, x: Tensor) -> Tensor:
        """Subtract from every node the mean of its graph.

        Done twice: the second mean is what rounding left of the first, which matters when a large common
        offset hides small differences, the very state of an oversmoothed representation.
        """
        x = x - self.spread(self.mean(x))
        return x - self.spread(self.mean(x))
