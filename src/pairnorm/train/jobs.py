"""Plan jobs: groups of (spec, seed) pairs that train together, share work and fit into memory."""

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from pairnorm.base.errors import PairNormError
from pairnorm.data import Graph
from pairnorm.train.result import check_seed
from pairnorm.train.spec import ENTRIES, Spec

Pair = tuple[Spec, int]
"""A spec and a seed: one trial."""

# Kernels process one trial after the other: the states of a few trials make the overhead of Python small.
CACHE_BYTES = 2**21
# States of SGC are wider: a few trials share the cost of an epoch besides its products.
SGC_BYTES = 2**27
# Several jobs run at once on CUDA and share its memory. Jobs of GCN and GAT need less than half of the memory
# that ``_trials_per_job`` assumes, jobs of SGC three quarters.
CUDA_STREAMS = 6
CUDA_SHARE = 0.2


@dataclass(frozen=True)
class Job:
    """(spec, seed) pairs of one architecture on one graph that are trained together."""

    pairs: tuple[Pair, ...]

    @property
    def trials(self) -> list[Pair]:
        """The trials along the trial axis. Depths and variants of an SGC share a propagation and a trial."""
        return list(dict.fromkeys(map(_trial, self.pairs)))

    @property
    def depths(self) -> list[int]:
        """The depths in rising order."""
        return sorted({spec.depth for spec, _ in self.pairs})

    @property
    def variants(self) -> list[list[Pair]]:
        """For every trial of SGC, one pair per scale and optimizer, sorted; equally many for every trial.

        The last variant of a trial is repeated if others have more.
        """
        variants = [sorted(own.values(), key=_variant) for own in _variants_by_trial(self.pairs).values()]
        most = max(map(len, variants))
        return [own + own[-1:] * (most - len(own)) for own in variants]

    @property
    def cost(self) -> int:
        """Work in layer-epochs, for progress bars. An epoch of an SGC counts as one layer."""
        spec = self.pairs[0][0]
        layers = len(self.depths) if spec.model == "SGC" else spec.depth
        return spec.epochs * len(self.trials) * layers

    def halves(self) -> "list[Job]":
        """Split the trials into two jobs, or return this job if there is only one trial."""
        trials = self.trials
        if len(trials) < 2:
            return [self]
        return _split(self.pairs, (len(trials) + 1) // 2)


def plan(
    graph: Graph, pairs: Iterable[Pair], device: torch.device | None, cores: int | None = None
) -> list[Job]:
    """Group pairs by architecture, then split the groups to fit the device. Long jobs come first.

    Args:
        graph: of all pairs.
        pairs: to train.
        device: on which they train; None for workers of a cluster, which plan their part again.
        cores: number of workers that share the trials. Default: the cores of this machine.
    """
    if graph.num_features == 0:
        problem = f"graph {graph.name!r} has no features"
        raise PairNormError(problem, code="no-features", value=0, expected="at least one")
    cuda = device is not None and device.type == "cuda"
    groups: dict[Spec, list[Pair]] = defaultdict(list)
    for spec, seed in sorted(pairs, key=_variant) if cuda else pairs:
        groups[_architecture(spec, cuda)].append((spec, check_seed(seed)))
    jobs = []
    for shared, group in groups.items():
        for variants, some in _by_number_of_variants(group).items() if cuda else [(1, group)]:
            size = len(some) if device is None else _trials_per_job(graph, shared, device, variants)
            if not cuda:  # no core should be idle while another has all trials
                size = min(size, -(-len(Job(tuple(some)).trials) // (cores or os.cpu_count() or 1)))
            jobs += _split(some, size)
    return sorted(jobs, key=lambda job: -job.cost)


def _variants_by_trial(pairs: Iterable[Pair]) -> dict[Pair, dict[tuple[float, ...], Pair]]:
    """Return a pair of every variant of every trial."""
    variants: dict[Pair, dict[tuple[float, ...], Pair]] = defaultdict(dict)
    for pair in pairs:
        variants[_trial(pair)][_variant(pair)] = pair
    return variants


def _by_number_of_variants(pairs: Sequence[Pair]) -> dict[int, list[Pair]]:
    """Group pairs by the number of variants of their trial, so that none has to be repeated."""
    variants = _variants_by_trial(pairs)
    parts: dict[int, list[Pair]] = defaultdict(list)
    for pair in pairs:
        parts[len(variants[_trial(pair)])].append(pair)
    return parts


@lru_cache(2**16)  # a grid asks for the same with every seed
def _architecture(spec: Spec, cuda: bool) -> Spec:
    """Return the fields that pairs of a job share: all except missing features; for SGC, depth and scale.

    On CUDA, jobs also mix optimizers, since a few trials do not fill a GPU. On a CPU they do not, so that a
    trial gives the same bits whatever it trains with.
    """
    own: dict[str, Any] = {
        "missing_rate": 1.0,
        "missing_kind": "entries" if spec.missing_kind in ENTRIES else "vectors",
    }
    if cuda:
        own |= {"learning_rate": 1.0, "weight_decay": 0.0}
    if spec.model == "SGC":
        own |= {"depth": 1, "scale": spec.scale if spec.norm == "PN-SCS" else 1.0}
    return spec.replace(**own)


def _trial(pair: Pair) -> Pair:
    spec, seed = pair
    return _propagated_spec(spec), seed


@lru_cache(2**16)
def _propagated_spec(spec: Spec) -> Spec:
    if spec.model != "SGC":
        return spec
    return spec.replace(depth=1, scale=1.0, learning_rate=1.0, weight_decay=0.0)


def _variant(pair: Pair) -> tuple[float, ...]:
    """Return the sort key of a variant: variants of one optimizer are adjacent, and share a step."""
    spec, _ = pair
    return spec.learning_rate, spec.weight_decay, spec.scale


def _split(pairs: Sequence[Pair], size: int) -> list[Job]:
    """Split pairs into jobs of at most ``size`` trials and about equal size."""
    trials = Job(tuple(pairs)).trials
    count = -(-len(trials) // size)
    number = {trial: position * count // len(trials) for position, trial in enumerate(trials)}
    parts: dict[int, list[Pair]] = defaultdict(list)
    for pair in pairs:
        parts[number[_trial(pair)]].append(pair)
    return [Job(tuple(part)) for part in parts.values()]


def _trials_per_job(graph: Graph, spec: Spec, device: torch.device, variants: int) -> int:
    """Return the number of trials of one job, with ``variants`` variants each."""
    width = graph.num_features if spec.model == "SGC" else spec.hidden
    state = 4 * graph.num_nodes * width
    imputed = 0 if spec.imputation == "zero" else 4 * graph.num_nodes * graph.num_features
    if device.type != "cuda":
        return max(1, (SGC_BYTES if spec.model == "SGC" else CACHE_BYTES) // (state + imputed))
    # The backward pass keeps a few states per layer; attention keeps scores too.
    states = 4 if spec.model == "SGC" else {"GCN": 6, "GAT": 9}[spec.model] * spec.depth
    states *= 1 if spec.method == "none" else 2  # methods without kernels keep more
    features = 12 * (graph.features.values().numel() if graph.features.layout == torch.sparse_csr else 0)
    features += 6 * imputed  # during imputation and dropout
    if spec.model == "SGC":  # weights, initial and best weights, gradients, Adam's state; logits
        features += 4 * variants * graph.num_classes * (8 * graph.num_features + 5 * graph.num_nodes)
    free, _ = torch.cuda.mem_get_info(device)
    return max(1, int(CUDA_SHARE * free) // (states * state + features))
