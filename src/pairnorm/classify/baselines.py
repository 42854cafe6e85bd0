"""What simpler methods reach on the same split, so that a user sees whether the deep model earns its keep."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairnorm.classify.candidates import SCALES, Task, compute_logits, gnn_candidate, is_large
from pairnorm.classify.regression import regressions
from pairnorm.classify.temperature import mean_probabilities
from pairnorm.nn import pair_norm, propagation
from pairnorm.train.spec import Spec

GCN_EPOCHS, GCN_SEEDS = 200, 3
# How much a node listens to its neighbours against its own label.
LISTENING = (0.5, 0.9, 0.99)
ROUNDS = 100


@dataclass(frozen=True, eq=False)
class Baseline:
    """A simpler method and the class that it predicts for every node, as a number."""

    name: str
    predicted: NDArray[np.int64]


def baselines(
    task: Task, seed: int = 0, tick: Callable[[str], None] = lambda done: None
) -> Iterator[Baseline]:
    """Yield the predictions of four simpler methods, each with its own settings chosen by validation.

    They are: the most frequent class; label propagation, which sees no features; logistic regression, which
    sees no edges; and a plain GCN of two layers. Logistic regression is left out where features are too large
    to be dense, the GCN where there are no validation nodes.

    Args:
        task: the graph, its features scaled.
        seed: the first of the GCN's.
        tick: is told of every one done.
    """
    graph = task.graph
    counts = torch.bincount(graph.labels[graph.train], minlength=task.classes)
    frequent = np.full(graph.num_nodes, int(counts.argmax()), dtype=np.int64)
    yield Baseline("most frequent class", frequent)
    for name, method, possible in (
        ("label propagation", _label_propagation, True),
        ("logistic regression", _logistic_regression, not is_large(graph)),
        ("GCN, 2 layers", _gcn, graph.validation.any()),
    ):
        if possible:
            yield Baseline(name, method(task, seed).cpu().numpy())
            tick(name)


def _best(task: Task, found: Iterator[Tensor]) -> Tensor:
    """Return the predictions that are right most often on the validation nodes; of equals, the first."""
    right = task.graph.validation.nonzero().squeeze(1)
    labels = task.graph.labels[right]
    return max(found, key=lambda predicted: int((predicted[right] == labels).sum()))


def _label_propagation(task: Task, seed: int) -> Tensor:
    """Repeat F ← α S F + (1 − α) Y, S = D̃^(-1/2) Ã D̃^(-1/2) (Zhou et al., 2004)."""
    graph = task.graph
    matrix = propagation(graph.adjacency, "sym")
    given = torch.nn.functional.one_hot(graph.labels.clamp(min=0), task.classes).float()
    given = given * graph.train[:, None]

    def spread() -> Iterator[Tensor]:
        for listening in LISTENING:
            state = given
            for _ in range(ROUNDS):
                state = listening * (matrix @ state) + (1 - listening) * given
            # Where no label arrives, the most frequent class is the best guess.
            yield (state + 1e-12 * given.sum(0)).argmax(1)

    return _best(task, spread())


def _logistic_regression(task: Task, seed: int) -> Tensor:
    graph = task.graph
    rows = pair_norm(task.features.to_dense())
    labels = graph.labels[graph.train]
    fitted = regressions(rows[graph.train], labels, task.classes, SCALES)
    return _best(task, ((scale * rows @ weight + bias).argmax(1) for scale, weight, bias in fitted))


def _gcn(task: Task, seed: int) -> Tensor:
    spec = Spec("own", "GCN", 2, epochs=GCN_EPOCHS)
    ((_, build),) = gnn_candidate(task, spec, range(seed, seed + GCN_SEEDS), lambda epochs: None)
    return mean_probabilities(compute_logits(build(), task.graph, task.features, task.device)).argmax(1)
