"""Split nodes into train, validation and test; random numbers that are equal on every machine."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pairnorm.base.errors import PairNormError, quoted, whole_number


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
        """Return ``count`` whole numbers, uniform over 64 bits."""
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
        validation: those that choose its settings, and when to stop.
        test: those that say how good it is, and are looked at for nothing else.
    """

    train: Tensor
    validation: Tensor
    test: Tensor


def check_split(split: Split, labeled: Tensor, names: NDArray[Any]) -> None:
    """Raise an error unless the parts do not overlap and all of their nodes are labeled."""
    seen = torch.zeros_like(labeled)
    for part, mask in split._asdict().items():
        if (twice := mask & seen).any():
            raise PairNormError(
                f"train, validation and test overlap: {int(twice.sum())} nodes of {part} are in another too, "
                f"first {_name(names, twice)}",
                code="parts-overlap",
                value=part,
                hint="Put each node in one part only.",
            )
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
    return _split(labels, order[:first], order[first:second])


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
    rest = order[rank >= count]
    chosen = min(500, len(rest) // 3) if validation is None else validation
    chosen = whole_number("validation", chosen, most=len(rest))  # train leaves no more
    return _split(labels, order[rank < count], rest[:chosen])


def of_development(labels: Tensor, count: int = 20, development: int = 1500, seed: int = 0) -> Split:
    """Draw development nodes; ``count`` of each class are to train on, the others validate, the rest tests.

    The split of Klicpera et al. (2019), with which feature propagation and PCFI are published.
    """
    order = _shuffled(labels, seed)
    most = whole_number("development", development, least=1, most=len(order))
    drawn = torch.zeros_like(labels, dtype=torch.bool)
    drawn[torch.from_numpy(order[:most])] = True
    train = per_class(torch.where(drawn, labels, -1), count, seed=seed).train
    return rest_is_test(labels, train, drawn & ~train)


def split_by_name(name: str, labels: Tensor, seed: int = 0) -> Split:
    """Return the split that a short text names.

    They are ``'random'``, ``'per-class-20'`` and ``'per-class-20-of-1500'`` (any numbers); ``'random@3'`` is
    the one that seed 3 gives.
    """
    match = re.fullmatch(r"(?:random|per-class-(\d+)(?:-of-(\d+))?)(?:@(\d+))?", name, re.ASCII)
    if match:
        count, development, own = match.groups()
        seed = seed if own is None else int(own)
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


def _split(labels: Tensor, train: NDArray[np.int64], validation: NDArray[np.int64]) -> Split:
    def mask(nodes: NDArray[np.int64]) -> Tensor:
        chosen = torch.zeros(len(labels), dtype=torch.bool)
        chosen[torch.from_numpy(nodes)] = True
        return chosen.to(labels.device)

    return rest_is_test(labels, mask(train), mask(validation))


def _name(names: NDArray[Any], mask: Tensor) -> str:
    """Return the name of the first node that is marked."""
    return quoted(names.tolist()[int(mask.nonzero()[0])])
