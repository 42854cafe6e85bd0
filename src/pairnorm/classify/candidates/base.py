"""What all candidates share: the task they learn, how they are evaluated, and the interface of a family."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, isnan, nan
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from pairnorm.base.errors import PairNormError
from pairnorm.classify.candidates.propagation import has_many_nodes
from pairnorm.classify.evaluation import decide, mean_probabilities
from pairnorm.classify.holdout import fingerprints
from pairnorm.classify.search_limits import SearchLimits, subsample
from pairnorm.classify.target import hide, hide_features
from pairnorm.data import Graph
from pairnorm.data.adjacency import reachable
from pairnorm.data.split import Stream
from pairnorm.nn import Mode, Normalization
from pairnorm.train.distributed import Shards
from pairnorm.train.problem import part_accuracies, part_losses
from pairnorm.train.spec import Norm

LARGEST_STATE = 8 * 2**30
# Of the nodes without a label, at most so many are learned from, their probabilities to this power.
MAX_PSEUDO_LABELS, PSEUDO_LABEL_POWER = 4000, 1.5
# A regression on more columns than this would take long on so many: it takes fewer.
WIDE_COLUMNS, MAX_PSEUDO_LABELS_WIDE = 2000, 1000

Tick = Callable[[str], None]
State = tuple[dict[str, Any], dict[str, Tensor]]
FILL_NAMES = {"fp": "feature propagation", "mass": "means of known values"}


@dataclass(frozen=True)
class Candidate:
    """A model that was tried, and how well it did on the validation nodes (NaN where there are none).

    Args:
        model: its name: ``"SGC"``, ``"GCN"``, ``"label propagation"`` ...
        norm: PairNorm's mode, or ``"none"``.
        depth: graph convolutions; 0 for a model that has none.
        scale: PairNorm's s.
        validation_accuracy: the share of them that is right.
        validation_loss: mean cross-entropy.
        setting: other settings, as text for people.
        fill: what stands in for missing features, one of ``FILLS``.
        directed: whether in-neighbors and out-neighbors are separate columns.
        parts: of an ensemble, the names of its members.
        smoothed: of an ensemble, whether its probabilities are smoothed over the graph.
        self_trained: of an ensemble, whether it was fitted again with pseudo-labels.
        one_per_model: of an ensemble, whether it is the best of every model because the held-out nodes do not
            prefer any.
    """

    model: str
    norm: Norm = "none"
    depth: int = 0
    scale: float = 1.0
    validation_accuracy: float = nan
    validation_loss: float = nan
    setting: str = ""
    fill: str = "zero"
    directed: bool = False
    parts: tuple[str, ...] = ()
    smoothed: bool = False
    self_trained: bool = False
    one_per_model: bool = False

    @property
    def name(self) -> str:
        """What to call it: ``'SGC-PN, depth 35, scale 100'``, ``'GCN without PairNorm, depth 2'``."""
        if self.model == "average":
            steps = self._ensemble_steps
            many = f"The average of {len(self.parts)} models"
            return f"{self.parts[0] if len(self.parts) == 1 else many}{steps}"
        if self.depth == 0:
            return self.model
        filled = "" if self.fill == "zero" else f" over {FILL_NAMES.get(self.fill, self.fill)}"
        if self.model in ("GCNII", "APPNP"):
            return f"{self.model}, depth {self.depth}"
        if self.norm == "none":
            return f"{self.model} without PairNorm{filled}, depth {self.depth}"
        return f"{self.model}-{self.norm}{filled}, depth {self.depth}, scale {self.scale:g}"

    @property
    def _ensemble_steps(self) -> str:
        steps = {
            "smoothed over the graph": self.smoothed,
            "one per model": self.one_per_model,
            "self-trained": self.self_trained,
        }
        return "".join(f", {text}" for text, taken in steps.items() if taken)

    @property
    def mode(self) -> Mode | None:
        """PairNorm's mode, None without a norm."""
        return None if self.norm == "none" else self.norm

    @property
    def rank(self) -> tuple[float, float, int]:
        """What the best by accuracy has most of: accuracy; then a small loss; then few layers."""
        loss = inf if isnan(self.validation_loss) else self.validation_loss
        return (self.validation_accuracy, -loss, -self.depth)


def best_by_depth(tried: Sequence[Candidate]) -> dict[tuple[str, Norm], dict[int, float]]:
    """Return the best validation accuracy of every depth, by model and norm, of those that have a depth."""
    found: dict[tuple[str, Norm], dict[int, float]] = {}
    for one in (one for one in tried if one.depth):
        depths = found.setdefault((one.model, one.norm), {})
        depths[one.depth] = max(depths.get(one.depth, 0.0), one.validation_accuracy)
    return found


@dataclass(frozen=True, eq=False)
class Task:
    """What every candidate is trained on: a graph with its split, and its features as they were scaled.

    Args:
        graph: with its split.
        features: [n, d], scaled, dense or ``torch.sparse_csr``.
        adjacency: ``"rw"`` or ``"sym"``.
        device: where to train.
        began: when the search began, which the time limit counts from.
        time_limit: seconds for the whole fit; infinite for an exhaustive search.
        metric: what candidates are compared by, one of ``METRICS``.
        fold_masks: bool [n] for every fold, which of the training and validation nodes are held out in turn;
            where it is empty, the validation nodes are, once.
        pseudo_labels: what else a regression learns from than the training nodes.
        hidden: bool [n] or [n, d], features that are masked while a node is held out; None for none.
        shards: how ranks share its nodes, where they train each GCN and GAT together.
    """

    graph: Graph
    features: Tensor
    adjacency: Normalization
    device: torch.device
    began: float = field(default_factory=time.perf_counter)
    time_limit: float = inf
    metric: str = "loss"
    fold_masks: Sequence[Tensor] = ()
    pseudo_labels: PseudoLabels | None = None
    hidden: Tensor | None = None
    shards: Shards | None = None

    def __deepcopy__(self, memo: object) -> Task:
        return self  # it never changes, and torch cannot copy sparse tensors

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return self.graph.num_classes

    @cached_property
    def prior(self) -> Tensor:
        """The share of every class among the training nodes, [classes]; one more of each is imagined."""
        counts = torch.bincount(self.graph.labels[self.graph.train].cpu(), minlength=self.classes) + 1.0
        return counts / counts.sum()

    @property
    def limits(self) -> SearchLimits:
        """What is left out because of the task's size."""
        numbers = int(self.learnable.graph.train.sum()) * self.graph.num_features * len(self.folds)
        return SearchLimits(has_many_nodes(self.graph), numbers, self.metric, self.time_limit == inf)

    def has_used(self, share: float) -> bool:
        """Return whether more than this share of the time limit has passed."""
        return time.perf_counter() - self.began > share * self.time_limit

    @cached_property
    def learnable(self) -> Task:
        """The task with all nodes to learn from, those of every fold, and nobody to choose by."""
        if not self.fold_masks:
            return self if self.hidden is None else replace(self, hidden=None)
        graph = self.graph.replace(
            train=self.graph.train | self.graph.validation, validation=torch.zeros_like(self.graph.validation)
        )
        return replace(self, graph=graph, fold_masks=(), hidden=None)

    @cached_property
    def folds(self) -> Sequence[Task]:
        """A task for every fold, whose validation nodes are those held out."""
        every = self.learnable.graph.train
        return [
            replace(
                self, graph=self.graph.replace(train=every & ~held, validation=held), fold_masks=()
            ).masked
            for held in self.fold_masks
        ] or [self.masked]

    @property
    def tasks_by_features(self) -> Sequence[Task]:
        """Tasks whose folds have all the same features: this one, or each fold."""
        return [self] if self.hidden is None else self.folds

    @property
    def masked(self) -> Task:
        """The task in whose graph validation nodes are masked like the target."""
        if self.hidden is None:
            return self
        held_out = self.graph.validation if self.hidden.dim() == 1 else self.graph.validation[:, None]
        hidden = self.hidden & held_out
        graph = hide(self.graph, hidden)
        return replace(self, graph=graph, features=hide_features(self.features, hidden), hidden=None)

    @cached_property
    def held_out_labels(self) -> Tensor:
        """The classes of the nodes that are held out, fold after fold."""
        return torch.cat([fold.graph.labels[fold.graph.validation] for fold in self.folds]).cpu()

    @cached_property
    def held_out_unreachable(self) -> Tensor:
        """Of the nodes held out, which are ``unreachable``."""
        return torch.cat(
            [unreachable(one.graph, one.graph.train)[one.graph.validation.cpu()] for one in self.folds]
        )

    @cached_property
    def held_out_fallback(self) -> Tensor:
        """The class shares of each fold's training labels, for each of its held-out nodes: [m, classes]."""
        folds = [(fold, int(fold.graph.validation.sum())) for fold in self.folds]
        return torch.cat([fold.prior.expand(count, -1) for fold, count in folds])

    def held_logits(self, learn: Learn) -> Tensor:
        """Return what is said of the nodes held out, fold after fold, by what learned from the others.

        Args:
            learn: makes a candidate of a task.
        """
        return torch.cat([fold._logits(learn(fold)) for fold in self.folds])

    def _logits(self, fitted: Fitted) -> Tensor:
        logits = fitted.logits(self.graph, self.features, self.device)
        return logits[self.graph.validation.to(logits.device)]

    def evaluate(self, candidate: Candidate, logits: Tensor, learn: Learn) -> CandidateResult:
        """Evaluate a candidate on what is held out: accuracy and mean cross-entropy are means over trials.

        Args:
            candidate: its settings.
            logits: of the nodes held out, fold after fold, [m, trials, classes].
            learn: makes it of a task.
        """
        labels = self.held_out_labels.to(logits.device)
        # Else chance would choose, by what is said of nodes of which nothing is known.
        logits = logits.clone()
        nodes = self.held_out_unreachable
        logits[nodes.to(logits.device)] = self.held_out_fallback[nodes].log().unsqueeze(1).to(logits)
        accuracy, loss = (float(part(logits, labels).mean()) for part in (part_accuracies, part_losses))
        candidate = replace(candidate, validation_accuracy=accuracy, validation_loss=loss)
        probabilities = mean_probabilities(logits).cpu()
        return CandidateResult(
            candidate,
            probabilities,
            decide(self.metric, self.held_out_labels, probabilities, self.prior)[0],
            learn,
        )


class PseudoLabels(NamedTuple):
    """What a regression learns from: labels where they are known, and what is thought of the other nodes.

    Args:
        nodes: int64 [m].
        target: [m, classes], the probability of every class.
        counts: [m], how much each counts; the known ones as much as all others together.
        known: how many have a label: the first ones. The others are in random order.
    """

    nodes: Tensor
    target: Tensor
    counts: Tensor
    known: int

    @classmethod
    def of(cls, task: Task, probabilities: Tensor) -> PseudoLabels | None:
        """Take the labels of the training nodes; None where there is nobody else.

        Args:
            task: whose training nodes.
            probabilities: [n, classes], what is thought of every node.
        """
        train = task.graph.train.cpu()
        others = (~train & ~unreachable(task.graph, train)).nonzero().squeeze(1)
        if not len(others):
            return None
        others = others[torch.from_numpy(Stream(0, "classify lesson").order(len(others))[:MAX_PSEUDO_LABELS])]
        known = train.nonzero().squeeze(1)
        labels = torch.nn.functional.one_hot(task.graph.labels.cpu()[known], task.classes)
        sharpened = probabilities.cpu()[others] ** PSEUDO_LABEL_POWER
        target = torch.cat([labels.to(sharpened), sharpened / sharpened.sum(1, keepdim=True)])
        counts = torch.cat([torch.full((len(one),), 1 / len(one)) for one in (known, others)])
        return cls(torch.cat([known, others]), target, counts, len(known))

    def training_rows(self, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return rows, target and counts for a regression; on many columns, of fewer nodes without a label.

        The work grows with the cube of the smaller number, of rows or columns.

        Args:
            state: [n, d], the columns of every node.
        """
        end = len(self.nodes) if state.shape[1] <= WIDE_COLUMNS else self.known + MAX_PSEUDO_LABELS_WIDE
        nodes, target, counts = (part[:end].to(state.device) for part in self[:3])
        counts = counts.clone()  # the next state may use more rows
        counts[self.known :] /= counts[self.known :].sum()
        return state[nodes], target, counts


class Fitted(Protocol):
    """A candidate that has learned."""

    def logits(self, graph: Graph, features: Tensor, device: torch.device) -> Tensor:
        """Return what it says of every node, [n, trials, classes].

        Args:
            graph: the one learned from, or one that has changed since.
            features: of that graph, [n, d], scaled.
            device: where to run.
        """

    def state(self) -> State:
        """Return what is to be saved: settings that JSON can hold, and tensors."""

    @classmethod
    def restore(cls, saved: Saved) -> Self:
        """Make one of what ``state`` gave; of anything else a ValueError, LookupError or RuntimeError."""


class Saved(NamedTuple):
    """What a file says of a fitted candidate; nothing that is made of it is larger than its tensors."""

    candidate: Candidate
    settings: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    features: int
    classes: int

    def tensor(self, name: str, *shape: int) -> Tensor:
        """Return a tensor, which must have the shape."""
        if self.tensors[name].shape != shape:
            raise ValueError(f"{name} has the shape {list(self.tensors[name].shape)}, not {list(shape)}")
        return self.tensors[name]


class KnownLabels(NamedTuple):
    """The labels of some nodes, which are found again by name in any graph.

    Args:
        names: int64 [m], fingerprints of their names.
        labels: int64 [m].
    """

    names: Tensor
    labels: Tensor

    @classmethod
    def of(cls, graph: Graph) -> Self:
        """Take those of the training nodes."""
        names = fingerprints(graph)[graph.train.cpu().numpy()]
        return cls(torch.from_numpy(names), graph.labels[graph.train].cpu())

    @classmethod
    def restore(cls, saved: Saved) -> Self:
        """Take up the tensors ``names`` and ``labels``."""
        return cls.checked(saved.tensors["names"], saved.tensors["labels"], saved.classes)

    @classmethod
    def checked(cls, names: Tensor, labels: Tensor, classes: int) -> Self:
        """Take up tensors from a file, of a label a name."""
        if labels.shape != names.shape or not 0 <= int(labels.min()) <= int(labels.max()) < classes:
            raise ValueError(f"the labels are not those of {classes} classes, one for each name")
        return cls(names, labels)

    def labels_in(self, graph: Graph) -> Tensor:
        """Return the labels of a graph's nodes, -1 where not known: int64 [n]."""
        found, names = fingerprints(graph), self.names.numpy()
        order = names.argsort()
        place = order[np.searchsorted(names, found, sorter=order).clip(max=len(names) - 1)]
        return torch.from_numpy(np.where(names[place] == found, self.labels.numpy()[place], -1))


Learn = Callable[[Task], Fitted]


class CandidateResult(NamedTuple):
    """A candidate that was tried.

    Args:
        candidate: its settings, and how well it did.
        probabilities: the probabilities it gives the validation nodes, [m, classes].
        score: by the task's metric, larger is better; NaN without validation nodes.
        learn: learns it from a task's training nodes, which may be more than those it was tried with.
    """

    candidate: Candidate
    probabilities: Tensor
    score: float
    learn: Learn

    @property
    def validation_loss(self) -> float:
        """That of the candidate."""
        return self.candidate.validation_loss

    @property
    def rank(self) -> tuple[float, float, int]:
        """What the best has most of: score; then a small loss; then few layers."""
        score, loss = (-inf if isnan(one) else one for one in (self.score, -self.validation_loss))
        return score, loss, -self.candidate.depth


Results = Iterator[CandidateResult]


class Family(Protocol):
    """A kind of model; its fields are the settings that are tried."""

    @property
    def name(self) -> str:
        """What the report calls it."""

    @property
    def steps(self) -> int:
        """How many times ``tick`` will be called."""

    def fit(self, task: Task, tick: Tick) -> Results:
        """Yield every candidate, learned from the training nodes and evaluated by the validation nodes.

        Args:
            task: the graph.
            tick: is told of every step done.
        """


def fewer(task: Task, most: int) -> Task:
    """Return the task with some of its training nodes, as ``subsample`` takes them."""
    nodes = task.graph.train.nonzero().squeeze(1)
    if len(nodes) <= most:
        return task
    train = torch.zeros_like(task.graph.train)
    train[nodes[subsample(task.graph.labels[nodes], most)]] = True
    return replace(task, graph=task.graph.replace(train=train))


def unreachable(graph: Graph, labeled: Tensor) -> Tensor:
    """Return bool [n], on the CPU: nodes that no path connects with a known feature or a known label.

    Nothing tells them apart: all get the same fallback probabilities.

    Args:
        graph: whose edges, and what it misses.
        labeled: bool [n], the nodes whose labels are known.
    """
    if not graph.missing.any():
        return torch.zeros(graph.num_nodes, dtype=torch.bool)
    return ~reachable(graph.adjacency, ~graph.missing_vectors | labeled)


def is_large(graph: Graph) -> bool:
    """Say whether a graph's features, dense, would not fit a usual machine."""
    return _dense_size(graph) > LARGEST_STATE


def _dense_size(graph: Graph) -> int:
    return 4 * graph.num_nodes * graph.num_features


def check_size(graph: Graph) -> None:
    """Refuse features that are too large to be dense, which propagating and standardizing make them."""
    if is_large(graph):
        raise PairNormError(
            f"{graph.num_features:,} features of {graph.num_nodes:,} nodes, propagated or standardized, take "
            f"{_dense_size(graph) / 2**30:.0f} GiB at a time",
            code="too-large",
            value=_dense_size(graph),
            expected=f"at most {LARGEST_STATE / 2**30:.0f} GiB",
            hint="Keep fewer columns, or pass {model} and {scaling}.",
            model="GCN",
            scaling="rows",
        )
