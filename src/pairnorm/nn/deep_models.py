"""Architectures made for depth: GCNII, APPNP, SMPNN and G²."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn
from torch.nn.functional import silu

from pairnorm.base.errors import real_number, whole_number
from pairnorm.nn.layers import Features, GCNConvolution, GCNIIConvolution, Linear, Propagation
from pairnorm.nn.models import DeepModel, Keys, StateAndLogits, feature_keys
from pairnorm.nn.norms.standardize import LayerNorm
from pairnorm.nn.ops.dropout import dropout
from pairnorm.nn.propagate import Normalization
from pairnorm.nn.sparse import SparseMatrix


class _DeepArchitecture(DeepModel):
    """A linear map in, ``num_layers`` propagations, a linear map out."""

    def __init__(
        self, in_channels: int, out_channels: int, num_layers: int = 2, hidden_channels: int = 32,
        dropout: float = 0.6, adjacency: Normalization = "sym", num_models: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(in_channels, out_channels, num_layers, dropout, adjacency, num_models)
        whole_number("hidden_channels", hidden_channels, least=1)
        self.first = Linear(in_channels, hidden_channels, num_models or 1)
        self.last = Linear(hidden_channels, out_channels, num_models or 1)
        self._add_layers(hidden_channels, num_models or 1)
        self.reset_parameters()

    def _add_layers(self, width: int, count: int) -> None:
        """Add the layers between the linear maps, for ``count`` models, and set ``num_keys``."""
        raise NotImplementedError


class GCNII(_DeepArchitecture):
    r"""Graph convolutions that add the first state (initial residual) and keep a share of the identity.

    Chen et al. (2020, "Simple and Deep Graph Convolutional Networks"). With
    $\mathbf{H}_0 = \text{ReLU}(\mathbf{X} \mathbf{W}_0 + \mathbf{b}_0)$ and
    $\beta_l = \log(\theta / l + 1)$:

    $$
    \mathbf{H}_l = \text{ReLU}\Big(
        \big((1 - \alpha) \tilde{\mathbf{A}} \mathbf{H}_{l-1} + \alpha \mathbf{H}_0\big)
        \big((1 - \beta_l) \mathbf{I} + \beta_l \mathbf{W}_l\big)\Big)
    $$

    A linear map of the last state gives the logits. Dropout falls on the input of every map. Arguments that
    are not listed are those of ``GCN``.

    Args:
        alpha: The share of the initial representation.
        theta: How fast the weights fade with depth.
        adjacency: ``"sym"`` (the paper's) or ``"rw"``.
    """

    def __init__(
        self, in_channels: int, out_channels: int, num_layers: int = 2, hidden_channels: int = 32,
        alpha: float = 0.1, theta: float = 0.5, dropout: float = 0.6, adjacency: Normalization = "sym",
        num_models: int | None = None,
    ) -> None:  # fmt: skip
        self.alpha = real_number("alpha", alpha, least=0, most=1)
        self.theta = real_number("theta", theta, above=0)
        sizes = (in_channels, out_channels, num_layers, hidden_channels)
        super().__init__(*sizes, dropout, adjacency, num_models)

    def _add_layers(self, width: int, count: int) -> None:
        self.num_keys = self.num_layers + 2
        shares = [math.log(self.theta / layer + 1) for layer in range(1, self.num_layers + 1)]
        self.convolutions = nn.ModuleList(GCNIIConvolution(width, count, self.alpha, b) for b in shares)

    def _compute(self, x: Features, adjacency: SparseMatrix, keys: Keys) -> StateAndLogits:
        before, *between, after = map(feature_keys, keys)
        h = initial = self.first(x, self.dropout, before).relu()
        for convolution, layer_keys in zip(self.convolutions, between, strict=True):
            h = h if layer_keys is None else dropout(h, self.dropout, layer_keys)
            h = convolution(h, initial, adjacency)
        return h, self.last(h, self.dropout, after)


class APPNP(_DeepArchitecture):
    r"""A perceptron whose logits are propagated by personalized PageRank.

    Gasteiger et al. (2019, "Predict then Propagate: Graph Neural Networks meet Personalized PageRank"). With
    $\mathbf{Z}_0 = \text{ReLU}(\mathbf{X} \mathbf{W}_0 + \mathbf{b}_0) \mathbf{W}_1 + \mathbf{b}_1$:

    $$
    \mathbf{Z}_k = (1 - \alpha) \tilde{\mathbf{A}} \mathbf{Z}_{k-1} + \alpha \mathbf{Z}_0
    $$

    Arguments that are not listed are those of ``GCNII``.

    Args:
        num_layers: Number K of propagations.
        hidden_channels: Width of the perceptron.
        alpha: The probability of a return to the start.
        dropout: Rate at which the inputs of both linear maps are dropped.
    """

    def __init__(
        self, in_channels: int, out_channels: int, num_layers: int = 10, hidden_channels: int = 32,
        alpha: float = 0.1, dropout: float = 0.6, adjacency: Normalization = "sym",
        num_models: int | None = None,
    ) -> None:  # fmt: skip
        self.alpha = real_number("alpha", alpha, least=0, most=1)
        sizes = (in_channels, out_channels, num_layers, hidden_channels)
        super().__init__(*sizes, dropout, adjacency, num_models)

    def _add_layers(self, width: int, count: int) -> None:
        self.num_keys = 2
        self.propagation = Propagation()

    def _compute(self, x: Features, adjacency: SparseMatrix, keys: Keys) -> StateAndLogits:
        h = self.first(x, self.dropout, feature_keys(keys[0])).relu()
        initial = self.last(h, self.dropout, feature_keys(keys[1]))
        before = z = initial
        for _ in range(self.num_layers):
            before, z = z, self.propagation(z, adjacency).lerp(initial, self.alpha)
        return before, z


class SMPNN(_DeepArchitecture):
    r"""Pre-LayerNorm residual blocks, as in a transformer, with a graph convolution for attention.

    Borde et al. (2024, "Scalable Message Passing Neural Networks: No Need for Attention in Large Graph
    Representation Learning", arXiv 2411.00835). With
    $\mathbf{H} = \text{SiLU}(\mathbf{X} \mathbf{W}_0 + \mathbf{b}_0)$ at first, every block computes

    $$
    \begin{aligned}
    \mathbf{H} &\leftarrow \mathbf{H} + \alpha_1 \,
        \text{SiLU}(\tilde{\mathbf{A}} \, \text{LayerNorm}(\mathbf{H}) \mathbf{W}_1 + \mathbf{b}_1) \\
    \mathbf{H} &\leftarrow \mathbf{H} + \alpha_2 \,
        \text{SiLU}(\text{LayerNorm}(\mathbf{H}) \mathbf{W}_2 + \mathbf{b}_2)
    \end{aligned}
    $$

    and a linear map of the last state gives the logits. $\alpha_1$ and $\alpha_2$ are learned and start at
    $10^{-6}$, so that a new model of any depth is a perceptron. Dropout falls on the input of every map.

    Arguments are those of ``GCNII``, without ``alpha`` and ``theta``.
    """

    initial_share = 1e-6

    def _add_layers(self, width: int, count: int) -> None:
        self.num_keys = 2 * self.num_layers + 2
        layers = range(self.num_layers)
        self.convolutions = nn.ModuleList(GCNConvolution(width, width, count) for _ in layers)
        self.maps = nn.ModuleList(Linear(width, width, count) for _ in layers)
        self.layer_norms = nn.ModuleList(LayerNorm(width, num_models=count) for _ in [*layers, *layers])
        self.shares = nn.Parameter(torch.empty(count, self.num_layers, 2))

    def _norms(self) -> list[nn.Module]:
        return [*self.layer_norms]

    def reset_parameters(self, seeds: Sequence[int] | None = None) -> None:
        """Draw Glorot-uniform weights; set biases to zero and the shares of the blocks to 1e-6."""
        super().reset_parameters(seeds)
        nn.init.constant_(self.shares, self.initial_share)

    def _compute(self, x: Features, adjacency: SparseMatrix, keys: Keys) -> StateAndLogits:
        h = silu(self.first(x, self.dropout, feature_keys(keys[0])))
        for layer, (convolution, linear) in enumerate(zip(self.convolutions, self.maps, strict=True)):
            before, after = keys[2 * layer + 1 : 2 * layer + 3]
            by_graph, by_node = self.shares[:, layer].unsqueeze(-1).unbind(1)
            state = convolution(self.layer_norms[2 * layer](h), adjacency, self.dropout, before)
            h = h + by_graph * silu(state)
            state = self.layer_norms[2 * layer + 1](h)
            h = h + by_node * silu(linear(state, self.dropout, feature_keys(after)))
        return h, self.last(h, self.dropout, feature_keys(keys[-1]))


class G2(_DeepArchitecture):
    r"""Graph convolutions with gradient gating: a node stops where it differs little from its neighbors.

    Rusch et al. (2023, "Gradient Gating for Deep Multi-Rate Learning on Graphs", arXiv 2210.00513). With
    $\mathbf{H} = \text{ReLU}(\mathbf{X} \mathbf{W}_0 + \mathbf{b}_0)$ at first, every layer computes, with
    the same weights in all layers as in the authors' code,

    $$
    \begin{aligned}
    \mathbf{Y} &= \text{ReLU}(\tilde{\mathbf{A}} \mathbf{H} \mathbf{W}_1 + \mathbf{b}_1), \qquad
    \hat{\mathbf{Y}} = \text{ReLU}(\tilde{\mathbf{A}} \mathbf{H} \mathbf{W}_2 + \mathbf{b}_2) \\
    \boldsymbol\tau_i &= \tanh\Big(\tfrac{1}{|N_i|} \textstyle\sum_{j \in N_i}
        (\hat{\mathbf{y}}_j - \hat{\mathbf{y}}_i)^2\Big), \qquad
    \mathbf{H} \leftarrow (1 - \boldsymbol\tau) \odot \mathbf{H} + \boldsymbol\tau \odot \mathbf{Y}
    \end{aligned}
    $$

    This is the authors' code with its default p = 2; the paper has a sum in place of the mean. A linear map
    of the last state gives the logits. Dropout falls on the input and on the last state.

    Arguments are those of ``GCNII``, without ``alpha`` and ``theta``.
    """

    def _add_layers(self, width: int, count: int) -> None:
        self.num_keys = 2
        self.convolution = GCNConvolution(width, width, count, "relu")
        self.gate = GCNConvolution(width, width, count, "relu")

    def _compute(self, x: Features, adjacency: SparseMatrix, keys: Keys) -> StateAndLogits:
        neighbors = replace(adjacency, values=torch.ones_like(adjacency.values))  # and the node itself
        count = neighbors @ adjacency.values.new_ones(adjacency.num_rows, 1, 1)
        h = self.first(x, self.dropout, feature_keys(keys[0])).relu()
        for _ in range(self.num_layers):
            y = self.gate(h, adjacency)
            if not adjacency.is_sharded:  # differences stay, and their squares cancel less
                y = y - y.mean(0)
            sums = neighbors @ torch.cat([y, y.square()], -1)
            total, squares = sums.split(y.size(-1), -1)
            squared = (squares - 2 * y * total + count * y.square()).clamp(min=0)
            rate = torch.tanh(squared / (count - 1).clamp(min=1))
            h = torch.lerp(h, self.convolution(h, adjacency), rate.to(h.dtype))
        return h, self.last(h, self.dropout, feature_keys(keys[1]))
