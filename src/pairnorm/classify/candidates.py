"""The models to choose from: every depth and scale of SGC from one propagation, and deep GCNs and GATs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

import torch
from torch import Tensor, nn

from pairnorm.classify.regression import regressions, span
from pairnorm.data import Graph
from pairnorm.errors import PairNormError
from pairnorm.nn import SGC, pair_norm, propagation
from pairnorm.train.spec import Spec
from pairnorm.train.trainers import GNNTrainer, part_accuracies, part_losses

SCALES = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
LARGEST_STATE = 8 * 2**30

Tick = Callable[[str], None]
Found = Iterator[tuple["Candidate", Callable[[], nn.Module]]]


@dataclass(frozen=True)
class Candidate:
    """A model that was tried, and how well it did on the validation nodes (NaN where there are none)."""

    model: str
    norm: str
    depth: int
    scale: float
    validation_accuracy: float = nan
    validation_loss: float = nan

    @property
    def name(self) -> str:
        """What to call it: ``'SGC-PN, depth 35, scale 100'``, ``'GCN without PairNorm, depth 2'``."""
        if self.norm == "none":
            return f"{self.model} without PairNorm, depth {self.depth}"
        return f"{self.model}-{self.norm}, depth {self.depth}, scale {self.scale:g}"

    @property
    def rank(self) -> tuple[float, bool, float]:
        """What the best candidate has most of: accuracy; then PairNorm; then a small loss."""
        return (self.validation_accuracy, self.norm != "none", -self.validation_loss)


@dataclass(frozen=True, eq=False)
class Task:
    """What every candidate is trained on: a graph with its split, and its features as they were scaled."""

    graph: Graph
    features: Tensor
    adjacency: str
    device: torch.device

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return self.graph.num_classes


@torch.no_grad()
def compute_logits(network: Any, graph: Graph, features: Tensor, device: torch.device) -> Tensor:
    """Return what a network says of every node, [n, trials, classes].

    Args:
        network: an SGC, GCN or GAT with a trial axis.
        graph: whose edges.
        features: [n, d], scaled, dense or ``torch.sparse_csr``.
        device: where to run.
    """
    network = network.to(device).eval()
    matrix = network.propagation(graph.adjacency).to(device)
    logits: Tensor = network(features.to(device), matrix)
    return logits


def sgc_candidates(
    task: Task, norm: str, depths: Sequence[int], scales: Sequence[float], tick: Tick
) -> Found:
    """Yield an SGC for every depth and scale, with a function that builds it.

    One propagation serves them all, for PairNorm commutes with its scale; with PN-SCS, which does not, there
    is one for every scale.

    Args:
        task: the graph.
        norm: ``"none"``, ``"PN"``, ``"PN-SI"`` or ``"PN-SCS"``.
        depths: numbers of propagations.
        scales: PairNorm's s; without a norm, what the features are multiplied by.
        tick: is told what was done after every depth.
    """
    groups = [[scale] for scale in scales] if norm == "PN-SCS" else [list(scales)]
    for group in groups:
        own = group[0] if norm == "PN-SCS" else 1.0
        yield from _sweep(task, norm, own, depths, [scale / own for scale in group], tick)


def _sweep(
    task: Task, norm: str, own: float, depths: Sequence[int], factors: Sequence[float], tick: Tick
) -> Found:
    graph, device = task.graph, task.device
    basis, state = span(task.features.to_dense().to(device))
    matrix = propagation(graph.adjacency, task.adjacency).to(device)
    labels, train, validation = (part.to(device) for part in (graph.labels, graph.train, graph.validation))

    def normalise(state: Tensor) -> Tensor:
        return state if norm == "none" else pair_norm(state, own, norm)

    state = normalise(state)
    for depth in range(1, max(depths) + 1):
        state = normalise(matrix @ state)
        if depth not in depths:
            continue
        held = state[validation]
        for factor, weight, bias in regressions(state[train], labels[train], task.classes, factors):
            logits = factor * held @ weight + bias
            accuracy, loss = (
                float(part(logits, labels[validation])) for part in (part_accuracies, part_losses)
            )
            candidate = Candidate("SGC", norm, depth, own * factor, accuracy, loss)

            def build(candidate: Candidate = candidate, weight: Tensor = weight, bias: Tensor = bias) -> SGC:
                # Without a norm an SGC has no scale of its own: its weights take it over.
                weight = weight if candidate.norm != "none" else candidate.scale * weight
                return _network(task, candidate, weight if basis is None else basis @ weight, bias)

            yield candidate, build
        tick(f"SGC{'' if norm == 'none' else '-' + norm}, depth {depth}")


def _network(task: Task, candidate: Candidate, weight: Tensor, bias: Tensor) -> SGC:
    network = SGC(
        weight.shape[0],
        task.classes,
        candidate.depth,
        norm=None if candidate.norm == "none" else candidate.norm,
        scale=candidate.scale,
        adjacency=task.adjacency,
        trials=1,
    )
    with torch.no_grad():
        network.weight.copy_(weight.unsqueeze(0))
        network.bias.copy_(bias.unsqueeze(0))
    return network


def is_large(graph: Graph) -> bool:
    """Say whether a graph's features, dense, would not fit a usual machine."""
    return _dense_size(graph) > LARGEST_STATE


def _dense_size(graph: Graph) -> int:
    return 4 * graph.num_nodes * graph.num_features


def check_size(graph: Graph) -> None:
    """Refuse features that are too large to be dense, which propagating and standardising make them."""
    if is_large(graph):
        raise PairNormError(
            f"{graph.num_features:,} features of {graph.num_nodes:,} nodes, propagated or standardised, take "
            f"{_dense_size(graph) / 2**30:.0f} GiB at a time. Keep fewer columns, or choose model='GCN' with "
            "scaling by rows."
        )


def gnn_candidate(task: Task, spec: Spec, seeds: Sequence[int], tick: Callable[[int], None]) -> Found:
    """Yield a GCN or GAT, a trial for every seed, trained side by side; its accuracy is their mean.

    Args:
        task: the graph, with validation nodes.
        spec: the architecture and how to train it.
        seeds: one for each trial.
        tick: is told of epochs done.
    """
    graph, spec = task.graph.replace(features=task.features), spec.replace(scaling="none")
    run = GNNTrainer(graph, [(spec, seed) for seed in seeds], task.device)
    run.fit(tick)
    _, logits = run.evaluate()
    accuracy, loss = (
        float(part(logits, "validation").mean()) for part in (run.problem.accuracies, run.problem.losses)
    )
    scale = 1.0 if spec.norm == "none" else spec.scale
    yield Candidate(spec.model, spec.norm, spec.depth, scale, accuracy, loss), lambda: run.model
