"""Choosing a model by validation: SGC at every depth, then GCNs and GATs if asked for, while time allows."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isnan

from torch import nn

from pairnorm.classify.candidates import Candidate, Found, Task, gnn_candidate, sgc_candidates
from pairnorm.errors import PairNormError
from pairnorm.train.spec import Spec

# What the paper trains GCN and GAT with.
GNN_NORM = "PN-SI"
UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


class OutOfTime(Exception):
    """Raised from inside an epoch loop once the budget is spent."""


@dataclass(frozen=True)
class Plan:
    """What to try, in order.

    Args:
        sgc: the norms of SGC; none for no SGC.
        sgc_depths: its depths.
        scales: PairNorm's s, for SGC.
        gnns: the specs of GCNs and GATs.
        seeds: of their trials.
        seconds: after so long, no GCN or GAT is begun or gone on with.
    """

    sgc: Sequence[str]
    sgc_depths: Sequence[int]
    scales: Sequence[float]
    gnns: Sequence[Spec]
    seeds: Sequence[int]
    seconds: float = inf

    @property
    def steps(self) -> int:
        """How many times ``tick`` will be called."""
        sweeps = sum(len(self.scales) if norm == "PN-SCS" else 1 for norm in self.sgc)
        return sweeps * len(self.sgc_depths) + len(self.gnns)


def search(
    task: Task, plan: Plan, tick: Callable[[str], None] = lambda done: None
) -> tuple[list[Candidate], Candidate, nn.Module]:
    """Try every candidate and return them all, the best, and the best as a network.

    Args:
        task: the graph.
        plan: what to try.
        tick: is told of every step done.
    """
    began = time.perf_counter()
    tried: list[Candidate] = []
    best: Candidate | None = None
    network: nn.Module | None = None

    def consider(found: Found) -> None:
        nonlocal best, network
        for candidate, build in found:
            tried.append(candidate)
            if best is None or candidate.rank > best.rank:
                best, network = candidate, build()

    for norm in plan.sgc:
        consider(sgc_candidates(task, norm, plan.sgc_depths, plan.scales, tick))

    def watch(_: int) -> None:
        if best is not None and time.perf_counter() - began > plan.seconds:
            raise OutOfTime

    for spec in plan.gnns:
        try:
            watch(0)
            consider(gnn_candidate(task, spec, plan.seeds, watch))
        except OutOfTime:
            pass
        tick(f"{spec.model}, depth {spec.depth}")
    if best is None or network is None:
        raise PairNormError(
            "there is nothing to try: name a model, a depth and a scale, or leave them 'auto'."
        )
    if not isnan(best.validation_accuracy):
        tried = [candidate for candidate in tried if not isnan(candidate.validation_accuracy)]
    return tried, best, network


def parse_budget(budget: float | str | None) -> float | None:
    """Return seconds, of a number or of a text such as ``'90s'``, ``'5m'`` or ``'1.5h'``.

    >>> parse_budget("5m")
    300.0

    Args:
        budget: None for none.
    """
    if budget is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", str(budget).strip())
    if not found or float(found[1]) == 0:
        raise PairNormError(f"budget is {budget!r}; expected a time such as '90s', '5m' or '1h'.")
    return float(found[1]) * UNITS[found[2]]
