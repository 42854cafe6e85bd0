"""Label propagation, ensembles by greedy selection (Caruana et al., 2004), and smoothing over the graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairnorm.base.errors import real_number
from pairnorm.classify.candidates.task import (
    Candidate,
    CandidateResult,
    Fitted,
    KnownLabels,
    Results,
    SavedState,
    State,
    Task,
    Tick,
)
from pairnorm.classify.evaluation import (
    NORMAL_95,
    apply_tilt,
    fit_tilt,
    mean_probabilities,
    metric_difference,
    paired_difference,
)
from pairnorm.classify.predictions import fallback_shares, unreachable
from pairnorm.classify.scaling import PreparedGraph
from pairnorm.data.masks import Stream
from pairnorm.nn.propagate import propagate_with_restart

MAX_ROUNDS, SHORTLIST = 20, 100
# Another member must improve the score by more than this. A paired standard error is not required, unlike for
# smoothing and self-training: members are averaged, so that one too many costs less than one that is missing.
MIN_GAIN = 1e-4
# An ensemble must beat the class frequencies by this many standard errors.
PRIOR_Z = 2.0
# Settings of smoothing, and its propagation steps.
ALPHAS, POWERS, SMOOTHING_STEPS = (0.3, 0.5, 0.8, 0.9), (1.0, 1.5, 2.0, 3.0), 50
# The weights of neighbors in label propagation, and its steps.
LABEL_ALPHAS, PROPAGATION_STEPS = (0.5, 0.9, 0.99), 100
# Pseudo-labels are taken from at most this many nodes, their probabilities raised to this power.
MAX_PSEUDO_LABELS, PSEUDO_LABEL_POWER = 4000, 1.5


@dataclass(frozen=True)
class LabelPropagation:
    r"""Label propagation (Zhou et al., 2004) for several α: $F \leftarrow \alpha S F + (1 - \alpha) Y$."""

    alphas: Sequence[float] = LABEL_ALPHAS
    name: str = "label propagation"
    steps: int = 1

    def fit(self, task: Task, tick: Tick) -> Results:
        """Yield one candidate per α; all share one propagation."""
        by_fold = [
            _propagate_labels(fold.prepared, KnownLabels.of(fold), self.alphas, fold.classes)[
                fold.graph.validation.to(fold.device)
            ]
            for fold in task.folds
        ]
        for alpha, logits in zip(self.alphas, torch.cat(by_fold).split(1, 1), strict=True):
            candidate = Candidate(self.name, setting=f"α = {alpha:g}")
            yield task.evaluate(candidate, logits, partial(_fit_labels, alpha=alpha))
        tick(self.name)


def _fit_labels(task: Task, alpha: float) -> PropagatedLabels:
    return PropagatedLabels(alpha, KnownLabels.of(task), task.classes)


@dataclass(frozen=True, eq=False)
class PropagatedLabels:
    """Fitted label propagation: known labels, matched by node name in any graph and propagated there."""

    alpha: float
    known: KnownLabels
    classes: int

    def logits(self, prepared: PreparedGraph) -> Tensor:
        """Return the logarithms of the propagated labels, [n, 1, classes]."""
        return _propagate_labels(prepared, self.known, [self.alpha], self.classes)

    def state(self) -> State:
        """Return α and the labels."""
        return {"alpha": self.alpha}, {"names": self.known.names, "labels": self.known.labels}

    @classmethod
    def restore(cls, saved: SavedState) -> Self:
        """Read α and the labels."""
        alpha = real_number("alpha", saved.settings["alpha"], least=0, below=1)
        return cls(alpha, KnownLabels.restore(saved.tensors, saved.classes), saved.classes)


def _propagate_labels(
    prepared: PreparedGraph, known: KnownLabels, alphas: Sequence[float], classes: int
) -> Tensor:
    """Return the logits for every α, [n, alphas, classes]."""
    start = known.one_hot(prepared, classes)
    state = propagate_with_restart(prepared.adjacency("sym"), start, alphas, PROPAGATION_STEPS)
    labels, count = known.labels_in(prepared), torch.bincount(known.labels, minlength=classes).to(state)
    # Where no label arrives, the expected class shares of such nodes are the best answer.
    probabilities = state / state.sum(-1, keepdim=True).clamp(min=1e-30)
    adjacency, shares = prepared.graph.adjacency, count / count.sum()
    shares = fallback_shares(adjacency, labels >= 0, probabilities, labels, shares)
    return (state + 1e-12 * count.sum() * shares + 1e-30).log()


@dataclass(frozen=True)
class MostFrequent:
    """The simplest baseline: predict for every node the class frequencies of the training nodes."""

    name: str = "most frequent class"
    steps: int = 0

    def fit(self, task: Task, tick: Tick) -> Results:
        """Yield the class frequencies, the only candidate."""
        yield task.evaluate(Candidate(self.name), task.held_out_logits(Frequencies.of), Frequencies.of)


@dataclass(frozen=True, eq=False)
class Frequencies:
    """A fitted ``MostFrequent``: the share of every class among the training nodes."""

    frequencies: Tensor

    @classmethod
    def of(cls, task: Task) -> Self:
        """Count the training labels."""
        counts = torch.bincount(task.graph.labels[task.graph.train].cpu(), minlength=task.classes)
        return cls(counts.float() / counts.sum())

    def logits(self, prepared: PreparedGraph) -> Tensor:
        """Return the logarithms of the shares for every node, [n, 1, classes]."""
        logarithms = (self.frequencies + 1e-30).log().to(prepared.device)
        return logarithms.expand(prepared.graph.num_nodes, 1, -1)

    def state(self) -> State:
        """Return the frequencies."""
        return {}, {"frequencies": self.frequencies}

    @classmethod
    def restore(cls, saved: SavedState) -> Self:
        """Read the frequencies."""
        return cls(saved.tensor("frequencies", saved.classes))


def select_members(task: Task, results: Sequence[CandidateResult]) -> Counter[int]:
    """Select the members of an ensemble, one per round: the weight of each, by its index in ``results``."""
    order = sorted(range(len(results)), key=lambda number: results[number].rank, reverse=True)
    kinds = [
        (result.candidate.model, result.candidate.norm, result.candidate.imputation) for result in results
    ]
    # The best of all, and the best of each kind: an average gains by members that differ.
    best_of_kind = {kinds[number]: number for number in order[::-1]}.values()
    shortlist = dict.fromkeys([*order[:SHORTLIST], *best_of_kind])
    members: Counter[int] = Counter(order[:1])
    total = results[order[0]].probabilities.double()
    before = _score(task, total)
    for count in range(2, MAX_ROUNDS + 1):
        scores = {
            number: _score(task, (total + results[number].probabilities) / count) for number in shortlist
        }
        number = max(scores, key=lambda number: scores[number])
        if scores[number] <= (before[0] + MIN_GAIN, before[1]):
            break
        members[number] += 1
        total, before = total + results[number].probabilities, scores[number]
    return members


def best_per_model(results: Sequence[CandidateResult]) -> Counter[int]:
    """Select the best candidate of every model with equal weights, the most frequent class only if alone."""
    order = sorted(range(len(results)), key=lambda number: results[number].rank)
    best = {results[number].candidate.model: number for number in order}
    if len(best) > 1:
        best.pop("most frequent class", None)
    return Counter(best.values())


def _score(task: Task, probabilities: Tensor) -> tuple[float, float]:
    """Score probabilities by the task's metric, and by the loss, which breaks ties."""
    score, loss = (
        fit_tilt(metric, task.held_out_labels, probabilities, task.prior)[0]
        for metric in (task.metric, "loss")
    )
    return (loss if score != score else score), loss


def beats_prior(task: Task, probabilities: Tensor) -> bool:
    """Return whether probabilities of held-out nodes are significantly better than the class frequencies.

    With few labels, the best of hundreds of candidates is often best by chance, and gives all nodes the same
    probabilities.
    """
    gain = (probabilities.clamp(min=1e-30) / task.prior).log().gather(1, task.held_out_labels.unsqueeze(1))
    return bool(gain.mean() > PRIOR_Z * gain.std() / len(gain) ** 0.5)


def improves(task: Task, probabilities: Tensor, before: Tensor) -> bool:
    """Return whether probabilities of held-out nodes gain more than the paired standard error.

    The standard error is that of the mean difference per node; for metrics that are not means over nodes,
    that of a paired bootstrap.
    """
    labels = task.held_out_labels
    if task.metric == "loss":
        logs = [tensor.double().clamp(min=1e-30).log() for tensor in (probabilities, before)]
        new, old = (log.gather(1, labels.unsqueeze(1)).squeeze(1).numpy() for log in logs)
        gain, low, _ = paired_difference(new, old)
    else:
        decided = [_decided(task, tensor.double()) for tensor in (probabilities, before)]
        gain, low, _ = metric_difference(task.metric, labels.numpy(), *decided)
    return gain > (gain - low) / NORMAL_95


def _decided(task: Task, probabilities: Tensor) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the classes that the metric's decision rule predicts, and the probabilities."""
    tilt = fit_tilt(task.metric, task.held_out_labels, probabilities, task.prior)[1]
    return apply_tilt(probabilities.numpy(), task.prior.numpy(), tilt).argmax(1), probabilities.numpy()


class Smoothing(NamedTuple):
    r"""Propagates probabilities and known labels over the graph, and sharpens the result.

    $$\mathbf{Z} \leftarrow \alpha \mathbf{S} \mathbf{Z} + (1 - \alpha) \mathbf{Z}_0 \qquad
    p_{ic} \propto z_{ic}^{\gamma}$$

    This is the second half of Correct & Smooth. The first half, which propagates the errors on training
    nodes, gained nothing over an ensemble. The power γ changes no node's most probable class.
    """

    alpha: float
    power: float

    def __call__(self, prepared: PreparedGraph, probabilities: Tensor, labels: Tensor) -> Tensor:
        """Smooth the probabilities of every node, [n, classes], given the known labels (-1 for none)."""
        return sharpen(smooth(prepared, probabilities, labels, [self.alpha])[:, 0], self.power)


def smooth(prepared: PreparedGraph, probabilities: Tensor, labels: Tensor, alphas: Sequence[float]) -> Tensor:
    """Smooth probabilities, [n, classes], given labels, -1 where not known: [n, alphas, classes]."""
    certain = torch.nn.functional.one_hot(labels.clamp(min=0), probabilities.shape[1]).to(probabilities)
    start = torch.where((labels >= 0)[:, None], certain, probabilities)
    return sharpen(propagate_with_restart(prepared.adjacency("sym"), start, alphas, SMOOTHING_STEPS), 1.0)


def sharpen(probabilities: Tensor, power: float) -> Tensor:
    """Raise probabilities to a power and normalize them."""
    raised = probabilities.clamp(min=1e-12) ** power
    return raised / raised.sum(-1, keepdim=True)


def select_smoothing(task: Task, averages: Sequence[Average]) -> tuple[Smoothing | None, Tensor]:
    """Return the smoothing that improves an ensemble most, or None, and the probabilities of held-out nodes.

    ``averages`` are the ensemble, fitted in each fold.
    """
    unsmoothed: list[Tensor] = []
    by_alpha: list[Tensor] = []
    for fold, average in zip(task.folds, averages, strict=True):
        before = average.logits(fold.prepared).softmax(-1)[:, 0]
        labels = fold.graph.labels.where(fold.graph.train, -1).to(before.device)
        held_out = fold.graph.validation.to(before.device)
        unsmoothed.append(before[held_out].cpu())
        by_alpha.append(smooth(fold.prepared, before, labels, ALPHAS)[held_out].cpu())
    probabilities, setting = torch.cat(unsmoothed), None
    best_score, best = _score(task, probabilities), probabilities
    for (alpha, smoothed), power in product(zip(ALPHAS, torch.cat(by_alpha).unbind(1), strict=True), POWERS):
        after = sharpen(smoothed, power)
        after[task.held_out_unreachable] = probabilities[task.held_out_unreachable]
        if (score := _score(task, after)) > best_score:
            best_score, setting, best = score, Smoothing(alpha, power), after
    return (setting, best) if improves(task, best, probabilities) else (None, probabilities)


@dataclass(frozen=True, eq=False)
class Average:
    """A weighted mean of the probabilities of fitted candidates, and its smoothing.

    ``unreachable`` nodes get the fallback probabilities, [classes]: the class shares of the training labels,
    or those expected by ``with_fallback``.
    """

    parts: Sequence[tuple[int, Candidate, Fitted]]
    known: KnownLabels
    fallback_probabilities: Tensor
    smooth: Smoothing | None = None

    def __deepcopy__(self, memo: object) -> Average:
        return self  # it never changes

    def logits(self, prepared: PreparedGraph) -> Tensor:
        """Return the logarithm of the mean probabilities of every node, [n, 1, classes]."""
        # Shared with a smoothed copy. The cache holds the members, so that no other object gets their id.
        _, mean = prepared.cached(("mean", id(self.parts)), lambda: (self.parts, self._mean(prepared)))
        probabilities, labels = mean.clone(), self.known.labels_in(prepared)
        if self.smooth is not None:
            probabilities = self.smooth(prepared, probabilities, labels.to(probabilities.device))
        without_evidence = unreachable(prepared.graph, labels >= 0).to(probabilities.device)
        probabilities[without_evidence] = self.fallback_probabilities.to(probabilities)
        return probabilities.clamp(min=1e-30).log().unsqueeze(1)

    def with_fallback(self, prepared: PreparedGraph) -> Average:
        """Set the prediction for unreachable nodes to their expected class shares."""
        if not prepared.graph.missing.any():
            return self
        labels, probabilities = self.known.labels_in(prepared), self.logits(prepared)[:, 0].exp().cpu()
        sources = ~prepared.graph.missing_vectors.cpu() | (labels >= 0)
        adjacency, default = prepared.graph.adjacency, self.fallback_probabilities
        shares = fallback_shares(adjacency, sources, probabilities, labels, default)
        return replace(self, fallback_probabilities=shares)

    def _mean(self, prepared: PreparedGraph) -> Tensor:
        total = sum(weight for weight, _, _ in self.parts)
        members = [
            weight / total * mean_probabilities(fitted.logits(prepared)) for weight, _, fitted in self.parts
        ]
        return torch.stack(members).sum(0)


class PseudoLabels(NamedTuple):
    """The targets of self-training: known labels, and the predicted probabilities of other nodes.

    The known labels weigh as much as all others together.
    """

    nodes: Tensor
    target: Tensor
    counts: Tensor

    @classmethod
    def of(cls, task: Task, probabilities: Tensor) -> PseudoLabels | None:
        """Combine training labels with predictions, [n, classes], for other nodes; None without others."""
        train = task.graph.train.cpu()
        others = (~train & ~unreachable(task.graph, train)).nonzero().squeeze(1)
        if not len(others):
            return None
        others = others[torch.from_numpy(Stream(0, "classify lesson").order(len(others))[:MAX_PSEUDO_LABELS])]
        known = train.nonzero().squeeze(1)
        labels = torch.nn.functional.one_hot(task.graph.labels.cpu()[known], task.classes)
        sharpened = probabilities.cpu()[others] ** PSEUDO_LABEL_POWER
        target = torch.cat([labels.to(sharpened), sharpened / sharpened.sum(1, keepdim=True)])
        counts = torch.cat([torch.full((len(nodes),), 1 / len(nodes)) for nodes in (known, others)])
        return cls(torch.cat([known, others]), target, counts)
