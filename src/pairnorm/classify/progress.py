"""The progress of a fit: its steps, the best score so far, and the time that is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import isinf, nan
from typing import NamedTuple

from pairnorm.classify.candidates.task import SEARCH_SHARE, CandidateResult, Family, Task

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
OnResult = Callable[[CandidateResult, float], None]


class ProgressTracker:
    """Counts the steps of a fit, and estimates the time that is left.

    Args:
        task: with the start of the search and its time limit.
        families: of the search.
        folds: number of further searches, which cross-fitting takes; together they take as long as the first.
        refit: whether the model is fitted to all labels in the end.
        notify: called after every step.
    """

    def __init__(
        self, task: Task, families: Sequence[Family], folds: int, refit: bool, notify: Notify | None
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
