"""Networks with the labels of other nodes as inputs, trained while time allows and the loss falls."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import ClassVar, Self

import torch
from torch import Tensor

from pairnorm.classify.candidates.networks import Network, hop_features
from pairnorm.classify.candidates.task import (
    CHEAP_SHARE,
    SEARCH_SHARE,
    Candidate,
    CandidateResult,
    KnownLabels,
    Results,
    Task,
    Tick,
)
from pairnorm.nn.models import DeepModel
from pairnorm.nn.ops.dropout import keys_from_seeds, step_keys
from pairnorm.train.loop import Adam
from pairnorm.train.problem import node_losses

# Depth and width of the networks, in the order of training.
SETTINGS = ((4, 32), (8, 64), (15, 128))
# Hops and width of the networks that concatenate hops.
HOP_SETTINGS = ((4, 64),)
# The first networks train for a few epochs, fewer where time does not allow ``PATIENCE`` epochs; the search
# continues them where they compete with others.
FIRST_EPOCHS, MIN_EPOCHS, MAX_EPOCHS = 40, 5, 1000
# Training stops after this many epochs without a smaller loss, which is computed every few epochs.
PATIENCE, EVALUATION_INTERVAL = 100, 5
# Networks that are trained side by side, each without a part of the labels; one node in ``STOPPING_INTERVAL``
# decides when to stop.
NUM_NETWORKS, STOPPING_INTERVAL = 3, 8
LEARNING_RATE = 0.01
# In every epoch, the labels of this share of the training nodes are targets; the others are inputs.
TARGET_SHARE = 0.5
# Of more features than this, the leading principal components are inputs.
MAX_FEATURES = 128


@dataclass(frozen=True)
class ResidualGCNs:
    r"""Networks of layers $\mathbf{H}' = \text{ReLU}(\text{BatchNorm}(\mathbf{A H W} + \mathbf{H V}))$.

    Inputs are features and known labels. As in UniMP (Shi et al., 2021), every epoch draws which training
    labels are inputs and which are targets, so that no node sees its own label.
    """

    settings: Sequence[tuple[int, int]] = SETTINGS
    seed: int = 0
    name: str = "residual GCN"
    usual_settings: ClassVar[Sequence[tuple[int, int]]] = SETTINGS

    @classmethod
    def of(cls, depths: Sequence[int] | None, hidden: int, on_gpu: bool, seed: int) -> Self:
        """Return the family for the given depths and width; None and 0 stand for the defaults."""
        usual = cls.usual_settings[-2:] if on_gpu else cls.usual_settings[:2]
        settings = [(depth, usual[0][1]) for depth in depths] if depths else usual
        return cls([(depth, hidden or width) for depth, width in settings], seed)

    @property
    def steps(self) -> int:
        """The number of steps: one per setting, and one for the first few epochs."""
        return len(self.settings) + 1

    def fit(self, task: Task, tick: Tick) -> Results:
        """Yield the first networks after a few epochs, then those of each setting."""
        masks = task.fold_masks or [task.graph.validation] * NUM_NETWORKS
        groups = [masks[first::NUM_NETWORKS] for first in range(min(NUM_NETWORKS, len(masks)))]
        held_out = torch.stack([torch.stack(list(group)).any(0) for group in groups], 1)
        for number, (depth, hidden) in enumerate(self.settings):
            if number > 0 and not task.allows(CHEAP_SHARE):
                return
            training = _Training(task, held_out, self.name, depth, hidden, self.seed)
            for epochs in (FIRST_EPOCHS, MAX_EPOCHS) if number == 0 else (MAX_EPOCHS,):
                needed = PATIENCE if epochs == FIRST_EPOCHS else 0
                training.run(epochs, SEARCH_SHARE if task.shards is None else inf, needed)
                yield self._evaluate(task, training)
                tick(f"{self.name}, depth {depth}, {training.epoch} epochs")

    def _evaluate(self, task: Task, training: _Training) -> CandidateResult:
        networks, logits, parts = training.best(), training.held_out_logits(), []
        for fold in task.folds:
            nodes = fold.graph.validation.to(task.device)
            unseen_by = ~(nodes[:, None] & ~training.held_out).any(0)
            parts.append(logits[nodes][:, unseen_by])
        epochs = max(training.best_epochs)
        setting = f"{training.hidden} channels, {epochs} epochs"
        candidate = Candidate(self.name, depth=training.depth, setting=setting)
        fit = partial(
            _fit, networks=networks, kind=self.name, hidden=training.hidden, train=training.train.cpu(),
            epochs=epochs, seed=self.seed,
        )  # fmt: skip
        return task.evaluate(candidate, torch.cat(parts), fit)


@dataclass(frozen=True)
class HopNetworks(ResidualGCNs):
    """Networks with a linear map for each hop (``HopNetwork``), trained like residual GCNs."""

    settings: Sequence[tuple[int, int]] = HOP_SETTINGS
    name: str = "hop network"
    usual_settings: ClassVar[Sequence[tuple[int, int]]] = HOP_SETTINGS


class _Training:
    """Networks of one architecture that are trained side by side, each without the nodes it holds out."""

    def __init__(self, task: Task, held_out: Tensor, kind: str, depth: int, hidden: int, seed: int) -> None:
        device, count = task.device, held_out.shape[1]
        self.task, self.held_out = task, held_out.to(device)
        self.kind, self.depth, self.hidden = kind, depth, hidden
        self.train = task.with_all_folds.graph.train.to(device)[:, None] & ~self.held_out
        one_in_some = torch.from_numpy(task.prepared.node_fingerprints % STOPPING_INTERVAL == 0).to(device)
        self.stopping = self.train & one_in_some[:, None] & bool(held_out.any())
        self.axes = None
        if task.features.shape[1] > MAX_FEATURES:
            self.axes = task.prepared.principal_axes(MAX_FEATURES)
        self.features = self._features()
        self.labels = task.graph.labels.to(device).clamp(min=0)
        self.one_hot = torch.nn.functional.one_hot(self.labels, task.classes).float()
        width, seeds = self.features.shape[2] + task.classes, list(range(seed, seed + count))
        self.model = Network.KINDS[kind](
            width, task.classes, depth, hidden_channels=hidden, num_models=count, adjacency=task.adjacency
        )
        self.model.reset_parameters(seeds)
        self.model.to(device)
        self.adam = Adam([(self.model.parameters(), LEARNING_RATE, 0.0)])
        self.keys, self.generator = keys_from_seeds(seeds, device), torch.Generator(device).manual_seed(seed)
        self.epoch, self.best_epochs, self.best_losses = 0, [0] * count, [inf] * count
        self.best_state = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}

    def _features(self) -> Tensor:
        """Return features of each network, [n, 1 or networks, d]; nodes that it holds out are masked."""
        task, hops = self.task, self.depth if self.kind == HopNetworks.name else 0
        if task.feature_mask is None:
            return hop_features(task.prepared.projected(self.axes), hops, task.adjacency).unsqueeze(1)
        masks = (self.held_out | self.stopping).to(task.graph.device).unbind(1)
        graphs = [task.graph.replace(train=~mask & False, validation=mask) for mask in masks]
        masked = [replace(task, graph=graph, fold_masks=()).masked.prepared for graph in graphs]
        inputs = [hop_features(one.projected(self.axes), hops, task.adjacency) for one in masked]
        return torch.stack(inputs, 1)

    def _logits(self, visible: Tensor, keys: Tensor | None = None) -> Tensor:
        """Return logits given the labels of visible nodes, bool [n, networks]."""
        labels = self.one_hot[:, None] * visible[:, :, None]
        x = torch.cat([self.features.expand(-1, labels.shape[1], -1), labels], 2)
        logits: Tensor = self.model(x, self.task.prepared.adjacency(self.task.adjacency), keys)
        return logits

    def _losses(self, logits: Tensor, nodes: Tensor) -> Tensor:
        """Return the mean cross-entropy of every network over its nodes, bool [n, networks]."""
        return (node_losses(logits, self.labels) * nodes).sum(0) / nodes.sum(0).clamp(min=1)

    def run(self, epochs: int, time_share: float, needed: int = 0) -> None:
        """Train up to a number of epochs, while the stopping loss falls and time is left for those needed."""
        learning, count = self.train & ~self.stopping, self.model.num_keys
        start, first = time.perf_counter(), self.epoch
        while self.epoch < epochs and self.epoch - max(self.best_epochs) < PATIENCE:
            seconds = (time.perf_counter() - start) / max(1, self.epoch - first)
            in_time = self.task.allows(time_share, seconds * max(0, needed - self.epoch))
            if self.epoch >= MIN_EPOCHS and not in_time:
                break
            targets = torch.rand(learning.shape, generator=self.generator, device=learning.device)
            targets = learning & (targets < TARGET_SHARE)
            step = torch.tensor(self.epoch, dtype=torch.int32, device=learning.device)
            keys = step_keys(self.keys, step, 2 * count).view(count, 2, -1)
            self.model.train()
            self.model.zero_grad()
            self._losses(self._logits(learning & ~targets, keys), targets).sum().backward()
            self.adam.step()
            self.epoch += 1
            if self.epoch % EVALUATION_INTERVAL == 0:
                self._keep_best(learning)

    @torch.no_grad()
    def _keep_best(self, visible: Tensor) -> None:
        """Keep the weights of each network at its smallest stopping loss; the last ones without one."""
        self.model.eval()
        losses = self._losses(self._logits(visible), self.stopping).tolist()
        for number, loss in enumerate(losses):
            if loss < self.best_losses[number] or not self.stopping.any():
                self.best_losses[number], self.best_epochs[number] = loss, self.epoch
                for name, tensor in self.model.state_dict().items():
                    self.best_state[name][number] = tensor[number]

    def best(self) -> Network:
        """Return the best networks so far."""
        state = {name: tensor.cpu().clone() for name, tensor in self.best_state.items()}
        return _load(state, self.model, self.kind, self.hidden, self.task, self.axes)

    @torch.no_grad()
    def held_out_logits(self) -> Tensor:
        """Return the logits of all nodes by the best networks, each without the labels it holds out."""
        current = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        self.model.load_state_dict(self.best_state)
        self.model.eval()
        logits = self._logits(self.train)
        self.model.load_state_dict(current)
        return logits


def _fit(
    task: Task, networks: Network, kind: str, hidden: int, train: Tensor, epochs: int, seed: int
) -> Network:
    """Return the networks that saw no label outside a task's training nodes; train one if there is none."""
    state = networks.module.state_dict()
    if len(train) == task.graph.num_nodes:
        unseen = ~(train & ~task.graph.train.cpu()[:, None]).any(0)
        if unseen.any():
            state = {name: tensor[unseen.to(tensor.device)] for name, tensor in state.items()}
            return _load(state, networks.module, kind, hidden, task, networks.axes)
    nothing = torch.zeros(task.graph.num_nodes, 1, dtype=torch.bool)
    training = _Training(task, nothing, kind, networks.module.num_layers, hidden, seed)
    training.run(max(epochs, EVALUATION_INTERVAL), inf)
    return training.best()


def _load(
    state: dict[str, Tensor], like: DeepModel, kind: str, hidden: int, task: Task, axes: Tensor | None
) -> Network:
    """Build networks with the given weights; their inputs include the training labels of a task."""
    models = len(next(iter(state.values())))
    module = Network.KINDS[kind](
        like.in_channels, task.classes, like.num_layers,
        hidden_channels=hidden, num_models=models, adjacency=task.adjacency,
    )  # fmt: skip
    module.load_state_dict(state)
    return Network(module.eval(), known=KnownLabels.of(task), axes=axes)
