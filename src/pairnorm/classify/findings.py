"""All that is known about a fitted classifier on the graph it was fitted on, gathered for the report."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import isnan

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairnorm.base.errors import PairNormError
from pairnorm.classify.candidates.base import Candidate, Family, Tick, is_large
from pairnorm.classify.candidates.propagation import has_many_nodes
from pairnorm.classify.classifier import NodeClassifier
from pairnorm.classify.conformal import PredictionSets, prediction_sets
from pairnorm.classify.diagnosis import DEEP_ENOUGH, DEPTHS, Smoothing, Suggestion, smoothing, suggest_depth
from pairnorm.classify.evaluation import Scores, mean_probabilities, paired_difference
from pairnorm.classify.holdout import FEW, ClassifierWarning, complete_split, without, without_features
from pairnorm.classify.scaling import Scaling
from pairnorm.classify.search import BASELINE_DROPOUTS, BASELINE_RATES, NETWORKS, baselines, search
from pairnorm.classify.search_limits import MAX_TRAINING_ROWS, PATIENCE
from pairnorm.classify.target import lacks_most
from pairnorm.data import Graph, Split
from pairnorm.data.random import Stream

# Other ways to hold nodes out than to hide their labels.
LATER, RANDOM = "coming later, with their edges", "on a random split"
LIKE_TARGET = "without features as often as the nodes to predict"
COMING_LATER = (
    "Those coming later were taken out of the graph with all their edges; a model that was learned without "
    "them labeled them when they came back."
)
# How many of all nodes may come later at most.
LATEST = 0.2

STEPS = 3 + len(BASELINE_RATES) * len(BASELINE_DROPOUTS) + len(DEPTHS)


@dataclass(frozen=True, eq=False)
class Baseline:
    """A simpler method, tuned by validation, and the class that it predicts for every node, as a number."""

    name: str
    best: Candidate
    num_candidates: int
    predicted: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Findings:
    """A classifier, the graph with the split it was fitted on, and what was found.

    Args:
        classifier: fitted.
        graph: with its split.
        probabilities: [n, classes], from training labels alone, whatever was learned from all in the end.
        baselines: simpler methods on the same split.
        checks: how what was chosen does on nodes that are held out in other ways.
        smoothing: what propagation does to the features; nothing where they are too large to be dense.
        suggestion: the depth that diagnosis alone would have suggested.
    """

    classifier: NodeClassifier
    graph: Graph
    probabilities: NDArray[np.float32]
    baselines: list[Baseline]
    checks: dict[str, Scores]
    smoothing: list[Smoothing]
    suggestion: Suggestion

    @classmethod
    def of(
        cls,
        classifier: NodeClassifier,
        graph: Graph,
        tick: Tick = lambda done: None,
        compare: bool = True,
    ) -> Findings:
        """Find out; what ``fit`` computed is not computed again.

        Args:
            classifier: fitted on ``graph``, not loaded.
            graph: the graph.
            tick: is told of each of ``STEPS`` steps.
            compare: fit baselines too.
        """
        if len(getattr(classifier, "probabilities_", ())) != graph.num_nodes:
            problem = f"the classifier was not fitted on graph {graph.name!r}"
            raise PairNormError(problem, code="not-fitted", value=graph.name, hint="Call fit(graph).")
        task = classifier.task_
        graph = task.graph
        if large := is_large(graph):
            warnings.warn(
                "the features are too large to be dense: logistic regression and what depth does to the "
                "features are left out.",
                ClassifierWarning,
                stacklevel=2,
            )
        if has_many_nodes(graph):
            warnings.warn(
                f"there are {graph.num_nodes:,} nodes: SGC's walks ended where {PATIENCE} depths in a row "
                f"brought nothing, no SGC was tried with PN-SI, a model learned from {MAX_TRAINING_ROWS:,} "
                f"nodes at most, depths are shown up to {DEEP_ENOUGH}, and no GCN is compared with.",
                ClassifierWarning,
                stacklevel=2,
            )
        families = baselines(graph, classifier.random_state, large) if compare else []
        others = [_run(classifier, family, tick) for family in families]
        checks = _checks(classifier)
        tick("nodes held out in other ways")
        return cls(
            classifier,
            graph,
            classifier.evaluation_probabilities_,
            others,
            checks,
            [] if large else smoothing(graph, task.features, tick=tick),
            suggest_depth(graph),
        )

    @property
    def judges(self) -> str:
        """Who chose, in words."""
        if folds := len(self.classifier.task_.fold_masks):
            return f"labeled nodes that were held out in turn, in {folds} folds"
        return "validation nodes"

    @property
    def direction(self) -> str | None:
        """What directions were good for, in words; None where no model was tried that tells them apart."""
        told = [one for one in self.classifier.search_ if one.directed]
        if not told or self.graph.directed is None:
            return None
        one_way = 2 * self.graph.num_edges - int(self.graph.directed.sum())
        taken = any(one.directed for _, one in self.classifier.parts_)
        return (
            f"edges are directed: {one_way:,} of {self.graph.num_edges:,} go one way only. Boosted trees "
            f"that tell in- from out-neighbors were tried, and {'chosen' if taken else 'brought nothing'}"
        )

    @cached_property
    def predicted(self) -> NDArray[np.int64]:
        """The number of the class that is predicted of every node."""
        return self.classifier.decide(self.probabilities)

    @property
    def deep(self) -> Candidate | None:
        """The best network that was tried, by its validation loss; None without one."""
        networks = [candidate for candidate in self.classifier.search_ if candidate.depth]
        return min(networks, key=lambda one: one.validation_loss, default=None)

    @property
    def chosen(self) -> bool:
        """Whether the model was chosen by nodes held out for that, and not by rule."""
        return not isnan(self.classifier.best_.validation_accuracy)

    @property
    def test(self) -> NDArray[np.bool_]:
        """The held-out nodes."""
        return self.graph.test.cpu().numpy()

    @property
    def wanted(self) -> NDArray[np.bool_]:
        """The nodes whose labels are wanted: those without one, or all where there are none such."""
        unknown = ~self.graph.labeled.cpu().numpy()
        return unknown if unknown.any() else np.ones_like(unknown)

    def scores(self, predicted: NDArray[np.int64], evaluated: NDArray[np.bool_]) -> Scores:
        """Evaluate predictions on some nodes.

        Args:
            predicted: for every node.
            evaluated: bool [n], the nodes.
        """
        labels = self.graph.labels.cpu().numpy()
        probabilities = self.probabilities[evaluated] if predicted is self.predicted else None
        return Scores.of(labels[evaluated], predicted[evaluated], self.graph.num_classes, probabilities)

    def groups(self) -> dict[str, Scores]:
        """Evaluate the held-out nodes: all, those with and without features, and other ways to hold out."""
        missing = self.graph.missing_vectors.cpu().numpy()
        groups = {"all held-out nodes": self.test}
        if (self.test & missing).any() and (self.test & ~missing).any():
            groups |= {"with features": self.test & ~missing, "without features": self.test & missing}
        return {
            name: self.scores(self.predicted, evaluated) for name, evaluated in groups.items()
        } | self.checks

    def comparison(self) -> dict[str, Scores]:
        """Evaluate the model and its baselines on the held-out nodes, the model first."""
        named = {self.classifier.best_.name: self.predicted}
        named |= {baseline.name: baseline.predicted for baseline in self.baselines}
        return {name: self.scores(predicted, self.test) for name, predicted in named.items()}

    def confident(self, least: float = 0.9) -> tuple[int, float]:
        """Return on how many held-out nodes the model is confident, and on what share of those it is right.

        Args:
            least: the confidence, the probability of the predicted class.
        """
        scores = self.scores(self.predicted, self.test & (self.probabilities.max(1) >= least))
        return scores.count, scores.accuracy

    def prediction_sets(self) -> list[PredictionSets]:
        """Return the prediction sets of every node by error rate; none without held-out nodes."""
        if not self.test.any():
            return []
        labels, incomplete = self.graph.labels.cpu().numpy(), lacks_most(self.graph)
        held_out = self.probabilities[self.test], labels[self.test], incomplete[self.test]
        return prediction_sets(*held_out, self.classifier.probabilities_, incomplete)

    def verdict(self) -> str:
        """Say whether the model beats the baselines, and how it treats rare classes."""
        return " ".join([self._verdict(), *self._time(), *self._rare()])

    def _time(self) -> Iterator[str]:
        if (drawn := self.checks.get(RANDOM)) is not None:
            ours = self.scores(self.predicted, self.test)
            if drawn.accuracy > ours.interval[1]:
                yield f"A random split would flatter: on that, {100 * drawn.accuracy:.1f}% are right."

    def _rare(self) -> Iterator[str]:
        if int(self.test.sum()) < FEW:
            return
        scores = self.scores(self.predicted, self.test)
        counts = scores.confusion.sum(1)
        never = [
            repr(name)
            for name, count, said in zip(self.graph.class_names, counts, scores.confusion.sum(0), strict=True)
            if count and not said
        ]
        if never:
            yield (
                f"It never predicts {', '.join(never[:5])}; choosing by macro F1 (`--metric macro-f1`) "
                "finds more of such classes."
            )
        if len(counts) == 2 and not isnan(scores.auc):
            rarer = int(counts[1] <= counts[0])
            yield (
                f"It ranks nodes of class {self.graph.class_names[rarer]!r} "
                f"({counts[rarer] / counts.sum():.0%} of them) with an AUC of {scores.auc:.3f} and an "
                f"average precision of {scores.average_precision:.3f}; it predicts that class from a "
                f"probability of {self.classifier.threshold(rarer):.2f}."
            )

    def _verdict(self) -> str:
        best = self.classifier.best_
        if not self.test.any():
            if not self.chosen:
                return "There are no held-out nodes: nobody knows how good these predictions are."
            return (
                "There are no held-out nodes. Of the validation nodes "
                f"{100 * best.validation_accuracy:.1f}% are right, but the model was chosen by them: "
                "expect less."
            )
        labels = self.graph.labels.cpu().numpy()[self.test]
        if not self.baselines:
            accuracy = 100 * (self.predicted[self.test] == labels).mean()
            return (
                f"**Not compared with baselines.** {best.name} is right on {accuracy:.1f}% of "
                f"{len(labels):,} held-out nodes."
            )
        right = {baseline.name: baseline.predicted[self.test] == labels for baseline in self.baselines}
        baseline = max(right, key=lambda name: right[name].sum())
        predicted = self.predicted[self.test]
        ours = predicted == labels
        gain, low, high = (100 * value for value in paired_difference(ours, right[baseline]))
        interval = f"(95% interval {low:+.1f} to {high:+.1f})"
        name = _sentence(f"{best.name}," if "," in best.name else best.name)
        opening = f"{name} is right on {100 * ours.mean():.1f}% of the held-out nodes"
        if len(ours) < FEW:
            known = f"{ours.sum()} of {len(ours)} held-out {'node' if len(ours) == 1 else 'nodes'}"
            return (
                f"**Too little is held out to tell.** {name} is right on {known}, {baseline} on "
                f"{right[baseline].sum()}. Label more nodes to know more."
            )
        same = [one.name for one in self.baselines if np.array_equal(one.predicted[self.test], predicted)]
        if same:
            simple = _sentence(same[0])
            return f"**{simple} does as well.** It says the same of every held-out node. {opening}."
        if low > 0:
            return (
                f"**It beats the baselines.** {opening}, {gain:.1f} points more than the best baseline, "
                f"{baseline} {interval}."
            )
        if high < 0:
            return (
                f"**A simpler method does better.** {opening}, {-gain:.1f} points less than {baseline} "
                f"{interval}. Use that, or label more nodes."
            )
        return (
            f"**No clear gain.** {opening}; {baseline}, a simpler method, on "
            f"{100 * right[baseline].mean():.1f}%. The difference of {gain:+.1f} points {interval} may be "
            "chance: the simpler method may do."
        )


def _sentence(text: str) -> str:
    """Return a text as a sentence begins; unlike ``capitalize``, which makes Gcn of GCN."""
    return text[:1].upper() + text[1:]


def _run(classifier: NodeClassifier, family: Family, tick: Tick) -> Baseline:
    task = classifier.task_
    choice = classifier.choice_.of(family)
    if choice is None:
        choice = search(task, [family], tick)
    else:
        for _ in range(family.steps):
            tick(family.name)
    probabilities = mean_probabilities(
        choice.learn(task.learnable).logits(task.graph, task.features, task.device)
    )
    return Baseline(family.name, choice.best, len(choice.results), probabilities.argmax(1).cpu().numpy())


def _checks(classifier: NodeClassifier) -> dict[str, Scores]:
    task, choice, found = classifier.task_, classifier.choice_, {}
    graph = task.graph
    trained = any(one.candidate.model in NETWORKS for _, one in choice.parts)  # on all nodes, once
    if trained or not graph.test.any():
        return {}
    if (hidden := without_features(graph, graph.test, classifier.random_state)) is not None:
        evaluated = task.learnable.graph.replace(validation=graph.test, test=graph.test & False)
        (masked,) = replace(task.learnable, graph=evaluated, hidden=hidden).folds
        logits = choice.learn(task.learnable).logits(masked.graph, masked.features, task.device)
        found[LIKE_TARGET] = _evaluate(classifier, logits, graph.test)
    if not (graph.encoder and graph.encoder.named("structure")):  # which is made of the edges
        test = graph.test.nonzero().squeeze(1)
        drawn = Stream(classifier.random_state, "classify later").order(len(test))
        later = torch.zeros_like(graph.test)
        later[test[drawn[: max(1, int(LATEST * graph.num_nodes))]]] = True
        before = without(task.learnable.graph, later)
        scaling = Scaling.of(before, classifier.scaling_.kind)
        model = choice.learn(replace(task.learnable, graph=before, features=scaling(before)))
        found[LATER] = _evaluate(classifier, model.logits(graph, scaling(graph), task.device), later)
    if classifier.time is not None:
        nobody = torch.zeros_like(graph.test)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ClassifierWarning)  # of a split that is not the user's
            split = complete_split(graph.with_split(Split(nobody, nobody, nobody)), classifier.random_state)
        model = choice.learn(replace(task, graph=graph.with_split(split), fold_masks=(), hidden=None))
        found[RANDOM] = _evaluate(classifier, model.logits(graph, task.features, task.device), split.test)
    return found


def _evaluate(classifier: NodeClassifier, logits: Tensor, evaluated: Tensor) -> Scores:
    probabilities = mean_probabilities(logits, classifier.temperature_).cpu().numpy()
    return classifier._scores(classifier.task_.graph, evaluated.cpu().numpy(), probabilities)
