"""What all candidates share: the task they learn, how they are judged, and the interface of a family."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf, isnan, nan
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from pairnorm.data import Graph
from pairnorm.errors import PairNormError
from pairnorm.nn import GAT, GCN, SGC, Kind, Mode
from pairnorm.train.spec import Norm
from pairnorm.train.trainers import part_accuracies, part_losses

LARGEST_STATE = 8 * 2**30

Tick = Callable[[str], None]
State = tuple[dict[str, Any], dict[str, Tensor]]


@dataclass(frozen=True)
class Candidate:
    """A model that was tried, and how well it did on the validation nodes (NaN where there are none).

    Args:
        model: its name: ``"SGC"``, ``"GCN"``, ``"label propagation"`` ...
        norm: PairNorm's mode, or ``"none"``.
        depth: graph convolutions; 0 for a model that has none.
        scale: PairNorm's s.
        validation_accuracy: what decides.
        validation_loss: mean cross-entropy, which decides among equals.
        setting: what else was chosen, in words.
    """

    model: str
    norm: Norm = "none"
    depth: int = 0
    scale: float = 1.0
    validation_accuracy: float = nan
    validation_loss: float = nan
    setting: str = ""

    @property
    def name(self) -> str:
        """What to call it: ``'SGC-PN, depth 35, scale 100'``, ``'GCN without PairNorm, depth 2'``."""
        if self.depth == 0:
            return self.model
        if self.norm == "none":
            return f"{self.model} without PairNorm, depth {self.depth}"
        return f"{self.model}-{self.norm}, depth {self.depth}, scale {self.scale:g}"

    @property
    def mode(self) -> Mode | None:
        """PairNorm's mode, None without a norm."""
        return None if self.norm == "none" else self.norm

    @property
    def rank(self) -> tuple[float, float, int]:
        """What the best candidate has most of: accuracy; then a small loss; then few layers."""
        loss = inf if isnan(self.validation_loss) else self.validation_loss
        return (self.validation_accuracy, -loss, -self.depth)


@dataclass(frozen=True, eq=False)
class Task:
    """What every candidate is trained on: a graph with its split, and its features as they were scaled.

    Args:
        graph: with its split.
        features: [n, d], scaled, dense or ``torch.sparse_csr``.
        adjacency: ``"rw"`` or ``"sym"``.
        device: where to train.
        began: when the search began, which a budget counts from.
    """

    graph: Graph
    features: Tensor
    adjacency: Kind
    device: torch.device
    began: float = field(default_factory=time.perf_counter)

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return self.graph.num_classes

    def judge(self, logits: Tensor) -> tuple[float, float]:
        """Return accuracy and mean cross-entropy on the validation nodes, the mean over trials.

        Args:
            logits: of the validation nodes, [m, trials, classes].
        """
        labels = self.graph.labels[self.graph.validation].to(logits.device)
        accuracy, loss = (part(logits, labels).mean() for part in (part_accuracies, part_losses))
        return float(accuracy), float(loss)


class Fitted(Protocol):
    """A candidate that has learnt."""

    def logits(self, graph: Graph, features: Tensor, device: torch.device) -> Tensor:
        """Return what it says of every node, [n, trials, classes].

        Args:
            graph: the one learnt from, or one that has changed since.
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


Build = Callable[[], Fitted]
Found = Iterator[tuple[Candidate, Build | None]]
"""Candidates with a function that makes them ready for use; None for one that was only tried."""


def ready(fitted: Fitted) -> Build:
    """Return the function that makes a candidate ready which is so already."""
    return lambda: fitted


class Family(Protocol):
    """A kind of model; its fields are the settings that are tried."""

    @property
    def name(self) -> str:
        """What the report calls it."""

    @property
    def steps(self) -> int:
        """How many times ``tick`` will be called."""

    def fit(self, task: Task, tick: Tick) -> Found:
        """Yield every candidate, learnt from the training nodes and judged by the validation nodes.

        Args:
            task: the graph.
            tick: is told of every step done.
        """


@dataclass(frozen=True, eq=False)
class Network:
    """A fitted SGC, GCN or GAT."""

    module: Any
    KINDS: ClassVar[dict[str, Any]] = {"SGC": SGC, "GCN": GCN, "GAT": GAT}

    @torch.no_grad()
    def logits(self, graph: Graph, features: Tensor, device: torch.device) -> Tensor:
        """Return the logits of every node, [n, trials, classes]."""
        module = self.module.to(device).eval()
        found: Tensor = module(features.to(device), module.propagation(graph.adjacency).to(device))
        return found

    def state(self) -> State:
        """Return the adjacency's kind and the weights, whose shapes tell the rest."""
        return {"adjacency": self.module.adjacency}, dict(self.module.state_dict())

    @classmethod
    def restore(cls, saved: Saved) -> Self:
        """Build a network as large as its weights are, whatever the settings claim."""
        candidate, tensors = saved.candidate, saved.tensors
        first = tensors["weight" if candidate.model == "SGC" else "convolutions.0.weight"]
        options: dict[str, Any] = {"adjacency": saved.settings["adjacency"], "trials": first.shape[0]}
        depth = candidate.depth
        if candidate.model != "SGC":
            options["hidden"] = first.shape[2]
            depth = len({name.split(".")[1] for name in tensors})
        if (first.shape[1], depth) != (saved.features, candidate.depth):
            raise ValueError(f"the weights are those of {first.shape[1]} features and {depth} layers")
        norm = candidate.mode
        kind = cls.KINDS[candidate.model]
        module = kind(saved.features, saved.classes, depth, norm=norm, scale=candidate.scale, **options)
        module.load_state_dict(dict(tensors))
        return cls(module.eval())


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
            f"{_dense_size(graph) / 2**30:.0f} GiB at a time",
            code="too-large",
            value=_dense_size(graph),
            expected=f"at most {LARGEST_STATE / 2**30:.0f} GiB",
            remedy="Keep fewer columns, or pass {model} and {scaling}.",
            model="GCN",
            scaling="rows",
        )
