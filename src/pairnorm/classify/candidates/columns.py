"""A node as a row of a table: its own columns, the means around it, its degree, and the labels near it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from pairnorm.base.csr import sparse_csr
from pairnorm.classify.candidates.base import KnownLabels
from pairnorm.classify.candidates.propagation import LARGEST_KEPT, has_many_nodes, kept_of, normalized
from pairnorm.classify.holdout import fingerprints
from pairnorm.data import Graph
from pairnorm.data.adjacency import along_and_against
from pairnorm.data.features import stored_rows
from pairnorm.impute.methods import broadcast_mask, known_values
from pairnorm.nn import SparseMatrix
from pairnorm.nn.propagate import propagate_with_restart

FOLDS = 10
ALPHA, ROUNDS = 0.9, 20


def feature_columns(graph: Graph, features: Tensor, hops: int) -> Sequence[Tensor]:
    """Return a node's own features and, for every hop, the mean of what is known around it; NaN for nothing.

    The mean of hop k is over the ends of all walks of k steps, each as probable as a random walker is to take
    it. Last comes the logarithm of 1 + degree: hops + 1 times [n, d], then [n, 1]. Over many nodes they are
    kept as long as the features are.

    Args:
        graph: whose edges, and what it misses.
        features: [n, d], dense.
        hops: how far to look.
    """
    kept: dict[str, tuple[Tensor, Tensor, list[Tensor]]] = kept_of(features, _FEATURES)
    adjacency, missing, found = kept.get("all", (None, None, []))
    if adjacency is not graph.adjacency or missing is not graph.missing or len(found) < hops + 2:
        found = _feature_columns(graph, features, hops)
        if has_many_nodes(graph) and sum(one.nbytes for one in found) <= LARGEST_KEPT:
            kept["all"] = graph.adjacency, graph.missing, found
    return [*found[: hops + 1], found[-1]]


def _feature_columns(graph: Graph, features: Tensor, hops: int) -> list[Tensor]:
    mask = ~broadcast_mask(features, graph.missing.to(features.device))
    matrix, degree = _walk(graph.adjacency, features.device)
    means = _means(matrix, features, mask, hops)
    return [torch.where(mask, features, torch.nan), *means, degree.log1p().unsqueeze(1)]


def _means(matrix: SparseMatrix, features: Tensor, mask: Tensor, hops: int) -> Iterator[Tensor]:
    """Yield, for every hop, the mean of what is known; NaN for nothing."""
    values, mass = known_values(features, ~mask), mask.float()
    for _ in range(hops):
        values, mass = matrix @ values, matrix @ mass
        yield torch.where(mass > 1e-12, values / mass.clamp(min=1e-12), torch.nan)


def direction_columns(graph: Graph, features: Tensor, known: KnownLabels, classes: int) -> Tensor:
    """Return what is around a node along its edges, then against them: [n, 2 (d + classes + 2)].

    Of each direction: the mean of what is known of the neighbors' features, the logarithm of 1 + degree, the
    shares of classes among labeled neighbors, and the logarithm of 1 + how many those are.

    Args:
        graph: whose edges, and what it misses. Where all its edges go both ways, both directions are alike.
        features: [n, d], dense.
        known: the labels to be seen.
        classes: how many there are.
    """
    device = features.device
    mask = ~broadcast_mask(features, graph.missing.to(device))
    given = _given(known.labels_in(graph), classes)
    columns: list[Tensor] = []
    for adjacency in along_and_against(graph.adjacency, graph.directed):
        matrix, degree = _walk(adjacency, device)
        columns += _means(matrix, features, mask, 1)
        columns += [degree.log1p().unsqueeze(1), *_near(matrix, degree, given.to(device))]
    return torch.cat(columns, 1)


def label_columns(graph: Graph, known: KnownLabels, classes: int, device: torch.device) -> Tensor:
    """Return the shares of classes among labeled neighbors, how many those are, and shares further around.

    A node never sees its own label, else a model would learn to copy it: a neighbor is not oneself, and what
    comes from further (label propagation) starts from the labels of other folds, to which nodes belong by
    name. So a known node has the same columns whether it is learned from or predicted. [n, 2 classes + 1].

    Args:
        graph: the one that the labels are of, or one that has changed since.
        known: the labels to be seen.
        classes: how many there are.
        device: where to compute.
    """
    labels = known.labels_in(graph).to(device)
    kept: dict[torch.device, tuple[Tensor, Tensor]] = _KEPT.setdefault(graph.adjacency, {})
    if device not in kept or not torch.equal(kept[device][0], labels):
        kept[device] = labels, _label_columns(graph, labels, classes)
    return kept[device][1]


def _label_columns(graph: Graph, labels: Tensor, classes: int) -> Tensor:
    device = labels.device
    folds = torch.from_numpy(fingerprints(graph) % FOLDS).to(device).where(labels >= 0, FOLDS)
    given = _given(labels, classes)
    # A set of columns for every fold, from the labels outside it, and one from all labels, for the others.
    outside = (folds[:, None] != torch.arange(FOLDS + 1, device=device)).float()
    start = (outside[:, :, None] * given[:, None]).flatten(1)
    state = propagate_with_restart(normalized(graph, "rw", device), start, [ALPHA], ROUNDS)
    far = state.view(len(given), FOLDS + 1, classes)[torch.arange(len(given), device=device), folds]
    return torch.cat([*_near(*_walk(graph.adjacency, device), given), _shares(far)], 1)


# By features: the graph they were last of, and what was made of them. By adjacency: likewise of labels.
_FEATURES: Any = WeakTensorKeyDictionary()
_KEPT: Any = WeakTensorKeyDictionary()


def _given(labels: Tensor, classes: int) -> Tensor:
    return torch.nn.functional.one_hot(labels.clamp(min=0), classes).float() * (labels >= 0)[:, None]


def _near(matrix: SparseMatrix, degree: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
    """Return the shares of classes among labeled neighbors, and the logarithm of 1 + how many those are."""
    near = (matrix @ given) * degree[:, None]
    return _shares(near), near.sum(1, keepdim=True).log1p()


def _shares(values: Tensor) -> Tensor:
    total = values.sum(1, keepdim=True)
    return torch.where(total > 1e-12, values / total.clamp(min=1e-12), torch.nan)


def _walk(adjacency: Tensor, device: torch.device) -> tuple[SparseMatrix, Tensor]:
    """Return D⁻¹A, without self-loops, and the degrees: of a node without edges both are zero."""
    adjacency = adjacency.to(device)
    row, weight = stored_rows(adjacency), adjacency.values()
    degree = weight.new_zeros(len(adjacency)).index_add_(0, row, weight)
    pieces = adjacency.crow_indices(), adjacency.col_indices(), weight / degree[row]
    shares = sparse_csr(*pieces, adjacency.shape)
    return SparseMatrix.from_torch(shares), degree
