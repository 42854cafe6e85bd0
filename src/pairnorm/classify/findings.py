"""The evaluation of a fitted classifier: scores, baselines, prediction sets and a verdict, for the report."""

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
from pairnorm.classify.conformal import ALL, COMPLETE, INCOMPLETE, PredictionSets
from pairnorm.classify.diagnosis import DEEP_ENOUGH, DEPTHS, Smoothing, Suggestion, smoothing, suggest_depth
from pairnorm.classify.evaluation import (
    RANKING_METRICS,
    Scores,
    decide,
    mean_probabilities,
    metric_difference,
    tilted,
)
from pairnorm.classify.explanation import Explanation
from pairnorm.classify.holdout import FEW, ClassifierWarning, complete_split, without
from pairnorm.classify.search import search
from pairnorm.classify.search_limits import MAX_TRAINING_ROWS, PATIENCE
from pairnorm.classify.search_space import BASELINE_DROPOUTS, BASELINE_RATES, NETWORKS, baselines
from pairnorm.classify.target import Standardized, lacks_most, standardize, strata
from pairnorm.data import Graph, Split
from pairnorm.data.split import Stream

# Other ways to hold nodes out.
LATER, RANDOM = "coming later, with their edges", "on a random split"
UNMASKED = "with all features they have"
COMING_LATER = (
    "Those coming later were taken out of the graph with all their edges; a model that was learned without "
    "them labeled them when they came back."
)
# A smaller difference between two accuracies is not worth a sentence, nor is a smaller share of nodes.
MIN_DIFFERENCE = 0.02
MIN_UNMATCHED = 0.05
# How many of all nodes may come later at most.
LATEST = 0.2

STEPS = 3 + len(BASELINE_RATES) * len(BASELINE_DROPOUTS) + len(DEPTHS)


@dataclass(frozen=True, eq=False)
class Baseline:
    """A simpler method, tuned by validation on the same masked nodes.

    Args:
        name: of the method.
        best: its best candidate.
        num_candidates: number of candidates it was chosen from.
        predicted: int64 [n], the class it predicts for every node.
        probabilities: [n, classes].
    """

    name: str
    best: Candidate
    num_candidates: int
    predicted: NDArray[np.int64]
    probabilities: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Findings:
    """The evaluation of a classifier on the graph it was fitted on.

    Held-out nodes are masked like the nodes to predict; see ``Target``. Scores are those of the evaluation
    model, which learned from training and validation labels. Delivered labels are those of the classifier,
    which may have learned from all labels afterwards.

    Args:
        classifier: fitted.
        graph: with its split.
        probabilities: [n, classes], of the evaluation model.
        baselines: simpler methods, evaluated on the same masked nodes.
        checks: scores of nodes that are held out in other ways.
        smoothing: effect of propagation on the features; empty where they are too large to be dense.
        suggestion: the depth that diagnosis alone suggests.
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
        """Evaluate a classifier, and its baselines.

        Args:
            classifier: fitted on ``graph``, not loaded.
            graph: the graph.
            tick: is told of each of ``STEPS`` steps.
            compare: fit baselines too.
        """
        if len(getattr(classifier, "probabilities_", ())) != graph.num_nodes:
            problem = f"the classifier was not fitted on graph {graph.name!r}"
            raise PairNormError(problem, code="not-fitted", value=graph.name, hint="Call fit(graph).")
        task, graph = classifier.task_, classifier.graph_
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
        """int64 [n], the class that the evaluation model predicts for every node."""
        return self.classifier.decide(self.probabilities)

    @property
    def evaluation_graph(self) -> Graph:
        """The graph in which test nodes are masked like the target."""
        return self.classifier.task_.graph

    @property
    def delivered_probabilities(self) -> NDArray[np.float32]:
        """[n, classes], of the delivered model."""
        return self.classifier.probabilities_

    @cached_property
    def delivered(self) -> NDArray[np.int64]:
        """int64 [n], the class that the delivered model predicts for every node."""
        return self.classifier.decide(self.delivered_probabilities)

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

    def scores(
        self,
        predicted: NDArray[np.int64],
        evaluated: NDArray[np.bool_],
        probabilities: NDArray[np.float32] | None = None,
    ) -> Scores:
        """Evaluate predictions on some nodes.

        Args:
            predicted: int64 [n].
            evaluated: bool [n], the nodes.
            probabilities: [n, classes], where known; those of the evaluation model for its own predictions.
        """
        if probabilities is None and predicted is self.predicted:
            probabilities = self.probabilities
        labels = self.graph.labels.cpu().numpy()
        chosen = None if probabilities is None else probabilities[evaluated]
        return Scores.of(labels[evaluated], predicted[evaluated], self.graph.num_classes, chosen)

    def groups(self) -> dict[str, Scores]:
        """Evaluate the held-out nodes: all, those with and without features, and other ways to hold out."""
        missing = lacks_most(self.evaluation_graph)
        groups = {ALL: self.test}
        if (self.test & missing).any() and (self.test & ~missing).any():
            groups |= {COMPLETE: self.test & ~missing, INCOMPLETE: self.test & missing}
        return {
            name: self.scores(self.predicted, evaluated) for name, evaluated in groups.items()
        } | self.checks

    def comparison(self) -> dict[str, Scores]:
        """Evaluate the model and its baselines on the held-out nodes, the model first."""
        ours = {self.classifier.best_.name: self.scores(self.predicted, self.test)}
        return ours | {
            one.name: self.scores(one.predicted, self.test, one.probabilities) for one in self.baselines
        }

    def confident(self, least: float = 0.9) -> tuple[int, float]:
        """Return on how many held-out nodes the model is confident, and on what share of those it is right.

        Args:
            least: the confidence, the probability of the predicted class.
        """
        scores = self.scores(self.predicted, self.test & (self.probabilities.max(1) >= least))
        return scores.count, scores.accuracy

    def prediction_sets(self) -> list[PredictionSets]:
        """Return the prediction sets of every node by error rate; none without held-out nodes."""
        calibration = self.classifier.calibration_
        if calibration is None or not self.test.any():
            return []
        return calibration.prediction_sets(self.delivered_probabilities, lacks_most(self.graph))

    def explain(self, nodes: NDArray[np.int64]) -> Explanation:
        """Explain the delivered labels of some nodes."""
        return self.classifier.explain_nodes(self.graph, self.delivered, nodes, top=3)

    @cached_property
    def standardized(self) -> Standardized | None:
        """The accuracy after weighting held-out nodes by how far the target is from labels and features."""
        target, test = self.classifier.target_, self.test
        if target is None or not target.nodes.any() or not test.any():
            return None
        learnable = self.classifier.task_.learnable.graph
        labels = self.graph.labels.cpu().numpy()
        known = self.graph.labeled & ~target.nodes
        return standardize(
            (self.predicted == labels)[test],
            strata(learnable, learnable.train)[test],
            strata(self.graph, known)[target.nodes.cpu().numpy()],
        )

    def headline(self) -> str:
        """Return the verdict without its remarks on time and rare classes."""
        return self._verdict()

    def verdict(self) -> str:
        """Compare the model with its baselines in a few sentences, and say how far the figures hold."""
        return " ".join([self._verdict(), *self._target(), *self._time(), *self._rare()])

    def _target(self) -> Iterator[str]:
        """Yield how the masks changed the accuracy, and for which nodes no figure holds."""
        ours, target = self.classifier.held_out_, self.classifier.target_
        if ours is None or target is None or ours.count < FEW:
            return
        unmasked = self.checks.get(UNMASKED)
        if unmasked is not None and abs(unmasked.accuracy - ours.accuracy) >= MIN_DIFFERENCE:
            yield (
                f"Held-out nodes were masked like the {target.source}, "
                f"{float(target.missing.float().mean()):.0%} of whose features are missing; with all "
                f"features they have, {100 * unmasked.accuracy:.1f}% are right."
            )
        weighted = self.standardized
        if weighted is None:
            return
        if not isnan(weighted.accuracy) and abs(weighted.accuracy - ours.accuracy) >= MIN_DIFFERENCE:
            yield (
                f"Weighted by the distance of the {target.source} to labels and features, "
                f"{100 * weighted.accuracy:.1f}% are right (95% interval {100 * weighted.low:.1f} to "
                f"{100 * weighted.high:.1f})."
            )
        if weighted.unmatched >= MIN_UNMATCHED:
            yield (
                f"The figures are optimistic for {weighted.unmatched:.0%} of the {target.source}: too few "
                "held-out nodes are as far from labels and features."
            )

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
            bounds = {name: scores.interval_of(name) for name in RANKING_METRICS}
            intervals = {
                name: f"95% interval {low:.3f} to {high:.3f}" for name, (low, high) in bounds.items()
            }
            yield (
                f"It ranks nodes of class {self.graph.class_names[rarer]!r} "
                f"({counts[rarer] / counts.sum():.0%} of them) with an AUC of {scores.auc:.3f} "
                f"({intervals['auc']}) and an average precision of {scores.average_precision:.3f} "
                f"({intervals['average-precision']}); it predicts that class from a probability of "
                f"{self.classifier.threshold(rarer):.2f}."
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
        ours = self.scores(self.predicted, self.test)
        if not self.baselines:
            return (
                f"**Not compared with baselines.** {best.name} is right on {100 * ours.accuracy:.1f}% of "
                f"{ours.count:,} held-out nodes."
            )
        metric = "accuracy" if self.classifier.metric == "loss" else self.classifier.metric
        compared = self.comparison()
        values = {one.name: compared[one.name].value(metric) for one in self.baselines}
        baseline = max(self.baselines, key=lambda one: np.nan_to_num(values[one.name], nan=-1.0))
        name = _sentence(f"{best.name}," if "," in best.name else best.name)
        if ours.count < FEW:
            right = int((baseline.predicted[self.test] == labels).sum())
            nodes = f"{ours.right} of {ours.count} held-out {'node' if ours.count == 1 else 'nodes'}"
            return (
                f"**Too few nodes are held out for a verdict.** {name} is right on {nodes}, {baseline.name} "
                f"on {right}. Label more nodes."
            )
        gain, low, high = (
            100 * value
            for value in metric_difference(
                metric,
                labels,
                (self.predicted[self.test], self.probabilities[self.test]),
                (baseline.predicted[self.test], baseline.probabilities[self.test]),
            )
        )
        interval = f"(95% interval {low:+.1f} to {high:+.1f})"
        opening = f"{name} is right on {100 * ours.accuracy:.1f}% of the held-out nodes"
        reached = f"{100 * values[baseline.name]:.1f}%"
        if metric != "accuracy":
            opening = f"{name} reaches a{'n' if metric[0] in 'aeiou' else ''} {metric.replace('-', ' ')} of "
            opening += f"{ours.value(metric):.3f} on the held-out nodes"
            reached = f"{values[baseline.name]:.3f}"
        same = [one.name for one in self.baselines if self._predicts_the_same(one, metric)]
        if same:
            return f"**{_sentence(same[0])} does as well.** Its predictions are the same. {opening}."
        if low > 0:
            return (
                f"**It beats the baselines.** {opening}, {gain:.1f} points more than the best of them, "
                f"{baseline.name} {interval}."
            )
        if high < 0:
            return (
                f"**A baseline does better.** {opening}, {-gain:.1f} points less than {baseline.name} "
                f"{interval}. Use that, or label more nodes."
            )
        return (
            f"**No significant difference from a baseline.** {opening}; {baseline.name} reaches {reached}. "
            f"The difference is {gain:+.1f} points {interval}."
        )

    def _predicts_the_same(self, baseline: Baseline, metric: str) -> bool:
        same = np.array_equal(baseline.predicted[self.test], self.predicted[self.test])
        ranks = metric in RANKING_METRICS
        return same and (not ranks or np.array_equal(baseline.probabilities, self.probabilities))


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
    logits = choice.learn(task.learnable).logits(task.graph, task.features, task.device)
    probabilities = mean_probabilities(logits).cpu().numpy()
    tilt = classifier.tilt_
    if classifier.class_weight != "balanced" and len(choice.probabilities) == len(task.held_out_labels):
        tilt = decide(classifier.metric, task.held_out_labels, choice.probabilities, task.prior)[1]
    predicted = tilted(probabilities, classifier.prior_, tilt).argmax(1)
    return Baseline(family.name, choice.best, len(choice.results), predicted, probabilities)


def _checks(classifier: NodeClassifier) -> dict[str, Scores]:
    """Return the scores of nodes that are held out in other ways."""
    task, choice = classifier.task_, classifier.choice_
    found: dict[str, Scores] = {}
    graph = task.graph
    trained = any(one.candidate.model in NETWORKS for _, one in choice.parts)  # on all nodes, once
    if classifier.unmasked_ is not None:
        found[UNMASKED] = classifier.unmasked_
    if trained or not graph.test.any():
        return found
    if not (graph.encoder and graph.encoder.named("structure")):  # which is made of the edges
        test = graph.test.nonzero().squeeze(1)
        drawn = Stream(classifier.random_state, "classify later").order(len(test))
        later = torch.zeros_like(graph.test)
        later[test[drawn[: max(1, int(LATEST * graph.num_nodes))]]] = True
        before = without(task.learnable.graph, later)
        scaling = classifier.scaling_.fitted_to(before)
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
