"""Gradient-boosted trees over a node's own columns, those around it, and the labels near it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from pairnorm.base.errors import whole_number
from pairnorm.classify.candidates.base import (
    Candidate,
    KnownLabels,
    Results,
    Saved,
    State,
    Task,
    Tick,
    check_size,
    fewer,
)
from pairnorm.classify.candidates.columns import direction_columns, feature_columns, label_columns
from pairnorm.classify.candidates.propagation import has_many_nodes
from pairnorm.classify.regression import principal
from pairnorm.data import Graph
from pairnorm.nn.ops.kernels import installed

HOPS, LEAVES = (1, 3), (4, 16)
# Rounds and learning rate; over many nodes, half as many of twice the rate lose next to nothing.
PACE, QUICK = (200, 0.06), (100, 0.12)
# Of more features than this, the leading principal components are taken.
MOST_FEATURES = 64
MOST_HOPS = 10
# Of more training nodes, where there are many nodes, trees are grown on so many.
ENOUGH_ROWS = 10_000
# How many steps down how many trees are taken at once: 64 MB of indices.
AT_ONCE = 2**23
# How many rows a kernel takes at once, for as many threads as there may be.
ROWS_AT_ONCE = 2**16
FIELDS = ("feature", "threshold", "missing_left", "left", "right", "value")


@dataclass(frozen=True)
class BoostedTrees:
    """scikit-learn's HistGradientBoosting, which takes missing values as they are.

    The number of trees is chosen by the validation loss.

    Args:
        hops: how far around a node to look.
        leaves: the most leaves of a tree.
        directed: whether to tell neighbors along edges from those against them.
        name: of the family.
    """

    hops: Sequence[int] = HOPS
    leaves: Sequence[int] = LEAVES
    directed: Sequence[bool] = (False,)
    name: str = "boosted trees"

    @property
    def steps(self) -> int:
        """One for every setting."""
        return len(self.hops) * len(self.leaves) * len(self.directed)

    def fit(self, task: Task, tick: Tick) -> Results:
        """Yield one for every setting."""
        check_size(task.graph)
        widest, parts = max(self.hops), []
        for fold in task.folds:
            columns = _Columns.of(fold, widest, any(self.directed))
            table = columns(fold.graph, fold.features, fold.device)
            fold = _sampled(fold)
            train, held = (table.rows(mask) for mask in (fold.graph.train, fold.graph.validation))
            parts.append((fold, train, held))
        width = columns.features

        def grow(setting: tuple[bool, int, int]) -> list[Tensor]:
            directed, hops, leaves = setting
            # Fewer hops are the first columns, and those that come after all hops; directions are the last.
            taken = np.r_[: width * (hops + 1), width * (widest + 1) : columns.width(directed)]
            found = [_stages(fold, train[:, taken], held[:, taken], leaves) for fold, train, held in parts]
            return [torch.cat(stage) for stage in zip(*found, strict=True)]

        settings = list(product(self.directed, self.hops, self.leaves))
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            for (directed, hops, leaves), stages in zip(settings, pool.map(grow, settings), strict=True):
                losses = [
                    float(torch.nn.functional.cross_entropy(one, task.held_out_labels)) for one in stages
                ]
                best = int(np.argmin(losses)) if len(task.held_out_labels) else len(stages) - 1
                learn = partial(_learn, hops=hops, leaves=leaves, iterations=best + 1, directed=directed)
                setting = f"{hops} {'hop' if hops == 1 else 'hops'}, {best + 1} rounds of {leaves} leaves"
                setting += ", directed edges" if directed else ""
                yield task.evaluate(
                    Candidate(self.name, setting=setting, directed=directed), stages[best].unsqueeze(1), learn
                )
                tick(f"{self.name}, {setting}")


def _stages(task: Task, train: Any, held: Any, leaves: int) -> list[Tensor]:
    """Return the logits of the rows held out after every round, [m, classes]."""
    with _alone():
        model = _boost(task, train, leaves)
        learned = torch.from_numpy(model.classes_)
        every = model.staged_decision_function(held)
        return [_logits(torch.from_numpy(raw).float(), learned, task.classes) for raw in every]


def _alone() -> Any:
    """Keep scikit-learn to one thread: beside other work its threads take ten times as long as one."""
    from threadpoolctl import threadpool_limits

    return threadpool_limits(1, user_api="openmp")


class _Columns(NamedTuple):
    """How a node becomes a row: features, or their principal components, and labels around it."""

    hops: int
    known: KnownLabels
    classes: int
    features: int
    axes: Tensor | None
    directed: bool = False

    @classmethod
    def of(cls, task: Task, hops: int, directed: bool = False) -> Self:
        axes = None
        if task.features.shape[1] > MOST_FEATURES:
            rows = task.features.to_dense()[~task.graph.missing_vectors].double()
            axes = principal(rows)[0][:, -MOST_FEATURES:].float().cpu()
        features = task.features.shape[1] if axes is None else axes.shape[1]
        return cls(hops, KnownLabels.of(task.graph), task.classes, features, axes, directed)

    def width(self, directed: bool) -> int:
        """Return how many columns there are, those of directions counted or not."""
        around = self.features * (self.hops + 1) + 1 + 2 * self.classes + 1
        return around + (2 * (self.features + self.classes + 2) if directed else 0)

    def __call__(self, graph: Graph, features: Tensor, device: torch.device) -> _Table:
        features = features.to_dense().to(device)
        if self.axes is not None:
            features = features @ self.axes.to(device)
            graph = graph.replace(features=features, missing=graph.missing_vectors, feature_names=None)
        columns = [*feature_columns(graph, features, self.hops)]
        columns.append(label_columns(graph, self.known, self.classes, device))
        if self.directed:
            columns.append(direction_columns(graph, features, self.known, self.classes))
        return _Table(columns)


class _Table(NamedTuple):
    """A row for every node, its columns in parts [n, some], none of which is copied as a whole."""

    parts: Sequence[Tensor]

    def rows(self, nodes: Tensor | slice) -> Any:
        """Return some rows, float32 [nodes, columns], in numpy."""
        return torch.cat([part[nodes] for part in self.parts], 1).cpu().numpy()

    def blocks(self, length: int) -> Iterator[Any]:
        """Yield all rows, so many at a time."""
        for start in range(0, len(self.parts[0]), length):
            yield self.rows(slice(start, start + length))


def _boost(task: Task, known: Any, leaves: int, iterations: int | None = None) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier

    train = task.graph.train.cpu()
    rounds, rate = QUICK if has_many_nodes(task.graph) else PACE
    model = HistGradientBoostingClassifier(
        learning_rate=rate,
        max_iter=iterations or rounds,
        max_leaf_nodes=leaves,
        min_samples_leaf=max(2, min(20, int(train.sum()) // 20)),
        l2_regularization=1.0,
        early_stopping=False,
        random_state=0,
    )
    known[:, np.isnan(known).all(0)] = 0  # without a value there is nothing to cut into bins
    return model.fit(known, task.graph.labels.cpu()[train].numpy())


def _logits(raw: Tensor, learned: Tensor, classes: int) -> Tensor:
    """Return logits of all classes, [m, classes]; one that was not learned gets next to nothing.

    Of two classes, one number parts them: what is raw is [m] or [m, 1] then.
    """
    raw = raw.unsqueeze(1) if raw.dim() == 1 else raw
    raw = raw if raw.shape[1] > 1 else torch.cat([-raw / 2, raw / 2], 1)
    logits = raw.new_full((len(raw), classes), -30.0)
    logits[:, learned] = raw
    return logits


def _sampled(task: Task) -> Task:
    """Return the task with the training nodes that trees are grown on; labels are seen of all."""
    return fewer(task, ENOUGH_ROWS) if has_many_nodes(task.graph) else task


def _learn(task: Task, hops: int, leaves: int, iterations: int, directed: bool) -> Trees:
    columns, some = _Columns.of(task, hops, directed), _sampled(task)
    rows = columns(task.graph, task.features, task.device).rows(some.graph.train)
    with _alone():
        model = _boost(some, rows, leaves, iterations)
    return Trees(columns, *_arrays(model))


def _arrays(model: Any) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor]:
    """Return nodes, roots, baseline and classes of scikit-learn's trees: arrays instead of a pickle."""
    nodes: list[Any] = []
    roots: list[list[int]] = []
    start = 0
    for trees in model._predictors:
        roots.append([])
        for tree in trees:
            nodes.append(tree.nodes)
            roots[-1].append(start)
            start += len(tree.nodes)
    flat = np.concatenate(nodes)
    first = np.repeat(np.concatenate(roots), [len(one) for one in nodes])
    leaf = flat["is_leaf"].astype(bool)
    here = np.arange(start)
    arrays = {
        "feature": np.where(leaf, 0, flat["feature_idx"]),
        "threshold": np.where(leaf, 0.0, flat["num_threshold"]),
        "missing_left": flat["missing_go_to_left"].astype(bool),
        "left": np.where(leaf, here, first + flat["left"]),
        "right": np.where(leaf, here, first + flat["right"]),
        "value": flat["value"],
    }
    found = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
    for name in ("feature", "left", "right"):
        found[name] = found[name].long()
    baseline = torch.from_numpy(np.ravel(model._baseline_prediction).astype(np.float64))
    return found, torch.tensor(roots), baseline, torch.from_numpy(model.classes_).long()


@dataclass(frozen=True, eq=False)
class Trees:
    """Fitted trees as arrays of nodes; a leaf is its own child.

    Args:
        columns: how a node becomes a row.
        nodes: ``feature``, ``threshold``, ``missing_left``, ``left``, ``right``, ``value`` of each.
        roots: int64 [rounds, trees], where each tree begins.
        baseline: float64 [trees], what they are added to.
        learned: int64, the classes that had training nodes.
    """

    columns: _Columns
    nodes: dict[str, Tensor]
    roots: Tensor
    baseline: Tensor
    learned: Tensor

    def logits(self, graph: Graph, features: Tensor, device: torch.device) -> Tensor:
        """Return the sum over all trees for every node, [n, 1, classes]."""
        table = self.columns(graph, features, device)
        if installed("cpu"):
            from pairnorm.classify.candidates.tree_sums import tree_sums

            arrays = tuple(self.nodes[name].numpy() for name in FIELDS)
            roots, baseline = self.roots.numpy(), self.baseline.numpy()
            blocks = (tree_sums(rows, roots, baseline, arrays) for rows in table.blocks(ROWS_AT_ONCE))
            raw = torch.from_numpy(np.concatenate(list(blocks)))
        else:
            every = table.blocks(max(1, AT_ONCE // self.roots.numel()))
            raw = torch.cat([self._sum(torch.from_numpy(rows).double()) for rows in every])
        return _logits(raw, self.learned, self.columns.classes).float().unsqueeze(1).to(device)

    def _sum(self, rows: Tensor) -> Tensor:
        node, at = self.roots.flatten().expand(len(rows), -1), self.nodes
        while True:
            value = rows.gather(1, at["feature"][node])
            left = torch.where(value.isnan(), at["missing_left"][node], value <= at["threshold"][node])
            below = torch.where(left, at["left"][node], at["right"][node])
            if torch.equal(below, node):
                break
            node = below
        return at["value"][node].view(len(rows), *self.roots.shape).sum(1) + self.baseline

    def state(self) -> State:
        """Return the trees and the labels."""
        tensors = {**self.nodes, "roots": self.roots, "baseline": self.baseline, "learned": self.learned}
        tensors |= {"names": self.columns.known.names, "labels": self.columns.known.labels}
        if self.columns.axes is not None:
            tensors["axes"] = self.columns.axes
        return {"hops": self.columns.hops} | ({"directed": True} if self.columns.directed else {}), tensors

    @classmethod
    def restore(cls, saved: Saved) -> Self:
        """Take up trees in which every path goes down, to columns that exist."""
        hops = whole_number("hops", saved.settings["hops"], least=1, most=MOST_HOPS)
        axes = saved.tensors.get("axes")
        if axes is not None and (len(axes) != saved.features or axes.shape[1] > MOST_FEATURES):
            raise ValueError(f"the axes are not those of {saved.features} features")
        features = saved.features if axes is None else axes.shape[1]
        directed = saved.settings.get("directed") is True
        columns = _Columns(hops, KnownLabels.restore(saved), saved.classes, features, axes, directed)
        roots, learned = saved.tensors["roots"], saved.tensors["learned"]
        count = len(saved.tensors["feature"])
        nodes = {name: saved.tensor(name, count) for name in FIELDS}
        here = torch.arange(count)
        left, right, feature = nodes["left"], nodes["right"], nodes["feature"]
        leaf = (left == here) & (right == here)
        down = (left > here) & (right > here) & (torch.maximum(left, right) < count)
        trees = 1 if len(learned) == 2 else len(learned)
        if not (leaf | down).all() or not ((feature >= 0) & (feature < columns.width(directed))).all():
            raise ValueError("the trees lead nowhere")
        if roots.shape[1:] != (trees,) or not ((roots >= 0) & (roots < count)).all():
            raise ValueError("the roots are not those of the trees")
        if not ((learned >= 0) & (learned < saved.classes)).all():
            raise ValueError(f"the trees are not those of {saved.classes} classes")
        return cls(columns, nodes, roots, saved.tensor("baseline", trees), learned)
