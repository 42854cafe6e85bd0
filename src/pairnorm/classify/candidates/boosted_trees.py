"""Gradient-boosted trees over a node's own columns, those of its neighbors, and the labels near it."""

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
from pairnorm.classify.candidates.candidate import Candidate, Results, Saved, State, Tick
from pairnorm.classify.candidates.columns import (
    MAX_STEPS,
    direction_columns,
    feature_columns,
    label_columns,
)
from pairnorm.classify.candidates.prepared import PreparedGraph, has_many_nodes
from pairnorm.classify.candidates.task import KnownLabels, Task, fewer
from pairnorm.classify.scaling import check_size
from pairnorm.classify.search_limits import subsample

HOPS, LEAVES = (1, 3), (4, 16)
MAX_ROUNDS, LEARNING_RATE = 150, 0.08
# With many nodes, twice the learning rate halves the number of trees.
FAST_ROUNDS, FAST_LEARNING_RATE = 100, 0.12
# Rounds are chosen on this share of the training rows; trees then grow on all of them.
STOPPING_SHARE, STOPPING_FOLDS = 0.25, 2
# A curve of losses ends after this many rounds without a gain.
STOPPING_PATIENCE = 15
# Histograms of more bins take longer than they gain on tables of a few thousand rows.
MAX_BINS = 63
# Each tree sees this share of the columns.
COLUMN_SHARE = 0.5
# Of more features than this, the leading principal components are taken.
MOST_FEATURES = 64
# With many nodes, trees grow on at most this many training rows.
MAX_ROWS = 10_000
# Logit of a class without training rows.
UNSEEN_LOGIT = -30.0
ROWS_AT_ONCE = 2**16


@dataclass(frozen=True)
class BoostedTrees:
    """LightGBM, which takes missing values as they are, over several neighborhoods and sizes of trees.

    Args:
        hops: how many hops around a node its columns cover.
        leaves: the most leaves of a tree.
        directed: whether in-neighbors and out-neighbors have separate columns.
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
        """Yield one candidate per setting."""
        check_size(task.graph)
        widest, parts = max(self.hops), []
        for fold in task.folds:
            columns = _Columns.of(fold, widest, any(self.directed))
            table = columns(fold.prepared)
            fold = _sampled(fold)
            train, held = (table.rows(mask) for mask in (fold.graph.train, fold.graph.validation))
            parts.append((fold, train, held))
        width = columns.features

        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            for directed, hops, leaves in product(self.directed, self.hops, self.leaves):
                # Fewer hops are the first columns, and those after all hops; directions are the last.
                taken = np.r_[: width * (hops + 1), width * (widest + 1) : columns.width(directed)]
                curves = pool.map(
                    lambda part: _stopping_losses(part[0], part[1][:, taken], leaves),  # noqa: B023
                    parts[:STOPPING_FOLDS],
                )
                rounds = 1 + int(sum(curves).argmin())
                grown = pool.map(
                    lambda part: _Ensemble.grow(part[0], part[1][:, taken], leaves, rounds),  # noqa: B023
                    parts,
                )
                logits = [
                    trees(held_out[:, taken], task.classes)
                    for trees, (*_, held_out) in zip(grown, parts, strict=True)
                ]
                learn = partial(_learn, hops=hops, leaves=leaves, rounds=rounds, directed=directed)
                setting = f"{hops} {'hop' if hops == 1 else 'hops'}, {rounds} rounds of {leaves} leaves"
                setting += ", directed edges" if directed else ""
                candidate = Candidate(self.name, setting=setting, directed=directed)
                yield task.evaluate(candidate, torch.cat(logits).unsqueeze(1), learn)
                tick(f"{self.name}, {setting}")


class _Columns(NamedTuple):
    """The columns of a node: its features or their principal components, and those of its neighborhood."""

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
            axes = task.prepared.principal_axes(MOST_FEATURES)
        features = task.features.shape[1] if axes is None else axes.shape[1]
        return cls(hops, KnownLabels.of(task), task.classes, features, axes, directed)

    def width(self, directed: bool) -> int:
        """Return how many columns there are, those of directions counted or not."""
        around = self.features * (self.hops + 1) + 1 + 2 * self.classes + 1
        return around + (2 * (self.features + self.classes + 2) if directed else 0)

    def __call__(self, prepared: PreparedGraph) -> _Table:
        labels = label_columns(prepared, self.known, self.classes)
        if self.axes is not None:
            prepared = prepared.projected(self.axes)
        columns = [*feature_columns(prepared, self.hops), labels]
        if self.directed:
            columns.append(direction_columns(prepared, self.known, self.classes))
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


def _sampled(task: Task) -> Task:
    """Return the task with the training nodes that trees grow on; label columns use all of them."""
    return fewer(task, MAX_ROWS) if has_many_nodes(task.graph) else task


def _learn(task: Task, hops: int, leaves: int, rounds: int, directed: bool) -> Trees:
    columns, some = _Columns.of(task, hops, directed), _sampled(task)
    rows = columns(task.prepared).rows(some.graph.train)
    return Trees(columns, _Ensemble.grow(some, rows, leaves, rounds))


def _boost(task: Task, rows: Any, target: Any, leaves: int, rounds: int, **options: Any) -> Any:
    """Train LightGBM on rows whose classes are numbered from 0."""
    import lightgbm

    classes = len(task.graph.labels[task.graph.train].unique())
    parameters = {
        "objective": "binary" if classes == 2 else "multiclass",
        "num_class": 1 if classes == 2 else max(2, classes),
        "learning_rate": _pace(task)[1],
        "num_leaves": leaves,
        "min_data_in_leaf": max(2, min(20, len(rows) // 20)),
        "min_data_in_bin": 1,
        "max_bin": MAX_BINS,
        "feature_fraction": COLUMN_SHARE,
        "lambda_l2": 1.0,
        "num_threads": 1,
        "deterministic": True,
        "force_row_wise": True,
        "feature_pre_filter": False,
        "verbose": -1,
    }
    return lightgbm.train(parameters, lightgbm.Dataset(rows, target), rounds, **options)


def _pace(task: Task) -> tuple[int, float]:
    """Return the most rounds, and the learning rate."""
    return (FAST_ROUNDS, FAST_LEARNING_RATE) if has_many_nodes(task.graph) else (MAX_ROUNDS, LEARNING_RATE)


def _targets(task: Task) -> tuple[Tensor, Tensor]:
    """Return the classes that have training nodes, and the number among them of each training node."""
    classes, target = task.graph.labels.cpu()[task.graph.train.cpu()].unique(return_inverse=True)
    return classes, target


def _stopping_losses(task: Task, rows: Any, leaves: int) -> Any:
    """Return the loss after each round, float64 [rounds], summed over training rows left out for this.

    Rounds are chosen by it, and not by the nodes on which the trees are then evaluated.
    """
    import lightgbm

    classes, target = _targets(task)
    most, _ = _pace(task)
    left_out = np.zeros(len(rows), bool)
    left_out[subsample(target, round(STOPPING_SHARE * len(rows))).numpy()] = True
    if len(target[torch.from_numpy(~left_out)].unique()) < len(classes):  # a class of one node
        return np.arange(most) * 0.0
    curve: dict[str, Any] = {}
    held = lightgbm.Dataset(rows[left_out], target.numpy()[left_out])
    callbacks = [
        lightgbm.record_evaluation(curve),
        lightgbm.early_stopping(STOPPING_PATIENCE, verbose=False),
    ]
    kept = rows[~left_out], target.numpy()[~left_out]
    _boost(task, *kept, leaves, most, valid_sets=[held], callbacks=callbacks)
    (losses,) = curve["valid_0"].values()
    # After the end, a curve stays at its last loss, which is above its least.
    return np.pad(losses, (0, most - len(losses)), mode="edge") * left_out.sum()


class _Ensemble(NamedTuple):
    """Trees as LightGBM's text, and the classes they were grown for, int64."""

    text: str
    classes: Tensor

    @classmethod
    def grow(cls, task: Task, rows: Any, leaves: int, rounds: int) -> Self:
        """Grow trees on all training rows."""
        classes, target = _targets(task)
        return cls(_compact(_boost(task, rows, target.numpy(), leaves, rounds).model_to_string()), classes)

    def __call__(self, rows: Any, classes: int, threads: int = 1) -> Tensor:
        """Return the logits of all classes, float32 [m, classes]."""
        import lightgbm

        raw = lightgbm.Booster(model_str=self.text).predict(rows, raw_score=True, num_threads=threads)
        raw = torch.from_numpy(np.asarray(raw)).float().view(len(rows), -1)
        raw = torch.cat([-raw / 2, raw / 2], 1) if raw.shape[1] == 1 else raw
        logits = raw.new_full((len(rows), classes), UNSEEN_LOGIT)
        logits[:, self.classes] = raw[:, : len(self.classes)]
        return logits


# Fields of a tree that prediction needs, in LightGBM's order.
_HEADER = ("version", "num_class", "num_tree_per_iteration", "label_index", "max_feature_idx", "objective",
           "feature_names", "feature_infos")  # fmt: skip
_SPLITS = ("split_feature", "threshold", "decision_type", "left_child", "right_child")
_COUNTS = ("leaf_count", "internal_count")  # of training rows, which explanations need
_TREE = ("num_leaves", "num_cat", *_SPLITS, "leaf_value", *_COUNTS, "is_linear", "shrinkage")


def _compact(text: str) -> str:
    """Return LightGBM's text without statistics and parameters."""
    lines = ["tree"]
    for line in text.partition("end of trees")[0].splitlines():
        name = line.partition("=")[0]
        if name == "Tree":
            lines.append("")
        if name in ("Tree", *_HEADER, *_TREE):
            lines.append(line)
    return "\n".join([*lines, "", "end of trees", ""])


def _validate(text: str, columns: int, classes: int) -> str:
    """Check all that LightGBM would follow blindly: shapes, indices and finite leaves; else a ValueError."""
    header, *trees = text.removesuffix("\nend of trees\n").split("\nTree=")
    facts = _fields(header.removeprefix("tree\n"), _HEADER)
    outputs = 1 if classes == 2 else max(2, classes)
    expected = {
        "version": "v4",
        "num_class": str(outputs),
        "num_tree_per_iteration": str(outputs),
        "label_index": "0",
        "max_feature_idx": str(columns - 1),
    }
    if any(facts[name] != value for name, value in expected.items()) or len(trees) % outputs or not trees:
        raise ValueError("the trees are not those of this table and these classes")
    if facts["objective"] not in (f"multiclass num_class:{outputs}", "binary sigmoid:1"):
        raise ValueError(f"the objective is {facts['objective'][:50]!r}")
    if len(facts["feature_names"].split()) != columns or len(facts["feature_infos"].split()) != columns:
        raise ValueError("the trees have other columns")
    for number, block in enumerate(trees):
        first, _, rest = block.partition("\n")
        _validate_tree(_fields(rest, _TREE), columns)
        if first != str(number):
            raise ValueError("the trees are not in order")
    return text


def _fields(text: str, names: Sequence[str]) -> dict[str, str]:
    lines = [line.partition("=") for line in text.splitlines() if line]
    found = {name: value for name, _, value in lines}
    if len(found) != len(lines) or not found.keys() <= set(names):
        raise ValueError("the trees have unknown fields")
    return found


def _validate_tree(tree: dict[str, str], columns: int) -> None:
    leaves = int(tree["num_leaves"])
    values = np.array(tree["leaf_value"].split(), dtype=float)
    if (tree["num_cat"], tree["is_linear"]) != ("0", "0") or len(values) != leaves or leaves < 1:
        raise ValueError("a tree is not one of numbers")
    if not np.isfinite(values).all() or not np.isfinite(float(tree["shrinkage"])):
        raise ValueError("a leaf is not finite")
    if leaves == 1:
        return
    for name, length in zip(_COUNTS, (leaves, leaves - 1), strict=True):
        counts = np.array(tree[name].split(), dtype=np.int64)
        if len(counts) != length or not (counts > 0).all():
            raise ValueError("a tree has no count of its rows")
    feature, kind, left, right = (
        np.array(tree[name].split(), dtype=np.int64)
        for name in ("split_feature", "decision_type", "left_child", "right_child")
    )
    threshold = np.array(tree["threshold"].split(), dtype=float)
    nodes = np.arange(leaves - 1)
    if not all(len(one) == len(nodes) for one in (feature, kind, left, right, threshold)):
        raise ValueError("a tree has a node too many or too few")
    children = np.concatenate([left, right])
    below = children[children >= 0]
    # Every inner node but the root, and every leaf, is the child of one node, which comes before it.
    if sorted(below) != [*nodes[1:]] or sorted(-1 - children[children < 0]) != [*range(leaves)]:
        raise ValueError("a tree leads nowhere")
    if not ((left < 0) | (left > nodes)).all() or not ((right < 0) | (right > nodes)).all():
        raise ValueError("a tree leads in a circle")
    if not ((feature >= 0) & (feature < columns)).all() or np.isnan(threshold).any():
        raise ValueError("a tree asks for a column that does not exist")
    if not np.isin(kind, (0, 2, 4, 6, 8, 10)).all():
        raise ValueError("a tree has a split of an unknown kind")


@dataclass(frozen=True, eq=False)
class Trees:
    """Fitted trees, and how the columns are made that they were grown on."""

    columns: _Columns
    ensemble: _Ensemble

    def logits(self, prepared: PreparedGraph) -> Tensor:
        """Return the sum over all trees for every node, [n, 1, classes]."""
        table, threads = self.columns(prepared), torch.get_num_threads()
        blocks = [self.ensemble(rows, self.columns.classes, threads) for rows in table.blocks(ROWS_AT_ONCE)]
        return torch.cat(blocks).unsqueeze(1).to(prepared.device)

    def state(self) -> State:
        """Return the trees as bytes, and the known labels."""
        known, axes = self.columns.known, self.columns.axes
        text = torch.from_numpy(np.frombuffer(self.ensemble.text.encode(), dtype=np.uint8).copy())
        tensors = {
            "trees": text,
            "classes": self.ensemble.classes,
            "names": known.names,
            "labels": known.labels,
        }
        tensors |= {} if axes is None else {"axes": axes}
        return {"hops": self.columns.hops} | ({"directed": True} if self.columns.directed else {}), tensors

    @classmethod
    def restore(cls, saved: Saved) -> Self:
        """Read and validate what ``state`` gave."""
        hops = whole_number("hops", saved.settings["hops"], least=1, most=MAX_STEPS)
        axes, classes = saved.tensors.get("axes"), saved.tensors["classes"]
        if axes is not None and (len(axes) != saved.features or axes.shape[1] > MOST_FEATURES):
            raise ValueError(f"the axes are not those of {saved.features} features")
        features = saved.features if axes is None else axes.shape[1]
        directed = saved.settings.get("directed") is True
        columns = _Columns(hops, KnownLabels.restore(saved), saved.classes, features, axes, directed)
        if classes.dim() != 1 or not len(classes) or len(classes.unique()) != len(classes):
            raise ValueError("the classes of the trees are not a list")
        if (
            not ((classes >= 0) & (classes < saved.classes)).all()
            or saved.tensors["trees"].dtype != torch.uint8
        ):
            raise ValueError(f"the trees are not those of {saved.classes} classes")
        text = saved.tensors["trees"].numpy().tobytes().decode("ascii")
        return cls(columns, _Ensemble(_validate(text, columns.width(directed), len(classes)), classes))
