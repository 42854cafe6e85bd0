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

from pairnorm.base.errors import PairNormError, one_of, real_number, whole_number
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
MakeNorm = Callable[[], nn.Module]
"""Makes the norm of a layer, which takes ``[nodes, models, features]``, each model on its own."""

SEED_STRIDE = 0x9E3779B1  # separates the seeds of layers; torch's generator uses the lowest 32 bits


def glorot(shape: Sequence[int], generator: torch.Generator | None = None) -> Tensor:
    """Draw a weight ``[..., in, out]`` uniformly from ±√(6 / (in + out))."""
    bound = math.sqrt(6 / (shape[-2] + shape[-1]))
    return torch.empty(tuple(shape)).uniform_(-bound, bound, generator=generator)


class DeepModel(nn.Module):
    """The base of all models: checked settings, the model axis, initial weights by seed."""

    drop_edge = 0.0

    def __init__(
        self, in_channels: int, out_channels: int, num_layers: int, norm: Mode | MakeNorm | None,
        scale: float, dropout: float, adjacency: Normalization, num_models: int | None,
    ) -> None:  # fmt: skip
        super().__init__()
        whole_number("in_channels", in_channels, least=1)
        whole_number("out_channels", out_channels, least=1)
        whole_number("num_layers", num_layers, least=1)
        whole_number("num_models", 1 if num_models is None else num_models, least=1)
        real_number("dropout", dropout, least=0, below=1)
        self.in_channels, self.num_layers, self.num_models = in_channels, num_layers, num_models
        self.dropout = dropout
        one_of("adjacency", adjacency, NORMALIZATIONS)
        self.adjacency = adjacency
        if callable(norm):
            self.norm: nn.Module | None = norm()
        else:
            self.norm = None if norm is None else PairNorm(scale, one_of("norm", norm, MODES))  # type: ignore[arg-type]

    @property
    def num_keys(self) -> int:
        """How many pairs of dropout keys ``forward`` takes."""
        return self.num_layers

    def normalized_adjacency(self, adjacency: Tensor, num_nodes: int | None = None) -> SparseMatrix:
        """Normalize an adjacency as this model takes it; do it once and pass the result to ``forward``."""
        return normalized_adjacency(adjacency, self.adjacency, num_nodes)

    def reset_parameters(self, seeds: Sequence[int] | None = None) -> None:
        """Draw Glorot-uniform weights, and set biases to zero; a norm resets its own parameters.

        Args:
            seeds: One for each model, which alone determines its weights; None for torch's generator.
        """
        generators: list[torch.Generator | None] = [None] * (self.num_models or 1)
        if seeds is not None:
            if len(seeds) != len(generators):
                problem = f"{len(seeds)} seeds for {len(generators)} models"
                raise PairNormError(problem, code="wrong-shape", value=len(seeds), expected="one for each")
            generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        norms = self._norms()
        for number, norm in enumerate(norms):
            reset: Any = getattr(norm, "reset_parameters", None)
            if reset is not None:  # with seeds that no other layer draws from
                reset(
                    None if seeds is None else [(seed + (number + 1) * SEED_STRIDE) % 2**31 for seed in seeds]
                )
        own = {id(parameter) for norm in norms for parameter in norm.parameters()}
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if id(parameter) in own:
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
        if isinstance(x, SparseMatrix):
            shape: Sequence[int] = (x.pattern.shape[0], *x.values.shape[:-1], x.pattern.shape[1])
            dtype = x.values.dtype
        else:
            shape, dtype = x.shape, x.dtype
        num_models = self.num_models or 1
        fits = len(shape) > 1 and shape[-1] == self.in_channels and shape[1:-1] in ((), (1,), (num_models,))
        if not fits or not dtype.is_floating_point:
            per_model = "" if self.num_models is None else f" or [nodes, {num_models}, {self.in_channels}]"
            problem = f"x has shape {list(shape)} and dtype {dtype}"
            expected = f"floating-point [nodes, {self.in_channels}]{per_model}"
            raise PairNormError(problem, code="wrong-shape", value=list(shape), expected=expected)
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

    def _keys(self, keys: Tensor | None, count: int, device: torch.device) -> Tensor | list[None]:
        """Return the dropout keys of each layer, None where there is no dropout."""
        if not self.training or self.dropout == self.drop_edge == 0:
            return [None] * count
        shape = (count, 2, self.num_models or 1)
        if keys is None:
            return draw_keys(*shape, device=device)
        if keys.shape != shape or keys.dtype != torch.int32:
            problem = f"keys have shape {list(keys.shape)} and dtype {keys.dtype}"
            expected = f"{list(shape)} and torch.int32"
            raise PairNormError(problem, code="wrong-shape", value=list(keys.shape), expected=expected)
        return keys

    def _logits(self, h: Tensor) -> Tensor:
        return h.squeeze(1) if self.num_models is None else h


class _DeepGNN(DeepModel):
    """Graph convolutions, each followed by activation, norm and skip; a last layer gives the logits."""

    activation: str

    def __init__(
        self, in_channels: int, out_channels: int, num_layers: int, norm: Mode | MakeNorm | None,
        scale: float, dropout: float, adjacency: Normalization, num_models: int | None, hidden_channels: int,
        skip: int, order: Order, residual: bool, jump: Jump | None, drop_edge: float, precision: Precision,
    ) -> None:  # fmt: skip
        super().__init__(
            in_channels, out_channels, num_layers, None if callable(norm) else norm, scale, dropout,
            adjacency, num_models,
        )  # fmt: skip
        whole_number("hidden_channels", hidden_channels, least=1)
        whole_number("skip", skip)
        one_of("order", order, ORDERS)
        self.skip, self.order, self.jump = skip, order, jump if jump is None else one_of("jump", jump, JUMPS)
        self._states = getattr(torch, one_of("precision", precision, PRECISIONS))
        self.drop_edge = real_number("drop_edge", drop_edge, least=0, below=1)
        if drop_edge:
            one_of("adjacency of a model that drops edges", adjacency, ("rw",))
        reads_out = residual or jump is not None
        self._hidden_layers = num_layers if reads_out else num_layers - 1
        self.convolutions = nn.ModuleList()
        widths = [in_channels, *[hidden_channels] * self._hidden_layers]
        count = num_models or 1
        residuals = [Linear(width, hidden_channels, count, bias=False) for width in widths[:-1]]
        self.residuals = nn.ModuleList(residuals) if residual else None
        read = hidden_channels * num_layers if jump == "concat" else hidden_channels
        self.readout = Linear(read, out_channels, count) if reads_out else None
        self.norms = nn.ModuleList(norm() for _ in widths[:-1]) if callable(norm) else None

    @property
    def num_keys(self) -> int:
        """How many pairs of dropout keys ``forward`` takes."""
        return self.num_layers + (self.readout is not None)

    def _norms(self) -> list[nn.Module]:
        return super()._norms() if self.norms is None else [*self.norms]

    @property
    def _activates_late(self) -> bool:
        """Whether something comes between the convolutions of the hidden layers and their activation."""
        return self.residuals is not None or (bool(self._norms()) and self.order == "before")

    def _activation(self, layer: int) -> str:
        """What convolution ``layer`` does itself."""
        return "none" if layer == self._hidden_layers or self._activates_late else self.activation

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
        return self._logits(self.hidden_and_logits(x, adjacency, keys)[1])

    def hidden_and_logits(
        self, x: Features, adjacency: Tensor | SparseMatrix, keys: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the state of the last hidden layer, ``[nodes, models, hidden]``, and the logits."""
        h, adjacency = self._prepare(x, adjacency)
        outputs: list[Tensor] = []
        layer_keys = self._keys(keys, self.num_keys, adjacency.values.device)
        if self.drop_edge and (edge_keys := layer_keys[0]) is not None:
            adjacency = drop_edges(adjacency, self.drop_edge, edge_keys[1])
        if self.dropout == 0:
            layer_keys = [None] * self.num_keys
        norms, activate, narrow = self._norms(), ACTIVATIONS[self.activation], self._states != torch.float32
        for layer, convolution in enumerate(self.convolutions):
            last = h
            if narrow and 0 < layer == self._hidden_layers:
                h = h.float()  # type: ignore[union-attr]
            norm = norms[min(layer, len(norms) - 1)] if norms and layer < self._hidden_layers else None
            together = type(norm) is PairNorm and convolution.activation == self.activation
            together = together and not _has_hooks(convolution, norm)  # type: ignore[arg-type]
            h = convolution(h, adjacency, self.dropout, layer_keys[layer], norm if together else None)
            if layer == self._hidden_layers:
                break
            if self.residuals is not None:
                h = h + self.residuals[layer](last, self.dropout, _first(layer_keys[layer]))
            if self._activates_late and self.order == "after":
                h = activate(h)
            if norm is not None and not together:
                h = norm(h)
            if self._activates_late and self.order == "before":
                h = activate(h)
            if narrow and layer == 0:
                h = h.to(self._states)
            if self.skip and layer >= self.skip:
                h = h + outputs[layer - self.skip]
            if self.skip or self.jump:
                outputs.append(h)
        if self.readout is not None:
            last = h
            if self.jump is not None:
                h = torch.cat(outputs, -1) if self.jump == "concat" else reduce(torch.maximum, outputs)
            h = self.readout(h.float() if narrow else h, self.dropout, _first(layer_keys[-1]))  # type: ignore[union-attr]
        return last, h  # type: ignore[return-value]


def _first(keys: Tensor | None) -> Tensor | None:
    """The keys of the features; the others are of attention, or of edges."""
    return None if keys is None else keys[0]


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

    def __init__(
        self, in_channels: int, out_channels: int, num_layers: int = 2, hidden_channels: int = 32,
        norm: Mode | MakeNorm | None = None, scale: float = 1.0, skip: int = 0, dropout: float = 0.6,
        adjacency: Normalization = "rw", order: Order = "after", residual: bool = False,
        jump: Jump | None = None, drop_edge: float = 0.0, precision: Precision = "float32",
        num_models: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            in_channels, out_channels, num_layers, norm, scale, dropout, adjacency, num_models,
            hidden_channels, skip, order, residual, jump, drop_edge, precision,
        )  # fmt: skip
        widths = [in_channels, *[hidden_channels] * self._hidden_layers, out_channels]
        for layer in range(num_layers):
            self.convolutions.append(
                GCNConvolution(widths[layer], widths[layer + 1], num_models or 1, self._activation(layer))
            )
        self.reset_parameters()


class GAT(_DeepGNN):
    """Graph attention network, with ELU between the layers.

    Heads are concatenated, and averaged in the last layer. Dropout falls on the input of every layer and on
    the attention weights, as in GAT's own paper.

    Args:
        in_channels: Features per node.
        out_channels: Logits per node.
        num_layers: Number of graph convolutions.
        hidden_channels: Width of the layers between, all heads together.
        heads: Number of attention heads.
        norm: As for ``GCN``.
        scale: PairNorm's s.
        skip: The paper's t: the output of layer l is added to that of layer l + t. 0 for none.
        dropout: Rate at which inputs and attention weights are dropped.
        adjacency: Has no effect: of the adjacency only the pattern counts.
        order: Norm ``"after"`` the activation (the paper's text) or ``"before"`` it (its released code).
        residual: As for ``GCN``.
        jump: As for ``GCN``.
        precision: As for ``GCN``.
        num_models: Train this many models side by side; None for an ordinary model.
    """

    activation = "elu"

    def __init__(
        self, in_channels: int, out_channels: int, num_layers: int = 2, hidden_channels: int = 64,
        heads: int = 1, norm: Mode | MakeNorm | None = None, scale: float = 1.0, skip: int = 0,
        dropout: float = 0.6, adjacency: Normalization = "rw", order: Order = "after", residual: bool = False,
        jump: Jump | None = None, precision: Precision = "float32", num_models: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            in_channels, out_channels, num_layers, norm, scale, dropout, adjacency, num_models,
            hidden_channels, skip, order, residual, jump, 0.0, precision,
        )  # fmt: skip
        if hidden_channels % whole_number("heads", heads, least=1):
            problem = f"hidden_channels is {hidden_channels} and heads is {heads}"
            expected = "hidden_channels to be a multiple of heads"
            raise PairNormError(problem, code="out-of-range", value=heads, expected=expected)
        for layer in range(num_layers):
            width = in_channels if layer == 0 else hidden_channels
            last = layer == self._hidden_layers
            out = out_channels if last else hidden_channels // heads
            self.convolutions.append(
                GATConvolution(width, out, num_models or 1, self._activation(layer), heads, concat=not last)
            )
        self.reset_parameters()


class SGC(DeepModel):
    r"""Simple graph convolution: propagation, then one linear map.

    $$
    \tilde{\mathbf{A}}^K \mathbf{X} \mathbf{W} + \mathbf{b}
    $$

    PairNorm comes on the input and after every step.

    Args:
        in_channels: Features per node.
        out_channels: Logits per node.
        num_layers: The number K of propagations.
        norm: As for ``GCN``; one supports all steps.
        scale: PairNorm's s.
        dropout: Rate at which the propagated features are dropped.
        adjacency: ``"rw"`` or ``"sym"``.
        num_models: Train this many models side by side; None for an ordinary model.
    """

    def __init__(
        self, in_channels: int, out_channels: int, num_layers: int = 2, norm: Mode | MakeNorm | None = None,
        scale: float = 1.0, dropout: float = 0.0, adjacency: Normalization = "rw",
        num_models: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(in_channels, out_channels, num_layers, norm, scale, dropout, adjacency, num_models)
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

    @property
    def num_keys(self) -> int:
        """How many pairs of dropout keys ``forward`` takes."""
        return 1

    def hidden(self, x: Features, adjacency: Tensor | SparseMatrix) -> Tensor:
        """Return the propagated features ``[nodes, 1 or models, features]``."""
        x, adjacency = self._prepare(x, adjacency)
        iterates = sgc_iterates(x, adjacency, self.norm, lambda adjacency, h: self.propagation(h, adjacency))
        return next(islice(iterates, self.num_layers, None))

    @disable_dynamo
    def forward(self, x: Features, adjacency: Tensor | SparseMatrix, keys: Tensor | None = None) -> Tensor:
        """Return logits; arguments as for ``GCN``, ``keys`` ``[1, 2, models]``."""
        h = self.hidden(x, adjacency)
        layer_keys = self._keys(keys, 1, h.device)[0]
        if layer_keys is not None:
            first = adjacency.first_row if isinstance(adjacency, SparseMatrix) else 0
            h = dropout(h.expand(-1, self.weight.size(0), -1), self.dropout, layer_keys[0], first)
        return self._logits(stacked_linear(h, self.weight) + self.bias)
