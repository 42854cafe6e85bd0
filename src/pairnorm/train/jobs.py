"""Jobs: which trials run side by side, so that they share what they can and fit where they run."""

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

# Kernels take one trial after the other; the states of a few are enough for Python's part to be small.
CACHE_BYTES = 2**21
# SGC's states are too wide for that: a few trials share what an epoch costs besides its products.
SGC_BYTES = 2**27
# A few jobs run beside one another on CUDA, and share its memory: those of GCN and GAT need less than half of
# what ``_side_by_side`` counts, those of SGC three quarters.
CUDA_STREAMS = 6
CUDA_SHARE = 0.2


@dataclass(frozen=True)
class Job:
    """(spec, seed) pairs of one architecture on one graph, trained in one go."""

    pairs: tuple[Pair, ...]

    @property
    def trials(self) -> list[Pair]:
        """The trials side by side. Depths and variants of SGC are no trials: they share a propagation."""
        return list(dict.fromkeys(map(_trial, self.pairs)))

    @property
    def depths(self) -> list[int]:
        """The depths, rising."""
        return sorted({spec.depth for spec, _ in self.pairs})

    @property
    def variants(self) -> list[list[Pair]]:
        """For every trial of SGC, its scales and optimizers: pairs of any depth, rising, as many for each.

        A trial that wants fewer than another has its last repeated.
        """
        requested: dict[Pair, dict[tuple[float, ...], Pair]] = defaultdict(dict)
        for pair in self.pairs:
            requested[_trial(pair)][_variant(pair)] = pair
        most = max(map(len, requested.values()))
        found = [sorted(own.values(), key=_variant) for own in requested.values()]
        return [own + own[-1:] * (most - len(own)) for own in found]

    @property
    def cost(self) -> int:
        """Work in layer-epochs, for progress bars; an SGC's epoch counts as one layer."""
        spec = self.pairs[0][0]
        layers = len(self.depths) if spec.model == "SGC" else spec.depth
        return spec.epochs * len(self.trials) * layers

    def halves(self) -> "list[Job]":
        """Cut the trials in two, or give back this job if there is only one."""
        trials = self.trials
        if len(trials) < 2:
            return [self]
        return _cut(self.pairs, (len(trials) + 1) // 2)


def plan(
    graph: Graph, pairs: Iterable[Pair], device: torch.device | None, cores: int | None = None
) -> list[Job]:
    """Group pairs that share an architecture, then cut the groups to fit the device; long jobs first.

    Args:
        graph: the graph of all pairs.
        pairs: what is to be trained.
        device: where it will run; None where that is for workers to say, which plan their part again.
        cores: how many workers share the trials out. Default: one for each core of this machine.
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
        for variants, some in _by_variants(group).items() if cuda else [(1, group)]:
            size = len(some) if device is None else _side_by_side(graph, shared, device, variants)
            if not cuda:  # no core should wait while another has all the trials
                size = min(size, -(-len(Job(tuple(some)).trials) // (cores or os.cpu_count() or 1)))
            jobs += _cut(some, size)
    return sorted(jobs, key=lambda job: -job.cost)


def _by_variants(pairs: Sequence[Pair]) -> dict[int, list[Pair]]:
    """Part pairs by how many variants their trial has: side by side with more, some would be in vain."""
    variants: dict[Pair, set[tuple[float, ...]]] = defaultdict(set)
    for pair in pairs:
        variants[_trial(pair)].add(_variant(pair))
    parts: dict[int, list[Pair]] = defaultdict(list)
    for pair in pairs:
        parts[len(variants[_trial(pair)])].append(pair)
    return parts


@lru_cache(2**16)  # a grid asks for the same with every seed
def _architecture(spec: Spec, cuda: bool) -> Spec:
    """What pairs must agree on to train side by side: all but what is missing; for SGC, depth and scale.

    On CUDA, nor the optimizer: a GPU is hardly busy with a few trials. On a CPU products of another size and
    steps of other slices differ in their last digits; there a trial is the same to the bit in any company.
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
    return _walk(spec), seed


@lru_cache(2**16)
def _walk(spec: Spec) -> Spec:
    if spec.model != "SGC":
        return spec
    return spec.replace(depth=1, scale=1.0, learning_rate=1.0, weight_decay=0.0)


def _variant(pair: Pair) -> tuple[float, ...]:
    """Variants of one optimizer lie together: a step takes them at once."""
    spec, _ = pair
    return spec.learning_rate, spec.weight_decay, spec.scale


def _cut(pairs: Sequence[Pair], size: int) -> list[Job]:
    """Cut into jobs of at most ``size`` trials, as even as can be."""
    trials = Job(tuple(pairs)).trials
    count = -(-len(trials) // size)
    number = {trial: position * count // len(trials) for position, trial in enumerate(trials)}
    parts: dict[int, list[Pair]] = defaultdict(list)
    for pair in pairs:
        parts[number[_trial(pair)]].append(pair)
    return [Job(tuple(part)) for part in parts.values()]


def _side_by_side(graph: Graph, spec: Spec, device: torch.device, variants: int) -> int:
    """How many trials one job should have, each with so many variants."""
    width = graph.num_features if spec.model == "SGC" else spec.hidden
    state = 4 * graph.num_nodes * width
    filled = 0 if spec.imputation == "zero" else 4 * graph.num_nodes * graph.num_features
    if device.type != "cuda":
        return max(1, (SGC_BYTES if spec.model == "SGC" else CACHE_BYTES) // (state + filled))
    # Of every layer the backward pass keeps a handful of states; attention keeps scores too.
    kept = 4 if spec.model == "SGC" else {"GCN": 6, "GAT": 9}[spec.model] * spec.depth
    kept *= 1 if spec.method == "none" else 2  # what is not made of kernels keeps more
    features = 12 * (graph.features.values().numel() if graph.features.layout == torch.sparse_csr else 0)
    features += 6 * filled  # while they are filled, and while dropout falls on them
    if spec.model == "SGC":  # weights, first, kept, gradients and Adam's; logits on the way to their losses
        features += 4 * variants * graph.num_classes * (8 * graph.num_features + 5 * graph.num_nodes)
    free, _ = torch.cuda.mem_get_info(device)
    return max(1, int(CUDA_SHARE * free) // (kept * state + features))
