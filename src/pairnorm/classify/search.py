"""Evaluate candidates within a time limit, on nodes masked like the target, and combine the best of them."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from math import inf, isinf, nan
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from sklearn.base import clone
from torch import Tensor

from pairnorm.classify.candidates.boosted_trees import BoostedTrees
from pairnorm.classify.candidates.ensemble import (
    Average,
    PseudoLabels,
    Smoothing,
    beats_prior,
    best_per_model,
    improves,
    select_members,
    select_smoothing,
)
from pairnorm.classify.candidates.networks import GNNFamily
from pairnorm.classify.candidates.residual import ResidualGCNs
from pairnorm.classify.candidates.task import (
    CHEAP_SHARE,
    SEARCH_SHARE,
    Candidate,
    CandidateResult,
    Family,
    Fitted,
    KnownLabels,
    Task,
    Tick,
)
from pairnorm.classify.evaluation import Scores, comparable_scores, mean_probabilities
from pairnorm.classify.holdout import ClassifierWarning
from pairnorm.classify.scaling import MAX_STATE_SIZE, has_many_nodes
from pairnorm.classify.search_space import resolve_time_limit
from pairnorm.data import Graph, Split

if TYPE_CHECKING:
    from pairnorm.classify.classifier import NodeClassifier

# Models that can be fitted to pseudo-labels.
SELF_TRAINING_MODELS = ("SGC", "logistic regression")
# Until they are measured, later steps of a family are expected to take at least the first share of its first
# step, and about the second. Residual GCNs train for a few epochs first, and later longer by a factor.
FIRST_STEP_SHARE, USUAL_STEP_SHARE, RESIDUAL_STEP_FACTOR = 0.25, 0.5, 8
# A step of a family without a candidate yet is expected to take at least the first number of seconds, and the
# second for each feature of each node and fold, up to the size of the states of wide graphs.
MIN_STEP_SECONDS, SECONDS_PER_FEATURE = 0.05, 5e-8
# On a graph of at most this many nodes, residual GCNs take their first step at once: it takes a second.
MAX_QUICK_NODES = 5000
# Residual GCNs whose first candidate has a larger loss than this factor of the best are not trained further;
# below the second factor, they are expected to be.
MAX_LOSS_RATIO, SURE_LOSS_RATIO = 1.15, 1.07
# Share of the time limit within which the ensemble is fitted twice more: for evaluation, and to all labels.
FIT_SHARE, FINAL_FITS = 0.75, 2
# Fitting to pseudo-labels takes longer than to labels, by this factor.
SELF_TRAINING_FACTOR = 4

FINAL_STEPS = ("smoothed", "self-trained", "averaged", "evaluated", "fitted to all labels")
# After this time without a finished step, an evaluated candidate counts as news.
SECONDS_PER_UPDATE = 1.0
# Steps after the search are expected to take this time for each second of the search.
FINAL_RATIO = 0.25


class FitProgress(NamedTuple):
    """The progress of a fit.

    Args:
        done: finished steps.
        total: all steps; some are left out when time is up.
        step: the name of the last one.
        best_score: of the best candidate so far on held-out nodes, by the metric; for the loss, its accuracy.
            NaN before the first one.
        seconds_left: estimated.
    """

    done: int
    total: int
    step: str
    best_score: float
    seconds_left: float


Notify = Callable[[FitProgress], None]


class ProgressTracker:
    """Counts the steps of a fit, and estimates the time that is left.

    ``folds`` is the number of further searches, which cross-fitting takes; together they take as long as the
    first.
    """

    def __init__(
        self,
        task: Task,
        families: Sequence[Family],
        folds: int,
        refit: bool,
        notify: Notify | None,
    ) -> None:
        self.task, self.folds, self.notify = task, folds, notify
        self.steps = sum(family.steps for family in families)
        self.final_steps = FINAL_STEPS if refit else FINAL_STEPS[:-1]
        self.total = self.steps + len(self.final_steps) + folds
        self.done = 0
        self.best: CandidateResult | None = None
        self.search_seconds = SEARCH_SHARE * task.time_limit
        self.notified = task.started

    def record(self, result: CandidateResult, seconds_left: float) -> None:
        """Record an evaluated candidate, and the expected remaining seconds of the search."""
        self.search_seconds = time.perf_counter() - self.task.started + seconds_left
        if self.best is None or result.rank > self.best.rank:
            self.best = result
        if time.perf_counter() - self.notified > SECONDS_PER_UPDATE:
            self._notify(result.candidate.name)

    def tick(self, step: str) -> None:
        """Count a step; the last ones may be left out."""
        self.done += 1
        if step in self.final_steps:
            self.search_seconds = min(time.perf_counter() - self.task.started, self.search_seconds)
            self.done = self.steps + self.final_steps.index(step) + 1
        self._notify(step)

    def _notify(self, step: str) -> None:
        """Report the progress, with the time left of the search, of the last steps and of cross-fitting."""
        if self.notify is None:
            return
        score, search, self.notified = nan, self.search_seconds, time.perf_counter()
        if self.best is not None:
            by_accuracy = self.task.metric in ("loss", "accuracy")
            score = self.best.candidate.validation_accuracy if by_accuracy else self.best.score
        steps_left = self.total - max(self.done, self.steps)
        final_share = max(0, steps_left - self.folds) / len(self.final_steps)
        fold_share = min(steps_left, self.folds) / max(1, self.folds)
        left = max(0.0, self.task.started + search - self.notified)
        left += (final_share * FINAL_RATIO + fold_share) * search
        self.notify(FitProgress(self.done, self.total, step, score, nan if isinf(left) else left))


class Choice(NamedTuple):
    """The result of a search: all candidates, and the members of the ensemble with their weights.

    ``probabilities`` are those of the ensemble for the held-out nodes. ``smooths`` has its smoothing, if any;
    where it is self-trained, also that of the second one. ``ensemble`` is None for a single candidate. The
    first steps of the families, which prepare a graph for all others, took ``setup_seconds``.
    """

    results: Sequence[CandidateResult]
    parts: Sequence[tuple[int, CandidateResult]]
    probabilities: Tensor
    smooths: tuple[Smoothing | None, ...] = (None,)
    by_family: Sequence[tuple[Family, Sequence[CandidateResult]]] = ()
    ensemble: Candidate | None = None
    setup_seconds: float = 0.0

    @property
    def best(self) -> Candidate:
        """The selected candidate, or the ensemble."""
        return self.ensemble or self.parts[0][1].candidate

    def of(self, family: Family) -> Choice | None:
        """Return the best candidate of one family as a choice of its own; None if it was not evaluated."""
        for other, results in self.by_family:
            if other == family:
                best = max(results, key=lambda result: result.rank)
                return Choice(results, [(1, best)], best.probabilities)
        return None

    def fit(self, task: Task, fitted: Sequence[Fitted] = ()) -> Average:
        """Fit the ensemble to a task's training nodes, or combine members that are fitted already."""
        fitted = fitted or [result.fit(task) for _, result in self.parts]
        members = zip(self.parts, fitted, strict=True)
        parts = [(weight, result.candidate, model) for (weight, result), model in members]
        average = Average(parts, KnownLabels.of(task), task.prior, self.smooths[0])
        for smooth in self.smooths[1:]:
            average = replace(self.self_train(task, average), smooth=smooth)
        return average.with_fallback(task.prepared)

    def self_train(self, task: Task, ensemble: Average) -> Average:
        """Fit the regressions again, also to the ensemble's predictions for nodes without a label."""
        pseudo_labels = PseudoLabels.of(task, mean_probabilities(ensemble.logits(task.prepared)))
        augmented = replace(task, pseudo_labels=pseudo_labels)
        parts = [
            (weight, candidate, result.fit(augmented) if candidate.model in SELF_TRAINING_MODELS else fitted)
            for (weight, candidate, fitted), (_, result) in zip(ensemble.parts, self.parts, strict=True)
        ]
        return replace(ensemble, parts=parts, smooth=None)


def search(
    task: Task,
    families: Sequence[Family],
    tick: Tick = lambda done: None,
    *,
    simple: bool = True,
    on_result: Callable[[CandidateResult, float], None] = lambda result, seconds_left: None,
) -> Choice:
    """Evaluate candidates, and select the best by the task's metric, or an ensemble that is better.

    Among several families, an ensemble may be smoothed and self-trained. Where held-out nodes do not prefer
    any candidate, it has the best of every model. ``on_result`` is called with every evaluated candidate, and
    the seconds that the search is expected to take from then on.
    """
    evaluation = _Evaluation(task, families, tick, on_result)
    evaluation.run()
    results = list(chain(*evaluation.results))
    if simple or not len(task.held_out_labels):
        best = max(range(len(results)), key=lambda index: results[index].rank)
        return evaluation.combine(Counter([best]))
    choice, one_of_each = evaluation.combine(select_members(task, results)), False
    if len(families) > 1:
        one_of_each = not beats_prior(task, choice.probabilities)
        if one_of_each:
            choice = evaluation.combine(best_per_model(results))
        else:
            choice = _refine(task, choice, tick)
    if len(choice.parts) == 1 and choice.smooths == (None,):
        return choice
    ensemble = Candidate(
        "average",
        parts=tuple(result.candidate.name for _, result in choice.parts),
        smoothed=any(choice.smooths),
        self_trained=len(choice.smooths) > 1,
        one_per_model=one_of_each,
    )
    logits = choice.probabilities.log().unsqueeze(1)
    return choice._replace(ensemble=task.evaluate(ensemble, logits, choice.parts[0][1].fit).candidate)


class _Evaluation:
    """Evaluates candidates until there are no more, or time is up.

    The next candidate is of the family that has used the least time, so that a short search is not spent on
    one of them. A family ends where a step as long as its longest one would take too long. The first step is
    not counted in full, because it prepares what later ones share; before it, the longest step of any family
    is expected. Networks start when a part of the time has passed or the others are finished, except for the
    first step of residual GCNs and hop networks on a small graph; the better of the two goes on first.
    """

    def __init__(
        self, task: Task, families: Sequence[Family], tick: Tick,
        on_result: Callable[[CandidateResult, float], None],
    ) -> None:  # fmt: skip
        self.task, self.families, self.tick, self.on_result = task, families, tick, on_result
        self.ticks = [0] * len(families)
        self.results: list[list[CandidateResult]] = [[] for _ in families]
        self.seconds: list[list[float]] = [[] for _ in families]
        self.running = [family.fit(task, partial(self._count, n)) for n, family in enumerate(families)]
        self.waiting = [n for n in range(len(families)) if self._waits(n)]
        self.pending = [n for n in range(len(families)) if n not in self.waiting]
        size = task.graph.num_nodes * task.graph.num_features * len(task.folds)
        self.usual_seconds = MIN_STEP_SECONDS + SECONDS_PER_FEATURE * min(size, MAX_STATE_SIZE)

    def run(self) -> None:
        """Evaluate. Ctrl-C ends it, if there are candidates."""
        _import_libraries(self.families)
        try:
            while self.pending or self.waiting:
                if self.waiting and (not self.pending or not self.task.allows(CHEAP_SHARE)):
                    self.waiting.sort(key=self._priority)
                    self.pending.append(self.waiting.pop(0))
                number = min(self.pending, key=lambda number: sum(self.seconds[number]))
                if not self._competes(number, MAX_LOSS_RATIO) or not self._advance(number):
                    self.pending.remove(number)
                    for _ in range(self.families[number].steps - self.ticks[number]):
                        self.tick(f"{self.families[number].name}: finished")
                elif self._waits(number) and len(self.results[number]) == 1:
                    self.pending.remove(number)
                    self.waiting.append(number)
        except KeyboardInterrupt:
            if not any(self.results):
                raise
            text = f"interrupted: the best of {sum(map(len, self.results))} candidates are used. "
            text += "Press Ctrl-C again to stop at once."
            warnings.warn(text, ClassifierWarning, stacklevel=4)

    def combine(self, weights: Counter[int]) -> Choice:
        """Return the weighted mean of results, by their indices, as a choice."""
        results = list(chain(*self.results))
        family_of = [number for number, done in enumerate(self.results) for _ in done]
        setup = sum(self.seconds[number][0] for number in {family_of[index] for index in weights})
        parts = [(weight, results[index]) for index, weight in weights.items()]
        by_family = [pair for pair in zip(self.families, self.results, strict=True) if pair[1]]
        return Choice(results, parts, _mean(parts), by_family=by_family, setup_seconds=setup)

    def _count(self, number: int, step: str) -> None:
        """Count a step of a family, which may take more steps than announced."""
        self.ticks[number] += 1
        if self.ticks[number] <= self.families[number].steps:
            self.tick(step)

    def _advance(self, number: int) -> bool:
        """Evaluate the next candidate of a family; return whether there was one, in time."""
        durations = self.seconds[number]
        usual = [FIRST_STEP_SHARE * durations[0], *durations[1:]] if durations else chain(*self.seconds)
        expected = max(usual, default=0.0)
        if any(self.results) and not self.task.allows(SEARCH_SHARE, expected):
            return False
        start = time.perf_counter()
        result = next(self.running[number], None)
        durations.append(time.perf_counter() - start)
        if result is not None:
            self.results[number].append(result)
            self.on_result(result, self._seconds_left())
        return result is not None

    def _waits(self, number: int) -> bool:
        """Return whether the next step of a family is one of those that start late."""
        if isinstance(self.families[number], ResidualGCNs):
            return bool(self.results[number]) or self.task.graph.num_nodes > MAX_QUICK_NODES
        return isinstance(self.families[number], GNNFamily)

    def _priority(self, number: int) -> tuple[bool, float]:
        """Return a sort key of waiting families: a few epochs of each first, then the lowest loss."""
        losses = (result.validation_loss for result in self.results[number])
        return isinstance(self.families[number], GNNFamily), min(losses, default=0.0)

    def _competes(self, number: int, max_ratio: float) -> bool:
        """Return whether the best loss of residual GCNs is near the best of all; true for other families."""
        done = self.results[number]
        if not done or not isinstance(self.families[number], ResidualGCNs):
            return True
        lowest = min(result.validation_loss for result in chain(*self.results))
        return min(result.validation_loss for result in done) <= max_ratio * lowest

    def _seconds_left(self) -> float:
        """Estimate the time of all steps that are left, within the time limit.

        Networks that have not started are expected to take all of it, and residual GCNs to go on if their
        loss is so near the best that better candidates of other families will hardly end them.
        """
        left, per_step = 0.0, {}
        for number, durations in enumerate(self.seconds):
            if self.results[number]:
                later = USUAL_STEP_SHARE * durations[0] + sum(durations[1:])
                per_step[number] = later / (self.ticks[number] + 1)
        for number in {*self.pending, *self.waiting}:
            family, results = self.families[number], self.results[number]
            expected = per_step.get(number, max(self.usual_seconds, *per_step.values()))
            if not results and self._waits(number):
                expected = inf
            elif results and isinstance(family, ResidualGCNs):
                mean = sum(self.seconds[number]) / len(results)
                expected = RESIDUAL_STEP_FACTOR * mean if self._competes(number, SURE_LOSS_RATIO) else 0.0
            if steps := max(0, family.steps - self.ticks[number] - bool(results)):
                left += steps * expected
        elapsed = time.perf_counter() - self.task.started
        return min(left, max(0.0, SEARCH_SHARE * self.task.time_limit - elapsed))


def _import_libraries(families: Sequence[Family]) -> None:
    """Import what families need: after a Ctrl-C within an import, the process could not import it again."""
    if any(isinstance(family, BoostedTrees) for family in families):
        import lightgbm  # noqa: F401
    if any(isinstance(family, GNNFamily | ResidualGCNs) for family in families):
        torch.optim.Adam([torch.empty(1)])  # the first optimizer imports the compiler of torch


def _mean(parts: Sequence[tuple[int, CandidateResult]]) -> Tensor:
    """Return the weighted mean of the probabilities of held-out nodes."""
    total = torch.stack([weight * result.probabilities for weight, result in parts]).sum(0)
    return total / sum(weight for weight, _ in parts)


def _refine(task: Task, choice: Choice, tick: Tick) -> Choice:
    """Smooth the ensemble, then self-train it once, where each gains on held-out nodes and time allows it.

    The members are fitted in the first fold in the order of their selection, the best candidate first. How
    long that takes predicts the time of all later steps; members that time does not allow to fit to all
    labels are left out.
    Further rounds of self-training gained nothing on Cora and Citeseer.
    """
    start, (first, *others) = time.perf_counter(), task.folds
    members: list[Fitted] = []

    def allows(fits: float, folds: int = 1) -> bool:
        """Return whether there is time for a number of fits, given the time that the first folds took."""
        return task.allows(FIT_SHARE, fits * (time.perf_counter() - start) / folds)

    parts = []
    for weight, result in choice.parts:
        if members and not allows(FINAL_FITS + 1):
            break
        parts.append((weight, result))
        members.append(result.fit(first))
    choice = choice._replace(parts=parts, probabilities=_mean(parts))
    if not allows(len(others) + FINAL_FITS):
        return choice
    fitted = [choice.fit(first, members), *(choice.fit(fold) for fold in others)]
    smooth, probabilities = select_smoothing(task, fitted)
    fitted = [replace(ensemble, smooth=smooth) for ensemble in fitted]
    choice = choice._replace(smooths=(smooth,), probabilities=probabilities)
    tick("smoothed")
    models = {result.candidate.model for _, result in choice.parts}
    in_time = allows(SELF_TRAINING_FACTOR * (len(task.folds) + FINAL_FITS), len(task.folds))
    if has_many_nodes(task.graph) or not in_time or not models.intersection(SELF_TRAINING_MODELS):
        return choice
    retrained = [choice.self_train(fold, ensemble) for fold, ensemble in zip(task.folds, fitted, strict=True)]
    later, probabilities = select_smoothing(task, retrained)
    tick("self-trained")
    if not improves(task, probabilities, choice.probabilities):
        return choice
    return choice._replace(smooths=(smooth, later), probabilities=probabilities)


def cross_fit(classifier: NodeClassifier, graph: Graph, folds: Sequence[Tensor], tick: Tick) -> Scores | None:
    """Evaluate every labeled node by a model that was neither trained nor selected on it.

    The test nodes have such a model. Each fold of the others is held out as they were, from a search of its
    own within a share of the time limit. Returns None after Ctrl-C.
    """
    limit = resolve_time_limit(classifier.time_limit, graph.num_nodes)
    models = sorted({candidate.model for candidate in classifier.search_})
    other = clone(classifier).set_params(refit=False, model=models)
    other.set_params(time_limit=0 if isinf(limit) else limit / len(folds))
    empty = torch.zeros_like(graph.test)
    labels, predicted, scores = [], [], []
    for number, held_out in enumerate([graph.test, *folds]):
        fitted = classifier
        if number > 0:
            fitted = other
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ClassifierWarning)  # they are about the first split
                try:
                    fitted.fit(graph.with_split(Split(empty, empty, held_out)))
                except KeyboardInterrupt:
                    return None
            tick(f"cross-fitted, fold {number} of {len(folds)}")
        mask = held_out.cpu().numpy()
        labels.append(graph.labels.cpu().numpy()[mask])
        scores.append(comparable_scores(fitted.evaluation_probabilities_)[mask])
        predicted.append(fitted.decide(fitted.evaluation_probabilities_[mask]))
    true, decided, ranked = (np.concatenate(parts) for parts in (labels, predicted, scores))
    return Scores.of(true, decided, graph.num_classes, ranked, cross_fitted=True)
