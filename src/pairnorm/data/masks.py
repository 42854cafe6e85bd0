"""Masks over nodes: the split into train, validation and test; which features are missing.

Random numbers are equal on every machine. A mask is data and edits nothing. Not at random means a draw
without replacement, each candidate with the weight ratio^q for its quantile q from 0 to 1. The rate is exact,
and features missing at one rate are missing at every higher rate too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairnorm.base.errors import PairNormError, one_of, quoted, real_number, whole_number
from pairnorm.data.features import SCALINGS, row_normalize, stored_rows, stored_values, with_values

if TYPE_CHECKING:
    from pairnorm.data.graph import Graph


class Stream:
    """A stream of random numbers named by a seed and a purpose: a split and a mask of one seed are unrelated.

    numpy promises the raw output of PCG64 for all time, but not what ``Generator.permutation`` makes of it.

    >>> Stream(0, "split").keys(2)
    array([2528659360018663308, 1948793138670453584], dtype=uint64)

    Args:
        seed: a whole number, 0 or more.
        purpose: what the numbers are for.
    """

    def __init__(self, seed: int, purpose: str) -> None:
        self._bits = np.random.PCG64([int.from_bytes(purpose.encode(), "big"), whole_number("seed", seed)])

    def keys(self, count: int) -> NDArray[np.uint64]:
        """Return ``count`` integers, uniform over 64 bits."""
        raw: Any = self._bits.random_raw(count)
        return np.asarray(raw, dtype=np.uint64)

    def uniform(self, count: int) -> NDArray[np.float64]:
        """Return ``count`` numbers, uniform over [0, 1)."""
        return np.right_shift(self.keys(count), np.uint64(11)) * 2.0**-53

    def order(self, count: int) -> NDArray[np.int64]:
        """Return the numbers 0 .. count - 1 in random order."""
        return np.argsort(self.keys(count), kind="stable")


class Split(NamedTuple):
    """Three masks over the nodes, bool [n], that do not overlap.

    Args:
        train: the nodes whose labels a model learns from.
        validation: the nodes that select its settings and the epoch to stop at.
        test: the nodes of the final evaluation, used for nothing else.
    """

    train: Tensor
    validation: Tensor
    test: Tensor


def check_split(split: Split, labeled: Tensor, names: NDArray[Any]) -> None:
    """Raise an error unless the parts do not overlap and all of their nodes are labeled."""
    seen = torch.zeros_like(labeled)
    for part, mask in split._asdict().items():
        if (twice := mask & seen).any():
            count, first = int(twice.sum()), _name(names, twice)
            problem = f"train, validation and test overlap: {count} nodes of {part} are in another too, "
            problem, hint = f"{problem}first {first}", "Put each node in one part only."
            raise PairNormError(problem, code="parts-overlap", value=part, hint=hint)
        seen = seen | mask
    if (blank := seen & ~labeled).any():
        problem = f"{int(blank.sum())} nodes of the split have no label, first {_name(names, blank)}"
        hint = "Leave them out of train, validation and test."
        raise PairNormError(problem, code="label-missing", hint=hint)


def rest_is_test(labels: Tensor, train: Tensor, validation: Tensor) -> Split:
    """Return the paper's split: every labeled node outside train and validation is in the test set."""
    return Split(train, validation, (labels >= 0) & ~train & ~validation)


def random_split(labels: Tensor, train: float = 0.03, validation: float = 0.10, seed: int = 0) -> Split:
    """Split the labeled nodes at random, by default 3% / 10% / 87% as the paper does for Coauthor CS.

    >>> split = random_split(torch.zeros(1000, dtype=torch.int64))
    >>> [int(mask.sum()) for mask in split]
    [30, 100, 870]

    Args:
        labels: int64 [n]; -1 where unknown: such nodes are in no part.
        train: the fraction of labeled nodes to learn from.
        validation: the fraction to choose a model by; the rest is the test set.
        seed: the same seed gives the same split on every machine.
    """
    if not (train >= 0 and validation >= 0 and train + validation <= 1):
        problem = f"train is {train} and validation {validation}"
        expected = "fractions of at most 1 together"
        raise PairNormError(problem, code="out-of-range", value=(train, validation), expected=expected)
    order = _shuffled(labels, seed)
    first, second = round(train * len(order)), round((train + validation) * len(order))
    return _split_from_nodes(labels, order[:first], order[first:second])


def per_class(labels: Tensor, count: int = 20, validation: int | None = None, seed: int = 0) -> Split:
    """Draw ``count`` training nodes from each class, then the validation nodes; the rest is the test set.

    Args:
        labels: int64 [n]; -1 where unknown: such nodes are in no part.
        count: training nodes of each class.
        validation: validation nodes in all. Default: 500, or a third of what train leaves if that is less.
        seed: the same seed gives the same split on every machine.
    """
    count = whole_number("count", count, least=1)
    order = _shuffled(labels, seed)
    classes = labels.cpu().numpy()[order]
    sizes = np.bincount(classes)
    small = int(sizes.argmin()) if len(sizes) else None
    if small is None or sizes[small] < count:
        available = "there are no" if small is None else f"class {small} has {sizes[small]}"
        problem = f"{available} labeled nodes; {count} per class were asked for"
        raise PairNormError(problem, code="too-few-labels", value=count, hint="Ask for fewer.")
    by_class = np.argsort(classes, kind="stable")
    rank = np.empty_like(by_class)
    rank[by_class] = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    others = order[rank >= count]
    chosen = min(500, len(others) // 3) if validation is None else validation
    chosen = whole_number("validation", chosen, most=len(others))  # train leaves no more
    return _split_from_nodes(labels, order[rank < count], others[:chosen])


def of_development(labels: Tensor, count: int = 20, development: int = 1500, seed: int = 0) -> Split:
    """Draw development nodes; ``count`` of each class are to train on, the others validate, the rest tests.

    The split of Klicpera et al. (2019), with which feature propagation and PCFI are published.
    """
    order = _shuffled(labels, seed)
    size = whole_number("development", development, least=1, most=len(order))
    drawn = torch.zeros_like(labels, dtype=torch.bool)
    drawn[torch.from_numpy(order[:size])] = True
    train = per_class(torch.where(drawn, labels, -1), count, seed=seed).train
    return rest_is_test(labels, train, drawn & ~train)


def split_by_name(name: str, labels: Tensor, seed: int = 0) -> Split:
    """Draw the split that a name describes, such as ``'per-class-20'``.

    They are ``'random'``, ``'per-class-20'`` and ``'per-class-20-of-1500'`` (any numbers); ``'random@3'`` is
    the one that seed 3 gives.
    """
    match = re.fullmatch(r"(?:random|per-class-(\d+)(?:-of-(\d+))?)(?:@(\d+))?", name, re.ASCII)
    if match:
        count, development, own_seed = match.groups()
        seed = seed if own_seed is None else int(own_seed)
        if count is None:
            return random_split(labels, seed=seed)
        if development is None:
            return per_class(labels, int(count), seed=seed)
        return of_development(labels, int(count), int(development), seed)
    expected = "'random', 'per-class-20' or 'per-class-20-of-1500' (or other numbers)"
    raise PairNormError(f"split is {quoted(name)}", code="unknown-choice", value=name, expected=expected)


def _shuffled(labels: Tensor, seed: int) -> NDArray[np.int64]:
    """Return the labeled nodes in random order. A node's key depends on its own number alone."""
    order = Stream(seed, "split").order(len(labels))
    return order[labels.cpu().numpy()[order] >= 0]


def _split_from_nodes(labels: Tensor, train: NDArray[np.int64], validation: NDArray[np.int64]) -> Split:
    """Return the split with these training and validation nodes."""
    chosen = torch.zeros(2, len(labels), dtype=torch.bool)
    for mask, nodes in zip(chosen, (train, validation), strict=True):
        mask[torch.from_numpy(nodes)] = True
    return rest_is_test(labels, *chosen.to(labels.device))


def _name(names: NDArray[Any], mask: Tensor) -> str:
    """Return the name of the first node in a mask."""
    return quoted(names.tolist()[int(mask.nonzero()[0])])


@dataclass(frozen=True, eq=False)
class Features:
    """Features shared by all trials, and which of them each trial keeps.

    Args:
        values: [n, d], scaled, dense or ``torch.sparse_csr``.
        keep: bool, what survives in each trial: [nnz, trials] (stored entries) where ``values`` is sparse;
            [n, trials] (whole rows) or [n, trials, d] (single entries) where it is dense.
    """

    values: Tensor
    keep: Tensor

    @property
    def trials(self) -> int:
        """The number of trials."""
        return self.keep.shape[1]

    def trial(self, number: int) -> Tensor:
        """Return the features of one trial, [n, d], in the layout of ``values``; masked ones are zero."""
        keep = self.keep[:, number]
        if self.values.layout == torch.sparse_csr:
            return with_values(self.values, self.values.values() * keep)
        return self.values * (keep if keep.dim() == 2 else keep[:, None])

    def dense(self) -> Tensor:
        """Return the features of all trials as one dense tensor, [n, trials, d]."""
        if self.values.layout == torch.sparse_csr:
            return torch.stack([self.trial(number).to_dense() for number in range(self.trials)], 1)
        return self.values[:, None] * (self.keep if self.keep.dim() == 3 else self.keep[..., None])


def features_after(graph: Graph, missing: Missing | None = None, scaling: str = "rows") -> Features:
    """Return a graph's features, scaled, then erased where missing. The graph is not changed.

    Args:
        graph: whose features.
        missing: what to erase, in each trial. Default: nothing, one trial.
        scaling: ``"rows"`` for ``row_normalize``, ``"none"`` for features as they are.
    """
    values, device = graph.features, graph.device
    if one_of("scaling", scaling, SCALINGS) == "rows":
        values = row_normalize(values)
    sparse = values.layout == torch.sparse_csr
    entries = values.values().numel() if sparse else values.numel()
    if missing is None:
        keep = torch.ones(entries if sparse else graph.num_nodes, 1, dtype=torch.bool, device=device)
        return Features(values, keep)

    keep = ~missing.mask.to(device)
    expected = entries if missing.kind == "entries" else graph.num_nodes
    if len(keep) != expected:
        problem = f"missing is about {len(keep):,} {missing.unit}, but graph {graph.name!r} has {expected:,}"
        raise PairNormError(problem, code="wrong-shape", value=len(keep), hint="Draw it again.")
    if sparse and missing.kind != "entries":
        keep = keep[stored_rows(values)]
    elif not sparse and missing.kind == "entries":
        keep = keep.view(graph.num_nodes, graph.num_features, -1).transpose(1, 2)
    return Features(values, keep)


@dataclass(frozen=True, eq=False, repr=False)
class Missing:
    """The features that are missing in each trial.

    Args:
        kind: ``'vectors'`` (outside the training set), ``'nodes'`` (anywhere), ``'entries'``, or ``'given'``.
        rate: the fraction that is missing.
        seed: of trial 0; trial t was drawn with seed + t. None where nothing was drawn.
        mask: bool, True where missing: [n, trials], or [entries, trials] for ``'entries'``: the stored ones
            of sparse features, all n d of dense ones, row by row.
    """

    kind: str
    rate: float
    seed: int | None
    mask: Tensor

    @property
    def trials(self) -> int:
        """The number of trials."""
        return self.mask.shape[1]

    @property
    def unit(self) -> str:
        """What the mask removes, as a plural: nodes (their vectors) or entries."""
        return "entries" if self.kind == "entries" else "nodes"

    def __repr__(self) -> str:
        counts = self.mask.sum(0)
        low, high = (int(counts.min()), int(counts.max())) if len(counts) else (0, 0)
        count = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        return (
            f"Missing(kind={self.kind!r}, rate={self.rate:g}, seed={self.seed}, trials={self.trials}: "
            f"{count} of {len(self.mask):,} {self.unit})"
        )


def missing_vectors(graph: Graph, rate: float, trials: int = 1, seed: int = 0) -> Missing:
    """Draw the missing vectors of SSNC-MV: a fraction p = |M| / |V_u| of the nodes outside the training set.

    Trial t depends on seed + t alone. Features missing at one rate are missing at every higher rate too.

    Args:
        graph: whose nodes; those in ``graph.train`` keep their vectors.
        rate: p, from 0 to 1.
        trials: how many masks.
        seed: the same seed gives the same masks on every machine.
    """
    return _draw("vectors", ~graph.train, rate, trials, seed)


def missing_nodes(graph: Graph, rate: float, trials: int = 1, seed: int = 0) -> Missing:
    """Draw the nodes that lose their vectors from all nodes, those of the training set included.

    Args are those of ``missing_vectors``; the rate is the fraction of nodes.
    """
    return _draw("nodes", torch.ones_like(graph.train), rate, trials, seed)


def missing_entries(graph: Graph, rate: float, trials: int = 1, seed: int = 0) -> Missing:
    """Draw single missing entries; in sparse features among stored entries, since a missing zero stays zero.

    Args are those of ``missing_vectors``; the rate is the fraction of entries.
    """
    stored = stored_values(graph.features).flatten()
    return _draw("entries", torch.ones_like(stored, dtype=torch.bool), rate, trials, seed)


def given_missing(graph: Graph, trials: int = 1) -> Missing:
    """Return the mask of the vectors that are missing in the data; single missing entries are zero already.

    Args:
        graph: whose nodes.
        trials: how often to repeat the mask.
    """
    mask = graph.missing_vectors
    rate = float(mask.double().mean()) if len(mask) else 0.0
    return Missing("given", rate, None, mask[:, None].repeat(1, whole_number("trials", trials, least=1)))


def missing_by_class(
    graph: Graph, rate: float, trials: int = 1, seed: int = 0, ratio: float = 10.0
) -> Missing:
    """Draw missing vectors outside the training set, of some classes more often than of others.

    The classes stand in a random order, another in each trial; their weights rise geometrically. A node of
    unknown class has the weight in the middle.

    Args besides those of ``missing_vectors``:
        ratio: the weight of the last class over that of the first; 1 for no difference.
    """
    labels = graph.labels.cpu().numpy()
    classes = max(int(labels.max(initial=-1)) + 1, 1)

    def quantile(stream: Stream) -> NDArray[np.float64]:
        place = stream.order(classes) / max(classes - 1, 1)
        return np.where(labels < 0, 0.5, place[labels])

    return _draw("vectors", ~graph.train, rate, trials, seed, "class", ratio, quantile)


def missing_by_degree(
    graph: Graph, rate: float, trials: int = 1, seed: int = 0, ratio: float = 10.0
) -> Missing:
    """Draw missing vectors outside the training set, more often of nodes with few edges, as new ones are.

    Args besides those of ``missing_vectors``:
        ratio: the weight of the lowest degree over that of the highest; below 1, hubs are drawn more often.
    """
    degree = graph.adjacency.crow_indices().diff().cpu().numpy()
    quantile = _quantiles(-degree, np.zeros_like(degree))
    return _draw("vectors", ~graph.train, rate, trials, seed, "degree", ratio, lambda _: quantile)


def missing_by_value(
    graph: Graph, rate: float, trials: int = 1, seed: int = 0, ratio: float = 10.0
) -> Missing:
    """Draw single entries, more often the larger values of a column, as with incomes.

    Of sparse features the stored entries are drawn, for a zero that is lost stays zero. Where those of a
    column are all equal, as in a bag of words, none is drawn more often.

    Args besides those of ``missing_entries``:
        ratio: the weight of a column's largest value over that of its smallest; below 1, small ones are drawn
            more often.
    """
    features, stored = graph.features, stored_values(graph.features).flatten()
    if features.layout == torch.sparse_csr:
        column = features.col_indices()
    else:
        column = torch.arange(graph.num_features, device=features.device).repeat(graph.num_nodes)
    quantile = _quantiles(stored.cpu().numpy(), column.cpu().numpy())
    among = torch.ones_like(stored, dtype=torch.bool)
    return _draw("entries", among, rate, trials, seed, "value", ratio, lambda _: quantile)


def _draw(
    kind: str,
    among: Tensor,
    rate: float,
    trials: int,
    seed: int,
    by: str = "",
    ratio: float = 1.0,
    quantile: Callable[[Stream], NDArray[np.float64]] | None = None,
) -> Missing:
    """Mark the ``rate`` of candidates whose random keys are smallest, for each trial."""
    rate = real_number("rate", rate, least=0, most=1)
    real_number("ratio", ratio, above=0)
    candidates = np.flatnonzero(among.cpu().numpy())
    count = round(rate * len(candidates))
    mask = np.zeros((len(among), whole_number("trials", trials, least=1)), dtype=bool)
    for trial in range(trials):
        # Every node draws a key, so that the key of a node does not depend on who is in the training set.
        stream = Stream(seed + trial, f"missing by {by}" if by else f"missing {kind}")
        keys: NDArray[Any]
        if quantile is None:
            keys = stream.keys(len(among))
        else:
            # The first of exponential times, at rates like the weights, are such a draw; and draws nest.
            weight = ratio ** quantile(stream)
            keys = -np.log1p(-stream.uniform(len(among))) / weight
        mask[candidates[np.argsort(keys[candidates], kind="stable")[:count]], trial] = True
    return Missing(kind, rate, seed, torch.from_numpy(mask).to(among.device))


def _quantiles(values: NDArray[Any], groups: NDArray[Any]) -> NDArray[np.float64]:
    """Return the fraction of a value's group that is smaller, counting half of its equals."""
    order = np.lexsort((values, groups))
    changed = (np.diff(values[order]) != 0) | (np.diff(groups[order]) != 0)
    run = np.empty(len(order), np.int64)
    run[order] = np.append(0, np.cumsum(changed))[: len(order)]
    counts = np.bincount(run)
    _, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    middle, start = np.cumsum(counts) - counts / 2, np.cumsum(sizes) - sizes
    quantiles: NDArray[np.float64] = (middle[run] - start[group]) / sizes[group]
    return quantiles
