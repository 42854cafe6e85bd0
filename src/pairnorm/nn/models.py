"""SGC, GCN and GAT of any depth, with norms and residuals; one class trains one model or many.

A hidden state is ``[nodes, models, features]`` and a weight ``[models, in, out]``. A model built without
``num_models`` is the ordinary one, from ``[nodes, features]`` to ``[nodes, out_channels]``.
"""

import math
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import islice
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from pairnorm.base.errors import PairNormError, one_of, real_number, whole_number, wrong_shape
from pairnorm.nn.layers import Features, GATConvolution, GCNConvolution, Linear, Propagation
from pairnorm.nn.ops.dropout import draw_keys, dropout
from pairnorm.nn.ops.kernels import disable_dynamo
from pairnorm.nn.ops.linear import stacked_linear
from pairnorm.nn.ops.sparse_product import ACTIVATIONS
from pairnorm.nn.pair_norm import MODES, Mode, PairNorm
from pairnorm.nn.propagate import (
    NORMALIZATIONS,
    Normalization,
    drop_edges,
    normalized_adjacency,
    sgc_iterates,
)
from pairnorm.nn.sparse import SparseMatrix

Order = Literal["after", "before"]
ORDERS: tuple[Order, ...] = get_args(Order)
Jump = Literal["concat", "max"]
JUMPS: tuple[Jump, ...] = get_args(Jump)
Precision = Literal["float32", "bfloat16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
Keys = Sequence[Tensor | None]
"""A pair of dropout keys for each layer: of features, of attention or edges; None for no dropout."""
StateAndLogits = tuple[Tensor, Tensor]
MakeNorm = Callable[[], nn.Module]
"""Makes the norm of a layer, which takes ``[nodes, models, features]``, each model on its own."""

SEED_STRIDE = 0x9E3779B1  # separates the seeds of layers; torch's generator uses the lowest 32 bits


def glorot(shape: Sequence[int], generator: torch.Generator | None = None) -> Tensor:
    """Draw a weight ``[..., in, out]`` uniformly from ±√(6 / (in + out))."""
    bound = math.sqrt(6 / (shape[-2] + shape[-1]))
    return torch.empty(tuple(shape)).uniform_(-bound, bound, generator=generator)


def generators_of(seeds: Sequence[int] | None, num_models: int) -> list[torch.Generator | None]:
    """Return a generator for each model; without seeds None, which stands for torch's own."""
    if seeds is None:
        return [None] * num_models
    if len(seeds) != num_models:
        problem = f"{len(seeds)} seeds for {num_models} models"
        raise PairNormError(problem, code="wrong-shape", value=len(seeds), expected="one for each")
    return [torch.Generator().manual_seed(seed) for seed in seeds]


class DeepModel(nn.Module):
    """The base of all models: checked settings, the model axis, initial weights by seed."""

    drop_edge = 0.0
    num_keys: int
    """How many pairs of dropout keys ``forward`` takes."""

    def __init__(
        self, in_channels: int, out_channels: int, num_layers: int, dropout: float, adjacency: Normalization,
        num_models: int | None, norm: Mode | MakeNorm | None = None, scale: float = 1.0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.in_channels = whole_number("in_channels", in_channels, least=1)
        whole_number("out_channels", out_channels, least=1)
        self.num_layers = whole_number("num_layers", num_layers, least=1)
        self.num_models = None if num_models is None else whole_number("num_models", num_models, least=1)
        self.dropout = real_number("dropout", dropout, least=0, below=1)
        one_of("adjacency", adjacency, NORMALIZATIONS)
        self.adjacency = adjacency
        self.norm: nn.Module | None = None
        if norm is not None:
            self.norm = norm() if callable(norm) else PairNorm(scale, one_of("norm", norm, MODES))  # type: ignore[arg-type]

    def normalized_adjacency(self, adjacency: Tensor, num_nodes: int | None = None) -> SparseMatrix:
        """Normalize an adjacency as this model takes it; do it once and pass the result to ``forward``."""
        return normalized_adjacency(adjacency, self.adjacency, num_nodes)

    @disable_dynamo
    def forward(self, x: Features, adjacency: Tensor | SparseMatrix, keys: Tensor | None = None) -> Tensor:
        """Return logits.

        Args:
            x: Features ``[nodes, features]``, dense or sparse, shared by all models; or
                ``[nodes, models, features]``; or a ``SparseMatrix`` with values per model.
            adjacency: A sparse tensor or ``edge_index``, normalized on every call, or (faster) the result of
                ``normalized_adjacency``.
            keys: Dropout keys ``[num_keys, 2, models]``; drawn from torch's generator when not given.
        """
        logits = self.hidden_and_logits(x, adjacency, keys)[1]
        return logits.squeeze(1) if self.num_models is None else logits

    def hidden_and_logits(
        self, x: Features, adjacency: Tensor | SparseMatrix, keys: Tensor | None = None
    ) -> StateAndLogits:
        """Return the last state before the logits, ``[nodes, models, ...]``, and the logits."""
        x, adjacency = self._prepare(x, adjacency)
        return self._compute(x, adjacency, self._layer_keys(keys, adjacency.values.device))

    def _compute(self, x: Features, adjacency: SparseMatrix, keys: Keys) -> StateAndLogits:
        """Return the last state and the logits."""
        raise NotImplementedError

    def reset_parameters(self, seeds: Sequence[int] | None = None) -> None:
        """Draw Glorot-uniform weights by the seed of each model, or torch's generator; zero the biases."""
        generators = generators_of(seeds, self.num_models or 1)
        norms = self._norms()
        for number, norm in enumerate(norms, 1):
            reset: Any = getattr(norm, "reset_parameters", None)
            if reset is not None:  # with seeds that no other layer draws from
                reset(None if seeds is None else [(seed + number * SEED_STRIDE) % 2**31 for seed in seeds])
        norm_parameters = {id(parameter) for norm in norms for parameter in norm.parameters()}
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if id(parameter) in norm_parameters:
                    continue
                if name.endswith("bias"):
                    parameter.zero_()
                    continue
                for model, generator in zip(parameter, generators, strict=True):
                    model.copy_(glorot(model.shape, generator))

    def _norms(self) -> list[nn.Module]:
        return [] if self.norm is None else [self.norm]

    def _prepare(self, x: Features, adjacency: Tensor | SparseMatrix) -> tuple[Features, SparseMatrix]:
        """Bring features to ``[nodes, 1 or models, features]`` or a SparseMatrix; normalize the adjacency."""
        if isinstance(x, Tensor) and x.layout != torch.strided:
            x = SparseMatrix.from_torch(x)
        shape: Sequence[int] = x.shape if isinstance(x, Tensor) else x.stacked_shape
        dtype = x.dtype if isinstance(x, Tensor) else x.values.dtype
        num_models = self.num_models or 1
        fits = len(shape) > 1 and shape[-1] == self.in_channels and shape[1:-1] in ((), (1,), (num_models,))
        if not fits or not dtype.is_floating_point:
            per_model = "" if self.num_models is None else f" or [nodes, {num_models}, {self.in_channels}]"
            raise wrong_shape("x", shape, f"floating-point [nodes, {self.in_channels}]{per_model}", dtype)
        if isinstance(x, Tensor) and x.dim() == 2:
            x = x.unsqueeze(1)
        nodes = shape[0]
        if not isinstance(adjacency, SparseMatrix):
            adjacency = self.normalized_adjacency(adjacency, nodes)
        if adjacency.num_rows != nodes:
            problem = f"the adjacency has {adjacency.num_rows} nodes"
            expected = f"{nodes}, as many as there are rows of features"
            raise PairNormError(problem, code="wrong-shape", value=adjacency.num_rows, expected=expected)
        return x, adjacency

    def _layer_keys(self, keys: Tensor | None, device: torch.device) -> Keys:
        """Return the dropout keys of each layer, drawn where none are given."""
        if not self.training or self.dropout == self.drop_edge == 0:
            return [None] * self.num_keys
        shape = (self.num_keys, 2, self.num_models or 1)
        if keys is None:
            keys = draw_keys(*shape, device=device)
        if keys.shape != shape or keys.dtype != torch.int32:
            raise wrong_shape("keys", keys.shape, f"{list(shape)} and torch.int32", keys.dtype)
        return keys.unbind()


def feature_keys(keys: Tensor | None) -> Tensor | None:
    """Return a layer's dropout keys for features, [models]; its other keys are for attention or edges."""
    return None if keys is None else keys[0]


class _DeepGNN(DeepModel):
    """Graph convolutions, each followed by activation, norm and skip; a last layer gives the logits."""

    activation: str

    def __init__(
        self, in_channels: int, out_channels: int, num_layers: int = 2, hidden_channels: int = 32,
        norm: Mode | MakeNorm | None = None, scale: float = 1.0, skip: int = 0, dropout: float = 0.6,
        adjacency: Normalization = "rw", order: Order = "after", residual: bool = False,
        jump: Jump | None = None, drop_edge: float = 0.0, precision: Precision = "float32",
        num_models: int | None = None,
    ) -> None:  # fmt: skip
        sizes, shared = (in_channels, out_channels, num_layers), None if callable(norm) else norm
        super().__init__(*sizes, dropout, adjacency, num_models, shared, scale)
        whole_number("hidden_channels", hidden_channels, least=1)
        self.skip, self.order = whole_number("skip", skip), one_of("order", order, ORDERS)
        self.jump = None if jump is None else one_of("jump", jump, JUMPS)
        self._state_dtype = getattr(torch, one_of("precision", precision, PRECISIONS))
        self.drop_edge = real_number("drop_edge", drop_edge, least=0, below=1)
        if drop_edge:
            one_of("adjacency of a model that drops edges", adjacency, ("rw",))
        reads_out = residual or jump is not None
        self.num_keys = num_layers + reads_out
        self._hidden_layers = num_layers if reads_out else num_layers - 1
        widths = [in_channels, *[hidden_channels] * self._hidden_layers, out_channels]
        # Something comes between the convolutions of the hidden layers and their activation.
        activates_late = residual or (norm is not None and order == "before")
        self.convolutions = nn.ModuleList()
        for layer in range(num_layers):
            is_last = layer == self._hidden_layers
            activation = "none" if is_last or activates_late else self.activation
            convolution = self._convolution(widths[layer], widths[layer + 1], activation, is_last)
            self.convolutions.append(convolution)
        count, inner = num_models or 1, widths[: self._hidden_layers]
        residuals = [Linear(width, hidden_channels, count, bias=False) for width in inner]
        self.residuals = nn.ModuleList(residuals) if residual else None
        read = hidden_channels * num_layers if jump == "concat" else hidden_channels
        self.readout = Linear(read, out_channels, count) if reads_out else None
        self.norms = nn.ModuleList(norm() for _ in inner) if callable(norm) else None
        self.reset_parameters()

    def _convolution(self, width: int, out: int, activation: str, is_last: bool) -> nn.Module:
        raise NotImplementedError

    def _norms(self) -> list[nn.Module]:
        return super()._norms() if self.norms is None else [*self.norms]

    def _compute(self, x: Features, adjacency: SparseMatrix, keys: Keys) -> StateAndLogits:
        h: Any = x
        if self.drop_edge and (pair := keys[0]) is not None:
            adjacency = drop_edges(adjacency, self.drop_edge, pair[1])
        if self.dropout == 0:
            keys = [None] * self.num_keys
        outputs: list[Tensor] = []
        for layer in range(self._hidden_layers):
            h = self._hidden_layer(layer, h, adjacency, keys[layer])
            if self.skip and layer >= self.skip:
                h = h + outputs[layer - self.skip]
            if self.skip or self.jump:
                outputs.append(h)
        is_narrow = self._state_dtype != torch.float32 and self._hidden_layers > 0
        if self.readout is None:
            state = h.float() if is_narrow else h
            return h, self.convolutions[-1](state, adjacency, self.dropout, keys[-1])
        state = h
        if self.jump is not None:
            state = torch.cat(outputs, -1) if self.jump == "concat" else reduce(torch.maximum, outputs)
        return h, self.readout(state.float() if is_narrow else state, self.dropout, feature_keys(keys[-1]))

    def _hidden_layer(self, layer: int, x: Features, adjacency: SparseMatrix, keys: Tensor | None) -> Tensor:
        convolution, norm = self.convolutions[layer], self.norm if self.norms is None else self.norms[layer]
        activates_late = convolution.activation != self.activation
        is_fused = type(norm) is PairNorm and not activates_late and not _has_hooks(convolution, norm)
        h: Tensor = convolution(x, adjacency, self.dropout, keys, norm if is_fused else None)
        if self.residuals is not None:
            h = h + self.residuals[layer](x, self.dropout, feature_keys(keys))
        if activates_late and self.order == "after":
            h = ACTIVATIONS[self.activation](h)
        if norm is not None and not is_fused:
            h = norm(h)
        if activates_late and self.order == "before":
            h = ACTIVATIONS[self.activation](h)
        return h.to(self._state_dtype) if layer == 0 and self._state_dtype != torch.float32 else h


def _has_hooks(*modules: nn.Module) -> bool:
    """Return whether one of the modules has hooks, which must see it called."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return _has_any_global_hook() or any(getattr(module, kind) for module in modules for kind in kinds)


class GCN(_DeepGNN):
    r"""Graph convolutional network, the last layer without activation and norm.

    $$
    \mathbf{H}' = \text{norm}(\text{ReLU}(\tilde{\mathbf{A}} \mathbf{H} \mathbf{W} + \mathbf{b}))
    $$

    Args:
        in_channels: Features per node.
        out_channels: Logits per node.
        num_layers: Number of graph convolutions.
        hidden_channels: Width of the layers between.
        norm: ``"PN"``, ``"PN-SI"``, ``"PN-SCS"`` or None; or a function that makes the norm of a layer, such
            as ``lambda: pairnorm.nn.norms.BatchNorm(32, num_models=1)``.
        scale: PairNorm's s.
        skip: The paper's t: the output of layer l is added to that of layer l + t. 0 for none.
        dropout: Rate at which the input of every convolution is dropped.
        adjacency: ``"rw"`` or ``"sym"``; see ``pairnorm.nn.normalized_adjacency``.
        order: Norm ``"after"`` the activation (the paper's text) or ``"before"`` it (its released code).
        residual: Add a linear map of what a layer takes in, before norm and activation, and read the logits
            off the last of ``num_layers`` hidden layers by another (Luo et al. 2024, "Classic GNNs are Strong
            Baselines for Node Classification").
        jump: Read the logits off all hidden layers, ``"concat"``-enated or their ``"max"`` (Xu et
            al. 2018, "Representation Learning on Graphs with Jumping Knowledge Networks").
        drop_edge: Rate at which edges are dropped in training; see ``pairnorm.nn.drop_edges``.
        precision: Dtype of states between layers, ``"float32"`` or ``"bfloat16"``; weights stay float32.
        num_models: Train this many models side by side; None for an ordinary model.

    Example:
        >>> model = GCN(in_channels=8, out_channels=3, num_layers=4, norm="PN-SI").eval()
        >>> model(torch.randn(2, 8), torch.tensor([[0, 1], [1, 0]])).shape
        torch.Size([2, 3])
    """

    activation = "relu"

    def _convolution(self, width: int, out: int, activation: str, is_last: bool) -> nn.Module:
        return GCNConvolution(width, out, self.num_models or 1, activation)


class GAT(_DeepGNN):
    """Graph attention network, with ELU between the layers.

    Heads are concatenated, and averaged in the last layer. Dropout falls on the input of every layer and on
    the attention weights, as in GAT's own paper. Arguments that are not listed are those of ``GCN``.

    Args:
        hidden_channels: Width of the layers between, all heads together.
        heads: Number of attention heads.
        dropout: Rate at which inputs and attention weights are dropped.
        adjacency: Has no effect: of the adjacency only the pattern counts.
    """

    activation = "elu"

    def __init__(
        self, in_channels: int, out_channels: int, num_layers: int = 2, hidden_channels: int = 64,
        heads: int = 1, norm: Mode | MakeNorm | None = None, scale: float = 1.0, skip: int = 0,
        dropout: float = 0.6, adjacency: Normalization = "rw", order: Order = "after", residual: bool = False,
        jump: Jump | None = None, precision: Precision = "float32", num_models: int | None = None,
    ) -> None:  # fmt: skip
        self.heads = whole_number("heads", heads, least=1)
        if whole_number("hidden_channels", hidden_channels, least=1) % heads:
            problem = f"hidden_channels is {hidden_channels} and heads is {heads}"
            expected = "hidden_channels to be a multiple of heads"
            raise PairNormError(problem, code="out-of-range", value=heads, expected=expected)
        super().__init__(
            in_channels, out_channels, num_layers, hidden_channels, norm, scale, skip, dropout, adjacency,
            order, residual, jump, precision=precision, num_models=num_models,
        )  # fmt: skip

    def _convolution(self, width: int, out: int, activation: str, is_last: bool) -> nn.Module:
        out = out if is_last else out // self.heads
        return GATConvolution(width, out, self.num_models or 1, activation, self.heads, concat=not is_last)


class SGC(DeepModel):
    r"""Simple graph convolution: propagation, then one linear map.

    $$
    \tilde{\mathbf{A}}^K \mathbf{X} \mathbf{W} + \mathbf{b}
    $$

    PairNorm comes on the input and after every step. Arguments that are not listed are those of ``GCN``.

    Args:
        num_layers: The number K of propagations.
        norm: As for ``GCN``; one supports all steps.
        dropout: Rate at which the propagated features are dropped.
    """

    def __init__(
        self, in_channels: int, out_channels: int, num_layers: int = 2, norm: Mode | MakeNorm | None = None,
        scale: float = 1.0, dropout: float = 0.0, adjacency: Normalization = "rw",
        num_models: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(in_channels, out_channels, num_layers, dropout, adjacency, num_models, norm, scale)
        self.num_keys = 1
        self.propagation = Propagation()
        self.weight = nn.Parameter(torch.empty(num_models or 1, in_channels, out_channels))
        self.bias = nn.Parameter(torch.empty(num_models or 1, out_channels))
        self.reset_parameters()

    @classmethod
    def from_weights(cls, weight: Tensor, bias: Tensor, **settings: Any) -> "SGC":
        """Build an SGC with given weights.

        Args:
            weight: ``[models, features, out_channels]``.
            bias: ``[models, out_channels]``.
            settings: ``num_layers``, ``norm``, ``scale``, ``dropout`` and ``adjacency``.
        """
        num_models, width, out_channels = weight.shape
        model = cls(width, out_channels, num_models=num_models, **settings)
        with torch.no_grad():
            model.weight.copy_(weight)
            model.bias.copy_(bias)
        return model

    def hidden(self, x: Features, adjacency: Tensor | SparseMatrix) -> Tensor:
        """Return the propagated features ``[nodes, 1 or models, features]``."""
        x, adjacency = self._prepare(x, adjacency)
        iterates = sgc_iterates(x, adjacency, self.norm, lambda adjacency, h: self.propagation(h, adjacency))
        return next(islice(iterates, self.num_layers, None))

    def _compute(self, x: Features, adjacency: SparseMatrix, keys: Keys) -> StateAndLogits:
        h = state = self.hidden(x, adjacency)
        if (drop_keys := feature_keys(keys[0])) is not None:
            stacked = h.expand(-1, self.weight.size(0), -1)
            state = dropout(stacked, self.dropout, drop_keys, adjacency.first_row)
        return h, stacked_linear(state, self.weight) + self.bias
