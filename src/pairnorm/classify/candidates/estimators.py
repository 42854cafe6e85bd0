"""Classifiers of other packages over the columns of nodes, such as tabular foundation models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points
from typing import Any, Self

import torch
from torch import Tensor

from pairnorm.base.errors import PairNormError, quoted
from pairnorm.classify.candidates.candidate import Candidate, Results, SavedState, State, Tick
from pairnorm.classify.candidates.columns import NodeColumns
from pairnorm.classify.candidates.prepared import PreparedGraph
from pairnorm.classify.candidates.task import Task, limit_training_nodes

GROUP = "pairnorm.candidates"
"""The group of entry points: the name of a candidate, and a factory of scikit-learn classifiers."""
HOPS, MAX_ROWS = 1, 10_000
# Of a class without training rows.
MIN_PROBABILITY = 1e-12
FACTORIES: dict[str, Callable[[], Any]] = {}
"""Registered factories by the name of their candidate."""


def register_candidate(name: str, factory: Callable[[], Any]) -> None:
    """Register a classifier as a candidate of ``fit``, for ``NodeClassifier(model=name)``.

    Its columns are those of boosted trees: a node's own features, the means of its neighbors, its degree, and
    shares of labels near it. Missing values are NaN. A saved model holds the training rows, and loading it
    fits the classifier again: register it first, since a file never imports code.

    Args:
        name: of the candidate, in options and reports.
        factory: returns a new classifier with scikit-learn's ``fit(X, y)`` and ``predict_proba(X)``.

    Example:
        >>> from sklearn.ensemble import HistGradientBoostingClassifier
        >>> register_candidate("histogram trees", HistGradientBoostingClassifier)
    """
    if not isinstance(name, str) or not name.isprintable() or not name.strip() or "," in name:
        expected = "a name that can be printed, without a comma"
        raise PairNormError(
            f"a candidate is named {quoted(name)}", code="not-a-name", value=name, expected=expected
        )
    FACTORIES[name] = factory


def find_candidate(name: str) -> str | None:
    """Return the name of a registered candidate, or of an entry point, which is imported; None for others."""
    if name not in FACTORIES:
        for entry in entry_points(group=GROUP, name=name):
            register_candidate(name, entry.load())
    return name if name in FACTORIES else None


def check_registered(model: str) -> None:
    """Raise an error unless a saved candidate is registered: text in a file never imports code."""
    if model not in FACTORIES:
        raise PairNormError(
            f"candidate {quoted(model)} is not registered: a saved model never imports code",
            code="not-imported",
            value=model,
            hint="If you trust it, call pairnorm.classify.register_candidate before you load the model.",
        )


@dataclass(frozen=True)
class EstimatorFamily:
    """A registered classifier, with its default settings."""

    name: str
    steps: int = 1

    def fit(self, task: Task, tick: Tick) -> Results:
        """Yield the only candidate."""
        fit = partial(_fit, name=self.name)
        yield task.evaluate(Candidate(self.name), task.held_out_logits(fit), fit)
        tick(self.name)


def _fit(task: Task, name: str) -> FittedEstimator:
    columns, limited = NodeColumns.of(task, HOPS), limit_training_nodes(task, MAX_ROWS)
    rows = columns.table(task.prepared).take(limited.graph.train).rows()
    labels = limited.graph.labels[limited.graph.train]
    return FittedEstimator.of(name, columns, torch.from_numpy(rows), labels)


@dataclass(frozen=True, eq=False)
class FittedEstimator:
    """A fitted classifier, the columns that it takes, and its training rows and labels."""

    name: str
    columns: NodeColumns
    rows: Tensor
    labels: Tensor
    estimator: Any

    @classmethod
    def of(cls, name: str, columns: NodeColumns, rows: Tensor, labels: Tensor) -> Self:
        """Fit a new classifier to rows, [m, columns], and labels, int64 [m]."""
        estimator, labels = FACTORIES[name](), labels.cpu()
        estimator.fit(rows.numpy(), labels.numpy())
        return cls(name, columns, rows, labels, estimator)

    def logits(self, prepared: PreparedGraph) -> Tensor:
        """Return the logarithms of the probabilities of every node, [n, 1, classes]."""
        known = torch.from_numpy(self.estimator.predict_proba(self.columns.table(prepared).rows())).float()
        probabilities = torch.full((len(known), self.columns.classes), MIN_PROBABILITY)
        probabilities[:, torch.as_tensor(self.estimator.classes_)] = known.clamp(min=MIN_PROBABILITY)
        return probabilities.log().unsqueeze(1).to(prepared.device)

    def state(self) -> State:
        """Return training rows and labels, zero and a mask in place of missing values, and known labels."""
        missing = self.rows.isnan()
        tensors = {"rows": self.rows.nan_to_num(), "missing": missing, "targets": self.labels}
        return {"estimator": True}, tensors | self.columns.state()[1]

    @classmethod
    def restore(cls, saved: SavedState) -> Self:
        """Fit the registered classifier to the stored rows."""
        check_registered(saved.candidate.model)
        columns, labels = NodeColumns.restore(saved), saved.tensors["targets"]
        shape = len(labels), sum(columns.blocks.values())
        if not ((labels >= 0) & (labels < saved.classes)).all() or labels.dtype != torch.int64:
            raise ValueError(f"the labels are not those of {saved.classes} classes")
        rows, missing = saved.tensor("rows", *shape), saved.tensor("missing", *shape)
        return cls.of(saved.candidate.model, columns, rows.where(~missing.bool(), torch.nan), labels)
