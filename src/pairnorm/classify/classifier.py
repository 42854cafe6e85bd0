"""``NodeClassifier``: a scikit-learn estimator of node classes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from os import PathLike
from time import perf_counter
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError

from pairnorm.base.errors import PairNormError, real_number, whole_number
from pairnorm.classify.candidates.ensemble import Average
from pairnorm.classify.candidates.sgc import compile_kernels
from pairnorm.classify.candidates.task import Candidate, Task
from pairnorm.classify.evaluation import Scores, apply_tilt, fit_temperature, fit_tilt, mean_probabilities
from pairnorm.classify.explanation import Explanation, explain_predictions
from pairnorm.classify.holdout import (
    ClassifierWarning,
    Target,
    check_num_classes,
    complete_split,
    incomplete_nodes,
    mask_features,
    needs_cross_fitting,
    remove_column,
    unseen,
    warn_label_predictors,
)
from pairnorm.classify.predictions import Calibration
from pairnorm.classify.scaling import PreparedGraph, Scaling, check_features
from pairnorm.classify.search import Choice, FitProgress, ProgressTracker, cross_fit, search
from pairnorm.classify.search_space import evaluation_task, parse_search_space, plan
from pairnorm.data import Graph, Split
from pairnorm.data.encoder import Encoder
from pairnorm.data.graph import check_graph
from pairnorm.nn import Normalization
from pairnorm.train.engine import find_device

if TYPE_CHECKING:
    import pandas

Floats = NDArray[np.float32]
Booleans = NDArray[np.bool_]


class UnfittedError(PairNormError, NotFittedError):  # type: ignore[misc]
    """A fitted attribute was used that a classifier does not have; scikit-learn's ``NotFittedError``."""


class NodeClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Predict the classes of nodes in a graph, also where features are missing.

    Follows scikit-learn: parameters go into the constructor, fitted attributes end in an underscore.
    ``classes_``; ``best_``, the selected ``Candidate`` or the ensemble; ``parts_``, its members with their
    weights; ``search_``, all candidates; ``encoder_``, which reads later files the same way;
    ``probabilities_`` of the graph's nodes and ``evaluation_probabilities_``, those of the model that was not
    trained on test labels; ``held_out_``, its ``Scores`` on the test nodes; ``cross_fitted_``, the ``Scores``
    of all labeled nodes, held out in turn, where few test nodes are of a rare class; ``split_``;
    ``fit_seconds_``, how long it takes to fit the selected model to another graph.

    The regression of an SGC is convex and solved to convergence, so that seeds do not matter. Networks are
    trained once per seed, and their probabilities averaged.

    Args:
        model: ``"SGC"``, ``"label propagation"``, ``"logistic regression"``, ``"boosted trees"``, ``"most
            frequent class"``, ``"residual GCN"``, ``"hop network"``, ``"GCN"``, ``"GAT"``, ``"GCNII"``,
            ``"APPNP"``, several, or ``"auto"``: all but the last four, which need a time limit (only SGC
            where a depth, norm, scale or imputation is given). Also a name given to ``register_candidate``,
            or that of an entry point in the group ``pairnorm.candidates``.
        depth: a number of graph convolutions, several to choose from, or ``"auto"``.
        norm: ``"PN"``, ``"PN-SI"``, ``"PN-SCS"``, ``"none"``, several, or ``"auto"``: PN and
            PN-SI for SGC (which without a norm is one of another scale), none and PN-SI for GCN and GAT.
        scale: PairNorm's s, several, or ``"auto"``. For SGC it is also the strength of regularization.
        impute: the imputation of missing features for SGC: ``"zero"``, ``"fp"`` (feature propagation),
            ``"known_neighbor_mean"`` (also ``"mass"``), several, or ``"auto"``: all.
        metric: that selects the model: ``"loss"``, ``"accuracy"``, ``"balanced-accuracy"``,
            ``"macro-f1"``, ``"average-precision"`` or ``"auc"``. With balanced accuracy and macro F1, classes
            are predicted by probabilities that are weighted against their frequency.
        class_weight: ``"balanced"`` predicts the class with the largest p / share of the class, which favors
            rare ones; ``"auto"`` leaves it to the metric.
        simple: use the best model instead of an ensemble.
        refit: after the selection, fit on all labels except those of the graph's test nodes.
        time: the feature that orders nodes in time: the latest labeled nodes are held out. The column itself
            is not used.
        target: what the nodes to predict lack, so that held-out nodes are masked like them: ``"auto"`` for
            what unlabeled nodes lack, ``"labeled"`` for what labeled ones do, or a share without features.
        scaling: of features: ``"rows"``, ``"columns"``, ``"none"`` or ``"auto"``; see ``Scaling``.
        adjacency: ``"rw"`` or ``"sym"``.
        directed: ``"yes"`` also evaluates boosted trees that distinguish in- from out-neighbors, ``"no"``
            does not; ``"auto"`` does where some edges are listed both ways and some in one direction only.
        hidden: width of networks; 0 for the paper's.
        dropout: of networks.
        epochs: of networks.
        seeds: how many of each network are averaged.
        time_limit: seconds, or a text such as ``"5m"``, for the search: when it ends, the best candidates so
            far are delivered. 0 for an exhaustive search. Default: 60 s up to 20,000 nodes, and longer for
            larger graphs.
        checkpoints: folder in which networks are saved every few epochs, and resumed from.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        random_state: the first seed, and that of the split.

    Example:
        >>> import pairnorm
        >>> graph = pairnorm.data.csbm(300, classes=2, seed=1).with_split("per-class-20")
        >>> classifier = NodeClassifier(depth=[2, 4, 8]).fit(graph)
        >>> classifier.predict(graph)[:3]
        array([1, 0, 0])
        >>> classifier.score(graph) > 0.8
        True
    """

    def __init__(
        self,
        model: str | Sequence[str] = "auto",
        depth: str | int | Sequence[int] = "auto",
        norm: str | Sequence[str] = "auto",
        scale: str | float | Sequence[float] = "auto",
        *,
        impute: str | Sequence[str] = "auto",
        metric: str = "loss",
        class_weight: str = "auto",
        simple: bool = False,
        refit: bool = True,
        time: str | None = None,
        target: str | float = "auto",
        scaling: str = "auto",
        adjacency: Normalization = "rw",
        directed: str = "auto",
        hidden: int = 0,
        dropout: float = 0.6,
        epochs: int = 500,
        seeds: int = 5,
        time_limit: float | str | None = None,
        checkpoints: str | PathLike[str] | None = None,
        device: str = "auto",
        random_state: int = 0,
    ) -> None:
        self.model, self.depth, self.norm, self.scale = model, depth, norm, scale
        self.impute, self.metric, self.class_weight = impute, metric, class_weight
        self.simple, self.refit, self.time, self.target = simple, refit, time, target
        self.scaling, self.adjacency, self.directed = scaling, adjacency, directed
        self.hidden, self.dropout, self.epochs, self.seeds = hidden, dropout, epochs, seeds
        self.time_limit, self.checkpoints = time_limit, checkpoints
        self.device, self.random_state = device, random_state

    classes_: NDArray[Any]
    encoder_: Encoder | None
    n_features_in_: int
    best_: Candidate
    search_: list[Candidate]
    parts_: list[tuple[int, Candidate]]
    model_: Average
    scaling_: Scaling
    temperature_: float
    tilt_: float
    split_: Split
    graph_: Graph
    target_: Target | None
    task_: Task
    choice_: Choice
    prior_: Floats
    probabilities_: Floats
    evaluation_probabilities_: Floats
    held_out_: Scores | None
    cross_fitted_: Scores | None
    fit_seconds_: float
    calibration_: Calibration | None
    unmasked_: Scores | None
    _seen: NDArray[np.int64]
    _tested: NDArray[np.int64]

    if not TYPE_CHECKING:  # an attribute that does not exist is found by mypy

        def __getattr__(self, name: str) -> NoReturn:
            """Explain why a fitted attribute is absent."""
            if name not in NodeClassifier.__annotations__:
                raise AttributeError(f"a NodeClassifier has no attribute {name!r}")
            loaded = "model_" in vars(self)
            problem = (
                f"a loaded NodeClassifier has no {name}"
                if loaded
                else "this NodeClassifier is not fitted yet"
            )
            raise UnfittedError(problem, code="not-fitted", hint="Call fit(graph), or NodeClassifier.load.")

    def fit(
        self, graph: Graph, y: None = None, *, progress: Callable[[FitProgress], None] | None = None
    ) -> Self:
        """Select a model by validation and fit it.

        Args:
            graph: with labels on some nodes. Missing parts of its split are drawn, class by class.
            y: not used; labels are in the graph.
            progress: called after every step; see ``FitProgress``.
        """
        check_graph(graph)
        if y is not None:
            problem, hint = "y is given", "Labels are the graph's: pass graph.replace(labels=...)."
            raise PairNormError(problem, code="conflicting-options", hint=hint)
        self.check_parameters()
        graph = graph.with_structure()
        check_features(graph)
        check_num_classes(graph)
        user_split = graph.split
        self.split_ = complete_split(graph, self.random_state, self.time)
        graph = remove_column(graph, self.time)
        self.target_ = Target.estimate(graph, self.target)
        self.graph_ = graph = graph.with_split(self.split_)
        warn_label_predictors(graph, graph.train | graph.validation)
        scaling = Scaling.of(graph, self.scaling)
        compile_kernels(graph)
        task = evaluation_task(self, graph, user_split, self.target_, scaling)

        families = plan(self, mask_features(task.graph, task.feature_mask))
        cross_fitted = needs_cross_fitting(graph, user_split, self.metric)
        folds = task.fold_masks if cross_fitted else ()
        tracker = ProgressTracker(task, families, len(folds), self.refit, progress)
        choice = search(task, families, tracker.tick, simple=self.simple, on_result=tracker.record)
        start = perf_counter() - choice.setup_seconds
        self.model_ = choice.fit(task.with_all_folds)
        self.fit_seconds_ = perf_counter() - start
        if task.shards is not None:  # the remaining work is small, and a single rank does it faster
            task = replace(task, shards=None)
        self.choice_ = choice
        self.task_ = replace(task, prepared=task.prepared.without_cache())
        self.best_ = choice.best
        self.search_ = [result.candidate for result in choice.results]
        self.parts_ = [(weight, result.candidate) for weight, result in choice.parts]
        self.classes_ = graph.classes
        self.prior_ = task.prior.numpy()
        self.encoder_ = graph.encoder
        self.n_features_in_ = graph.num_features
        tracker.tick("averaged")

        self._calibrate(task, choice)
        unmasked = task.prepared
        if task.graph is not graph:  # test nodes are masked in it
            unmasked = PreparedGraph(graph, scaling(graph), task.device, task.prepared)
        self._evaluate(task, scaling)
        tracker.tick("evaluated")
        training = graph.train | graph.validation
        if self.refit:  # without masks, and to all labels except those of given test nodes
            training = graph.labeled & ~user_split.test
            self.scaling_ = scaling
            final = graph.replace(train=training, validation=torch.zeros_like(training), test=user_split.test)
            task = replace(task, graph=final, prepared=unmasked, fold_masks=(), feature_mask=None)
            self.model_ = choice.fit(task)
            self.probabilities_ = self._probabilities(unmasked)
            tracker.tick("fitted to all labels")
        self.cross_fitted_ = cross_fit(self, graph, folds, tracker.tick) if folds else None
        names = unmasked.node_fingerprints
        self._seen, self._tested = (names[mask.cpu().numpy()] for mask in (training, graph.test))
        return self

    def _calibrate(self, task: Task, choice: Choice) -> None:
        """Fit the temperature and the decision rule to the nodes that selected the model."""
        logits = choice.probabilities.clamp(min=1e-30).log().unsqueeze(1)
        self.temperature_ = fit_temperature(logits, task.held_out_labels)
        probabilities = mean_probabilities(logits, self.temperature_)
        self.tilt_ = fit_tilt(self.metric, task.held_out_labels, probabilities, task.prior)[1]
        if self.class_weight == "balanced":
            self.tilt_ = 1.0

    def _evaluate(self, task: Task, scaling: Scaling) -> None:
        """Score the model on the test nodes, which are masked like the target, and also without masks."""
        graph, test = self.graph_, self.graph_.test.cpu().numpy()
        # The evaluation model has the statistics of the graph in which held-out nodes are masked.
        self.scaling_ = scaling if task.graph is graph else scaling.fitted_to(task.graph)
        self.probabilities_ = self.evaluation_probabilities_ = self._probabilities(task.prepared)
        self.held_out_ = self.calibration_ = self.unmasked_ = None
        if test.any():
            self.held_out_ = self.evaluate(graph, test, self.probabilities_)
            labels, incomplete = graph.labels.cpu().numpy()[test], incomplete_nodes(task.graph)[test]
            self.calibration_ = Calibration.of(self.probabilities_[test], labels, incomplete)
        if task.graph is not graph:
            prepared = PreparedGraph(graph, self.scaling_(graph), task.device, task.prepared)
            self.probabilities_ = self._probabilities(prepared)
            self.unmasked_ = self.evaluate(graph, test, self.probabilities_)

    @property
    def feature_names_in_(self) -> tuple[str, ...] | None:
        """The names of the features, in order; None where they have none."""
        return None if self.encoder_ is None else self.encoder_.feature_names

    def predict_proba(self, graph: Graph) -> Floats:
        """Return the probability of every class for every node, [n, classes]; seeds are averaged.

        Args:
            graph: the one fitted on, or one that has changed since; features are matched by name.
        """
        graph = self._aligned(graph)
        if graph.directed is None and any(member.directed for _, member in self.parts_):
            text = f"the model distinguishes in- from out-neighbors; graph {graph.name!r} has no directions."
            warnings.warn(text, ClassifierWarning, stacklevel=2)
        return self._probabilities(self._prepare(graph))

    def predict(self, graph: Graph) -> NDArray[Any]:
        """Return the predicted class of every node, as labels were given: texts, integers or booleans."""
        probabilities = self.predict_proba(graph)
        return np.asarray(self.classes_[self.decide(probabilities)])

    def predict_set(self, graph: Graph, coverage: float = 0.9) -> Booleans:
        """Return the prediction set of every node, bool [n, classes]: the classes that cannot be excluded.

        Conformal prediction guarantees the coverage on average over nodes like the held-out ones. A set holds
        at least the predicted class.

        Args:
            graph: as for ``predict_proba``.
            coverage: the share of sets that hold the true class, between 0 and 1.
        """
        return self.prediction_sets(graph, self.predict_proba(graph), coverage)

    def prediction_sets(self, graph: Graph, probabilities: Floats, coverage: float) -> Booleans:
        """Return the prediction set of every node, given the class probabilities; see ``predict_set``."""
        real_number("coverage", coverage, least=0, below=1)
        if self.calibration_ is None:
            problem = "prediction sets need held-out nodes, and the model was fitted without any"
            raise PairNormError(problem, code="no-held-out-nodes", hint="Label more nodes, and fit again.")
        incomplete = incomplete_nodes(self._aligned(graph))
        inside = self.calibration_.contains(probabilities, incomplete, 1 - coverage)
        inside[np.arange(len(inside)), self.decide(probabilities)] = True
        return inside

    def explain(self, graph: Graph, top: int = 5) -> pandas.DataFrame:
        """Return the features and neighbors that contribute most to the predicted class of every node.

        Contributions are exact for logistic regression and SGC, and TreeSHAP values for boosted trees; an
        ensemble has their weighted mean. Networks are not explained.

        Args:
            graph: as for ``predict_proba``.
            top: how many features, and how many neighbors, per node.

        Returns:
            A row per contribution: ``id``, ``predicted``, ``source`` (``"node"``, ``"neighborhood"``,
            ``"labels"`` or ``"neighbor"``), ``name`` and ``value``, in log-odds of the predicted class
            against the others; of a neighbor, the share of what arrives through it.
        """
        predicted = self.decide(self.predict_proba(graph))
        explanation = self.explain_nodes(graph, predicted, top=whole_number("top", top, least=1))
        return explanation.table(graph.node_names, self.classes_[predicted])

    def explain_nodes(
        self, graph: Graph, predicted: NDArray[np.int64], nodes: NDArray[np.int64] | None = None, top: int = 5
    ) -> Explanation:
        """Explain the predicted class of some nodes; see ``explain``."""
        graph = self._aligned(graph)
        classes = self.classes_.astype(str).tolist()
        return explain_predictions(self.model_, self._prepare(graph), predicted, classes, nodes, top)

    def decide(self, probabilities: Floats) -> NDArray[np.int64]:
        """Return the number of the predicted class: the most probable one, after weighting by the tilt."""
        return np.asarray(apply_tilt(probabilities, self.prior_, self.tilt_).argmax(1))

    def threshold(self, number: int) -> float:
        """Return the smallest probability at which one of two classes is predicted, given its number."""
        weights = self.prior_**self.tilt_
        return float(weights[number] / weights.sum())

    def unseen(self, graph: Graph) -> Booleans:
        """Return bool [n]: the labeled nodes that neither trained nor selected the model, by their names."""
        return unseen(graph, self._seen)

    def score(self, graph: Graph, y: None = None) -> float:
        """Return the accuracy on the test nodes.

        Args:
            graph: with labels. Without test nodes of its own, labeled nodes are evaluated that took no part
                in ``fit``, by their names. Where there are none, it is the accuracy on the nodes that ``fit``
                held out before the refit.
            y: not used.
        """
        check_graph(graph)
        if not graph.labeled.any():
            problem = f"graph {graph.name!r} has no labeled node"
            raise PairNormError(problem, code="no-labels", value=graph.name, expected="some to evaluate")
        evaluated = graph.test.cpu().numpy() if graph.test.any() else self.unseen(graph)
        were_tested = int(unseen(graph, self._tested).sum()) < int(graph.labeled.sum())
        if not evaluated.any() and were_tested and self.held_out_ is not None:
            return self.held_out_.accuracy
        if not evaluated.any():
            count, hint = int(graph.labeled.sum()), "Label others, or put those to evaluate in the test part."
            problem = f"all {count} labeled nodes of graph {graph.name!r} have the names of fitted nodes"
            raise PairNormError(problem, code="nothing-to-evaluate", value=graph.name, hint=hint)
        return self.evaluate(graph, evaluated, self.predict_proba(graph)).accuracy

    def evaluate(self, graph: Graph, nodes: Booleans, probabilities: Floats) -> Scores:
        """Score the class probabilities of all nodes, [n, classes], on labeled nodes in a mask, bool [n]."""
        labels = graph.labels_among(self.classes_.tolist()).cpu().numpy()
        probabilities = probabilities[nodes]
        return Scores.of(labels[nodes], self.decide(probabilities), len(self.classes_), probabilities)

    def _aligned(self, graph: Graph) -> Graph:
        check_graph(graph)
        return remove_column(graph, self.time).aligned(self.encoder_, self.n_features_in_)

    def _prepare(self, graph: Graph) -> PreparedGraph:
        known = self.task_.prepared if "task_" in vars(self) else None
        return PreparedGraph(graph, self.scaling_(graph), find_device(self.device), known)

    def _probabilities(self, prepared: PreparedGraph) -> Floats:
        logits = self.model_.logits(prepared)
        return np.asarray(mean_probabilities(logits, self.temperature_).cpu().numpy())

    def check_parameters(self) -> None:
        """Raise an error if a parameter is not valid; ``fit`` calls this too."""
        parse_search_space(self)

    def save(self, folder: str | PathLike[str]) -> None:
        """Write ``model.safetensors`` and ``model.json``, which is all that prediction needs, to a folder."""
        from pairnorm.classify.persistence import save

        save(self, folder)

    @classmethod
    def load(cls, folder: str | PathLike[str]) -> Self:
        """Read what ``save`` wrote. Nothing is unpickled."""
        from pairnorm.classify.persistence import load

        return load(cls, folder)
