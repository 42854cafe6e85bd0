"""What the trials of one graph share while they train: features, adjacency, labels and the split."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pairnorm.data import (
    Graph,
    Missing,
    features_after,
    given_missing,
    missing_entries,
    missing_nodes,
    missing_vectors,
)
from pairnorm.errors import PairNormError
from pairnorm.nn import SparseMatrix, propagation
from pairnorm.train.spec import Spec

DRAW = {"vectors": missing_vectors, "nodes": missing_nodes, "entries": missing_entries}


@dataclass(frozen=True, eq=False)
class Problem:
    """Features as every trial sees them, the normalised adjacency, the labels, and the nodes of each part."""

    features: Tensor | SparseMatrix
    adjacency: SparseMatrix
    labels: Tensor
    parts: Mapping[str, Tensor]
    num_features: int
    num_classes: int

    @classmethod
    def of(cls, graph: Graph, trials: Sequence[tuple[Spec, int]], device: torch.device) -> "Problem":
        """Draw what each (spec, seed) is missing and bring everything to the device."""
        if not graph.train.any() or not graph.validation.any():
            raise PairNormError(
                f"graph {graph.name!r} has {int(graph.train.sum())} training and "
                f"{int(graph.validation.sum())} validation nodes; expected some of both: give it a split"
            )
        parts = {"train": graph.train, "validation": graph.validation, "test": graph.test}
        adjacency = propagation(graph.adjacency, trials[0][0].adjacency)
        return cls(
            features=_features(graph, trials, device),
            adjacency=adjacency.to(device),
            labels=graph.labels.to(device),
            parts={name: mask.nonzero().squeeze(1).to(device) for name, mask in parts.items()},
            num_features=graph.num_features,
            num_classes=graph.num_classes,
        )

    def losses(self, logits: Tensor, part: str) -> Tensor:
        """Return every trial's mean cross-entropy over the nodes of a part.

        Args:
            logits: ``[nodes, trials, classes]``; the result is ``[trials]``.
            part: of the split.
        """
        nodes = self.parts[part]
        return part_losses(logits[nodes], self.labels[nodes])

    def accuracies(self, logits: Tensor, part: str) -> Tensor:
        """Return every trial's fraction of right answers among the nodes of a part: ``[trials]``."""
        nodes = self.parts[part]
        return part_accuracies(logits[nodes], self.labels[nodes])

    def metrics(self, logits: Tensor) -> dict[str, Tensor]:
        """Return loss and accuracy of every part, per trial."""
        return {f"{part}_loss": self.losses(logits, part) for part in self.parts} | {
            f"{part}_accuracy": self.accuracies(logits, part) for part in self.parts
        }


def part_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of ``[nodes, ..., classes]`` logits: ``[...]``, one for each model."""
    index = labels.view(-1, *[1] * (logits.dim() - 1)).expand(*logits.shape[:-1], 1)
    return -logits.log_softmax(-1).gather(-1, index).squeeze(-1).mean(0)


def part_accuracies(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the share of right answers of ``[nodes, ..., classes]`` logits: ``[...]``, one per model."""
    return accuracies(logits.movedim(0, -1), labels)


def accuracies(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the same of ``[..., classes, nodes]`` logits."""
    largest, predicted = logits.max(-2)
    # Of logits that are NaN torch takes the first class, so that a diverged model would be right at times.
    return ((predicted == labels) & ~largest.isnan()).float().mean(-1)


def _features(
    graph: Graph, trials: Sequence[tuple[Spec, int]], device: torch.device
) -> Tensor | SparseMatrix:
    """Return features shared by all trials where they miss the same, else with a trial axis.

    Sparse ones stay sparse.
    """
    masks = [_missing(graph, spec, seed) for spec, seed in trials]
    if len({mask.kind == "entries" for mask in masks}) > 1:
        raise PairNormError("trials that lose entries and trials that lose vectors cannot train side by side")
    mask = torch.cat([mask.mask for mask in masks], 1)
    alike = torch.equal(mask, mask[:, :1].expand_as(mask))
    mask = mask[:, :1] if alike else mask
    seen = features_after(graph, Missing(masks[0].kind, masks[0].rate, None, mask), trials[0][0].scaling)
    if seen.values.layout != torch.sparse_csr:
        return (seen.dense().squeeze(1) if alike else seen.dense()).to(device)
    # Entries that a trial does not see stay in the pattern, as zeros: dropout goes by an entry's place in it,
    # and a trial's places must not depend on what the others see.
    matrix = SparseMatrix.from_torch(seen.values)
    values = (matrix.values.unsqueeze(1) * seen.keep).t().contiguous()
    return SparseMatrix(matrix.pattern, values.squeeze(0) if alike else values).to(device)


def _missing(graph: Graph, spec: Spec, seed: int) -> Missing:
    if spec.missing_kind == "given":
        return given_missing(graph)
    return DRAW[spec.missing_kind](graph, spec.missing_rate, trials=1, seed=seed)
