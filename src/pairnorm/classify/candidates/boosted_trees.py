"""Models over a table of nodes: gradient-boosted trees, and classifiers of other packages."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points
from itertools import product
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairnorm.base.errors import PairNormError, quoted
from pairnorm.classify.candidates.columns import NodeColumns, NodeTable
from pairnorm.classify.candidates.ensemble import improves
from pairnorm.classify.candidates.task import (
    CHEAP_SHARE,
    Candidate,
    CandidateResult,
    Results,
    SavedState,
    State,
    Task,
    Tick,
    limit_training_nodes,
)
from pairnorm.classify.regression import subsample
from pairnorm.classify.scaling import PreparedGraph, check_size, has_many_nodes

HOPS, LEAVES = (1, 3), (4, 16)
MAX_ROUNDS, LEARNING_RATE = 150, 0.08
# With many nodes, a larger learning rate needs fewer trees.
FAST_ROUNDS, FAST_LEARNING_RATE = 100, 0.12
# Rounds are chosen on this share of the training rows in this many folds, with early stopping after this many
# rounds without a gain; trees then grow on all rows.
STOPPING_SHARE, STOPPING_FOLDS, STOPPING_PATIENCE = 0.25, 2, 15
# More bins take longer than they gain on a few thousand rows. Each tree uses a share of the columns.
MAX_BINS, COLUMN_SHARE = 63, 0.5
# With many nodes, trees grow on at most this many training rows.
MAX_ROWS = 10_000
# Logit and probability of a class without training rows.
UNSEEN_LOGIT, MIN_PROBABILITY = -30.0, 1e-12
ROWS_AT_ONCE = 2**16
GROUP = "pairnorm.candidates"
"""The group of entry points: the name of a candidate, and a factory of scikit-learn classifiers."""
FACTORIES: dict[str, Callable[[], Any]] = {}
"""Registered factories by the name of their candidate."""


@dataclass(frozen=True)
class BoostedTrees:
    """LightGBM, which handles missing values itself, over several neighborhoods and sizes of trees.

    ``extras`` are further blocks of columns, which are used where they reduce the held-out loss.
    """

    hops: Sequence[int] = HOPS
    leaves: Sequence[int] = LEAVES
    directed: Sequence[bool] = (False,)
    extras: Sequence[str] = ()
    name: str = "boosted trees"

    @property
    def steps(self) -> int:
        """The number of steps: one per setting and per extra block."""
        return len(self.hops) * len(self.leaves) * len(self.directed) + len(self.extras)

    def fit(self, task: Task, tick: Tick) -> Results:
        """Yield one candidate per setting, then the best one with the extra blocks that improve it."""
        check_size(task.graph)
        widest = _Setting(max(self.hops), 0, any(self.directed))
        folds = [_Fold.of(fold, widest) for fold in task.folds]
        results: dict[_Setting, CandidateResult] = {}
        for directed, hops, leaves in product(self.directed, self.hops, self.leaves):
            setting = _Setting(hops, leaves, directed)
            results[setting] = _evaluate(task, folds, setting, self.name)
            yield results[setting]
            tick(f"{self.name}, {results[setting].candidate.setting}")
        best = min(results, key=lambda setting: results[setting].validation_loss)
        without = {"missing"} if not task.graph.missing.any() and task.feature_mask is None else set()
        without |= {"SGC"} if task.limits.is_expensive or task.classes < 2 else set()
        in_time = task.allows(CHEAP_SHARE) and not has_many_nodes(task.graph)
        extras = [name for name in self.extras if in_time and name not in without]
        if extras:
            folds = [_Fold.of(fold, best._replace(extras=tuple(extras))) for fold in task.folds]
        better: tuple[str, ...] = ()
        for name in extras:
            start = time.perf_counter()
            result = _evaluate(task, folds, best._replace(extras=(*better, name)), self.name)
            if improves(task, result.probabilities, results[best._replace(extras=better)].probabilities):
                better = *better, name
                results[best._replace(extras=better)] = result
                yield result
            tick(f"{self.name}, {name}")
            if not task.allows(CHEAP_SHARE, time.perf_counter() - start):
                break


class _Setting(NamedTuple):
    """Settings of trees and their columns."""

    hops: int
    leaves: int
    directed: bool = False
    extras: tuple[str, ...] = ()


class _Fold(NamedTuple):
    """A fold, its task with limited training nodes, its widest columns, and rows to train on and held out."""

    task: Task
    limited: Task
    columns: NodeColumns
    train: NodeTable
    held_out: NodeTable

    @classmethod
    def of(cls, task: Task, widest: _Setting) -> Self:
        columns = NodeColumns.of(task, widest.hops, widest.directed, widest.extras)
        # Trees grow on some of the training nodes; label columns use all of them.
        limited = limit_training_nodes(task, MAX_ROWS) if has_many_nodes(task.graph) else task
        table = columns.table(task.prepared)
        train, held_out = table.take(limited.graph.train), table.take(task.graph.validation)
        return cls(task, limited, columns, train, held_out)


def _evaluate(task: Task, folds: Sequence[_Fold], setting: _Setting, name: str) -> CandidateResult:
    """Choose the number of rounds, grow trees in every fold, and evaluate them."""
    hops, leaves, directed, extras = setting
    columns = [fold.columns._replace(hops=hops, directed=directed, extras=extras) for fold in folds]
    blocks = list(columns[0].blocks)
    tables = [(fold.limited, fold.train.rows(names=blocks)) for fold in folds]
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        losses = pool.map(partial(_stopping_losses, leaves=leaves), tables[:STOPPING_FOLDS])
        rounds = 1 + int(np.sum(list(losses), 0).argmin())
        grown = list(pool.map(partial(_Ensemble.grow, leaves=leaves, rounds=rounds), tables))
    logits = [
        trees(fold.held_out.rows(names=blocks), task.classes)
        for trees, fold in zip(grown, folds, strict=True)
    ]
    text = [f"{hops} {'hop' if hops == 1 else 'hops'}", f"{rounds} rounds of {leaves} leaves"]
    text += [*(["directed edges"] if directed else []), *extras]
    candidate = Candidate(name, setting=", ".join(text), directed=directed)
    fitted = (Trees(*parts) for parts in zip(columns, grown, strict=True))
    by_fold = {fold.task: trees for fold, trees in zip(folds, fitted, strict=True)}
    fit = partial(_fit, setting=setting, rounds=rounds, by_fold=by_fold)
    return task.evaluate(candidate, torch.cat(logits).unsqueeze(1), fit)


def _fit(task: Task, setting: _Setting, rounds: int, by_fold: Mapping[Task, Trees]) -> Trees:
    """Return the trees grown in a fold, or grow those of another task."""
    if task in by_fold:
        return by_fold[task]
    fold = _Fold.of(task, setting)
    rows = fold.train.rows()
    return Trees(fold.columns, _Ensemble.grow((fold.limited, rows), setting.leaves, rounds))


def _boost(task: Task, rows: Any, target: Any, leaves: int, rounds: int, **options: Any) -> Any:
    """Train LightGBM on rows whose classes are numbered from 0."""
    import lightgbm

    classes = int(target.max()) + 1
    parameters = {
        "objective": "binary" if classes == 2 else "multiclass",
        "num_class": 1 if classes == 2 else max(2, classes),
        "learning_rate": FAST_LEARNING_RATE if has_many_nodes(task.graph) else LEARNING_RATE,
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


def _stopping_losses(table: tuple[Task, Any], leaves: int) -> NDArray[np.float64]:
    """Return the loss after each round, summed over training rows left out for early stopping.

    The nodes that evaluate the trees have no part in choosing the rounds.
    """
    import lightgbm

    task, rows = table
    labels = task.graph.labels[task.graph.train].cpu()
    max_rounds = FAST_ROUNDS if has_many_nodes(task.graph) else MAX_ROUNDS
    left_out = np.zeros(len(rows), bool)
    left_out[subsample(labels, round(STOPPING_SHARE * len(rows))).numpy()] = True
    classes, target = np.unique(labels[~left_out].numpy(), return_inverse=True)
    evaluated = left_out & np.isin(labels.numpy(), classes)  # a rare class may be left out altogether
    if not evaluated.any():
        return np.zeros(max_rounds)
    curve: dict[str, Any] = {}
    validation = lightgbm.Dataset(rows[evaluated], np.searchsorted(classes, labels[evaluated].numpy()))
    stop = lightgbm.early_stopping(STOPPING_PATIENCE, verbose=False)
    options = {"valid_sets": [validation], "callbacks": [lightgbm.record_evaluation(curve), stop]}
    _boost(task, rows[~left_out], target, leaves, max_rounds, **options)
    (losses,) = curve["valid_0"].values()
    # After its end, a curve stays at its last loss, which is above its least.
    return np.pad(np.array(losses) * evaluated.sum(), (0, max_rounds - len(losses)), mode="edge")


class _Ensemble(NamedTuple):
    """Trees as LightGBM's text, and the classes they were grown for, int64."""

    text: str
    classes: Tensor

    @classmethod
    def grow(cls, table: tuple[Task, Any], leaves: int, rounds: int) -> Self:
        """Grow trees on all training rows."""
        task, rows = table
        classes, target = task.graph.labels[task.graph.train].cpu().unique(return_inverse=True)
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


@dataclass(frozen=True, eq=False)
class Trees:
    """Fitted trees, and the ``NodeColumns`` that they take."""

    columns: NodeColumns
    ensemble: _Ensemble

    def logits(self, prepared: PreparedGraph) -> Tensor:
        """Return the sum over all trees for every node, [n, 1, classes]."""
        table, threads = self.columns.table(prepared), torch.get_num_threads()
        blocks = [
            self.ensemble(table.rows(slice(start, start + ROWS_AT_ONCE)), self.columns.classes, threads)
            for start in range(0, prepared.graph.num_nodes, ROWS_AT_ONCE)
        ]
        return torch.cat(blocks).unsqueeze(1).to(prepared.device)

    def state(self) -> State:
        """Return the trees as bytes, and the state of the columns, for ``restore``."""
        text = torch.from_numpy(np.frombuffer(self.ensemble.text.encode(), dtype=np.uint8).copy())
        settings, tensors = self.columns.state()
        return settings, {"trees": text, "classes": self.ensemble.classes, **tensors}

    @classmethod
    def restore(cls, saved: SavedState) -> Self:
        """Read and validate the result of ``state``."""
        columns = NodeColumns.restore(saved)
        classes, text = saved.tensors["classes"], saved.tensors["trees"]
        _require(text.dtype == torch.uint8, "there are no trees")
        _require(classes.dim() == 1 and len(classes.unique()) == len(classes) > 0, "classes are not a list")
        in_range = bool(((classes >= 0) & (classes < saved.classes)).all())
        _require(in_range, f"the trees are not those of {saved.classes} classes")
        trees = text.numpy().tobytes().decode("ascii")
        return cls(columns, _Ensemble(_validate(trees, sum(columns.blocks.values()), len(classes)), classes))


# Fields of LightGBM's text that prediction needs.
_HEADER = ("version", "num_class", "num_tree_per_iteration", "label_index", "max_feature_idx", "objective",
           "feature_names", "feature_infos")  # fmt: skip
# The type of each field of a split, and of each count of training rows, which explanations need.
_SPLITS = {"split_feature": int, "threshold": float, "decision_type": int, "left_child": int,
           "right_child": int, "internal_count": int}  # fmt: skip
_TREE = ("num_leaves", "num_cat", *_SPLITS, "leaf_value", "leaf_count", "is_linear", "shrinkage")


def _compact(text: str) -> str:
    """Return LightGBM's text without statistics and parameters."""
    lines = ["tree"]
    for line in text.partition("end of trees")[0].splitlines():
        name = line.partition("=")[0]
        lines += [""] if name == "Tree" else []
        lines += [line] if name in ("Tree", *_HEADER, *_TREE) else []
    return "\n".join([*lines, "", "end of trees", ""])


def _require(valid: Any, problem: str) -> None:
    if not valid:
        raise ValueError(problem)


def _validate(text: str, columns: int, classes: int) -> str:
    """Check what LightGBM does not: shapes, indices and finite leaves. Raises ValueError."""
    header, *trees = text.removesuffix("\nend of trees\n").split("\nTree=")
    fields = _parse_fields(header.removeprefix("tree\n"), _HEADER)
    outputs = 1 if classes == 2 else max(2, classes)
    expected = ["v4", str(outputs), str(outputs), "0", str(columns - 1)]
    _require([fields[name] for name in _HEADER[:5]] == expected, "the trees are those of another table")
    _require(bool(trees) and len(trees) % outputs == 0, "the trees are those of other classes")
    objectives = (f"multiclass num_class:{outputs}", "binary sigmoid:1")
    _require(fields["objective"] in objectives, f"the objective is {fields['objective'][:50]!r}")
    widths = {len(fields[name].split()) for name in ("feature_names", "feature_infos")}
    _require(widths == {columns}, "the trees have other columns")
    for number, tree in enumerate(trees):
        first, _, body = tree.partition("\n")
        _require(first == str(number), "the trees are not in order")
        _validate_tree(_parse_fields(body, _TREE), columns)
    return text


def _parse_fields(text: str, names: Sequence[str]) -> dict[str, str]:
    lines = [line.partition("=") for line in text.splitlines() if line]
    fields = {name: value for name, _, value in lines}
    _require(len(fields) == len(lines) and fields.keys() <= set(names), "the trees have unknown fields")
    return fields


def _validate_tree(tree: dict[str, str], columns: int) -> None:
    leaves, values = int(tree["num_leaves"]), np.array(tree["leaf_value"].split(), dtype=float)
    _require((tree["num_cat"], tree["is_linear"]) == ("0", "0"), "a tree is not one of numbers")
    _require(len(values) == leaves > 0, "a tree has a leaf too many or too few")
    _require(np.isfinite([*values, float(tree["shrinkage"])]).all(), "a leaf is not finite")
    if leaves == 1:
        return
    splits: list[Any] = [np.array(tree[name].split(), dtype=kind) for name, kind in _SPLITS.items()]
    feature, threshold, kind, left, right, count = splits
    counts = [*count, *np.array(tree["leaf_count"].split(), dtype=int)]
    _require({len(column) for column in splits} == {leaves - 1}, "a tree has a node too many or too few")
    nodes, children = np.arange(leaves - 1), np.concatenate([left, right])
    # Every inner node except the root, and every leaf, is the child of one node, which comes before it.
    inner, outer = sorted(children[children >= 0]), sorted(~children[children < 0])
    _require(inner == [*nodes[1:]] and outer == [*range(leaves)], "a node of a tree has not one parent")
    _require(((children < 0) | (children > np.tile(nodes, 2))).all(), "a tree has a cycle")
    exists = ((feature >= 0) & (feature < columns)).all() and not np.isnan(threshold).any()
    _require(exists, "a tree splits a column that does not exist")
    _require(np.isin(kind, (0, 2, 4, 6, 8, 10)).all(), "a tree has a split of an unknown kind")
    _require(len(counts) == 2 * leaves - 1 and min(counts) > 0, "a tree has no count of its rows")


def register_candidate(name: str, factory: Callable[[], Any]) -> None:
    """Register a classifier as a candidate of ``fit``, for ``NodeClassifier(model=name)``.

    Its columns are those of boosted trees: a node's own features, the means of its neighbors, its degree, and
    shares of labels near it. Missing values are NaN. A saved model holds the training rows, and loading it
    fits the classifier again: register it first, since a file never imports code.

    Args:
        name: of the candidate, in options and reports.
        factory: returns a new classifier with scikit-learn's ``fit(X, y)`` and ``predict_proba(X)``.

    Example:
        >>> from sklearn.ensemble import HistGradientBoostingClassifier
        >>> register_candidate("histogram trees", HistGradientBoostingClassifier)
    """
    if not isinstance(name, str) or not name.isprintable() or not name.strip() or "," in name:
        expected = "a name that can be printed, without a comma"
        raise PairNormError(
            f"a candidate is named {quoted(name)}", code="not-a-name", value=name, expected=expected
        )
    FACTORIES[name] = factory


def find_candidate(name: str) -> str | None:
    """Return the name of a registered candidate, or of an entry point, which is imported; None for others."""
    if name not in FACTORIES:
        for entry in entry_points(group=GROUP, name=name):
            register_candidate(name, entry.load())
    return name if name in FACTORIES else None


def check_registered(model: str) -> None:
    """Raise an error unless a saved candidate is registered: text in a file never imports code."""
    if model not in FACTORIES:
        raise PairNormError(
            f"candidate {quoted(model)} is not registered: a saved model never imports code",
            code="not-imported",
            value=model,
            hint="If you trust it, call pairnorm.classify.register_candidate before you load the model.",
        )


@dataclass(frozen=True)
class EstimatorFamily:
    """A registered classifier, with its default settings."""

    name: str
    steps: int = 1

    def fit(self, task: Task, tick: Tick) -> Results:
        """Yield the fitted classifier, the only candidate."""
        fit = partial(_fit_estimator, name=self.name)
        yield task.evaluate(Candidate(self.name), task.held_out_logits(fit), fit)
        tick(self.name)


def _fit_estimator(task: Task, name: str) -> FittedEstimator:
    columns, limited = NodeColumns.of(task, hops=1), limit_training_nodes(task, MAX_ROWS)
    rows = columns.table(task.prepared).take(limited.graph.train).rows()
    labels = limited.graph.labels[limited.graph.train]
    return FittedEstimator.of(name, columns, torch.from_numpy(rows), labels)


@dataclass(frozen=True, eq=False)
class FittedEstimator:
    """A fitted classifier, the columns that it takes, and its training rows and labels."""

    name: str
    columns: NodeColumns
    rows: Tensor
    labels: Tensor
    estimator: Any

    @classmethod
    def of(cls, name: str, columns: NodeColumns, rows: Tensor, labels: Tensor) -> Self:
        """Fit a new classifier to rows, [m, columns], and labels, int64 [m]."""
        estimator, labels = FACTORIES[name](), labels.cpu()
        estimator.fit(rows.numpy(), labels.numpy())
        return cls(name, columns, rows, labels, estimator)

    def logits(self, prepared: PreparedGraph) -> Tensor:
        """Return the logarithms of the probabilities of every node, [n, 1, classes]."""
        known = torch.from_numpy(self.estimator.predict_proba(self.columns.table(prepared).rows())).float()
        probabilities = torch.full((len(known), self.columns.classes), MIN_PROBABILITY)
        probabilities[:, torch.as_tensor(self.estimator.classes_)] = known.clamp(min=MIN_PROBABILITY)
        return probabilities.log().unsqueeze(1).to(prepared.device)

    def state(self) -> State:
        """Return the training rows (missing values as zero, and their mask) and labels, and known labels."""
        missing = self.rows.isnan()
        tensors = {"rows": self.rows.nan_to_num(), "missing": missing, "targets": self.labels}
        return {"estimator": True}, tensors | self.columns.state()[1]

    @classmethod
    def restore(cls, saved: SavedState) -> Self:
        """Fit the registered classifier to the stored rows."""
        check_registered(saved.candidate.model)
        columns, labels = NodeColumns.restore(saved), saved.tensors["targets"]
        shape = len(labels), sum(columns.blocks.values())
        if not ((labels >= 0) & (labels < saved.classes)).all() or labels.dtype != torch.int64:
            raise ValueError(f"the labels are not those of {saved.classes} classes")
        rows, missing = saved.tensor("rows", *shape), saved.tensor("missing", *shape)
        return cls.of(saved.candidate.model, columns, rows.where(~missing.bool(), torch.nan), labels)
