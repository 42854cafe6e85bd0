"""The evaluation protocol: folds and masks of the search, and cross-fitting of rare classes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from math import isinf
from typing import TYPE_CHECKING

import numpy as np
import torch
from sklearn.base import clone
from torch import Tensor

from pairnorm.classify.candidates.candidate import Tick
from pairnorm.classify.candidates.prepared import PreparedGraph, has_many_nodes
from pairnorm.classify.candidates.task import Task
from pairnorm.classify.evaluation import RANKING_METRICS, Scores
from pairnorm.classify.holdout import ClassifierWarning, count_classes, folds
from pairnorm.classify.scaling import Scaling
from pairnorm.classify.search_space import resolve_time_limit
from pairnorm.classify.target import Target, hide
from pairnorm.data import Graph, Split
from pairnorm.train.distributed import shards_of
from pairnorm.train.engine import find_device

if TYPE_CHECKING:
    from pairnorm.classify.classifier import NodeClassifier

# A class of at most this share is rare; fewer test nodes of it do not state how well it is ranked.
MAX_RARE_SHARE, MIN_POSITIVES = 0.2, 30


def evaluation_task(
    classifier: NodeClassifier, graph: Graph, given: Split, target: Target | None, scaling: Scaling
) -> Task:
    """Return the task on which candidates are compared: every held-out node is masked like the target.

    Test nodes are masked in its graph. Validation nodes are masked in the folds that hold them out.
    """
    fold_masks: list[Tensor] = []
    shards = shards_of(graph.num_nodes)
    # In folds, models would learn from later nodes. One split is enough for many nodes.
    if classifier.time is None and not has_many_nodes(graph):
        fold_masks = folds(graph.with_split(given), graph.split, classifier.random_state)
    hidden = None
    if target is not None:
        selection = torch.stack(fold_masks).any(0) if fold_masks else graph.validation
        hidden = target.mask(graph, selection, classifier.random_state)
        masked = hide(graph, target.mask(graph, graph.test, classifier.random_state))
        scaling = scaling if masked is graph else scaling.fitted_to(masked)
        graph = masked
    return Task(
        graph,
        PreparedGraph(graph, scaling(graph), find_device(classifier.device)),
        classifier.adjacency,
        time_limit=resolve_time_limit(classifier.time_limit, graph.num_nodes),
        metric=classifier.metric,
        fold_masks=fold_masks,
        hidden=hidden,
        shards=shards,
    )


def needs_cross_fitting(graph: Graph, given: Split, metric: str) -> bool:
    """Say whether too few test nodes of a rare class were drawn to state how well it is ranked.

    Average precision on a few positive nodes is too high on average: with 6 of 60, a random ranking has 0.16
    instead of 0.10.
    """
    counts = count_classes(graph, graph.labeled)
    ranked = metric in RANKING_METRICS or (len(counts) == 2 and counts.min() <= MAX_RARE_SHARE * counts.sum())
    if any(mask.any() for mask in given) or not ranked or not graph.test.any():
        return False
    return int(count_classes(graph, graph.test)[counts > 0].min()) < MIN_POSITIVES


def cross_fit(classifier: NodeClassifier, graph: Graph, folds: Sequence[Tensor], tick: Tick) -> Scores | None:
    """Evaluate every labeled node by a model that was neither trained nor selected on it.

    The test nodes have such a model. Each fold of the others is held out as they were, from a search of its
    own within a share of the time limit. Returns None after Ctrl-C.
    """
    limit = resolve_time_limit(classifier.time_limit, graph.num_nodes)
    models = sorted({one.model for one in classifier.search_})
    other = clone(classifier).set_params(refit=False, model=models)
    other.set_params(time_limit=0 if isinf(limit) else limit / len(folds))
    nobody = torch.zeros_like(graph.test)
    labels, predicted, probabilities = [], [], []
    for number, held_out in enumerate([graph.test, *folds]):
        fitted = classifier
        if number > 0:
            fitted = other
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ClassifierWarning)  # they are about the first split
                try:
                    fitted.fit(graph.with_split(Split(nobody, nobody, held_out)))
                except KeyboardInterrupt:
                    return None
            tick(f"cross-fitted, fold {number} of {len(folds)}")
        mask = held_out.cpu().numpy()
        labels.append(graph.labels.cpu().numpy()[mask])
        probabilities.append(fitted.evaluation_probabilities_[mask])
        predicted.append(fitted.decide(probabilities[-1]))
    numbers = np.repeat(np.arange(len(labels)), [len(part) for part in labels])
    true, decided, p = (np.concatenate(parts) for parts in (labels, predicted, probabilities))
    return Scores.of(true, decided, graph.num_classes, p, numbers)
