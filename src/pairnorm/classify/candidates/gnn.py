"""GCN, GAT, GCNII and APPNP: a trial for every seed, trained side by side, while the budget allows."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from math import inf
from pathlib import Path

from pairnorm.classify.candidates.base import Candidate, Found, Network, Task, Tick, Tried
from pairnorm.classify.holdout import ClassifierWarning
from pairnorm.nn.distributed import any_rank, shards_of
from pairnorm.train.spec import Spec
from pairnorm.train.trainers import GNNTrainer


class OutOfTime(Exception):
    """Raised from inside an epoch loop once the budget is spent."""


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

    Ranks that ``torchrun`` has started train each of them together.
    """

    specs: Sequence[Spec]
    seeds: Sequence[int]
    seconds: float = inf
    required: bool = False
    name: str = "GCN, GAT, GCNII and APPNP"
    checkpoints: Path | None = None

    @property
    def steps(self) -> int:
        """One for every architecture."""
        return len(self.specs)

    def fit(self, task: Task, tick: Tick) -> Found:
        """Yield a network for every spec that there was time for; say how many there was none for."""
        (task,), left = replace(task, held_out=()).folds, 0
        for place, spec in enumerate(self.specs):
            allowed = inf if self.required and place == 0 else self.seconds

            def watch(_: int, allowed: float = allowed) -> None:
                if any_rank(time.perf_counter() - task.began > allowed):
                    raise OutOfTime

            try:
                watch(0)
                yield _train(task, spec, self.seeds, watch, self.checkpoints)
            except OutOfTime:
                left += 1
            tick(f"{_model(spec)}, depth {spec.depth}")
        if left:
            warnings.warn(
                f"the budget of {self.seconds:.0f} s was spent when {left} of {len(self.specs)} networks"
                " were left to try, the deepest among them. Allow more time, or name a model and depths.",
                ClassifierWarning,
                stacklevel=4,
            )


def _train(
    task: Task, spec: Spec, seeds: Sequence[int], watch: Callable[[int], None], checkpoints: Path | None
) -> Tried:
    graph, spec = task.graph.replace(features=task.features), spec.replace(scaling="none")
    shards, checkpoint = shards_of(graph.num_nodes), None
    trainer = GNNTrainer(graph, [(spec, seed) for seed in seeds], task.device, shards=shards)
    if checkpoints is not None:  # of this graph, with this split
        name = sha256(repr((spec, graph.fingerprint, *seeds)).encode()).hexdigest()[:16]
        checkpoint = checkpoints / f"{name}.pt"
    trainer.fit(watch, checkpoint)
    _, logits = trainer.evaluate()
    if shards is not None:
        shards.leave(trainer.model)
    scale = 1.0 if spec.norm == "none" else spec.scale
    setting = f"learning rate {spec.learning_rate:g}, dropout {spec.dropout:g}"
    setting += f", initial share {spec.strength:g}" if spec.strength else ""
    candidate = Candidate(_model(spec), spec.norm, spec.depth, scale, setting=setting)
    # When to stop was learnt from the validation nodes: nothing would be left to tell.
    learn = partial(_as_trained, network=Network(trainer.model))
    return task.tried(candidate, logits[graph.validation.to(logits.device)], learn)


def _model(spec: Spec) -> str:
    return spec.model if spec.remedy == "none" else spec.remedy


def _as_trained(task: Task, network: Network) -> Network:
    return network
