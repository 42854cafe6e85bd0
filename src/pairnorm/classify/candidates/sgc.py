"""SGC: every depth and scale from one propagation, each with a logistic regression solved to the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import inf

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from pairnorm.classify.candidates.base import Candidate, Results, Task, Tick, check_size, fewer
from pairnorm.classify.candidates.network import Network, sgc_scale
from pairnorm.classify.candidates.norm_statistics import NormStatistics
from pairnorm.classify.candidates.propagation import (
    SharedPropagation,
    filled,
    has_many_nodes,
    is_expensive,
    normalized,
)
from pairnorm.classify.regression import LOOSE_TOLERANCE, TOLERANCE, fold_regressions, span
from pairnorm.classify.search_limits import ENOUGH, MAX_TRAINING_ROWS, SCALES
from pairnorm.nn import SGC, PairNorm, sgc_iterates
from pairnorm.train.spec import Norm

# Where to try depths first, as shares of the list of depths; how many imputations and norms to refine.
FIRST_DEPTHS, REFINED = (0.1, 0.5, 0.8), 2
Step = tuple[Tensor, Iterator[tuple[Candidate, Tensor, Tensor]]]


@dataclass(frozen=True)
class SGCFamily:
    """SGCs of several norms, depths and scales.

    Args:
        norms: ``"none"``, ``"PN"``, ``"PN-SI"`` or ``"PN-SCS"``.
        depths: numbers of propagations.
        scales: PairNorm's s; without a norm, what the features are multiplied by.
        fills: what stands in for missing features, of ``FILLS``.
        name: of the family.
    """

    norms: Sequence[Norm]
    depths: Sequence[int]
    scales: Sequence[float] = SCALES
    fills: Sequence[str] = ("zero",)
    name: str = "SGC"

    @property
    def steps(self) -> int:
        """One for every imputation, norm and depth; PN-SCS is propagated anew for every scale."""
        runs = sum(len(self.scales) if norm == "PN-SCS" else 1 for norm in self.norms)
        return runs * len(self.depths) * len(self.fills)

    def fit(self, task: Task, tick: Tick) -> Results:
        """Yield one SGC per imputation, norm, depth and scale, within the search limits.

        Unless the search is exhaustive, each imputation and norm is tried at three depths; the best two are
        then refined between the depths next to their best one, as long as the held-out loss falls.
        """
        check_size(task.graph)
        depths, done = sorted(self.depths), 0

        def count(what: str) -> None:
            nonlocal done
            done += 1
            tick(what)

        losses: dict[tuple[str, Norm], dict[int, float]] = {
            pair: {} for pair in product(self.fills, self.norms)
        }
        exhaustive = task.limits.exhaustive or len(depths) <= len(FIRST_DEPTHS) + 1
        first = depths if exhaustive else [depths[int(share * (len(depths) - 1))] for share in FIRST_DEPTHS]
        for pair, found in losses.items():
            yield from self._explore(task, pair, first, found, count)
        while (target := _refinement(losses, depths)) is not None:
            pair, between = target
            yield from self._explore(task, pair, between, losses[pair], count)
        for _ in range(self.steps - done):
            tick(f"{self.name}: not needed")

    def _explore(
        self, task: Task, pair: tuple[str, Norm], depths: Sequence[int], losses: dict[int, float], tick: Tick
    ) -> Results:
        """Yield one SGC per depth and scale, and record the smallest loss of each depth."""
        fill, norm = pair
        name = f"SGC{'' if norm == 'none' else '-' + norm}"
        losses |= dict.fromkeys(depths, inf)  # also those that the limits leave out
        for scales in _walks(norm, self.scales):
            runs = [
                _sweep(fewer(one, ENOUGH), fill, norm, depths, scales, LOOSE_TOLERANCE)
                for one in task.tasks_by_features
            ]
            states = ((steps[0][0], _tried(task, steps)) for steps in zip(*runs, strict=True))
            for depth, state, results, better in task.limits.depths(depths, states, tick, name):
                losses[depth] = min(losses[depth], *(one.validation_loss for one in results))
                yield from results
                if better and norm != "PN-SCS" and task.hidden is None:
                    # The best so far is likely to be learned.
                    _walk(task, fill, norm).keep(depth, state)


def _refinement(
    losses: dict[tuple[str, Norm], dict[int, float]], depths: Sequence[int]
) -> tuple[tuple[str, Norm], list[int]] | None:
    """Return an imputation and norm, and the depths to try next: halfway between its best and those tried.

    None once the best depths of the best two imputations and norms have been tried on both sides.
    """
    ranked = sorted(losses, key=lambda pair: min(losses[pair].values()))
    for pair in ranked[:REFINED]:
        tried = [place for place, depth in enumerate(depths) if depth in losses[pair]]
        best = min(tried, key=lambda place: losses[pair][depths[place]])
        below = max((place for place in tried if place < best), default=-1)
        above = min((place for place in tried if place > best), default=len(depths))
        between = sorted(
            {(below + best) // 2, (best + above + 1) // 2} & set(range(below + 1, above)) - {best}
        )
        if between:
            return pair, [depths[place] for place in between]
    return None


def _tried(task: Task, steps: Sequence[Step]) -> Results:
    """Evaluate what the walks of a task's folds came to at one depth, a scale after the other."""
    for found in zip(*(found for _, found in steps), strict=True):
        candidate = found[0][0]
        logits = [
            held_products(one, state, weight, bias)
            for one, (state, _), (_, weight, bias) in zip(task.tasks_by_features, steps, found, strict=True)
        ]
        yield task.evaluate(candidate, torch.cat(logits), partial(_learn, candidate=candidate))


def _walks(norm: Norm, scales: Sequence[float]) -> list[Sequence[float]]:
    """Return the scales that one propagation supports: PairNorm commutes with its scale, all but PN-SCS."""
    return [[scale] for scale in scales] if norm == "PN-SCS" else [scales]


def _sweep(
    task: Task,
    fill: str,
    norm: Norm,
    depths: Sequence[int],
    scales: Sequence[float],
    gradient: float = TOLERANCE,
) -> Iterator[Step]:
    """Yield, for every depth, its state, and (candidate, weights of every fold, biases) of every scale."""
    graph, device = task.graph, task.device
    start = filled(fill, graph, _reduced(task)[1])
    matrix = normalized(graph, task.adjacency, device)
    own = scales[0] if norm == "PN-SCS" else 1.0
    walk = sgc_iterates(start, matrix, None if norm == "none" else PairNorm(own, norm))
    for depth, state in zip(range(max(depths) + 1), walk, strict=False):
        if depth not in depths:
            continue
        factors = [scale / own for scale in scales]
        found = fold_weights(task, state, factors, gradient)
        yield (
            state,
            (
                (Candidate("SGC", norm, depth, own * factor, fill=fill), factor * weight, bias)
                for factor, weight, bias in found
            ),
        )


def _learn(task: Task, candidate: Candidate) -> Network:
    """Learn one SGC from all training nodes."""
    depth, norm, scale = candidate.depth, candidate.norm, candidate.scale
    gradient = TOLERANCE
    if has_many_nodes(task.graph):
        task, gradient = fewer(task, MAX_TRAINING_ROWS), LOOSE_TOLERANCE
    basis, features = _reduced(task)
    if norm != "PN-SCS" and basis is None and is_expensive(task.graph, features):
        state = _walk(task, candidate.fill, norm).state(depth)
        ((_, weight, bias),) = fold_weights(task, state, [scale], gradient)
        weight = weight * scale
    else:
        _, ((_, weight, bias),) = next(_sweep(task, candidate.fill, norm, [depth], [scale], gradient))
    # Without a norm an SGC has no scale of its own, and its weights keep it; PN-SCS has it in its state.
    weight = weight if norm in ("none", "PN-SCS") else weight / scale
    weight = weight if basis is None else basis @ weight
    settings = {"norm": candidate.mode, "scale": scale, "adjacency": task.adjacency}
    statistics = None
    if candidate.mode is not None:
        dense, own = task.features.to_dense().to(task.device), sgc_scale(candidate.mode, scale)
        walk = candidate.fill, task.adjacency, candidate.mode, own, depth
        statistics = NormStatistics.of(task.graph, dense, *walk)
    return Network(SGC.from_weights(weight, bias, num_layers=depth, **settings), candidate.fill, statistics)


def _walk(task: Task, fill: str, norm: Norm) -> SharedPropagation:
    features = task.features.to_dense().to(task.device)
    return SharedPropagation(task.graph, features, fill, task.adjacency, None if norm == "none" else norm)


def fold_weights(
    task: Task, state: Tensor, scales: Sequence[float], gradient: float = TOLERANCE
) -> Iterator[tuple[float, Tensor, Tensor]]:
    """Yield (scale, weights [folds, d, classes], biases [folds, classes]) of regressions on some columns.

    Args:
        task: whose folds, or pseudo_labels.
        state: [n, d], the columns of every node.
        scales: from small to large.
        gradient: as of ``fold_regressions``.
    """
    if task.pseudo_labels is not None:
        rows, target, counts = task.pseudo_labels.training_rows(state)
        # What is not known exactly need not be solved to the end.
        return fold_regressions(rows, target, scales, counts.unsqueeze(0), max(gradient, LOOSE_TOLERANCE))
    train = task.learnable.graph.train
    folds = torch.stack([fold.graph.train[train] for fold in task.folds]).to(state.device)
    target = one_hot(task.graph.labels[train], task.classes).to(state.device)
    return fold_regressions(state[train.to(state.device)], target, scales, folds, gradient)


def held_products(task: Task, state: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return what the weights of every fold say of the nodes it holds out, [m, 1, classes]."""
    found = [
        state[fold.graph.validation.to(state.device)] @ own + constant
        for fold, own, constant in zip(task.folds, weight, bias, strict=True)
    ]
    return torch.cat(found).unsqueeze(1)


def _reduced(task: Task) -> tuple[Tensor | None, Tensor]:
    """Return the features in few coordinates, in which fills of whole vectors work as well."""
    features = task.features.to_dense().to(task.device)
    return span(features) if task.graph.missing.dim() == 1 else (None, features)
