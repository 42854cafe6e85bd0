"""Bringing features to a common scale: bags of words row by row, ages and incomes column by column."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pairnorm.base.errors import PairNormError, one_of
from pairnorm.classify.candidates.base import check_size
from pairnorm.data import Graph, row_normalize
from pairnorm.data.features import stored_values

KINDS = ("rows", "columns", "none")
# A bag of words has many columns, none of which most nodes have; an age has a value everywhere.
FEWEST_WORDS = 20
COMMON_WORD = 0.5


@dataclass(frozen=True, eq=False)
class Scaling:
    """How features are scaled, with what was learned from the graph a model was fitted on.

    Args:
        kind: ``"rows"`` (x_ij / sum_k |x_ik|), ``"columns"`` ((x_ij - mean_j) / deviation_j) or ``"none"``.
        mean: float32 [d], of the entries that are there; for ``"columns"`` only, like the next.
        deviation: float32 [d]; 1 for a column that is constant, which thus becomes zero.
    """

    kind: str
    mean: Tensor | None = None
    deviation: Tensor | None = None

    @classmethod
    def of(cls, graph: Graph, kind: str = "auto") -> Scaling:
        """Choose a scaling and learn what it needs. What is missing takes no part in means and deviations.

        Args:
            graph: whose features.
            kind: one of the three, or ``"auto"``: ``"rows"`` for what looks like a bag of words (at least 20
                columns, nothing negative, no column that most nodes have), else ``"columns"``.
        """
        one_of("scaling", kind, ("auto", *KINDS))
        if kind == "auto":
            kind = "rows" if _is_bag_of_words(graph) else "columns"
        if kind != "columns":
            return cls(kind)
        check_size(graph)
        features, there = graph.features.to_dense().double(), _there(graph)
        count = there.sum(0).clamp(min=1)
        mean = (features * there).sum(0) / count
        deviation = (((features - mean) * there).square().sum(0) / count).sqrt()
        deviation = deviation.where(deviation > 1e-6 * mean.abs() + 1e-12, 1)
        return cls(kind, mean.float(), deviation.float())

    def __call__(self, graph: Graph) -> Tensor:
        """Return the features of a graph, scaled; what is missing is zero, for columns their mean."""
        if self.kind == "rows":
            return row_normalize(graph.features)
        if self.mean is None or self.deviation is None:
            return graph.features
        mean, deviation = self.mean.to(graph.device), self.deviation.to(graph.device)
        return (graph.features.to_dense() - mean) / deviation * _there(graph)

    @property
    def sentence(self) -> str:
        """What was done, for people."""
        return {
            "rows": "each node's features are divided by their sum (they look like counts or words)",
            "columns": "each column is standardized; a missing value takes its column's mean",
            "none": "features are taken as they are",
        }[self.kind]


def _there(graph: Graph) -> Tensor:
    there = ~graph.missing
    return there if there.dim() == 2 else there[:, None].expand(-1, graph.num_features)


def _is_bag_of_words(graph: Graph) -> bool:
    features = graph.features
    stored = stored_values(features)
    if graph.num_features < FEWEST_WORDS or bool((stored < 0).any()):
        return False
    if features.layout == torch.sparse_csr:
        used = torch.bincount(features.col_indices()[stored != 0], minlength=graph.num_features)
    else:
        used = (features != 0).sum(0)
    nodes = int((~graph.missing_vectors).sum())
    return bool((used <= COMMON_WORD * nodes).all())


def check_features(graph: Graph) -> None:
    """Refuse a graph that has nothing to propagate."""
    if graph.num_features == 0:
        problem = f"graph {graph.name!r} has no features"
        hint = "Give its nodes a feature column; some cells may be empty."
        raise PairNormError(problem, code="no-features", value=graph.name, hint=hint)
    if not stored_values(graph.features).any():
        problem = f"graph {graph.name!r}: every feature of every node is missing or zero"
        hint = "Fill in those you know, or leave the columns out: structure then stands in."
        raise PairNormError(problem, code="no-features", value=graph.name, hint=hint)
