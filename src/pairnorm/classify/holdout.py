"""Hold out labeled nodes: splits and folds, and masks that make held-out nodes resemble the target."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairnorm.base.errors import PairNormError, one_of, quoted
from pairnorm.base.memory import free_memory, size
from pairnorm.classify.evaluation import RANKING_METRICS
from pairnorm.data import Graph, Split
from pairnorm.data.adjacency import along_and_against, csr_matrix, hops
from pairnorm.data.features import stored_rows, take_columns, with_values
from pairnorm.data.masks import Stream

HELD_OUT_SHARE = 0.2
# Fewer held-out nodes allow no verdict.
MIN_HELD_OUT = 30
NUM_FOLDS = 5
# A class of at most this share is rare; fewer test nodes of it do not state how well it is ranked.
MAX_RARE_SHARE, MIN_POSITIVES = 0.2, 30
# A label of more different numbers is likely a measurement.
MAX_NUMERIC_CLASSES = 30
# Probabilities of all nodes, and of labeled nodes by candidate, that are in memory at a time.
CLASS_COPIES, CLASS_CANDIDATES = 40, 100
# A column leaks the label if it alone has this accuracy; where one class has more than this share, errors
# are compared with the number of nodes of other classes, which must be this many. The check needs this many
# nodes (a column of accuracy 0.9 is right on all with probability 0.9^45 < 1%), and is left out for more
# columns than this.
MIN_LEAK, MAX_MAJORITY, MIN_RARE, MIN_CHECKED, MAX_CHECKED = 0.99, 0.9, 10, 45, 300
# Shares of missing features that differ by less are taken as equal.
MIN_DIFFERENCE = 0.05
# Nodes farther than this many hops, or unreachable, share a stratum.
MAX_HOPS = 3


class ClassifierWarning(UserWarning):
    """A property of a graph that limits how well a model can be fitted or evaluated."""


def complete_split(graph: Graph, seed: int = 0, time: str | None = None) -> Split:
    """Return the graph's split, and draw the parts it lacks from the labeled nodes, class by class.

    Without any split, 60 / 20 / 20 percent of every class; the first node of a class goes to train, the
    second to validation, the third to test. With a train part only, validation and test share the labeled
    nodes outside it; if there are none, a fifth of train becomes validation. With a test part only, so does a
    fifth of the other labeled nodes.

    Args:
        graph: with labels of two classes or more.
        seed: the same seed gives the same split on every machine.
        time: a feature that orders nodes in time: the last 20 percent of the labeled nodes are test nodes,
            the 20 before them validation nodes. The graph must not have a split of its own then.
    """
    _check_labels(graph)
    train, validation, test = (mask.clone() for mask in graph.split)
    free = graph.labeled & ~train & ~validation & ~test
    if time is not None:
        train, validation, test = _split_by_time(graph, time)
    elif not (train | validation | test).any():
        train, validation, test = _draw(graph.labels, free, seed, HELD_OUT_SHARE, HELD_OUT_SHARE)
    elif not train.any():
        train = free
        if not validation.any():
            train, validation, _ = _draw(graph.labels, free, seed, HELD_OUT_SHARE, 0.0)
    elif not validation.any() and not test.any() and free.any():
        _, validation, test = _draw(graph.labels, free, seed, 0.5, 0.5, train_first=False)
    elif not validation.any() and free.any():
        validation = free
    elif not validation.any():
        train, validation, _ = _draw(graph.labels, train, seed, HELD_OUT_SHARE, 0.0)
    elif not test.any():
        test = free
    split = Split(train, validation, test)
    absent = (count_classes(graph, train) == 0) & (count_classes(graph, graph.labeled) > 0)
    if absent.any():
        name = graph.class_names[int(absent.argmax())]
        problem = f"class {quoted(name)} has no training node"
        hint = "Put one of its nodes in the training set."
        raise PairNormError(problem, code="class-without-training", value=name, hint=hint)
    for text in _limitations(graph, split):
        warnings.warn(text, ClassifierWarning, stacklevel=3)
    return split


def _draw(
    labels: Tensor, among: Tensor, seed: int, validation: float, test: float, train_first: bool = True
) -> Split:
    """Split the nodes of every class at random; validation and test get at least one where possible."""
    order = Stream(seed, "classify split").order(len(labels))
    order = order[among.cpu().numpy()[order]]
    classes = labels.cpu().numpy()[order]
    part = np.zeros(len(labels), dtype=np.int64)
    for number in np.unique(classes):
        nodes = order[classes == number]
        start, available = 0, len(nodes) - train_first
        for which, share in ((1, validation), (2, test)):
            count = min(available - start, max(1, round(len(nodes) * share))) if share else 0
            part[nodes[start : start + max(count, 0)]] = which
            start += max(count, 0)
    parts = torch.from_numpy(part).to(among.device)
    return Split(*(among & (parts == number) for number in range(3)))


def _split_by_time(graph: Graph, time: str) -> Split:
    """Split the labeled nodes in the order of a feature; equal times stay together, in the earlier part."""
    names = graph.feature_names or ()
    is_category = time not in names and any(name.startswith(f"{time}=") for name in names)
    if is_category or not names:
        problem, expected = f"time is {quoted(time)}", "a feature, but those of this graph have no names"
        if is_category:
            problem += ", a column that is read as categories"
            expected = "a column of numbers, or of dates such as 2020-01-31"
        raise PairNormError(problem, code="not-a-time", value=time, expected=expected)
    one_of("time", time, [name for name in names if "=" not in name or name == time] or names)
    if any(mask.any() for mask in graph.split):
        problem = "there is a split already"
        raise PairNormError(problem, code="conflicting-options", hint="Leave it out, or {time}.", time=...)
    number = names.index(time)
    missing = graph.missing if graph.missing.dim() == 1 else graph.missing[:, number]
    column = take_columns(graph.features, [number]).to_dense()[:, 0].double()
    moments = column.where(~missing, -torch.inf)  # nodes without a time count as the first
    known = moments[graph.labeled].sort().values
    ends = (known[round((1 - share * HELD_OUT_SHARE) * len(known)) - 1] for share in (2, 1))
    first, second = ((moments <= end) & graph.labeled for end in ends)
    return Split(first, second & ~first, graph.labeled & ~second)


def draw_folds(graph: Graph, split: Split, seed: int = 0) -> list[Tensor]:
    """Return the held-out nodes of each fold, bool [n]; no folds where the user chose validation nodes.

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


def needs_cross_fitting(graph: Graph, user_split: Split, metric: str) -> bool:
    """Return whether too few test nodes of a rare class were drawn to state how well it is ranked.

    Average precision on a few positive nodes is too high on average: with 6 of 60, a random ranking has 0.16
    instead of 0.10.
    """
    counts = count_classes(graph, graph.labeled)
    ranked = metric in RANKING_METRICS or (len(counts) == 2 and counts.min() <= MAX_RARE_SHARE * counts.sum())
    if any(mask.any() for mask in user_split) or not ranked or not graph.test.any():
        return False
    return int(count_classes(graph, graph.test)[counts > 0].min()) < MIN_POSITIVES


def count_classes(graph: Graph, mask: Tensor) -> NDArray[np.int64]:
    """Count the nodes of each class within a mask, bool [n]: int64 [classes]."""
    counts: NDArray[np.int64] = torch.bincount(graph.labels[mask], minlength=graph.num_classes).cpu().numpy()
    return counts


def _check_labels(graph: Graph) -> None:
    classes, hint = torch.unique(graph.labels[graph.labeled]), "Label some nodes of every class."
    if len(classes) == 0:
        problem = f"graph {graph.name!r}: no node has a label"
        raise PairNormError(problem, code="no-labels", value=graph.name, hint=hint)
    if len(classes) == 1:
        name = graph.class_names[int(classes)]
        problem = f"graph {graph.name!r}: all labels are {name!r}"
        raise PairNormError(problem, code="one-class", value=name, hint=hint)


def check_num_classes(graph: Graph) -> None:
    """Raise an error if the class probabilities of all candidates would not fit into memory."""
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


def _limitations(graph: Graph, split: Split) -> Iterator[str]:
    """Yield warnings about a split: too many classes, or too few nodes to select or to test on."""
    numeric = all(name.lstrip("+-").replace(".", "", 1).isdigit() for name in graph.class_names)
    if graph.num_classes > MAX_NUMERIC_CLASSES and numeric:
        yield (
            f"the label has {graph.num_classes} different numbers, each of which is a class of its own. If "
            "they measure something, cut them into ranges: --classes 5 (classes=5)."
        )
    held_out = int(split.test.sum())
    if not split.validation.any():
        yield "no labeled node is left to select a model: depth and scale are set by rule."
    if not held_out:
        yield "no labeled node is left to test on: how accurate the predictions are is not known."
    elif held_out < MIN_HELD_OUT:
        nodes = "node is" if held_out == 1 else "nodes are"
        text = f"only {held_out} labeled {nodes} left to test on: the interval around the accuracy is wide."
        yield f"{text} Label more nodes to know more."
    untested = (count_classes(graph, split.test) == 0) & (count_classes(graph, split.train) > 0)
    if held_out and untested.any():
        names = ", ".join(repr(graph.class_names[number]) for number in np.flatnonzero(untested)[:5])
        yield f"no test node is of class {names}: its accuracy is not known."


def warn_label_predictors(graph: Graph, nodes: Tensor) -> None:
    """Warn of columns that alone predict the label almost perfectly: nodes to predict may lack them.

    A small decision tree on the column, or on whether it is missing, predicts nodes that it was not fitted
    to. The columns of a category count as one.
    """
    rows = nodes.cpu().nonzero().squeeze(1)
    labels = graph.labels.cpu()[rows].numpy()
    if len(rows) < MIN_CHECKED or not 0 < graph.num_features <= MAX_CHECKED:
        return
    table = graph.features.cpu().to_dense()[rows].numpy()
    missing = graph.missing.cpu()[rows].numpy().reshape(len(rows), -1)
    has_features = ~missing.all(1)
    widths = [(str(number), 1) for number in range(graph.num_features)]
    if graph.encoder is not None:
        widths = [(column.name, column.width) for column in graph.encoder.features.values() if column.width]
    start = 0
    for name, width in widths:
        values = table[:, start] if width == 1 else table[:, start : start + width].argmax(1)
        gaps = missing[:, min(start, missing.shape[1] - 1)]
        start += width
        share = max(
            _predicted_share(values[~gaps], labels[~gaps], graph.num_classes),
            _predicted_share(gaps[has_features], labels[has_features], graph.num_classes),
        )
        if share >= MIN_LEAK:
            text = (
                f"column {quoted(name)} alone predicts the label of {share:.1%} of the labeled "
                "nodes. If it is computed from the label, or known only later, leave it out."
            )
            warnings.warn(text, ClassifierWarning, stacklevel=3)


def _predicted_share(values: NDArray[Any], labels: NDArray[np.int64], classes: int) -> float:
    """Return the share of labels that a tree on a column predicts, each half of the nodes by the other.

    It is 0 for few nodes or few of each class, a column of one value, and where it finds no rare class.
    """
    from sklearn.tree import DecisionTreeClassifier

    if len(values) < max(MIN_CHECKED, 4 * classes) or (values == values[0]).all():
        return 0.0
    others = len(labels) - int(np.bincount(labels).max())
    is_rare = others < (1 - MAX_MAJORITY) * len(labels)
    if is_rare and others < MIN_RARE:
        return 0.0
    half, right = np.arange(len(labels)) % 2 == 0, 0
    for fold in (half, ~half):
        tree = DecisionTreeClassifier(max_leaf_nodes=2 * classes, random_state=0)
        tree.fit(values[fold, None], labels[fold])
        right += int((tree.predict(values[~fold, None]) == labels[~fold]).sum())
    misses_rare = is_rare and len(labels) - right > (1 - MIN_LEAK) * others
    return 0.0 if misses_rare else right / len(labels)


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
    """Return a 64-bit hash of each node's id, int64 [n], the same in any graph and on every machine.

    A name that is a number counts as its text. Nodes of graphs without names are the same only where the
    graphs have the same edges: row 7 of one graph is not row 7 of another.
    """
    digests = (blake2b(str(name).encode(), digest_size=8).digest() for name in node_ids(graph).tolist())
    return np.frombuffer(b"".join(digests), dtype="<i8").astype(np.int64)


def unseen(graph: Graph, seen: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return bool [n]: the labeled nodes that neither trained nor selected a model."""
    return graph.labeled.cpu().numpy() & ~np.isin(fingerprints(graph), seen)


def remove_nodes(graph: Graph, nodes: Tensor) -> Graph:
    """Remove nodes in a mask, bool [n], from a graph, with their features, labels and edges."""
    others = (~nodes).cpu().numpy()
    features = graph.to_scipy()[1]
    adjacency = csr_matrix(along_and_against(graph.adjacency, graph.directed)[0])
    parts = {name: getattr(graph, name)[~nodes] for name in ("labels", "missing", *graph.split._fields)}
    names = {"class_names": graph.class_names, "node_names": node_ids(graph)[others]}
    return Graph.from_scipy(adjacency[others][:, others], features[others], **parts, **names).to(graph.device)


def remove_column(graph: Graph, name: str | None) -> Graph:
    """Remove a feature from a graph and from its encoder, which then ignores the column in other tables."""
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


@dataclass(frozen=True, eq=False)
class Target:
    """The target population: the nodes to predict, in words and as a mask, and what each of them lacks.

    The mask is empty where the target was given as a share. ``missing`` is bool [m] or, of entries, [m, d].
    """

    source: str
    nodes: Tensor
    missing: Tensor

    @classmethod
    def estimate(cls, graph: Graph, target: str | float = "auto") -> Target | None:
        """Estimate the target population of a graph. Returns None where held-out nodes need no mask."""
        if isinstance(target, int | float) and not isinstance(target, bool) and 0 <= target <= 1:
            missing = torch.arange(1000, device=graph.device) < round(1000 * target)
            return cls("nodes as given by target", torch.zeros_like(graph.labeled), missing)
        if target not in ("auto", "labeled"):
            problem = f"target is {quoted(target)}"
            expected = "'auto', 'labeled', or a share between 0 and 1"
            raise PairNormError(problem, code="unknown-choice", value=target, expected=expected)
        nodes, source = ~graph.labeled, "unlabeled nodes"
        if not nodes.any():
            nodes, source = graph.test, "test nodes"
        if target == "labeled" or not nodes.any():
            return None
        return cls(source, nodes, graph.missing[nodes])

    @property
    def missing_vectors(self) -> Tensor:
        """bool [m]: the target nodes without any feature."""
        return self.missing if self.missing.dim() == 1 else self.missing.all(1)

    def mask(self, graph: Graph, held_out: Tensor, seed: int = 0) -> Tensor | None:
        r"""Draw features of held-out nodes to mask, so that as many are missing as in the target population.

        Whole vectors come first, until the shares of nodes without any feature agree. Then every other node
        copies what a target node drawn at random lacks. With $q_j$ and $p_j$ the shares of target and of
        held-out nodes that lack feature $j$, a gap is copied with the probability
        $(q_j - p_j) / (q_j (1 - p_j))$: the held-out share becomes $q_j$, and gaps that go together in the
        target go together here. Held-out nodes that lack more than the target stay as they are.

        Returns:
            bool [n] or [n, d], as ``graph.missing`` is; None where nothing is to be masked.
        """
        if not held_out.any():
            return None
        mask = self._mask_vectors(graph, held_out, seed)
        if graph.missing.dim() == 2:
            columns = self._mask_columns(graph, held_out & ~mask & ~graph.missing_vectors, seed)
            mask = columns | (mask[:, None] & ~graph.missing)
        return mask if mask.any() else None

    def _mask_vectors(self, graph: Graph, held_out: Tensor, seed: int) -> Tensor:
        known = held_out & ~graph.missing_vectors
        excess = float(self.missing_vectors.float().mean() - graph.missing_vectors[held_out].float().mean())
        mask = torch.zeros_like(held_out)
        if excess >= MIN_DIFFERENCE:
            order = torch.from_numpy(Stream(seed, "classify target").order(graph.num_nodes)).to(graph.device)
            mask[order[known[order]][: round(excess * int(held_out.sum()))]] = True
        return mask

    def _mask_columns(self, graph: Graph, nodes: Tensor, seed: int) -> Tensor:
        mask = torch.zeros_like(graph.missing)
        patterns = self.missing[~self.missing_vectors] if self.missing.dim() == 2 else self.missing[:0]
        rows = nodes.nonzero().squeeze(1)
        if not len(patterns) or not len(rows):
            return mask
        target_rates, rates = patterns.double().mean(0), graph.missing[rows].double().mean(0)
        keep = ((target_rates - rates) / (target_rates * (1 - rates)).clamp(min=1e-12)).clamp(0, 1)
        keep = keep.where(target_rates - rates >= MIN_DIFFERENCE, 0)
        stream = Stream(seed, "classify target columns")
        donors = torch.from_numpy(np.resize(stream.order(len(patterns)), len(rows))).to(graph.device)
        # One number per node: columns that are always missing together are masked together.
        draw = torch.from_numpy(stream.uniform(len(rows))).to(graph.device)
        mask[rows] = patterns[donors] & (draw[:, None] < keep) & ~graph.missing[rows]
        return mask


def mask_features(graph: Graph, mask: Tensor | None) -> Graph:
    """Set features in a mask, bool [n] or [n, d], to zero and mark them as missing."""
    if mask is None:
        return graph
    missing, cells = graph.missing, mask
    if missing.dim() != cells.dim():
        missing, cells = (tensor if tensor.dim() == 2 else tensor[:, None] for tensor in (missing, cells))
    return graph.replace(features=zero_masked(graph.features, mask), missing=missing | cells)


def zero_masked(features: Tensor, mask: Tensor) -> Tensor:
    """Set the features in a mask to zero."""
    visible = ~mask.to(features.device)
    if features.layout != torch.sparse_csr:
        return features * (visible[:, None] if visible.dim() == 1 else visible)
    rows = stored_rows(features)
    stored = visible[rows] if visible.dim() == 1 else visible[rows, features.col_indices()]
    return with_values(features, features.values() * stored)


def incomplete_nodes(graph: Graph) -> NDArray[np.bool_]:
    """Return bool [n]: the nodes that lack more than half of their features."""
    missing = graph.missing.cpu()
    return np.asarray((missing if missing.dim() == 1 else missing.float().mean(1) > 0.5).numpy())


def strata(graph: Graph, labeled: Tensor) -> NDArray[np.int64]:
    """Group nodes by their distances to a known label and to known features: stratum numbers, int64 [n].

    Distances are hops; all beyond ``MAX_HOPS`` and all unreachable ones count as equal.
    """
    strata = np.zeros(graph.num_nodes, dtype=np.int64)
    for sources in (labeled.cpu().numpy(), ~incomplete_nodes(graph)):
        distance = hops(graph.adjacency.cpu(), sources)
        far = (distance < 0) | (distance > MAX_HOPS)
        strata = strata * (MAX_HOPS + 2) + np.where(far, MAX_HOPS + 1, distance)
    return strata
