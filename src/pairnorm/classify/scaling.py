"""Feature scaling, decided column by column: word counts by row, all other columns by their deviation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pairnorm.base.errors import PairNormError, one_of
from pairnorm.data import Graph, row_normalize
from pairnorm.data.features import stored_rows, stored_values

KINDS = ("rows", "columns", "none")
# A bag of words has many columns, and most nodes have none of a given word.
MIN_WORDS = 20
MAX_WORD_SHARE = 0.5
MAX_DENSE_BYTES = 8 * 2**30


@dataclass(frozen=True, eq=False)
class Scaling:
    """How features are scaled, with the statistics of the graph that a model was fitted on.

    Args:
        kind: ``"rows"`` (x_ij / sum_k |x_ik|), ``"columns"`` ((x_ij - mean_j) / deviation_j) or ``"none"``.
        mean: float32 [d], of the known entries; for ``"columns"`` only, like the next two.
        deviation: float32 [d]; 1 for a constant column, which becomes zero.
        words: bool [d], the columns that are divided by their sum in a row first. They share one deviation
            and have the mean 0.
    """

    kind: str
    mean: Tensor | None = None
    deviation: Tensor | None = None
    words: Tensor | None = None

    @classmethod
    def of(cls, graph: Graph, kind: str = "auto") -> Scaling:
        """Choose a scaling and compute its statistics from the known features.

        Args:
            graph: whose features.
            kind: one of the three, or ``"auto"``, which decides column by column: at least 20 columns of
                counts that most nodes lack are words, scaled by row; all others are standardized.
        """
        one_of("scaling", kind, ("auto", *KINDS))
        words = None
        if kind == "auto":
            words = word_columns(graph)
            kind = "rows" if bool(words.all()) and len(words) else "columns"
            words = words if kind == "columns" and words.any() else None
        return cls(kind) if kind != "columns" else cls.standardize(graph, words)

    @classmethod
    def standardize(cls, graph: Graph, words: Tensor | None = None) -> Scaling:
        """Compute means and deviations of the known features.

        Args:
            graph: whose features.
            words: bool [d], the columns that are divided by their sum in a row; None for none.
        """
        check_size(graph)
        features, known = _by_row(graph.features.to_dense().double(), words), _known(graph)
        count = known.sum(0).clamp(min=1)
        mean = (features * known).sum(0) / count
        variance = ((features - mean) * known).square().sum(0) / count
        if words is not None:
            variance = torch.where(words, variance[words].mean(), variance)
            mean = mean.where(~words, 0)
        deviation = variance.sqrt()
        deviation = deviation.where(deviation > 1e-6 * mean.abs() + 1e-12, 1)
        return cls("columns", mean.float(), deviation.float(), words)

    def fitted_to(self, graph: Graph) -> Scaling:
        """Return the same kind of scaling with the statistics of another graph.

        Args:
            graph: whose features.
        """
        return self if self.kind != "columns" else self.standardize(graph, self.words)

    def __call__(self, graph: Graph) -> Tensor:
        """Return the scaled features of a graph; missing ones are zero, the mean of a standardized column."""
        if self.kind == "rows":
            return row_normalize(graph.features)
        if self.mean is None or self.deviation is None:
            return graph.features
        mean, deviation = self.mean.to(graph.device), self.deviation.to(graph.device)
        words = None if self.words is None else self.words.to(graph.device)
        return (_by_row(graph.features.to_dense(), words) - mean) / deviation * _known(graph)

    @property
    def sentence(self) -> str:
        """What was done, for people."""
        if self.words is not None:
            return (
                f"{int(self.words.sum()):,} columns of counts are divided by their sum in each node; the "
                "others are standardized"
            )
        return {
            "rows": "each node's features are divided by their sum (they look like counts or words)",
            "columns": "each column is standardized; a missing value takes its column's mean",
            "none": "features are taken as they are",
        }[self.kind]


def _known(graph: Graph) -> Tensor:
    known = ~graph.missing
    return known if known.dim() == 2 else known[:, None].expand(-1, graph.num_features)


def _by_row(features: Tensor, words: Tensor | None) -> Tensor:
    """Divide the columns of words by their sum in each row."""
    if words is None:
        return features
    counts = row_normalize(features * words)
    return torch.where(words, counts, features)


def word_columns(graph: Graph) -> Tensor:
    """Return bool [d]: the columns of word counts; all False where there are fewer than ``MIN_WORDS``.

    Counts are not negative, and most nodes whose count is known have none. Columns that encode a category
    or come from a date are no counts.

    Args:
        graph: whose features and encoder.
    """
    features, missing = graph.features, graph.missing
    stored = stored_values(features)
    if features.layout == torch.sparse_csr:
        columns, rows = features.col_indices(), stored_rows(features)
        there = stored != 0
        there &= ~(missing[rows] if missing.dim() == 1 else missing[rows, columns])
        used = torch.bincount(columns[there], minlength=graph.num_features)
        negative = torch.bincount(columns[stored < 0], minlength=graph.num_features) > 0
    else:
        used, negative = ((features != 0) & _known(graph)).sum(0), (features < 0).any(0)
    filled = (~missing).sum(0) if missing.dim() == 2 else (~missing).sum()
    words = ~negative & (used <= MAX_WORD_SHARE * filled)
    if graph.encoder is not None:
        counts = [
            column.kind in ("number", "sparse")
            for column in graph.encoder.features.values()
            for _ in range(column.width)
        ]
        if len(counts) == len(words):
            words &= torch.tensor(counts, device=words.device)
    return words if int(words.sum()) >= MIN_WORDS else torch.zeros_like(words)


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


def is_large(graph: Graph) -> bool:
    """Return whether a graph's features, dense, would not fit in the memory of a usual machine."""
    return _dense_bytes(graph) > MAX_DENSE_BYTES


def _dense_bytes(graph: Graph) -> int:
    return 4 * graph.num_nodes * graph.num_features


def check_size(graph: Graph) -> None:
    """Refuse features that are too large to be dense, which propagating and standardizing make them."""
    if is_large(graph):
        raise PairNormError(
            f"{graph.num_features:,} features of {graph.num_nodes:,} nodes, propagated or standardized, take "
            f"{_dense_bytes(graph) / 2**30:.0f} GiB at a time",
            code="too-large",
            value=_dense_bytes(graph),
            expected=f"at most {MAX_DENSE_BYTES / 2**30:.0f} GiB",
            hint="Keep fewer columns, or pass {model} and {scaling}.",
            model="GCN",
            scaling="rows",
        )
