"""The settings of a candidate, its evaluation, and the protocols of a family and of a fitted model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isnan, nan
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from torch import Tensor

from pairnorm.classify.candidates.prepared import PreparedGraph
from pairnorm.nn import Mode
from pairnorm.train.spec import Norm

if TYPE_CHECKING:
    from pairnorm.classify.candidates.task import Task

Tick = Callable[[str], None]
State = tuple[dict[str, Any], dict[str, Tensor]]
IMPUTATION_NAMES = {"fp": "feature propagation", "mass": "means of known values"}
# Models that have no PairNorm, so that their names do not mention it.
WITHOUT_PAIR_NORM = ("GCNII", "APPNP", "residual GCN")


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
            members = self.parts[0] if len(self.parts) == 1 else f"The average of {len(self.parts)} models"
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
        loss = inf if isnan(self.validation_loss) else self.validation_loss
        return (self.validation_accuracy, -loss, -self.depth)


def best_by_depth(candidates: Sequence[Candidate]) -> dict[tuple[str, Norm], dict[int, float]]:
    """Return the best validation accuracy of every depth, by model and norm."""
    best: dict[tuple[str, Norm], dict[int, float]] = {}
    for one in (one for one in candidates if one.depth):
        depths = best.setdefault((one.model, one.norm), {})
        depths[one.depth] = max(depths.get(one.depth, 0.0), one.validation_accuracy)
    return best


class SavedState(NamedTuple):
    """The state of a fitted candidate as read from a file, and the sizes of the problem it was fitted to."""

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


class Fitted(Protocol):
    """A fitted candidate."""

    def logits(self, prepared: PreparedGraph) -> Tensor:
        """Return the logits of every node, [n, models, classes].

        Args:
            prepared: the graph fitted on, or another one with the same columns.
        """

    def state(self) -> State:
        """Return settings that JSON can hold, and tensors, from which ``restore`` builds it again."""

    @classmethod
    def restore(cls, saved: SavedState) -> Self:
        """Build one from the result of ``state``; raise ValueError, LookupError or RuntimeError otherwise."""


class CandidateResult(NamedTuple):
    """An evaluated candidate.

    Args:
        candidate: its settings and its evaluation.
        probabilities: of the held-out nodes, [m, classes].
        score: by the task's metric, larger is better; NaN without held-out nodes.
        fit: fits it to a task's training nodes, which may be more than those of the evaluation.
    """

    candidate: Candidate
    probabilities: Tensor
    score: float
    fit: Callable[[Task], Fitted]

    @property
    def validation_loss(self) -> float:
        """That of the candidate."""
        return self.candidate.validation_loss

    @property
    def rank(self) -> tuple[float, float, int]:
        """Sort key, larger for better: score; then a small loss; then few layers."""
        score, loss = (-inf if isnan(one) else one for one in (self.score, -self.validation_loss))
        return score, loss, -self.candidate.depth


Results = Iterator[CandidateResult]


class Family(Protocol):
    """A kind of model; its fields are the settings to evaluate."""

    @property
    def name(self) -> str:
        """Its name in reports."""

    @property
    def steps(self) -> int:
        """How many times ``tick`` is called."""

    def fit(self, task: Task, tick: Tick) -> Results:
        """Yield every candidate, fitted to training nodes and evaluated on held-out nodes.

        Args:
            task: the graph with its split.
            tick: called after every step, with a description of it.
        """
