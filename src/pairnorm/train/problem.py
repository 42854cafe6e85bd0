"""The data that the trials of a job train on: features with missing values, labels; losses, accuracies."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pairnorm.base.errors import PairNormError
from pairnorm.data import Graph, Missing, features_after, masks
from pairnorm.impute import impute
from pairnorm.nn import SparseMatrix, normalized_adjacency
from pairnorm.train.distributed import Shards
from pairnorm.train.spec import Spec

DRAW: dict[str, Callable[..., Missing]] = {
    "vectors": masks.missing_vectors,
    "nodes": masks.missing_nodes,
    "entries": masks.missing_entries,
    "class": masks.missing_by_class,
    "degree": masks.missing_by_degree,
    "value": masks.missing_by_value,
    "given": lambda graph, *_, **_options: masks.given_missing(graph),
}


@dataclass(frozen=True, eq=False)
class Problem:
    """The features of every trial, the normalized adjacency, the labels, and the nodes of each split part.

    With ``shards``, tensors hold the nodes of this rank; losses and accuracies are over all ranks.
    """

    features: Tensor | SparseMatrix
    adjacency: SparseMatrix
    labels: Tensor
    parts: Mapping[str, Tensor]
    num_features: int
    num_classes: int
    shards: Shards | None = None

    @classmethod
    def of(
        cls,
        graph: Graph,
        trials: Sequence[tuple[Spec, int]],
        device: torch.device,
        shards: Shards | None = None,
    ) -> "Problem":
        """Draw the missing features of each (spec, seed) pair and move everything to the device."""
        if not graph.train.any() or not graph.validation.any():
            counts = f"{int(graph.train.sum())} training and {int(graph.validation.sum())} validation nodes"
            problem, hint = f"graph {graph.name!r} has {counts}", "such as graph.with_split('random')."
            details = {"expected": "some of both", "hint": f"Give it a split, {hint}"}
            raise PairNormError(problem, code="no-split", value=graph.name, **details)
        parts = {"train": graph.train, "validation": graph.validation, "test": graph.test}
        adjacency = normalized_adjacency(graph.adjacency, trials[0][0].adjacency).to(device)
        features, labels = _features(graph, trials, device), graph.labels
        width = graph.num_features if isinstance(features, SparseMatrix) else features.size(-1)
        if shards is not None:
            adjacency, features = shards.adjacency(adjacency), shards.local_rows(features)
            labels = labels[shards.rows]
            parts = {name: mask[shards.rows] for name, mask in parts.items()}
        return cls(
            features=features,
            adjacency=adjacency,
            labels=labels.to(device),
            parts={name: mask.nonzero().squeeze(1).to(device) for name, mask in parts.items()},
            num_features=width,
            num_classes=graph.num_classes,
            shards=shards,
        )

    def losses(self, logits: Tensor, part: str) -> Tensor:
        """Return the mean cross-entropy of ``[nodes, trials, classes]`` logits in a part: ``[trials]``."""
        nodes = self.parts[part]
        return self._mean(node_losses(logits[nodes], self.labels[nodes]))

    def scores(self, logits: Tensor, part: str, metric: str = "accuracy") -> Tensor:
        """Return the metric of a spec for every trial on the nodes of a part: ``[trials]``."""
        nodes = self.parts[part]
        logits, labels = logits[nodes].movedim(0, -1), self.labels[nodes]
        if metric == "accuracy":
            return self._mean(node_hits(logits, labels).movedim(-1, 0))
        if self.shards is not None:
            problem = "the AUC needs all nodes in one process"
            raise PairNormError(problem, code="not-together", value=metric, expected="metric='accuracy'")
        return aucs(logits, labels)

    def _mean(self, values: Tensor) -> Tensor:
        """Return the mean over the first axis, of all ranks."""
        return values.mean(0) if self.shards is None else self.shards.mean(values)

    def metrics(self, logits: Tensor) -> dict[str, Tensor]:
        """Return the loss and accuracy of every part, per trial."""
        return {f"{part}_loss": self.losses(logits, part) for part in self.parts} | {
            f"{part}_accuracy": self.scores(logits, part) for part in self.parts
        }


def node_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of ``[nodes, ..., classes]`` logits: ``[nodes, ...]``."""
    index = labels.view(-1, *[1] * (logits.dim() - 1)).expand(*logits.shape[:-1], 1)
    return -logits.log_softmax(-1).gather(-1, index).squeeze(-1)


def part_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of ``[nodes, ..., classes]`` logits: ``[...]``, one per model."""
    return node_losses(logits, labels).mean(0)


def part_accuracies(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the accuracy of ``[nodes, ..., classes]`` logits: ``[...]``, one per model."""
    return accuracies(logits.movedim(0, -1), labels)


def accuracies(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the accuracy of ``[..., classes, nodes]`` logits: ``[...]``, one per model."""
    return node_hits(logits, labels).mean(-1)


def node_hits(logits: Tensor, labels: Tensor) -> Tensor:
    """Return 1 where ``[..., classes, nodes]`` logits predict the label, else 0: ``[..., nodes]``."""
    largest, predicted = logits.max(-2)
    # torch returns the first class for NaN logits: a diverged model would sometimes be right.
    return ((predicted == labels) & ~largest.isnan()).float()


def aucs(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the area under the ROC curve of ``[..., 2, nodes]`` logits: ``[...]``, 0 if one is NaN."""
    if logits.size(-2) != 2:
        problem = f"the AUC of {logits.size(-2)} classes is not defined"
        raise PairNormError(problem, code="not-together", value="auc", expected="two classes")
    margins = (logits[..., 1, :] - logits[..., 0, :]).contiguous()
    ordered = margins.sort(-1).values
    # The mean rank, from 1, of equal margins; as masks, since CUDA cannot capture an indexing by labels.
    ranks = (torch.searchsorted(ordered, margins) + torch.searchsorted(ordered, margins, right=True) + 1) / 2
    positive = (labels == 1).double()
    count = positive.sum()
    wins = (ranks * positive).sum(-1) - count * (count + 1) / 2
    return torch.where(margins.isnan().any(-1), 0.0, wins / (count * (len(labels) - count))).float()


SCORES = {"accuracy": accuracies, "auc": aucs}
"""The metrics of a spec, from ``[..., classes, nodes]`` logits and the labels of the nodes."""


def _features(
    graph: Graph, trials: Sequence[tuple[Spec, int]], device: torch.device
) -> Tensor | SparseMatrix:
    """Return the features with a trial axis, or without it if all trials have the same missing values.

    Sparse features stay sparse, unless missing values are imputed.
    """
    drawn = [DRAW[spec.missing_kind](graph, spec.missing_rate, trials=1, seed=seed) for spec, seed in trials]
    kinds = {mask.kind for mask in drawn}
    if len(kinds) > 1 and "entries" in kinds:
        problem = "trials with missing entries and trials with missing vectors cannot train together"
        raise PairNormError(problem, code="mixed-kinds", value=sorted(kinds), expected="one kind")
    mask = torch.cat([mask.mask for mask in drawn], 1)
    is_shared = torch.equal(mask, mask[:, :1].expand_as(mask))
    missing = Missing(drawn[0].kind, drawn[0].rate, None, mask[:, :1] if is_shared else mask)
    seen = features_after(graph, missing, trials[0][0].scaling)
    if trials[0][0].imputation != "zero":
        unknown = ~_known(graph, missing).to(device)
        adjacency, values = graph.adjacency.to(device), seen.values.to(device)
        method = trials[0][0].imputation
        return impute(values, unknown.squeeze(1) if is_shared else unknown, adjacency, method=method)
    if seen.values.layout != torch.sparse_csr:
        return (seen.dense().squeeze(1) if is_shared else seen.dense()).to(device)
    # Missing entries stay in the pattern as zeros: dropout depends on an entry's position in the pattern, and
    # the positions of a trial must not depend on the other trials.
    matrix = SparseMatrix.from_torch(seen.values)
    values = (matrix.values.unsqueeze(1) * seen.keep).t().contiguous()
    return SparseMatrix(matrix.pattern, values.squeeze(0) if is_shared else values).to(device)


def _known(graph: Graph, missing: Missing) -> Tensor:
    """Return the mask of known values, neither missing nor drawn as missing: [n, trials, 1 or features]."""
    known = ~missing.mask.to(graph.device)
    if missing.kind != "entries":
        known = known.unsqueeze(2)
    elif graph.features.layout == torch.sparse_csr:
        # Only nonzero entries were drawn, so that the mask would reveal which entries are not zero.
        problem = "missing entries of sparse features cannot be imputed"
        expected = "dense features, or missing vectors"
        hint = "Make them dense: graph.replace(features=graph.features.to_dense())."
        raise PairNormError(problem, code="sparse-entries", value="entries", expected=expected, hint=hint)
    else:
        known = known.view(graph.num_nodes, graph.num_features, -1).transpose(1, 2)
    missing_in_data = graph.missing if graph.missing.dim() == 2 else graph.missing.unsqueeze(1)
    return known & ~missing_in_data.unsqueeze(1) if missing_in_data.any() else known
