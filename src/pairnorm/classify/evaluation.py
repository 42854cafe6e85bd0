"""All that is known about a fitted classifier on the graph it was fitted on, gathered for the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import nan, sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairnorm.classify.candidates import SCALES, Task, compute_logits, gnn_candidate, is_large
from pairnorm.classify.regression import regressions
from pairnorm.nn import pair_norm, propagation
from pairnorm.train.spec import Spec
from pairnorm.train.trainers import part_losses

NORMAL_95 = 1.959964


def wilson_interval(right: int, count: int) -> tuple[float, float]:
    """Return Wilson's 95% interval of a share, which stays between 0 and 1 and is honest for few nodes.

    >>> low, high = wilson_interval(3, 3)
    >>> print(f"{low:.2f} to {high:.2f}")
    0.44 to 1.00

    Args:
        right: how many were right.
        count: of how many.
    """
    if count == 0:
        return 0.0, 1.0
    share, z = right / count, NORMAL_95
    middle = share + z * z / (2 * count)
    half = z * sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    low, high = ((middle + sign * half) / (1 + z * z / count) for sign in (-1, 1))
    return max(0.0, low), min(1.0, high)


@dataclass(frozen=True, eq=False)
class Scores:
    """What a confusion matrix says.

    Args:
        confusion: int64 [classes, classes]: row = the true class, column = the predicted one.
    """

    confusion: NDArray[np.int64]

    @classmethod
    def of(cls, labels: NDArray[np.int64], predicted: NDArray[np.int64], classes: int) -> Scores:
        """Count how often each class was taken for each other one."""
        pairs = labels * classes + predicted
        return cls(np.bincount(pairs, minlength=classes * classes).reshape(classes, classes))

    @property
    def count(self) -> int:
        """How many nodes were judged."""
        return int(self.confusion.sum())

    @property
    def right(self) -> int:
        """How many were right."""
        return int(np.trace(self.confusion))

    @property
    def accuracy(self) -> float:
        """The share that is right."""
        return self.right / self.count if self.count else nan

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% interval of the accuracy."""
        return wilson_interval(self.right, self.count)

    @property
    def recall(self) -> NDArray[np.float64]:
        """Of every class the share that was found; NaN for a class without nodes."""
        return _ratio(np.diag(self.confusion), self.confusion.sum(1))

    @property
    def precision(self) -> NDArray[np.float64]:
        """Of what was taken for a class the share that is of it; NaN for one that was never predicted."""
        return _ratio(np.diag(self.confusion), self.confusion.sum(0))

    @property
    def f1(self) -> NDArray[np.float64]:
        """2 right / (true + predicted), of every class; NaN for one that is neither there nor predicted."""
        return _ratio(2 * np.diag(self.confusion), self.confusion.sum(0) + self.confusion.sum(1))

    @property
    def balanced_accuracy(self) -> float:
        """The mean recall of the classes that are there."""
        return _mean(self.recall)

    @property
    def macro_f1(self) -> float:
        """The mean F1 of the classes that are there or were predicted."""
        return _mean(self.f1)


def _ratio(part: NDArray[np.int64], whole: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.where(whole > 0, part / np.maximum(whole, 1), nan)


def _mean(values: NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else nan


def paired_difference(ours: NDArray[np.bool_], theirs: NDArray[np.bool_]) -> tuple[float, float, float]:
    """Return by how much we are more often right on the same nodes, and the 95% interval of that.

    Args:
        ours: which of the nodes we got right.
        theirs: which of them they did.
    """
    count = len(ours)
    if count == 0:
        return nan, nan, nan
    difference = ours.astype(float) - theirs.astype(float)
    mean = float(difference.mean())
    half = NORMAL_95 * sqrt(max(float((difference**2).mean()) - mean**2, 0.0) / count)
    return mean, mean - half, mean + half


HOTTEST, TEMPERATURES = 30.0, 60
# Of fewer nodes than this, how sure to be cannot be learnt.
FEWEST = 20


def mean_probabilities(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Return softmax(logits / T), averaged over the trials: [n, classes] from [n, trials, classes].

    Args:
        logits: of every trial.
        temperature: T.
    """
    return (logits / temperature).softmax(-1).mean(1)


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """Return the T from 1 to 30 under which the labels are likeliest (Guo et al., 2017); 1 for few nodes.

    Never below 1, and with one imagined mistake among the labels, as Platt (1999) has it: a model that is
    right on all of a few validation nodes would else be certain of everything.

    Args:
        logits: [m, trials, classes], of the validation nodes.
        labels: int64 [m].
    """
    if len(labels) < FEWEST:
        return 1.0
    temperatures = torch.logspace(0, torch.tensor(HOTTEST).log10().item(), TEMPERATURES).tolist()

    def loss(temperature: float) -> float:
        logarithms = mean_probabilities(logits.double(), temperature).clamp(min=1e-30).log()
        return float(part_losses(logarithms, labels) - logarithms.mean() / len(labels))

    return float(min(temperatures, key=loss))


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
