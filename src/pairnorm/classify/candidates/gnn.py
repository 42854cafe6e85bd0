"""GCN and GAT: a trial for every seed, trained side by side, while the budget allows."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from math import inf
from pathlib import Path

import torch

from pairnorm.classify.candidates.base import Candidate, Found, Network, Task, Tick, Tried
from pairnorm.classify.holdout import ClassifierWarning
from pairnorm.data import Graph
from pairnorm.train.spec import Spec
from pairnorm.train.trainers import GNNTrainer, build


class OutOfTime(Exception):
    """Raised from inside an epoch loop once the budget is spent."""


@dataclass(frozen=True)
class GNNFamily:
    """GCNs and GATs; the accuracy of one is the mean over its seeds.

    Args:
        specs: architectures and how to train them, in the order of trying.
        seeds: one for each trial.
        seconds: after so long, none is begun or gone on with.
        required: train the first however long it takes, since there is no other candidate.
        name: of the family.
        checkpoints: folder in which trainings are kept every so often, and taken up from.
    """

    specs: Sequence[Spec]
    seeds: Sequence[int]
    seconds: float = inf
    required: bool = False
    name: str = "GCN and GAT"
    checkpoints: Path | None = None

    @property
    def steps(self) -> int:
        """One for every architecture."""
        return len(self.specs)

    def fit(self, task: Task, tick: Tick) -> Found:
        """Yield a network for every spec that there was time for; say how many there was none for."""
        task, left = replace(task, held_out=()), 0
        for place, spec in enumerate(self.specs):
            allowed = inf if self.required and place == 0 else self.seconds
            try:
                yield _train(task, spec, self.seeds, allowed, self.checkpoints)
            except OutOfTime:
                left += 1
            tick(f"{spec.model}, depth {spec.depth}")
        if left:
            warnings.warn(
                f"the budget of {self.seconds:.0f} s was spent when {left} of {len(self.specs)} GCNs and GATs"
                " were left to try, the deepest among them. Allow more time, or name a model and depths.",
                ClassifierWarning,
                stacklevel=4,
            )


def _train(task: Task, spec: Spec, seeds: Sequence[int], allowed: float, checkpoints: Path | None) -> Tried:
    graph, spec = task.graph.replace(features=task.features), spec.replace(scaling="none")
    # Ranks share out trials where there are as many, which takes no traffic; else they share out the nodes.
    apart = task.shards is not None and len(seeds) >= task.shards.process_group.size()
    shards, own = (None, task.shards.among(seeds)) if task.shards and apart else (task.shards, seeds)

    def watch(_: int) -> None:
        late = time.perf_counter() - task.began > allowed
        if late if shards is None else shards.any(late):
            raise OutOfTime

    trained = True
    try:
        watch(0)
        trainer = GNNTrainer(graph, [(spec, seed) for seed in own], task.device, shards=shards)
        trainer.fit(watch, _checkpoint(checkpoints, graph, spec, own))
    except OutOfTime:
        trained = False
    if not (trained if task.shards is None else not task.shards.any(not trained)):
        raise OutOfTime
    model, logits = trainer.model, trainer.evaluate()[1]
    if shards is not None:
        shards.leave(model)
    if task.shards is not None and apart:
        parts = task.shards.of_all((dict(model.cpu().state_dict()), logits.cpu()))
        model = build(spec, trainer.problem.num_features, graph.num_classes, seeds, task.device)
        names = model.state_dict()
        model.load_state_dict({name: torch.cat([weights[name] for weights, _ in parts]) for name in names})
        logits = torch.cat([part for _, part in parts], 1).to(task.device)
    scale = 1.0 if spec.norm == "none" else spec.scale
    setting = f"learning rate {spec.learning_rate:g}, dropout {spec.dropout:g}"
    candidate = Candidate(spec.model, spec.norm, spec.depth, scale, setting=setting)
    # When to stop was learnt from the validation nodes: nothing would be left to tell.
    learn = partial(_as_trained, network=Network(model.eval()))
    return task.tried(candidate, logits[graph.validation.to(logits.device)], learn)


def _checkpoint(folder: Path | None, graph: Graph, spec: Spec, seeds: Sequence[int]) -> Path | None:
    """Return where a training of this graph, with this split, is kept."""
    if folder is None:
        return None
    name = sha256(repr((spec, graph.fingerprint, *seeds)).encode()).hexdigest()[:16]
    return folder / f"{name}.pt"


def _as_trained(task: Task, network: Network) -> Network:
    return network
