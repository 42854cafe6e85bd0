"""Candidates, and the task that they are fitted to and evaluated on: graph, split, folds, masks, labels."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from math import inf, isnan, nan
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from pairnorm.classify.evaluation import fit_tilt, mean_probabilities
from pairnorm.classify.holdout import mask_features
from pairnorm.classify.predictions import unreachable
from pairnorm.classify.regression import SearchLimits, subsample
from pairnorm.classify.scaling import PreparedGraph, has_many_nodes
from pairnorm.data import Graph
from pairnorm.nn import Mode, Normalization
from pairnorm.train.distributed import Shards
from pairnorm.train.problem import part_accuracies, part_losses
from pairnorm.train.spec import Norm

if TYPE_CHECKING:
    from pairnorm.classify.candidates.ensemble import PseudoLabels

Tick = Callable[[str], None]
State = tuple[dict[str, Any], dict[str, Tensor]]
IMPUTATION_NAMES = {"fp": "feature propagation", "mass": "means of known values"}
# Models that have no PairNorm, so that their names do not mention it.
WITHOUT_PAIR_NORM = ("GCNII", "APPNP", "residual GCN", "hop network")
# Shares of the time limit: after the first, networks start, and trees and residual networks do not grow
# further; after the second, no candidate is evaluated.
CHEAP_SHARE, SEARCH_SHARE = 0.25, 0.5


@dataclass(frozen=True)
class Candidate:
    """The settings of a model, and its evaluation on validation nodes (NaN where there are none).

    Args:
        model: its name: ``"SGC"``, ``"GCN"``, ``"label propagation"`` ...
        norm: PairNorm's mode, or ``"none"``.
        depth: graph convolutions; 0 for a model that has none.
        scale: PairNorm's s.
        validation_accuracy: share of correct predictions.
        validation_loss: mean cross-entropy.
        setting: other settings, as text for people.
        imputation: of missing features, one of ``IMPUTATIONS``.
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
    imputation: str = "zero"
    directed: bool = False
    parts: tuple[str, ...] = ()
    smoothed: bool = False
    self_trained: bool = False
    one_per_model: bool = False

    @property
    def name(self) -> str:
        """Its name in reports: ``'SGC-PN, depth 35, scale 100'``, ``'GCN without PairNorm, depth 2'``."""
        if self.model == "average":
            steps = {
                ", smoothed over the graph": self.smoothed,
                ", one per model": self.one_per_model,
                ", self-trained": self.self_trained,
            }
            members = self.parts[0] if len(self.parts) == 1 else f"average of {len(self.parts)} models"
            return members + "".join(text for text, taken in steps.items() if taken)
        if self.depth == 0:
            return self.model
        if self.model in WITHOUT_PAIR_NORM:
            return f"{self.model}, depth {self.depth}"
        imputed = ""
        if self.imputation != "zero":
            imputed = f" over {IMPUTATION_NAMES.get(self.imputation, self.imputation)}"
        if self.norm == "none":
            return f"{self.model} without PairNorm{imputed}, depth {self.depth}"
        return f"{self.model}-{self.norm}{imputed}, depth {self.depth}, scale {self.scale:g}"

    @property
    def mode(self) -> Mode | None:
        """PairNorm's mode, None without a norm."""
        return None if self.norm == "none" else self.norm

    @property
    def rank(self) -> tuple[float, float, int]:
        """Sort key, larger for better: accuracy; then a small loss; then few layers."""
        return self.rank_by(self.validation_accuracy)

    def rank_by(self, score: float) -> tuple[float, float, int]:
        """Return the sort key with a score by any metric in place of the accuracy."""
        score, loss = (-inf if isnan(value) else value for value in (score, -self.validation_loss))
        return score, loss, -self.depth


def best_by_depth(candidates: Sequence[Candidate]) -> dict[tuple[str, Norm], dict[int, float]]:
    """Return the best validation accuracy of every depth, by model and norm."""
    best: dict[tuple[str, Norm], dict[int, float]] = {}
    for candidate in candidates:
        if candidate.depth:
            depths = best.setdefault((candidate.model, candidate.norm), {})
            depths[candidate.depth] = max(depths.get(candidate.depth, 0.0), candidate.validation_accuracy)
    return best


class SavedState(NamedTuple):
    """The state of a fitted candidate as read from a file, and the sizes of its problem."""

    candidate: Candidate
    settings: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    features: int
    classes: int

    def tensor(self, name: str, *shape: int) -> Tensor:
        """Return a tensor by name; raise ValueError unless it has the given shape."""
        if self.tensors[name].shape != shape:
            raise ValueError(f"{name} has the shape {list(self.tensors[name].shape)}, not {list(shape)}")
        return self.tensors[name]

    @property
    def axes(self) -> Tensor | None:
        """The principal axes that a candidate projects features on, [d, r]; None for the features."""
        if "axes" not in self.tensors:
            return None
        return self.tensor("axes", self.features, self.tensors["axes"].shape[-1])

    @property
    def width(self) -> int:
        """The number of columns of the features, or of their projection."""
        return self.features if self.axes is None else self.axes.shape[1]


class Fitted(Protocol):
    """A fitted candidate."""

    def logits(self, prepared: PreparedGraph) -> Tensor:
        """Return the logits of every node of a graph with the same columns, [n, models, classes]."""

    def state(self) -> State:
        """Return settings that JSON can hold, and tensors, from which ``restore`` builds it again."""

    @classmethod
    def restore(cls, saved: SavedState) -> Self:
        """Rebuild a candidate from the result of ``state``; raise ValueError, LookupError or RuntimeError."""


class CandidateResult(NamedTuple):
    """An evaluated candidate, its probabilities of the held-out nodes, [m, classes], and its score.

    The score is that by the task's metric, larger is better; NaN without held-out nodes. ``fit`` fits the
    candidate to a task's training nodes, which may be more than those of the evaluation.
    """

    candidate: Candidate
    probabilities: Tensor
    score: float
    fit: Callable[[Task], Fitted]

    @property
    def validation_loss(self) -> float:
        """The validation loss of the candidate."""
        return self.candidate.validation_loss

    @property
    def rank(self) -> tuple[float, float, int]:
        """Sort key, larger for better."""
        return self.candidate.rank_by(self.score)


Results = Iterator[CandidateResult]


class Family(Protocol):
    """A kind of model; its fields are the settings to evaluate."""

    @property
    def name(self) -> str:
        """Its name in reports."""

    @property
    def steps(self) -> int:
        """The number of steps: how often ``fit`` calls ``tick``."""

    def fit(self, task: Task, tick: Tick) -> Results:
        """Yield every candidate, evaluated on held-out nodes; call ``tick`` with the name of every step."""


@dataclass(frozen=True, eq=False)
class Task:
    """The problem that candidates are fitted to: a graph with its split, and how they are evaluated.

    Args:
        graph: with its split.
        prepared: the same graph with its scaled features.
        adjacency: ``"rw"`` or ``"sym"``.
        started: start of the search, from which the time limit counts.
        time_limit: seconds for the whole fit; infinite for an exhaustive search.
        metric: compares candidates, one of ``METRICS``.
        fold_masks: bool [n] for every fold, the training and validation nodes that it holds out; without any,
            the validation nodes are the only fold.
        pseudo_labels: training targets of regressions, in addition to the training labels.
        feature_mask: bool [n] or [n, d], features that are masked while a node is held out; None for none.
        shards: division of the nodes among ranks that train each GCN and GAT together.
        is_draft: whether regressions are solved loosely, to compare candidates.
    """

    graph: Graph
    prepared: PreparedGraph
    adjacency: Normalization = "rw"
    started: float = field(default_factory=time.perf_counter)
    time_limit: float = inf
    metric: str = "loss"
    fold_masks: Sequence[Tensor] = ()
    pseudo_labels: PseudoLabels | None = None
    feature_mask: Tensor | None = None
    shards: Shards | None = None
    is_draft: bool = False

    def __deepcopy__(self, memo: object) -> Task:
        return self  # it never changes, and torch cannot copy sparse tensors

    def __getstate__(self) -> dict[str, Any]:
        return {item.name: getattr(self, item.name) for item in fields(self)}  # without cached properties

    @property
    def features(self) -> Tensor:
        """[n, d], scaled."""
        return self.prepared.features

    @property
    def device(self) -> torch.device:
        """The device to compute on."""
        return self.prepared.device

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self.graph.num_classes

    @cached_property
    def prior(self) -> Tensor:
        """The share of every class among the training nodes, plus one node of each: [classes]."""
        counts = torch.bincount(self.graph.labels[self.graph.train].cpu(), minlength=self.classes) + 1.0
        return counts / counts.sum()

    @property
    def limits(self) -> SearchLimits:
        """The search limits that follow from the task's size."""
        numbers = int(self.with_all_folds.graph.train.sum()) * self.graph.num_features * len(self.folds)
        return SearchLimits(has_many_nodes(self.graph), numbers, self.metric, self.time_limit == inf)

    def allows(self, share: float, seconds: float = 0.0) -> bool:
        """Return whether a step of some seconds ends within this share of the time limit."""
        return time.perf_counter() - self.started + seconds <= share * self.time_limit

    @cached_property
    def with_all_folds(self) -> Task:
        """The task whose training nodes are those of all folds, without validation nodes."""
        if not self.fold_masks:
            return self if self.feature_mask is None else replace(self, feature_mask=None)
        graph = self.graph.replace(
            train=self.graph.train | self.graph.validation, validation=torch.zeros_like(self.graph.validation)
        )
        return replace(self, graph=graph, fold_masks=(), feature_mask=None)

    @cached_property
    def folds(self) -> Sequence[Task]:
        """A task for every fold, whose validation nodes are those held out."""
        draft, train = replace(self, is_draft=True), self.with_all_folds.graph.train
        return [
            replace(
                draft, graph=self.graph.replace(train=train & ~held_out, validation=held_out), fold_masks=()
            ).masked
            for held_out in self.fold_masks
        ] or [draft.masked]

    @cached_property
    def tasks_by_features(self) -> Sequence[Task]:
        """Tasks whose folds have all the same features: this one, or each fold."""
        return [replace(self, is_draft=True)] if self.feature_mask is None else self.folds

    @property
    def masked(self) -> Task:
        """The task in whose graph validation nodes are masked like the target."""
        if self.feature_mask is None:
            return self
        held_out = self.graph.validation if self.feature_mask.dim() == 1 else self.graph.validation[:, None]
        mask = self.feature_mask & held_out
        graph, prepared = mask_features(self.graph, mask), self.prepared.masked(mask)
        return replace(self, graph=graph, prepared=prepared, feature_mask=None)

    @cached_property
    def held_out_labels(self) -> Tensor:
        """The classes of the held-out nodes, fold after fold."""
        return torch.cat([fold.graph.labels[fold.graph.validation] for fold in self.folds]).cpu()

    @cached_property
    def held_out_unreachable(self) -> Tensor:
        """Whether each held-out node is ``unreachable``, bool [m]."""
        return torch.cat(
            [unreachable(fold.graph, fold.graph.train)[fold.graph.validation.cpu()] for fold in self.folds]
        )

    @cached_property
    def held_out_fallback(self) -> Tensor:
        """The class shares of each fold's training labels, for each of its held-out nodes: [m, classes]."""
        folds = [(fold, int(fold.graph.validation.sum())) for fold in self.folds]
        return torch.cat([fold.prior.expand(count, -1) for fold, count in folds])

    def held_out_logits(self, fit: FitTask) -> Tensor:
        """Fit a candidate in every fold, and return the logits of the nodes that each holds out."""
        logits = [fit(fold).logits(fold.prepared) for fold in self.folds]
        held_out = (fold.graph.validation for fold in self.folds)
        return torch.cat([x[mask.to(x.device)] for x, mask in zip(logits, held_out, strict=True)])

    def evaluate(self, candidate: Candidate, logits: Tensor, fit: FitTask) -> CandidateResult:
        """Evaluate a candidate by the logits of the held-out nodes, fold after fold, [m, models, classes].

        Accuracy and mean cross-entropy are means over models. ``fit`` fits the candidate to a task.
        """
        # All candidates share the fallback for unreachable nodes: otherwise chance would choose among them.
        logits, nodes = logits.clone(), self.held_out_unreachable
        logits[nodes.to(logits.device)] = self.held_out_fallback[nodes].log().unsqueeze(1).to(logits)
        return CandidateResult(
            *evaluate_logits(candidate, logits, self.held_out_labels, self.metric, self.prior), fit
        )


def evaluate_logits(
    candidate: Candidate, logits: Tensor, labels: Tensor, metric: str, prior: Tensor
) -> tuple[Candidate, Tensor, float]:
    """Return a candidate with its accuracy and loss, its probabilities and its score."""
    true = labels.to(logits.device)
    accuracy, loss = (float(part(logits, true).mean()) for part in (part_accuracies, part_losses))
    probabilities = mean_probabilities(logits).cpu()
    evaluated = replace(candidate, validation_accuracy=accuracy, validation_loss=loss)
    return evaluated, probabilities, fit_tilt(metric, labels, probabilities, prior)[0]


FitTask = Callable[[Task], Fitted]


class KnownLabels(NamedTuple):
    """Labels of nodes, int64 [m], which are matched in any graph by the fingerprints of their names."""

    names: Tensor
    labels: Tensor

    @classmethod
    def of(cls, task: Task) -> Self:
        """Return the labels of a task's training nodes."""
        names = task.prepared.node_fingerprints[task.graph.train.cpu().numpy()]
        return cls(torch.from_numpy(names), task.graph.labels[task.graph.train].cpu())

    @classmethod
    def restore(cls, tensors: Mapping[str, Tensor], classes: int, prefix: str = "") -> Self:
        """Read and validate the tensors ``names`` and ``labels`` of a file."""
        names, labels = tensors[f"{prefix}names"], tensors[f"{prefix}labels"]
        if labels.shape != names.shape or not 0 <= int(labels.min()) <= int(labels.max()) < classes:
            raise ValueError(f"the labels are not those of {classes} classes, one for each name")
        return cls(names, labels)

    def labels_in(self, prepared: PreparedGraph) -> Tensor:
        """Return the labels of a graph's nodes, -1 where not known: int64 [n], on the CPU."""
        nodes, names = prepared.node_fingerprints, self.names.numpy()
        order = names.argsort()
        position = order[np.searchsorted(names, nodes, sorter=order).clip(max=len(names) - 1)]
        return torch.from_numpy(np.where(names[position] == nodes, self.labels.numpy()[position], -1))

    def one_hot(self, prepared: PreparedGraph, classes: int) -> Tensor:
        """Return the labels of a graph's nodes as float [n, classes] on its device, zero where not known."""
        labels = self.labels_in(prepared).to(prepared.device)
        return torch.nn.functional.one_hot(labels.clamp(min=0), classes).float() * (labels >= 0)[:, None]


def limit_training_nodes(task: Task, max_nodes: int) -> Task:
    """Return the task with a ``subsample`` of at most ``max_nodes`` training nodes."""
    nodes = task.graph.train.nonzero().squeeze(1)
    if len(nodes) <= max_nodes:
        return task
    train = torch.zeros_like(task.graph.train)
    train[nodes[subsample(task.graph.labels[nodes], max_nodes)]] = True
    return replace(task, graph=task.graph.replace(train=train))
