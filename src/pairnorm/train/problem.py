"""The problem that trials side by side solve: what each sees of the graph, and its losses and accuracies."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pairnorm.base.errors import PairNormError
from pairnorm.data import (
    Graph,
    Missing,
    features_after,
    given_missing,
    missing_by_class,
    missing_by_degree,
    missing_by_value,
    missing_entries,
    missing_nodes,
    missing_vectors,
)
from pairnorm.impute import impute
from pairnorm.nn import SparseMatrix, normalized_adjacency
from pairnorm.nn.distributed import Shards
from pairnorm.train.spec import Spec

DRAW: dict[str, Callable[..., Missing]] = {
    "vectors": missing_vectors,
    "nodes": missing_nodes,
    "entries": missing_entries,
    "class": missing_by_class,
    "degree": missing_by_degree,
    "value": missing_by_value,
}


@dataclass(frozen=True, eq=False)
class Problem:
    """Features as every trial sees them, the normalized adjacency, the labels, and the nodes of each part.

    Where ranks share the nodes, this is about own nodes; losses and accuracies are those of all.
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
        """Draw what each (spec, seed) is missing and bring everything to the device."""
        if not graph.train.any() or not graph.validation.any():
            raise PairNormError(
                f"graph {graph.name!r} has {int(graph.train.sum())} training and "
                f"{int(graph.validation.sum())} validation nodes",
                code="no-split",
                value=graph.name,
                expected="some of both",
                hint="Give it a split, such as graph.with_split('random').",
            )
        parts = {"train": graph.train, "validation": graph.validation, "test": graph.test}
        adjacency = normalized_adjacency(graph.adjacency, trials[0][0].adjacency).to(device)
        features, labels = _features(graph, trials, device), graph.labels
        width = graph.num_features if isinstance(features, SparseMatrix) else features.size(-1)
        if shards is not None:
            adjacency, features = shards.adjacency(adjacency), shards.own(features)
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
        """Return every trial's mean cross-entropy over the nodes of a part.

        Args:
            logits: ``[nodes, trials, classes]``; the result is ``[trials]``.
            part: of the split.
        """
        nodes = self.parts[part]
        return self._mean(node_losses(logits[nodes], self.labels[nodes]))

    def accuracies(self, logits: Tensor, part: str) -> Tensor:
        """Return every trial's fraction of right answers among the nodes of a part: ``[trials]``."""
        nodes = self.parts[part]
        return self._mean(node_hits(logits[nodes].movedim(0, -1), self.labels[nodes]).movedim(-1, 0))

    def _mean(self, values: Tensor) -> Tensor:
        return values.mean(0) if self.shards is None else self.shards.mean(values)

    def metrics(self, logits: Tensor) -> dict[str, Tensor]:
        """Return loss and accuracy of every part, per trial."""
        return {f"{part}_loss": self.losses(logits, part) for part in self.parts} | {
            f"{part}_accuracy": self.accuracies(logits, part) for part in self.parts
        }


def node_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of ``[nodes, ..., classes]`` logits: ``[nodes, ...]``."""
    index = labels.view(-1, *[1] * (logits.dim() - 1)).expand(*logits.shape[:-1], 1)
    return -logits.log_softmax(-1).gather(-1, index).squeeze(-1)


def part_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of ``[nodes, ..., classes]`` logits: ``[...]``, one for each model."""
    return node_losses(logits, labels).mean(0)


def part_accuracies(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the share of right answers of ``[nodes, ..., classes]`` logits: ``[...]``, one per model."""
    return accuracies(logits.movedim(0, -1), labels)


def accuracies(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the same of ``[..., classes, nodes]`` logits."""
    return node_hits(logits, labels).mean(-1)


def node_hits(logits: Tensor, labels: Tensor) -> Tensor:
    """Return 1 for a right answer of ``[..., classes, nodes]`` logits, else 0: ``[..., nodes]``."""
    largest, predicted = logits.max(-2)
    # Of logits that are NaN torch takes the first class, so that a diverged model would be right at times.
    return ((predicted == labels) & ~largest.isnan()).float()


def _features(
    graph: Graph, trials: Sequence[tuple[Spec, int]], device: torch.device
) -> Tensor | SparseMatrix:
    """Return features shared by all trials where they miss the same, else with a trial axis.

    Sparse ones stay sparse, but for what a fill puts in place of zeros.
    """
    masks = [_missing(graph, spec, seed) for spec, seed in trials]
    if len({mask.kind == "entries" for mask in masks}) > 1:
        problem = "trials that lose entries and trials that lose vectors cannot train side by side"
        raise PairNormError(
            problem, code="mixed-kinds", value=sorted({mask.kind for mask in masks}), expected="one kind"
        )
    mask = torch.cat([mask.mask for mask in masks], 1)
    alike = torch.equal(mask, mask[:, :1].expand_as(mask))
    missing = Missing(masks[0].kind, masks[0].rate, None, mask[:, :1] if alike else mask)
    seen = features_after(graph, missing, trials[0][0].scaling)
    if trials[0][0].imputation != "zero":
        unknown = ~_known(graph, missing).to(device)
        adjacency, values = graph.adjacency.to(device), seen.values.to(device)
        method = trials[0][0].imputation
        return impute(values, unknown.squeeze(1) if alike else unknown, adjacency, method=method)
    if seen.values.layout != torch.sparse_csr:
        return (seen.dense().squeeze(1) if alike else seen.dense()).to(device)
    # Entries that a trial does not see stay in the pattern, as zeros: dropout goes by an entry's place in it,
    # and a trial's places must not depend on what the others see.
    matrix = SparseMatrix.from_torch(seen.values)
    values = (matrix.values.unsqueeze(1) * seen.keep).t().contiguous()
    return SparseMatrix(matrix.pattern, values.squeeze(0) if alike else values).to(device)


def _known(graph: Graph, missing: Missing) -> Tensor:
    """Return what is known, neither drawn as missing nor missing in the data: [n, trials, 1 or features]."""
    known = ~missing.mask.to(graph.device)
    if missing.kind != "entries":
        known = known.unsqueeze(2)
    elif graph.features.layout == torch.sparse_csr:
        # Only entries that are not zero were drawn: that one is missing would tell what it was.
        problem = "single entries of sparse features cannot be filled"
        expected = "dense features, or whole vectors that are missing"
        hint = "Make them dense: graph.replace(features=graph.features.to_dense())."
        raise PairNormError(problem, code="sparse-entries", value="entries", expected=expected, hint=hint)
    else:
        known = known.view(graph.num_nodes, graph.num_features, -1).transpose(1, 2)
    given = graph.missing if graph.missing.dim() == 2 else graph.missing.unsqueeze(1)
    return known & ~given.unsqueeze(1) if given.any() else known


def _missing(graph: Graph, spec: Spec, seed: int) -> Missing:
    if spec.missing_kind == "given":
        return given_missing(graph)
    return DRAW[spec.missing_kind](graph, spec.missing_rate, trials=1, seed=seed)
