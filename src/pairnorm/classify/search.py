"""Evaluate candidates within a time limit, and combine the best of them."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from pairnorm.classify.candidates.candidate import Candidate, CandidateResult, Family, Tick
from pairnorm.classify.candidates.ensemble import (
    Average,
    Smoothing,
    beats_prior,
    best_per_model,
    improves,
    select_members,
    select_smoothing,
)
from pairnorm.classify.candidates.prepared import has_many_nodes
from pairnorm.classify.candidates.task import KnownLabels, PseudoLabels, Task
from pairnorm.classify.evaluation import mean_probabilities
from pairnorm.classify.holdout import ClassifierWarning

# Models that can be fitted to pseudo-labels.
SELF_TRAINING_MODELS = ("SGC", "logistic regression")
# Shares of the time limit after which no candidate is evaluated, and no ensemble self-trained.
SEARCH_SHARE, SELF_TRAINING_SHARE = 0.5, 0.7


class Choice(NamedTuple):
    """What a search found.

    Args:
        results: all candidates.
        parts: how often each of the chosen was taken.
        best: the chosen one, or the average of them.
        probabilities: its probabilities for the nodes held out, fold after fold, [m, classes].
        smooths: what is done with the average, if anything; and, where it learns once more from what it says
            of the other nodes, with what comes of that.
        by_family: the candidates of every family.
    """

    results: Sequence[CandidateResult]
    parts: Sequence[tuple[int, CandidateResult]]
    best: Candidate
    probabilities: Tensor
    smooths: tuple[Smoothing | None, ...] = (None,)
    by_family: Sequence[tuple[Family, Sequence[CandidateResult]]] = ()

    def of(self, family: Family) -> Choice | None:
        """Return the best of one family as a choice of its own; None where it was not tried."""
        for other, tried in self.by_family:
            if other == family:
                best = max(tried, key=lambda one: one.rank)
                return Choice(tried, [(1, best)], best.candidate, best.probabilities)
        return None

    def learn(self, task: Task) -> Average:
        """Learn what was chosen from a task's training nodes."""
        parts = [(weight, one.candidate, one.fit(task)) for weight, one in self.parts]
        average = Average(parts, KnownLabels.of(task), task.prior, self.smooths[0])
        for smooth in self.smooths[1:]:
            average = replace(self.self_train(task, average), smooth=smooth)
        return average

    def self_train(self, task: Task, ensemble: Average) -> Average:
        """Learn the regressions once more, also from what an average says of the nodes without a label."""
        pseudo_labels = PseudoLabels.of(task, mean_probabilities(ensemble.logits(task.prepared)))
        augmented = replace(task, pseudo_labels=pseudo_labels)
        parts = [
            (weight, candidate, one.fit(augmented) if candidate.model in SELF_TRAINING_MODELS else fitted)
            for (weight, candidate, fitted), (_, one) in zip(ensemble.parts, self.parts, strict=True)
        ]
        return replace(ensemble, parts=parts, smooth=None)


def search(
    task: Task, families: Sequence[Family], tick: Tick = lambda done: None, *, simple: bool = True
) -> Choice:
    """Try every candidate and choose the best by the task's metric, or an average that is better.

    Args:
        task: the graph.
        families: what to try.
        tick: is told of every step done.
        simple: choose one, not an average; among several families, an average may be smoothed too, and learn
            from itself, or, where what is held out tells nothing, be that of one of every kind.
    """
    by_family = _evaluate(task, families, tick)
    tried = [one for _, some in by_family for one in some]
    first = max(range(len(tried)), key=lambda place: tried[place].rank)
    several = not simple and len(task.held_out_labels) > 0
    choice = _chosen(task, by_family, select_members(task, tried) if several else Counter([first]))
    distinguishable = not several or len(families) == 1 or beats_prior(task, choice.probabilities)
    if not distinguishable:
        choice = _chosen(task, by_family, best_per_model(tried))
    elif several and len(families) > 1:
        choice = _refined(task, choice)
    parts = choice.parts
    if len(parts) == 1 and choice.smooths == (None,):
        return choice
    ensemble = Candidate(
        "average",
        parts=tuple(one.candidate.name for _, one in parts),
        smoothed=any(choice.smooths),
        self_trained=len(choice.smooths) > 1,
        one_per_model=not distinguishable,
    )
    logits = choice.probabilities.log().unsqueeze(1)
    best = task.evaluate(ensemble, logits, parts[0][1].fit)
    return choice._replace(best=best.candidate)


def _evaluate(
    task: Task, families: Sequence[Family], tick: Tick
) -> list[tuple[Family, Sequence[CandidateResult]]]:
    """Evaluate candidates until there are no more, or time is up: one of each family first, then the others.

    Ctrl-C ends the search; the best candidates so far are delivered.
    """
    running = [(family, family.fit(task, tick)) for family in families]
    found: dict[int, list[CandidateResult]] = {place: [] for place in range(len(families))}
    try:
        for place, (_, results) in enumerate(running):
            found[place].extend(islice(results, 1))
        for place in sorted(found, key=lambda place: families[place].steps):
            while not task.has_used(SEARCH_SHARE) and (one := next(running[place][1], None)) is not None:
                found[place].append(one)
    except KeyboardInterrupt:
        if not any(found.values()):
            raise
        count = sum(len(results) for results in found.values())
        text = f"interrupted: the best of {count} candidates are used. Press Ctrl-C again to stop at once."
        warnings.warn(text, ClassifierWarning, stacklevel=4)
    return [(family, found[place]) for place, family in enumerate(families) if found[place]]


def _chosen(
    task: Task, by_family: Sequence[tuple[Family, Sequence[CandidateResult]]], counts: Counter[int]
) -> Choice:
    """Return the choice that takes each of those tried so often; the first of them is named."""
    tried = [one for _, some in by_family for one in some]
    parts = [(weight, tried[place]) for place, weight in counts.items()]
    probabilities = torch.stack([weight * one.probabilities for weight, one in parts]).sum(0) / counts.total()
    return Choice(tried, parts, parts[0][1].candidate, probabilities, by_family=by_family)


def _refined(task: Task, choice: Choice) -> Choice:
    """Smooth the average, then let it learn from itself once, where each gains on what is held out.

    Later lessons gained nothing more on Cora and Citeseer.
    """
    fitted = [choice.learn(fold) for fold in task.folds]
    smooth, probabilities = select_smoothing(task, fitted)
    fitted = [replace(one, smooth=smooth) for one in fitted]
    choice = choice._replace(smooths=(smooth,), probabilities=probabilities)
    models = {one.candidate.model for _, one in choice.parts}
    few = has_many_nodes(task.graph) or task.has_used(SELF_TRAINING_SHARE)
    if few or not models.intersection(SELF_TRAINING_MODELS):
        return choice
    retrained = [choice.self_train(fold, one) for fold, one in zip(task.folds, fitted, strict=True)]
    later, probabilities = select_smoothing(task, retrained)
    if not improves(task, probabilities, choice.probabilities):
        return choice
    return choice._replace(smooths=(smooth, later), probabilities=probabilities)
