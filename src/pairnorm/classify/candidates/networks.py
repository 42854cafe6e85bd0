"""GCN, GAT, GCNII and APPNP, trained epoch by epoch while time allows."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from pairnorm.classify.candidates.sgc import NormStatistics, measure
from pairnorm.classify.candidates.task import (
    SEARCH_SHARE,
    Candidate,
    CandidateResult,
    KnownLabels,
    Results,
    SavedState,
    State,
    Task,
    Tick,
)
from pairnorm.classify.holdout import ClassifierWarning
from pairnorm.classify.scaling import PreparedGraph
from pairnorm.nn import APPNP, GAT, GCN, GCNII, Normalization, PairNorm
from pairnorm.nn.norms import BatchNorm
from pairnorm.nn.ops.pair_norm import normalize_by
from pairnorm.train.methods import Model
from pairnorm.train.spec import Spec
from pairnorm.train.trainers import GNNTrainer, build

RESIDUAL_DROPOUT = 0.2
# Seeds, the nodes whose labels decided the weights, bool [n], and a network per seed.
_Trained = tuple[list[int], Tensor, Model]


class OutOfTime(Exception):
    """Raised from inside an epoch loop once time is up."""


@dataclass(frozen=True)
class GNNFamily:
    """Networks, each evaluated by the mean over its seeds.

    Args:
        specs: architectures and training settings, in the order of training.
        seeds: one for each network of an architecture.
        required: train the first however long it takes, since there is no other candidate.
        name: of the family.
        checkpoints: folder in which training is saved every few epochs, and resumed from.
        cross_fit: train one network per fold, whose early stopping uses the nodes of the next fold and whose
            evaluation uses its own; the candidate averages all of them. Otherwise, for a baseline, train once
            per seed on the training nodes, with validation nodes for both; when time is up, the first spec is
            evaluated with its best weights so far.
    """

    specs: Sequence[Spec]
    seeds: Sequence[int]
    required: bool = False
    name: str = "GCN, GAT, GCNII and APPNP"
    checkpoints: Path | None = None
    cross_fit: bool = False

    @property
    def steps(self) -> int:
        """The number of steps: one per architecture."""
        return len(self.specs)

    def fit(self, task: Task, tick: Tick) -> Results:
        """Yield one candidate per spec until time is up; warn about specs that were not trained."""
        num_untrained = 0
        for number, spec in enumerate(self.specs):
            timed = replace(task, time_limit=inf) if self.required and number == 0 else task
            try:
                yield self._fit_spec(timed, spec, not self.cross_fit and number == 0)
            except OutOfTime:
                num_untrained += 1
            tick(f"{_model_name(spec)}, depth {spec.depth}")
        if num_untrained and self.cross_fit:
            warnings.warn(
                f"the time limit of {task.time_limit:.0f} s was reached when {num_untrained} of "
                f"{len(self.specs)} networks were not trained, the deepest among them. Allow more time, or "
                "name a model and depths.",
                ClassifierWarning,
                stacklevel=4,
            )

    def _fit_spec(self, task: Task, spec: Spec, stop_early: bool) -> CandidateResult:
        """Train the networks of a spec, and evaluate their average, or each network in its fold."""
        trained: list[_Trained] = []
        logits: list[Tensor] = []
        for fold, held_out, seeds in self._splits(task):
            model, of_all = _train(fold, spec, seeds, self.checkpoints, stop_early)
            trained.append((seeds, (fold.graph.train | fold.graph.validation).cpu(), model))
            logits.append(of_all[held_out.to(of_all.device)])
        if len(trained) == 1:  # the validation nodes evaluate
            (task,) = replace(task, fold_masks=()).folds
        return task.evaluate(
            _candidate_of(spec), torch.cat(logits), partial(_fit, spec=spec, trained=trained)
        )

    def _splits(self, task: Task) -> Iterator[tuple[Task, Tensor, list[int]]]:
        """Yield a task per fold (validation nodes for early stopping), the nodes to evaluate, and seeds."""
        if not self.cross_fit or not task.fold_masks:
            (task,) = replace(task, fold_masks=()).folds
            yield task, task.graph.validation, list(self.seeds)
            return
        count = len(task.fold_masks)
        each = -(-len(self.seeds) // count)
        for number, held_out in enumerate(task.fold_masks):
            stopping = task.fold_masks[(number + 1) % count]
            train = task.with_all_folds.graph.train & ~held_out & ~stopping
            graph = task.graph.replace(train=train, validation=held_out | stopping)
            fold = replace(task, graph=graph, fold_masks=()).masked
            first = self.seeds[0] + number * each
            graph = fold.graph.replace(validation=stopping)
            yield replace(fold, graph=graph), held_out, list(range(first, first + each))


def _fit(task: Task, spec: Spec, trained: Sequence[_Trained]) -> Network:
    """Merge the trained networks that saw no label outside a task's training nodes; all if there are none.

    They are not trained again: with all labels there would be none left for early stopping.
    """
    train = task.graph.train.cpu()
    clean = [run for run in trained if len(run[1]) == len(train) and not (run[1] & ~train).any()] or trained
    seeds = [seed for run_seeds, *_ in clean for seed in run_seeds]
    spec = spec.replace(scaling="none")
    merged = build(spec, task.graph.num_features, task.classes, seeds, task.device)
    states = [model.state_dict() for *_, model in clean]
    merged.load_state_dict({name: torch.cat([state[name] for state in states]) for name in states[0]})
    return Network(merged.eval()).fitted_to(task.prepared)


def _candidate_of(spec: Spec) -> Candidate:
    scale = 1.0 if spec.norm == "none" else spec.scale
    setting = f"learning rate {spec.learning_rate:g}, dropout {spec.dropout:g}"
    setting += f", initial share {spec.strength:g}" if spec.strength else ""
    return Candidate(_model_name(spec), spec.norm, spec.depth, scale, setting=setting)


def _model_name(spec: Spec) -> str:
    return spec.model if spec.method == "none" else spec.method


def _train(
    task: Task,
    spec: Spec,
    seeds: Sequence[int],
    checkpoints: Path | None,
    stop_early: bool = False,
) -> tuple[Model, Tensor]:
    """Return a model with a network per seed, trained on a task, and the logits of all nodes.

    Several ranks share the nodes of a GCN or GAT. Other models cannot share them: every rank trains all.
    """
    graph, ranks = task.graph.replace(features=task.features), task.shards
    shards = ranks if spec.method == "none" else None
    spec = spec.replace(scaling="none")

    def check_time(epochs: int) -> None:
        late = not task.allows(SEARCH_SHARE) and not (stop_early and epochs == 0)
        if late if ranks is None else ranks.any(late):
            raise OutOfTime

    check_time(0)
    trainer = GNNTrainer(graph, [(spec, seed) for seed in seeds], task.device, shards=shards)
    checkpoint = None
    if checkpoints is not None and shards is ranks:  # ranks would overwrite each other's file
        name = sha256(repr((spec, graph.fingerprint, *seeds)).encode()).hexdigest()[:16]
        checkpoint = checkpoints / f"{name}.pt"
    try:
        trainer.fit(check_time, checkpoint)
    except OutOfTime:
        if not stop_early:
            raise
        trainer.loop.restore()
        trainer.model.eval()
    logits = trainer.evaluate()[1]
    if shards is not None:
        shards.leave(trainer.model)
    return trainer.model, logits


def residual_gcn(
    width: int, classes: int, depth: int, *, hidden_channels: int, num_models: int, adjacency: Normalization
) -> GCN:
    """Return networks of layers ReLU(BatchNorm(A H W + H V))."""
    return GCN(
        width,
        classes,
        depth,
        hidden_channels=hidden_channels,
        norm=lambda: BatchNorm(hidden_channels, num_models=num_models),
        order="before",
        residual=True,
        dropout=RESIDUAL_DROPOUT,
        adjacency=adjacency,
        num_models=num_models,
    )


@dataclass(frozen=True, eq=False)
class Network:
    """Fitted networks of one architecture.

    Args:
        module: the networks.
        statistics: PairNorm's, of the graph that they were fitted on; None without a norm.
        known: of residual GCNs, the labels that are inputs next to the features.
        axes: [d, some], the principal axes of the features that are inputs; None for the features themselves.
    """

    module: Any
    statistics: NormStatistics | None = None
    known: KnownLabels | None = None
    axes: Tensor | None = None
    KINDS: ClassVar[dict[str, Any]] = {
        "GCN": GCN, "GAT": GAT, "GCNII": GCNII, "APPNP": APPNP, "residual GCN": residual_gcn
    }  # fmt: skip

    @torch.no_grad()
    def logits(self, prepared: PreparedGraph) -> Tensor:
        """Return the logits of every node, [n, models, classes]."""
        module = self.module.to(prepared.device).eval()
        if self.statistics is not None:
            fitted, same_nodes = self.statistics.fitted_rows(prepared)
            if not same_nodes:
                norm = _FittedNorm(module.norm, fitted.to(prepared.device), self.statistics)
                module = _with_norm(module, norm)
        features = prepared.features.to(prepared.device)
        if self.known is not None:
            features = projected(prepared, self.axes)
            labels = self.known.one_hot(prepared, module.in_channels - features.shape[1])
            features = torch.cat([features, labels], 1)
        logits: Tensor = module(features, prepared.adjacency(module.adjacency))
        return logits

    @torch.no_grad()
    def fitted_to(self, prepared: PreparedGraph) -> Network:
        """Return the network with PairNorm's statistics fixed to those of a graph."""
        module = self.module.to(prepared.device).eval()
        if not isinstance(getattr(module, "norm", None), PairNorm) or module.num_layers == 1:
            return self
        norm = _FittedNorm(module.norm, slice(None))
        _with_norm(module, norm)(prepared.features.to(prepared.device), prepared.adjacency(module.adjacency))
        centers, squares = map(torch.stack, zip(*norm.steps, strict=True))
        nodes = torch.from_numpy(prepared.node_fingerprints)
        return replace(self, statistics=NormStatistics(centers, squares, nodes))

    def state(self) -> State:
        """Return the normalization, an initial share, and the weights, whose shapes give the rest."""
        settings = {"adjacency": self.module.adjacency}
        if isinstance(self.module, GCNII | APPNP):
            settings["alpha"] = self.module.alpha
        tensors = {f"module.{name}": tensor for name, tensor in self.module.state_dict().items()}
        for part in (self.statistics, self.known):
            tensors |= {} if part is None else part._asdict()
        return settings, tensors if self.axes is None else {**tensors, "axes": self.axes}

    @classmethod
    def restore(cls, saved: SavedState) -> Self:
        """Rebuild networks from the result of ``state``; the shapes of their weights give the sizes."""
        candidate, prefix = saved.candidate, "module."
        kind, axes = cls.KINDS[candidate.model], saved.tensors.get("axes")
        state = {name[len(prefix) :]: x for name, x in saved.tensors.items() if name.startswith(prefix)}
        has_initial_share, is_residual = kind in (GCNII, APPNP), kind is residual_gcn
        models, width, hidden = state["first.weight" if has_initial_share else "convolutions.0.weight"].shape
        depth = candidate.depth
        if kind is not APPNP:  # whose weights do not depend on its depth
            depth = len({name.split(".")[1] for name in state if name.startswith("convolutions.")})
        inputs = (
            saved.features if axes is None else saved.tensor("axes", saved.features, axes.shape[1]).shape[1]
        )
        inputs += saved.classes if is_residual else 0
        if (width, depth) != (inputs, candidate.depth):
            raise ValueError(f"the weights are those of {width} inputs and {depth} layers")
        options: dict[str, Any] = {"norm": candidate.mode, "scale": candidate.scale}
        if has_initial_share or is_residual:
            options = {"alpha": saved.settings["alpha"]} if has_initial_share else {}
        options |= {"adjacency": saved.settings["adjacency"], "num_models": models, "hidden_channels": hidden}
        module = kind(width, saved.classes, depth, **options)
        module.load_state_dict(state)
        statistics = None
        if candidate.mode is not None and depth > 1:
            statistics = NormStatistics.restore(saved, depth - 1, hidden, models)
        known = KnownLabels.restore(saved.tensors, saved.classes) if is_residual else None
        return cls(module.eval(), statistics, known, axes)


def projected(prepared: PreparedGraph, axes: Tensor | None) -> Tensor:
    """Return dense features, projected on ``axes`` unless they are None."""
    return prepared.dense if axes is None else prepared.projected(axes).dense


class _FittedNorm(nn.Module):
    """PairNorm with the statistics of the fitted nodes, or stored ones where most of them are absent."""

    def __init__(self, norm: PairNorm, rows: Tensor | slice, stored: NormStatistics | None = None) -> None:
        super().__init__()
        self.norm, self.rows = norm, rows
        measurable = stored is None or (isinstance(rows, Tensor) and stored.are_measurable(rows))
        self.stored = None if measurable else stored
        self.steps: list[tuple[Tensor, Tensor]] = []

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the states of the next layer, [n, models, hidden]."""
        if self.stored is not None:
            number = len(self.steps)
            step = self.stored.centers[number].to(x), self.stored.mean_squares[number].to(x)
        else:
            step = measure(x[self.rows])
        self.steps.append(step)
        return normalize_by(x, *step, self.norm.scale, self.norm.eps, self.norm.mode)


def _with_norm(module: Any, norm: nn.Module) -> Any:
    """Return a module that shares all but its norm with another."""
    other = copy(module)
    other._modules = {**module._modules, "norm": norm}
    return other
