"""A node as a row of a table: its own columns, those of its neighbors, its degree, and labels near it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from pairnorm.classify.candidates.prepared import PreparedGraph, random_walk
from pairnorm.classify.candidates.task import KnownLabels
from pairnorm.data.adjacency import along_and_against
from pairnorm.impute.methods import broadcast_mask, known_values
from pairnorm.nn import SparseMatrix
from pairnorm.nn.propagate import propagate_with_restart

FOLDS = 10
ALPHA, ROUNDS = 0.9, 20
MAX_STEPS = 10


def feature_columns(prepared: PreparedGraph, steps: int) -> Sequence[Tensor]:
    """Return a node's own features and, for each step, the mean of known values that far away; NaN if none.

    The mean after k steps is over the ends of all random walks of k steps. Last comes the logarithm of
    1 + degree: steps + 1 times [n, d], then [n, 1].
    """
    for more in range(steps, MAX_STEPS + 1):
        if (columns := prepared.peek(("feature columns", more))) is not None:
            return [*columns[: steps + 1], columns[-1]]
    return prepared.cached(("feature columns", steps), lambda: _feature_columns(prepared, steps))


def _feature_columns(prepared: PreparedGraph, steps: int) -> list[Tensor]:
    features, known = prepared.dense, _known(prepared)
    matrix, degree = prepared.random_walk
    means = _means(matrix, features, known, steps)
    return [torch.where(known, features, torch.nan), *means, degree.log1p().unsqueeze(1)]


def _known(prepared: PreparedGraph) -> Tensor:
    return ~broadcast_mask(prepared.dense, prepared.graph.missing.to(prepared.device))


def _means(matrix: SparseMatrix, features: Tensor, known: Tensor, steps: int) -> Iterator[Tensor]:
    """Yield, for each step, the mean of known values; NaN where there is none."""
    values, mass = known_values(features, ~known), known.float()
    for _ in range(steps):
        values, mass = matrix @ values, matrix @ mass
        yield torch.where(mass > 1e-12, values / mass.clamp(min=1e-12), torch.nan)


def direction_columns(prepared: PreparedGraph, known: KnownLabels, classes: int) -> Tensor:
    """Return columns of the neighbors along a node's edges, then against them: [n, 2 (d + classes + 2)].

    Of each direction: the mean of known features, the logarithm of 1 + degree, the shares of classes among
    labeled neighbors, and the logarithm of 1 + the number of these. Where all edges of the graph go both
    ways, both directions have the same columns.
    """
    graph, device = prepared.graph, prepared.device
    one_hot = _one_hot(known.labels_in(prepared), classes)
    columns: list[Tensor] = []
    for adjacency in along_and_against(graph.adjacency, graph.directed):
        matrix, degree = random_walk(adjacency, device)
        columns += _means(matrix, prepared.dense, _known(prepared), 1)
        columns += [degree.log1p().unsqueeze(1), *_neighbor_shares(matrix, degree, one_hot.to(device))]
    return torch.cat(columns, 1)


def label_columns(prepared: PreparedGraph, known: KnownLabels, classes: int) -> Tensor:
    """Return class shares of labeled neighbors, the number of these, and class shares by label propagation.

    A node never sees its own label, else a model would learn to copy it: a neighbor is not oneself, and label
    propagation starts from the labels of other folds, to which nodes belong by name. So a known node has the
    same columns whether it is learned from or predicted. [n, 2 classes + 1].
    """
    labels = known.labels_in(prepared).to(prepared.device)
    key = "label columns", labels.int().cpu().numpy().tobytes()
    return prepared.cached(key, lambda: _label_columns(prepared, labels, classes))


def _label_columns(prepared: PreparedGraph, labels: Tensor, classes: int) -> Tensor:
    device = labels.device
    folds = torch.from_numpy(prepared.node_fingerprints % FOLDS).to(device).where(labels >= 0, FOLDS)
    one_hot = _one_hot(labels, classes)
    # A set of columns for every fold, from the labels outside it, and one from all labels, for the others.
    outside = (folds[:, None] != torch.arange(FOLDS + 1, device=device)).float()
    start = (outside[:, :, None] * one_hot[:, None]).flatten(1)
    state = propagate_with_restart(prepared.adjacency("rw"), start, [ALPHA], ROUNDS)
    far = state.view(len(one_hot), FOLDS + 1, classes)[torch.arange(len(one_hot), device=device), folds]
    return torch.cat([*_neighbor_shares(*prepared.random_walk, one_hot), _shares(far)], 1)


def _one_hot(labels: Tensor, classes: int) -> Tensor:
    return torch.nn.functional.one_hot(labels.clamp(min=0), classes).float() * (labels >= 0)[:, None]


def _neighbor_shares(matrix: SparseMatrix, degree: Tensor, one_hot: Tensor) -> tuple[Tensor, Tensor]:
    """Return the shares of classes among labeled neighbors, and the logarithm of 1 + their number."""
    near = (matrix @ one_hot) * degree[:, None]
    return _shares(near), near.sum(1, keepdim=True).log1p()


def _shares(values: Tensor) -> Tensor:
    total = values.sum(1, keepdim=True)
    return torch.where(total > 1e-12, values / total.clamp(min=1e-12), torch.nan)
