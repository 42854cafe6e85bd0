"""The graph convolutions and the linear map that models are made of, for many models at once."""

from collections.abc import Callable
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from pairnorm.nn.ops.convolution import attend, gcn_layer
from pairnorm.nn.ops.dropout import dropout
from pairnorm.nn.ops.linear import stacked_linear, stacked_linear_with_scores
from pairnorm.nn.ops.sparse_product import activate, sparse_linear
from pairnorm.nn.pair_norm import PairNorm
from pairnorm.nn.sparse import SparseMatrix

Features = Tensor | SparseMatrix


class GraphConvolution(nn.Module):
    """A linear map ``[models, in, out]`` of every node, an exchange with neighbors, bias and activation."""

    is_graph_convolution: ClassVar[bool] = True

    def __init__(
        self, in_channels: int, out_channels: int, num_models: int, activation: str = "none"
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_models, in_channels, out_channels))
        self.bias = nn.Parameter(torch.empty(num_models, out_channels))
        self.activation = activation

    def extra_repr(self) -> str:
        """The sizes, for ``repr``."""
        num_models, width, out = self.weight.shape
        return f"{width}, {out}, num_models={num_models}, activation={self.activation!r}"


class GCNConvolution(GraphConvolution):
    r"""Averages neighbors, $\tilde{\mathbf{A}} \mathbf{X} \mathbf{W} + \mathbf{b}$, then the activation."""

    def forward(
        self, x: Features, adjacency: SparseMatrix, rate: float = 0.0, keys: Tensor | None = None,
        norm: PairNorm | None = None,
    ) -> Tensor:  # fmt: skip
        """Return ``[nodes, models, out]``, normalized by ``norm``, which costs less here than afterwards.

        ``keys`` ``[2, models]`` are the dropout keys for features and attention; None for no dropout.
        """
        feature_keys = None if keys is None else keys[0]
        if isinstance(x, SparseMatrix):
            z = sparse_linear(x, self.weight, rate, feature_keys)
            return gcn_layer(adjacency, z, self.bias, self.activation, norm)
        return gcn_layer(adjacency, x, self.bias, self.activation, norm, self.weight, rate, feature_keys)


class GATConvolution(GraphConvolution):
    r"""Attention over the neighbors and the node itself, then the activation.

    $$
    \mathbf{z}_i = \mathbf{W} \mathbf{x}_i, \qquad
    \mathbf{x}'_i = \sum_j \alpha_{ij} \mathbf{z}_j + \mathbf{b}, \qquad
    \alpha_{ij} = \text{softmax}_j \, \text{LeakyReLU}
        (\mathbf{a}_s^\top \mathbf{z}_j + \mathbf{a}_t^\top \mathbf{z}_i)
    $$

    Of the adjacency only the pattern counts. Heads are concatenated, or averaged without ``concat``.
    """

    def __init__(
        self, in_channels: int, out_channels: int, num_models: int, activation: str = "none", heads: int = 1,
        concat: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(in_channels, heads * out_channels, num_models, activation)
        self.heads, self.concat = heads, concat
        self.source = nn.Parameter(torch.empty(num_models, heads, out_channels))
        self.target = nn.Parameter(torch.empty(num_models, heads, out_channels))
        if not concat:
            self.bias = nn.Parameter(torch.empty(num_models, out_channels))

    def forward(
        self, x: Features, adjacency: SparseMatrix, rate: float = 0.0, keys: Tensor | None = None,
        norm: PairNorm | None = None,
    ) -> Tensor:  # fmt: skip
        """Return ``[nodes, models, out]``; arguments as for ``GCNConvolution``."""
        feature_keys, attention_keys = (None, None) if keys is None else (keys[0], keys[1])
        # A sharded matrix exchanges states between ranks, and has its own way to attend.
        attend_to: Callable[..., Tensor] = getattr(adjacency, "attend", None) or partial(attend, adjacency)
        if adjacency.is_sharded and feature_keys is not None and isinstance(x, Tensor):
            x = dropout(x.expand(-1, len(feature_keys), -1), rate, feature_keys, adjacency.first_row)
            feature_keys = None
        if isinstance(x, SparseMatrix):
            z = sparse_linear(x, self.weight, rate, feature_keys)
            scores = stacked_linear(z, self._attention_vectors())
        else:
            vectors = self._attention_vectors()
            z, scores = stacked_linear_with_scores(x, self.weight, vectors, rate, feature_keys)
        nodes, num_models, width = z.size(0), z.size(1), self.source.size(-1)
        if attention_keys is not None and self.heads > 1:  # every head drops attention of its own
            heads = torch.arange(self.heads, dtype=torch.int32, device=z.device)
            attention_keys = (attention_keys.unsqueeze(1) + heads).flatten()
        z = z.reshape(nodes, num_models * self.heads, width)
        scores = scores.reshape(nodes, num_models * self.heads, 2)
        if self.heads == 1:
            return attend_to(scores, z, self.bias, self.activation, rate, attention_keys, norm)
        if self.concat:
            bias = self.bias.view(num_models * self.heads, width)
            y = attend_to(scores, z, bias, self.activation, rate, attention_keys)
            y = y.reshape(nodes, num_models, self.bias.size(-1))
        else:
            y = attend_to(scores, z, rate=rate, keys=attention_keys)
            y = activate(y.reshape(nodes, num_models, self.heads, width).mean(2), self.bias, self.activation)
        return y if norm is None else norm(y)

    def _attention_vectors(self) -> Tensor:
        """Return the vectors that map z to scores, ``[models, heads · out, heads · 2]``, a block per head."""
        num_models, heads, width = self.source.shape
        vectors = torch.stack([self.source, self.target], -1)
        if heads > 1:
            diagonal = torch.eye(heads, dtype=vectors.dtype, device=vectors.device)
            vectors = vectors.unsqueeze(3) * diagonal[:, None, :, None]
        return vectors.reshape(num_models, heads * width, heads * 2)


class GCNIIConvolution(nn.Module):
    r"""A step of GCNII, then ReLU.

    $$
    \big((1 - \alpha) \tilde{\mathbf{A}} \mathbf{H} + \alpha \mathbf{H}_0\big)
        \big((1 - \beta) \mathbf{I} + \beta \mathbf{W}\big)
    $$
    """

    is_graph_convolution: ClassVar[bool] = True

    def __init__(self, features: int, num_models: int, alpha: float, beta: float) -> None:
        super().__init__()
        self.alpha, self.beta = alpha, beta
        self.weight = nn.Parameter(torch.empty(num_models, features, features))

    def forward(self, x: Tensor, initial: Tensor, adjacency: SparseMatrix) -> Tensor:
        """Return ``[nodes, models, features]`` from states of that shape."""
        mixed = torch.lerp(adjacency @ x, initial, self.alpha)
        identity = torch.eye(self.weight.size(-1), dtype=self.weight.dtype, device=self.weight.device)
        return stacked_linear(mixed, torch.lerp(identity, self.weight, self.beta)).relu()

    def extra_repr(self) -> str:
        """The settings, for ``repr``."""
        num_models, width, _ = self.weight.shape
        return f"{width}, num_models={num_models}, alpha={self.alpha}, beta={self.beta:.4g}"


class Linear(nn.Module):
    """A linear map of every node, for many models: ``weight`` is ``[models, in, out]``."""

    def __init__(self, in_channels: int, out_channels: int, num_models: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_models, in_channels, out_channels))
        self.bias = nn.Parameter(torch.empty(num_models, out_channels)) if bias else None

    def forward(self, x: Features, rate: float = 0.0, keys: Tensor | None = None) -> Tensor:
        """Return ``[nodes, models, out]``; arguments as for ``GCNConvolution``, ``keys`` ``[models]``."""
        linear = sparse_linear if isinstance(x, SparseMatrix) else stacked_linear
        y = linear(x, self.weight, rate, keys)  # type: ignore[arg-type]
        return y if self.bias is None else y + self.bias

    def extra_repr(self) -> str:
        """The sizes, for ``repr``."""
        num_models, width, out = self.weight.shape
        return f"{width}, {out}, num_models={num_models}, bias={self.bias is not None}"


class Propagation(nn.Module):
    """A propagation step without parameters; a module so that a ``pairnorm.Probe`` sees every step."""

    is_graph_convolution: ClassVar[bool] = True

    def forward(self, x: Tensor, adjacency: SparseMatrix) -> Tensor:
        """Return ``adjacency @ x``."""
        return adjacency @ x
