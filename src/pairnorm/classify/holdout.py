"""Split labeled nodes into training, validation and test nodes, and check them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairnorm.base.errors import PairNormError, one_of, quoted
from pairnorm.base.memory import free_memory, size
from pairnorm.data import Graph, Split
from pairnorm.data.adjacency import along_and_against, csr_matrix
from pairnorm.data.features import take_columns
from pairnorm.data.split import Stream

HELD_OUT = 0.2
FEW = 30
NUM_FOLDS = 5
# A label of more different numbers is likely a measurement.
MANY_CLASSES = 30
# Probabilities of all nodes, and of labeled nodes by candidate, that are in memory at a time.
CLASS_COPIES, CLASS_CANDIDATES = 40, 100
# What a column that alone predicts the label is found by.
MIN_LEAK, MAX_MAJORITY, MIN_CHECKED, MAX_CHECKED = 0.99, 0.9, 100, 300


class ClassifierWarning(UserWarning):
    """A property of a graph that limits how well a model can be fitted or evaluated."""


def complete_split(graph: Graph, seed: int = 0, time: str | None = None) -> Split:
    """Return the graph's split with the parts it lacks drawn from labeled nodes, class by class.

    Without any split, 60 / 20 / 20 percent of every class; the first node of a class goes to train, the
    second to validation, the third to test. With a train part only, validation and test share the labeled
    nodes outside it; if there are none, a fifth of train becomes validation. With a test part only, so does a
    fifth of the other labeled nodes.

    Args:
        graph: with labels of two classes or more.
        seed: the same seed gives the same split on every machine.
        time: a feature by which nodes come one after the other: the last 20 percent of the labeled ones are
            tested on, the 20 before them validate. The graph has no split of its own then.
    """
    _check_labels(graph)
    train, validation, test = (mask.clone() for mask in graph.split)
    free = graph.labeled & ~train & ~validation & ~test
    if time is not None:
        train, validation, test = _by_time(graph, time)
    elif not (train | validation | test).any():
        train, validation, test = _parts(graph.labels, free, seed, HELD_OUT, HELD_OUT)
    elif not train.any():
        train = free
        if not validation.any():
            train, validation, _ = _parts(graph.labels, free, seed, HELD_OUT, 0.0)
    elif not validation.any() and not test.any() and free.any():
        _, validation, test = _parts(graph.labels, free, seed, 0.5, 0.5, train_first=False)
    elif not validation.any():
        if free.any():
            validation = free
        else:
            train, validation, _ = _parts(graph.labels, train, seed, HELD_OUT, 0.0)
    elif not test.any():
        test = free
    split = Split(train, validation, test)
    _check_train(graph, split)
    _warn_few(graph, split)
    return split


def folds(graph: Graph, split: Split, seed: int = 0) -> list[Tensor]:
    """Return the nodes of each fold, bool [n], where validation nodes were drawn and not given by the user.

    Every node of train and validation is held out once, except the only one of its class.
    """
    if graph.validation.any() or not split.validation.any():
        return []
    order = Stream(seed, "classify folds").order(graph.num_nodes)
    order = order[(split.train | split.validation).cpu().numpy()[order]]
    classes = graph.labels.cpu().numpy()[order]
    order = order[np.argsort(classes, kind="stable")]
    order = order[np.bincount(classes)[np.sort(classes)] > 1]
    part = np.full(graph.num_nodes, -1)
    part[order] = np.arange(len(order)) % NUM_FOLDS
    return [torch.from_numpy(part == number).to(graph.device) for number in range(min(NUM_FOLDS, len(order)))]


def node_ids(graph: Graph) -> NDArray[Any]:
    """Return what identifies each node in any graph: its name, or its row in a graph with the same edges."""
    if graph.named:
        return graph.node_names
    digest = blake2b(str(graph.num_nodes).encode(), digest_size=8)
    for part in (graph.adjacency.crow_indices(), graph.adjacency.col_indices()):
        digest.update(part.cpu().numpy().astype("<i8").tobytes())
    prefix = digest.hexdigest()
    return np.array([f"{prefix}:{row}" for row in range(graph.num_nodes)])


def fingerprints(graph: Graph) -> NDArray[np.int64]:
    """Return 64 bits per node, int64 [n], that identify it in any graph and on every machine.

    A name that is a number counts as its text. Nodes of graphs without names are the same only where the
    graphs have the same edges: row 7 of one graph is not row 7 of another.
    """
    names = node_ids(graph).tolist()
    digests = (blake2b(str(name).encode(), digest_size=8).digest() for name in names)
    return np.frombuffer(b"".join(digests), dtype="<i8").astype(np.int64)


def unseen(graph: Graph, seen: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return bool [n]: the labeled nodes that neither trained nor selected a model."""
    return graph.labeled.cpu().numpy() & ~np.isin(fingerprints(graph), seen)


def _parts(
    labels: Tensor, among: Tensor, seed: int, validation: float, test: float, train_first: bool = True
) -> Split:
    """Deal the nodes of every class out in random order: one to train, then to validation, then to test."""
    order = Stream(seed, "classify split").order(len(labels))
    order = order[among.cpu().numpy()[order]]
    classes = labels.cpu().numpy()[order]
    part = np.zeros(len(labels), dtype=np.int64)
    for number in np.unique(classes):
        nodes = order[classes == number]
        least = 1 if train_first else 0
        for_validation = _share(len(nodes) - least, len(nodes) * validation)
        for_test = _share(len(nodes) - least - for_validation, len(nodes) * test)
        part[nodes[:for_validation]] = 1
        part[nodes[for_validation : for_validation + for_test]] = 2

    def mask(number: int) -> Tensor:
        return among & torch.from_numpy(part == number).to(among.device)

    return Split(mask(0), mask(1), mask(2))


def _refuse_time(time: str, names: Sequence[str]) -> None:
    if any(name.startswith(f"{time}=") for name in names):
        problem = f"time is {quoted(time)}, a column that is read as categories"
        expected = "a column of numbers or dates"
        hint = "Write it as numbers, or as dates such as 2020-01-31."
        raise PairNormError(problem, code="not-a-time", value=time, expected=expected, hint=hint)
    if not names:
        problem, expected = f"time is {quoted(time)}", "a feature, but those of this graph have no names"
        raise PairNormError(problem, code="not-a-time", value=time, expected=expected)
    one_of("time", time, [name for name in names if "=" not in name] or names)  # those are categories


def _by_time(graph: Graph, time: str) -> Split:
    """Deal the labeled nodes out in the order of a feature; equals stay together, in the earlier part."""
    names = graph.feature_names or ()
    if time not in names:
        _refuse_time(time, names)
    number = names.index(time)
    if any(mask.any() for mask in graph.split):
        problem = "there is a split already"
        raise PairNormError(problem, code="conflicting-options", hint="Leave it out, or {time}.", time=...)
    missing = graph.missing if graph.missing.dim() == 1 else graph.missing[:, number]
    column = graph.to_scipy()[1][:, [number]]
    column = column if isinstance(column, np.ndarray) else column.toarray()
    # Nodes without a time count as the first.
    moments = torch.from_numpy(column[:, 0]).to(graph.device).where(~missing, -torch.inf)
    known = moments[graph.labeled].sort().values
    ends = (known[round((1 - share * HELD_OUT) * len(known)) - 1] for share in (2, 1))
    first, second = ((moments <= end) & graph.labeled for end in ends)
    return Split(first, second & ~first, graph.labeled & ~second)


def without(graph: Graph, nodes: Tensor) -> Graph:
    """Return the graph as it was before some nodes came, with their features, labels and edges."""
    others = (~nodes).cpu().numpy()
    features = graph.to_scipy()[1]
    adjacency = csr_matrix(along_and_against(graph.adjacency, graph.directed)[0])
    parts = {name: getattr(graph, name)[~nodes] for name in ("labels", "missing", *graph.split._fields)}
    names = {"class_names": graph.class_names, "node_names": node_ids(graph)[others]}
    return Graph.from_scipy(adjacency[others][:, others], features[others], **parts, **names).to(graph.device)


def _share(available: int, share: float) -> int:
    return 0 if share == 0 else max(0, min(available, max(1, round(share))))


def _check_labels(graph: Graph) -> None:
    classes = torch.unique(graph.labels[graph.labeled])
    if len(classes) == 0:
        problem = f"graph {graph.name!r}: no node has a label"
        hint = "Label some nodes of every class."
        raise PairNormError(problem, code="no-labels", value=graph.name, hint=hint)
    if len(classes) == 1:
        problem = f"graph {graph.name!r}: all labels are {graph.class_names[int(classes)]!r}"
        hint = "Label some nodes of another."
        raise PairNormError(problem, code="one-class", value=graph.class_names[int(classes)], hint=hint)


def count_classes(graph: Graph, mask: Tensor) -> NDArray[np.int64]:
    """Return the number of nodes of each class among some nodes, int64 [classes]."""
    counts: NDArray[np.int64] = torch.bincount(graph.labels[mask], minlength=graph.num_classes).cpu().numpy()
    return counts


def check_num_classes(graph: Graph) -> None:
    """Refuse a graph whose probabilities of all classes, of all candidates, would not fit into memory."""
    entries = CLASS_COPIES * graph.num_nodes + CLASS_CANDIDATES * int(graph.labeled.sum())
    needed, free = 4 * graph.num_classes * (entries + graph.num_classes), free_memory()
    if needed > free:
        raise PairNormError(
            f"{graph.num_classes:,} classes of {graph.num_nodes:,} nodes take about {size(needed)}, "
            f"and {size(free)} are free",
            code="too-many-classes",
            value=graph.num_classes,
            hint="Merge rare classes into one, or predict a coarser label.",
        )


def _check_train(graph: Graph, split: Split) -> None:
    absent = (count_classes(graph, split.train) == 0) & (count_classes(graph, graph.labeled) > 0)
    if absent.any():
        name = graph.class_names[int(absent.argmax())]
        problem = f"class {quoted(name)} has no training node"
        hint = "Put one of its nodes in the training set."
        raise PairNormError(problem, code="class-without-training", value=name, hint=hint)


def label_predictors(graph: Graph, nodes: Tensor) -> dict[str, float]:
    """Return the columns that alone predict the label almost perfectly, with their accuracy.

    A small decision tree on the column, fitted to one half of the nodes, predicts the other half. The columns
    of a category count as one.
    """
    from sklearn.tree import DecisionTreeClassifier

    rows = nodes.cpu().nonzero().squeeze(1)
    labels = graph.labels.cpu()[rows].numpy()
    if len(rows) < MIN_CHECKED or not 0 < graph.num_features <= MAX_CHECKED:
        return {}
    table = graph.features.cpu().to_dense()[rows].numpy()
    missing = graph.missing.cpu()[rows].numpy().reshape(len(rows), -1)
    accuracies, start = {}, 0
    for name, width in _column_widths(graph):
        values = table[:, start] if width == 1 else table[:, start : start + width].argmax(1)
        known = ~missing[:, min(start, missing.shape[1] - 1)]
        start += width
        if known.sum() < MIN_CHECKED or np.bincount(labels[known]).max() > MAX_MAJORITY * known.sum():
            continue
        x, y, half = values[known, None], labels[known], np.arange(int(known.sum())) % 2 == 0
        right = 0
        for some in (half, ~half):
            tree = DecisionTreeClassifier(max_leaf_nodes=2 * graph.num_classes, random_state=0)
            right += int((tree.fit(x[some], y[some]).predict(x[~some]) == y[~some]).sum())
        if right >= MIN_LEAK * len(y):
            accuracies[name] = right / len(y)
    return accuracies


def _column_widths(graph: Graph) -> list[tuple[str, int]]:
    if graph.encoder is None:
        return [(str(number), 1) for number in range(graph.num_features)]
    return [(column.name, column.width) for column in graph.encoder.features.values() if column.width]


def warn_label_predictors(graph: Graph, nodes: Tensor) -> None:
    """Warn of columns that alone predict the label, which may not be known of nodes to predict."""
    for name, accuracy in label_predictors(graph, nodes).items():
        _warn(
            f"column {quoted(name)} alone predicts the label of {accuracy:.1%} of the labeled nodes. If it "
            "is made from the label, or known only afterwards, leave it out.",
            stacklevel=4,
        )


def _warn_few(graph: Graph, split: Split) -> None:
    if graph.num_classes > MANY_CLASSES and all(_is_number(name) for name in graph.class_names):
        _warn(
            f"the label has {graph.num_classes} different numbers, each of which is a class of its own. If "
            "they measure something, cut them into ranges when you read the file (classes=5)."
        )
    held_out, chosen_by = int(split.test.sum()), int(split.validation.sum())
    if not chosen_by:
        _warn("no labeled node is left to select a model: depth and scale are set by rule.")
    if not held_out:
        _warn("no labeled node is left to test on: how accurate the predictions are is not known.")
    elif held_out < FEW:
        _warn(
            f"only {held_out} labeled {'node is' if held_out == 1 else 'nodes are'} left to test on: "
            "the interval around the accuracy is wide. Label more nodes to know more."
        )
    unseen = (count_classes(graph, split.test) == 0) & (count_classes(graph, split.train) > 0)
    if held_out and unseen.any():
        names = ", ".join(repr(graph.class_names[number]) for number in np.flatnonzero(unseen)[:5])
        _warn(f"no test node is of class {names}: its accuracy is not known.")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _warn(text: str, stacklevel: int = 5) -> None:
    warnings.warn(text, ClassifierWarning, stacklevel=stacklevel)


def without_column(graph: Graph, name: str | None) -> Graph:
    """Return the graph without a feature, whose column the encoder then ignores."""
    if name is None or graph.encoder is None or name not in (graph.feature_names or ()):
        return graph
    others = [number for number, other in enumerate(graph.feature_names or ()) if other != name]
    columns = tuple(
        replace(column, kind="ignored", categories=()) if column.name == name else column
        for column in graph.encoder.columns
    )
    missing = graph.missing if graph.missing.dim() == 1 else graph.missing[:, others]
    features = take_columns(graph.features, others)
    encoder = replace(graph.encoder, columns=columns)
    return graph.replace(features=features, missing=missing, encoder=encoder).with_structure()
