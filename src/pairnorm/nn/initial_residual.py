"""GCNII and APPNP: deep models in which every step is mixed with what the first one was given."""

import math

from torch import Tensor, nn

from pairnorm.base.errors import real_number, whole_number
from pairnorm.nn.layers import Features, GCNIIConvolution, Hop, Linear
from pairnorm.nn.models import DeepModel
from pairnorm.nn.ops.dropout import dropout
from pairnorm.nn.ops.kernels import disable_dynamo
from pairnorm.nn.propagate import Normalization
from pairnorm.nn.sparse import SparseMatrix


class _InitialResidual(DeepModel):
    """A linear map in, ``num_layers`` propagations with initial residuals, a linear map out."""

    def __init__(
        self, in_channels: int, out_channels: int, num_layers: int, hidden_channels: int, alpha: float,
        dropout: float, adjacency: Normalization, num_models: int | None,
    ) -> None:  # fmt: skip
        super().__init__(in_channels, out_channels, num_layers, None, 1.0, dropout, adjacency, num_models)
        whole_number("hidden_channels", hidden_channels, least=1)
        self.alpha = real_number("alpha", alpha, least=0, most=1)
        self.first = Linear(in_channels, hidden_channels, num_models or 1)
        self.last = Linear(hidden_channels, out_channels, num_models or 1)

    def _feature_keys(self, keys: Tensor | None, adjacency: SparseMatrix) -> list[Tensor | None]:
        found = self._keys(keys, self.num_keys, adjacency.values.device)
        return [None if pair is None else pair[0] for pair in found]

    @disable_dynamo
    def forward(self, x: Features, adjacency: Tensor | SparseMatrix, keys: Tensor | None = None) -> Tensor:
        """Return logits; arguments as for ``GCN``."""
        return self._logits(self.hidden_and_logits(x, adjacency, keys)[1])

    def hidden_and_logits(
        self, x: Features, adjacency: Tensor | SparseMatrix, keys: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the last state before the logits, ``[nodes, models, ...]``, and the logits."""
        raise NotImplementedError


class GCNII(_InitialResidual):
    r"""Graph convolutions with initial residual and identity map.

    Chen et al. (2020, "Simple and Deep Graph Convolutional Networks"). With
    $\mathbf{H}_0 = \text{ReLU}(\mathbf{X} \mathbf{W}_0 + \mathbf{b}_0)$ and
    $\beta_l = \log(\theta / l + 1)$:

    $$
    \mathbf{H}_l = \text{ReLU}\Big(
        \big((1 - \alpha) \tilde{\mathbf{A}} \mathbf{H}_{l-1} + \alpha \mathbf{H}_0\big)
        \big((1 - \beta_l) \mathbf{I} + \beta_l \mathbf{W}_l\big)\Big)
    $$

    A linear map of the last state gives the logits. Dropout falls on the input of every map.

    Args:
        in_channels: Features per node.
        out_channels: Logits per node.
        num_layers: Number of graph convolutions.
        hidden_channels: Width of the layers between.
        alpha: The share of the initial representation.
        theta: How fast the weights fade with depth.
        dropout: Rate of dropout.
        adjacency: ``"sym"`` (the paper's) or ``"rw"``.
        num_models: Train this many models side by side; None for an ordinary model.
    """

    def __init__(
        self, in_channels: int, out_channels: int, num_layers: int = 2, hidden_channels: int = 32,
        alpha: float = 0.1, theta: float = 0.5, dropout: float = 0.6, adjacency: Normalization = "sym",
        num_models: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            in_channels, out_channels, num_layers, hidden_channels, alpha, dropout, adjacency, num_models
        )
        self.theta = real_number("theta", theta, above=0)
        shares = [math.log(self.theta / layer + 1) for layer in range(1, num_layers + 1)]
        self.convolutions = nn.ModuleList(
            GCNIIConvolution(hidden_channels, num_models or 1, self.alpha, beta) for beta in shares
        )
        self.reset_parameters()

    @property
    def num_keys(self) -> int:
        """How many pairs of dropout keys ``forward`` takes."""
        return self.num_layers + 2

    def hidden_and_logits(
        self, x: Features, adjacency: Tensor | SparseMatrix, keys: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the last state, ``[nodes, models, hidden]``, and the logits it gives."""
        x, adjacency = self._prepare(x, adjacency)
        before, *between, after = self._feature_keys(keys, adjacency)
        h = initial = self.first(x, self.dropout, before).relu()
        for convolution, drawn in zip(self.convolutions, between, strict=True):
            h = h if drawn is None else dropout(h, self.dropout, drawn)
            h = convolution(h, initial, adjacency)
        return h, self.last(h, self.dropout, after)


class APPNP(_InitialResidual):
    r"""A perceptron whose logits are propagated by personalized PageRank.

    Gasteiger et al. (2019, "Predict then Propagate: Graph Neural Networks meet Personalized PageRank"). With
    $\mathbf{Z}_0 = \text{ReLU}(\mathbf{X} \mathbf{W}_0 + \mathbf{b}_0) \mathbf{W}_1 + \mathbf{b}_1$:

    $$
    \mathbf{Z}_k = (1 - \alpha) \tilde{\mathbf{A}} \mathbf{Z}_{k-1} + \alpha \mathbf{Z}_0
    $$

    Args:
        in_channels: Features per node.
        out_channels: Logits per node.
        num_layers: Number K of propagations.
        hidden_channels: Width of the perceptron.
        alpha: The probability of a return to the start.
        dropout: Rate at which the inputs of both linear maps are dropped.
        adjacency: ``"sym"`` (the paper's) or ``"rw"``.
        num_models: Train this many models side by side; None for an ordinary model.
    """

    def __init__(
        self, in_channels: int, out_channels: int, num_layers: int = 10, hidden_channels: int = 32,
        alpha: float = 0.1, dropout: float = 0.6, adjacency: Normalization = "sym",
        num_models: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            in_channels, out_channels, num_layers, hidden_channels, alpha, dropout, adjacency, num_models
        )
        self.hop = Hop()
        self.reset_parameters()

    @property
    def num_keys(self) -> int:
        """How many pairs of dropout keys ``forward`` takes."""
        return 2

    def hidden_and_logits(
        self, x: Features, adjacency: Tensor | SparseMatrix, keys: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return what the last propagation takes in, ``[nodes, models, out_channels]``, and the logits."""
        x, adjacency = self._prepare(x, adjacency)
        first, second = self._feature_keys(keys, adjacency)
        initial = self.last(self.first(x, self.dropout, first).relu(), self.dropout, second)
        before = z = initial
        for _ in range(self.num_layers):
            before, z = z, self.hop(z, adjacency).lerp(initial, self.alpha)
        return before, z
