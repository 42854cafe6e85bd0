"""The evaluation of a fitted classifier: scores, baselines, prediction sets and a verdict, for the report."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from math import isnan

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairnorm.base.csr import sparse_csr
from pairnorm.base.errors import PairNormError
from pairnorm.classify.candidates.candidate import Candidate, Family, Tick
from pairnorm.classify.candidates.networks import GNNFamily
from pairnorm.classify.candidates.prepared import PreparedGraph, has_many_nodes
from pairnorm.classify.candidates.task import Task
from pairnorm.classify.classifier import NodeClassifier
from pairnorm.classify.conformal import ALL, COMPLETE, INCOMPLETE, PredictionSets
from pairnorm.classify.diagnosis import (
    DEPTHS,
    MAX_DEPTH_MANY_NODES,
    Smoothing,
    Suggestion,
    smoothing,
    suggest_depth,
)
from pairnorm.classify.evaluation import (
    Scores,
    decide,
    mean_probabilities,
    tilted,
)
from pairnorm.classify.explanation import Explanation
from pairnorm.classify.holdout import ClassifierWarning, complete_split, without
from pairnorm.classify.scaling import is_large
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
# At most this share of all nodes comes later.
MAX_LATER_SHARE = 0.2

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
                f"a gain, without PN-SI; models learned from at most {MAX_TRAINING_ROWS:,} nodes; depths "
                f"are shown up to {MAX_DEPTH_MANY_NODES}; and there is no GCN among the baselines.",
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
    def selection_nodes(self) -> str:
        """Which nodes selected the model, in words."""
        if folds := len(self.classifier.task_.fold_masks):
            return f"labeled nodes that were held out in turn, in {folds} folds"
        return "validation nodes"

    @property
    def direction(self) -> str | None:
        """Whether directions of edges improved the model, in words; None where none was tried with them."""
        if self.graph.directed is None or not any(one.directed for one in self.classifier.search_):
            return None
        one_way = 2 * self.graph.num_edges - int(self.graph.directed.sum())
        chosen = any(one.directed for _, one in self.classifier.parts_)
        return (
            f"{one_way:,} of {self.graph.num_edges:,} edges go one way only. All models propagate over the "
            "undirected edges; boosted trees with separate columns for in- and out-neighbors were tried, and "
            f"{'selected' if chosen else 'not selected'}"
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

    def scores(
        self,
        predicted: NDArray[np.int64],
        evaluated: NDArray[np.bool_],
        probabilities: NDArray[np.float32] | None = None,
    ) -> Scores:
        """Evaluate predictions on some nodes."""
        if probabilities is None and predicted is self.predicted:
            probabilities = self.probabilities
        labels = self.graph.labels.cpu().numpy()
        chosen = None if probabilities is None else probabilities[evaluated]
        return Scores.of(labels[evaluated], predicted[evaluated], self.graph.num_classes, chosen)

    @cached_property
    def test_scores(self) -> Scores:
        """The scores of the evaluation model on the held-out nodes."""
        return self.scores(self.predicted, self.test)

    @property
    def random_split_scores(self) -> Scores | None:
        """The scores on a random split, where the split is by time."""
        return self.checks.get(RANDOM)

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
        ours = {self.classifier.best_.name: self.test_scores}
        return ours | {
            one.name: self.scores(one.predicted, self.test, one.probabilities) for one in self.baselines
        }

    def confident(self, least: float = 0.9) -> tuple[int, float]:
        """Return the number of held-out nodes above a confidence, and the share of them that is right."""
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
        learnable = self.classifier.task_.with_all_folds.graph
        labels = self.graph.labels.cpu().numpy()
        known = self.graph.labeled & ~target.nodes
        return standardize(
            (self.predicted == labels)[test],
            strata(learnable, learnable.train)[test],
            strata(self.graph, known)[target.nodes.cpu().numpy()],
        )


def _with_one_hot_ids(task: Task) -> Task:
    """Return the task with a column per node as features, for a GCN that has none of its own."""
    count = task.graph.num_nodes
    places = torch.arange(count + 1)
    ids = sparse_csr(places, places[:-1], torch.ones(count), (count, count)).to(task.features.device)
    graph = task.graph.replace(features=ids, missing=torch.zeros_like(task.graph.labeled), feature_names=None)
    return replace(task, graph=graph, prepared=PreparedGraph(graph, ids, task.device), hidden=None)


def _run(classifier: NodeClassifier, family: Family, tick: Tick) -> Baseline:
    # Time that the search took does not count against a baseline.
    task, name = replace(classifier.task_, began=time.perf_counter()), family.name
    encoder = task.graph.encoder
    if isinstance(family, GNNFamily) and encoder is not None and encoder.named("structure"):
        task, name = _with_one_hot_ids(task), f"{name}, one-hot ids"
    choice = classifier.choice_.of(family)
    if choice is None:
        choice = search(task, [family], tick)
    else:
        for _ in range(family.steps):
            tick(family.name)
    logits = choice.learn(task.with_all_folds).logits(task.prepared)
    probabilities = mean_probabilities(logits).cpu().numpy()
    tilt = classifier.tilt_
    if classifier.class_weight != "balanced" and len(choice.probabilities) == len(task.held_out_labels):
        tilt = decide(classifier.metric, task.held_out_labels, choice.probabilities, task.prior)[1]
    predicted = tilted(probabilities, classifier.prior_, tilt).argmax(1)
    return Baseline(name, choice.best, len(choice.results), predicted, probabilities)


def _checks(classifier: NodeClassifier) -> dict[str, Scores]:
    """Return the scores of nodes that are held out in other ways."""
    task, choice = classifier.task_, classifier.choice_
    checks: dict[str, Scores] = {}
    graph = task.graph
    trained = any(one.candidate.model in NETWORKS for _, one in choice.parts)  # on all nodes, once
    if classifier.unmasked_ is not None:
        checks[UNMASKED] = classifier.unmasked_
    if trained or not graph.test.any():
        return checks
    if not (graph.encoder and graph.encoder.named("structure")):  # which is made of the edges
        test = graph.test.nonzero().squeeze(1)
        drawn = Stream(classifier.random_state, "classify later").order(len(test))
        later = torch.zeros_like(graph.test)
        later[test[drawn[: max(1, int(MAX_LATER_SHARE * graph.num_nodes))]]] = True
        before = without(task.with_all_folds.graph, later)
        scaling = classifier.scaling_.fitted_to(before)
        prepared = PreparedGraph(before, scaling(before), task.device)
        model = choice.learn(replace(task.with_all_folds, graph=before, prepared=prepared))
        logits = model.logits(PreparedGraph(graph, scaling(graph), task.device))
        checks[LATER] = _evaluate(classifier, logits, later)
    if classifier.time is not None:
        nobody = torch.zeros_like(graph.test)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ClassifierWarning)  # of a split that is not the user's
            split = complete_split(graph.with_split(Split(nobody, nobody, nobody)), classifier.random_state)
        model = choice.learn(replace(task, graph=graph.with_split(split), fold_masks=(), hidden=None))
        checks[RANDOM] = _evaluate(classifier, model.logits(task.prepared), split.test)
    return checks


def _evaluate(classifier: NodeClassifier, logits: Tensor, evaluated: Tensor) -> Scores:
    probabilities = mean_probabilities(logits, classifier.temperature_).cpu().numpy()
    return classifier._scores(classifier.task_.graph, evaluated.cpu().numpy(), probabilities)
