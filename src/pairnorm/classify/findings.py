"""Evaluate a fitted classifier and its baselines on held-out nodes, and state the verdict in words."""

from __future__ import annotations

import time
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
from pairnorm.classify.calibration import (
    ALL,
    COMPLETE,
    INCOMPLETE,
    PredictionSets,
    mean_probabilities,
)
from pairnorm.classify.candidates.candidate import Candidate, Tick
from pairnorm.classify.candidates.prepared import PreparedGraph, has_many_nodes
from pairnorm.classify.classifier import NodeClassifier
from pairnorm.classify.evaluation import (
    RANKING_METRICS,
    Scores,
    Standardized,
    metric_difference,
    standardize,
)
from pairnorm.classify.explanation import (
    DEPTHS,
    MAX_DEPTH_MANY_NODES,
    Explanation,
    Smoothing,
    Suggestion,
    smoothing,
    suggest_depth,
)
from pairnorm.classify.holdout import (
    MIN_HELD_OUT,
    ClassifierWarning,
    complete_split,
    lacks_most,
    strata,
    without_nodes,
)
from pairnorm.classify.regression import MAX_TRAINING_ROWS, PATIENCE
from pairnorm.classify.scaling import is_large
from pairnorm.classify.search import SEARCH_SHARE, Baseline, evaluate_baseline
from pairnorm.classify.search_space import BASELINE_DROPOUTS, BASELINE_RATES, NETWORKS, baselines
from pairnorm.data import Graph, Split
from pairnorm.data.masks import Stream

# Other ways to hold nodes out.
LATER, RANDOM = "coming later, with their edges", "on a random split"
UNMASKED = "with all features they have"
COMING_LATER = (
    "Those coming later were taken out of the graph with all their edges; a model that was fitted without "
    "them labeled them when they came back."
)
# At most this share of all nodes comes later.
MAX_LATER_SHARE = 0.2
# A smaller difference between two accuracies is not worth a sentence, nor is a smaller share of nodes.
MIN_DIFFERENCE, MIN_UNMATCHED = 0.02, 0.05
# A larger loss against a baseline is stated even if it is not significant.
LARGE_LOSS = 0.05
# Share of the time limit that baselines take together at most.
BASELINE_SHARE = 0.25
# Calls of ``tick`` by ``Findings.of``.
STEPS = 3 + len(BASELINE_RATES) * len(BASELINE_DROPOUTS) + len(DEPTHS)


@dataclass(frozen=True, eq=False)
class Findings:
    """The evaluation of a classifier on the graph it was fitted on.

    Held-out nodes are masked like the nodes to predict; see ``Target``. Scores are those of the evaluation
    model, fitted to training and validation labels. Delivered labels are those of the classifier, which may
    have been refitted to all labels.

    Args:
        classifier: fitted.
        graph: with its split.
        probabilities: [n, classes], of the evaluation model.
        baselines: evaluated on the same masked nodes.
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
        """Evaluate a classifier, and its baselines."""
        if len(getattr(classifier, "probabilities_", ())) != graph.num_nodes:
            problem = f"the classifier was not fitted on graph {graph.name!r}"
            raise PairNormError(problem, code="not-fitted", value=graph.name, hint="Call fit(graph).")
        task, graph = classifier.task_, classifier.graph_
        if large := is_large(graph):
            warnings.warn(
                "the features are too large to be dense: logistic regression and the measures of smoothing "
                "are left out.",
                ClassifierWarning,
                stacklevel=2,
            )
        if has_many_nodes(graph):
            warnings.warn(
                f"there are {graph.num_nodes:,} nodes: SGC stopped after {PATIENCE} depths in a row without "
                f"a gain, without PN-SI; models were fitted to at most {MAX_TRAINING_ROWS:,} nodes; depths "
                f"are shown up to {MAX_DEPTH_MANY_NODES}; and there is no GCN among the baselines.",
                ClassifierWarning,
                stacklevel=2,
            )
        # The search took time from the limit. Baselines have a share of their own.
        seconds = BASELINE_SHARE * task.time_limit
        timed = replace(task, began=time.perf_counter(), time_limit=seconds / SEARCH_SHARE)
        families = baselines(graph, classifier.random_state, large, seconds) if compare else []
        others = [evaluate_baseline(classifier, timed, family, tick) for family in families]
        checks = dict(_other_scores(classifier))
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
    def selection_nodes(self) -> str:
        """Which nodes selected the model, in words."""
        if folds := len(self.classifier.task_.fold_masks):
            return f"labeled nodes that were held out in turn, in {folds} folds"
        return "validation nodes"

    @property
    def direction(self) -> str | None:
        """Whether directions of edges improved the model, in words; None where they were not used."""
        if self.graph.directed is None or not any(one.directed for one in self.classifier.search_):
            return None
        one_way = 2 * self.graph.num_edges - int(self.graph.directed.sum())
        chosen = any(one.directed for _, one in self.classifier.parts_)
        return (
            f"{one_way:,} of {self.graph.num_edges:,} edges go one way only. Boosted trees with separate "
            f"columns for in- and out-neighbors were evaluated, {'and' if chosen else 'but not'} selected; "
            "all other models take edges as undirected"
        )

    @cached_property
    def predicted(self) -> NDArray[np.int64]:
        """int64 [n], the class that the evaluation model predicts for every node."""
        return self.classifier.decide(self.probabilities)

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
        """The candidate with layers of the smallest validation loss; None without one."""
        networks = [candidate for candidate in self.classifier.search_ if candidate.depth]
        return min(networks, key=lambda one: one.validation_loss, default=None)

    @property
    def chosen(self) -> bool:
        """Whether held-out nodes selected the model, and not a rule."""
        return not isnan(self.classifier.best_.validation_accuracy)

    @property
    def test(self) -> NDArray[np.bool_]:
        """The held-out nodes."""
        return self.graph.test.cpu().numpy()

    @property
    def nodes_to_label(self) -> NDArray[np.bool_]:
        """bool [n]: the nodes without a label, or all where every node has one."""
        unknown = ~self.graph.labeled.cpu().numpy()
        return unknown if unknown.any() else np.ones_like(unknown)

    def _scores(
        self, predicted: NDArray[np.int64], probabilities: NDArray[np.float32], evaluated: NDArray[np.bool_]
    ) -> Scores:
        labels = self.graph.labels.cpu().numpy()[evaluated]
        return Scores.of(labels, predicted[evaluated], self.graph.num_classes, probabilities[evaluated])

    @cached_property
    def test_scores(self) -> Scores:
        """The scores of the evaluation model on the held-out nodes."""
        return self._scores(self.predicted, self.probabilities, self.test)

    def groups(self) -> dict[str, Scores]:
        """Evaluate the held-out nodes: all, those with and without features, and other ways to hold out."""
        missing = lacks_most(self.classifier.task_.graph)
        groups = {ALL: self.test}
        if (self.test & missing).any() and (self.test & ~missing).any():
            groups |= {COMPLETE: self.test & ~missing, INCOMPLETE: self.test & missing}
        scores = {name: self._scores(self.predicted, self.probabilities, own) for name, own in groups.items()}
        return scores | self.checks

    def comparison(self) -> dict[str, Scores]:
        """Evaluate the model and its baselines on the held-out nodes, the model first."""
        return {self.classifier.best_.name: self.test_scores} | {
            one.name: self._scores(one.predicted, one.probabilities, self.test) for one in self.baselines
        }

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
        all_folds = self.classifier.task_.with_all_folds.graph
        return standardize(
            (self.predicted == self.graph.labels.cpu().numpy())[test],
            strata(all_folds, all_folds.train)[test],
            strata(self.graph, self.graph.labeled & ~target.nodes)[target.nodes.cpu().numpy()],
        )


def _other_scores(classifier: NodeClassifier) -> Iterator[tuple[str, Scores]]:
    """Yield the scores of nodes that are held out in other ways."""
    task, choice, graph = classifier.task_, classifier.choice_, classifier.task_.graph
    if classifier.unmasked_ is not None:
        yield UNMASKED, classifier.unmasked_
    # Networks are trained on all nodes, once.
    if not graph.test.any() or any(one.candidate.model in NETWORKS for _, one in choice.parts):
        return

    def evaluate(logits: Tensor, evaluated: Tensor) -> Scores:
        probabilities = mean_probabilities(logits, classifier.temperature_).cpu().numpy()
        return classifier.evaluate(graph, evaluated.cpu().numpy(), probabilities)

    if not (graph.encoder and graph.encoder.named("structure")):  # structure is made of the edges
        test = graph.test.nonzero().squeeze(1)
        drawn = Stream(classifier.random_state, "classify later").order(len(test))
        later = torch.zeros_like(graph.test)
        later[test[drawn[: max(1, int(MAX_LATER_SHARE * graph.num_nodes))]]] = True
        before = without_nodes(task.with_all_folds.graph, later)
        scaling = classifier.scaling_.fitted_to(before)
        prepared = PreparedGraph(before, scaling(before), task.device)
        model = choice.fit(replace(task.with_all_folds, graph=before, prepared=prepared))
        after = PreparedGraph(graph, scaling(graph), task.device, task.prepared)
        yield LATER, evaluate(model.logits(after), later)
    if classifier.time is not None:
        empty = torch.zeros_like(graph.test)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ClassifierWarning)  # of a split that is not the user's
            split = complete_split(graph.with_split(Split(empty, empty, empty)), classifier.random_state)
        model = choice.fit(replace(task, graph=graph.with_split(split), fold_masks=(), hidden=None))
        yield RANDOM, evaluate(model.logits(task.prepared), split.test)


def verdict(findings: Findings) -> str:
    """Return the headline, and remarks on the target population, time and rare classes."""
    remarks = (*_target_remarks(findings), *_time_remarks(findings), *_rare_class_remarks(findings))
    return " ".join([headline(findings), *remarks])


def headline(findings: Findings) -> str:
    """Compare the model with its baselines, by the metric that selected it, in a few sentences."""
    best, test, ours = findings.classifier.best_, findings.test, findings.test_scores
    if not test.any() and not findings.chosen:
        return "There are no held-out nodes: the accuracy of these predictions is not known."
    if not test.any():
        return (
            f"There are no held-out nodes. Of the validation nodes {100 * best.validation_accuracy:.1f}% are "
            "right, but they selected the model: expect less."
        )
    if not findings.baselines:
        return (
            f"**Not compared with baselines.** {best.name} is right on {100 * ours.accuracy:.1f}% of "
            f"{ours.count:,} held-out nodes."
        )
    metric = "accuracy" if findings.classifier.metric == "loss" else findings.classifier.metric
    compared = findings.comparison()
    values = {one.name: compared[one.name].value(metric) for one in findings.baselines}
    baseline = max(findings.baselines, key=lambda one: np.nan_to_num(values[one.name], nan=-1.0))
    name = _capitalize(f"{best.name}," if "," in best.name else best.name)
    if ours.count < MIN_HELD_OUT:
        nodes = f"{ours.right} of {ours.count} held-out {'node' if ours.count == 1 else 'nodes'}"
        return (
            f"**Too few nodes are held out for a verdict.** {name} is right on {nodes}, {baseline.name} "
            f"on {compared[baseline.name].right}. Label more nodes."
        )
    labels = findings.graph.labels.cpu().numpy()[test]
    own, other = ((one.predicted[test], one.probabilities[test]) for one in (findings, baseline))
    gain, low, high = (100 * value for value in metric_difference(metric, labels, own, other))
    interval = f"(95% interval {low:+.1f} to {high:+.1f})"
    opening = f"{name} is right on {100 * ours.accuracy:.1f}% of the held-out nodes"
    reached = f"{100 * values[baseline.name]:.1f}%"
    if metric != "accuracy":
        article = "an" if metric[0] in "aeiou" else "a"
        opening = (
            f"{name} reaches {article} {metric.replace('-', ' ')} of {_value_in_words(findings, metric)}"
        )
        reached = f"{values[baseline.name]:.3f}"
    if same := [one.name for one in findings.baselines if _predicts_the_same(findings, one, metric)]:
        return f"**{_capitalize(same[0])} does as well.** Its predictions are the same. {opening}."
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
    if gain < -100 * LARGE_LOSS:
        return (
            f"**A baseline may do better.** {opening}, {-gain:.1f} points less than {baseline.name}, but too "
            f"few nodes are held out to be sure {interval}."
        )
    return (
        f"**No significant difference from a baseline.** {opening}; {baseline.name} reaches {reached}. "
        f"The difference is {gain:+.1f} points {interval}."
    )


def _value_in_words(findings: Findings, metric: str) -> str:
    """Return the value of a metric with its interval, cross-fitted where that was done."""
    scores: Scores = findings.classifier.cross_fitted_ or findings.test_scores
    low, high = scores.interval_of(metric)
    where = "on the held-out nodes"
    if findings.classifier.cross_fitted_ is not None:
        where = f"cross-fitted over {scores.count:,} labeled nodes"
    return f"{scores.value(metric):.3f} {where} (95% interval {low:.3f} to {high:.3f})"


def _predicts_the_same(findings: Findings, baseline: Baseline, metric: str) -> bool:
    same = np.array_equal(baseline.predicted[findings.test], findings.predicted[findings.test])
    if metric not in RANKING_METRICS:
        return same
    return same and np.array_equal(baseline.probabilities, findings.probabilities)


def _target_remarks(findings: Findings) -> Iterator[str]:
    """Yield how the masks changed the accuracy, and for which nodes no figure holds."""
    ours, target = findings.classifier.held_out_, findings.classifier.target_
    if ours is None or target is None or ours.count < MIN_HELD_OUT:
        return
    unmasked = findings.classifier.unmasked_
    if unmasked is not None and abs(unmasked.accuracy - ours.accuracy) >= MIN_DIFFERENCE:
        yield (
            f"Held-out nodes were masked like the {target.source}, "
            f"{float(target.missing.float().mean()):.0%} of whose features are missing; with all "
            f"features they have, {100 * unmasked.accuracy:.1f}% are right."
        )
    weighted = findings.standardized
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


def _time_remarks(findings: Findings) -> Iterator[str]:
    drawn = findings.checks.get(RANDOM)
    if drawn is not None and drawn.accuracy > findings.test_scores.interval[1]:
        yield f"A random split would be optimistic: on that, {100 * drawn.accuracy:.1f}% are right."


def _rare_class_remarks(findings: Findings) -> Iterator[str]:
    scores, names = findings.test_scores, findings.graph.class_names
    if scores.count < MIN_HELD_OUT:
        return
    counts, predictions = scores.confusion.sum(1), scores.confusion.sum(0)
    never = [repr(names[number]) for number in np.flatnonzero((counts > 0) & (predictions == 0))]
    if never:
        yield (
            f"It never predicts {', '.join(never[:5])}; selecting by macro F1 (`--metric macro-f1`) "
            "finds more of such classes."
        )
    if len(counts) == 2 and not isnan(scores.auc):
        rarer = int(counts[1] <= counts[0])
        yield (
            f"It ranks nodes of class {names[rarer]!r} ({counts[rarer] / counts.sum():.0%} of them) with an "
            f"AUC of {_value_in_words(findings, 'auc')} and an average precision of "
            f"{_value_in_words(findings, 'average-precision')}; it predicts that class from a probability of "
            f"{findings.classifier.threshold(rarer):.2f}."
        )


def _capitalize(text: str) -> str:
    """Capitalize the first letter only; ``str.capitalize`` makes Gcn of GCN."""
    return text[:1].upper() + text[1:]
