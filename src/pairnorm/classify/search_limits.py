"""What ``fit`` leaves out where nodes are many or regressions expensive, in memory and packed alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from pairnorm.classify.regression import WORTH_A_THREAD
from pairnorm.nn import Normalization
from pairnorm.train.spec import Norm

SCALES = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1e3, 1e4)
# A depth can be chosen by this many training nodes; the model is then fitted on all of them.
ENOUGH = 4000
# Of more training nodes, where there are many nodes, a model learns from so many, of every class its share.
MAX_TRAINING_ROWS = 20_000
# After so many depths that brought no smaller loss, a costly propagation ends.
PATIENCE = 3
# After so many scales in a row with a larger loss, larger ones are not evaluated, unless all are requested;
# one where regressions are expensive.
SCALE_PATIENCE = 2
# By this factor above the least loss, a scale is beyond what the labels can bear.
MUCH_WORSE = 2.0


class Evaluated(Protocol):
    """What was tried, and is compared by its loss."""

    @property
    def validation_loss(self) -> float:
        """Mean cross-entropy."""


One = TypeVar("One", bound=Evaluated)


@dataclass(frozen=True)
class SearchLimits:
    """How sparing a search is.

    Args:
        many_nodes: whether there are so many that walks are long.
        numbers: that a regression learns from: training nodes times columns, in every fold.
        metric: what candidates are compared by; others than the loss may like what is too confident.
        exhaustive: whether to try every scale and depth.
    """

    many_nodes: bool
    numbers: int
    metric: str = "loss"
    exhaustive: bool = True

    @property
    def is_expensive(self) -> bool:
        """Whether a regression takes long."""
        return self.numbers >= WORTH_A_THREAD

    def scales(self, tried: Iterable[One]) -> Iterator[One]:
        """Yield candidates from small to large scale; if expensive, stop after one that is much worse.

        The less a regression is constrained, the longer it takes.

        Args:
            tried: from the smallest scale to the largest.
        """
        least, worse = inf, 0
        for one in tried:
            yield one
            worse = worse + 1 if one.validation_loss > least else 0
            if worse == (1 if self.is_expensive else SCALE_PATIENCE) and not self.exhaustive:
                break
            if self.is_expensive and self.metric == "loss" and one.validation_loss > MUCH_WORSE * least:
                break
            least = min(least, one.validation_loss)

    def depths(
        self,
        depths: Sequence[int],
        results: Iterable[Iterable[One]],
        tick: Callable[[str], None],
        name: str,
    ) -> Iterator[tuple[int, list[One]]]:
        """Yield (depth, candidates) of a propagation.

        Over many nodes, or with expensive regressions, it ends after some depths in a row without a gain.

        Args:
            depths: numbers of steps, rising.
            results: the candidates of every depth, from the smallest scale to the largest.
            tick: called after every depth, also for those left out.
            name: of the propagation.
        """
        least, waited = inf, 0
        for number, (depth, by_scale) in enumerate(zip(depths, results, strict=False), 1):
            candidates = list(self.scales(by_scale))
            tick(f"{name}, depth {depth}")
            loss = min(one.validation_loss for one in candidates)
            least, waited = (loss, 0) if loss < least else (least, waited + 1)
            yield depth, candidates
            if waited == PATIENCE and (self.many_nodes or self.is_expensive):
                for left in depths[number:]:
                    tick(f"{name}, depth {left}: left out")
                break


def default_norms(adjacency: Normalization, many_nodes: bool) -> list[Norm]:
    """Return the norms that an SGC is tried with, where none is asked for.

    Rows of D̃⁻¹Ã sum to one, so there an SGC without PairNorm is an SGC-PN of another scale: a regression does
    not penalize its bias.
    """
    usual: list[Norm] = ["PN"] if adjacency == "rw" else ["none", "PN"]
    return usual if many_nodes else [*usual, "PN-SI"]


def subsample(labels: Tensor, most: int) -> Tensor:
    """Return the places of some labels, rising: evenly spaced among those of a class, and the first of each.

    Args:
        labels: int64 [m].
        most: how many, where there are more; the first of each class come on top of them.
    """
    if len(labels) <= most:
        return torch.arange(len(labels), device=labels.device)
    order = labels.argsort(stable=True)
    by_class = labels[order]
    first = torch.cat([by_class.new_ones(1, dtype=torch.bool), by_class[1:] != by_class[:-1]])
    spaced = torch.linspace(0, len(labels) - 1, most, device=labels.device).long()
    chosen = torch.zeros_like(labels, dtype=torch.bool)
    chosen[order[spaced.clamp(max=len(labels) - 1)]] = True
    chosen[order[first]] = True
    return chosen.nonzero().squeeze(1)
