"""Trainers of GCN and GAT, and of SGC, each for many trials together.

PairNorm commutes with its scale: with scale s every state of an SGC is s times the state with scale 1 (up to
eps). States are therefore propagated once, with scale 1, for all depths, and s multiplies the logits before
the bias. PN-SCS does not commute: it propagates every scale.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pairnorm.base.errors import one_of
from pairnorm.base.files import atomic_file
from pairnorm.data import Graph
from pairnorm.nn import GAT, GCN, PairNorm, sgc_iterates
from pairnorm.nn.models import glorot
from pairnorm.nn.norms import DegreePairNorm, GraphNormV2
from pairnorm.nn.ops.dropout import dropout, keys_from_seeds, step_keys
from pairnorm.train.distributed import Shards, all_rows
from pairnorm.train.loop import Loop
from pairnorm.train.methods import Model, find_method
from pairnorm.train.problem import SCORES, Problem
from pairnorm.train.spec import Spec


def build(
    spec: Spec, num_features: int, num_classes: int, seeds: Sequence[int], device: torch.device
) -> Model:
    """Build the GCN, GAT or registered model of a spec; the seed of a trial decides its initial weights."""
    method = find_method(spec.method)
    shared = {name: getattr(spec, name) for name in ("dropout", "adjacency")}
    shared |= {"num_layers": spec.depth, "hidden_channels": spec.hidden, "num_models": len(seeds)}
    model: Model
    if method.model is not None:
        strength = {method.parameter: spec.strength} if method.parameter else {}
        model = method.model(num_features, num_classes, **shared, **strength)
    else:
        kinds: dict[str, Any] = {"GCN": GCN, "GAT": partial(GAT, heads=spec.heads)}
        kind = kinds[one_of("model", spec.model, tuple(kinds))]
        options = {name: getattr(spec, name) for name in ("scale", "skip", "order", "precision")}
        options |= {"norm": spec.mode, **method.arguments(spec, len(seeds))}
        model = kind(num_features, num_classes, **shared, **options)
    model.reset_parameters(seeds)
    return model.to(device)


def sgc_settings(spec: Spec, trials: int = 1) -> dict[str, Any]:
    """Return the arguments of the SGC of a spec, except its weights."""
    options = {name: getattr(spec, name) for name in ("scale", "dropout", "adjacency")}
    options |= {"num_layers": spec.depth, "norm": spec.mode}
    return options | find_method(spec.method).arguments(spec, trials)


def bind_graph(module: nn.Module, graph: Graph) -> nn.Module:
    """Set the degrees or eigenvectors of a graph in the norms that need them, and return the module."""
    for norm in module.modules():
        if isinstance(norm, DegreePairNorm | GraphNormV2):
            norm.bind_graph(graph.adjacency)
    return module


@dataclass(frozen=True, eq=False)
class Fitted:
    """The fitted models of one depth.

    Args:
        depth: number of layers or propagation steps.
        loop: of the training; shared by all depths of SGC, so read it before the next depth.
        state: the last hidden representation, ``[nodes, trials, features]``; for SGC the propagated
            features with scale 1, ``[nodes, 1 or trials, features]``.
        logits: ``[nodes, trials, classes]``; for SGC ``[nodes, trials, variants, classes]``.
        factors: of the state in each model, ``[trials]`` or ``[trials, variants]``.
    """

    depth: int
    loop: Loop
    state: Tensor
    logits: Tensor
    factors: Tensor


class GNNTrainer:
    """Trains (spec, seed) pairs of one GCN or GAT that differ in seed, optimizer and missing features.

    With ``curves``, the loop records loss and accuracy of every epoch; with ``shards``, ranks train together.
    """

    def __init__(
        self,
        graph: Graph,
        trials: Sequence[tuple[Spec, int]],
        device: torch.device,
        curves: bool = False,
        shards: Shards | None = None,
    ) -> None:
        spec, seeds = trials[0][0], [seed for _, seed in trials]
        self.pairs = trials
        self.problem = problem = Problem.of(graph, trials, device, shards)
        self.model = model = build(spec, problem.num_features, graph.num_classes, seeds, device)
        bind_graph(model, graph)
        if shards is not None:
            shards.join(model)
        keys = keys_from_seeds(seeds, device)

        def loss(epoch: Tensor) -> Tensor:
            model.train()
            layer_keys = step_keys(keys, epoch, 2 * model.num_keys).view(model.num_keys, 2, -1)
            losses = problem.losses(model(problem.features, problem.adjacency, layer_keys), "train")
            if shards is None:
                return losses
            losses.sum().backward()
            shards.sum_gradients(model)
            return losses.detach()

        def accuracy() -> Tensor:
            model.eval()
            return problem.scores(model(problem.features, problem.adjacency), "validation", spec.metric)

        parameters = list(model.parameters())
        self.loop = Loop(
            parameters,
            [*parameters, *model.buffers()],  # running statistics belong to the best epoch
            loss,
            accuracy,
            learning_rate=[spec.learning_rate for spec, _ in trials],
            weight_decay=[spec.weight_decay for spec, _ in trials],
            curves=curves,
        )
        self._epochs = spec.epochs

    def fit(self, tick: Callable[[int], None] = lambda epochs: None, checkpoint: Path | None = None) -> None:
        """Train and load the best weights into the model.

        Args:
            tick: called regularly with the number of epochs since its last call.
            checkpoint: file of the state, written as often, and loaded first if it exists. Of several ranks,
                the first reads and writes it.
        """
        shards, finished, saved = self.problem.shards, 0, None
        first = shards is None or dist.get_rank(shards.process_group) == 0
        if checkpoint is not None and first and checkpoint.exists():
            saved = torch.load(checkpoint, map_location="cpu", weights_only=True)
        if checkpoint is not None and shards is not None:  # other machines may not have the file
            saved = shards.of_first(saved)
        if saved is not None:
            finished = self.loop.load_state(saved)

        def save(epochs: int) -> None:
            if checkpoint is not None and epochs and first:
                buffer = BytesIO()  # torch's own writer reports a full disk as a bug
                torch.save(self.loop.state(), buffer)
                with atomic_file(checkpoint) as draft:
                    draft.write_bytes(buffer.getvalue())
            tick(epochs)

        self.loop.train(self._epochs - finished, save)
        self.loop.restore()
        self.model.eval()

    def fit_depths(self, tick: Callable[[int], None]) -> Iterator[Fitted]:
        """Train, and yield the best models."""
        self.fit(tick)
        ones = torch.ones(len(self.pairs), device=self.problem.labels.device)
        yield Fitted(self.pairs[0][0].depth, self.loop, *self.evaluate(), ones)

    @torch.no_grad()
    def evaluate(self) -> tuple[Tensor, Tensor]:
        """Return the last hidden representation and the logits of the best models, for all nodes."""
        outputs = self.model.hidden_and_logits(self.problem.features, self.problem.adjacency)
        shards = self.problem.shards
        if shards is None:
            return outputs
        hidden, logits = (all_rows(rows, shards.num_nodes, shards.process_group) for rows in outputs)
        return hidden, logits


class SGCTrainer:
    """Trains all depths of SGC (spec, seed) pairs that differ in seed, missing features, scale and optimizer.

    Args:
        graph: the graph.
        variants: for every trial, equally many pairs that share its states: they differ in PairNorm's scale,
            learning rate and weight decay; their depths are ignored.
        depths: at which to train a regression.
        device: where to run.
        curves: as in ``GNNTrainer``.
    """

    def __init__(
        self,
        graph: Graph,
        variants: Sequence[Sequence[tuple[Spec, int]]],
        depths: Sequence[int],
        device: torch.device,
        curves: bool = False,
    ) -> None:
        trials = [pairs[0] for pairs in variants]
        self.problem, self._graph = Problem.of(graph, trials, device), graph
        self.spec, self.seeds = trials[0][0], [seed for _, seed in trials]
        self.pairs = [pair for row in variants for pair in row]
        factors = [[1.0 if self.spec.norm == "PN-SCS" else spec.scale for spec, _ in row] for row in variants]
        self._factors = torch.tensor(factors, device=device)
        self._depths, self._curves = sorted(set(depths)), curves

    def fit_depths(self, tick: Callable[[int], None] = lambda epochs: None) -> Iterator[Fitted]:
        """Propagate, and train a regression at every requested depth."""
        iterates = self._iterates()
        problem, spec, specs = self.problem, self.spec, [spec for spec, _ in self.pairs]
        device, labels = problem.labels.device, problem.labels
        train, validation = problem.parts["train"], problem.parts["validation"]
        train_labels, validation_labels, score = labels[train], labels[validation], SCORES[spec.metric]
        width, state = problem.num_features, next(iterates)
        # The rows of a trial are contiguous, for fast products. All depths share these tensors and one loop,
        # so that CUDA captures an epoch only once.
        rows = torch.zeros(len(self.seeds), len(train), width, device=device)
        columns = torch.zeros(state.size(1), width, len(validation), device=device)
        regression = _Regression(self.seeds, self._factors, width, problem.num_classes, spec.dropout)
        initial_weight = regression.weight.detach().clone()
        start = torch.zeros((), dtype=torch.int32, device=device)
        keys = step_keys(keys_from_seeds(self.seeds, device), start, spec.epochs)
        loop = Loop(
            [regression.weight, regression.bias],
            regression.models,
            lambda epoch: regression.set_gradients(
                rows.transpose(0, 1), train_labels, keys.index_select(0, epoch.view(1))[0]
            ),
            lambda: score(regression.by_class(columns), validation_labels),
            learning_rate=[spec.learning_rate for spec in specs],
            weight_decay=[spec.weight_decay for spec in specs],
            curves=self._curves,
        )
        for depth, state in zip(range(1, self._depths[-1] + 1), iterates, strict=False):
            if depth not in self._depths:
                continue
            with torch.no_grad():
                rows.copy_(state[train].transpose(0, 1))
                columns.copy_(state[validation].permute(1, 2, 0))
                regression.weight.copy_(initial_weight)
                regression.bias.zero_()
                loop.reset()
                loop.train(spec.epochs, tick)
                loop.restore()
                logits = regression.logits(state.permute(1, 2, 0))
            yield Fitted(depth, loop, state, logits, self._factors)

    def _iterates(self) -> Iterator[Tensor]:
        """Yield the propagated features of every depth from 0, ``[nodes, 1 or trials, features]``."""
        features, spec = self.problem.features, self.spec
        if isinstance(features, Tensor) and features.dim() == 2:
            features = features.unsqueeze(1)
        norm = sgc_settings(spec, len(self.seeds))["norm"]
        if spec.mode is not None:
            norm = PairNorm(spec.scale if spec.norm == "PN-SCS" else 1.0, spec.mode)
        elif norm is not None:
            norm = bind_graph(norm(), self._graph)
        return sgc_iterates(features, self.problem.adjacency, norm)


class _Regression:
    """Logistic regressions of trials x variants. Variants of a trial share its features and initial weights.

    The weight is ``[trials, variants · classes, features]``: one product per trial computes all variants.
    """

    def __init__(
        self, seeds: Sequence[int], factors: Tensor, features: int, classes: int, rate: float
    ) -> None:
        drawn = [glorot((features, classes), torch.Generator().manual_seed(seed)).t() for seed in seeds]
        self._factor = factors.view(*factors.shape, 1, 1)
        variants, device = factors.size(1), factors.device
        self.weight = torch.stack(drawn).repeat(1, variants, 1).to(device).requires_grad_()
        self.bias = torch.zeros(len(seeds), variants, classes, device=device, requires_grad=True)
        self._rate = rate

    @property
    def models(self) -> list[Tensor]:
        """Weight ``[trials, variants, features, classes]`` and bias of every model."""
        return [self.weight.view(*self.bias.shape, -1).transpose(2, 3), self.bias]

    def logits(self, columns: Tensor) -> Tensor:
        """Return ``[nodes, trials, variants, classes]`` from ``[1 or trials, features, nodes]``."""
        return self.by_class(columns).permute(3, 0, 1, 2)

    def by_class(self, columns: Tensor) -> Tensor:
        """Return the logits as ``[trials, variants, classes, nodes]``."""
        if columns.size(0) == 1:  # one product for all trials
            product = self.weight.flatten(0, 1) @ columns[0]
        else:
            product = torch.bmm(self.weight, columns)
        return product.view(*self.bias.shape, -1) * self._factor + self.bias.unsqueeze(-1)

    @torch.no_grad()
    def set_gradients(self, rows: Tensor, labels: Tensor, keys: Tensor) -> Tensor:
        """Set the gradients of the mean cross-entropy of rows ``[nodes, trials, features]`` with dropout.

        Returns:
            The loss of each model, ``[trials, variants]``.
        """
        if self._rate:
            rows = dropout(rows, self._rate, keys)
        likely = self.by_class(rows.permute(1, 2, 0)).log_softmax(2)
        index = labels.expand(*likely.shape[:2], 1, -1)
        gradient = likely.exp()
        gradient.scatter_add_(2, index, gradient.new_full((), -1.0).expand_as(index))
        gradient /= len(labels)
        self.bias.grad = gradient.sum(-1)
        self.weight.grad = torch.bmm((gradient * self._factor).flatten(1, 2), rows.transpose(0, 1))
        return -likely.gather(2, index).mean((2, 3))
