"""A node as a row of a table: its own columns, those of its neighbors, its degree, and labels near it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairnorm.classify.candidates.prepared import PreparedGraph, random_walk
from pairnorm.classify.candidates.task import KnownLabels, Task
from pairnorm.data.adjacency import along_and_against
from pairnorm.impute.methods import broadcast_mask, known_values
from pairnorm.nn import SparseMatrix
from pairnorm.nn.propagate import propagate_with_restart

NUM_FOLDS = 10
ALPHA, PROPAGATION_STEPS = 0.9, 20
MAX_HOPS = 10
# Of more features than this, the leading principal components are used.
MAX_FEATURES = 64
DIRECTIONS = ("out-neighbors", "in-neighbors")


class NodeTable(NamedTuple):
    """Rows of nodes; their columns are in named blocks, [n, some] each."""

    blocks: Mapping[str, Tensor]

    def take(self, nodes: Tensor) -> NodeTable:
        """Return the rows of some nodes, on the CPU."""
        return NodeTable({name: block[nodes.to(block.device)].cpu() for name, block in self.blocks.items()})

    def rows(self, nodes: slice = slice(None), names: Sequence[str] | None = None) -> NDArray[np.float32]:
        """Return some rows, of all blocks or some of them, side by side."""
        blocks = self.blocks.values() if names is None else [self.blocks[name] for name in names]
        return torch.cat([block[nodes] for block in blocks], 1).cpu().numpy()


class NodeColumns(NamedTuple):
    """How the columns of a node are computed, in any graph.

    Args:
        hops: how many hops around a node its columns cover.
        known: the training labels.
        classes: number of classes.
        features: number of features, or of principal components.
        axes: [d, features], the principal axes; None for the features themselves.
        directed: whether in-neighbors and out-neighbors have separate columns, too.
    """

    hops: int
    known: KnownLabels
    classes: int
    features: int
    axes: Tensor | None = None
    directed: bool = False

    @classmethod
    def of(cls, task: Task, hops: int, directed: bool = False) -> Self:
        """Return the columns of a task's nodes, given the labels of its training nodes."""
        features, axes = task.features.shape[1], None
        if features > MAX_FEATURES:
            axes = task.prepared.principal_axes(MAX_FEATURES)
            features = axes.shape[1]
        return cls(hops, KnownLabels.of(task), task.classes, features, axes, directed)

    @property
    def blocks(self) -> dict[str, int]:
        """The names of the blocks, in order, and how many columns each has."""
        widths = {"own": self.features} | {f"hop {hop}": self.features for hop in range(1, self.hops + 1)}
        widths |= {"degree": 1, "labels": 2 * self.classes + 1}
        return widths | ({"directions": 2 * (self.features + self.classes + 2)} if self.directed else {})

    def table(self, prepared: PreparedGraph) -> NodeTable:
        """Return the rows of all nodes of a graph."""
        labels = label_columns(prepared, self.known, self.classes)
        if self.axes is not None:
            prepared = prepared.projected(self.axes)
        columns = [*feature_columns(prepared, self.hops), labels]
        if self.directed:
            columns.append(direction_columns(prepared, self.known, self.classes))
        return NodeTable(dict(zip(self.blocks, columns, strict=True)))

    def keys(self, features: Sequence[str], classes: Sequence[str]) -> list[tuple[str, str]]:
        """Return the source of each column (``"node"``, ``"neighborhood"`` or ``"labels"``) and its name."""
        if self.axes is not None:
            leading = self.axes.abs().topk(min(2, len(features)), 0).indices.T.tolist()
            features = [
                f"principal component {number} ({', '.join(features[one] for one in pair)}, …)"
                for number, pair in enumerate(leading)
            ]
        keys = [("node", name) for name in features]
        keys += [("neighborhood", name) for _ in range(self.hops) for name in features]
        keys += [("node", "number of neighbors")]
        keys += [("labels", f"neighbors labeled {name}") for name in classes]
        keys += [("labels", "number of labeled neighbors")]
        keys += [("labels", f"{name} around it") for name in classes]
        for direction in DIRECTIONS if self.directed else ():
            keys += [("neighborhood", f"{name} of {direction}") for name in features]
            keys += [("node", f"number of {direction}")]
            keys += [("labels", f"{direction} labeled {name}") for name in classes]
            keys += [("labels", f"number of labeled {direction}")]
        return keys


def feature_columns(prepared: PreparedGraph, hops: int) -> Sequence[Tensor]:
    """Return a node's own features and, for each hop, the mean of known values that far away; NaN if none.

    The mean after k hops is over the ends of all random walks of k steps. The last column is the logarithm of
    1 + degree: hops + 1 times [n, d], then [n, 1].
    """
    for more in range(hops, MAX_HOPS + 1):
        if (columns := prepared.peek(("feature columns", more))) is not None:
            return [*columns[: hops + 1], columns[-1]]

    def compute() -> list[Tensor]:
        features, known = prepared.dense, _known(prepared)
        matrix, degree = prepared.random_walk
        means = _known_means(matrix, features, known, hops)
        return [torch.where(known, features, torch.nan), *means, degree.log1p().unsqueeze(1)]

    return prepared.cached(("feature columns", hops), compute)


def _known(prepared: PreparedGraph) -> Tensor:
    return ~broadcast_mask(prepared.dense, prepared.graph.missing.to(prepared.device))


def _known_means(matrix: SparseMatrix, features: Tensor, known: Tensor, hops: int) -> Iterator[Tensor]:
    """Yield, for each hop, the mean of known values; NaN where there is none."""
    values, share = known_values(features, ~known), known.float()
    for _ in range(hops):
        values, share = matrix @ values, matrix @ share
        yield _ratio(values, share)


def _ratio(values: Tensor, total: Tensor) -> Tensor:
    return torch.where(total > 1e-12, values / total.clamp(min=1e-12), torch.nan)


def direction_columns(prepared: PreparedGraph, known: KnownLabels, classes: int) -> Tensor:
    """Return columns of the neighbors along a node's edges, then against them: [n, 2 (d + classes + 2)].

    Of each direction: the mean of known features, the logarithm of 1 + degree, the shares of classes among
    labeled neighbors, and the logarithm of 1 + the number of these. Where all edges of the graph go both
    ways, both directions have the same columns.
    """
    graph, one_hot = prepared.graph, known.one_hot(prepared, classes)
    columns: list[Tensor] = []
    for adjacency in along_and_against(graph.adjacency, graph.directed):
        matrix, degree = random_walk(adjacency, prepared.device)
        columns += _known_means(matrix, prepared.dense, _known(prepared), 1)
        columns += [degree.log1p().unsqueeze(1), *_neighbor_shares(matrix, degree, one_hot)]
    return torch.cat(columns, 1)


def label_columns(prepared: PreparedGraph, known: KnownLabels, classes: int) -> Tensor:
    """Return class shares of labeled neighbors, the number of these, and class shares by label propagation.

    No column of a node depends on its own label, else a model would learn to copy it: a node is not its own
    neighbor, and label propagation starts from the labels of other folds, to which nodes belong by name. So a
    known node has the same columns whether it trains a model or is predicted. [n, 2 classes + 1].
    """
    one_hot = known.one_hot(prepared, classes)

    def compute() -> Tensor:
        device, nodes = one_hot.device, torch.arange(len(one_hot), device=one_hot.device)
        folds = torch.from_numpy(prepared.node_fingerprints % NUM_FOLDS).to(device)
        folds = folds.where(one_hot.any(1), NUM_FOLDS)
        # One set of columns per fold, from the labels outside it, and one from all labels, for other nodes.
        outside = (folds[:, None] != torch.arange(NUM_FOLDS + 1, device=device)).float()
        start = (outside[:, :, None] * one_hot[:, None]).flatten(1)
        state = propagate_with_restart(prepared.adjacency("rw"), start, [ALPHA], PROPAGATION_STEPS)
        far = state.view(len(one_hot), NUM_FOLDS + 1, classes)[nodes, folds]
        shares = _ratio(far, far.sum(1, keepdim=True))
        return torch.cat([*_neighbor_shares(*prepared.random_walk, one_hot), shares], 1)

    return prepared.cached(("label columns", one_hot.bool().cpu().numpy().tobytes()), compute)


def _neighbor_shares(matrix: SparseMatrix, degree: Tensor, one_hot: Tensor) -> tuple[Tensor, Tensor]:
    """Return the shares of classes among labeled neighbors, and the logarithm of 1 + their number."""
    near = (matrix @ one_hot) * degree[:, None]
    count = near.sum(1, keepdim=True)
    return _ratio(near, count), count.log1p()
