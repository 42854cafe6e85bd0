"""SGC: all depths from one propagation, each with logistic regressions over a path of scales."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import inf

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from pairnorm.classify.candidates.candidate import Candidate, Results, Tick
from pairnorm.classify.candidates.network import Network
from pairnorm.classify.candidates.prepared import has_many_nodes
from pairnorm.classify.candidates.propagation import Propagation, sgc_scale
from pairnorm.classify.candidates.task import Task, fewer
from pairnorm.classify.regression import (
    DRAFT_TOLERANCE,
    LOOSE_TOLERANCE,
    TOLERANCE,
    WORTH_A_THREAD,
    fold_regressions,
    leading_axes,
)
from pairnorm.classify.scaling import check_size
from pairnorm.classify.search_limits import ENOUGH, MAX_TRAINING_ROWS, SCALES
from pairnorm.nn import SGC
from pairnorm.train.spec import Norm

# The depths to evaluate first, as shares of the list of depths; how many imputations and norms to refine.
FIRST_DEPTHS, REFINED = (0.1, 0.5, 0.8), 2
Step = tuple[Tensor, Iterator[tuple[Candidate, Tensor, Tensor]]]


@dataclass(frozen=True)
class SGCFamily:
    """SGCs of several norms, depths and scales.

    Args:
        norms: ``"none"``, ``"PN"``, ``"PN-SI"`` or ``"PN-SCS"``.
        depths: numbers of propagations.
        scales: PairNorm's s; without a norm, what the features are multiplied by.
        fills: how missing features are imputed, of ``IMPUTATIONS``.
        name: of the family.
    """

    norms: Sequence[Norm]
    depths: Sequence[int]
    scales: Sequence[float] = SCALES
    fills: Sequence[str] = ("zero",)
    name: str = "SGC"

    @property
    def steps(self) -> int:
        """One for every imputation, norm and depth; for PN-SCS, for every scale too."""
        runs = sum(len(self.scales) if norm == "PN-SCS" else 1 for norm in self.norms)
        return runs * len(self.depths) * len(self.fills)

    def fit(self, task: Task, tick: Tick) -> Results:
        """Yield one SGC per imputation, norm, depth and scale, within the search limits.

        Unless the search is exhaustive, each imputation and norm starts with three depths; the best two are
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
        for pair, by_depth in losses.items():
            yield from self._explore(task, pair, first, by_depth, count)
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
        # PairNorm commutes with its scale, except for PN-SCS: one propagation serves all scales.
        for scales in [[scale] for scale in self.scales] if norm == "PN-SCS" else [self.scales]:
            runs = [_sweep(fewer(one, ENOUGH), fill, norm, depths, scales) for one in task.tasks_by_features]
            states = (_evaluated(task, steps) for steps in zip(*runs, strict=True))
            for depth, results in task.limits.depths(depths, states, tick, name):
                ranked = sorted(results, key=lambda one: one.validation_loss)
                losses[depth] = min(losses[depth], ranked[0].validation_loss)
                yield from ranked  # the best first: the search may take no more than one when time is up


def _refinement(
    losses: dict[tuple[str, Norm], dict[int, float]], depths: Sequence[int]
) -> tuple[tuple[str, Norm], list[int]] | None:
    """Return an imputation and norm, and the depths to evaluate next, halfway from its best to others.

    None once the best depths of the best two imputations and norms have evaluated depths on both sides.
    """
    ranked = sorted(losses, key=lambda pair: min(losses[pair].values()))
    for pair in ranked[:REFINED]:
        done = [number for number, depth in enumerate(depths) if depth in losses[pair]]
        best = min(done, key=lambda number: losses[pair][depths[number]])
        below = max((number for number in done if number < best), default=-1)
        above = min((number for number in done if number > best), default=len(depths))
        between = sorted(
            {(below + best) // 2, (best + above + 1) // 2} & set(range(below + 1, above)) - {best}
        )
        if between:
            return pair, [depths[number] for number in between]
    return None


def _evaluated(task: Task, steps: Sequence[Step]) -> Results:
    """Evaluate the regressions of one depth, a scale after the other."""
    for solutions in zip(*(solutions for _, solutions in steps), strict=True):
        candidate = solutions[0][0]
        logits = [
            held_out_products(one, state, weight, bias)
            for one, (state, _), (_, weight, bias) in zip(
                task.tasks_by_features, steps, solutions, strict=True
            )
        ]
        yield task.evaluate(candidate, torch.cat(logits), partial(_learn, candidate=candidate))


def _propagation(task: Task, fill: str, norm: Norm, scale: float) -> Propagation:
    mode = None if norm == "none" else norm
    return Propagation(fill, task.adjacency, mode, sgc_scale(mode, scale))


def _sweep(
    task: Task, fill: str, norm: Norm, depths: Sequence[int], scales: Sequence[float]
) -> Iterator[Step]:
    """Yield, for every depth, its state, and (candidate, weights of every fold, biases) of every scale."""
    propagation = _propagation(task, fill, norm, scales[0])
    own = propagation.scale
    for depth in depths:
        state = propagation.state(task.prepared, depth)
        solutions = fold_weights(task, state, [scale / own for scale in scales], (propagation, depth))
        yield (
            state,
            (
                (Candidate("SGC", norm, depth, own * factor, fill=fill), factor * weight, bias)
                for factor, weight, bias in solutions
            ),
        )


def _learn(task: Task, candidate: Candidate) -> Network:
    """Fit one SGC to all training nodes."""
    depth, norm, scale = candidate.depth, candidate.norm, candidate.scale
    if has_many_nodes(task.graph):
        task = fewer(task, MAX_TRAINING_ROWS)
    propagation = _propagation(task, candidate.fill, norm, scale)
    factor = scale / propagation.scale
    state = propagation.state(task.prepared, depth)
    ((_, weight, bias),) = fold_weights(task, state, [factor], (propagation, depth))
    # Without a norm an SGC has no scale of its own, and its weights contain it.
    weight = factor * weight if norm == "none" else weight
    basis, _ = task.prepared.reduced
    weight = weight if basis is None else basis @ weight
    settings = {"norm": candidate.mode, "scale": scale, "adjacency": task.adjacency}
    statistics = propagation.statistics(task.prepared, depth)
    return Network(SGC.from_weights(weight, bias, num_layers=depth, **settings), candidate.fill, statistics)


def fold_weights(
    task: Task, state: Tensor, scales: Sequence[float], key: Hashable
) -> Iterator[tuple[float, Tensor, Tensor]]:
    """Yield (scale, weights [folds, d, classes], biases [folds, classes]) of regressions on some columns.

    Args:
        task: whose folds or pseudo-labels. Expensive regressions of a draft are solved loosely, on axes that
            all folds and variants of the graph share.
        state: [n, d], the columns of every node.
        scales: from small to large.
        key: identifies the state in the cache.
    """
    train = task.learnable.graph.train.to(state.device)
    tolerance, axes = TOLERANCE, None
    if task.is_draft or has_many_nodes(task.graph):
        tolerance = LOOSE_TOLERANCE
    if task.is_draft and int(train.sum()) * state.shape[1] >= WORTH_A_THREAD:
        tolerance = DRAFT_TOLERANCE
        same_columns = task.prepared.reduced[0] is None
        axes = task.prepared.cached(
            ("axes", key), lambda: leading_axes(state[train] - state[train].mean(0)), edges_only=same_columns
        )
    if task.pseudo_labels is not None:
        rows, target, counts = task.pseudo_labels.training_rows(state)
        return fold_regressions(
            rows, target, scales, counts.unsqueeze(0), max(tolerance, LOOSE_TOLERANCE), axes
        )
    folds = torch.stack([fold.graph.train.to(state.device)[train] for fold in task.folds])
    target = one_hot(task.graph.labels.to(state.device)[train], task.classes)
    return fold_regressions(state[train], target, scales, folds, tolerance, axes)


def held_out_products(task: Task, state: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the logits by the weights of every fold for the nodes it holds out, [m, 1, classes]."""
    logits = [
        state[fold.graph.validation.to(state.device)] @ own + constant
        for fold, own, constant in zip(task.folds, weight, bias, strict=True)
    ]
    return torch.cat(logits).unsqueeze(1)
