"""GCN, GAT, GCNII and APPNP: a trial for every seed, trained side by side, while time allows."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from math import inf
from pathlib import Path

import torch
from torch import Tensor

from pairnorm.classify.candidates.candidate import Candidate, CandidateResult, Results, Tick
from pairnorm.classify.candidates.network import Network
from pairnorm.classify.candidates.task import Task
from pairnorm.classify.holdout import ClassifierWarning
from pairnorm.train.distributed import Shards
from pairnorm.train.methods import Model
from pairnorm.train.spec import Spec
from pairnorm.train.trainers import GNNTrainer, build


class OutOfTime(Exception):
    """Raised from inside an epoch loop once time is up."""


@dataclass(frozen=True)
class GNNFamily:
    """Models that are trained epoch by epoch; the accuracy of one is the mean over its seeds.

    Args:
        specs: architectures and how to train them, in the order of trying.
        seeds: one for each trial.
        seconds: after so long, none is begun or gone on with.
        required: train the first however long it takes, since there is no other candidate.
        name: of the family.
        checkpoints: folder in which trainings are kept every so often, and taken up from.
        cross_fit: train one network per fold, whose early stopping uses the nodes of the next fold and whose
            evaluation uses its own; the candidate averages all of them. Otherwise train once per seed on the
            training nodes, with validation nodes for both.
    """

    specs: Sequence[Spec]
    seeds: Sequence[int]
    seconds: float = inf
    required: bool = False
    name: str = "GCN, GAT, GCNII and APPNP"
    checkpoints: Path | None = None
    cross_fit: bool = False

    @property
    def steps(self) -> int:
        """One for every architecture."""
        return len(self.specs)

    def fit(self, task: Task, tick: Tick) -> Results:
        """Yield a network for every spec that there was time for; say how many there was none for."""
        train, left = (_cross_fit if self.cross_fit and task.fold_masks else _fit_once), 0
        for place, spec in enumerate(self.specs):
            allowed = inf if self.required and place == 0 else self.seconds
            try:
                yield train(task, spec, self.seeds, allowed, self.checkpoints)
            except OutOfTime:
                left += 1
            tick(f"{_model(spec)}, depth {spec.depth}")
        if left:
            warnings.warn(
                f"the time limit of {self.seconds:.0f} s was reached when {left} of {len(self.specs)} "
                "networks were left to try, the deepest among them. Allow more time, or name a model and "
                "depths.",
                ClassifierWarning,
                stacklevel=4,
            )


def _fit_once(
    task: Task, spec: Spec, seeds: Sequence[int], allowed: float, checkpoints: Path | None
) -> CandidateResult:
    """Train a network per seed; validation nodes decide when to stop, and evaluate it."""
    (task,) = replace(task, fold_masks=()).folds
    model, logits = _train(task, spec, seeds, allowed, checkpoints)
    # When to stop was decided by the validation nodes: a training on them would have nothing to stop by.
    learn = partial(_as_trained, network=Network(model.eval()))
    return task.evaluate(_candidate(spec), logits[task.graph.validation.to(logits.device)], learn)


def _cross_fit(
    task: Task, spec: Spec, seeds: Sequence[int], allowed: float, checkpoints: Path | None
) -> CandidateResult:
    """Train networks in every fold; nodes that evaluate them had no part in stopping them."""
    count = len(task.fold_masks)
    each = -(-len(seeds) // count)
    models, held_out_logits, used = [], [], []
    for number, held_out in enumerate(task.fold_masks):
        stopping = task.fold_masks[(number + 1) % count]
        train = task.learnable.graph.train & ~held_out & ~stopping
        graph = task.graph.replace(train=train, validation=held_out | stopping)
        fold = replace(task, graph=graph, fold_masks=()).masked
        fold = replace(fold, graph=fold.graph.replace(validation=stopping))
        own = [seeds[0] + number * each + one for one in range(each)]
        model, logits = _train(fold, spec, own, allowed, checkpoints)
        models.append(model)
        held_out_logits.append(logits[held_out.to(logits.device)])
        used += own
    whole = build(spec.replace(scaling="none"), task.graph.num_features, task.classes, used, task.device)
    states = [model.state_dict() for model in models]
    whole.load_state_dict({name: torch.cat([state[name] for state in states]) for name in whole.state_dict()})
    learn = partial(_as_trained, network=Network(whole.eval()))
    return task.evaluate(_candidate(spec), torch.cat(held_out_logits), learn)


def _candidate(spec: Spec) -> Candidate:
    scale = 1.0 if spec.norm == "none" else spec.scale
    setting = f"learning rate {spec.learning_rate:g}, dropout {spec.dropout:g}"
    setting += f", initial share {spec.strength:g}" if spec.strength else ""
    return Candidate(_model(spec), spec.norm, spec.depth, scale, setting=setting)


def _train(
    task: Task, spec: Spec, seeds: Sequence[int], allowed: float, checkpoints: Path | None
) -> tuple[Model, Tensor]:
    """Return a model with a network per seed, trained on a task, and the logits of all nodes."""
    graph, spec, shards = (
        task.graph.replace(features=task.features),
        spec.replace(scaling="none"),
        task.shards,
    )

    def fit(seeds: Sequence[int], shards: Shards | None) -> tuple[Model, Tensor]:
        def watch(_: int) -> None:
            late = time.perf_counter() - task.began > allowed
            if late if shards is None else shards.any(late):
                raise OutOfTime

        watch(0)
        trainer = GNNTrainer(graph, [(spec, seed) for seed in seeds], task.device, shards=shards)
        checkpoint = None
        if checkpoints is not None:  # of this graph, with this split
            name = sha256(repr((spec, graph.fingerprint, *seeds)).encode()).hexdigest()[:16]
            checkpoint = checkpoints / f"{name}.pt"
        trainer.fit(watch, checkpoint)
        return trainer.model, trainer.evaluate()[1]

    # Trials are shared out first, which takes no traffic; and those of models that cannot share nodes.
    if shards is not None and (len(seeds) >= shards.process_group.size() or spec.method != "none"):
        model, logits = _apart(shards, seeds, fit, partial(build, spec, graph.num_features, task.classes))
        model, logits = model.to(task.device), logits.to(task.device)
    else:
        model, logits = fit(seeds, shards)
    if shards is not None:
        shards.leave(model)
    return model, logits


def _apart(
    shards: Shards,
    seeds: Sequence[int],
    fit: Callable[[Sequence[int], None], tuple[Model, Tensor]],
    build: Callable[[Sequence[int], torch.device], Model],
) -> tuple[Model, Tensor]:
    """Let every rank train its share of the trials by itself; return the model of all, and its logits."""
    own, trained, late = shards.among(seeds), None, False
    try:
        if own:
            model, logits = fit(own, None)
            trained = dict(model.cpu().state_dict()), logits.cpu()
    except OutOfTime:
        late = True
    if shards.any(late):
        raise OutOfTime
    parts = [part for part in shards.of_all(trained) if part is not None]
    whole = build(seeds, torch.device("cpu"))
    names = whole.state_dict()
    whole.load_state_dict({name: torch.cat([weights[name] for weights, _ in parts]) for name in names})
    return whole, torch.cat([logits for _, logits in parts], 1)


def _model(spec: Spec) -> str:
    return spec.model if spec.method == "none" else spec.method


def _as_trained(task: Task, network: Network) -> Network:
    return network.fitted_to(task.prepared)
