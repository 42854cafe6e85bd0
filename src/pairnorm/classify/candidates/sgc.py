"""SGC, all depths from one propagation and all scales from one path; logistic regression is its depth 0."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from math import inf
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from pairnorm.base.errors import one_of
from pairnorm.classify.candidates.task import (
    SEARCH_SHARE,
    Candidate,
    Results,
    SavedState,
    State,
    Task,
    Tick,
    limit_training_nodes,
)
from pairnorm.classify.regression import (
    DRAFT_TOLERANCE,
    LOOSE_TOLERANCE,
    MAX_AXES,
    MAX_SELECTION_ROWS,
    MAX_TRAINING_ROWS,
    MIN_PARALLEL_SIZE,
    SCALES,
    TOLERANCE,
    fold_regressions,
    leading_axes,
    span,
)
from pairnorm.classify.scaling import PreparedGraph, check_size, has_many_nodes
from pairnorm.data import Graph
from pairnorm.nn import Mode, Normalization, normalized_adjacency
from pairnorm.nn.ops.pair_norm import MAX_FUSED_ELEMENTS, normalize_and_measure, normalize_by
from pairnorm.nn.propagate import NORMALIZATIONS
from pairnorm.train.spec import Norm

# The depths to evaluate first, as shares of the list of depths; how many imputations and norms to refine.
FIRST_DEPTHS, NUM_REFINED = (0.5, 0.1, 0.8), 2
Losses = dict[tuple[str, Norm], dict[int, float]]
Path = Iterator[tuple[float, Tensor, Tensor]]
EPS = 1e-6
# Regressions of a larger rank take seconds to solve to convergence, since the time grows with its cube.
MAX_EXACT_RANK = 1500
# A sweep over scales that is quicker is finished though time is up: its first scale is rarely a good one.
MIN_SWEEP_SECONDS = 1.0
# A longer one ends at this share of the time limit: each scale may take twice as long as the one before.
SWEEP_SHARE, SCALE_COST_RATIO = 0.125, 2.0
MIN_SHARE_PRESENT = 0.5
"""A graph that holds a larger share of the fitted nodes has their statistics measured in it."""


def compile_kernels(graph: Graph) -> None:
    """Compile the CPU kernels that SGCs of a graph need, or load them, before the time limit starts.

    Compiling takes seconds, once per machine, and a search would expect as much of its other steps.
    """
    rank = min(graph.num_features, int((~graph.missing_vectors).sum()))
    _compile_kernels(graph.num_nodes * rank > MAX_FUSED_ELEMENTS)


@cache
def _compile_kernels(is_large: bool) -> None:
    normalized_adjacency(torch.eye(2).to_sparse_csr()) @ torch.ones(2, 1)
    if is_large:
        normalize_and_measure(torch.ones(MAX_FUSED_ELEMENTS + 1, 1), 1.0, EPS, "PN")


def measure(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of rows, [..., features], and their mean squared distance from it, [..., 1]."""
    mean = x.mean(0, dtype=torch.float64).float()
    lengths = torch.linalg.vector_norm(x - mean, dim=(0, -1), dtype=torch.float64).unsqueeze(-1)
    return mean, (lengths.square() / len(x)).float()


class NormStatistics(NamedTuple):
    """The statistics of every normalization of an SGC, of the input and after every step, or of a network.

    In a graph that still holds the fitted nodes, the statistics are measured on these nodes again, so that a
    shift that all nodes share cancels; deep propagation would amplify it. Other graphs are normalized by the
    stored values. Either way the prediction of a node does not depend on which new nodes come with it.

    They are the means that are subtracted, [depth + 1, d] or, of a network, [depth - 1, models, hidden]; the
    mean squared row lengths after centering, which only ``PN`` uses; and the fingerprints of the nodes.
    """

    centers: Tensor
    mean_squares: Tensor
    nodes: Tensor

    @classmethod
    def restore(cls, saved: SavedState, length: int, width: int, *models: int) -> Self:
        """Read the statistics of ``length`` steps and ``width`` columns."""
        squares = saved.tensor("mean_squares", length, *models, *(1 for _ in models))
        if not (squares >= 0).all():
            raise ValueError("a mean square is negative")
        nodes = saved.tensors["nodes"]
        if nodes.dim() != 1 or nodes.dtype != torch.int64:
            raise ValueError("nodes are not fingerprints")
        return cls(saved.tensor("centers", length, *models, width), squares, nodes)

    def fitted_rows(self, prepared: PreparedGraph) -> tuple[Tensor, bool]:
        """Return which nodes of a graph were fitted on, bool [n], and whether these are all its nodes."""
        fitted = torch.from_numpy(np.isin(prepared.node_fingerprints, self.nodes.numpy()))
        return fitted, bool(fitted.all()) and len(fitted) == len(self.nodes)

    def are_measurable(self, fitted: Tensor) -> bool:
        """Return whether enough of the fitted nodes are in a graph to measure the statistics in it."""
        return int(fitted.sum()) > MIN_SHARE_PRESENT * len(self.nodes)


class Propagation(NamedTuple):
    """How an SGC propagates features: imputed, then averaged over neighbors and normalized in every step.

    ``method`` is that of the imputation, ``mode`` that of PairNorm, None without a norm. The scale is one for
    all modes that commute with it, which are all but PN-SCS.
    """

    method: str
    normalization: Normalization
    mode: Mode | None
    scale: float = 1.0

    def state(self, prepared: PreparedGraph, depth: int) -> Tensor:
        """Return the reduced features after some propagation steps: [n, r].

        It continues from the deepest state in the cache, and caches the statistics of every step.
        """
        done = (number for number in range(depth, -1, -1) if prepared.peek((self, number)) is not None)
        if (start := next(done, None)) == depth:
            return prepared.cached((self, depth), lambda: torch.empty(0))
        matrix = prepared.adjacency(self.normalization)
        state = prepared.imputed(self.method) if start is None else matrix @ prepared.peek((self, start))
        for number in range(0 if start is None else start + 1, depth + 1):
            if self.mode is not None:
                state, statistics = normalize_and_measure(state, self.scale, EPS, self.mode)
                prepared.cached((self, number, "statistics"), lambda: statistics)  # noqa: B023
            state = state if number == depth else matrix @ state
        return prepared.cached((self, depth), lambda: state)

    def statistics(self, prepared: PreparedGraph, depth: int) -> NormStatistics | None:
        """Return the statistics of every step of a graph; None without a norm."""
        if self.mode is None:
            return None
        self.state(prepared, depth)
        steps = [prepared.peek((self, number, "statistics")) for number in range(depth + 1)]
        centers, squares = map(torch.stack, zip(*steps, strict=True))
        basis, _ = prepared.reduced
        centers = centers if basis is None else centers @ basis.T
        return NormStatistics(centers, squares[:, 0], torch.from_numpy(prepared.node_fingerprints))

    def fitted_states(
        self, prepared: PreparedGraph, depth: int, statistics: NormStatistics | None, last: int = 1
    ) -> tuple[Tensor | None, Sequence[Tensor]]:
        """Propagate the features of any graph, normalized by the statistics of the fitted nodes.

        Returns:
            A basis [d, r] and the last states in its coordinates, [n, r]; None in place of a basis where r
            would be d.
        """
        fitted, same_nodes = (None, True) if statistics is None else statistics.fitted_rows(prepared)
        if same_nodes or statistics is None or fitted is None or self.mode is None:
            first = max(0, depth + 1 - last)
            return prepared.reduced[0], [self.state(prepared, step) for step in range(first, depth + 1)]
        features, basis, centers = prepared.dense, None, statistics.centers.to(prepared.device)
        if prepared.graph.missing.dim() == 1:
            basis, both = span(torch.cat([features, centers]))
            features, centers = both[: len(features)], both[len(features) :]
        measured = statistics.are_measurable(fitted)
        matrix, state = prepared.adjacency(self.normalization), prepared.imputed(self.method, features)
        states: deque[Tensor] = deque(maxlen=last)
        for number in range(depth + 1):
            state = matrix @ state if number else state
            center, square = centers[number], statistics.mean_squares[number].to(state)
            if measured:
                center, square = measure(state[fitted.to(state.device)])
            state = normalize_by(state, center, square, self.scale, EPS, self.mode)
            states.append(state)
        return basis, states


def sgc_scale(mode: Mode | None, scale: float) -> float:
    """Return the scale to propagate an SGC with: one, as all modes but PN-SCS commute with their scale."""
    return scale if mode == "PN-SCS" else 1.0


@dataclass(frozen=True)
class SGCFamily:
    """SGCs of several norms, depths, scales and imputations; without a norm, s scales the features."""

    norms: Sequence[Norm]
    depths: Sequence[int]
    scales: Sequence[float] = SCALES
    imputations: Sequence[str] = ("zero",)
    exhaustive: bool = True
    name: str = "SGC"

    @property
    def steps(self) -> int:
        """One per imputation, norm and depth that a search usually takes; for PN-SCS, also per scale."""
        depths = len(self.depths) if self.exhaustive else min(len(self.depths), len(FIRST_DEPTHS) + 1)
        runs = sum(len(self.scales) if norm == "PN-SCS" else 1 for norm in self.norms)
        return runs * depths * len(self.imputations)

    def fit(self, task: Task, tick: Tick) -> Results:
        """Yield one SGC per imputation, norm, depth and scale, within the search limits.

        Unless the search is exhaustive, all imputations and norms start with one depth. A smaller and a
        larger one follow, in the order of the held-out losses. The best two are refined between the depths
        next to their best one, as long as the loss falls.
        """
        check_size(task.graph)
        depths = sorted(self.depths)
        losses: Losses = {
            (imputation, norm): {} for norm, imputation in product(self.norms, self.imputations)
        }
        if self.exhaustive or len(depths) <= len(FIRST_DEPTHS) + 1:
            start, others = depths, []
        else:
            start, *others = ([depths[int(share * (len(depths) - 1))]] for share in FIRST_DEPTHS)
        for pair in losses:
            yield from self._explore(task, pair, start, losses[pair], tick)
        for pair in sorted(losses, key=lambda pair: min(losses[pair].values())):
            for depth in others:
                yield from self._explore(task, pair, depth, losses[pair], tick)
        while (target := _refinement(losses, depths)) is not None:
            pair, between = target
            yield from self._explore(task, pair, between, losses[pair], tick)

    def _explore(
        self, task: Task, pair: tuple[str, Norm], depths: Sequence[int], losses: dict[int, float], tick: Tick
    ) -> Results:
        """Yield one SGC per depth and scale, and record the smallest loss of each depth."""
        imputation, norm = pair
        name = f"SGC{'' if norm == 'none' else '-' + norm}"
        losses |= dict.fromkeys(depths, inf)  # also those that the limits leave out
        candidate = Candidate("SGC", norm, imputation=imputation)
        # All norms but PN-SCS commute with their scale: one propagation is enough for all scales.
        for scales in [[scale] for scale in self.scales] if norm == "PN-SCS" else [self.scales]:
            by_depth = _evaluate(task, candidate, depths, scales)
            for depth, results in task.limits.depths(depths, by_depth, tick, name):
                ranked = sorted(results, key=lambda result: result.validation_loss)
                losses[depth] = min(losses[depth], ranked[0].validation_loss)
                yield from ranked  # the best first: the search may take no more than one when time is up


def _refinement(losses: Losses, depths: Sequence[int]) -> tuple[tuple[str, Norm], list[int]] | None:
    """Return the pair (imputation, norm) to refine, and depths halfway between its best and the next ones.

    None once the best depths of the best two imputations and norms have evaluated depths on both sides.
    """
    ranked = sorted(losses, key=lambda pair: min(losses[pair].values()))
    for pair in ranked[:NUM_REFINED]:
        done = [number for number, depth in enumerate(depths) if depth in losses[pair]]
        best = min(done, key=lambda number: losses[pair][depths[number]])
        below = max((number for number in done if number < best), default=-1)
        above = min((number for number in done if number > best), default=len(depths))
        halfway = {(below + best) // 2, (best + above + 1) // 2} & set(range(below + 1, above)) - {best}
        if halfway:
            return pair, [depths[number] for number in sorted(halfway)]
    return None


@dataclass(frozen=True)
class LogisticRegression:
    """Logistic regression, which sees no edges: an SGC-PN of depth 0, whose scale regularizes."""

    scales: Sequence[float] = SCALES
    name: str = "logistic regression"
    steps: int = 1

    def fit(self, task: Task, tick: Tick) -> Results:
        """Yield one candidate per scale, the best first."""
        check_size(task.graph)
        (by_scale,) = _evaluate(task, Candidate(self.name), [0], self.scales)
        yield from sorted(task.limits.scales(by_scale), key=lambda result: result.validation_loss)
        tick(self.name)


def _evaluate(
    task: Task, candidate: Candidate, depths: Sequence[int], scales: Sequence[float]
) -> Iterator[Results]:
    """Yield the evaluated candidates of each depth, fitted to a sample where training nodes are many.

    Wide features are projected on their leading principal axes, unless the search is exhaustive.
    """
    axes = None
    if task.time_limit < inf and task.prepared.is_wide:
        axes = task.prepared.principal_axes(MAX_AXES)
    tasks = [
        limit_training_nodes(replace(part, prepared=part.prepared.projected(axes)), MAX_SELECTION_ROWS)
        for part in task.tasks_by_features
    ]
    for depth in depths:
        settings = replace(candidate, depth=depth, scale=scales[0])
        propagation = _make_propagation(task, settings)
        factors = [scale / propagation.scale for scale in scales]
        states = [propagation.state(part.prepared, depth) for part in tasks]
        paths = [
            _fold_weights(part, state, factors, (propagation, depth))
            for part, state in zip(tasks, states, strict=True)
        ]
        yield _evaluate_scales(task, settings, propagation.scale, states, paths, axes)


def _evaluate_scales(
    task: Task,
    candidate: Candidate,
    own_scale: float,
    states: Sequence[Tensor],
    paths: Sequence[Path],
    axes: Tensor | None,
) -> Results:
    """Yield a candidate per scale, each of which takes longer than the last, until the time limit."""
    first = started = time.perf_counter()
    for solutions in zip(*paths, strict=True):
        factor = solutions[0][0]
        logits = [
            factor * state[fold.graph.validation.to(state.device)] @ fold_weight + constant
            for part, state, (_, weight, bias) in zip(task.tasks_by_features, states, solutions, strict=True)
            for fold, fold_weight, constant in zip(part.folds, weight, bias, strict=True)
        ]
        scale = own_scale * factor
        scaled = replace(candidate, scale=scale, setting="" if candidate.depth else f"scale {scale:g}")
        fit = partial(_fit, candidate=scaled, axes=axes)
        yield task.evaluate(scaled, torch.cat(logits).unsqueeze(1), fit)
        now = time.perf_counter()
        following = SCALE_COST_RATIO * (now - started)
        in_turn = now - first + following <= SWEEP_SHARE * task.time_limit
        if now - first > MIN_SWEEP_SECONDS and not (in_turn and task.allows(SEARCH_SHARE, following)):
            break
        started = now


def _make_propagation(task: Task, candidate: Candidate) -> Propagation:
    mode = candidate.mode if candidate.depth else "PN"
    return Propagation(candidate.imputation, task.adjacency, mode, sgc_scale(mode, candidate.scale))


def _fold_weights(task: Task, state: Tensor, scales: Sequence[float], key: Hashable) -> Path:
    """Yield (scale, weights [folds, d, classes], biases [folds, classes]) of regressions on a state, [n, d].

    Large regressions that compare candidates or learn pseudo-labels are solved loosely, on leading axes that
    all folds and variants of the graph share; ``key`` identifies the state in the cache. So is a delivered
    model of a large rank, unless the search is exhaustive.
    """
    is_loose = task.is_draft or task.pseudo_labels is not None
    if task.pseudo_labels is None:
        train = task.with_all_folds.graph.train.to(state.device)
        rows, target = state[train], one_hot(task.graph.labels.to(state.device)[train], task.classes)
        weights = torch.stack([fold.graph.train.to(state.device)[train] for fold in task.folds])
    else:
        nodes, target, counts = (part.to(state.device) for part in task.pseudo_labels)
        rows, weights = state[nodes], counts.unsqueeze(0)
    tolerance, axes = LOOSE_TOLERANCE if is_loose or has_many_nodes(task.graph) else TOLERANCE, None
    is_large = rows.numel() >= MIN_PARALLEL_SIZE
    if not is_loose:
        is_large = min(rows.shape) > MAX_EXACT_RANK and task.time_limit < inf
    if is_large:
        tolerance, shared = DRAFT_TOLERANCE, task.prepared.reduced[0] is None
        name = "axes", key, task.pseudo_labels is None
        axes = task.prepared.cached(name, lambda: leading_axes(rows - rows.mean(0)), edges_only=shared)
    return fold_regressions(rows, target, scales, weights, tolerance, axes)


def _fit(task: Task, candidate: Candidate, axes: Tensor | None) -> FittedSGC:
    """Fit one SGC or logistic regression to all training nodes."""
    depth = candidate.depth
    task = replace(task, prepared=task.prepared.projected(axes))
    if has_many_nodes(task.graph):
        task = limit_training_nodes(task, MAX_TRAINING_ROWS)
    propagation = _make_propagation(task, candidate)
    factor = candidate.scale / propagation.scale
    state = propagation.state(task.prepared, depth)
    ((_, weights, biases),) = _fold_weights(task, state, [factor], (propagation, depth))
    basis, _ = task.prepared.reduced
    weight, bias = factor * (weights[0] if basis is None else basis @ weights[0]), biases[0]
    statistics = propagation.statistics(task.prepared, depth)
    if depth == 0 and statistics is not None:
        # A map of the rows x that equals one of PairNorm's rows (x - center) / length.
        slope = weight.double() / (statistics.mean_squares[0].double() + EPS).sqrt()
        bias = (bias - statistics.centers[0].double() @ slope).float()
        weight, statistics, propagation = slope.float(), None, propagation._replace(mode=None)
    if axes is not None:
        weight, axes = axes.to(weight) @ weight, axes if depth else None
    return FittedSGC(propagation, depth, weight, bias, statistics, axes)


@dataclass(frozen=True, eq=False)
class FittedSGC:
    """A fitted SGC; at depth 0, a logistic regression, which sees no edges.

    ``statistics`` are PairNorm's, of the graph that it was fitted on; None without a norm. ``axes`` are the
    principal axes that features are projected on, [d, r]; None for the features themselves.
    """

    propagation: Propagation
    depth: int
    weight: Tensor
    bias: Tensor
    statistics: NormStatistics | None
    axes: Tensor | None = None

    def logits(self, prepared: PreparedGraph) -> Tensor:
        """Return the logits of every node, [n, 1, classes]."""
        basis, (state,) = self.states(prepared)
        weight, bias = self.weight.to(state), self.bias.to(state)
        return (state @ (weight if basis is None else basis.T @ weight) + bias).unsqueeze(1)

    def states(self, prepared: PreparedGraph, last: int = 1) -> tuple[Tensor | None, Sequence[Tensor]]:
        """Propagate a graph; return the basis [d, r] of its states (None: no basis) and the last states."""
        prepared = prepared.projected(self.axes)
        basis, states = self.propagation.fitted_states(prepared, self.depth, self.statistics, last)
        if self.axes is None:
            return basis, states
        axes = self.axes.to(states[0])
        return axes if basis is None else axes @ basis, states

    def state(self) -> State:
        """Return the adjacency normalization, weights and statistics, for ``restore``."""
        tensors = {"weight": self.weight, "bias": self.bias}
        tensors |= {} if self.statistics is None else self.statistics._asdict()
        tensors |= {} if self.axes is None else {"axes": self.axes}
        return {"adjacency": self.propagation.normalization}, tensors

    @classmethod
    def restore(cls, saved: SavedState) -> Self:
        """Read and validate the result of ``state``."""
        candidate, mode, statistics = saved.candidate, saved.candidate.mode, None
        adjacency: Any = one_of("adjacency", saved.settings["adjacency"], NORMALIZATIONS)
        propagation = Propagation(candidate.imputation, adjacency, mode, sgc_scale(mode, candidate.scale))
        if mode is not None:
            statistics = NormStatistics.restore(saved, candidate.depth + 1, saved.width)
        weight, bias = (
            saved.tensor("weight", saved.features, saved.classes),
            saved.tensor("bias", saved.classes),
        )
        return cls(propagation, candidate.depth, weight, bias, statistics, saved.axes)
