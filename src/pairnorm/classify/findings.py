"""All that is known about a fitted classifier on the graph it was fitted on, gathered for the report."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from math import isnan

import numpy as np
from numpy.typing import NDArray

from pairnorm.classify.candidates import Task, is_large
from pairnorm.classify.classifier import NodeClassifier
from pairnorm.classify.diagnosis import DEPTHS, Smoothing, Suggestion, smoothing, suggest_depth
from pairnorm.classify.evaluation import Baseline, Scores, baselines, paired_difference
from pairnorm.classify.split import FEW, ClassifierWarning
from pairnorm.data import Graph
from pairnorm.train.engine import find_device

STEPS = 3 + len(DEPTHS)


@dataclass(frozen=True, eq=False)
class Findings:
    """A classifier, the graph with the split it was fitted on, and what was found.

    Args:
        classifier: fitted.
        graph: with its split.
        probabilities: [n, classes].
        baselines: simpler methods on the same split.
        smoothing: what propagation does to the features; nothing where they are too large to be dense.
        suggestion: the depth that diagnosis alone would have suggested.
    """

    classifier: NodeClassifier
    graph: Graph
    probabilities: NDArray[np.float32]
    baselines: list[Baseline]
    smoothing: list[Smoothing]
    suggestion: Suggestion

    @classmethod
    def of(
        cls, classifier: NodeClassifier, graph: Graph, tick: Callable[[str], None] = lambda done: None
    ) -> Findings:
        """Find out.

        Args:
            classifier: fitted on ``graph``.
            graph: the graph.
            tick: is told of each of ``STEPS`` steps.
        """
        graph = graph.with_split(classifier.split_)
        features = classifier.scaling_(graph)
        task = Task(graph, features, classifier.adjacency, find_device(classifier.device))
        if large := is_large(graph):
            warnings.warn(
                "the features are too large to be dense: logistic regression and what depth does to the "
                "features are left out.",
                ClassifierWarning,
                stacklevel=2,
            )
        return cls(
            classifier,
            graph,
            classifier.predict_proba(graph),
            list(baselines(task, classifier.random_state, tick)),
            [] if large else smoothing(graph, features, tick=tick),
            suggest_depth(graph),
        )

    @property
    def predicted(self) -> NDArray[np.int64]:
        """The number of the most probable class of every node."""
        return np.asarray(self.probabilities.argmax(1))

    @property
    def test(self) -> NDArray[np.bool_]:
        """The held-out nodes."""
        return self.graph.test.cpu().numpy()

    def scores(self, predicted: NDArray[np.int64], judged: NDArray[np.bool_]) -> Scores:
        """Judge predictions on some nodes.

        Args:
            predicted: for every node.
            judged: bool [n], the nodes.
        """
        labels = self.graph.labels.cpu().numpy()
        return Scores.of(labels[judged], predicted[judged], self.graph.num_classes)

    def groups(self) -> dict[str, Scores]:
        """Judge the held-out nodes: all, and where some lack features, those with and those without."""
        missing = self.graph.missing_vectors.cpu().numpy()
        groups = {"all held-out nodes": self.test}
        if (self.test & missing).any() and (self.test & ~missing).any():
            groups |= {"with features": self.test & ~missing, "without features": self.test & missing}
        return {name: self.scores(self.predicted, judged) for name, judged in groups.items()}

    def rivals(self) -> dict[str, Scores]:
        """Judge the model and the baselines on the held-out nodes, the model first."""
        named = {self.classifier.best_.name: self.predicted}
        named |= {baseline.name: baseline.predicted for baseline in self.baselines}
        return {name: self.scores(predicted, self.test) for name, predicted in named.items()}

    def sureness(self, least: float = 0.9) -> tuple[int, float]:
        """Return of how many held-out nodes the model is sure, and on what share of those it is right.

        Args:
            least: the probability that counts as sure.
        """
        sure = self.test & (self.probabilities.max(1) >= least)
        scores = self.scores(self.predicted, sure)
        return scores.count, scores.accuracy

    def verdict(self) -> str:
        """Say in a sentence or two whether the model earns its keep."""
        best = self.classifier.best_
        if not self.test.any():
            if isnan(best.validation_accuracy):
                return "There are no held-out nodes: nobody knows how good these predictions are."
            return (
                "There are no held-out nodes. Of the validation nodes "
                f"{100 * best.validation_accuracy:.1f}% are right, but the model was chosen by them: "
                "expect less."
            )
        labels = self.graph.labels.cpu().numpy()[self.test]
        right = {line.name: line.predicted[self.test] == labels for line in self.baselines}
        rival = max(right, key=lambda name: right[name].sum())
        ours = self.predicted[self.test] == labels
        gain, low, high = (100 * value for value in paired_difference(ours, right[rival]))
        interval = f"(95% interval {low:+.1f} to {high:+.1f})"
        opening = f"{best.name}, is right on {100 * ours.mean():.1f}% of the held-out nodes"
        if len(ours) < FEW:
            known = f"{ours.sum()} of {len(ours)} held-out {'node' if len(ours) == 1 else 'nodes'}"
            return (
                f"**Too little is held out to tell.** {best.name}, is right on {known}, {rival} on "
                f"{right[rival].sum()}. Label more nodes to know more."
            )
        if low > 0:
            return (
                f"**It earns its keep.** {opening}, {gain:.1f} points more than the best simpler method, "
                f"{rival} {interval}."
            )
        if high < 0:
            return (
                f"**A simpler method does better.** {opening}, {-gain:.1f} points less than {rival} "
                f"{interval}. Use that, or label more nodes."
            )
        return (
            f"**No clear gain.** {opening}; {rival}, a simpler method, on {100 * right[rival].mean():.1f}%. "
            f"The difference of {gain:+.1f} points {interval} may be chance: the simpler method may do."
        )
