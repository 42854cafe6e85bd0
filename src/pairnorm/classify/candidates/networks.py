"""GCN, GAT, GCNII and APPNP, trained epoch by epoch while time allows."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from itertools import groupby
from math import inf
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

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
from pairnorm.nn import APPNP, GAT, GCN, GCNII, Normalization, PairNorm, SparseMatrix
from pairnorm.nn.layers import Linear
from pairnorm.nn.models import DeepModel, Keys, StateAndLogits, feature_keys
from pairnorm.nn.norms import BatchNorm
from pairnorm.nn.ops.pair_norm import normalize_by
from pairnorm.train.spec import Spec
from pairnorm.train.trainers import GNNTrainer, build

RESIDUAL_DROPOUT = 0.2


class _Run(NamedTuple):
    """Networks of one fold that were trained together.

    Args:
        fold: number of the fold.
        seeds: one for each network.
        labels_used: bool [n], the nodes whose labels decided the weights.
        state: the weights.
        logits: of the nodes that the fold holds out, [m, networks, classes].
    """

    fold: int
    seeds: Sequence[int]
    labels_used: Tensor
    state: dict[str, Tensor]
    logits: Tensor


class OutOfTime(Exception):
    """Raised from inside an epoch loop once time is up."""


@dataclass(frozen=True)
class GNNFamily:
    """Networks, each evaluated by the mean over its seeds.

    Args:
        specs: architectures and training settings, in the order of training.
        required: train the first however long it takes, since there is no other candidate.
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
        """Train the networks of a spec, and evaluate their average, or each network in its fold.

        Ranks share the networks if there are enough, which needs no communication. Otherwise they share the
        nodes of a GCN or GAT, which other models do not support.
        """
        ranks, seeds, training = task.shards, self._seeds(task), task
        if ranks is not None and len(seeds) < ranks.num_ranks and spec.method == "none":
            ranks = None
        if ranks is not None:
            seeds, training = ranks.local_items(seeds), replace(task, shards=None)
        runs, late = list[_Run](), False
        try:
            for number, fold, held_out, fold_seeds in self._splits(training, seeds):
                state, logits = _train(fold, spec, fold_seeds, self.checkpoints, stop_early)
                labels_used = (fold.graph.train | fold.graph.validation).cpu()
                runs.append(_Run(number, fold_seeds, labels_used, state, logits[held_out.cpu()]))
        except OutOfTime:
            late = True
        if late if ranks is None else ranks.any(late):
            raise OutOfTime
        if ranks is not None:
            runs = [run for of_rank in ranks.of_all(runs) for run in of_rank]
        by_fold = groupby(runs, lambda run: run.fold)
        held_out_logits = [torch.cat([run.logits for run in of_fold], 1) for _, of_fold in by_fold]
        if len(held_out_logits) == 1:  # the validation nodes evaluate
            (task,) = replace(task, fold_masks=()).folds
        fit = partial(_fit, spec=spec, runs=runs)
        return task.evaluate(_candidate_of(spec), torch.cat(held_out_logits), fit)

    def _seeds(self, task: Task) -> Sequence[int]:
        """Return the seeds of the networks of all folds, as many for each fold."""
        if not self.cross_fit or not task.fold_masks:
            return self.seeds
        count = len(task.fold_masks)
        return range(self.seeds[0], self.seeds[0] + count * -(-len(self.seeds) // count))

    def _splits(self, task: Task, seeds: Sequence[int]) -> Iterator[tuple[int, Task, Tensor, Sequence[int]]]:
        """Yield each fold that has some of the seeds: its number, task, nodes to evaluate, and its seeds.

        The validation nodes of its task are for early stopping.
        """
        if not self.cross_fit or not task.fold_masks:
            (task,) = replace(task, fold_masks=()).folds
            if seeds:
                yield 0, task, task.graph.validation, seeds
            return
        count = len(task.fold_masks)
        each = len(self._seeds(task)) // count
        for number, held_out in enumerate(task.fold_masks):
            fold_seeds = [seed for seed in seeds if (seed - self.seeds[0]) // each == number]
            if not fold_seeds:
                continue
            stopping = task.fold_masks[(number + 1) % count]
            train = task.with_all_folds.graph.train & ~held_out & ~stopping
            graph = task.graph.replace(train=train, validation=held_out | stopping)
            fold = replace(task, graph=graph, fold_masks=()).masked
            graph = fold.graph.replace(validation=stopping)
            yield number, replace(fold, graph=graph), held_out, fold_seeds


def _fit(task: Task, spec: Spec, runs: Sequence[_Run]) -> Network:
    """Merge the trained networks that saw no label outside a task's training nodes; all if there are none.

    They are not trained again: with all labels there would be none left for early stopping.
    """
    train = task.graph.train.cpu()
    clean = [
        run for run in runs if len(run.labels_used) == len(train) and not (run.labels_used & ~train).any()
    ]
    clean, spec = clean or list(runs), spec.replace(scaling="none")
    seeds = [seed for run in clean for seed in run.seeds]
    merged = build(spec, task.graph.num_features, task.classes, seeds, task.device)
    merged.load_state_dict({name: torch.cat([run.state[name] for run in clean]) for name in clean[0].state})
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
) -> tuple[dict[str, Tensor], Tensor]:
    """Return the weights of a network per seed, trained on a task, and the logits of all nodes."""
    graph, shards = task.graph.replace(features=task.features), task.shards
    spec = spec.replace(scaling="none")

    def check_time(epochs: int) -> None:
        late = not task.allows(SEARCH_SHARE) and not (stop_early and epochs == 0)
        if late if shards is None else shards.any(late):
            raise OutOfTime

    check_time(0)
    trainer = GNNTrainer(graph, [(spec, seed) for seed in seeds], task.device, shards=shards)
    checkpoint = None
    if checkpoints is not None:
        name = sha256(repr((spec, graph.fingerprint, *seeds)).encode()).hexdigest()[:16]
        checkpoint = checkpoints / f"{name}.pt"
    try:
        trainer.fit(check_time, checkpoint)
    except OutOfTime:
        if not stop_early:
            raise
        trainer.loop.restore()
        trainer.model.eval()
    state = {name: tensor.cpu() for name, tensor in trainer.model.state_dict().items()}
    return state, trainer.evaluate()[1].cpu()


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


class HopNetwork(DeepModel):
    r"""Networks with a linear map for every hop, whose outputs are concatenated (IGNN).

    $$
    \text{MLP}\big(\big\Vert_{k=0}^{K} \text{ReLU}(\text{BatchNorm}(\mathbf{A}^k [\mathbf{X}, \mathbf{Y}]
    \mathbf{W}_k))\big)
    $$

    The input has the features of all hops, from ``hop_features``, and the known labels, which it propagates.
    """

    num_keys = 2

    def __init__(
        self, width: int, classes: int, depth: int, *, hidden_channels: int, num_models: int,
        adjacency: Normalization,
    ) -> None:  # fmt: skip
        super().__init__(width, classes, depth, RESIDUAL_DROPOUT, adjacency, num_models)
        self.classes, self.hop_width = classes, (width - classes) // (depth + 1)
        inputs, joined = self.hop_width + classes, hidden_channels * (depth + 1)
        maps = [Linear(inputs, hidden_channels, num_models, bias=False) for _ in range(depth + 1)]
        self.maps, self.hidden = nn.ModuleList(maps), Linear(joined, hidden_channels, num_models)
        self.norms = nn.ModuleList(
            BatchNorm(size, num_models=num_models) for size in (joined, hidden_channels)
        )
        self.readout = Linear(hidden_channels, classes, num_models)
        self.reset_parameters()

    def _norms(self) -> list[nn.Module]:
        return [*self.norms]

    def _compute(self, x: Any, adjacency: SparseMatrix, keys: Keys) -> StateAndLogits:
        *hops, labels = x.split([*[self.hop_width] * len(self.maps), self.classes], -1)
        states = []
        for number, (hop, linear) in enumerate(zip(hops, self.maps, strict=True)):
            labels = adjacency @ labels if number else labels
            states.append(linear(torch.cat([hop, labels], -1)))
        h = self.norms[0](torch.cat(states, -1)).relu()
        h = self.norms[1](self.hidden(h, self.dropout, feature_keys(keys[0]))).relu()
        return h, self.readout(h, self.dropout, feature_keys(keys[1]))


def hop_features(prepared: PreparedGraph, hops: int, normalization: Normalization) -> Tensor:
    """Return the imputed features, propagated 0 to ``hops`` times: [n, (hops + 1) d].

    For 0 hops, they are the features themselves, not imputed.
    """

    def compute() -> Tensor:
        matrix, states = prepared.adjacency(normalization), [prepared.imputed("fp", prepared.dense)]
        for _ in range(hops):
            states.append(matrix @ states[-1])
        return torch.cat(states, 1)

    return prepared.cached(("hops", hops, normalization), compute) if hops else prepared.dense


@dataclass(frozen=True, eq=False)
class Network:
    """Fitted networks of one architecture, with PairNorm's statistics, known labels and axes.

    The labels are inputs of residual GCNs and hop networks. Features are projected on the axes, if there are
    any.
    """

    module: Any
    statistics: NormStatistics | None = None
    known: KnownLabels | None = None
    axes: Tensor | None = None
    KINDS: ClassVar[dict[str, Any]] = {
        "GCN": GCN, "GAT": GAT, "GCNII": GCNII, "APPNP": APPNP, "residual GCN": residual_gcn,
        "hop network": HopNetwork,
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
            hops = module.num_layers if isinstance(module, HopNetwork) else 0
            features = hop_features(prepared.projected(self.axes), hops, module.adjacency)
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
        candidate, kind, prefix = saved.candidate, cls.KINDS[saved.candidate.model], "module."
        state = {name[len(prefix) :]: x for name, x in saved.tensors.items() if name.startswith(prefix)}
        has_initial_share, is_hops = kind in (GCNII, APPNP), kind is HopNetwork
        takes_labels, layers = is_hops or kind is residual_gcn, "maps." if is_hops else "convolutions."
        models, width, hidden = state["first.weight" if has_initial_share else f"{layers}0.weight"].shape
        depth = candidate.depth
        if kind is not APPNP:  # whose weights do not depend on its depth
            depth = len({name.split(".")[1] for name in state if name.startswith(layers)}) - is_hops
        inputs = saved.width + (saved.classes if takes_labels else 0)
        if (width, depth) != (inputs, candidate.depth):
            raise ValueError(f"the weights are those of {width} inputs and {depth} layers")
        width += depth * saved.width if is_hops else 0
        options: dict[str, Any] = {"norm": candidate.mode, "scale": candidate.scale}
        if has_initial_share or takes_labels:
            options = {"alpha": saved.settings["alpha"]} if has_initial_share else {}
        options |= {"adjacency": saved.settings["adjacency"], "num_models": models, "hidden_channels": hidden}
        module = kind(width, saved.classes, depth, **options)
        module.load_state_dict(state)
        statistics = None
        if candidate.mode is not None and depth > 1:
            statistics = NormStatistics.restore(saved, depth - 1, hidden, models)
        known = KnownLabels.restore(saved.tensors, saved.classes) if takes_labels else None
        return cls(module.eval(), statistics, known, saved.axes)


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
