"""Evaluate a fitted classifier and its baselines on held-out nodes, and state the verdict in words."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import isnan
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from pairnorm.base.csr import sparse_csr
from pairnorm.base.errors import PairNormError
from pairnorm.classify.candidates.networks import GNNFamily
from pairnorm.classify.candidates.task import SEARCH_SHARE, Candidate, Family, Task, Tick
from pairnorm.classify.classifier import NodeClassifier
from pairnorm.classify.evaluation import (
    RANKING_METRICS,
    Scores,
    Standardized,
    apply_tilt,
    fit_tilt,
    mean_probabilities,
    metric_difference,
    metric_name,
    standardize,
)
from pairnorm.classify.explanation import (
    DEPTHS,
    MAX_DEPTH_MANY_NODES,
    Explanation,
    SmoothingMeasures,
    smoothing,
)
from pairnorm.classify.holdout import MIN_HELD_OUT, ClassifierWarning, incomplete_nodes, remove_nodes, strata
from pairnorm.classify.predictions import ALL, GROUP_NAMES, PredictionSets
from pairnorm.classify.regression import MAX_TRAINING_ROWS, PATIENCE
from pairnorm.classify.scaling import PreparedGraph, has_many_nodes, is_large
from pairnorm.classify.search import search
from pairnorm.classify.search_space import BASELINE_DROPOUTS, BASELINE_RATES, NETWORKS, baselines
from pairnorm.data import Graph
from pairnorm.data.masks import Stream

# Other ways to hold nodes out.
LATER, UNMASKED = "coming later, with edges", "with all features they have"
CROSS_FITTED = "all labeled nodes, cross-fitted"
# At most this share of all nodes comes later.
MAX_LATER_SHARE = 0.2
# A smaller difference between two accuracies is not worth a sentence, nor is a smaller share of nodes.
MIN_DIFFERENCE, MIN_UNMATCHED = 0.02, 0.05
# A larger loss against a baseline, in points, is stated even if it is not significant.
LARGE_LOSS = 5.0
# Shares of the time limit, after the fit, that baselines take together at most; after which the model is not
# fitted without the nodes that come later; and after which smoothing is measured at no deeper depth.
BASELINE_SHARE, LATER_SHARE, SMOOTHING_SHARE = 0.2, 0.4, 0.5
# Calls of ``tick`` by ``Findings.of``.
STEPS = 3 + len(BASELINE_RATES) * len(BASELINE_DROPOUTS) + len(DEPTHS)

Booleans = NDArray[np.bool_]
Integers = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Baseline:
    """A baseline, tuned by validation on the same masked nodes: its best candidate, and its predictions."""

    name: str
    best: Candidate
    num_candidates: int
    predicted: NDArray[np.int64]
    probabilities: NDArray[np.float32]


def evaluate_baseline(classifier: NodeClassifier, task: Task, family: Family, tick: Tick) -> Baseline:
    """Select the settings of a baseline on the same nodes as the model's, and predict all nodes."""
    name = family.name
    encoder = task.graph.encoder
    if isinstance(family, GNNFamily) and encoder is not None and encoder.named("structure"):
        task, name = _with_one_hot_ids(task), f"{name}, one-hot ids"
    choice = classifier.choice_.of(family)
    if choice is None:
        choice = search(task, [family], tick)
    else:
        for _ in range(family.steps):
            tick(family.name)
    probabilities = mean_probabilities(choice.fit(task.with_all_folds).logits(task.prepared)).cpu().numpy()
    tilt = classifier.tilt_
    if classifier.class_weight != "balanced" and len(choice.probabilities) == len(task.held_out_labels):
        tilt = fit_tilt(classifier.metric, task.held_out_labels, choice.probabilities, task.prior)[1]
    predicted = apply_tilt(probabilities, classifier.prior_, tilt).argmax(1)
    return Baseline(name, choice.best, len(choice.results), predicted, probabilities)


def _with_one_hot_ids(task: Task) -> Task:
    """Return the task with a column per node as features, for a GCN on a graph without features."""
    count = task.graph.num_nodes
    rows = torch.arange(count + 1)
    ids = sparse_csr(rows, rows[:-1], torch.ones(count), (count, count)).to(task.features.device)
    graph = task.graph.replace(features=ids, missing=torch.zeros_like(task.graph.labeled), feature_names=None)
    return replace(task, graph=graph, prepared=PreparedGraph(graph, ids, task.device), feature_mask=None)


class Gain(NamedTuple):
    """The values of a metric of the model and its best baseline on the held-out nodes, and their difference.

    The difference comes with its 95% interval, in points.
    """

    baseline: Baseline
    ours: float
    theirs: float
    difference: tuple[float, float, float]


@dataclass(frozen=True, eq=False)
class Findings:
    """The evaluation of a classifier on the graph it was fitted on.

    Held-out nodes are masked like the nodes to predict; see ``Target``. Scores are those of the evaluation
    model, fitted to training and validation labels. Delivered labels are those of the classifier, which may
    have been refitted to all labels. ``checks`` are the scores of nodes that are held out in other ways.
    ``smoothing`` is empty where features are too large to be dense.
    """

    classifier: NodeClassifier
    graph: Graph
    probabilities: Floats
    baselines: list[Baseline]
    checks: dict[str, Scores]
    smoothing: list[SmoothingMeasures]

    @classmethod
    def of(
        cls, classifier: NodeClassifier, graph: Graph, tick: Tick = lambda done: None, compare: bool = True
    ) -> Findings:
        """Evaluate a fitted classifier and its baselines on the held-out nodes."""
        if len(getattr(classifier, "probabilities_", ())) != graph.num_nodes:
            problem = f"the classifier was not fitted on graph {graph.name!r}"
            raise PairNormError(problem, code="not-fitted", value=graph.name, hint="Call fit(graph).")
        task, graph = classifier.task_, classifier.graph_
        large = is_large(graph)
        if large:
            text = "the features are too large to be dense: logistic regression and the measures of smoothing"
            warnings.warn(f"{text} are left out.", ClassifierWarning, stacklevel=2)
        if has_many_nodes(graph):
            text = (
                f"there are {graph.num_nodes:,} nodes: SGC stopped after {PATIENCE} depths in a row without "
                f"a gain, without PN-SI; models were fitted to at most {MAX_TRAINING_ROWS:,} nodes; depths "
                f"are shown up to {MAX_DEPTH_MANY_NODES}; and there is no GCN among the baselines."
            )
            warnings.warn(text, ClassifierWarning, stacklevel=2)
        # The search took time from the limit. The findings have a share of their own.
        task = replace(task, started=time.perf_counter())
        timed = replace(task, time_limit=BASELINE_SHARE * task.time_limit / SEARCH_SHARE)
        families = baselines(graph, classifier.random_state, large, task.time_limit) if compare else []
        others = [evaluate_baseline(classifier, timed, family, tick) for family in families]
        checks = {} if classifier.unmasked_ is None else {UNMASKED: classifier.unmasked_}
        if not task.allows(LATER_SHARE, classifier.fit_seconds_):
            text = "the time limit was reached: nodes that come later, with their edges, were not evaluated."
            warnings.warn(text, ClassifierWarning, stacklevel=2)
        elif (later := _score_later_nodes(classifier)) is not None:
            checks[LATER] = later
        tick("nodes held out in other ways")
        measures = (
            [] if large else smoothing(graph, task.features, lambda: task.allows(SMOOTHING_SHARE), tick)
        )
        probabilities = classifier.evaluation_probabilities_
        return cls(classifier, graph, probabilities, others, checks, measures)

    @property
    def selection_nodes(self) -> str:
        """The nodes that selected the model, in words."""
        if folds := len(self.classifier.task_.fold_masks):
            return f"labeled nodes that were held out in turn, in {folds} folds"
        return "validation nodes"

    @cached_property
    def predicted(self) -> Integers:
        """int64 [n], the class that the evaluation model predicts for every node."""
        return self.classifier.decide(self.probabilities)

    @cached_property
    def delivered(self) -> Integers:
        """int64 [n], the class that the delivered model predicts for every node."""
        return self.classifier.decide(self.classifier.probabilities_)

    @property
    def best_deep(self) -> Candidate | None:
        """The candidate of depth 1 or more with the smallest validation loss; None without one."""
        networks = [candidate for candidate in self.classifier.search_ if candidate.depth]
        return min(networks, key=lambda candidate: candidate.validation_loss, default=None)

    @property
    def selected_by_validation(self) -> bool:
        """Whether validation nodes selected the model. Without them, a rule sets its depth and scale."""
        return not isnan(self.classifier.best_.validation_accuracy)

    @property
    def test(self) -> Booleans:
        """The held-out nodes."""
        return self.graph.test.cpu().numpy()

    @property
    def nodes_to_label(self) -> Booleans:
        """bool [n]: the nodes without a label, or all where every node has one."""
        unknown = ~self.graph.labeled.cpu().numpy()
        return unknown if unknown.any() else np.ones_like(unknown)

    def _scores(self, model: Findings | Baseline, evaluated: Booleans) -> Scores:
        labels, predicted = self.graph.labels.cpu().numpy()[evaluated], model.predicted[evaluated]
        return Scores.of(labels, predicted, self.graph.num_classes, model.probabilities[evaluated])

    @cached_property
    def test_scores(self) -> Scores:
        """The scores of the evaluation model on the held-out nodes."""
        return self._scores(self, self.test)

    @property
    def group_names(self) -> tuple[str, str]:
        """The names of the groups with and without features; with most features, if some nodes have few."""
        graph = self.classifier.task_.graph
        some_have_few = (incomplete_nodes(graph) & ~graph.missing_vectors.cpu().numpy()).any()
        return ("with most features", "without most features") if some_have_few else GROUP_NAMES

    def groups(self) -> dict[str, Scores]:
        """Score groups of held-out nodes: all, with features, without, and nodes held out in other ways."""
        missing = incomplete_nodes(self.classifier.task_.graph)
        groups = {ALL: self.test_scores}
        if (self.test & missing).any() and (self.test & ~missing).any():
            for name, group in zip(self.group_names, (~missing, missing), strict=True):
                groups[name] = self._scores(self, self.test & group)
        cross_fitted = self.classifier.cross_fitted_
        return groups | self.checks | ({} if cross_fitted is None else {CROSS_FITTED: cross_fitted})

    def comparison(self) -> dict[str, Scores]:
        """Evaluate the model and its baselines on the held-out nodes, the model first."""
        others = {baseline.name: self._scores(baseline, self.test) for baseline in self.baselines}
        return {self.classifier.best_.name: self.test_scores} | others

    @property
    def metric(self) -> str:
        """The metric that compares the model with baselines; accuracy in place of the loss, or if unknown."""
        metric = self.classifier.metric
        return "accuracy" if isnan(self.test_scores.value(metric)) else metric

    @property
    def best_scores(self) -> Scores:
        """The cross-fitted scores of all labeled nodes if there are any, else those of the held-out nodes."""
        return self.classifier.cross_fitted_ or self.test_scores

    @property
    def best_nodes(self) -> str:
        """The nodes of ``best_scores``, in words."""
        if self.classifier.cross_fitted_ is None:
            return f"{self.test_scores.count:,} held-out nodes"
        return f"{self.best_scores.count:,} labeled nodes, cross-fitted"

    @cached_property
    def gain(self) -> Gain | None:
        """The gain over the best baseline by ``metric``; None without baselines or held-out nodes."""
        if not self.baselines or not self.test.any():
            return None
        values = [self._scores(baseline, self.test).value(self.metric) for baseline in self.baselines]
        best = int(np.argmax(values))
        baseline, labels = self.baselines[best], self.graph.labels.cpu().numpy()[self.test]
        ours, theirs = ((x.predicted[self.test], x.probabilities[self.test]) for x in (self, baseline))
        difference, low, high = metric_difference(self.metric, labels, ours, theirs)
        value = self.test_scores.value(self.metric)
        return Gain(baseline, value, values[best], (100 * difference, 100 * low, 100 * high))

    def prediction_sets(self) -> list[PredictionSets]:
        """Return the prediction sets of every node by error rate; none without held-out nodes."""
        calibration = self.classifier.calibration_
        if calibration is None or not self.test.any():
            return []
        incomplete = incomplete_nodes(self.graph)
        return calibration.prediction_sets(self.classifier.probabilities_, incomplete, names=self.group_names)

    def explain(self, nodes: Integers) -> Explanation:
        """Explain the delivered labels of some nodes."""
        return self.classifier.explain_nodes(self.graph, self.delivered, nodes, top=3)

    @cached_property
    def standardized(self) -> Standardized | None:
        """The accuracy on held-out nodes, weighted to be as far from labels and features as the target."""
        target, test = self.classifier.target_, self.test
        if target is None or not target.nodes.any() or not test.any():
            return None
        all_folds = self.classifier.task_.with_all_folds.graph
        return standardize(
            (self.predicted == self.graph.labels.cpu().numpy())[test],
            strata(all_folds, all_folds.train)[test],
            strata(self.graph, self.graph.labeled & ~target.nodes)[target.nodes.cpu().numpy()],
        )


def _score_later_nodes(classifier: NodeClassifier) -> Scores | None:
    """Evaluate test nodes by a model fitted to the graph without them and their edges; None if impossible.

    Networks are trained on all nodes, once, and structural features are made of the edges.
    """
    task, choice, graph = classifier.task_, classifier.choice_, classifier.task_.graph
    structural = graph.encoder is not None and graph.encoder.named("structure")
    networks = any(member.candidate.model in NETWORKS for _, member in choice.parts)
    if not graph.test.any() or networks or structural:
        return None
    test = graph.test.nonzero().squeeze(1)
    drawn = Stream(classifier.random_state, "classify later").order(len(test))
    later = torch.zeros_like(graph.test)
    later[test[drawn[: max(1, int(MAX_LATER_SHARE * graph.num_nodes))]]] = True
    before = remove_nodes(task.with_all_folds.graph, later)
    scaling = classifier.scaling_.fitted_to(before)
    prepared = PreparedGraph(before, scaling(before), task.device)
    model = choice.fit(replace(task.with_all_folds, graph=before, prepared=prepared))
    logits = model.logits(PreparedGraph(graph, scaling(graph), task.device, task.prepared))
    probabilities = mean_probabilities(logits, classifier.temperature_).cpu().numpy()
    return classifier.evaluate(graph, later.cpu().numpy(), probabilities)


def verdict(findings: Findings) -> str:
    """Return the headline, and remarks on the target population and rare classes."""
    remarks = (*_target_remarks(findings), *_rare_class_remarks(findings))
    return " ".join([headline(findings), *remarks])


def headline(findings: Findings) -> str:
    """Compare the model with its baselines, by the metric that selected it, in a sentence or two."""
    best, test, ours = findings.classifier.best_, findings.test, findings.test_scores
    if not test.any() and not findings.selected_by_validation:
        return "There are no held-out nodes: the accuracy of these predictions is not known."
    if not test.any():
        return (
            f"There are no held-out nodes. Of the validation nodes {100 * best.validation_accuracy:.1f}% are "
            "right, but they selected the model: expect less."
        )
    name, gain, metric = f"The model ({best.name})", findings.gain, findings.metric
    opening = f"{name} is right on {100 * ours.accuracy:.1f}% of {ours.count:,} held-out nodes"
    if metric != "accuracy":
        article = "an" if metric[0] in "aeiou" else "a"
        opening = f"{name} reaches {article} {metric_name(metric)} of {_value_in_words(findings, metric)}"
        if findings.best_scores is not ours:
            opening += f". On the {ours.count:,} held-out nodes it reaches {100 * ours.value(metric):.1f}%"
    if gain is None:
        return f"**Not compared with baselines.** {opening}."
    baseline = gain.baseline
    if ours.count < MIN_HELD_OUT:
        right = findings.comparison()[baseline.name].right
        nodes = f"{ours.right} of {ours.count} held-out {'node' if ours.count == 1 else 'nodes'}"
        return (
            f"**Too few nodes are held out for a verdict.** {name} is right on {nodes}, {baseline.name} "
            f"on {right}. Label more nodes."
        )
    same = (other.name for other in findings.baselines if _predicts_the_same(findings, other, metric))
    twin = next(same, "")
    if twin:
        return f"**{twin[:1].upper()}{twin[1:]} does as well.** Its predictions are the same. {opening}."
    points, low, high = gain.difference
    interval = f"95% interval {low:+.1f} to {high:+.1f}"
    difference = f"{abs(points):.1f} points {'more' if points > 0 else 'less'} than"
    reached = f"{baseline.name}, which reaches {100 * gain.theirs:.1f}%"
    if low > 0:
        return f"**The model beats the baselines.** {opening}, {difference} the best, {reached} ({interval})."
    if high < 0:
        text = f"**A baseline does better.** {opening}, {difference} {reached} ({interval})."
        return f"{text} Use that, or label more nodes."
    if points < -LARGE_LOSS:
        text = f"**A baseline may do better.** {opening}, {difference} {reached}"
        return f"{text}, but too few nodes are held out to be sure ({interval})."
    return (
        f"**No significant difference from a baseline.** {opening}; the best baseline ({baseline.name}) "
        f"reaches {100 * gain.theirs:.1f}%. The difference is {points:+.1f} points ({interval})."
    )


def _value_in_words(findings: Findings, metric: str) -> str:
    """Return the value of a metric with its interval, cross-fitted where that was done."""
    scores = findings.best_scores
    value, low, high = (100 * part for part in (scores.value(metric), *scores.interval_of(metric)))
    return f"{value:.1f}% on {findings.best_nodes} (95% interval {low:.1f} to {high:.1f}%)"


def _predicts_the_same(findings: Findings, baseline: Baseline, metric: str) -> bool:
    same = np.array_equal(baseline.predicted[findings.test], findings.predicted[findings.test])
    ranked = metric in RANKING_METRICS
    return same and (not ranked or np.array_equal(baseline.probabilities, findings.probabilities))


def _target_remarks(findings: Findings) -> Iterator[str]:
    """Yield remarks on the effect of the masks, and on target nodes that the figures do not cover."""
    ours, target = findings.classifier.held_out_, findings.classifier.target_
    if ours is None or target is None or ours.count < MIN_HELD_OUT:
        return
    unmasked, weighted = findings.classifier.unmasked_, findings.standardized
    if unmasked is not None and abs(unmasked.accuracy - ours.accuracy) >= MIN_DIFFERENCE:
        yield (
            f"Held-out nodes were masked like the {target.source}, "
            f"{float(target.missing.float().mean()):.0%} of whose features are missing; with all "
            f"features they have, {100 * unmasked.accuracy:.1f}% are right."
        )
    if weighted is not None and abs(weighted.accuracy - ours.accuracy) >= MIN_DIFFERENCE:
        low, high = weighted.interval
        resembled = f" of the {1 - weighted.unmatched:.0%} of them that held-out nodes resemble"
        yield (
            f"Weighted by the distance of the {target.source} to labels and features, "
            f"{100 * weighted.accuracy:.1f}%{resembled if weighted.unmatched >= MIN_UNMATCHED else ''} are "
            f"right (95% interval {100 * low:.1f} to {100 * high:.1f})."
        )
    if weighted is not None and weighted.unmatched >= MIN_UNMATCHED:
        yield (
            f"The figures are optimistic for {weighted.unmatched:.0%} of the {target.source}: too few "
            "held-out nodes are as far from labels and features."
        )


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
            f"It predicts class {names[rarer]!r} ({counts[rarer] / counts.sum():.0%} of the held-out nodes) "
            f"from a probability of {findings.classifier.threshold(rarer):.2f}. It ranks nodes of that class "
            f"with an AUC of {_value_in_words(findings, 'auc')} and an average precision of "
            f"{_value_in_words(findings, 'average-precision')}; a random ranking has 50% and "
            f"{100 * findings.best_scores.uninformed.average_precision:.0f}%."
        )
